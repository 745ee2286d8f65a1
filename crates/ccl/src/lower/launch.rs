//! The stages of a call: kernel launches with arguments, and copies.

use std::fmt;

use anabranch_hip::{LaunchShape, Stream};
use anabranch_hip_jit::{DeviceStruct, Kernel, KernelUnit, LoadedKernel, LoadedUnit, bytemuck};
use anabranch_shmem::PeerCopy;

use crate::types::DataType;

/// One stage of a call on its stream, made by [`lowered`](crate::lower::lowered) without a world or a device.
#[derive(Debug)]
pub enum Stage {
    /// A kernel.
    Kernel(Launch),
    /// A barrier kernel. A barrier of streams may replace it ([`BarrierMode`](crate::BarrierMode)).
    Barrier(Launch),
    /// Copies to members, in any order.
    Copies(Vec<PeerCopy>),
}

/// A launch of a kernel that is not loaded yet.
#[derive(Debug)]
pub struct Launch {
    call: Box<dyn KernelCall>,
    /// The element type that the kernel is compiled for, where it reduces.
    pub(crate) data_type: DataType,
    /// Its grid and block, and the bytes of local memory that the kernel itself uses.
    pub shape: LaunchShape,
}

impl Launch {
    pub(crate) fn new<A: DeviceStruct + fmt::Debug + Send + Sync>(
        kernel: Kernel<A>,
        arguments: A,
        data_type: DataType,
        shape: LaunchShape,
    ) -> Self {
        Self { call: Box::new(Typed { kernel, arguments }), data_type, shape }
    }

    /// The C name of the kernel.
    pub fn entry(&self) -> &'static str {
        self.call.entry()
    }

    /// The argument struct as the kernel reads it.
    pub fn arguments(&self) -> &[u8] {
        self.call.arguments()
    }

    pub(crate) fn unit(&self) -> &'static KernelUnit {
        self.call.unit()
    }

    /// The same launch with the kernel of a loaded unit.
    pub(crate) fn load(&self, unit: &LoadedUnit) -> anabranch_hip_jit::Result<LoadedLaunch> {
        Ok(LoadedLaunch { call: self.call.load(unit)?, shape: self.shape })
    }
}

/// A launch of a kernel that is loaded.
#[derive(Debug)]
pub(crate) struct LoadedLaunch {
    call: Box<dyn LoadedCall>,
    shape: LaunchShape,
}

impl LoadedLaunch {
    /// Enqueues it on the stream.
    ///
    /// # Safety
    /// The memory that the arguments name stays allocated until the kernel ends.
    pub(crate) unsafe fn enqueue(&self, stream: &Stream) -> anabranch_hip_jit::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.call.enqueue(self.shape, stream) }
    }
}

/// A kernel with its argument struct, whose type is erased.
trait KernelCall: fmt::Debug + Send + Sync {
    fn unit(&self) -> &'static KernelUnit;
    fn entry(&self) -> &'static str;
    fn arguments(&self) -> &[u8];
    fn load(&self, unit: &LoadedUnit) -> anabranch_hip_jit::Result<Box<dyn LoadedCall>>;
}

trait LoadedCall: fmt::Debug + Send + Sync {
    /// # Safety
    /// That of [`LoadedLaunch::enqueue`].
    unsafe fn enqueue(&self, shape: LaunchShape, stream: &Stream) -> anabranch_hip_jit::Result<()>;
}

#[derive(Debug)]
struct Typed<K, A> {
    kernel: K,
    arguments: A,
}

impl<A: DeviceStruct + fmt::Debug + Send + Sync> KernelCall for Typed<Kernel<A>, A> {
    fn unit(&self) -> &'static KernelUnit {
        self.kernel.unit()
    }

    fn entry(&self) -> &'static str {
        self.kernel.entry()
    }

    fn arguments(&self) -> &[u8] {
        bytemuck::bytes_of(&self.arguments)
    }

    fn load(&self, unit: &LoadedUnit) -> anabranch_hip_jit::Result<Box<dyn LoadedCall>> {
        Ok(Box::new(Typed { kernel: unit.get(self.kernel)?, arguments: self.arguments }))
    }
}

impl<A: DeviceStruct + fmt::Debug + Send + Sync> LoadedCall for Typed<LoadedKernel<A>, A> {
    unsafe fn enqueue(&self, shape: LaunchShape, stream: &Stream) -> anabranch_hip_jit::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.kernel.launch(shape, stream, &self.arguments) }
    }
}
