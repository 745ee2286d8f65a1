//! Loaded kernels: one module for each device and key, shared while it is held.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use anabranch_clock::Signal;
use anabranch_hip::{Device, DeviceOrdinal, HostCall};

use crate::config::CodeObject;
use crate::constants::KnownStructs;
use crate::error::{Error, Result};
use crate::jit::Jit;
use crate::kernel::{Kernel, LoadedKernel};
use crate::key::CacheKey;
use crate::layout::DeviceStruct;
use crate::source::{KernelSpec, KernelUnit};
use crate::sync::{Mutex, lock};
use crate::target::Target;

/// Bytes of local memory that the prelude keeps for itself; every launch adds them.
pub const LOCAL_RESERVED_BYTES: u32 = 64;

type ModuleKey = (usize, DeviceOrdinal, CacheKey);

/// The modules that are loaded. A live reference pins its runtime, so the instance number in
/// its key cannot have been given to another.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    slots: Mutex<HashMap<ModuleKey, Arc<Slot>>>,
    /// Devices with an unknown clock rate, for which a warning was logged.
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
    unit: Weak<Module>,
    loading: bool,
}

impl Slot {
    fn is_live(&self) -> bool {
        lock(&self.state).unit.strong_count() > 0
    }

    /// What is loaded, or what `load` loads now.
    fn get_or_load(&self, load: impl FnOnce() -> Result<Module>) -> Result<Arc<Module>> {
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

/// A code object on one device.
#[derive(Debug)]
struct Module {
    label: String,
    key: CacheKey,
    target: Target,
    directory: PathBuf,
    kernels: BTreeMap<String, anabranch_hip::Kernel>,
}

/// A unit's kernels on one device. The module is unloaded when the last holder drops this and the kernels are idle:
/// holders keep it until their streams are.
#[derive(Debug)]
pub struct LoadedUnit {
    unit: &'static KernelUnit,
    module: Arc<Module>,
    /// Of the spec, whether the module was compiled with them or not.
    constants: KnownStructs,
}

impl Jit {
    /// Compiles a spec for a device, if need be, and loads it; loads it once for each device, however often it is
    /// asked for. Call it when a plan is made: it may run a compiler, and runtimes may refuse to load while the
    /// thread captures, and wait for running kernels.
    ///
    /// # Errors
    /// The errors of [`Jit::compile`]; [`Error::TargetMismatch`] and [`Error::WaveSize`] for a device that is not what is
    /// configured or contradicts itself; [`Error::Load`]; [`Error::Symbol`].
    pub fn load(&self, device: &Device, spec: &KernelSpec) -> Result<Arc<LoadedUnit>> {
        let _call = device.record_call(|| HostCall::on("load kernels", spec.unit().name, None));
        let target = self.device_target(device)?;
        let object = self.compile(spec, &target)?;
        let key = (device.runtime().instance(), device.ordinal(), object.key);
        let slot = {
            let mut slots = lock(&self.modules().slots);
            // A slot that is held elsewhere is in use, whatever it has loaded so far.
            slots.retain(|other, slot| *other == key || Arc::strong_count(slot) > 1 || slot.is_live());
            slots.entry(key).or_default().clone()
        };
        let module = slot.get_or_load(|| load(device, object))?;
        Ok(Arc::new(LoadedUnit { unit: spec.unit(), module, constants: spec.constants().clone() }))
    }

    /// What kernels for this device are compiled for: what it reports, checked against the configuration. A device that reports a
    /// clock of 0 kHz has an unknown rate: kernels take that of the target, and a warning is logged.
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

fn load(device: &Device, object: CodeObject) -> Result<Module> {
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
        kernels.insert(entry.clone(), kernel);
    }
    tracing::debug!(label = object.label, device = %device.ordinal(), key = %object.key, "loaded");
    Ok(Module {
        label: object.label,
        key: object.key,
        target: object.target,
        directory: object.directory,
        kernels,
    })
}

impl LoadedUnit {
    /// A kernel of this unit. Call it when a plan is made, not at each launch.
    ///
    /// # Errors
    /// [`Error::NoEntry`] for a kernel of another unit.
    pub fn get<A: DeviceStruct>(&self, kernel: Kernel<A>) -> Result<LoadedKernel<A>> {
        let found =
            self.module.kernels.get(kernel.entry()).filter(|_| std::ptr::eq(kernel.unit(), self.unit));
        let constants = self.constants.of(A::NAME);
        let loaded = found.map(|found| LoadedKernel::new(found.clone(), constants.to_vec()));
        loaded.ok_or_else(|| Error::NoEntry {
            entry: format!("{kernel:?}"),
            unit: self.unit.name,
            known: self.module.kernels.keys().cloned().collect(),
        })
    }

    /// Unit and parameters, for profilers and reports.
    pub fn label(&self) -> &str {
        &self.module.label
    }

    /// Whether both have one module, loaded once.
    pub fn shares_module(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.module, &other.module)
    }

    /// The key of its object.
    pub fn key(&self) -> CacheKey {
        self.module.key
    }

    /// What it was compiled for.
    pub fn target(&self) -> &Target {
        &self.module.target
    }

    /// The cache entry with its source.
    pub fn directory(&self) -> &std::path::Path {
        &self.module.directory
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
