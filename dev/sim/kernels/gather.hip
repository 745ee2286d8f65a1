// Every rank puts a row to every rank and signals; everyone waits for all of them in one of the forms that wait for several
// words, and reads all rows with all lanes of the scope. Block 1 sends, block 0 gathers. No row is used twice.
#include "anabranch/prelude.h"
#include "shmem/shmem.h"

enum GatherForm : u32 {
    GATHER_ALL_WAVE = 0,   // wait_all by a wave
    GATHER_ALL_BLOCK = 1,  // wait_all by a block
    GATHER_ANY_WAVE = 2,   // wait_any by a wave, for the one rank that signals in this round
    GATHER_ANY_BLOCK = 3,
    GATHER_TEST = 4,       // signal_test by one thread, which reads
    GATHER_SUM = 5,        // all ranks add to one word; signal_wait by a block
};

static ANABRANCH_DEVICE shmem::Symmetric<u64> row_of(const GatherArgs& args, u32 round, u32 from) {
    return shmem::Symmetric<u64>{args.rows} + (static_cast<u64>(round) * args.team.size + from) * args.words;
}
static ANABRANCH_DEVICE shmem::Symmetric<u64> flag_of(const GatherArgs& args, u32 round, u32 from) {
    bool sums = args.form == GATHER_SUM;
    u64 place = sums ? 0 : static_cast<u64>(round) * args.team.size + from;
    return shmem::Symmetric<u64>{args.flags} + place;
}
static ANABRANCH_DEVICE bool is_any(const GatherArgs& args) {
    return args.form == GATHER_ANY_WAVE || args.form == GATHER_ANY_BLOCK;
}

// The whole block, so that each wave's part is behind its own release.
static ANABRANCH_DEVICE void send(const Grid& grid, const shmem::Context& context, const GatherArgs& args) {
    u32 me = context.team.rank;
    for (u32 round = 0; round < args.rounds; ++round) {
        if (is_any(args) && round % args.team.size != me) continue;
        for (u32 peer = 0; peer < context.size(); ++peer) {
            const u64* source = args.prepared + static_cast<u64>(round) * args.words;
            shmem::SignalOp op = args.form == GATHER_SUM ? shmem::SignalOp::ADD : shmem::SignalOp::SET;
            shmem::put_signal<shmem::Block>(grid, context, row_of(args, round, me), source, args.words,
                                            flag_of(args, round, me), 1, op, shmem::GroupRank{peer});
        }
    }
}

// Looks again and again at each word, for as long as the world lets a wait take.
static ANABRANCH_DEVICE shmem::Status test_each(const Grid& grid, const shmem::Context& context, const GatherArgs& args,
                                                u32 round) {
    for (u32 from = 0; from < context.size(); ++from) {
        bool here = false;
        u64 budget = flag_load(grid, &context.wait.control->budget_ns);
        for (u32 looks = 1; !here && grid.clock_ns() - context.wait.start_ns < budget; ++looks) {
            here = shmem::signal_test(grid, context, flag_of(args, round, from), shmem::Compare::GE, 1);
            if (!here) grid.relax(looks);
        }
        if (!here) return shmem::Status::FAULT;
    }
    return shmem::Status::OK;
}

template <class Scope>
static ANABRANCH_DEVICE void log_row(const Grid& grid, const shmem::Context& context, const GatherArgs& args, u32 round,
                                     u32 from) {
    const u64* row = shmem::own_pointer(grid, context, row_of(args, round, from));
    u64* log = args.log + (static_cast<u64>(round) * args.team.size + from) * args.words;
    for (u32 i = Scope::lane(grid); i < args.words; i += Scope::lanes(grid)) {
        private_store(grid, log + i, heap_load(grid, row + i));
    }
}

template <class Scope>
static ANABRANCH_DEVICE void gather_several(const Grid& grid, const shmem::Context& context, const GatherArgs& args) {
    shmem::Status status = shmem::Status::OK;
    for (u32 round = 0; round < args.rounds && status == shmem::Status::OK; ++round) {
        shmem::Symmetric<u64> flags = flag_of(args, round, 0);
        u32 index = 0;
        if (is_any(args)) {
            status = shmem::wait_any<Scope>(grid, context, flags, args.team.size, shmem::Compare::GE, 1, index);
            log_row<Scope>(grid, context, args, round, index);
        } else {
            status = shmem::wait_all<Scope>(grid, context, flags, args.team.size, shmem::Compare::GE, 1);
            for (u32 from = 0; from < args.team.size; ++from) log_row<Scope>(grid, context, args, round, from);
        }
    }
    if (Scope::lane(grid) == 0) private_store(grid, args.status, static_cast<u32>(status));
}

// One word for all ranks, or one look at a time.
template <class Scope>
static ANABRANCH_DEVICE void gather_each(const Grid& grid, const shmem::Context& context, const GatherArgs& args) {
    shmem::Status status = shmem::Status::OK;
    for (u32 round = 0; round < args.rounds && status == shmem::Status::OK; ++round) {
        if (args.form == GATHER_TEST) {
            status = test_each(grid, context, args, round);
        } else {
            // Ranks run ahead, so a sum tells that all rounds are here only when it is the last.
            u64 all = static_cast<u64>(args.rounds) * args.team.size;
            status = shmem::signal_wait<Scope>(grid, context, flag_of(args, 0, 0), shmem::Compare::GE, all,
                                               shmem::GroupRank{0});
        }
        for (u32 from = 0; from < args.team.size; ++from) log_row<Scope>(grid, context, args, round, from);
    }
    if (Scope::lane(grid) == 0) private_store(grid, args.status, static_cast<u32>(status));
}

ANABRANCH_KERNEL(anabranch_sim_gather, GatherArgs, 256) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 1);
    bool wave = args.form == GATHER_ALL_WAVE || args.form == GATHER_ANY_WAVE;
    if (grid.block == 1) {
        send(grid, context, args);
    } else if (args.form == GATHER_TEST) {
        if (grid.thread == 0) gather_each<shmem::Thread>(grid, context, args);
    } else if (args.form == GATHER_SUM) {
        gather_each<shmem::Block>(grid, context, args);
    } else if (wave) {
        if (grid.wave() == 0) gather_several<shmem::Wave>(grid, context, args);
    } else {
        gather_several<shmem::Block>(grid, context, args);
    }
}
