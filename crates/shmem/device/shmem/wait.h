// Waiting for signals on this rank. Every wait has the world's budget, counted from the making of the context, and looks
// at the abort word; if the budget ends or the world is poisoned, the fault record names the peer that should have signalled, and all
// lanes of the scope get Status::FAULT. After a fault a kernel skips its work and ends.
//
// After success the lanes that poll acquire at system scope, and a barrier follows: then all lanes of the scope may read
// what was put before the signals.
#pragma once

#include "shmem/signal.h"

namespace shmem {

ANABRANCH_DEVICE Status from_wait(WaitStatus status) { return status == WAIT_OK ? Status::OK : Status::FAULT; }

// Waits until the own word compares so with `value`. `from` is the rank that signals it, for the fault record. All lanes of the
// scope call and get the same status; it is also a barrier of the scope.
template <class Scope>
ANABRANCH_DEVICE Status signal_wait(const Grid& grid, const Context& context, Symmetric<u64> word, Compare compare,
                                    u64 value, GroupRank from) {
    Status status = Status::OK;
    if (Scope::lane(grid) == 0) {
        const u64* at = reach_word(grid, context, word, context.rank());
        if (at == nullptr) {
            status = Status::UNREACHABLE;
        } else {
            u64 seen = 0;
            status = from_wait(wait_until(
                grid, context.wait, PHASE_SIGNAL_WAIT, from.value, value, at,
                [compare, value](u64 now) { return holds(compare, now, value); }, seen));
            acquire_after_wait(grid);
        }
    }
    // A broadcast by shuffle orders no memory: the barrier orders the other lanes' reads.
    Scope::barrier(grid);
    return static_cast<Status>(Scope::broadcast(grid, static_cast<u64>(status)));
}

// Word i of several is signalled by rank i.
struct WordOfRank {
    ANABRANCH_DEVICE GroupRank operator()(u32 index) const { return GroupRank{index}; }
};

// The waits for several words poll with the lanes of one wave, each lane its own words; in a block that is wave 0.
template <class Scope>
struct Pollers;
template <>
struct Pollers<Wave> {
    static ANABRANCH_DEVICE bool polls(const Grid&) { return true; }
    static ANABRANCH_DEVICE u64 tell(const Grid&, u64 value) { return value; }
};
template <>
struct Pollers<Block> {
    static ANABRANCH_DEVICE bool polls(const Grid& grid) { return grid.wave() == 0; }
    static ANABRANCH_DEVICE u64 tell(const Grid& grid, u64 value) { return grid.block_broadcast(value); }
};

// Waits until each of the own words `first`, `first + 1`, ... (`count`) compares so with `value`; `signaller(i)` is the
// GroupRank that signals word i. Wave or block, all lanes, equal arguments; it is also a barrier of the scope. Zero
// words: OK.
template <class Scope, class Signaller = WordOfRank>
ANABRANCH_DEVICE Status wait_all(const Grid& grid, const Context& context, Symmetric<u64> first, u32 count,
                                 Compare compare, u64 value, Signaller signaller = Signaller{}) {
    Status agreed = Status::OK;
    if (Pollers<Scope>::polls(grid)) {
        const u64* words = reach_word(grid, context, first, context.rank());
        Status status = words == nullptr ? Status::UNREACHABLE : Status::OK;
        for (u32 i = grid.lane(); i < count && status == Status::OK; i += WAVE_SIZE) {
            u64 seen = 0;
            status = from_wait(wait_until(
                grid, context.wait, PHASE_WAIT_ALL, signaller(i).value, value, words + i,
                [compare, value](u64 now) { return holds(compare, now, value); }, seen));
        }
        acquire_after_wait(grid);
        // A ballot orders no memory: the other lanes' reads come behind the barrier.
        grid.wave_barrier();
        if (grid.wave_any(status != Status::OK)) agreed = words == nullptr ? Status::UNREACHABLE : Status::FAULT;
    }
    return static_cast<Status>(Pollers<Scope>::tell(grid, static_cast<u64>(agreed)));
}

// Waits until at least one of the own words compares so with `value`, and stores which in `index` (the same in all lanes;
// not written on a fault or when `count` is 0, which is a fault). Otherwise as wait_all. A caller that waits again for the
// others leaves the word out, or asks for a higher value.
template <class Scope, class Signaller = WordOfRank>
ANABRANCH_DEVICE Status wait_any(const Grid& grid, const Context& context, Symmetric<u64> first, u32 count,
                                 Compare compare, u64 value, u32& index, Signaller signaller = Signaller{}) {
    static constexpr u64 FAULT = ~u64(0);
    u64 found = FAULT;
    const u64* words = reach_word(grid, context, first, context.rank());
    if (words == nullptr) return Status::UNREACHABLE;
    if (Pollers<Scope>::polls(grid)) {
        for (u32 spins = 1;; ++spins) {
            u32 mine = 0;
            u64 seen = 0;
            bool ready = false;
            for (u32 i = grid.lane(); i < count && !ready; i += WAVE_SIZE) {
                seen = flag_load(grid, words + i);
                ready = holds(compare, seen, value);
                mine = i;
            }
            u64 lanes = grid.ballot(ready);
            if (lanes != 0) {
                u32 winner = count_bits((lanes - 1) & ~lanes);  // the lowest lane
                found = grid.wave_broadcast(mine, winner);
                break;
            }
            if (spins % SPINS_PER_CHECK == 0 || count == 0) {
                // One lane looks and decides; the others follow.
                bool over = false;
                if (grid.lane() == 0) {
                    u64 waited = grid.clock_ns() - context.wait.start_ns;
                    over = is_poisoned(grid, context.wait.control);
                    if (!over && (count == 0 || waited > flag_load(grid, &context.wait.control->budget_ns))) {
                        report_fault(grid, context.wait, PHASE_WAIT_ANY, signaller(0).value, value, seen, waited);
                        over = true;
                    }
                }
                if (grid.wave_any(over)) break;
            }
            grid.relax(spins);
        }
        fence_acquire_system(grid);
        grid.wave_barrier();
    }
    found = Pollers<Scope>::tell(grid, found);
    if (found == FAULT) return Status::FAULT;
    index = static_cast<u32>(found);
    return Status::OK;
}

}  // namespace shmem
