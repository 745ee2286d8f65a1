// Barriers of a team inside a kernel. One block of the grid calls; all members call in the same order on one workspace,
// also back to back. Each team has its own workspaces.
//
// A workspace is an array of `size` words in flag memory at the same offset on all members, and one word in this rank's
// own device memory, all zero at the start. Word r of the array is written by rank r only. Epochs start at 1, grow by one
// a call, and are advanced by the kernel, so a replayed graph is just another epoch.
//
// Why a flag word may be overwritten. Rank r stores epoch e + 1 after it has passed e, perhaps before this rank has read e. The wait is for
// "reached e", which e + 1 satisfies, and rank r cannot pass e + 1 before this rank arrives there.
#pragma once

#include "shmem/order.h"
#include "shmem/wait.h"

namespace shmem {

// Stores the epoch at a member, after the caller's release.
//
// Why the word of a member that is reached by NIC does not go back. Any block may call the barrier, another one in each launch, and queue
// pairs are not ordered with each other: by queue pairs of the blocks, epoch e could land after e + 1, and a later wait for e + 1 would
// expire. So all epochs go by the peer's first queue pair, which writes in the order of its requests; they are posted in order, because a
// rank posts e + 1 after its barrier e has ended.
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
// stored before is visible to every member's block after. Stores of other blocks count only if the caller has acquired them
// before (`arrive_is_last`). It is not quiet: requests to copy engines and NICs may still be in flight. All threads of the block
// call and get the same status. After a fault the epoch is not advanced and the workspace cannot be used.
ANABRANCH_DEVICE Status team_sync(const Grid& grid, const Context& context, const BarrierWorkspace& workspace) {
    // The lanes of wave 0 store the flags, each after a fence of its own where the target needs one.
    Block::release_for_first(grid, WAVE_SIZE);
    Status agreed = Status::OK;
    if (grid.wave() == 0) {
        // Lane 0 alone touches the word: it is written below, and the ballots there put no other lane's load before that.
        u64 last = grid.lane() == 0 ? private_load(grid, workspace.epoch) : 0;
        u64 epoch = grid.wave_broadcast64(last, 0) + 1;
        Symmetric<u64> flags = {workspace.flags};
        Status status = Status::OK;
        for (u32 i = grid.lane(); i < context.size(); i += WAVE_SIZE) {
            // Each rank begins with itself, so that they do not all store to rank 0 first.
            u32 peer = context.team.rank + i;
            peer = peer < context.size() ? peer : peer - context.size();
            u64* flag = reach(grid, context, flags + context.team.rank, GroupRank{peer});
            if (flag == nullptr) {
                status = Status::UNREACHABLE;
            } else {
                Status stored = store_epoch(grid, context, flag, epoch, GroupRank{peer});
                status = stored == Status::OK ? status : stored;
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

// quiet, then team_sync: what the members' blocks have put to any rank before is complete after. Over P2P only the stores of the
// block are in flight, and team_sync releases them. Callers, status and faults as for team_sync.
ANABRANCH_DEVICE Status team_barrier(const Grid& grid, const Context& context, const BarrierWorkspace& workspace) {
#if SHMEM_ENGINES || SHMEM_NIC
    // A rank whose requests are not complete does not store its epoch.
    Status status = quiet<Block>(grid, context);
    if (status != Status::OK) return status;
#endif
    return team_sync(grid, context, workspace);
}

}  // namespace shmem
