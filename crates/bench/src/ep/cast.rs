//! A dispatch that casts, and one of the same rows cast on the host.

use anabranch_conformance::ep::oracle::CastRows;
use anabranch_ep::{DispatchCast, EpConfig};

use super::EpArgs;
use crate::row::Row;
use crate::workload::RankTokens;

/// Where rows are cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Casting {
    /// In dispatch, or not at all.
    Inside,
    /// On the host, before the timing: dispatch gets codes and scales.
    Before,
}

impl Casting {
    /// The castings that a run measures, one after the other.
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

    /// Adds the casting to a report row of dispatch.
    pub(super) fn describe(self, row: Row, arguments: &EpArgs) -> Row {
        match (self, arguments.dispatch_cast) {
            (_, DispatchCast::None) => row,
            (Self::Inside, cast) => row.with("cast", cast.name()),
            (Self::Before, _) => row.with("cast", "before"),
        }
    }
}

/// A rank's tokens as dispatch sends them, with the scales of a cast.
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
