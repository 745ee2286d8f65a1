// Message passing between all pairs of ranks, round after round, through one slot a pair. Blocks 0 .. R-1 send to rank b,
// blocks R .. 2R-1 receive from rank b - R. The receiver logs what it reads; the oracle compares the log.
//
// Slot reuse: the sender overwrites a slot for round k + 1 after the receiver's signal that it has consumed round k; the
// receiver reads all of the slot, meets, completes (quiet), and then signals.
#include "anabranch/prelude.h"
#include "shmem/shmem.h"
#include "conformance/shmem.h"

enum MessageMode : u32 {
    MESSAGE_PUT_QUIET_SIGNAL = 0,
    MESSAGE_PUT_SIGNAL = 1,
    MESSAGE_PUT_SIGNAL_NBI = 2,
    MESSAGE_PUT_FENCE_SIGNAL = 3,  // thread scope
};

template <class Scope>
static ANABRANCH_DEVICE shmem::Status send_one(const Grid& grid, const shmem::Context& context, const MessageArgs& args,
                                               const u8* staged, shmem::GroupRank peer, u64 round) {
    shmem::Symmetric<u8> slot = {args.slots + static_cast<u64>(context.team.rank) * args.stride};
    shmem::Symmetric<u64> word = shmem::Symmetric<u64>{args.arrived} + context.team.rank;
    shmem::SignalOp op = static_cast<shmem::SignalOp>(args.signal_op);
    u64 value = op == shmem::SignalOp::SET ? round : 1;
    if (args.mode == MESSAGE_PUT_SIGNAL) {
        return shmem::put_signal<Scope>(grid, context, slot, staged, args.bytes, word, value, op, peer);
    }
    if (args.mode == MESSAGE_PUT_SIGNAL_NBI) {
        shmem::Status status =
            shmem::put_signal_nbi<Scope>(grid, context, slot, staged, args.bytes, word, value, op, peer);
        shmem::quiet<Scope>(grid, context, peer);
        return status;
    }
    shmem::Status status = shmem::put<Scope>(grid, context, slot, staged, args.bytes, peer);
    shmem::Status ordered = args.mode == MESSAGE_PUT_FENCE_SIGNAL ? shmem::fence(grid, context, peer)
                                                                   : shmem::quiet<Scope>(grid, context);
    if (status == shmem::Status::OK) status = ordered;
    return status == shmem::Status::OK ? shmem::signal<Scope>(grid, context, word, value, op, peer) : status;
}

template <class Scope>
static ANABRANCH_DEVICE shmem::Status send(const Grid& grid, const shmem::Context& context, const MessageArgs& args,
                                           shmem::GroupRank peer) {
    shmem::Symmetric<u64> consumed = shmem::Symmetric<u64>{args.consumed} + peer.value;
    u8* staged = args.staging + static_cast<u64>(peer.value) * args.stride;
    for (u64 round = 1; round <= args.rounds; ++round) {
        const u8* prepared = args.prepared + ((round - 1) * args.team.size + peer.value) * args.stride;
        // Overwrites what the last put was given: allowed, as it has returned.
        for (u32 i = Scope::lane(grid); i < args.bytes; i += Scope::lanes(grid)) {
            private_store(grid, staged + i, private_load(grid, prepared + i));
        }
        Scope::barrier(grid);
        shmem::Status status =
            shmem::signal_wait<Scope>(grid, context, consumed, shmem::Compare::GE, round - 1, peer);
        if (status == shmem::Status::OK) status = send_one<Scope>(grid, context, args, staged, peer, round);
        if (status != shmem::Status::OK) return status;
    }
    return shmem::Status::OK;
}

template <class Scope>
static ANABRANCH_DEVICE shmem::Status receive(const Grid& grid, const shmem::Context& context, const MessageArgs& args,
                                              shmem::GroupRank peer) {
    shmem::Symmetric<u64> arrived = shmem::Symmetric<u64>{args.arrived} + peer.value;
    shmem::Symmetric<u64> consumed = shmem::Symmetric<u64>{args.consumed} + context.team.rank;
    const u8* slot = shmem::own_pointer(
        grid, context, shmem::Symmetric<u8>{args.slots + static_cast<u64>(peer.value) * args.stride});
    for (u64 round = 1; round <= args.rounds; ++round) {
        shmem::Status status = shmem::signal_wait<Scope>(grid, context, arrived, shmem::Compare::GE, round, peer);
        if (status != shmem::Status::OK) return status;
        u8* log = args.log + ((round - 1) * args.team.size + peer.value) * args.stride;
        for (u32 i = Scope::lane(grid); i < args.bytes; i += Scope::lanes(grid)) {
            private_store(grid, log + i, heap_load(grid, slot + i));
        }
        shmem::quiet<Scope>(grid, context);
        status = shmem::signal<Scope>(grid, context, consumed, round, shmem::SignalOp::SET, peer);
        if (status != shmem::Status::OK) return status;
    }
    // The end of a kernel completes nothing that copy engines and NICs were given.
    return shmem::quiet<Scope>(grid, context, peer);
}

template <class Scope>
static ANABRANCH_DEVICE void run(const Grid& grid, const shmem::Context& context, const MessageArgs& args) {
    bool sends = grid.block < args.team.size;
    shmem::GroupRank peer = {sends ? grid.block : grid.block - args.team.size};
    shmem::Status status =
        sends ? send<Scope>(grid, context, args, peer) : receive<Scope>(grid, context, args, peer);
    if (Scope::lane(grid) == 0) private_store(grid, args.statuses + grid.block, static_cast<u32>(status));
}

ANABRANCH_KERNEL(anabranch_shmem_conformance_message, MessageArgs, 256) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 1);
    if (args.scope == SCOPE_BLOCK) {
        run<shmem::Block>(grid, context, args);
    } else if (args.scope == SCOPE_WAVE) {
        if (grid.wave() == 0) run<shmem::Wave>(grid, context, args);
    } else {
        if (grid.thread == 0) run<shmem::Thread>(grid, context, args);
    }
}
