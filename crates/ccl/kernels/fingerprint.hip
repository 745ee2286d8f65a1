// Whether all members make the same call, asked before any of its data moves: a kernel of one block, launched before the call's
// when the communicator checks fingerprints. It has a channel of its own with one lane and no packets.
//
// Every member writes its message, the call's fingerprint and a row, into every member's staging, meets, and compares all
// messages with its own. A row is of splits, two words for each member, which are compared in pairs; or of the first tensors of a
// list, for the host to say in which of them lists differ: that they do, their digest in the fingerprint says. So all members see the same messages, find the same difference, and fail alike: the fault
// poisons the world, and the call's kernel ends where it begins. Why a half of the staging is free: meet.h. After a difference
// nobody writes there any more, so that the host can read what everybody wrote.
#include "ccl/meet.h"

namespace ccl {

static constexpr u32 WORDS = sizeof(Fingerprint) / 8;

static ANABRANCH_DEVICE u64 own_word(const FingerprintArgs& args, u32 word) {
    return word < WORDS ? reinterpret_cast<const u64*>(&args.mine)[word] : args.row[word - WORDS];
}

static ANABRANCH_DEVICE u64* message_of(const Channel& channel, u64 base, const Lane& lane, u64 half, u32 source) {
    return reinterpret_cast<u64*>(staging_of(channel, base, lane, half, source));
}

static ANABRANCH_DEVICE void tell_all(const Grid& grid, const FingerprintArgs& args, const Lane& lane, u64 half) {
    const Channel& channel = args.channel;
    u32 words = WORDS + u32(args.row_words);
    for (u32 i = grid.thread; i < words * channel.team.size; i += grid.block_threads) {
        u32 peer = rotated(channel, i / words), word = i % words;
        u64* message = message_of(channel, member_base(grid, channel, peer), lane, half, channel.team.rank);
        remote_store(grid, message + word, own_word(args, word));
    }
}

static ANABRANCH_DEVICE void differs(const Grid& grid, const Lane& lane, u32 peer, u64 mine, u64 theirs) {
    report_fault(grid, lane.wait, PHASE_FINGERPRINT, peer, mine, theirs, grid.clock_ns() - lane.wait.start_ns);
    lane_fail(grid, FAULT_IN_MEETING);
}

static ANABRANCH_DEVICE void compare_calls(const Grid& grid, const FingerprintArgs& args, const Lane& lane, u64 half) {
    const Channel& channel = args.channel;
    u64 own = member_base(grid, channel, channel.team.rank);
    for (u32 i = grid.thread; i < WORDS * channel.team.size; i += grid.block_threads) {
        u32 peer = i / WORDS, word = i % WORDS;
        u64 mine = own_word(args, word), theirs = heap_load(grid, message_of(channel, own, lane, half, peer) + word);
        if (mine != theirs) differs(grid, lane, peer, mine, theirs);
    }
}

// What a member sends to another has to be what that one expects. Every member looks at all pairs, so that all learn of it.
static ANABRANCH_DEVICE void compare_splits(const Grid& grid, const FingerprintArgs& args, const Lane& lane, u64 half) {
    const Channel& channel = args.channel;
    u32 size = channel.team.size;
    u64 own = member_base(grid, channel, channel.team.rank);
    for (u32 i = grid.thread; i < size * size && args.mine.uneven != 0; i += grid.block_threads) {
        u32 from = i / size, to = i % size;
        u64 sent = heap_load(grid, message_of(channel, own, lane, half, from) + WORDS + 2 * to);
        u64 expected = heap_load(grid, message_of(channel, own, lane, half, to) + WORDS + 2 * from + 1);
        if (sent != expected) differs(grid, lane, from, expected, sent);
    }
}

static ANABRANCH_DEVICE void compare(const Grid& grid, const FingerprintArgs& args, Lane& lane) {
    u64 half = next_half(lane);  // the number of the meeting that follows has the same parity
    tell_all(grid, args, lane, half);
    meet(grid, args.channel, lane);
    if (lane.dead) return;
    compare_calls(grid, args, lane, half);
    compare_splits(grid, args, lane, half);
}

}  // namespace ccl

ANABRANCH_KERNEL(anabranch_ccl_fingerprint, FingerprintArgs, 1024) {
    Place nowhere = {nullptr, 0};
    ccl::on_lane(grid, args.channel, nowhere, nowhere, [&](ccl::Lane& lane) { ccl::compare(grid, args, lane); });
}
