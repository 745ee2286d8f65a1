//! Records of launches, for reports of waits that expired.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anabranch_hip::Stream;
use anabranch_shmem::{LaunchNote, NoteText, OperationCode};

use super::{COMBINE as COMBINE_OPERATION, COUNT, DISPATCH as DISPATCH_OPERATION, ExpertParallel};
use crate::error::Result;
use crate::slot::SlotTicket;

/// A call, and the operations that its kernels report.
#[derive(Debug)]
pub(super) struct Call {
    name: &'static str,
    operations: &'static [OperationCode],
}

const OF_DISPATCH: &[OperationCode] = &[COUNT, DISPATCH_OPERATION];
const OF_COMBINE: &[OperationCode] = &[COMBINE_OPERATION];

/// A whole dispatch, or its first half.
pub(super) static DISPATCH: Call = Call { name: "dispatch", operations: OF_DISPATCH };
/// The last launch of a dispatch that has several.
pub(super) static DISPATCH_RECV: Call = Call { name: "the rest of dispatch", operations: OF_DISPATCH };
/// A whole combine, a release, or half of a combine that pushes.
pub(super) static COMBINE: Call = Call { name: "combine", operations: OF_COMBINE };
/// The half of a combine that sends.
pub(super) static COMBINE_SEND: Call = Call { name: "sending half of combine", operations: OF_COMBINE };
/// The half of a combine that receives.
pub(super) static COMBINE_RECV: Call = Call { name: "receiving half of combine", operations: OF_COMBINE };
/// A slot given back without a combine, across nodes.
pub(super) static RELEASE: Call = Call { name: "release", operations: OF_COMBINE };

impl ExpertParallel {
    /// Notes a launch that uses the slot: on the slot, and for reports.
    pub(super) fn used(&self, slot: &mut SlotTicket, stream: &Stream, call: &Call) -> Result<()> {
        let number = self.launches.fetch_add(1, Ordering::Relaxed) + 1;
        let (of, what) = (Arc::clone(&self.name), NoteText::Fixed(call.name));
        let operations = call.operations;
        self.team.note_launch(stream, LaunchNote { of, kind: "launch", number, what, operations });
        slot.used_on(stream)
    }
}
