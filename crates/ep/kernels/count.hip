// The first kernel of a compact dispatch: every rank learns where its rows begin at every other, so that the second kernel
// (`dispatch.hip`) sends each copy straight to its final row.
//
// Writers. Every rank has a matrix of words, [source][destination]. Rank s reports to every rank, in row [s] there, how many
// of its tokens go where; a word holds {epoch, count} and is its own flag, so nothing is released before it and nothing is
// acquired after it. At each destination the rows of a source lie after those of the ranks before it, and the window has
// `rows`: what the ranks before leave is this rank's capacity there.
//
// Each rank waits for all words, also for words of later ranks, which it does not need. Every rank sends its words before it waits, so a
// missing word names the rank that failed, and not a rank that waits for it.
//
// Why a word is not overwritten too early. Rank s writes its words of epoch e + 1 after its combine e on the slot (slot
// order, see `dispatch.hip`). Combine e at s ended after it saw d's combine flag of epoch e, which d sent after its own count
// of epoch e had ended (stream order at d), and that has read every word.
// Why an old word is not taken for a new one: its epoch must equal the one waited for. The epoch is the dispatch's: this
// kernel reads it, the second one advances it, later on the same stream.
//
// The tally is in this rank's own memory, zero between launches: blocks add to it before they are counted, and the last block
// swaps the sums for zeros after that. The second kernel reads `bases` and `capacity` later on the same stream; after a fault it finds
// the world poisoned, and uses neither.
#include "anabranch/prelude.h"
#include "ep/routing.h"
#include "ep/token_count.h"

enum CountPhase : u32 { COUNT_WAIT_WORD = 1, COUNT_WORD_OVERRUN = 2 };

// Local memory, u32[R] each: copies for each rank, and copies of the ranks before this one. The plan computes the same size
// (`count_local_bytes`).
struct CountLocal {
    LocalArray<u32> tally;
    LocalArray<u32> before;

    static ANABRANCH_DEVICE CountLocal at(u32 ranks) { return CountLocal{{0}, {ranks * 4}}; }
};

static ANABRANCH_DEVICE u64 word_at(const CountArgs& args, u64 base, u32 source, u32 destination) {
    return base + args.matrix_offset + static_cast<u64>(source) * args.matrix_stride + static_cast<u64>(destination) * 8;
}

// Adds this block's share of the tokens to the tally.
static ANABRANCH_DEVICE void tally_share(const Grid& grid, const CountArgs& args, const CountLocal& local, u32 tokens) {
    u32 first = static_cast<u32>(static_cast<u64>(tokens) * grid.block / grid.grid_blocks);
    u32 end = static_cast<u32>(static_cast<u64>(tokens) * (grid.block + 1) / grid.grid_blocks);
    count_tokens<CallerIds>(grid, args.placement, args.ids, CallerIds::stride(args.top_k), args.top_k, args.team.rank, local.tally, first, end);
    grid.block_barrier();
    for (u32 peer = grid.thread; peer < args.team.size; peer += grid.block_threads) {
        u32 count = local.tally.get(grid, peer);
        fetch_add_device(grid, args.tally + peer, count);
    }
}

// The last block: reports to every rank, and learns from every rank.
static ANABRANCH_DEVICE void exchange_words(const Grid& grid, const CountArgs& args, const CountLocal& local,
                                            const WaitContext& wait) {
    u32 ranks = args.team.size;
    u32 rank = args.team.rank;
    u32 epoch = static_cast<u32>(wait.epoch);
    for (u32 peer = grid.thread; peer < ranks; peer += grid.block_threads) {
        local.tally.set(grid, peer, swap_system(grid, args.tally + peer, 0u));
    }
    grid.block_barrier();
    for (u32 word = grid.thread; word < ranks * ranks; word += grid.block_threads) {
        // Rotated, so that the ranks do not all write to rank 0 first.
        u32 peer = rotated(rank, ranks, word / ranks);
        u32 count = local.tally.get(grid, word % ranks);
        u64* flag = reinterpret_cast<u64*>(word_at(args, private_load(grid, args.team.peer_bases + peer), rank, word % ranks));
        // lint: allow(flag-after-barrier): the word is its own payload; no other store is published by it
        flag_store(grid, flag, pack_flag(epoch, count));
    }
    u64 own = private_load(grid, args.team.peer_bases + rank);
    for (u32 word = grid.thread; word < ranks * ranks; word += grid.block_threads) {
        u32 source = word / ranks;
        const u64* flag = reinterpret_cast<const u64*>(word_at(args, own, source, word % ranks));
        u64 seen = 0;
        WaitStatus status = wait_until<RELAXED>(
            grid, wait, COUNT_WAIT_WORD, source, epoch, flag,
            [epoch](u64 value) { return flag_has_reached(value, epoch); }, seen);
        if (status == WAIT_OK && flag_epoch(seen) != epoch) {
            report_fault(grid, wait, COUNT_WORD_OVERRUN, source, epoch, seen, 0);
        }
        if (source < rank) local.before.fetch_add(grid, word % ranks, flag_count(seen));
    }
    grid.block_barrier();
    for (u32 peer = grid.thread; peer < ranks; peer += grid.block_threads) {
        u32 base = minimum(local.before.get(grid, peer), args.rows);
        private_store(grid, args.bases + peer, base);
        private_store(grid, args.capacity + peer, args.rows - base);
    }
}

// The whole block comes here, or none of it.
static ANABRANCH_DEVICE void count_and_exchange(const Grid& grid, const CountArgs& args, const CountLocal& local, u64 epoch) {
    WaitContext wait = wait_context(grid, args.team.control, args.operation, args.team.group, args.team.rank, epoch);
    u32 given = given_tokens(grid, args);
    tally_share(grid, args, local, minimum(given, args.token_count));
    bool last = arrive_is_last(grid, &args.state->count_arrived, grid.grid_blocks);
    if (last && grid.thread == 0) keep_tokens(grid, args, given);
    if (last) exchange_words(grid, args, local, wait);
}

ANABRANCH_KERNEL(anabranch_ep_count, CountArgs, 1024) {
    CountLocal local = CountLocal::at(args.team.size);
    for (u32 peer = grid.thread; peer < args.team.size; peer += grid.block_threads) {
        local.tally.set(grid, peer, 0u);
        local.before.set(grid, peer, 0u);
    }
    u64 epoch = 0;  // none: the world is poisoned
    if (grid.thread == 0) {
        u64 last = private_load(grid, &args.state->dispatch_epoch);
        epoch = is_poisoned(grid, args.team.control) ? 0 : last + 1;
    }
    epoch = grid.block_broadcast(epoch);
    if (epoch != 0) count_and_exchange(grid, args, local, epoch);
}
