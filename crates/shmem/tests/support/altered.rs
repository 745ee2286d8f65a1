//! A host runtime of which some calls are others.

use std::sync::Arc;

use anabranch_hip::{Binding, HipApi, Runtime};
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{Error, RankSetup};

use super::Bench;

#[derive(Debug)]
struct Altered(Runtime);

impl Binding for Altered {
    fn bind(&self) {
        let _: &_ = self.0.api();
    }
}

/// A bench's runtime with another table.
pub(crate) fn altered(bench: &Bench, change: impl FnOnce(&mut HipApi)) -> Runtime {
    let runtime = bench.runtime();
    let (kind, mut api) = (runtime.kind(), *runtime.api());
    change(&mut api);
    Runtime::new(kind, api, Some(Arc::new(Altered(runtime))), "altered".to_owned())
}

/// [`Bench::setup`] on such a runtime.
pub(crate) fn setup(bench: &Bench, runtime: &Runtime, rank: GlobalRank) -> Result<RankSetup, Error> {
    let setup = bench.setup(rank)?;
    Ok(RankSetup { device: runtime.device(setup.device.ordinal())?, ..setup })
}

/// Whether this is the thread of a rank of `spawn_threads`.
pub(crate) fn on_rank(rank: u32) -> bool {
    std::thread::current().name() == Some(&format!("rank {rank}"))
}
