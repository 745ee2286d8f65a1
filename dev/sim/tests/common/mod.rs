//! What the tests share: kernels in a cache below the target folder.
#![allow(dead_code, reason = "helpers of tests fail as tests do, and not every test uses all")]

use std::path::PathBuf;

use anabranch_hip_jit::{Jit, JitConfig, ToolSearch};
use anabranch_sim::{Case, Scenario, scenario};

/// A pipeline whose cache all tests of this crate share.
pub(crate) fn jit() -> Jit {
    let folder: PathBuf = env!("CARGO_TARGET_TMPDIR").into();
    let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).to_vec();
    let mut config = JitConfig::new(folder.join("seeded-cache"));
    // There are many mutants, and each runs for a moment.
    config.extra_options = vec!["-O1".to_owned()];
    Jit::new(config, ToolSearch { path, ..ToolSearch::default() })
}

/// The scenario of a case.
pub(crate) fn make(jit: &Jit, case: &Case) -> Box<dyn Scenario> {
    scenario(case.clone(), jit).unwrap_or_else(|error| panic!("{case:?}: {error}: {error:?}"))
}
