//! One pipeline shared by rank threads that run one at a time: no thread may hold a lock while others have the turn.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Scratch, search, spec};
use anabranch_clock::give_way;
use anabranch_hip::{Binding, Device, DeviceOrdinal, Runtime, RuntimeKind};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_hip_jit::{Jit, JitObserver, Outcome, Target};
use anabranch_lockstep::Lockstep;

/// A runtime whose calls are switching points.
#[derive(Debug)]
struct Switching(Runtime);

impl Binding for Switching {
    fn bind(&self) {
        give_way("hip");
        let _: &_ = self.0.api();
    }
}

/// And so is the start and the end of a compilation.
#[derive(Debug)]
struct Watching;

impl JitObserver for Watching {
    fn compiling(&self, _label: &str, _target: &Target) {
        give_way("compiling");
    }

    fn finished(&self, _label: &str, _target: &Target, _outcome: Outcome, _took: Duration) {
        give_way("compiled");
    }
}

fn switching() -> Runtime {
    let host = HostConfig { devices: 1, wave_width: 1, memory_bytes: 64 << 20, ..HostConfig::default() };
    let real = HostMachine::new(host).unwrap().runtime();
    let api = *real.api();
    Runtime::new(RuntimeKind::Host, api, Some(Arc::new(Switching(real))), "switching".to_owned())
}

#[test]
fn threads_of_one_device_load_a_unit_once_and_none_waits_for_a_lock() {
    let scratch = Scratch::new("lockstep");
    let mut config = scratch.config();
    config.observer = Some(Arc::new(Watching));
    for seed in 0..40 {
        let runtime = switching();
        let device: Device = runtime.device(DeviceOrdinal(0)).unwrap();
        let jit = Jit::new(config.clone(), search(None));
        let lockstep = Lockstep::new(seed);
        let body = || {
            let unit = jit.load(&device, &spec()).unwrap();
            give_way("loaded");
            (unit, jit.loaded_modules())
        };
        let loaded: Vec<_> = lockstep.run(vec![body, body, body]).into_iter().map(Result::unwrap).collect();
        assert!(loaded.iter().all(|(unit, modules)| unit.shares_module(&loaded[0].0) && *modules == 1));
        assert_eq!(lockstep.problems(), Vec::<String>::new(), "seed {seed}");
        // The first run compiles, and the others wait for it; later ones find it.
        let stats = jit.stats();
        assert_eq!(stats.compiled, u64::from(seed == 0), "seed {seed}");
        assert_eq!(stats.compiled + stats.hits, 3, "seed {seed}: {stats:?}");
    }
}
