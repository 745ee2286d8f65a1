//! Memory of a GPU, reached by copies, and pinned memory of the host that its kernels see.
#![expect(unsafe_code, reason = "copies between addresses")]

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anabranch_hip::{Device, DeviceAddress, HostBuffer, NoMemory, Stream};
use anabranch_transport_rdma::NicError;

use crate::decode::AtomicOperation;
use crate::memory::NicMemory;

/// Bytes that one copy moves.
const BOUNCE: usize = 1 << 20;

/// The memory of a device's kernels: windows of pinned host memory by loads and stores of the host, everything else by copies on a
/// stream of its own, waited for one by one. Kernels may run meanwhile.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    copies: Mutex<Copies>,
    windows: Mutex<Vec<Weak<HostBuffer>>>,
}

#[derive(Debug)]
struct Copies {
    stream: Stream,
    bounce: HostBuffer,
}

impl DeviceMemory {
    pub(crate) fn new(device: &Device) -> Result<Self, NicError> {
        let copies = Copies { stream: device.create_stream()?, bounce: device.allocate_host(BOUNCE)? };
        Ok(Self { copies: Mutex::new(copies), windows: Mutex::default() })
    }

    /// From now on addresses of this buffer are the host's own memory, as long as the buffer is there.
    pub(crate) fn open_window(&self, buffer: &Arc<HostBuffer>) {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.retain(|window| window.strong_count() > 0);
        windows.push(Arc::downgrade(buffer));
    }

    /// The window that holds these bytes, and where.
    fn window(&self, address: u64, bytes: usize) -> Option<(Arc<HostBuffer>, usize)> {
        let windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.iter().filter_map(Weak::upgrade).find_map(|window| {
            let offset = usize::try_from(address.checked_sub(window.device_address().0)?).ok()?;
            let fits = offset.checked_add(bytes)? <= window.len();
            fits.then_some((window, offset))
        })
    }

    /// Moves bytes to or from the device, piece by piece. `piece` is the host's side: it fills or empties the pinned memory between,
    /// for so many bytes of the whole from a place on.
    fn copy(
        &self,
        address: u64,
        bytes: usize,
        mut piece: impl FnMut(&HostBuffer, usize, usize) -> Result<(), anabranch_hip::Error>,
        to_device: bool,
    ) -> Result<(), NoMemory> {
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let Copies { stream, bounce } = &*copies;
        let mut done = 0;
        while done < bytes {
            let here = BOUNCE.min(bytes - done);
            let there = DeviceAddress(address + done as u64);
            let mut moved = || {
                if to_device {
                    piece(bounce, done, here)?;
                }
                let (target, source) = if to_device {
                    (there, bounce.device_address())
                } else {
                    (bounce.device_address(), there)
                };
                // SAFETY: `bounce` is this type's own and the lock keeps others away from it until the stream is idle, below; the
                // device's side is registered memory, which its owner keeps and whose users reckon with the NIC's accesses.
                unsafe { stream.copy_async(target, source, here) }?;
                stream.synchronize()?;
                if to_device { Ok(()) } else { piece(bounce, done, here) }
            };
            moved().map_err(|cause: anabranch_hip::Error| {
                tracing::warn!(%cause, address = there.0, bytes = here, "a NIC in software cannot copy");
                NoMemory { address: there.0, bytes: here as u64 }
            })?;
            done += here;
        }
        Ok(())
    }
}

/// Loads words of pinned memory, each in one piece, and cuts out the bytes.
fn load(window: &HostBuffer, offset: usize, target: &mut [u8]) -> Result<(), anabranch_hip::Error> {
    let mut at = offset;
    let end = offset + target.len();
    while at < end {
        let word = at & !7;
        let bytes = window.atomic_u64(word)?.load(Ordering::Acquire).to_ne_bytes();
        let here = (word + 8).min(end) - at;
        target[at - offset..][..here].copy_from_slice(&bytes[at - word..][..here]);
        at += here;
    }
    Ok(())
}

/// Stores whole words in one piece each; parts of words by exchanging them.
fn store(window: &HostBuffer, offset: usize, source: &[u8]) -> Result<(), anabranch_hip::Error> {
    let mut at = offset;
    let end = offset + source.len();
    while at < end {
        let place = at & !7;
        let here = (place + 8).min(end) - at;
        let piece = &source[at - offset..][..here];
        let word = window.atomic_u64(place)?;
        let with = |old: u64| {
            let mut bytes = old.to_ne_bytes();
            bytes[at - place..][..here].copy_from_slice(piece);
            u64::from_ne_bytes(bytes)
        };
        if here == 8 {
            word.store(with(0), Ordering::Release);
        } else {
            let mut old = word.load(Ordering::Relaxed);
            while let Err(found) = word.compare_exchange(old, with(old), Ordering::AcqRel, Ordering::Relaxed)
            {
                old = found;
            }
        }
        at += here;
    }
    Ok(())
}

impl NicMemory for DeviceMemory {
    fn read(&self, address: u64, target: &mut [u8]) -> Result<(), NoMemory> {
        let bytes = target.len();
        if let Some((window, offset)) = self.window(address, bytes) {
            let outside = |_| NoMemory { address, bytes: bytes as u64 };
            return load(&window, offset, target).map_err(outside);
        }
        self.copy(address, bytes, |bounce, at, here| load(bounce, 0, &mut target[at..at + here]), false)
    }

    fn write(&self, address: u64, source: &[u8]) -> Result<(), NoMemory> {
        let bytes = source.len();
        if let Some((window, offset)) = self.window(address, bytes) {
            let outside = |_| NoMemory { address, bytes: bytes as u64 };
            return store(&window, offset, source).map_err(outside);
        }
        self.copy(address, bytes, |bounce, at, here| store(bounce, 0, &source[at..at + here]), true)
    }

    /// Reads, then writes: only this NIC may change the word meanwhile, as with NICs whose atomicity is their own
    /// (`IBV_ATOMIC_HCA`).
    fn atomic(&self, address: u64, operation: &AtomicOperation) -> Result<u64, NoMemory> {
        let bytes = operation.width().bytes() as usize;
        let mut word = [0; 8];
        // Little-endian, as GPUs are: the low half is in front.
        self.read(address, &mut word[..bytes])?;
        let old = u64::from_le_bytes(word);
        self.write(address, &operation.apply(old).to_le_bytes()[..bytes])?;
        Ok(old)
    }
}
