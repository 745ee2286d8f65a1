//! A runtime whose threads a driver runs one at a time.

use std::sync::Arc;

use anabranch_clock::{Driver, give_way};
use anabranch_hip::{Binding, Runtime};
use anabranch_lockstep::Lockstep;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{Error, RankSetup};

use super::Bench;

/// A runtime under a driver, whose calls are switching points.
#[derive(Debug)]
struct Driven {
    runtime: Runtime,
    driver: Arc<Lockstep>,
}

impl Binding for Driven {
    fn bind(&self) {
        give_way("hip");
        let _: &_ = self.runtime.api();
    }

    fn driver(&self) -> Option<Arc<dyn Driver>> {
        Some(Arc::<Lockstep>::clone(&self.driver))
    }
}

/// A bench's runtime under a driver.
pub(crate) fn driven(bench: &Bench, driver: &Arc<Lockstep>) -> Runtime {
    let runtime = bench.runtime();
    let (kind, api) = (runtime.kind(), *runtime.api());
    let binding = Driven { runtime, driver: Arc::clone(driver) };
    Runtime::new(kind, api, Some(Arc::new(binding)), "driven".to_owned())
}

/// [`Bench::setup`] on a driven runtime.
pub(crate) fn setup(bench: &Bench, runtime: &Runtime, rank: GlobalRank) -> Result<RankSetup, Error> {
    let setup = bench.setup(rank)?;
    Ok(RankSetup { device: runtime.device(setup.device.ordinal())?, ..setup })
}
