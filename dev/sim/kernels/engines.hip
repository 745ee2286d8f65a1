// Messages by copy engines or NICs, round after round: every group of the grid (thread, wave or block) sends to and receives from the same
// group of every rank, its own included. All groups put into the queues of all peers, so that each queue has many producers.
//
// Slot reuse: the sender of a round waits until the receiver has consumed the one before.
#include "anabranch/prelude.h"
#include "shmem/shmem.h"

enum EnginesMode : u32 {
    ENGINES_QUIET_SIGNAL = 0,  // put_nbi, quiet, signal
    ENGINES_PUT_SIGNAL = 1,
    ENGINES_PUT_SIGNAL_NBI = 2,  // and quiet, before the source is used again
    ENGINES_GET = 3,             // the receiver pulls
    ENGINES_GET_NBI = 4,         // ... and quiet
    ENGINES_FENCE_SIGNAL = 5,    // put_nbi, fence, an atomic on the word; thread scope
    ENGINES_FENCES_SIGNAL = 6,   // ... the fence for all peers
};
enum ScopeCode : u32 { SCOPE_THREAD = 0, SCOPE_WAVE = 1, SCOPE_BLOCK = 2 };

// Which group of the grid a lane belongs to.
template <class Scope>
static ANABRANCH_DEVICE u32 group_of(const Grid& grid);
template <>
ANABRANCH_DEVICE u32 group_of<shmem::Thread>(const Grid& grid) {
    return grid.block * grid.block_threads + grid.thread;
}
template <>
ANABRANCH_DEVICE u32 group_of<shmem::Wave>(const Grid& grid) { return grid.grid_wave(); }
template <>
ANABRANCH_DEVICE u32 group_of<shmem::Block>(const Grid& grid) { return grid.block; }

static ANABRANCH_DEVICE bool pulls(const EnginesArgs& args) {
    return args.mode == ENGINES_GET || args.mode == ENGINES_GET_NBI;
}

// The place of a group's row for a peer in `[size][groups]`.
static ANABRANCH_DEVICE u64 row_of(const EnginesArgs& args, u32 peer, u32 group) {
    return static_cast<u64>(peer) * args.groups + group;
}

// A word that no other message has.
static ANABRANCH_DEVICE u64 message_word(u32 from, u32 to, u32 group, u64 round, u32 word) {
    return static_cast<u64>(from) << 56 | static_cast<u64>(to) << 48 | static_cast<u64>(group) << 32 | round << 16 | word;
}

template <class Scope>
static ANABRANCH_DEVICE shmem::Status send(const Grid& grid, const shmem::Context& context, const EnginesArgs& args,
                                           u32 group, shmem::GroupRank peer, u64 round) {
    u32 me = context.team.rank;
    u64 row = row_of(args, peer.value, group);
    shmem::Symmetric<u64> consumed = shmem::Symmetric<u64>{args.consumed} + row;
    shmem::Symmetric<u64> arrived = shmem::Symmetric<u64>{args.arrived} + row_of(args, me, group);
    shmem::Symmetric<u64> slot = {args.slots + row_of(args, me, group) * args.words * 8};
    u64* staging = args.staging + row * args.words;
    shmem::SignalOp op = args.adds != 0 ? shmem::SignalOp::ADD : shmem::SignalOp::SET;
    u64 value = args.adds != 0 ? 1 : round;
    shmem::Status status =
        shmem::signal_wait<Scope>(grid, context, consumed, shmem::Compare::GE, round - 1, peer);
    if (status != shmem::Status::OK) return status;
    if (pulls(args)) staging = shmem::own_pointer(grid, context, shmem::Symmetric<u64>{args.outbox}) + row * args.words;
    for (u32 word = Scope::lane(grid); word < args.words; word += Scope::lanes(grid)) {
        u64 said = message_word(me, peer.value, group, round, word);
        if (pulls(args)) {
            heap_store(grid, staging + word, said);
        } else {
            private_store(grid, staging + word, said);
        }
    }
#if SHMEM_NIC
    // A rank's own memory is mapped, and the lanes copy what others of them wrote.
    Scope::barrier(grid);
#endif
    if (args.mode == ENGINES_PUT_SIGNAL) {
        return shmem::put_signal<Scope>(grid, context, slot, staging, args.words, arrived, value, op, peer);
    }
    if (args.mode == ENGINES_PUT_SIGNAL_NBI) {
        status = shmem::put_signal_nbi<Scope>(grid, context, slot, staging, args.words, arrived, value, op, peer);
        return status == shmem::Status::OK ? shmem::quiet<Scope>(grid, context, peer) : status;
    }
    if (!pulls(args)) status = shmem::put_nbi<Scope>(grid, context, slot, staging, args.words, peer);
    if (status != shmem::Status::OK) return status;
    if (args.mode == ENGINES_QUIET_SIGNAL) status = shmem::quiet<Scope>(grid, context);
    if (args.mode == ENGINES_FENCE_SIGNAL) status = shmem::fence(grid, context, peer);
    if (args.mode == ENGINES_FENCES_SIGNAL) status = shmem::fence(grid, context);
    // Nothing is told behind copies that were not done.
    if (args.mode >= ENGINES_FENCE_SIGNAL && status == shmem::Status::OK) {
        // By this lane itself, and not behind the copy in its queue.
        shmem::atomic_add<u64>(grid, context, arrived, 1, peer);
        return shmem::Status::OK;
    }
    return status == shmem::Status::OK ? shmem::signal<Scope>(grid, context, arrived, value, op, peer) : status;
}

template <class Scope>
static ANABRANCH_DEVICE shmem::Status receive(const Grid& grid, const shmem::Context& context, const EnginesArgs& args,
                                              u32 group, shmem::GroupRank peer, u64 round) {
    u32 me = context.team.rank;
    u64 row = row_of(args, peer.value, group);
    shmem::Symmetric<u64> arrived = shmem::Symmetric<u64>{args.arrived} + row;
    shmem::Symmetric<u64> consumed = shmem::Symmetric<u64>{args.consumed} + row_of(args, me, group);
    shmem::Status status = shmem::signal_wait<Scope>(grid, context, arrived, shmem::Compare::GE, round, peer);
    if (status != shmem::Status::OK) return status;
    u64* pulled = args.pulled + row * args.words;
    shmem::Symmetric<u64> outbox = {args.outbox + row_of(args, me, group) * args.words * 8};
    if (args.mode == ENGINES_GET) status = shmem::get<Scope>(grid, context, pulled, outbox, args.words, peer);
    if (args.mode == ENGINES_GET_NBI) {
        status = shmem::get_nbi<Scope>(grid, context, pulled, outbox, args.words, peer);
        if (status == shmem::Status::OK) status = shmem::quiet<Scope>(grid, context, peer);
    }
    if (status != shmem::Status::OK) return status;
    const u64* slot =
        shmem::own_pointer(grid, context, shmem::Symmetric<u64>{args.slots + row * args.words * 8});
    u64* log = args.log + ((round - 1) * args.team.size * args.groups + row) * args.words;
    for (u32 word = Scope::lane(grid); word < args.words; word += Scope::lanes(grid)) {
        u64 said = pulls(args) ? private_load(grid, pulled + word) : heap_load(grid, slot + word);
        private_store(grid, log + word, said);
    }
    Scope::barrier(grid);
    if (Scope::lane(grid) == 0) private_store(grid, args.received + row, round);
    return shmem::signal<Scope>(grid, context, consumed, round, shmem::SignalOp::SET, peer);
}

template <class Scope>
static ANABRANCH_DEVICE void exchange(const Grid& grid, const shmem::Context& context, const EnginesArgs& args) {
    u32 group = group_of<Scope>(grid);
    u32 size = args.team.size;
    shmem::Status status = shmem::Status::OK;
    for (u64 round = 1; round <= args.rounds && status == shmem::Status::OK; ++round) {
        for (u32 step = 0; step < size && status == shmem::Status::OK; ++step) {
            shmem::GroupRank peer = {(args.team.rank + step) % size};
            status = send<Scope>(grid, context, args, group, peer, round);
        }
        for (u32 step = 0; step < size && status == shmem::Status::OK; ++step) {
            shmem::GroupRank peer = {(args.team.rank + size - step) % size};
            status = receive<Scope>(grid, context, args, group, peer, round);
        }
    }
    // The end of a kernel completes nothing that copy engines and NICs were given.
    shmem::Status done = shmem::quiet<Scope>(grid, context);
    if (status == shmem::Status::OK) status = done;
    if (Scope::lane(grid) == 0) private_store(grid, args.statuses + group, static_cast<u64>(status));
}

ANABRANCH_KERNEL(anabranch_sim_engines, EnginesArgs, 64) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 1);
    if (args.scope == SCOPE_BLOCK) {
        exchange<shmem::Block>(grid, context, args);
    } else if (args.scope == SCOPE_WAVE) {
        exchange<shmem::Wave>(grid, context, args);
    } else {
        exchange<shmem::Thread>(grid, context, args);
    }
}
