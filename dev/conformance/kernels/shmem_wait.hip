// Waiting: comparisons, several words, and a signal that never comes.
#include "anabranch/prelude.h"
#include "shmem/shmem.h"
#include "conformance/shmem.h"

// ---- comparisons: each word has its final value before the kernel starts ------------------------------------
enum CompareResult : u32 { TEST_HOLDS = 1, THREAD_WAITED = 2, WAVE_WAITED = 4, BLOCK_WAITED = 8 };

// One block. What holds must also end a wait of every scope at once; what does not is not waited for.
ANABRANCH_KERNEL(anabranch_shmem_conformance_compare, WaitArgs, 256) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 1);
    for (u32 index = 0; index < args.count; ++index) {
        const CompareCase* one = args.cases + index;
        shmem::Symmetric<u64> word = {private_load(grid, &one->word)};
        u64 value = private_load(grid, &one->value);
        shmem::Compare compare = static_cast<shmem::Compare>(private_load(grid, &one->compare));
        u32 result = 0;
        if (shmem::signal_test(grid, context, word, compare, value)) {
            result = TEST_HOLDS;
            shmem::GroupRank from = context.rank();
            shmem::Status thread = shmem::signal_wait<shmem::Thread>(grid, context, word, compare, value, from);
            shmem::Status wave = shmem::signal_wait<shmem::Wave>(grid, context, word, compare, value, from);
            shmem::Status block = shmem::signal_wait<shmem::Block>(grid, context, word, compare, value, from);
            if (thread == shmem::Status::OK) result |= THREAD_WAITED;
            if (wave == shmem::Status::OK) result |= WAVE_WAITED;
            if (block == shmem::Status::OK) result |= BLOCK_WAITED;
        }
        private_store(grid, args.results + index * grid.block_threads + grid.thread, result);
    }
}

// ---- several words: block 1 signals, block 0 waits ----------------------------------------------------------
// Words: `rounds` arrays for wait_all, then `size` arrays for wait_any, of `size` words each. In round k every rank
// signals its word of array k everywhere; of the later arrays, rank r signals array r only, so wait_any must find r.
static ANABRANCH_DEVICE shmem::Symmetric<u64> array_of_words(const WaitArgs& args, u32 array) {
    return shmem::Symmetric<u64>{args.words} + static_cast<u64>(array) * args.team.size;
}

static ANABRANCH_DEVICE void signal_all(const Grid& grid, const shmem::Context& context, const WaitArgs& args,
                                        u32 array) {
    delay(grid, mixed(array * 64 + context.team.rank) % 20000);
    for (u32 peer = 0; peer < context.size(); ++peer) {
        shmem::signal<shmem::Thread>(grid, context, array_of_words(args, array) + context.team.rank, array + 1,
                                     shmem::SignalOp::SET, shmem::GroupRank{peer});
    }
}

template <class Scope>
static ANABRANCH_DEVICE void wait_several(const Grid& grid, const shmem::Context& context, const WaitArgs& args) {
    u32 arrays = args.rounds + args.team.size;
    for (u32 array = 0; array < arrays; ++array) {
        shmem::Symmetric<u64> words = array_of_words(args, array);
        u32 index = 0;
        shmem::Status status;
        if (array < args.rounds) {
            status = shmem::wait_all<Scope>(grid, context, words, args.team.size, shmem::Compare::GE, array + 1);
            // All words are there, for every lane.
            for (u32 peer = 0; peer < args.team.size; ++peer) {
                if (flag_load(grid, shmem::own_pointer(grid, context, words + peer)) == array + 1) ++index;
            }
        } else {
            status = shmem::wait_any<Scope>(grid, context, words, args.team.size, shmem::Compare::NE, 0, index);
        }
        u32 result = static_cast<u32>(status) << 16 | index;
        private_store(grid, args.results + array * grid.block_threads + grid.thread, result);
    }
}

ANABRANCH_KERNEL(anabranch_shmem_conformance_several, WaitArgs, 256) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 1);
    if (grid.block == 1) {
        if (grid.thread == 0) {
            for (u32 array = 0; array < args.rounds; ++array) signal_all(grid, context, args, array);
            signal_all(grid, context, args, args.rounds + args.team.rank);
        }
    } else if (args.scope == SCOPE_WAVE) {
        if (grid.wave() == 0) wait_several<shmem::Wave>(grid, context, args);
    } else {
        wait_several<shmem::Block>(grid, context, args);
    }
}

// ---- a signal that never comes ------------------------------------------------------------------------------
enum WaitKind : u32 { WAIT_ONE = 0, WAIT_ALL = 1, WAIT_ANY = 2 };

template <class Scope>
static ANABRANCH_DEVICE shmem::Status wait_for_several(const Grid& grid, const shmem::Context& context,
                                                       const WaitArgs& args) {
    shmem::Symmetric<u64> words = {args.words};
    u32 index = 0;
    if (args.kind == WAIT_ALL) {
        return shmem::wait_all<Scope>(grid, context, words, args.count, shmem::Compare::GE, args.value);
    }
    return shmem::wait_any<Scope>(grid, context, words, args.count, shmem::Compare::GE, args.value, index);
}

// Every thread writes its answer: all threads of the scope must have the same. Then it waits again: behind a fault that
// must end at once.
ANABRANCH_KERNEL(anabranch_shmem_conformance_expiry, WaitArgs, 256) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 1);
    for (u32 time = 0; time < 2; ++time) {
        shmem::Symmetric<u64> word = {args.words};
        shmem::GroupRank from = {args.peer};
        shmem::Compare compare = shmem::Compare::GE;
        shmem::Status status = shmem::Status::OK;
        if (args.kind == WAIT_ONE && args.scope == SCOPE_THREAD) {
            status = shmem::signal_wait<shmem::Thread>(grid, context, word, compare, args.value, from);
        } else if (args.kind == WAIT_ONE && args.scope == SCOPE_WAVE) {
            status = shmem::signal_wait<shmem::Wave>(grid, context, word, compare, args.value, from);
        } else if (args.kind == WAIT_ONE) {
            status = shmem::signal_wait<shmem::Block>(grid, context, word, compare, args.value, from);
        } else if (args.scope == SCOPE_WAVE) {
            status = wait_for_several<shmem::Wave>(grid, context, args);
        } else {
            status = wait_for_several<shmem::Block>(grid, context, args);
        }
        private_store(grid, args.results + time * grid.block_threads + grid.thread, static_cast<u32>(status));
    }
}
