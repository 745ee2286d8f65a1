//! A machine as a HIP runtime.

use std::sync::Arc;

use anabranch_clock::Driver;
use anabranch_hip::{Binding, DeviceOrdinal, Runtime, RuntimeKind, SoftwareEngines};

use crate::calls::current;
use crate::machine::{HostMachine, engines};

impl HostMachine {
    /// The machine as a HIP runtime. Each runtime keeps the machine alive.
    pub fn runtime(self: &Arc<Self>) -> Runtime {
        let binding = Arc::new(MachineBinding { machine: Arc::clone(self) });
        Runtime::new(RuntimeKind::Host, super::table(), Some(binding), "host".to_owned())
    }
}

/// Makes a machine current for the calling thread before each call of its table.
#[derive(Debug)]
struct MachineBinding {
    machine: Arc<HostMachine>,
}

impl Binding for MachineBinding {
    fn bind(&self) {
        current::bind(&self.machine);
    }

    fn driver(&self) -> Option<Arc<dyn Driver>> {
        Arc::clone(&self.machine.core.scheduler).driver()
    }

    fn engines(&self, device: DeviceOrdinal) -> Option<SoftwareEngines> {
        let machine = &self.machine;
        engines::engines(&machine.core, &machine.regions, &machine.devices, device)
    }
}
