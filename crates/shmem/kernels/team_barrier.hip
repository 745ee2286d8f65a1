// A barrier of all members of a team, in the order of a stream. One block. Its argument is in team_barrier.md.
#include "anabranch/prelude.h"

static ANABRANCH_DEVICE void meet(const Grid& grid, const TeamBarrierArgs& args) {
    const TeamView& team = args.team;
    u64 epoch = private_load(grid, args.epoch) + 1;
    WaitContext wait = wait_context(grid, team.control, args.operation, team.group, team.rank, epoch);

    // Each thread releases what came before it on this stream, then stores its own flags.
    fence_release_system(grid);
    for (u32 peer = grid.thread; peer < team.size; peer += grid.block_threads) {
        u64 base = private_load(grid, team.peer_bases + peer);
        flag_store(grid, reinterpret_cast<u64*>(base + args.flags) + team.rank, epoch);
    }

    u64 own = private_load(grid, team.peer_bases + team.rank);
    const u64* flags = reinterpret_cast<const u64*>(own + args.flags);
    auto ready = [=](u64 value) { return has_reached(value, epoch); };
    bool arrived = true;
    for (u32 peer = grid.thread; peer < team.size && arrived; peer += grid.block_threads) {
        u64 seen;
        arrived = wait_until(grid, wait, 0, peer, epoch, flags + peer, ready, seen) == WAIT_OK;
    }
    acquire_after_wait(grid);
    grid.block_barrier();
    // After a fault the world stays poisoned and the epoch is not read again.
    if (grid.thread == 0) private_store(grid, args.epoch, epoch);
}

ANABRANCH_KERNEL(anabranch_team_barrier, TeamBarrierArgs, 256) {
    // One answer for the whole block: the meeting at the end must not be missed by some of its threads.
    bool poisoned = grid.thread == 0 && is_poisoned(grid, args.team.control);
    if (grid.block_broadcast(poisoned ? 1 : 0) == 0) meet(grid, args);
}

// One signal, in the order of a stream: what came before it there is visible to a reader that sees the word. One block; thread 0
// works, since it is one word.
ANABRANCH_KERNEL(anabranch_team_signal, TeamSignalArgs, 256) {
    if (grid.thread != 0 || is_poisoned(grid, args.team.control)) return;
    fence_release_system(grid);
    u64* word = reinterpret_cast<u64*>(args.word);
    if (args.how == 0) {
        flag_store(grid, word, args.value);
    } else {
        fetch_add_system(grid, word, args.value);
    }
}

// Waits in the order of a stream until the own word is at least the value (signed difference, as epochs are compared). One
// block; thread 0 waits, and what follows on the stream is ordered behind it by the kernel's end.
ANABRANCH_KERNEL(anabranch_team_signal_wait, TeamSignalArgs, 256) {
    if (grid.thread != 0 || is_poisoned(grid, args.team.control)) return;
    u64 target = args.value;
    WaitContext wait = wait_context(grid, args.team.control, args.operation, args.team.group, args.team.rank, target);
    u64 seen;
    wait_until(grid, wait, 0, args.how, target, reinterpret_cast<const u64*>(args.word),
               [target](u64 value) { return has_reached(value, target); }, seen);
    acquire_after_wait(grid);
}
