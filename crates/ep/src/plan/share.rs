//! The blocks and waves of a launch, from configured, measured or computed shapes.

use super::launch::{Launch, LaunchChoice, LaunchOperation};
use super::{DEFAULT_BLOCKS, DeviceLimits, Plan};

/// The limits of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Waves of a block.
    pub(super) waves: u32,
    /// Most blocks of the grid.
    pub(super) blocks: u32,
    /// Most waves that share a row.
    pub(super) segments: u32,
}

impl Plan {
    /// The plan with the measured launches for a device of this name, if a table has them
    /// ([`EpConfig::table`](crate::EpConfig::table), or this crate's table).
    #[must_use]
    pub(crate) fn for_device(mut self, device: &str) -> Self {
        self.choice = LaunchChoice::new(&self.config, self.ranks, device);
        self
    }

    /// The source of the launch shapes: an entry of a table, or the plan's arithmetic.
    pub fn launch_choice(&self) -> &LaunchChoice {
        &self.choice
    }

    /// Overrides the shape of all launches within the device's limits, for tuning.
    pub(crate) fn force_launch(&mut self, launch: Option<Launch>) {
        self.forced = launch;
    }

    /// The most waves per block of any launch; 0 where the device decides for all.
    pub(crate) fn most_waves(&self) -> u32 {
        if self.config.waves_per_block != 0 {
            return self.config.waves_per_block;
        }
        let measured = self.choice.launches().into_iter();
        let waves = measured
            .flat_map(|all| all.launches_up_to(self.config.max_tokens))
            .map(|one| one.waves_per_block);
        waves.max().unwrap_or(0)
    }

    /// The most blocks of any launch.
    pub(crate) fn most_blocks(&self, limits: &DeviceLimits) -> u32 {
        if self.config.max_blocks != 0 {
            return self.blocks(limits, None);
        }
        let measured = self.choice.launches().into_iter();
        let launches = measured.flat_map(|all| all.launches_up_to(self.config.max_tokens));
        let most = launches.map(|launch| self.blocks(limits, Some(launch)));
        let complete = self
            .choice
            .launches()
            .is_some_and(|all| LaunchOperation::ALL.iter().all(|of| !all.steps(*of).is_empty()));
        let chosen = (!complete).then(|| self.blocks(limits, None));
        // A table made in code may have no launch for so many tokens: then the plan's own counts.
        most.chain(chosen).max().unwrap_or_else(|| self.blocks(limits, None))
    }

    /// The limits of a launch on `tokens`.
    pub(super) fn share(&self, operation: LaunchOperation, tokens: u32, limits: &DeviceLimits) -> Share {
        let measured = self.choice.launches().and_then(|all| all.launch(operation, tokens));
        let segments = self.forced.or(measured).map(|launch| launch.segments);
        Share {
            waves: self.waves(limits, measured),
            blocks: self.blocks(limits, measured),
            segments: segments.map_or_else(
                || self.default_segments(operation, limits),
                |segments| segments.clamp(1, self.row_units(operation)),
            ),
        }
    }

    /// The launch of an operation without configured or measured shapes.
    pub fn default_launch(&self, operation: LaunchOperation, limits: &DeviceLimits) -> Launch {
        Launch {
            max_blocks: limits.multiprocessors.min(DEFAULT_BLOCKS),
            waves_per_block: Self::preferred_waves(limits.wave_size, limits.multiprocessors),
            segments: self.default_segments(operation, limits),
        }
    }

    /// Blocks of a grid that moves the rows of `tokens` and those of their experts: one for each pair, as far as the device goes, and a
    /// quarter of the device where this rank has few tokens, because others may send it many.
    pub(super) fn expert_blocks(&self, tokens: u32, limits: &DeviceLimits) -> u32 {
        let asked = match (self.forced, self.config.max_blocks) {
            (Some(forced), _) => forced.max_blocks,
            (None, 0) => limits.multiprocessors,
            (None, configured) => configured,
        };
        let most = asked.min(limits.resident_blocks).max(1);
        tokens.saturating_mul(self.config.top_k).clamp(most.div_ceil(4), most)
    }

    /// The most waves that share a row: as many as have two 16-byte units a lane in it, which is enough to overlap, and few enough
    /// blocks that the last to arrive is not late.
    pub(super) fn default_segments(&self, operation: LaunchOperation, limits: &DeviceLimits) -> u32 {
        self.row_units(operation).div_ceil(2 * limits.wave_size.max(8)).max(1)
    }

    /// Units of a row that one lane moves at a time.
    fn row_units(&self, operation: LaunchOperation) -> u32 {
        match operation {
            LaunchOperation::Dispatch => self.row_bytes() / 16,
            LaunchOperation::CombinePull => self.combine_row_bytes() / 16,
            LaunchOperation::CombinePush => {
                self.config.hidden / self.config.combine_codec.per_lane(self.config.combine_type)
            }
        }
    }

    /// Waves of a block: as forced, configured, measured or preferred, and no more than the plan reckoned with.
    pub(super) fn waves(&self, limits: &DeviceLimits, measured: Option<Launch>) -> u32 {
        let asked = match (self.forced, self.config.waves_per_block, measured) {
            (Some(forced), ..) => forced.waves_per_block,
            (None, 0, Some(measured)) => measured.waves_per_block,
            // The limits are those of the widest block measured.
            (None, 0, None) if self.choice.launches().is_some() => {
                Self::preferred_waves(limits.wave_size, limits.multiprocessors)
            }
            (None, 0, None) => limits.preferred_waves,
            (None, configured, _) => configured,
        };
        asked.min(limits.preferred_waves).clamp(1, 1024 / limits.wave_size)
    }

    /// Most blocks of a grid.
    fn blocks(&self, limits: &DeviceLimits, measured: Option<Launch>) -> u32 {
        let asked = match (self.forced, self.config.max_blocks, measured) {
            (Some(forced), ..) => forced.max_blocks,
            (None, 0, Some(measured)) => measured.max_blocks,
            (None, 0, None) => limits.multiprocessors.min(DEFAULT_BLOCKS),
            (None, configured, _) => configured,
        };
        asked.min(limits.resident_blocks).max(1)
    }
}
