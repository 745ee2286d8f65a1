// Messages through the device API, round after round, over every pair or to the next rank only. Blocks 0 .. P-1 send, blocks
// P .. 2P-1 receive, P being the number of peers. The receiver logs what it reads; the oracle compares the log.
//
// Slot reuse: each pair has WINDOW slots. Round k uses slot k % WINDOW, and is sent when the receiver has consumed round
// k - WINDOW; so a sender may be WINDOW rounds ahead, and never overwrites what is not read.
#include "anabranch/prelude.h"
#include "shmem/shmem.h"

// Whether messages are sent by put_signal; else by put, then what `form` says, then signal.
#ifndef SIM_PUT_SIGNAL
#error "the kernel is compiled for one way to send: SIM_PUT_SIGNAL is 0 or 1"
#endif
enum MessageForm : u32 {
    FORM_QUIET = 0,
    FORM_FENCE_ONE = 1,  // thread scope
    FORM_FENCE_ALL = 2,  // thread scope
};
enum ScopeCode : u32 { SCOPE_THREAD = 0, SCOPE_WAVE = 1, SCOPE_BLOCK = 2 };
static constexpr u32 WINDOW = 2;

// Where a pair's slot of a round is, at the receiver; `from` is the sender.
static ANABRANCH_DEVICE shmem::Symmetric<u8> slot_of(const MessagesArgs& args, u32 from, u64 round) {
    return {args.slots + (static_cast<u64>(from) * WINDOW + round % WINDOW) * args.stride};
}

template <class Scope>
static ANABRANCH_DEVICE shmem::Status send(const Grid& grid, const shmem::Context& context, const MessagesArgs& args,
                                           shmem::GroupRank peer) {
    u32 me = context.team.rank;
    shmem::Symmetric<u64> arrived = shmem::Symmetric<u64>{args.arrived} + me;
    shmem::Symmetric<u64> consumed = shmem::Symmetric<u64>{args.consumed} + peer.value;
    shmem::Status status = shmem::Status::OK;
    for (u64 round = 1; round <= args.rounds && status == shmem::Status::OK; ++round) {
        bool reused = round > WINDOW;
        if (reused) {
            status = shmem::signal_wait<Scope>(grid, context, consumed, shmem::Compare::GE, round - WINDOW, peer);
        }
        if (status != shmem::Status::OK) break;
        const u8* source = args.prepared + ((round - 1) * args.team.size + peer.value) * args.stride;
        shmem::Symmetric<u8> slot = slot_of(args, me, round);
        bool adds = args.adds != 0;
        shmem::SignalOp op = adds ? shmem::SignalOp::ADD : shmem::SignalOp::SET;
        u64 value = adds ? 1 : round;
        if constexpr (SIM_PUT_SIGNAL != 0) {
            status = shmem::put_signal<Scope>(grid, context, slot, source, args.bytes, arrived, value, op, peer);
        } else {
            status = shmem::put_nbi<Scope>(grid, context, slot, source, args.bytes, peer);
            if (args.form == FORM_QUIET) shmem::quiet<Scope>(grid, context, peer);
            if (args.form == FORM_FENCE_ONE) shmem::fence(grid, context, peer);
            if (args.form == FORM_FENCE_ALL) shmem::fence(grid, context);
            if (status == shmem::Status::OK) status = shmem::signal<Scope>(grid, context, arrived, value, op, peer);
        }
    }
    return status;
}

template <class Scope>
static ANABRANCH_DEVICE shmem::Status receive(const Grid& grid, const shmem::Context& context, const MessagesArgs& args,
                                              shmem::GroupRank peer) {
    shmem::Symmetric<u64> arrived = shmem::Symmetric<u64>{args.arrived} + peer.value;
    shmem::Symmetric<u64> consumed = shmem::Symmetric<u64>{args.consumed} + context.team.rank;
    for (u64 round = 1; round <= args.rounds; ++round) {
        shmem::Status status = shmem::signal_wait<Scope>(grid, context, arrived, shmem::Compare::GE, round, peer);
        if (status != shmem::Status::OK) return status;
        const u8* slot = shmem::own_pointer(grid, context, slot_of(args, peer.value, round));
        u8* log = args.log + ((round - 1) * args.team.size + peer.value) * args.stride;
        for (u32 i = Scope::lane(grid); i < args.bytes; i += Scope::lanes(grid)) {
            private_store(grid, log + i, heap_load(grid, slot + i));
        }
        shmem::quiet<Scope>(grid, context);
        status = shmem::signal<Scope>(grid, context, consumed, round, shmem::SignalOp::SET, peer);
        if (status != shmem::Status::OK) return status;
    }
    return shmem::Status::OK;
}

template <class Scope>
static ANABRANCH_DEVICE void exchange(const Grid& grid, const shmem::Context& context, const MessagesArgs& args) {
    u32 size = args.team.size;
    u32 peers = grid.grid_blocks / 2;
    bool sends = grid.block < peers;
    u32 step = sends ? grid.block : grid.block - peers;
    // With one peer it is the next rank to send to, and the rank before to receive from.
    if (peers == 1) step = sends ? 1 : size - 1;
    shmem::GroupRank peer = {(args.team.rank + step) % size};
    shmem::Status status = sends ? send<Scope>(grid, context, args, peer) : receive<Scope>(grid, context, args, peer);
    if (Scope::lane(grid) == 0) private_store(grid, args.statuses + grid.block, static_cast<u32>(status));
}

ANABRANCH_KERNEL(anabranch_sim_messages, MessagesArgs, 256) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 1);
    if (args.scope == SCOPE_BLOCK) {
        exchange<shmem::Block>(grid, context, args);
    } else if (args.scope == SCOPE_WAVE) {
        if (grid.wave() == 0) exchange<shmem::Wave>(grid, context, args);
    } else {
        if (grid.thread == 0) exchange<shmem::Thread>(grid, context, args);
    }
}
