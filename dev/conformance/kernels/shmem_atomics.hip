// Atomics: every thread of every rank works on the same word of each rank that it reaches in the way that is asked for. Old values are
// logged, so that the oracle can tell whether each was handed out once.
#include "anabranch/prelude.h"
#include "shmem/shmem.h"
#include "conformance/shmem.h"

enum AtomicKind : u32 {
    ATOMIC_ADD = 0,
    ATOMIC_FETCH_ADD = 1,
    ATOMIC_OR = 2,
    ATOMIC_AND = 3,
    ATOMIC_XOR = 4,
    ATOMIC_FETCH_BITS = 5,  // or, xor and and of a bit of one's own
    ATOMIC_SWAP = 6,
    ATOMIC_COMPARE_SWAP = 7,
    ATOMIC_SET_FETCH = 8,  // a word of one's own
    ATOMIC_SIGNAL_ADD = 9,
};

// Each thread has a number in the team, and logs three values a round and target.
template <class T>
static ANABRANCH_DEVICE void run_round(const Grid& grid, const shmem::Context& context, const AtomicArgs& args,
                                       shmem::GroupRank peer, u32 number, u64* log) {
    shmem::Symmetric<T> word = {args.words};
    T bit = static_cast<T>(T(1) << (number % (8 * sizeof(T))));
    T old[3] = {0, 0, 0};
    if (args.kind == ATOMIC_ADD) {
        shmem::atomic_add(grid, context, word, static_cast<T>(args.value * (context.team.rank + 1)), peer);
    } else if (args.kind == ATOMIC_FETCH_ADD) {
        old[0] = shmem::atomic_fetch_add(grid, context, word, static_cast<T>(args.value), peer);
    } else if (args.kind == ATOMIC_OR) {
        shmem::atomic_or(grid, context, word, bit, peer);
    } else if (args.kind == ATOMIC_AND) {
        shmem::atomic_and(grid, context, word, static_cast<T>(~bit), peer);
    } else if (args.kind == ATOMIC_XOR) {
        shmem::atomic_xor(grid, context, word, bit, peer);
    } else if (args.kind == ATOMIC_FETCH_BITS) {
        old[0] = shmem::atomic_fetch_or(grid, context, word, bit, peer);
        old[1] = shmem::atomic_fetch_xor(grid, context, word, bit, peer);
        old[2] = shmem::atomic_fetch_and(grid, context, word, static_cast<T>(~bit), peer);
    } else if (args.kind == ATOMIC_SWAP) {
        // A token for each (thread, round): the log's address counts them.
        u64 token = (static_cast<u64>(number) << 16) + static_cast<u64>(log - args.log) % 65536;
        old[0] = shmem::atomic_swap(grid, context, word, static_cast<T>(token + 1), peer);
        old[1] = static_cast<T>(token + 1);
    } else if (args.kind == ATOMIC_COMPARE_SWAP) {
        T seen = shmem::atomic_fetch(grid, context, word, peer);
        for (u32 tries = 0; tries < 1000000; ++tries) {
            T now = shmem::atomic_compare_swap(grid, context, word, seen, static_cast<T>(seen + 1), peer);
            if (now == seen) break;
            seen = now;
            grid.relax(1);
        }
        old[0] = seen;
    } else if (args.kind == ATOMIC_SET_FETCH) {
        T value = static_cast<T>(mixed(args.value + number + static_cast<u64>(log - args.log)));
        shmem::atomic_set(grid, context, word + 2 * number, value, peer);
        old[0] = shmem::atomic_fetch(grid, context, word + 2 * number, peer);
        old[1] = value;
    }
    for (u32 i = 0; i < 3; ++i) private_store(grid, log + i, static_cast<u64>(old[i]));
}

enum AtomicWay : u32 { WAY_MAPPED = 1, WAY_NIC = 2 };

// Whether this run is for the peer: NICs' operations on a word are not atomic with respect to a GPU's.
static ANABRANCH_DEVICE bool is_meant(const Grid& grid, const shmem::Context& context, const AtomicArgs& args,
                                      shmem::GroupRank peer) {
    return (args.ways & (shmem::is_by_nic(grid, context, peer) ? WAY_NIC : WAY_MAPPED)) != 0;
}

template <class T>
static ANABRANCH_DEVICE void run(const Grid& grid, const shmem::Context& context, const AtomicArgs& args) {
    u32 thread = Groups<shmem::Thread>::index(grid);
    if (thread >= args.participants) return;
    u32 number = context.team.rank * args.participants + thread;
    for (u32 round = 0; round < args.rounds; ++round) {
        for (u32 i = 0; i < context.size(); ++i) {
            u32 peer = (context.team.rank + i) % context.size();
            if (!is_meant(grid, context, args, shmem::GroupRank{peer})) continue;
            u64* log = args.log + ((static_cast<u64>(peer) * args.participants + thread) * args.rounds + round) * 3;
            run_round<T>(grid, context, args, shmem::GroupRank{peer}, number, log);
        }
        grid.relax(1);
    }
    shmem::quiet<shmem::Thread>(grid, context);
}

// One signal a round, target, and group of each scope.
static ANABRANCH_DEVICE void add_signals(const Grid& grid, const shmem::Context& context, const AtomicArgs& args) {
    shmem::Symmetric<u64> word = {args.words};
    for (u32 round = 0; round < args.rounds; ++round) {
        for (u32 i = 0; i < context.size(); ++i) {
            shmem::GroupRank peer = {(context.team.rank + i) % context.size()};
            if (!is_meant(grid, context, args, peer)) continue;
            shmem::SignalOp op = shmem::SignalOp::ADD;
            shmem::signal<shmem::Thread>(grid, context, word, args.value, op, peer);
            shmem::signal<shmem::Wave>(grid, context, word + 2, args.value, op, peer);
            shmem::signal<shmem::Block>(grid, context, word + 4, args.value, op, peer);
        }
    }
    shmem::quiet<shmem::Block>(grid, context);
}

ANABRANCH_KERNEL(anabranch_shmem_conformance_atomics, AtomicArgs, 256) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 1);
    if (args.kind == ATOMIC_SIGNAL_ADD) {
        add_signals(grid, context, args);
    } else if (args.element_bytes == 4) {
        if (args.is_signed != 0) {
            run<i32>(grid, context, args);
        } else {
            run<u32>(grid, context, args);
        }
    } else if (args.is_signed != 0) {
        run<i64>(grid, context, args);
    } else {
        run<u64>(grid, context, args);
    }
}
