//! The memory of cases.

use anabranch_hip::DeviceBuffer;
use anabranch_shmem::{Registration, SymmetricMemory, World};

use super::Case;
use anabranch_ccl::Result;
use anabranch_ccl::{Communicator, DataType};
use anabranch_ccl::{LocationKind, Tensor};

/// The memory of cases, of each kind. Made once for a group.
#[derive(Debug)]
pub struct Scratch {
    symmetric: SymmetricMemory,
    // The registration ends before its memory.
    registered: Registration,
    registered_memory: DeviceBuffer,
    local: DeviceBuffer,
    pub(super) bytes: u64,
}

impl Scratch {
    /// Memory for cases with buffers of up to `bytes` bytes together. Collective over the communicator's group.
    ///
    /// # Errors
    /// Heap or device memory that is exhausted; memory that cannot be registered.
    pub fn new(world: &World, communicator: &Communicator, bytes: u64) -> Result<Self> {
        let group = communicator.group();
        let symmetric = world.allocate(group, bytes, 256, "ccl conformance")?;
        let device = world.device();
        let registered_memory = device.allocate(bytes as usize)?;
        // SAFETY: dropped after the registration, at the end of all cases.
        let registered =
            unsafe { world.register(group, registered_memory.address(), bytes, "ccl conformance") }?;
        let local = device.allocate(bytes as usize)?;
        Ok(Self { symmetric, registered, registered_memory, local, bytes })
    }

    /// Ends the registration. Collective.
    ///
    /// # Errors
    /// What made the world fail.
    pub fn release(self) -> Result<()> {
        Ok(self.registered.release()?)
    }

    pub(super) fn tensor_of(&self, case: &Case, byte: u64, count: u64) -> Result<Tensor<'_>> {
        self.tensor(case.location, case.data_type, byte, count)
    }

    pub(super) fn tensor(
        &self,
        location: LocationKind,
        data_type: DataType,
        byte: u64,
        count: u64,
    ) -> Result<Tensor<'_>> {
        match location {
            LocationKind::Local => {
                let address = self.local.address().offset(byte);
                // SAFETY: inside the buffer (who fills has compared the layout's end with it), which outlives the call: what it
                // leaves is judged when it is over.
                Ok(unsafe { Tensor::local(address, data_type, count) })
            }
            LocationKind::Symmetric => Tensor::symmetric(&self.symmetric, byte, data_type, count),
            LocationKind::Registered => Tensor::registered(&self.registered, byte, data_type, count),
        }
    }

    pub(super) fn write(&mut self, location: LocationKind, image: &[u8]) -> Result<()> {
        match location {
            LocationKind::Local => Ok(self.local.copy_from_host(0, image)?),
            LocationKind::Symmetric => Ok(self.symmetric.write(0, image)?),
            LocationKind::Registered => Ok(self.registered_memory.copy_from_host(0, image)?),
        }
    }

    pub(super) fn read(&self, location: LocationKind, image: &mut [u8]) -> Result<()> {
        match location {
            LocationKind::Local => Ok(self.local.copy_to_host(0, image)?),
            LocationKind::Symmetric => Ok(self.symmetric.read(0, image)?),
            LocationKind::Registered => Ok(self.registered_memory.copy_to_host(0, image)?),
        }
    }
}
