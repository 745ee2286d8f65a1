//! The searches that must catch each mutant.

use crate::Protocol;

/// What shows a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum By {
    /// What the run leaves (`Case::values_only`), and two accesses of it that the checker names.
    Both,
    /// What the run leaves: nothing is out of order, or a fault comes first; or the checker is not asked.
    Values,
    /// The checker: the machine's memory is stronger there than the rules, and the values come out right.
    Races,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a form of the case, of its own")]
/// A search that must catch a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Search {
    /// What is run.
    pub protocol: Protocol,
    /// `Case::staged`.
    pub staged: bool,
    /// One block a kernel, where it could have several.
    pub one_block: bool,
    /// One rank.
    pub alone: bool,
    /// `Case::cumulative`: NVIDIA's form.
    pub cumulative: bool,
    /// What shows the mistake.
    pub by: By,
}

impl Search {
    const fn of(protocol: Protocol) -> Self {
        Self { protocol, staged: false, one_block: false, alone: false, cumulative: false, by: By::Both }
    }

    const fn cumulative(self) -> Self {
        Self { cumulative: true, ..self }
    }

    const fn by_values(self) -> Self {
        Self { by: By::Values, ..self }
    }

    const fn by_races(self) -> Self {
        Self { by: By::Races, ..self }
    }
}

/// A mutant, by its name, and the searches that must catch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caught {
    /// Its name.
    pub name: &'static str,
    /// Each of them catches it.
    pub caught_by: &'static [Search],
}

const fn caught(name: &'static str, caught_by: &'static [Search]) -> Caught {
    Caught { name, caught_by }
}

const EP: Search = Search::of(Protocol::Ep);
const ALONE: Search = Search { one_block: true, alone: true, ..EP };
const COMPACT: Search = Search::of(Protocol::EpCompact);
const SPLIT: Search = Search::of(Protocol::EpSplit);
const MASK: Search = Search::of(Protocol::EpMask);
const MASK_STAGED: Search = Search { staged: true, ..MASK };
const EXPERTS: Search = Search::of(Protocol::EpExperts);
const STAGED: Search = Search { staged: true, ..EP };
const REPLAY: Search = Search::of(Protocol::EpReplay);
const REPLAY_SLOTTED: Search = Search { staged: true, ..REPLAY };
const REPLAY_C: Search = REPLAY.cumulative();
const NODES: Search = Search::of(Protocol::EpNodes);
const NODES_STAGED: Search = Search { staged: true, ..NODES };
const RELAY: Search = Search::of(Protocol::EpRelay);
const BARRIER: Search = Search::of(Protocol::Barrier);
const STREAM: Search = Search::of(Protocol::StreamSignal);
const SIGNAL: Search = Search::of(Protocol::PutSignal);
const NEXT: Search = Search { staged: true, ..SIGNAL };
const QUIET: Search = Search::of(Protocol::PutQuiet);
const GATHER: Search = Search::of(Protocol::Gather);
const DEVICE: Search = Search::of(Protocol::DeviceBarrier);
const ATOMICS: Search = Search::of(Protocol::Atomics);
const PING: Search = Search::of(Protocol::Ping);
const PIPES: Search = Search::of(Protocol::CclPipes);
const NETWORK: Search = Search::of(Protocol::CclNetwork);
const NETWORK_ALONE: Search = Search { staged: true, ..NETWORK };
const NETWORK_C: Search = NETWORK.cumulative();
const MANY: Search = Search::of(Protocol::CclGatherMany);
const MOVE: Search = Search::of(Protocol::CclMove);
const PACKETS: Search = Search::of(Protocol::CclPackets);
const BULK: Search = Search::of(Protocol::CclBulk);
const HOPS: Search = Search::of(Protocol::CclHops);
const NORM: Search = Search::of(Protocol::CclNorm);
const ENGINE: Search = Search::of(Protocol::CclEngine);
// Collectives with epochs of two bits.
const MOVE_SHORT: Search = Search { staged: true, ..MOVE };
const PACKETS_SHORT: Search = Search { staged: true, ..PACKETS };
const FINGERPRINT: Search = Search::of(Protocol::CclFingerprint);
// The same in the cumulative profile.
const EP_C: Search = EP.cumulative();
const STAGED_C: Search = STAGED.cumulative();
const ONE_BLOCK_C: Search = Search { one_block: true, ..STAGED_C };
const BARRIER_C: Search = BARRIER.cumulative();
const STREAM_C: Search = STREAM.cumulative();
const SIGNAL_C: Search = SIGNAL.cumulative();
const QUIET_C: Search = QUIET.cumulative();
const GATHER_C: Search = GATHER.cumulative();
const DEVICE_C: Search = DEVICE.cumulative();
const PING_C: Search = PING.cumulative();
const PIPES_C: Search = PIPES.cumulative();
const MANY_C: Search = MANY.cumulative();
const MOVE_C: Search = MOVE.cumulative();
const BULK_C: Search = BULK.cumulative();
const HOPS_C: Search = HOPS.cumulative();
const SDMA: Search = Search::of(Protocol::Sdma).by_values();
const RDMA: Search = Search::of(Protocol::Rdma).by_values();
const ENGINE_C: Search = ENGINE.cumulative();
const PACKETS_C: Search = PACKETS.cumulative();
const PACKETS_SHORT_C: Search = PACKETS_SHORT.cumulative();

/// Every mutant that searches catch.
pub const CAUGHT: &[Caught] = &[
    caught("RELEASE_BY_ONE_THREAD", &[EP, SIGNAL, PING]),
    caught("NO_RELEASE", &[EP, SIGNAL, PING, EP_C, SIGNAL_C, PING_C, ONE_BLOCK_C]),
    caught("COUNT_BEFORE_RELEASE", &[EP, STAGED, EP_C, STAGED_C]),
    caught(
        "EPOCH_LOOSE",
        &[EP.by_values(), MASK.by_values(), BARRIER, STREAM, DEVICE, PING, PIPES.by_values(), BARRIER_C],
    ),
    caught(
        "NO_ACQUIRE_AFTER_WAIT",
        &[
            EP,
            SIGNAL,
            GATHER,
            PING,
            BARRIER.by_races(),
            STREAM.by_races(),
            EP_C,
            SIGNAL_C,
            GATHER_C,
            PING_C,
            BARRIER_C.by_races(),
            STREAM_C.by_races(),
        ],
    ),
    caught("NO_ACQUIRE_BETWEEN_BLOCKS", &[EP]),
    caught("BROADCAST_UNREAD", &[EP.by_races(), SIGNAL.by_races()]),
    caught("RELEASE_AT_DEVICE_SCOPE", &[EP, SIGNAL, PING, EP_C, SIGNAL_C, PING_C]),
    caught("FLAG_BEFORE_DATA", &[EP, STAGED, EP_C]),
    caught("NO_BARRIER_IN_RELEASE", &[STAGED, SIGNAL, SIGNAL_C, PING_C]),
    caught("COUNTER_NOT_RESET", &[EP, STAGED]),
    caught("COUNTER_RESET_EARLY", &[EP]),
    caught("EPOCH_EQUAL", &[BARRIER.by_values(), STREAM.by_values(), DEVICE.by_values()]),
    caught(
        "ACQUIRE_AT_DEVICE_SCOPE",
        &[EP, SIGNAL, GATHER, BARRIER.by_races(), STREAM.by_races(), MOVE, BULK],
    ),
    caught(
        "NO_WAIT",
        &[
            EP.by_values(),
            BARRIER,
            STREAM,
            SIGNAL,
            GATHER,
            DEVICE,
            MOVE.by_values(),
            PACKETS.by_values(),
            BULK.by_values(),
            HOPS.by_values(),
        ],
    ),
    caught("TORN_ATOMIC", &[ATOMICS.by_values(), EP, STREAM.by_values(), SDMA]),
    caught("NO_RELEASE_BEFORE_COUNT", &[EP_C]),
    caught("LAST_DOES_NOT_RELEASE", &[EP_C, ONE_BLOCK_C]),
    caught("RELEASE_BEFORE_BARRIER", &[SIGNAL_C, PING_C]),
    caught("THREAD_SIGNAL_UNRELEASED", &[SIGNAL, QUIET, SIGNAL_C, QUIET_C]),
    caught("THREAD_QUIET_UNRELEASED", &[QUIET, QUIET_C]),
    caught("WAVE_SIGNAL_UNRELEASED", &[SIGNAL, SIGNAL_C]),
    caught("WAVE_QUIET_UNRELEASED", &[QUIET, QUIET_C]),
    caught("BLOCK_QUIET_UNRELEASED", &[QUIET, DEVICE, QUIET_C, DEVICE_C, MOVE, BULK, MOVE_C]),
    caught("BLOCK_QUIET_BY_ONE_THREAD", &[QUIET, DEVICE, DEVICE_C.by_races(), MOVE, MOVE_C]),
    caught("QUIET_AT_DEVICE_SCOPE", &[QUIET, DEVICE, QUIET_C, DEVICE_C, MOVE, MOVE_C]),
    caught("WAVE_SIGNAL_NO_BARRIER", &[SIGNAL, SIGNAL_C]),
    caught("WAVE_QUIET_NO_BARRIER", &[QUIET, QUIET_C]),
    caught("BLOCK_QUIET_NO_BARRIER", &[QUIET, DEVICE, QUIET_C, DEVICE_C, MOVE, MOVE_C]),
    caught("FENCE_ONE_NOTHING", &[QUIET, QUIET_C, SDMA]),
    caught("FENCE_ALL_NOTHING", &[QUIET, QUIET_C, SDMA]),
    caught("QUIET_NOTHING", &[QUIET, QUIET_C, SDMA]),
    caught("SIGNAL_BEFORE_DATA", &[SIGNAL, GATHER, SIGNAL_C]),
    caught("PUT_SIGNAL_UNRELEASED", &[SIGNAL, NEXT, SIGNAL_C]),
    caught("COMPARE_LOOSE", &[SIGNAL, GATHER]),
    caught("COMPARE_EQUAL", &[SIGNAL.by_values()]),
    caught("SIGNAL_TEST_NO_ACQUIRE", &[GATHER, GATHER_C]),
    caught("SIGNAL_WAIT_NO_ACQUIRE", &[SIGNAL]),
    caught("SIGNAL_WAIT_NO_BARRIER", &[SIGNAL.by_races(), SIGNAL_C.by_races()]),
    caught("WAIT_ALL_NO_ACQUIRE", &[GATHER]),
    caught("WAIT_ALL_NO_BARRIER", &[GATHER.by_races(), GATHER_C.by_races()]),
    caught("WAIT_ANY_NO_ACQUIRE", &[GATHER, GATHER_C]),
    caught("WAIT_ANY_NO_BARRIER", &[GATHER.by_races(), GATHER_C.by_races()]),
    caught("TEAM_SYNC_UNRELEASED", &[DEVICE, DEVICE_C]),
    caught("TEAM_SYNC_NO_ACQUIRE", &[DEVICE]),
    caught("TEAM_SYNC_ACQUIRE_AT_DEVICE_SCOPE", &[DEVICE]),
    caught("TEAM_SYNC_FLAG_FIRST", &[DEVICE, DEVICE_C]),
    caught("TEAM_SYNC_EPOCH_NOT_KEPT", &[DEVICE]),
    caught("TEAM_SYNC_EARLY_RETURN", &[DEVICE]),
    caught("MEET_EPOCH_NOT_KEPT", &[BARRIER]),
    caught("MEET_NO_BARRIER", &[BARRIER]),
    caught("MEET_UNRELEASED", &[BARRIER_C.by_races()]),
    caught("MEET_EARLY_RETURN", &[BARRIER.by_values()]),
    caught("STREAM_ADD_IS_SET", &[STREAM.by_values()]),
    caught("STREAM_SIGNAL_UNRELEASED", &[STREAM_C.by_races()]),
    caught("TWO_FLAGS", &[EP, SPLIT]),
    caught("DISPATCH_NO_ACQUIRE", &[EP.by_races(), SPLIT.by_races()]),
    caught("COMBINE_NO_ACQUIRE", &[EP, STAGED, SPLIT]),
    caught("COMBINE_NO_BARRIER", &[EP, STAGED, EP_C]),
    caught("COMBINE_WAITS_FOR_ITSELF", &[EP, STAGED]),
    caught("COMBINE_UNRELEASED", &[EP_C.by_races(), NODES.cumulative().by_races()]),
    caught("COMBINE_FLAG_FIRST", &[STAGED, STAGED_C, Search { staged: true, ..SPLIT }]),
    caught("COMBINE_READS_OWN_EPOCH", &[EP, SPLIT]),
    caught("EXCHANGE_EARLY_RETURN", &[EP.by_values()]),
    caught("DISPATCH_NO_BARRIER", &[EP.by_values()]),
    caught("ROUTE_UNCOUNTED", &[EP.by_values()]),
    caught("ROUTE_UNREAD", &[EP.by_values()]),
    caught("ROUTE_OVERWRITTEN", &[EP.by_values()]),
    caught("ROUTE_ROW_SHARED", &[EP]),
    caught("ROUTE_ROW_STALE", &[ALONE.by_races(), ALONE.cumulative().by_races()]),
    caught("REPLAY_UNREAD", &[REPLAY.by_values()]),
    caught("REPLAY_OVERWRITTEN", &[REPLAY.by_values()]),
    caught("REPLAY_FLAG_FIRST", &[REPLAY, REPLAY_SLOTTED, REPLAY_C]),
    caught("REPLAY_UNWAITED", &[REPLAY, REPLAY_C]),
    caught("REPLAY_NO_ACQUIRE", &[REPLAY.by_races()]),
    caught("REPLAY_NO_BARRIER", &[REPLAY.by_values()]),
    caught("TALLY_UNCOUNTED", &[COMPACT.by_values()]),
    caught("TALLY_TORN", &[COMPACT]),
    caught("TALLY_NOT_TAKEN", &[COMPACT.by_values()]),
    caught("TALLY_UNREAD", &[COMPACT.by_values()]),
    caught("TALLY_TOLD_EARLY", &[COMPACT.by_values()]),
    caught("COUNT_TWO_WORDS", &[COMPACT]),
    caught("COUNT_UNWAITED", &[COMPACT.by_values()]),
    caught("COUNT_NO_BARRIER", &[COMPACT.by_values()]),
    caught("MASK_NOT_SET", &[MASK.by_values()]),
    caught("MASK_UNSETTLED", &[MASK.by_values(), MASK_STAGED.by_values()]),
    caught("EXPAND_UNCLEARED", &[EXPERTS.by_values()]),
    caught("EXPAND_UNCOUNTED", &[EXPERTS.by_values()]),
    caught("EXPAND_UNSUMMED", &[EXPERTS.by_values()]),
    caught("EXPAND_UNPLACED", &[EXPERTS.by_values()]),
    caught("EXPAND_OVERWRITTEN", &[EXPERTS.by_values()]),
    caught("EXPAND_TILE_UNREAD", &[EXPERTS.by_values()]),
    caught("EXPAND_NEXT_OVERWRITTEN", &[EXPERTS.by_races()]),
    caught("EXPERTS_UNWAITED", &[EXPERTS.by_values()]),
    caught("EXPERTS_TOTALS_UNSUMMED", &[EXPERTS.by_values()]),
    caught("EXPERTS_SLOTS_OVERWRITTEN", &[EXPERTS.by_values()]),
    caught("EXPERTS_SLOTS_UNWRITTEN", &[EXPERTS.by_values()]),
    caught("NUMBERS_NEXT_OVERWRITTEN", &[EXPERTS.by_races()]),
    caught("NUMBERS_NEXT_UNMOVED", &[EXPERTS.by_races()]),
    caught("NUMBERS_UNCOUNTED", &[EXPERTS.by_values()]),
    caught("TOTALS_UNRELEASED", &[EXPERTS, EXPERTS.cumulative()]),
    caught("LATE_WEIGHTS_UNWAITED", &[EXPERTS.by_values()]),
    caught("LATE_WEIGHTS_STALE", &[EXPERTS.by_values()]),
    caught("LATE_WEIGHTS_NO_ACQUIRE", &[EXPERTS.by_races()]),
    caught("LATE_WEIGHTS_FLAGGED_EARLY", &[EXPERTS, EXPERTS.cumulative()]),
    caught("LATE_WEIGHTS_UNCOUNTED", &[EXPERTS.by_values()]),
    caught("PING_FLAG_FIRST", &[PING, PING_C]),
    caught("PING_NO_BARRIER", &[PING, PING_C]),
    caught("FINGERPRINT_NOT_MET", &[FINGERPRINT.by_values(), FINGERPRINT.cumulative().by_values()]),
    caught("CHANNEL_NOT_LEFT", &[FINGERPRINT.by_values()]),
    caught("PIPE_COUNT_NOT_KEPT", &[PIPES.by_values()]),
    caught("PIPE_ONE_SLOT", &[PIPES, PIPES_C]),
    caught("PIPE_CREDIT_LOOSE", &[PIPES, PIPES_C]),
    caught("PIPE_NO_ACQUIRE", &[PIPES, PIPES_C]),
    caught("PIPE_CONSUMED_UNREAD", &[PIPES, PIPES_C]),
    caught("PIPE_FLAG_FIRST", &[PIPES, PIPES_C]),
    caught("PIPE_UNRELEASED", &[PIPES, PIPES_C]),
    caught("PIPE_NO_BARRIER", &[PIPES.by_values(), PIPES_C.by_values()]),
    caught("CHANNEL_USES_NOT_KEPT", &[MOVE.by_races(), FINGERPRINT, FINGERPRINT.cumulative()]),
    caught("SLOT_NOT_OWNED", &[SIGNAL, QUIET, SIGNAL_C]),
    caught("ACKNOWLEDGED_UNREAD", &[SIGNAL, QUIET, SIGNAL_C]),
    caught("CHANNEL_EPOCH_NOT_KEPT", &[PACKETS.by_values(), MOVE.by_values()]),
    caught("CHANNEL_MEETS_NOT_KEPT", &[MOVE, BULK]),
    caught("MEET_LOOSE", &[MOVE, BULK, MOVE_C]),
    caught("MEET_FLAG_FIRST", &[MOVE, MOVE_C]),
    caught("MEET_FIRST_OFFERS_NOTHING", &[MOVE_C.by_races(), BULK_C.by_races()]),
    caught("MEET_NO_ACQUIRE", &[MOVE, BULK]),
    caught("MEET_NO_BARRIER_AFTER", &[MOVE, BULK, MOVE_C]),
    caught("MEETS_EQUAL", &[MOVE.by_values(), BULK.by_values()]),
    caught("VALUE_ONE_PLACE", &[MOVE.by_races()]),
    caught("CHANNEL_OPENED_UNREAD", &[MOVE.by_values(), PACKETS.by_values()]),
    caught(
        "PACKETS_ONE_BUFFER",
        &[PACKETS.by_values(), MOVE.by_values(), MANY.by_values(), PACKETS_C.by_values()],
    ),
    caught("PACKETS_NOT_CLEARED", &[PACKETS_SHORT.by_values(), MOVE_SHORT.by_values()]),
    caught(
        "PACKETS_NO_BARRIER",
        &[
            PACKETS.by_values(),
            MOVE.by_values(),
            NORM.by_values(),
            MANY.by_values(),
            PACKETS_C.by_values(),
            MANY_C.by_values(),
        ],
    ),
    caught("PACKET_HALF_LOOKED_AT", &[PACKETS.by_values(), MOVE.by_values(), PACKETS_C.by_values()]),
    caught("PACKETS_CLEARED_UNMET", &[PACKETS_SHORT.by_values(), PACKETS_SHORT_C.by_values()]),
    caught("STAGING_ONE_HALF", &[MOVE, BULK, MANY, MOVE_C, BULK_C, MANY_C]),
    caught("STAGED_NO_MEETING", &[MOVE, MANY, MOVE_C, MANY_C]),
    caught("DIRECT_NO_FIRST_MEETING", &[MOVE, MANY, MOVE_C, MANY_C]),
    caught("DIRECT_NO_LAST_MEETING", &[MOVE, MANY, MOVE_C, MANY_C]),
    caught("DIRECT_LAST_AS_FIRST", &[MOVE_C, MANY_C]),
    caught("PULL_NO_FIRST_MEETING", &[BULK, BULK_C]),
    caught("PULL_NO_LAST_MEETING", &[BULK, BULK_C]),
    caught("PUSH_NO_MEETING", &[BULK, BULK_C]),
    caught("PUSH_NO_LAST_MEETING", &[BULK, BULK_C]),
    caught("RELAYED_NO_MEETING", &[BULK, BULK_C]),
    caught("RELAYED_SAME_HALF", &[BULK, BULK_C]),
    caught("ENGINE_NO_MEETING", &[ENGINE, ENGINE_C]),
    caught("ENGINE_NO_MEETING_BEHIND", &[ENGINE, ENGINE_C]),
    caught("NORM_SQUARES_UNREAD", &[NORM]),
    caught("NORM_CODES_EARLY", &[NORM]),
    caught("NORM_ROW_OVERWRITTEN", &[NORM]),
    caught("TWO_HOP_NO_FIRST_MEETING", &[HOPS, HOPS_C]),
    caught("TWO_HOP_NO_MEETING", &[HOPS, HOPS_C]),
    caught("TWO_HOP_NO_LAST_MEETING", &[HOPS, HOPS_C]),
    caught("TWO_HOP_SAME_HALF", &[HOPS, HOPS_C]),
    caught("TO_ROOT_NO_MEETING", &[HOPS, HOPS_C]),
    caught("TO_ROOT_NO_LAST_MEETING", &[HOPS, HOPS_C]),
    caught("TO_ROOT_SAME_HALF", &[HOPS, HOPS_C]),
    caught("CCL_NETWORK_ONE_SLOT", &[NETWORK, NETWORK_C]),
    caught("CCL_NETWORK_CREDIT_LOOSE", &[NETWORK.by_values(), NETWORK_ALONE.by_values(), NETWORK_C]),
    caught("CCL_NETWORK_COUNT_NOT_KEPT", &[NETWORK.by_values(), NETWORK_C.by_values()]),
    caught("CCL_NETWORK_NO_ACQUIRE", &[NETWORK]),
    caught("CCL_NETWORK_NO_BARRIER", &[NETWORK.by_values(), NETWORK_C.by_values()]),
    caught("CCL_NETWORK_CONSUMED_UNREAD", &[NETWORK, NETWORK_C]),
    caught("CCL_NETWORK_FLAG_FIRST", &[NETWORK, NETWORK_C]),
    caught("CCL_NETWORK_UNRELEASED", &[NETWORK, NETWORK_C]),
    caught("CCL_NETWORK_STEP_UNFINISHED", &[NETWORK.by_values(), NETWORK_C.by_values()]),
    caught("CCL_NETWORK_PACKED_SHORT", &[NETWORK.by_values(), NETWORK_C.by_values()]),
    caught("SDMA_SIGNAL_FIRST", &[SDMA]),
    caught("SDMA_NO_PADDING", &[SDMA]),
    caught("SDMA_RING_OVERRUN", &[SDMA]),
    caught("SDMA_WORDS_UNRELEASED", &[SDMA]),
    caught("SDMA_OUT_OF_TURN", &[SDMA]),
    caught("SDMA_POINTER_UNRELEASED", &[SDMA]),
    caught("SDMA_DOORBELL_UNRELEASED", &[SDMA]),
    caught("SDMA_QUIET_WHEN_READ", &[SDMA]),
    caught("SDMA_DONE_UNWAITED", &[SDMA]),
    caught("BY_QUEUE_UNRELEASED", &[SDMA]),
    caught("BY_QUEUE_NO_ACQUIRE", &[SDMA]),
    caught("DRAIN_NO_ACQUIRE", &[SDMA]),
    caught("BY_NIC_UNRELEASED", &[RDMA]),
    caught("BY_NIC_NO_ACQUIRE", &[RDMA]),
    caught("NIC_SIGNAL_FIRST", &[RDMA]),
    caught("NODES_FLAG_FIRST", &[NODES, NODES.cumulative(), RELAY]),
    caught("NODES_RELAY_UNWAITED", &[RELAY.by_values()]),
    caught("NODES_RELAY_NO_ACQUIRE", &[RELAY]),
    caught("NODES_FORWARD_FLAG_FIRST", &[RELAY, RELAY.cumulative()]),
    caught("RELAY_ROW_SHARED", &[RELAY.by_races()]),
    caught("NODES_RETURN_FLAG_FIRST", &[NODES, NODES.cumulative()]),
    caught("NODES_STAGE_UNCOUNTED", &[NODES_STAGED]),
];

/// Mutants that no search runs, and the tests that catch them: their kernels need engines and a whole world, or a NIC.
pub const TESTED: &[(&str, &str)] = &[
    ("DONE_BEHIND_THE_LOOP", "crates/transport-rdma/tests/device/code.rs"),
    ("SDMA_FLAG_LOW_FIRST", "crates/ep/tests/engine.rs"),
    ("ENGINE_FLAG_FIRST", "crates/ep/tests/engine.rs"),
    ("ENGINE_UNWAITED", "crates/ep/tests/engine.rs"),
    ("RDMA_RING_OVERRUN", "crates/transport-rdma/tests/device/together.rs"),
    ("RDMA_ENTRY_UNRELEASED", "crates/transport-rdma/tests/device/code.rs"),
    ("RDMA_MARK_UNRELEASED", "crates/transport-rdma/tests/device/code.rs"),
    ("RDMA_OUT_OF_TURN", "crates/transport-rdma/tests/device/together.rs"),
    ("RDMA_RECORD_UNRELEASED", "crates/transport-rdma/tests/device/code.rs"),
    ("RDMA_DOORBELL_UNRELEASED", "crates/transport-rdma/tests/device/code.rs"),
    ("RDMA_DONE_UNWAITED", "crates/transport-rdma/tests/device/together.rs"),
    ("RDMA_SLOT_SHARED", "crates/transport-rdma/tests/device/together.rs"),
    ("RDMA_FETCHED_UNACQUIRED", "crates/transport-rdma/tests/device/code.rs"),
    ("RDMA_RUNG_TOGETHER", "crates/transport-rdma/tests/device/code.rs"),
    ("RDMA_KEY_UNCHECKED", "crates/transport-rdma/tests/device/code.rs"),
    ("LENGTH_PLUS_ONE", "crates/shmem/tests/device_api/copy.rs"),
    ("LENGTH_MINUS_ONE", "crates/shmem/tests/device_api/copy.rs"),
    ("WRONG_PEER", "crates/shmem/tests/device_api/copy.rs"),
    ("EMPTY_IS_SILENT", "crates/shmem/tests/device_api/copy.rs"),
    ("EVERY_LANE_SIGNALS", "crates/shmem/tests/device_api/copy.rs"),
    ("WIDE_ATOMIC", "crates/shmem/tests/device_api/atomics.rs"),
    ("SYNC_BY_ANY_QUEUE", "crates/shmem/tests/device_api/nics.rs"),
    ("QUEUE_BY_GRID", "crates/shmem/tests/device_api/nics.rs"),
    ("CODEC_SLOT_FOR_INDEX", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_UNTOLD", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_NO_RECORD", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_LITTLE_ENDIAN_RECORD", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_DOORBELL_OF_THE_FIRST", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_ONE_SEGMENT_MORE", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_NOT_INLINE", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_IMMEDIATE_ORDER", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_OPERAND_ORDER", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_STALE_COLOUR", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_STALE_SEQUENCE", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_RECORD_OF_BLOCKS_MORE", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_SEQUENCE_ROW_OF_THE_RING", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_NO_DUMP", "dev/softnic/tests/device/mistakes.rs"),
    ("CODEC_UNFENCED_DUMP", "dev/softnic/tests/device/mistakes.rs"),
];

/// The mutants that searches of the protocol catch.
pub fn caught_in(protocol: Protocol) -> impl Iterator<Item = &'static str> {
    let of = move |caught: &&Caught| caught.caught_by.iter().any(|search| search.protocol == protocol);
    CAUGHT.iter().filter(of).map(|caught| caught.name)
}
