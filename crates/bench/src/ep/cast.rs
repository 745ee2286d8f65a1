//! A dispatch that casts, and beside it one of the same rows that were cast before.

use anabranch::ep::{DispatchCast, EpConfig};
use anabranch_conformance::ep::oracle::CastRows;

use super::EpArgs;
use crate::row::Row;
use crate::workload::RankTokens;

/// Where rows are cast that are cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Casting {
    /// In dispatch, where at all.
    Inside,
    /// On the host, before anything is timed: codes and scales are given.
    Before,
}

impl Casting {
    /// What a run measures, one after the other.
    pub(super) fn of(arguments: &EpArgs) -> &'static [Self] {
        match arguments.dispatch_cast {
            DispatchCast::None => &[Self::Inside],
            _ => &[Self::Inside, Self::Before],
        }
    }

    /// The configuration for rows that are cast here. Rows that were cast before bring the cast's scales.
    pub(super) fn plan(self, config: EpConfig) -> EpConfig {
        match self {
            Self::Inside => config,
            Self::Before => {
                let scale_bytes = config.sent_scale_bytes();
                config.dispatch_cast(DispatchCast::None).scale_bytes(scale_bytes)
            }
        }
    }

    /// What a row of dispatch says of it.
    pub(super) fn describe(self, row: Row, arguments: &EpArgs) -> Row {
        match (self, arguments.dispatch_cast) {
            (_, DispatchCast::None) => row,
            (Self::Inside, cast) => row.with("cast", cast.name()),
            (Self::Before, _) => row.with("cast", "before"),
        }
    }
}

/// A rank's tokens as they travel, with the scales of a cast.
pub(super) struct Sent {
    pub(super) tokens: RankTokens,
    pub(super) scales: Vec<u8>,
}

impl Sent {
    pub(super) fn new(arguments: &EpArgs, given: RankTokens) -> Self {
        if arguments.dispatch_cast == DispatchCast::None {
            return Self { tokens: given, scales: Vec::new() };
        }
        let made = CastRows::new(arguments.dispatch_cast, arguments.dispatch_dtype, &given.tokens);
        Self { tokens: RankTokens { tokens: made.tokens, ..given }, scales: made.scales }
    }
}
