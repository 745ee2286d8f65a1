//! Steps that ranks of one process take one after the other.
//!
//! AMD's runtime has had races among the calls that create, map and import physical memory when threads make them at the
//! same time (ROCm/rocm-systems pull request 3889 of March 2026, and ROCm/mori 455 and 476 on what is seen). A lock for the
//! process would be a global, and would be held across runtime calls; so the ranks agree on whose turn it is. That costs one
//! exchange for each rank of the fullest process, when a world is joined or left, and keeps apart the ranks of one world
//! only.

use anabranch_bootstrap::Deadline;
use anabranch_ranks::Group;
use anabranch_transport::PeerInfo;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::collective::Collectives;
use crate::config::{HeapMode, WorldConfig};
use crate::error::Result;

/// Which turn is this rank's, of how many. The number is equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turns {
    mine: usize,
    all: usize,
}

impl Turns {
    /// One turn for all where heaps are plain allocations; else the ranks of each process come in the order of their ranks.
    pub(crate) fn new(config: &WorldConfig, local: &PeerInfo, peers: &[PeerInfo]) -> Self {
        if config.heap_mode == HeapMode::Static {
            return Self { mine: 0, all: 1 };
        }
        let of = |rank: &PeerInfo| peers.iter().filter(|peer| peer.same_process(rank)).count();
        let mine = peers.iter().filter(|peer| peer.same_process(local) && peer.rank < local.rank).count();
        Self { mine, all: peers.iter().map(of).max().unwrap_or(1) }
    }

    /// Does `work` in this rank's turn and exchanges what `say` makes of its result. Collective. When it failed on any rank,
    /// all get an error ([`Collectives::agree_by`]) at the end of that rank's turn, and later turns do not come; what this
    /// rank has made then is dropped.
    #[expect(clippy::expect_used, reason = "an earlier failure ends the loop")]
    pub(crate) fn take<T, V: Serialize + DeserializeOwned>(
        self,
        collectives: &Collectives,
        group: &Group,
        step: &str,
        deadline: Deadline,
        work: impl FnOnce() -> Result<T>,
        say: impl FnOnce(&T) -> V,
    ) -> Result<(Option<T>, Vec<V>)> {
        let mut work = Some(work);
        let mut made = None;
        for turn in 0..self.all {
            let mut status = Ok(());
            if turn == self.mine {
                match work.take().map(|work| work()).transpose() {
                    Ok(done) => made = done,
                    Err(error) => status = Err(error),
                }
            }
            if turn + 1 < self.all {
                collectives.agree_by(group, step, status, deadline)?;
                continue;
            }
            let mine =
                status.map(|()| say(made.as_ref().expect("every rank's turn has come, and none has failed")));
            let parts = collectives.agree_by(group, step, mine, deadline)?.parts;
            return Ok((made, parts));
        }
        Ok((made, Vec::new()))
    }
}
