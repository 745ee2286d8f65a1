// Broken twins: the prelude, the device API and the kernels with one mistake each, chosen by the parameter PRELUDE_MUTANT.
// A search that does not find the mistake does not test the line. 0, the default, is the code as it is. Which twin holds which
// line stands in a table (crates/sim/src/twins); a test compares it with the sources.
// Names without a file below: PING of p2p.hip, SLOT and ACKNOWLEDGED of the searches' kernels, MASK of ep/mask.h, AGAIN of
// ep/dispatch_again.hip, EXPERT and EXPAND of ep/expert_*.hip, BY_QUEUE and DRAIN of shmem/engine.h, PACKET of ccl/packets.h.
//
//     ANABRANCH_UNLESS(NAME) line;    the line, which the twin NAME leaves out
//     ANABRANCH_TWIN(NAME) line;      what only the twin does; on a line of its own
#pragma once

#if !defined(PRELUDE_MUTANT)
#define PRELUDE_MUTANT 0
#endif

#define ANABRANCH_UNLESS(NAME) if constexpr (::MUTANT != ::MUTANT_##NAME)
#define ANABRANCH_TWIN(NAME) if constexpr (::MUTANT == ::MUTANT_##NAME)

enum Mutant : u32 {
    MUTANT_NONE = 0,
    // publish.h
    MUTANT_RELEASE_BY_ONE_THREAD = 1,     // block_release_system: only thread 0 releases, behind the barrier
    MUTANT_NO_RELEASE = 2,                // block_release_system: nobody releases
    MUTANT_COUNT_BEFORE_RELEASE = 3,      // arrive_is_last: counted, so flagged by others, before the block's release
    MUTANT_EPOCH_LOOSE = 4,               // wait.h: the epoch before is good enough
    MUTANT_NO_ACQUIRE_AFTER_WAIT = 5,     // acquire_after_wait: nothing
    MUTANT_NO_ACQUIRE_BETWEEN_BLOCKS = 6, // arrive_is_last: the last block does not acquire
    MUTANT_RELEASE_AT_DEVICE_SCOPE = 7,   // block_release_system: release, but not as far as peers
    MUTANT_FLAG_BEFORE_DATA = 8,          // arrive_is_last: true in the first block to arrive, not in the last
    MUTANT_NO_BARRIER_IN_RELEASE = 9,     // block_release_system: the block does not meet
    MUTANT_COUNTER_NOT_RESET = 10,        // arrive_is_last: the counter goes on
    MUTANT_COUNTER_RESET_EARLY = 11,      // arrive_is_last: zeroed by the last block but one
    // wait.h
    MUTANT_DONE_BEHIND_THE_LOOP = 12,     // stays_inside: what other lanes of the wave wait for is done when all have ended
    MUTANT_EPOCH_EQUAL = 13,              // the epoch must equal the one waited for
    MUTANT_ACQUIRE_AT_DEVICE_SCOPE = 14,  // acquire_after_wait: what peers wrote may stay stale
    MUTANT_NO_WAIT = 15,                  // wait_until: one look, whatever it shows
    MUTANT_TORN_ATOMIC = 16,              // every atomic is a load and a store
    // publish.h where fences are cumulative; elsewhere each wave's own release makes up for them
    MUTANT_NO_RELEASE_BEFORE_COUNT = 17,  // arrive_is_last: a block is counted without a release
    MUTANT_LAST_DOES_NOT_RELEASE = 18,    // arrive_is_last: the last block does not release to peers
    MUTANT_RELEASE_BEFORE_BARRIER = 19,   // block_release_system: thread 0's release comes before the barrier
    // shmem/scope.h, by scope: who signals, or who quiets, does not release
    MUTANT_THREAD_SIGNAL_UNRELEASED = 20,
    MUTANT_THREAD_QUIET_UNRELEASED = 21,
    MUTANT_WAVE_SIGNAL_UNRELEASED = 22,
    MUTANT_WAVE_QUIET_UNRELEASED = 23,
    MUTANT_BLOCK_QUIET_UNRELEASED = 24,   // also the release of team_sync
    MUTANT_BLOCK_QUIET_BY_ONE_THREAD = 25,
    MUTANT_QUIET_AT_DEVICE_SCOPE = 26,    // at every scope
    MUTANT_WAVE_SIGNAL_NO_BARRIER = 27,   // lanes release, and do not meet
    MUTANT_WAVE_QUIET_NO_BARRIER = 28,
    MUTANT_BLOCK_QUIET_NO_BARRIER = 29,
    // shmem/order.h, signal.h
    MUTANT_FENCE_ONE_NOTHING = 30,        // fence for one peer
    MUTANT_FENCE_ALL_NOTHING = 31,        // fence for every peer
    MUTANT_QUIET_NOTHING = 32,            // quiet is a barrier
    MUTANT_SIGNAL_BEFORE_DATA = 33,       // put_signal signals, then copies
    MUTANT_PUT_SIGNAL_UNRELEASED = 34,    // put_signal: the scope meets, nobody releases
    MUTANT_COMPARE_LOOSE = 35,            // GE holds one too early
    MUTANT_COMPARE_EQUAL = 36,            // GE is EQ
    MUTANT_SIGNAL_TEST_NO_ACQUIRE = 37,
    // shmem/wait.h
    MUTANT_SIGNAL_WAIT_NO_ACQUIRE = 40,
    MUTANT_SIGNAL_WAIT_NO_BARRIER = 41,   // the other lanes of the scope read behind a broadcast alone
    MUTANT_WAIT_ALL_NO_ACQUIRE = 42,
    MUTANT_WAIT_ALL_NO_BARRIER = 43,
    MUTANT_WAIT_ANY_NO_ACQUIRE = 44,
    MUTANT_WAIT_ANY_NO_BARRIER = 45,
    // shmem/barrier.h
    MUTANT_TEAM_SYNC_UNRELEASED = 50,
    MUTANT_TEAM_SYNC_NO_ACQUIRE = 51,
    MUTANT_TEAM_SYNC_ACQUIRE_AT_DEVICE_SCOPE = 52,
    MUTANT_TEAM_SYNC_FLAG_FIRST = 53,     // flags, then the release
    MUTANT_TEAM_SYNC_EPOCH_NOT_KEPT = 54, // the next call uses the same epoch
    MUTANT_TEAM_SYNC_EARLY_RETURN = 55,   // a thread leaves before the block meets
    MUTANT_MEET_EPOCH_NOT_KEPT = 60,
    MUTANT_MEET_NO_BARRIER = 61,          // thread 0 ends the kernel's part before the others have waited
    MUTANT_MEET_EARLY_RETURN = 62,
    MUTANT_STREAM_ADD_IS_SET = 63,        // a signal that adds stores
    MUTANT_MEET_UNRELEASED = 64,
    MUTANT_STREAM_SIGNAL_UNRELEASED = 65,
    // ep
    MUTANT_TWO_FLAGS = 70,                // dispatch: count and epoch are stored one after the other
    MUTANT_COMBINE_NO_ACQUIRE = 71,
    MUTANT_COMBINE_NO_BARRIER = 72,       // combine: waves whose threads did not wait read at once
    MUTANT_COMBINE_WAITS_FOR_ITSELF = 73, // combine: and for no peer
    MUTANT_COMBINE_FLAG_FIRST = 74,       // combine: flags, then stages
    MUTANT_COMBINE_UNCOUNTED = 75,        // combine: every block advances the epoch when it ends
    MUTANT_COMBINE_COUNT_NOT_RESET = 76,
    MUTANT_EXCHANGE_EARLY_RETURN = 77,    // dispatch: a thread of the last block leaves before the block meets
    MUTANT_DISPATCH_NO_BARRIER = 78,      // dispatch: counts are told before all threads have waited
    MUTANT_ROUTE_UNCOUNTED = 79,          // dispatch: a tile is routed while earlier tokens are counted
    MUTANT_ROUTE_UNREAD = 80,             // dispatch: rows are copied while they are routed
    MUTANT_ROUTE_OVERWRITTEN = 81,        // dispatch: a tile is routed while the one before is copied
    MUTANT_ROUTE_ROW_SHARED = 82,         // dispatch: a lane reads the next row after lane 0 has moved it
    MUTANT_DISPATCH_NO_ACQUIRE = 83,
    MUTANT_COMBINE_UNRELEASED = 84,       // combine: rows of earlier kernels are flagged without a release
    MUTANT_COMBINE_EPOCH_PLAIN = 85,      // combine: the epoch is stored by no flag, and other blocks read it unordered
    MUTANT_PING_FLAG_FIRST = 87,          // the flag, then the release
    MUTANT_PING_NO_BARRIER = 88,          // the block reads the payload before thread 0 has waited for it
    MUTANT_SLOT_NOT_OWNED = 90,           // a sender does not wait until its slot was read
    MUTANT_ACKNOWLEDGED_UNREAD = 91,      // a receiver acknowledges, then reads
    // ccl/lane.h
    MUTANT_LANE_EPOCH_NOT_KEPT = 100,     // lane_close: the next launch uses the same epoch
    MUTANT_LANE_MEETS_NOT_KEPT = 101,
    MUTANT_MEET_LOOSE = 102,              // meet: the number before is good enough
    MUTANT_MEET_FLAG_FIRST = 103,         // meet: flags, then the release
    MUTANT_MEET_NO_ACQUIRE = 104,
    MUTANT_MEET_NO_BARRIER_AFTER = 105,   // meet: threads that did not wait go on at once
    MUTANT_MEETS_EQUAL = 106,             // meet: the number must equal the one waited for
    MUTANT_TOLD_ONE_PLACE = 107,          // meet: every value lies in the same place
    MUTANT_LANE_OPENED_UNREAD = 108,      // lane_open: threads go on before thread 0 has read the counters
    MUTANT_LANE_USES_NOT_KEPT = 109,
    MUTANT_PACKETS_ONE_BUFFER = 110,      // packet_at: every epoch uses the same place
    MUTANT_PACKETS_NOT_CLEARED = 111,     // next_epoch: old flags come round again
    MUTANT_PACKETS_NO_BARRIER = 112,      // end_epoch: the next epoch's packets are sent while others still read
    MUTANT_PACKET_HALF_LOOKED_AT = 113,   // has_flag: of the first half only
    MUTANT_PACKETS_CLEARED_UNMET = 114,   // next_epoch: new packets are sent while others still clear
    MUTANT_STAGING_ONE_HALF = 120,        // next_half: every use writes the same half
    MUTANT_STAGED_NO_MEETING = 121,       // move_staged, gather_staged: reads what has not come
    MUTANT_DIRECT_NO_FIRST_MEETING = 122, // move_direct, gather_direct: outputs are written that are in use
    MUTANT_DIRECT_NO_LAST_MEETING = 123,  // move_direct, gather_direct: ends before its output is there
    MUTANT_PULL_NO_FIRST_MEETING = 124,
    MUTANT_PULL_NO_LAST_MEETING = 125,
    MUTANT_PUSH_NO_MEETING = 126,         // push: reduces what has not come
    MUTANT_PUSH_NO_LAST_MEETING = 127,    // push: ends before its output is there
    MUTANT_RELAYED_NO_MEETING = 128,      // push: copies results that have not come
    MUTANT_RELAYED_SAME_HALF = 129,       // push: results go where contributions are still read
    // ccl/pipe.h and pipes.hip
    MUTANT_PIPE_COUNT_NOT_KEPT = 130,     // the next launch counts from where this one began
    MUTANT_PIPE_ONE_SLOT = 131,           // every chunk lies in the same slot
    MUTANT_PIPE_CREDIT_LOOSE = 132,       // a slot is written before its chunk was read
    MUTANT_PIPE_NO_ACQUIRE = 133,
    MUTANT_PIPE_CONSUMED_UNREAD = 134,    // the target counts a chunk, then reads it
    MUTANT_PIPE_FLAG_FIRST = 135,         // the source counts a chunk, then writes it
    MUTANT_PIPE_UNRELEASED = 136,         // the block meets, and nobody releases
    MUTANT_PIPE_NO_BARRIER = 137,         // threads take the pick before thread 0 has waited
    MUTANT_ENGINE_NO_MEETING = 138,       // reduce_brought: reduces what has not come
    MUTANT_ENGINE_NO_MEETING_BEHIND = 139, // reduce_brought: ends while others still read their staging
    // ccl's checks
    MUTANT_FINGERPRINT_NOT_MET = 140,     // fingerprint.hip: calls are compared before all have come
    MUTANT_LANE_NOT_LEFT = 141,           // lane_close: the launch stays inside
    // ccl's two_hop.hip
    MUTANT_TWO_HOP_NO_FIRST_MEETING = 150,   // outputs are written that are in use
    MUTANT_TWO_HOP_NO_MEETING = 151,         // hands on a part that has not come
    MUTANT_TWO_HOP_NO_LAST_MEETING = 152,    // ends before its output is there
    MUTANT_TWO_HOP_RELAYED_NO_MEETING = 153, // copies parts that have not come
    MUTANT_TWO_HOP_SAME_HALF = 154,          // the second hop writes where the first is still read
    // ccl/ring.h
    MUTANT_RING_NO_MEETING = 160,            // slots are written that are in use
    MUTANT_RING_COUNT_NOT_KEPT = 161,        // the next call counts from where this one began
    MUTANT_RING_CREDIT_LOOSE = 162,          // a slot is written before its chunk was taken
    MUTANT_RING_NO_ACQUIRE = 163,
    MUTANT_RING_NO_BARRIER = 164,            // threads go on before thread 0 has waited
    MUTANT_RING_CONSUMED_UNREAD = 165,       // the taker counts a chunk, then reads it
    MUTANT_RING_FLAG_FIRST = 166,            // the giver counts a chunk, then writes it
    MUTANT_RING_UNRELEASED = 167,            // the block meets, and nobody releases
    // ep/count.hip
    MUTANT_TALLY_UNCOUNTED = 170,         // a block adds its share while it still counts
    MUTANT_TALLY_TORN = 171,              // blocks add by a load and a store
    MUTANT_TALLY_NOT_TAKEN = 172,         // the next launch adds to the sums of this one
    MUTANT_TALLY_UNREAD = 173,            // counts are told before all have been taken out
    MUTANT_TALLY_TOLD_EARLY = 174,        // by the first block, not by the last to arrive
    MUTANT_COUNT_TWO_WORDS = 175,         // epoch and count are stored one after the other
    MUTANT_COUNT_UNWAITED = 176,
    MUTANT_COUNT_NO_BARRIER = 177,        // places are worked out before all words have come
    MUTANT_AGAIN_UNREAD = 400,            // rows are copied while their places are looked up
    MUTANT_AGAIN_OVERWRITTEN = 401,       // a tile is looked up while the one before is copied
    MUTANT_AGAIN_FLAG_FIRST = 402,        // counts are told before all rows are there
    MUTANT_AGAIN_UNWAITED = 403,
    MUTANT_AGAIN_NO_ACQUIRE = 404,
    MUTANT_AGAIN_NO_BARRIER = 405,        // counts are written before all threads have waited
    MUTANT_MASK_NOT_SET = 460,            // a wait that gives a rank up tells no later one
    MUTANT_MASK_UNSETTLED = 461,          // combine: every block leaves out whom it has missed
    MUTANT_EXPERT_COUNT_UNCLEARED = 490,  // pairs are counted before the counters are zero
    MUTANT_EXPERT_COUNT_UNSUMMED = 491,   // counts are told while others still count
    MUTANT_EXPAND_UNCLEARED = 492,        // runs are summed before the sums are zero
    MUTANT_EXPAND_UNSUMMED = 493,         // places are given while others still sum
    MUTANT_EXPAND_PAIRS_UNREAD = 494,     // pairs are placed before all have been looked at
    MUTANT_EXPAND_UNPLACED = 495,         // rows are copied before all have a place
    MUTANT_EXPAND_OVERWRITTEN = 496,      // the next tile's pairs replace some that are still copied
    // sdma/words.h and sdma/queue.h
    MUTANT_SDMA_SIGNAL_FIRST = 520,       // the signal stands before the copies
    MUTANT_SDMA_NO_PADDING = 521,         // packets go on behind the ring's end
    MUTANT_SDMA_RING_OVERRUN = 522,       // room is taken that the engine has not left
    MUTANT_SDMA_WORDS_UNRELEASED = 523,   // packets, and what they copy, are made known before they are in memory
    MUTANT_SDMA_OUT_OF_TURN = 524,        // packets are made known although those before are not written
    MUTANT_SDMA_POINTER_UNRELEASED = 525, // the doorbell may come before the write pointer
    MUTANT_SDMA_DOORBELL_UNRELEASED = 526,// the next lane's doorbell may come before this one
    MUTANT_SDMA_QUIET_WHEN_READ = 527,    // quiet: packets were read, and may not be done
    MUTANT_SDMA_DONE_UNWAITED = 528,      // whoever waits for an operation goes on at once
    MUTANT_BY_QUEUE_UNRELEASED = 529,     // the scope meets, and only its leader's wave releases
    MUTANT_BY_QUEUE_NO_ACQUIRE = 530,     // what a get has brought is read without an acquire
    MUTANT_DRAIN_NO_ACQUIRE = 531,        // the same behind quiet
    MUTANT_SDMA_FLAG_LOW_FIRST = 560,     // a flag's epoch is there before its count
    MUTANT_ENGINE_FLAG_FIRST = 561,       // the flag stands before the rows
    MUTANT_ENGINE_UNWAITED = 563,         // a second half does not wait for the engines of the first
    // rdma/queue.h, rdma/operation.h and rdma/mlx5.h
    MUTANT_RDMA_RING_OVERRUN = 580,       // room is taken that the NIC has not left
    MUTANT_RDMA_ENTRY_UNRELEASED = 581,   // entries, and what they send, are made known before they are in memory
    MUTANT_RDMA_MARK_UNRELEASED = 582,    // posted: the doorbell may come before the stamp
    MUTANT_RDMA_OUT_OF_TURN = 583,        // entries are made known although those before are not written
    MUTANT_RDMA_RECORD_UNRELEASED = 584,  // mlx5: the doorbell may come before its record
    MUTANT_RDMA_DOORBELL_UNRELEASED = 585,// the next lane's doorbell may come before this one
    MUTANT_RDMA_DONE_UNWAITED = 586,      // whoever waits for an operation goes on at once
    MUTANT_RDMA_SLOT_SHARED = 587,        // fetch: its result slot is still to be read by another lane
    MUTANT_RDMA_FETCHED_UNACQUIRED = 588, // fetch: the value may be older than its completion
    MUTANT_RDMA_RUNG_TOGETHER = 589,      // lanes of a wave store to a register in one instruction: one of them remains
    MUTANT_RDMA_KEY_UNCHECKED = 590,      // view.h: a key of a place that is given away meanwhile
    // shmem/nic.h
    MUTANT_BY_NIC_UNRELEASED = 600,       // the scope meets, and only its leader's wave releases
    MUTANT_BY_NIC_NO_ACQUIRE = 601,       // what a get has brought is read without an acquire
    MUTANT_NIC_SIGNAL_FIRST = 602,        // the signal stands before the copy
    // ccl/links.h and ccl/network.h
    MUTANT_CCL_NETWORK_ONE_SLOT = 700,        // all chunks of a link lie in one place
    MUTANT_CCL_NETWORK_CREDIT_LOOSE = 701,    // a slot is written before its chunk was taken
    MUTANT_CCL_NETWORK_COUNT_NOT_KEPT = 702,  // the next call counts from where this one began
    MUTANT_CCL_NETWORK_NO_ACQUIRE = 703,
    MUTANT_CCL_NETWORK_NO_BARRIER = 704,      // threads go on before all ports are ready
    MUTANT_CCL_NETWORK_CONSUMED_UNREAD = 705, // the taker counts a chunk, then reads it
    MUTANT_CCL_NETWORK_FLAG_FIRST = 706,      // the giver counts a chunk, then writes it
    MUTANT_CCL_NETWORK_UNRELEASED = 707,      // the block meets, and nobody releases
    MUTANT_CCL_NETWORK_STEP_UNFINISHED = 708, // the next step begins while this one still tells
    MUTANT_CCL_NETWORK_PACKED_SHORT = 709,    // of a packed chunk, one piece crosses
    // ep's kernels across nodes
    MUTANT_NODES_FLAG_FIRST = 800,         // dispatch: the flag stands before the rows
    MUTANT_NODES_RELAY_UNWAITED = 801,     // forwards what has not come
    MUTANT_NODES_RELAY_NO_ACQUIRE = 802,
    MUTANT_NODES_FORWARD_FLAG_FIRST = 803, // counts are told before all rows are forwarded
    MUTANT_NODES_RETURN_FLAG_FIRST = 804,  // combine: the flag stands before the rows
    MUTANT_NODES_STAGE_UNCOUNTED = 805,    // rows are put before all blocks have brought theirs to the window
    MUTANT_LAST = 805,
};
static constexpr u32 MUTANT = PRELUDE_MUTANT;
static_assert(MUTANT <= MUTANT_LAST, "PRELUDE_MUTANT names no mutant");
