// Barriers of a team inside a kernel. One block of the grid calls; all members call in the same order on one workspace,
// also back to back. Each team has its own workspaces.
//
// A workspace is an array of `size` words in flag memory at the same offset on all members, and one word in this rank's
// own device memory, all zero at the start. Word r of the array is written by rank r only. Epochs start at 1, grow by one
// a call, and are advanced by the kernel, so a replayed graph is just another epoch.
//
// Why a flag word may be overwritten. Rank r stores epoch e + 1 after it has passed e, perhaps before this rank has looked
// at e. The wait is for "reached e", which e + 1 satisfies, and rank r cannot pass e + 1 before this rank arrives there.
#pragma once

#include "shmem/order.h"
#include "shmem/wait.h"

namespace shmem {

// Tells a member; behind the caller's release.
//
// Why the word of a member that is reached by NIC does not go back. Any block may meet, another one in each launch, and queue pairs have no
// order among each other: by its own, epoch e + 1 could land before e, the word would go back behind it, and the wait for e + 1 that
// came later would be in vain. So all epochs go by the peer's first queue pair, which writes in the order of its requests; and they are
// put there in order, as a rank stores e + 1 behind the end of its meeting e.
ANABRANCH_DEVICE Status store_epoch(const Grid& grid, const Context& context, u64* flag, u64 epoch, GroupRank peer) {
#if SHMEM_NIC
    if (is_by_nic(grid, context, peer)) {
        const RdmaQueue* entry = first_nic_entry(context, peer);
        return put_value_by_nic(grid, context, entry, flag, epoch);
    }
#else
    static_cast<void>(context);
    static_cast<void>(peer);
#endif
    flag_store(grid, flag, epoch);
    return Status::OK;
}

// Arrival of all members, one hop: each stores its epoch at each other. Before arriving, the block's stores, to its own
// heap and to peers, are released at system scope; after all have arrived, it acquires. So what every member's block has
// stored before is visible to every member's block after. Stores of other blocks count only if the caller has brought
// them in before (`arrive_is_last`). It is not quiet: what copy engines and NICs were given may still be under way.
// All threads of the block call and get the same answer. After a fault the epoch is not advanced and the workspace is
// dead.
ANABRANCH_DEVICE Status team_sync(const Grid& grid, const Context& context, const BarrierWorkspace& workspace) {
    // The lanes of wave 0 store the flags, each behind a fence of its own where the target wants one.
    Block::release_for_first(grid, WAVE_SIZE);
    Status agreed = Status::OK;
    if (grid.wave() == 0) {
        // Lane 0 alone touches the word: it is written below, and the ballots there put no other lane's load before that.
        u64 last = grid.lane() == 0 ? private_load(grid, workspace.epoch) : 0;
        u64 epoch = grid.wave_broadcast64(last, 0) + 1;
        Symmetric<u64> flags = {workspace.flags};
        Status status = Status::OK;
        for (u32 i = grid.lane(); i < context.size(); i += WAVE_SIZE) {
            // Each rank begins behind itself, so that they do not all store to rank 0 first.
            u32 peer = context.team.rank + i;
            peer = peer < context.size() ? peer : peer - context.size();
            u64* flag = reach(grid, context, flags + context.team.rank, GroupRank{peer});
            if (flag == nullptr) {
                status = Status::UNREACHABLE;
            } else {
                Status told = store_epoch(grid, context, flag, epoch, GroupRank{peer});
                status = told == Status::OK ? status : told;
            }
        }
        bool reached = !grid.wave_any(status != Status::OK);
        if (!reached) {
            agreed = grid.wave_any(status == Status::FAULT) ? Status::FAULT : Status::UNREACHABLE;
        } else {
            const u64* own = own_pointer(grid, context, flags);
            for (u32 peer = grid.lane(); peer < context.size() && status == Status::OK; peer += WAVE_SIZE) {
                u64 seen = 0;
                status = from_wait(wait_until(
                    grid, context.wait, PHASE_TEAM_SYNC, peer, epoch, own + peer,
                    [epoch](u64 now) { return has_reached(now, epoch); }, seen));
            }
            fence_acquire_system(grid);
            if (grid.wave_any(status != Status::OK)) {
                agreed = Status::FAULT;
            } else if (grid.lane() == 0) {
                private_store(grid, workspace.epoch, epoch);
            }
        }
    }
    return static_cast<Status>(Block::broadcast(grid, static_cast<u64>(agreed)));
}

// quiet, then team_sync: what the members' blocks have put to anyone before is complete after. Over P2P there is nothing
// to drain but the stores of the block, and team_sync releases those; that release is the quiet. Calls, answers and
// faults as team_sync.
ANABRANCH_DEVICE Status team_barrier(const Grid& grid, const Context& context, const BarrierWorkspace& workspace) {
#if SHMEM_ENGINES || SHMEM_NIC
    // Who has not completed does not tell others that it has come.
    Status status = quiet<Block>(grid, context);
    if (status != Status::OK) return status;
#endif
    return team_sync(grid, context, workspace);
}

}  // namespace shmem
