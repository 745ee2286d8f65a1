//! The route of a plan's rows, parsed once from the options of the configuration.

use std::time::Duration;

use anabranch_ranks::{Across, Nodes};

use super::EpConfig;
use crate::error::{Error, Result};
use crate::options::{CombineCodec, Mode, OnTimeout, Payload};

/// How a plan's rows reach other ranks, with the options that only that route has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// The memory of all ranks is mapped, and kernels store into it and load from it.
    Near(NearOptions),
    /// The memory of all ranks is mapped, and copy engines copy what kernels have staged.
    Engine,
    /// Ranks are on several nodes: kernels put the rows for other nodes.
    Nodes(NodesOptions),
}

/// Options of [`Route::Near`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearOptions {
    /// How long kernels wait for a peer before they mask it; `None` where an expired wait is a fault.
    pub patience: Option<Duration>,
    /// Encoding of the rows that combine pushes.
    pub codec: CombineCodec,
    /// Whether combine also sums weights.
    pub combine_weights: bool,
    /// Whether weights may be sent after the dispatch.
    pub late_weights: bool,
}

/// Options of [`Route::Nodes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodesOptions {
    /// The node of each rank.
    pub nodes: Nodes,
    /// Whether tokens go once to each node and are forwarded there; else each row goes straight to its rank.
    pub by_node: bool,
}

/// Why only [`Route::Near`] has an option, by route: engines, then nodes.
const WHY: [(&str, [&str; 2]); 5] = [
    (
        "mode",
        ["in other modes the rows for a rank do not lie in one piece whose place is known before the counts";
            2],
    ),
    (
        "on_timeout",
        [
            "an engine may still copy for a rank that was masked",
            "a NIC may still write for a rank that was masked",
        ],
    ),
    (
        "combine_codec",
        [
            "an engine copies rows as they are",
            "rows of other nodes come as they are, so that all ranks' rows are summed alike",
        ],
    ),
    ("combine_weights", ["combined weights are pulled or pushed by kernels beside the rows"; 2]),
    ("late_weights", ["late weights are stored by kernels at the ranks of the rows"; 2]),
];

impl EpConfig {
    /// The route of a plan for `ranks` ranks whose received rows lie in this mode.
    pub(super) fn route(&self, ranks: u32, mode: Mode) -> Result<Route> {
        if let Some(nodes) = &self.nodes
            && nodes.size() != ranks
        {
            let allowed = format!("the group has {ranks}");
            return Err(Error::config("nodes", format_args!("a map of {} ranks", nodes.size()), allowed));
        }
        let refused = self.near_only(mode);
        let way = self.nodes.as_ref().zip(self.way());
        match (way, self.payload, refused) {
            (None, Payload::Kernels, _) => Ok(Route::Near(NearOptions {
                patience: self.on_timeout.masks().then(|| self.on_timeout.patience()),
                codec: self.combine_codec,
                combine_weights: self.combine_weights,
                late_weights: self.late_weights,
            })),
            (None, Payload::CopyEngine, None) => Ok(Route::Engine),
            (None, payload, Some((field, given, allowed, [why, _]))) => {
                Err(Error::Unsupported { with: format!("payload is {payload}"), field, given, allowed, why })
            }
            (Some((nodes, _)), _, Some((field, given, allowed, [_, why]))) => Err(Error::Unsupported {
                with: format!("{} nodes", nodes.count()),
                field,
                given,
                allowed,
                why,
            }),
            (Some((nodes, _)), Payload::CopyEngine, None) => Err(Error::Unsupported {
                with: format!("{} nodes", nodes.count()),
                field: "payload",
                given: self.payload.to_string(),
                allowed: Payload::Kernels.name(),
                why: "copy engines do not reach other nodes",
            }),
            (Some((nodes, way)), Payload::Kernels, None) => {
                Ok(Route::Nodes(NodesOptions { nodes: nodes.clone(), by_node: way == Across::Node }))
            }
        }
    }

    /// The first setting that only [`Route::Near`] allows: its name, its value, what other routes allow, and why.
    fn near_only(&self, mode: Mode) -> Option<(&'static str, String, &'static str, [&'static str; 2])> {
        let settings = [
            (mode != Mode::Slotted, mode.to_string(), Mode::Slotted.name()),
            (self.on_timeout != OnTimeout::Fault, self.on_timeout.to_string(), "fault"),
            (
                self.combine_codec != CombineCodec::None,
                self.combine_codec.to_string(),
                CombineCodec::None.name(),
            ),
            (self.combine_weights, "true".to_owned(), "false"),
            (self.late_weights, "true".to_owned(), "false"),
        ];
        let mut all = WHY.into_iter().zip(settings);
        let ((field, why), (_, given, allowed)) = all.find(|(_, (is_set, ..))| *is_set)?;
        Some((field, given, allowed, why))
    }
}

/// Rows of a slot's windows that depend on the route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RouteRows {
    /// Rows that peers' kernels push.
    pub(super) pushed: u64,
    /// Rows that this rank stages for copy engines or for other nodes.
    pub(super) staged: u64,
    /// Rows that it forwards.
    pub(super) relayed: u64,
    /// Rows that engines or other nodes return to it.
    pub(super) returned: u64,
}

impl RouteRows {
    /// Of a plan whose windows have `rows` rows.
    pub(super) fn of(config: &EpConfig, route: &Route, ranks: u32, rows: u64) -> Self {
        let none = Self::default();
        match route {
            Route::Near(_) if config.combine_source.pushes() => {
                Self { pushed: config.push_rows(ranks), ..none }
            }
            Route::Near(_) => none,
            Route::Engine | Route::Nodes(NodesOptions { by_node: false, .. }) => {
                Self { staged: rows, returned: rows, ..none }
            }
            Route::Nodes(NodesOptions { nodes, by_node: true }) => {
                let each = u64::from(config.max_tokens);
                let (staged, relayed) = (u64::from(nodes.count()), u64::from(nodes.relay_slots()));
                Self { staged: staged * each, relayed: relayed * each, returned: rows, ..none }
            }
        }
    }
}

impl Route {
    /// The nodes, where ranks are on several.
    pub(super) fn nodes(&self) -> Option<&NodesOptions> {
        if let Self::Nodes(options) = self { Some(options) } else { None }
    }

    /// Whether records may have the numbers of pairs, for experts' rows: where kernels store rows at their places, and all ranks get all flags.
    pub(crate) fn numbers_pairs(&self) -> bool {
        matches!(self, Self::Near(NearOptions { patience: None, .. }))
    }

    /// Whether ranks may be masked.
    pub(crate) fn masks(&self) -> bool {
        matches!(self, Self::Near(NearOptions { patience: Some(_), .. }))
    }
}
