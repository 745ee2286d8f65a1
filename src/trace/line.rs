//! The part of a rank: lines of JSON, so that a part whose rank was killed is good up to its last whole line.

use std::io;

use anabranch_hip::{TraceRecord, Untraced};
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{CLOCK, KernelClock, TracedWait, WaitTrace};
use serde::{Deserialize, Serialize};

/// One line. Times are in ns: those of calls and rounds by the host's monotonic clock, those of work by the device's, and those of waits by
/// the clock that kernels read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// The first line.
    Rank {
        rank: u32,
        device: String,
        machine: String,
    },
    Thread {
        thread: u32,
        name: Option<String>,
    },
    Call(Call),
    Work(Work),
    Clocks {
        device: i64,
        host: u64,
        error: u64,
    },
    Wait(Wait),
    /// One moment by the clock that kernels read.
    KernelClock {
        kernel: u64,
        host: u64,
        error: u64,
    },
    /// An exchange among all ranks: when this one sent, and when it had received from all.
    Round {
        sent: u64,
        received: u64,
    },
    Untraced {
        lost: u64,
        captured: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) of: Option<String>,
    pub(crate) sequence: Option<u64>,
    pub(crate) bytes: Option<u64>,
    pub(crate) thread: u32,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) name: String,
    pub(crate) call: Option<u64>,
    pub(crate) stream: u64,
    pub(crate) grid: Option<(u32, u32)>,
    pub(crate) bytes: Option<u64>,
    pub(crate) begin: i64,
    pub(crate) end: i64,
}

/// A wait inside a kernel for another rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wait {
    pub(crate) operation: String,
    pub(crate) phase: String,
    pub(crate) epoch: u64,
    pub(crate) peer: u32,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

impl Line {
    /// The waits since the last call.
    ///
    /// # Errors
    /// The trace's.
    pub(crate) fn of_waits(waits: &mut WaitTrace) -> anabranch_shmem::Result<Vec<Self>> {
        let line = |wait: TracedWait| {
            let TracedWait { operation, phase, epoch, peer, begin_ns, end_ns } = wait;
            Self::Wait(Wait { operation, phase, epoch, peer: peer.get(), begin: begin_ns, end: end_ns })
        };
        Ok(waits.take()?.into_iter().map(line).collect())
    }

    /// A look at the clock of kernels; none where the device does not answer in time.
    ///
    /// # Errors
    /// The launch's.
    pub(crate) fn of_kernel_clock(waits: &mut WaitTrace) -> anabranch_shmem::Result<Option<Self>> {
        let line = |look: KernelClock| Self::KernelClock {
            kernel: look.kernel_ns,
            host: look.host_ns,
            error: look.error_ns,
        };
        Ok(waits.look()?.map(line))
    }

    pub(crate) fn rank(rank: GlobalRank, device: &str, machine: &str) -> Self {
        Self::Rank { rank: rank.get(), device: device.to_owned(), machine: machine.to_owned() }
    }

    /// What is not in the trace; `waits` were overwritten.
    pub(crate) fn untraced(untraced: Untraced, waits: u64) -> Self {
        Self::Untraced { lost: untraced.lost + waits, captured: untraced.captured }
    }

    pub(crate) fn of_records(records: Vec<TraceRecord>) -> Vec<Self> {
        records.into_iter().filter_map(Self::of_record).collect()
    }

    fn of_record(record: TraceRecord) -> Option<Self> {
        Some(match record {
            TraceRecord::Thread { thread, name } => Self::Thread { thread, name },
            TraceRecord::Call { id, call, thread, begin_ns, end_ns } => Self::Call(Call {
                id,
                name: call.name.to_owned(),
                of: call.of.map(|of| of.as_ref().to_owned()),
                sequence: call.sequence,
                bytes: call.bytes,
                thread,
                begin: begin_ns,
                end: end_ns,
            }),
            // The trace's own looks at the clock of kernels.
            TraceRecord::Work { work, .. } if &*work.name == CLOCK.entry() => return None,
            TraceRecord::Work { work, call, stream, begin_ns, end_ns } => Self::Work(Work {
                name: work.name.as_ref().to_owned(),
                call,
                stream,
                grid: work.grid,
                bytes: work.bytes,
                begin: begin_ns,
                end: end_ns,
            }),
            TraceRecord::Clocks { device_ns, host_ns, error_ns } => {
                Self::Clocks { device: device_ns, host: host_ns, error: error_ns }
            }
            // The enum is of another crate and may grow.
            _ => return None,
        })
    }

    pub(crate) fn text(lines: &[Self]) -> io::Result<String> {
        let mut text = String::new();
        for line in lines {
            text.push_str(&serde_json::to_string(line)?);
            text.push('\n');
        }
        Ok(text)
    }
}
