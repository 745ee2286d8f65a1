//! What judges dispatch and combine: the oracle, and experts whose results it knows.

mod codec;
mod element;
pub mod oracle;
pub mod reference;

pub use codec::{CODEC, ConformanceCodecArgs, codec};
pub use element::ElementValues;

use anabranch_ep::{COMBINED_TYPES, CombineCodec, ROW_TYPES};
use anabranch_hip_jit::KernelSpec;

/// Every kernel of this module in every variant: what a prebuild for benchmarks and tests compiles.
pub fn kernels() -> Vec<KernelSpec> {
    let mut all = Vec::new();
    for output in COMBINED_TYPES {
        all.extend(ROW_TYPES.map(|input| reference::reference_expert(input, output)));
        all.extend(ROW_TYPES.map(|input| reference::reference_expert_major(input, output)));
        let codecs = CombineCodec::ALL.into_iter().filter(|codec| *codec != CombineCodec::None);
        all.extend(codecs.map(|kind| codec(output, kind)));
    }
    all
}
