//! What a seed draws of a run beside the order of things: how messages go, what the queues are like, and what goes wrong.

use core::time::Duration;

use anabranch_softnic::{Adversary, NicFaults, SoftNicConfig, Syndrome};
use anabranch_transport_rdma::RdmaConfig;
use anabranch_transport_sdma::{EngineFaults, SoftwareConfig};

use super::super::bench::mixed;
use crate::{Case, Protocol};

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// An engine does not hear a doorbell, counted from 1; the first is that of the queue's probe.
    LostDoorbell { queue: Link, nth: u64 },
    /// An engine does nothing more after so many packets.
    Stall { queue: Link, packets: u64 },
    /// A rank dies so many primitives after its kernel was queued.
    Dead { rank: u32, after: u64 },
    /// Where a rank believes another's heap to be, nothing is any more.
    Gone { from: u32, to: u32 },
    /// A rank's NIC goes wrong behind so many requests.
    Nic { rank: u32, how: NicTrouble, requests: u64 },
}

/// How a NIC goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NicTrouble {
    /// A request of its own fails.
    Fails(Syndrome),
    /// It does nothing more, and its peers find it gone.
    Dies,
    /// It says nothing more.
    Silent,
}

/// One queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) index: u32,
}

/// How messages go; `EnginesMode` in the kernel.
const MODES: u64 = 5;
/// The same of a thread: fences are a thread's.
const MODES_OF_THREAD: u64 = 7;

#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) mode: u32,
    pub(super) scope: u32,
    pub(super) adds: u32,
    pub(super) queues: u32,
    pub(super) ring_bytes: u64,
    pub(super) most_copy_bytes: u32,
    pub(super) software: SoftwareConfig,
    pub(super) nics: SoftNicConfig,
    pub(super) trouble: Option<Trouble>,
}

/// Numbers of a seed, one after the other.
struct Draw(u64);

impl Draw {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = mixed(self.0.wrapping_add(0x9e37_79b9_7f4a_7c15));
        self.0 % count
    }

    fn of<const COUNT: usize, T: Copy>(&mut self, choices: [T; COUNT]) -> T {
        choices[self.below(COUNT as u64) as usize]
    }
}

impl Choice {
    pub(super) fn draw(case: &Case, seed: u64) -> Self {
        let mut draw = Draw(seed ^ 0x656e_6769_6e65_7300);
        let scope = draw.below(3) as u32;
        let modes = if scope == 0 { MODES_OF_THREAD } else { MODES };
        let mut choice = Self {
            mode: draw.below(modes) as u32,
            scope,
            adds: draw.below(2) as u32,
            queues: draw.of([1, 1, 2]),
            // The least, in which a second operation of two copies has no room behind the first.
            ring_bytes: draw.of([256, 256, 512]),
            most_copy_bytes: draw.of([8, 32, 96]),
            software: SoftwareConfig {
                stride: draw.of([8, 16, 64]),
                steps: draw.of([1, 2, 4]),
                seed: draw.below(u64::MAX),
                pointer_looks: draw.of([0, 16, 128]),
                faults: EngineFaults::default(),
            },
            nics: SoftNicConfig::default(),
            trouble: None,
        };
        if case.protocol == Protocol::Rdma {
            choice.nics = SoftNicConfig {
                frame_bytes: draw.of([64, 128]) as u32,
                window: draw.of([1, 4, 64]) as u32,
                steps: draw.of([1, 3, 16]) as u32,
                most_message_bytes: draw.of([64, 64, 4096]) as u32,
                adversary: Some(Adversary::new(draw.below(u64::MAX))),
                ..SoftNicConfig::default()
            };
            choice.trouble = case.staged.then(|| nic_trouble(case.ranks, &mut draw));
            return choice;
        }
        if case.staged {
            choice.trouble = Some(trouble(case.ranks, choice.queues, &mut draw));
            // Else the pointer makes up for it.
            choice.software.pointer_looks = 0;
        }
        choice
    }

    /// How the engine of a queue works.
    pub(super) fn software(&self, queue: Link, ranks: u32) -> SoftwareConfig {
        let Link { from, to, index } = queue;
        let number = (from * ranks + to) * self.queues + index;
        let mut software =
            SoftwareConfig { seed: mixed(self.software.seed ^ u64::from(number)), ..self.software };
        match self.trouble {
            Some(Trouble::LostDoorbell { queue: whose, nth }) if whose == queue => {
                software.faults.lost_doorbell = Some(nth);
            }
            Some(Trouble::Stall { queue: whose, packets }) if whose == queue => {
                software.faults.stalls_after = Some(packets);
            }
            _ => {}
        }
        software
    }
}

impl Choice {
    /// How the transport uses NICs.
    pub(super) fn rdma(&self) -> RdmaConfig {
        // Shorter than waits of kernels, in virtual time.
        let patience = Duration::from_millis(100);
        let (queues, entries) = (self.queues, RdmaConfig::LEAST_ENTRIES);
        RdmaConfig { queues, entries, patience, ..RdmaConfig::default() }
    }

    /// What the NICs are like.
    pub(super) fn soft_nic(&self) -> SoftNicConfig {
        self.nics.clone()
    }

    /// Whose NIC goes wrong, and how.
    pub(super) fn nic_faults(&self) -> Option<(u32, NicFaults)> {
        let Some(Trouble::Nic { rank, how, requests }) = self.trouble else { return None };
        let faults = NicFaults::default();
        Some((
            rank,
            match how {
                NicTrouble::Fails(syndrome) => NicFaults { fails: Some((requests, syndrome)), ..faults },
                NicTrouble::Dies => NicFaults { dies_after: Some(requests), ..faults },
                NicTrouble::Silent => NicFaults { falls_silent_after: Some(requests), ..faults },
            },
        ))
    }
}

fn nic_trouble(ranks: u32, draw: &mut Draw) -> Trouble {
    let rank = draw.below(u64::from(ranks)) as u32;
    let requests = 1 + draw.below(40);
    let how = match draw.below(6) {
        0 => return Trouble::Dead { rank, after: draw.below(4000) },
        1 => NicTrouble::Dies,
        2 => NicTrouble::Silent,
        3 => NicTrouble::Fails(Syndrome::RemoteAccess),
        4 => NicTrouble::Fails(Syndrome::RetryExceeded),
        _ => NicTrouble::Fails(Syndrome::ReceiverNotReady),
    };
    Trouble::Nic { rank, how, requests }
}

fn trouble(ranks: u32, queues: u32, draw: &mut Draw) -> Trouble {
    let from = draw.below(u64::from(ranks)) as u32;
    let to = draw.below(u64::from(ranks)) as u32;
    let queue = Link { from, to, index: draw.below(u64::from(queues)) as u32 };
    // A rank's kernel touches its own heap itself.
    match draw.below(if ranks > 1 { 4 } else { 3 }) {
        0 => Trouble::LostDoorbell { queue, nth: 2 + draw.below(12) },
        // The probe's packets are four at the most.
        1 => Trouble::Stall { queue, packets: 4 + draw.below(40) },
        2 => Trouble::Dead { rank: from, after: draw.below(4000) },
        _ => {
            let to = (from + 1 + draw.below(u64::from(ranks) - 1) as u32) % ranks;
            Trouble::Gone { from, to }
        }
    }
}
