//! Which copies a destination has room for, and where each lies there.

use anabranch_ep::EpConfig;
use anabranch_ep::Mode;

/// How a destination's window is shared among the sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Every source owns this many rows: its first copies have them, in token order, and further ones are dropped.
    Slotted {
        /// Rows of a source.
        slots: usize,
    },
    /// Copies lie without gaps, by source rank and then token; those that the window does not hold are dropped.
    Compact {
        /// Rows of the window.
        capacity: usize,
    },
}

impl Window {
    /// The window of a configuration over `ranks` ranks.
    pub(super) fn new(config: &EpConfig, ranks: u32) -> Self {
        let compact = match config.mode {
            Mode::Compact => true,
            Mode::Slotted => false,
            // Across nodes the place of a source's rows has to be known before the counts.
            _ => config.max_tokens > 512 && config.nodes.as_ref().is_none_or(|nodes| nodes.count() < 2),
        };
        if compact {
            let worst = ranks as usize * config.max_tokens as usize;
            let capped = config.max_recv != 0 && (config.max_recv as usize) < worst;
            return Self::Compact { capacity: if capped { config.max_recv as usize } else { worst } };
        }
        let (ranks, max_tokens) = (u64::from(ranks), u64::from(config.max_tokens));
        // The least number of slots a source that makes up the cap, looked for one by one as its definition says; more tokens
        // than a source may have it never needs.
        let enough = |slots: &u64| slots * ranks >= u64::from(config.max_recv);
        let slots = match config.max_recv {
            0 => max_tokens,
            _ => (1..max_tokens).find(enough).unwrap_or(max_tokens),
        };
        Self::Slotted { slots: slots as usize }
    }

    /// Rows of the window.
    pub(super) fn rows(self, ranks: usize) -> usize {
        match self {
            Self::Slotted { slots } => ranks * slots,
            Self::Compact { capacity } => capacity,
        }
    }

    /// The row of a source's copy, its `index`-th to this destination, to which the ranks before have `before` copies; `None`
    /// when it is dropped.
    pub(super) fn row(self, source: usize, before: usize, index: usize) -> Option<usize> {
        match self {
            Self::Slotted { slots } => (index < slots).then_some(source * slots + index),
            Self::Compact { capacity } => (before + index < capacity).then_some(before + index),
        }
    }
}
