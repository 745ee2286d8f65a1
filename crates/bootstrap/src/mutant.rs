//! Mistakes that tests plant, to show that the seeded tests would find them. No other build can have one.

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A collective call ends when all but one have come.
    CompletesEarly,
    /// A withdrawal ends the call for whoever withdraws alone.
    WithdrawalUntold,
    /// A call that failed is forgotten, so that latecomers wait for those who were told.
    FailureForgotten,
    /// A loss does not end the calls that need the rank.
    LossEndsNothing,
    /// A call that needs a lost rank is taken all the same.
    LostAwaited,
    /// A broadcast gives the first member's bytes.
    RootIgnored,
    /// Who waits for a key is not told that it was set.
    WaitersUntold,
    /// A wait for a key that was given up still counts as one.
    CancelIgnored,
    /// The failures that a loss brings about are told before the loss.
    LossToldLate,
    /// A waiting thread is woken before its answer is there.
    WokenEarly,
    /// An answer wakes nobody.
    NobodyWoken,
    /// The next call with a tag has the number of the last one.
    SequenceKept,
    /// A loss counts as told after the observers were told.
    ToldCountedLate,
}

/// What is planted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted {
    #[cfg(test)]
    mutant: Option<Mutant>,
}

impl Planted {
    #[cfg(test)]
    pub(crate) fn new(mutant: Option<Mutant>) -> Self {
        Self { mutant }
    }

    /// Whether it is this one.
    #[cfg(test)]
    pub(crate) fn is(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether it is this one: never.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "there is something to look at in tests only")]
    pub(crate) const fn is(self, _mutant: Mutant) -> bool {
        false
    }
}
