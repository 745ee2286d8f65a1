//! Loaded kernels: one module for each device and key, shared while somebody holds it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use anabranch_clock::Signal;
use anabranch_hip::{Device, DeviceOrdinal, Kernel, LaunchShape, Stream};

use crate::config::CodeObject;
use crate::error::{Error, Result};
use crate::jit::Jit;
use crate::key::CacheKey;
use crate::layout::DeviceStruct;
use crate::source::KernelSpec;
use crate::sync::{Mutex, lock};
use crate::target::Target;

/// Bytes of local memory that the prelude keeps for itself; every launch adds them.
pub const LOCAL_RESERVED_BYTES: u32 = 64;

/// Bytes before the argument struct: grid blocks, block threads, local bytes, zero.
const HEADER_BYTES: usize = 16;
/// The largest parameter that every runtime takes.
const MOST_PARAMETER_BYTES: usize = 4096;

type ModuleKey = (usize, DeviceOrdinal, CacheKey);

/// The modules that are loaded. A dead reference says nothing; a live one pins its runtime, so the instance number in
/// its key cannot have been given to another.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    slots: Mutex<HashMap<ModuleKey, Arc<Slot>>>,
    /// Devices that do not say how fast their clock runs, and of which that was said.
    without_clock: Mutex<HashSet<(usize, DeviceOrdinal)>>,
}

/// One for each device and key: loading may wait for the device's running kernels, which may wait for a peer whose
/// thread loads for its own device meanwhile. No lock is held while one thread loads and others wait for it.
#[derive(Debug, Default)]
struct Slot {
    state: Mutex<SlotState>,
    changed: Signal,
}

#[derive(Debug, Default)]
struct SlotState {
    unit: Weak<LoadedUnit>,
    loading: bool,
}

impl Slot {
    fn is_live(&self) -> bool {
        lock(&self.state).unit.strong_count() > 0
    }

    /// What is loaded, or what `load` loads now.
    fn get_or_load(&self, load: impl FnOnce() -> Result<LoadedUnit>) -> Result<Arc<LoadedUnit>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(unit) = state.unit.upgrade() {
                return Ok(unit);
            }
            if !state.loading {
                break;
            }
            state = self.changed.wait(&self.state, state, None);
        }
        state.loading = true;
        drop(state);
        let loading = Loading { slot: self };
        let unit = Arc::new(load()?);
        lock(&self.state).unit = Arc::downgrade(&unit);
        drop(loading);
        Ok(unit)
    }
}

/// However loading ends, the next thread may try.
struct Loading<'a> {
    slot: &'a Slot,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        lock(&self.slot.state).loading = false;
        self.slot.changed.notify_all();
    }
}

/// A unit's kernels on one device. The module is unloaded when the last holder drops this and the kernels are idle:
/// holders keep it until their streams are.
#[derive(Debug)]
pub struct LoadedUnit {
    unit: &'static str,
    label: String,
    key: CacheKey,
    target: Target,
    directory: PathBuf,
    kernels: BTreeMap<String, TypedKernel>,
}

/// One kernel on one device, ready to be launched.
#[derive(Clone, Debug)]
pub struct TypedKernel {
    kernel: Kernel,
}

impl Jit {
    /// Compiles a spec for a device, if need be, and loads it; loads it once for each device, however often it is
    /// asked for. Call it when a plan is made: it may run a compiler, and runtimes refuse to load under capture
    /// (see [`refuse_capture`]) and may wait for running kernels.
    ///
    /// # Errors
    /// Those of [`Jit::compile`]; [`Error::TargetMismatch`] and [`Error::WaveSize`] for a device that is not what is
    /// configured or contradicts itself; [`Error::Load`]; [`Error::Symbol`].
    pub fn load(&self, device: &Device, spec: &KernelSpec) -> Result<Arc<LoadedUnit>> {
        let target = self.device_target(device)?;
        let object = self.compile(spec, &target)?;
        let key = (device.runtime().instance(), device.ordinal(), object.key);
        let slot = {
            let mut slots = lock(&self.modules().slots);
            // A slot that somebody else holds is in use, whatever it has loaded so far.
            slots.retain(|other, slot| *other == key || Arc::strong_count(slot) > 1 || slot.is_live());
            slots.entry(key).or_default().clone()
        };
        slot.get_or_load(|| load(device, spec.unit().name, object))
    }

    /// What kernels for this device are compiled for: what it reports, checked against the configuration. A device that reports a
    /// clock of 0 kHz says nothing of its rate: kernels take that of the target, and a warning says so.
    ///
    /// # Errors
    /// [`Error::Target`], [`Error::TargetMismatch`], [`Error::WaveSize`], [`Error::ClockRate`].
    pub fn device_target(&self, device: &Device) -> Result<Target> {
        let target: Target = device.arch().parse()?;
        let name = || format!("{} of {}", device.ordinal(), device.runtime().origin());
        if let Some(configured) = &self.config().arch
            && (configured.base() != target.base() || configured.wave_size() != target.wave_size())
        {
            return Err(Error::TargetMismatch {
                device: name(),
                reported: target,
                configured: configured.clone(),
            });
        }
        if device.wave_size() != target.wave_size() {
            let expected = target.wave_size();
            return Err(Error::WaveSize { device: name(), target, reported: device.wave_size(), expected });
        }
        if let Some(expected) = target.amd_clock_khz() {
            let reported = device.wall_clock_khz().map_err(|error| Error::Hip(Arc::new(error)))?;
            if reported == 0 {
                self.clock_is_unknown(device, &target, expected);
            } else if reported != expected {
                return Err(Error::ClockRate { device: name(), target, reported, expected });
            }
        }
        Ok(target)
    }

    /// Warns, once for each device.
    fn clock_is_unknown(&self, device: &Device, target: &Target, expected: u32) {
        let key = (device.runtime().instance(), device.ordinal());
        if lock(&self.modules().without_clock).insert(key) {
            tracing::warn!(
                "{} of {} reports a clock of 0 kHz; kernels take the {expected} kHz of {target}, and their deadlines are wrong if it \
                 runs at another rate",
                device.ordinal(),
                device.runtime().origin()
            );
        }
    }

    /// How many modules are loaded now, over all devices.
    pub fn loaded_modules(&self) -> usize {
        let slots: Vec<_> = lock(&self.modules().slots).values().cloned().collect();
        slots.iter().filter(|slot| slot.is_live()).count()
    }
}

fn load(device: &Device, unit: &'static str, object: CodeObject) -> Result<LoadedUnit> {
    // SAFETY: the object's structure was checked, and its digest when it came off the disk; its code was made by the
    // configured compiler from this program's sources, or comes from a folder that the operator named.
    let module = unsafe { device.load_module(&object.bytes) }.map_err(|source| Error::Load {
        label: object.label.clone(),
        target: object.target.clone(),
        device: format!("{} ({})", device.ordinal(), device.arch()),
        directory: object.directory.clone(),
        source: Arc::new(source),
    })?;
    let mut kernels = BTreeMap::new();
    for entry in &object.entries {
        let kernel = module.kernel(entry).map_err(|source| Error::Symbol {
            entry: entry.clone(),
            label: object.label.clone(),
            directory: object.directory.clone(),
            source: Arc::new(source),
        })?;
        kernels.insert(entry.clone(), TypedKernel { kernel });
    }
    tracing::debug!(label = object.label, device = %device.ordinal(), key = %object.key, "loaded");
    Ok(LoadedUnit {
        unit,
        label: object.label,
        key: object.key,
        target: object.target,
        directory: object.directory,
        kernels,
    })
}

impl LoadedUnit {
    /// A kernel by its C name. Look it up when the plan is made, not at each launch.
    ///
    /// # Errors
    /// [`Error::NoEntry`] with the names that there are.
    pub fn kernel(&self, entry: &str) -> Result<&TypedKernel> {
        self.kernels.get(entry).ok_or_else(|| Error::NoEntry {
            entry: entry.to_owned(),
            unit: self.unit,
            known: self.kernels.keys().cloned().collect(),
        })
    }

    /// Unit and parameters, for profilers and reports.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The key of its object.
    pub fn key(&self) -> CacheKey {
        self.key
    }

    /// What it was compiled for.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The cache entry with its source.
    pub fn directory(&self) -> &std::path::Path {
        &self.directory
    }
}

impl TypedKernel {
    /// Its C name.
    pub fn name(&self) -> &str {
        self.kernel.name()
    }

    /// The runtime's handle, for queries.
    pub fn raw(&self) -> &Kernel {
        &self.kernel
    }

    /// How many blocks of this shape one multiprocessor holds at once. `local_bytes` as in [`TypedKernel::launch`].
    ///
    /// # Errors
    /// [`Error::Launch`].
    pub fn blocks_per_multiprocessor(&self, block_threads: u32, local_bytes: u32) -> Result<u32> {
        let local_bytes = local_bytes.saturating_add(LOCAL_RESERVED_BYTES);
        self.kernel.blocks_per_multiprocessor(block_threads, local_bytes).map_err(|error| self.failed(error))
    }

    /// Puts one launch on the stream: the launch header, then `arguments`, both copied by the call. Never compiles,
    /// allocates, or touches a file; may be captured. Re-entrant: nothing of it stays in the kernel.
    ///
    /// `local_bytes` is what the kernel itself uses; the prelude's own bytes are added here.
    ///
    /// # Errors
    /// [`Error::Shape`] for an empty grid or a block that is no multiple of the wave; [`Error::Launch`].
    ///
    /// # Safety
    /// `A` must be the kernel's argument struct, and every address in it must stay valid, for the accesses that the
    /// kernel makes, until the kernel is done.
    pub unsafe fn launch<A: DeviceStruct>(
        &self,
        grid_blocks: u32,
        block_threads: u32,
        local_bytes: u32,
        stream: &Stream,
        arguments: &A,
    ) -> Result<()> {
        const {
            assert!(
                HEADER_BYTES + size_of::<A>() <= MOST_PARAMETER_BYTES,
                "the argument struct is too large"
            );
            assert!(align_of::<A>() <= 8, "the argument struct is aligned to more than 8 bytes");
        }
        let refuse = |problem| Err(Error::Shape { entry: self.name().to_owned(), problem });
        if grid_blocks == 0 || block_threads == 0 {
            return refuse("a launch has at least one block and one thread");
        }
        if !block_threads.is_multiple_of(self.kernel.device().wave_size()) {
            return refuse("the threads of a block are a multiple of the wave size");
        }
        let Some(all_local) = local_bytes.checked_add(LOCAL_RESERVED_BYTES) else {
            return refuse("local memory is larger than 4 GiB");
        };
        // Words of 8 bytes, so that the struct in it is aligned.
        let mut parameter = [0u64; MOST_PARAMETER_BYTES / 8];
        let bytes = bytemuck::bytes_of_mut(&mut parameter);
        let header = [grid_blocks, block_threads, local_bytes, 0];
        bytes[..HEADER_BYTES].copy_from_slice(bytemuck::bytes_of(&header));
        bytes[HEADER_BYTES..HEADER_BYTES + size_of::<A>()].copy_from_slice(bytemuck::bytes_of(arguments));
        let length = (HEADER_BYTES + size_of::<A>()).next_multiple_of(8);
        let shape = LaunchShape { grid_blocks, block_threads, local_bytes: all_local };
        // SAFETY: the bytes are laid out as ANABRANCH_KERNEL declares the parameter, header then struct, whose layout
        // the device compiler asserted; the caller vouches for the struct's type and addresses.
        unsafe { self.kernel.launch(shape, stream, &bytes[..length]) }.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: anabranch_hip::Error) -> Error {
        Error::Launch { entry: self.name().to_owned(), cause: Arc::new(error) }
    }
}

/// The check that a plan makes before it loads kernels: not while its stream captures a graph.
///
/// # Errors
/// [`Error::Capturing`], or what asking the stream returned.
pub fn refuse_capture(stream: &Stream) -> Result<()> {
    match stream.is_capturing() {
        Ok(false) => Ok(()),
        Ok(true) => Err(Error::Capturing),
        Err(error) => Err(Error::Hip(Arc::new(error))),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_prelude_reserves_what_launches_add() {
        let grid = crate::PRELUDE.iter().find(|header| header.name == "anabranch/grid.h").unwrap();
        let line = format!("LOCAL_RESERVED_BYTES = {};", super::LOCAL_RESERVED_BYTES);
        assert!(grid.text.contains(&line), "{line}");
    }
}
