// Team barriers back to back. In every round each thread stores one value at each peer and one in its own heap; after the
// barrier it logs what another thread of each peer stored here, and gets what another thread of the next rank stored
// there.
//
// Buffers alternate by the round's parity. A buffer is written again in round k + 2, after barrier k + 1, which its
// readers of round k enter when they have read.
#include "anabranch/prelude.h"
#include "shmem/shmem.h"
#include "conformance/shmem.h"

// Meetings alone, of each block of the grid in its turn, which it sees at the epoch that the one before has kept.
static ANABRANCH_DEVICE void sync_in_turns(const Grid& grid, const shmem::Context& context, const BarrierArgs& args) {
    for (u32 round = args.first_round; round < args.first_round + args.rounds; ++round) {
        if (round % grid.grid_blocks != grid.block) continue;
        if (grid.thread == 0) {
            shmem::Status status = shmem::Status::OK;
            for (u32 looks = 1; flag_load(grid, args.workspace.epoch) < round && status == shmem::Status::OK; ++looks) {
                if (is_poisoned(grid, context.wait.control)) status = shmem::Status::FAULT;
                grid.relax(looks);
            }
            fence_acquire_device(grid);
        }
        grid.block_barrier();
        shmem::Status status = shmem::team_sync(grid, context, args.workspace);
        if (grid.thread == 0 && status != shmem::Status::OK) private_store(grid, args.statuses, static_cast<u32>(status));
        if (status != shmem::Status::OK) return;
        if (grid.thread == 0) fence_release_device(grid);
    }
}

static ANABRANCH_DEVICE void meet_all(const Grid& grid, const shmem::Context& context, const BarrierArgs& args) {
    u32 threads = grid.block_threads;
    u32 ranks = args.team.size;
    u32 rank = args.team.rank;
    u32 other = (grid.thread + 1) % threads;
    shmem::Status status = shmem::Status::OK;
    for (u32 round = args.first_round; round < args.first_round + args.rounds; ++round) {
        // Threads of a rank are late together, ranks differ from round to round.
        if (args.skew_ns != 0) delay(grid, mixed(round * 64 + rank) % args.skew_ns);

        shmem::Symmetric<u64> slots =
            shmem::Symmetric<u64>{args.slots} + static_cast<u64>(round % 2) * (ranks + 1) * threads;
        shmem::Symmetric<u64> own = slots + static_cast<u64>(ranks) * threads;
        u64 value = mixed((static_cast<u64>(round) * ranks + rank) * threads + grid.thread);
        for (u32 peer = 0; peer < ranks; ++peer) {
            shmem::p(grid, context, slots + static_cast<u64>(rank) * threads + grid.thread, value + peer,
                     shmem::GroupRank{peer});
        }
        heap_store(grid, shmem::own_pointer(grid, context, own) + grid.thread, ~value);

        status = args.kind == 0 ? shmem::team_sync(grid, context, args.workspace)
                                : shmem::team_barrier(grid, context, args.workspace);
        if (status != shmem::Status::OK) break;

        u64* log = args.log + static_cast<u64>(round) * (ranks + 1) * threads;
        for (u32 peer = 0; peer < ranks; ++peer) {
            const u64* from = shmem::own_pointer(grid, context, slots + static_cast<u64>(peer) * threads + other);
            private_store(grid, log + peer * threads + grid.thread, heap_load(grid, from));
        }
        u64 got = shmem::g(grid, context, own + other, shmem::GroupRank{(rank + 1) % ranks});
        private_store(grid, log + ranks * threads + grid.thread, got);
    }
    private_store(grid, args.statuses + grid.thread, static_cast<u32>(status));
}

ANABRANCH_KERNEL(anabranch_shmem_conformance_barrier, BarrierArgs, 256) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, args.first_round);
    if (args.kind == 2) {
        sync_in_turns(grid, context, args);
    } else {
        meet_all(grid, context, args);
    }
}
