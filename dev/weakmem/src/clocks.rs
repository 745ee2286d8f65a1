//! What one lane knows about all others: for each, up to which step it is ordered, released and visible here.

/// About one lane, up to which of its steps something holds. `system <= device <= block` always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// A flag or a barrier has told of it; fences may be missing. Only for reports.
    pub(crate) told: u64,
    /// Ordered before, as lanes of one block see it.
    pub(crate) block: u64,
    /// Ordered before, and released as far as its device.
    pub(crate) device: u64,
    /// Ordered before, and released as far as the system.
    pub(crate) system: u64,
    /// Ordered, released and acquired: what this lane loads is at least as new.
    pub(crate) visible: u64,
}

impl Times {
    /// Everything up to a step.
    pub(crate) fn all(step: u64) -> Self {
        Self { told: step, block: step, device: step, system: step, visible: step }
    }

    fn join(&mut self, other: &Self) {
        self.told = self.told.max(other.told);
        self.block = self.block.max(other.block);
        self.device = self.device.max(other.device);
        self.system = self.system.max(other.system);
        self.visible = self.visible.max(other.visible);
    }
}

/// What is known, by number of the lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    lanes: Vec<Times>,
    /// Stores that the system saw by this time of the memory must be seen (cumulative profile).
    pub(crate) floor: u64,
}

impl Known {
    pub(crate) fn of(&self, lane: u32) -> Times {
        self.lanes.get(lane as usize).copied().unwrap_or_default()
    }

    pub(crate) fn of_mut(&mut self, lane: u32) -> &mut Times {
        let index = lane as usize;
        if index >= self.lanes.len() {
            self.lanes.resize(index + 1, Times::default());
        }
        &mut self.lanes[index]
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Times)> {
        (0..).zip(&mut self.lanes)
    }

    /// Everything that the other knows too.
    pub(crate) fn join(&mut self, other: &Self) {
        self.join_by(other, Times::join);
        self.floor = self.floor.max(other.floor);
    }

    /// What the other has been told, proven or not.
    pub(crate) fn join_told(&mut self, other: &Self) {
        self.join_by(other, |mine, theirs| mine.told = mine.told.max(theirs.told));
    }

    /// What the other knows to be released; order within its block stays there.
    pub(crate) fn join_released(&mut self, other: &Self) {
        self.join_by(other, |mine, theirs| {
            mine.block = mine.block.max(theirs.device);
            mine.device = mine.device.max(theirs.device);
            mine.system = mine.system.max(theirs.system);
        });
    }

    fn join_by(&mut self, other: &Self, join: impl Fn(&mut Times, &Times)) {
        if self.lanes.len() < other.lanes.len() {
            self.lanes.resize(other.lanes.len(), Times::default());
        }
        for (mine, theirs) in self.lanes.iter_mut().zip(&other.lanes) {
            join(mine, theirs);
        }
    }
}
