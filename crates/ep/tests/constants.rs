//! Kernels that have the numbers of their plan as constants, as on GPUs: judged as those without.

use crate::common::{Case, run};
use crate::engine::{self, Route, by_engine};
use crate::expert_major_common;
use crate::nodes;
use crate::nodes_common::{WAYS, across};
use anabranch_ep::{CombineSource, ExpertMajorConfig, Mode};
use anabranch_hip_jit::ConstantsMode;

fn with_constants(case: Case) -> Case {
    Case { constants: ConstantsMode::Always, ..case }
}

#[test]
fn token_major_of_even_and_uneven_placements() {
    for (mode, experts) in [(Mode::Slotted, 12), (Mode::Compact, 13)] {
        let mut case = with_constants(Case::new(3, 4));
        case.config.experts = experts;
        case.config = case.config.mode(mode);
        run(&case, 5);
    }
}

#[test]
#[ignore = "extended"]
fn expert_major_rows() {
    for (mode, experts) in [(Mode::Slotted, 12), (Mode::Compact, 13)] {
        let mut case = with_constants(Case::new(3, 32));
        case.config.experts = experts;
        case.config = case.config.mode(mode).scale_bytes(12);
        expert_major_common::run(&case, ExpertMajorConfig::new(), 5);
    }
}

#[test]
#[ignore = "extended"]
fn copy_engines_nodes_and_pushes() {
    engine::run(&with_constants(by_engine(3, 4)), Route::Queues, 5);
    for way in WAYS {
        nodes::run(&with_constants(across(&[2, 2], 4, way)), 5);
    }
    let mut case = with_constants(Case::new(3, 4));
    let codec = "fp8_block".parse().unwrap();
    case.config = case.config.combine_source(CombineSource::Buffer).combine_codec(codec);
    case.staged = true;
    run(&case, 5);
}
