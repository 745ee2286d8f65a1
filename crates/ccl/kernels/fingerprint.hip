// Compares the calls of all members before data moves: a kernel of one block, launched before the kernel of the call if the communicator
// checks fingerprints. It has a memory of its own with one channel and no packets.
//
// Every member writes its record, the fingerprint of the call and a row, into the staging of every member, passes a barrier, and compares
// all fingerprints with its own. A row holds splits, two words per member, which are compared in pairs, or the first tensors of a list,
// from which the host finds the tensor that differs; the fingerprint contains a digest of the list. All members see the same records, find
// the same difference and fail in the same way: the fault poisons the world, and the kernel of the call returns at its start. meet.h states
// why a half of the staging is free. After a difference no member writes records any more, so that the host can read them.
#include "ccl/meet.h"

namespace ccl {

static constexpr u32 WORDS = sizeof(Fingerprint) / 8;

static ANABRANCH_DEVICE u64 own_word(const FingerprintArgs& args, u32 word) {
    return word < WORDS ? reinterpret_cast<const u64*>(&args.mine)[word] : args.row[word - WORDS];
}

static ANABRANCH_DEVICE u64* message_of(const CommView& comm, u64 base, const Channel& channel, u64 half, u32 source) {
    return reinterpret_cast<u64*>(staging_of(comm, base, channel, half, source));
}

static ANABRANCH_DEVICE void send_to_all(const Grid& grid, const FingerprintArgs& args, const Channel& channel, u64 half) {
    const CommView& comm = args.comm;
    u32 words = WORDS + u32(args.row_words);
    for (u32 i = grid.thread; i < words * comm.team.size; i += grid.block_threads) {
        u32 peer = rotated(comm, i / words), word = i % words;
        u64* message = message_of(comm, member_base(grid, comm, peer), channel, half, comm.team.rank);
        remote_store(grid, message + word, own_word(args, word));
    }
}

// The fault poisons the world. `channel.dead` is not set, because other threads may still read it after the barrier.
static ANABRANCH_DEVICE void differs(const Grid& grid, const Channel& channel, u32 peer, u64 mine, u64 theirs) {
    report_fault(grid, channel.wait, PHASE_FINGERPRINT, peer, mine, theirs, grid.clock_ns() - channel.wait.start_ns);
}

static ANABRANCH_DEVICE void compare_calls(const Grid& grid, const FingerprintArgs& args, const Channel& channel, u64 half) {
    const CommView& comm = args.comm;
    u64 own = member_base(grid, comm, comm.team.rank);
    for (u32 i = grid.thread; i < WORDS * comm.team.size; i += grid.block_threads) {
        u32 peer = i / WORDS, word = i % WORDS;
        u64 mine = own_word(args, word), theirs = heap_load(grid, message_of(comm, own, channel, half, peer) + word);
        if (mine != theirs) differs(grid, channel, peer, mine, theirs);
    }
}

// The elements sent by a member must be the elements that the receiver expects. Every member checks all pairs, so that all members fail.
static ANABRANCH_DEVICE void compare_splits(const Grid& grid, const FingerprintArgs& args, const Channel& channel, u64 half) {
    const CommView& comm = args.comm;
    u32 size = comm.team.size;
    u64 own = member_base(grid, comm, comm.team.rank);
    for (u32 i = grid.thread; i < size * size && args.mine.uneven != 0; i += grid.block_threads) {
        u32 from = i / size, to = i % size;
        u64 sent = heap_load(grid, message_of(comm, own, channel, half, from) + WORDS + 2 * to);
        u64 expected = heap_load(grid, message_of(comm, own, channel, half, to) + WORDS + 2 * from + 1);
        if (sent != expected) differs(grid, channel, from, expected, sent);
    }
}

static ANABRANCH_DEVICE void compare(const Grid& grid, const FingerprintArgs& args, Channel& channel) {
    u64 half = next_half(channel);  // the number of the meeting that follows has the same parity
    send_to_all(grid, args, channel, half);
    meet(grid, args.comm, channel);
    if (channel.dead) return;
    compare_calls(grid, args, channel, half);
    compare_splits(grid, args, channel, half);
}

}  // namespace ccl

ANABRANCH_KERNEL(anabranch_ccl_fingerprint, FingerprintArgs, 1024) {
    BufferView nowhere = {};
    ccl::on_channel(grid, args.comm, nowhere, nowhere, [&](ccl::Channel& channel) { ccl::compare(grid, args, channel); });
}
