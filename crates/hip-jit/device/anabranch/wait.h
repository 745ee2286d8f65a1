// The one way to wait. Every wait has a budget that counts from the kernel's start, and an abort word. When the budget is spent or the
// abort word is set, the fault record names the rank that was waited for, and kernels return early with zero counts. They never trap, and
// never spin without a limit.
//
// WaitControl lies in device memory (polling over PCIe would cost a microsecond); FaultRecord lies in pinned host
// memory, so that the host can read it while the kernel is still there. Both are declared in hip-jit/src/control.rs.
//
// With NOTE_WAITS, block 0 notes its waits that last in a ring in pinned host memory, which shmem/src/wait_trace.rs reads. A variant: in one kernel
// for both, collectives of some microseconds were 2 to 5 % slower on H200.
#pragma once

enum WaitStatus : u32 {
    WAIT_OK = 0,
    WAIT_FAULT = 1,  // timed out or aborted; the record says which
};

static constexpr u32 FAULT_EMPTY = 0;
static constexpr u32 FAULT_COMPLETE = 2;
static constexpr u64 ABORT_NONE = 0;
static constexpr u64 ABORT_TIMED_OUT = 1;
// Spins between two looks at the clock and the abort word.
#if defined(ANABRANCH_TARGET_HOST)
static constexpr u32 SPINS_PER_CHECK = 1;
#else
static constexpr u32 SPINS_PER_CHECK = 256;
#endif

// Notes in the ring, as in hip-jit/src/control.rs, and the polls after which a wait is noted.
static constexpr u64 WAIT_NOTES = 65536;
static constexpr u32 SPINS_BEFORE_NOTE = 8;

// What a kernel knows about its waits. Made once at its start, by every thread that may wait.
struct WaitContext {
    WaitControl* control;
    u64 start_ns;
    u64 epoch;
    u64 group;
    u32 operation;
    u32 rank;  // my rank in the group
};

// Whether the world was poisoned before: asked at kernel entry, so that launches after a fault end at once.
ANABRANCH_DEVICE bool is_poisoned(const Grid& grid, const WaitControl* control) {
    return flag_load(grid, &control->abort) != ABORT_NONE;
}

ANABRANCH_DEVICE WaitContext wait_context(const Grid& grid, WaitControl* control, u32 operation, u64 group, u32 rank,
                                          u64 epoch) {
    return WaitContext{control, grid.clock_ns(), epoch, group, operation, rank};
}

// Writes the first fault of the world and poisons it. Later faults are consequences and only poison.
ANABRANCH_DEVICE void report_fault(const Grid& grid, const WaitContext& wait, u32 phase, u32 peer, u64 expected,
                                   u64 seen, u64 waited_ns) {
    if (fetch_add_device(grid, &wait.control->claimed, 1u) == 0) {
        FaultRecord* record = private_load(grid, &wait.control->fault);
        remote_store(grid, &record->operation, wait.operation);
        remote_store(grid, &record->phase, phase);
        remote_store(grid, &record->epoch, wait.epoch);
        remote_store(grid, &record->peer, peer);
        remote_store(grid, &record->rank, wait.rank);
        remote_store(grid, &record->group, wait.group);
        remote_store(grid, &record->expected, expected);
        remote_store(grid, &record->seen, seen);
        remote_store(grid, &record->waited_ns, waited_ns);
        fence_release_system(grid);
        flag_store(grid, &record->state, static_cast<u64>(FAULT_COMPLETE));
    }
    flag_store(grid, &wait.control->abort, ABORT_TIMED_OUT);
}

#if defined(NOTE_WAITS)
// Writes a note. The host takes one whose number it finds before and after the rest.
ANABRANCH_DEVICE void note_wait(const Grid& grid, const WaitContext& wait, WaitNote* notes, u32 phase, u32 peer,
                                u64 begin_ns) {
    u64 index = fetch_add_device(grid, &wait.control->noted, static_cast<u64>(1));
    WaitNote* note = notes + index % WAIT_NOTES;
    flag_store(grid, &note->number, static_cast<u64>(0));
    fence_release_system(grid);
    remote_store(grid, &note->group, wait.group);
    remote_store(grid, &note->epoch, wait.epoch);
    remote_store(grid, &note->begin_ns, begin_ns);
    remote_store(grid, &note->end_ns, grid.clock_ns());
    remote_store(grid, &note->operation, wait.operation);
    remote_store(grid, &note->phase, phase);
    remote_store(grid, &note->peer, peer);
    fence_release_system(grid);
    flag_store(grid, &note->number, index + 1);
}
#endif

// A wait for a flag after which nothing is read may be RELAXED: it acquires nothing.
enum WaitOrder : u32 { ACQUIRE, RELAXED };

// Who has not come, and what was seen of it.
struct Missing {
    u32 peer;
    u64 expected;
    u64 seen;
};

// A wait of this thread, and its note where it lasts. The trace may end meanwhile; the ring stays.
struct NotedWait {
    const Grid& grid;
    const WaitContext& wait;
    u32 phase;
#if defined(NOTE_WAITS)
    u32 peer = 0;
    u64 from_ns = 0;
    WaitNote* notes = nullptr;

    template <class Who> ANABRANCH_DEVICE void polled(u32 spins, Who missing) {
        if (spins % SPINS_BEFORE_NOTE != 0 || grid.block != 0) return;
        if (notes == nullptr) {
            if (spins != SPINS_BEFORE_NOTE) return;
            notes = reinterpret_cast<WaitNote*>(flag_load(grid, &wait.control->notes));
            if (notes == nullptr) return;
            from_ns = grid.clock_ns();
        }
        peer = missing().peer;
    }
    // Inside the loop: lanes of a wave may leave it together.
    ANABRANCH_DEVICE bool ended(bool is_there) {
        if (is_there && notes != nullptr) note_wait(grid, wait, notes, phase, peer, from_ns);
        return is_there;
    }
#else
    template <class Who> ANABRANCH_DEVICE void polled(u32, Who) {}
    ANABRANCH_DEVICE bool ended(bool is_there) { return is_there; }
#endif
};

// Spins until `look()` is true, the budget is spent, or the world is poisoned. `missing()` is asked for faults and notes.
// What was seen orders nothing else: what it carries is in the words themselves, or an acquire has to follow.
template <class Look, class Who>
ANABRANCH_DEVICE WaitStatus wait_for(const Grid& grid, const WaitContext& wait, u32 phase, Look look, Who missing) {
    NotedWait noted{grid, wait, phase};
    for (u32 spins = 1;; ++spins) {
        if (noted.ended(look())) return WAIT_OK;
        noted.polled(spins, missing);
        if (spins % SPINS_PER_CHECK == 0) {
            if (is_poisoned(grid, wait.control)) return WAIT_FAULT;
            u64 waited = grid.clock_ns() - wait.start_ns;
            if (waited > flag_load(grid, &wait.control->budget_ns)) {
                Missing who = missing();
                report_fault(grid, wait, phase, who.peer, who.expected, who.seen, waited);
                return WAIT_FAULT;
            }
        }
        grid.relax(spins);
    }
}

// What `look` returns after it did something that other lanes of its wave wait for. Lanes of a wave may run in lock step. A compiler may move
// the last statement of a loop after the loop, and a lane that left would then wait there for the others. An opaque condition prevents it.
// On NVIDIA the lanes go on by themselves.
ANABRANCH_DEVICE bool stays_inside() {
    return target::opaque(1) != 0;
}
// The same index, of which the compiler knows nothing. For loops of many accesses, compilers for AMD keep all their addresses from pass to
// pass, in more registers than there are, unless the index is hidden.
ANABRANCH_DEVICE u64 hidden(u64 index) { return target::opaque(index); }

// `wait_for` for one word: spins until `ready(word)`. `seen` gets the last value read. What the flag's writer released may be
// read after `acquire_after_wait`, by this thread, and by its block after a block barrier.
template <WaitOrder ORDER = ACQUIRE, class Ready>
ANABRANCH_DEVICE WaitStatus wait_until(const Grid& grid, const WaitContext& wait, u32 phase, u32 peer, u64 expected,
                                       const u64* word, Ready ready, u64& seen) {
    return wait_for(
        grid, wait, phase,
        [&]() {
            seen = ORDER == ACQUIRE ? flag_load_for_wait(grid, word) : flag_load(grid, word);
            return ready(seen);
        },
        [&]() { return Missing{peer, expected, seen}; });
}

// Every thread that has waited, once after all its waits. Where the polling load itself acquires there is nothing to do.
ANABRANCH_DEVICE void acquire_after_wait(const Grid& grid) {
#if ANABRANCH_POLL_ACQUIRES
    (void)grid;
#else
    fence_acquire_system(grid);
#endif
}

// ---- flags that carry an epoch and a count ------------------------------------------------------------------
ANABRANCH_DEVICE u64 pack_flag(u32 epoch, u32 count) { return (static_cast<u64>(count) << 32) | epoch; }
ANABRANCH_DEVICE u32 flag_epoch(u64 flag) { return static_cast<u32>(flag); }
ANABRANCH_DEVICE u32 flag_count(u64 flag) { return static_cast<u32>(flag >> 32); }

// Whether a monotonic 64-bit counter has come to `target`, also across its wrap.
ANABRANCH_DEVICE bool has_reached(u64 value, u64 target) {
    return static_cast<i64>(value - target) >= 0;
}
// The same for the epoch in a flag that carries a count.
ANABRANCH_DEVICE bool flag_has_reached(u64 flag, u32 epoch) {
    return static_cast<i32>(flag_epoch(flag) - epoch) >= 0;
}
