//! What ranks bring to dispatch: the same for every seed.

use anabranch_conformance::ep::oracle::{Oracle, OracleError, RankInput, Shape};
use anabranch_ep::EpConfig;

use crate::scenarios::bench::mixed;

/// Elements of a row: two units of 16 bytes.
pub(crate) const HIDDEN: u32 = 8;
pub(crate) const TOP_K: u32 = 2;

/// One rank's tokens for one epoch.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) tokens: Vec<u8>,
    pub(crate) ids: Vec<i32>,
    pub(crate) weights: Vec<f32>,
}

impl Given {
    pub(crate) fn new(rank: u32, epoch: u32, tokens: u32, experts: u32) -> Self {
        // Some number of 24 bits.
        let word = |token: u32, k: u32, what: u64| {
            let place =
                u64::from(rank) << 48 | u64::from(epoch) << 32 | u64::from(token) << 16 | u64::from(k);
            (mixed(place << 2 | what) >> 40) as u32
        };
        let each = |count: u32| (0..tokens).flat_map(move |token| (0..count).map(move |k| (token, k)));
        let payload = each(HIDDEN).flat_map(|(token, k)| (word(token, k, 0) as f32 / 1024.0).to_ne_bytes());
        // A few ids are masked.
        let ids = each(TOP_K).map(|(token, k)| (word(token, k, 1) % (experts + 1)) as i32 - 1);
        let weights = each(TOP_K).map(|(token, k)| word(token, k, 2) as f32 / 65_536.0);
        Self { tokens: payload.collect(), ids: ids.collect(), weights: weights.collect() }
    }
}

/// What must come of the ranks' tokens.
pub(crate) fn oracle<'a>(config: &EpConfig, given: &'a [Given]) -> Result<Oracle<'a>, OracleError> {
    let inputs = given.iter().map(|Given { tokens, ids, weights }| RankInput {
        tokens,
        ids,
        weights: Some(weights),
        scales: &[],
    });
    Oracle::new(Shape::new(config, given.len() as u32), inputs.collect())
}
