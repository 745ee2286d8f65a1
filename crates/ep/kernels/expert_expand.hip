// Copies received rows to the experts of this rank. The pairs (row, k) of an expert are in the order of their rows (source rank, then token),
// and for one row in the order of k; `dispatch_experts.hip` gives its rows the same places. Each expert has `capacity` places; or, with
// EP_CONTIGUOUS, all have `capacity` places together, and each begins at the first multiple of the alignment after the one before.
//
// Writers. Each block, or several blocks with a part each, own a run of rows. A pair's place is the number of its expert's earlier
// pairs. Every block counts the pairs of the rows before its run in the ids of all received rows, and places the pairs of its own run in
// order, tile by tile. So no two blocks write one place, no block reads what another block of the grid writes, no counter is shared, and the
// places are the same in every launch. Block 0 writes the counts and starts of all experts. The offsets of a source are written by the owner of the
// source's first row, and those after the last row by the owner of the last run.
//
// Peers wrote the rows and records that are read here before the flags of their dispatch, for which an earlier kernel of the stream has
// waited. They write them again in the slot's next dispatch, after this one's combine. Later kernels of the stream read the
// output. An expand that overwrites the buffers is later on the stream too.
#include "anabranch/prelude.h"
#include "ep/expand_tile.h"

// Pairs whose ids a thread loads together, so that latencies overlap.
static constexpr u32 PAIRS_AT_ONCE = 4;

// Clears the counters. Readers need a block barrier.
static ANABRANCH_DEVICE void clear_pairs(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local) {
    for (u32 e = grid.thread; e < args.received.local_experts; e += grid.block_threads) {
        local.next.set(grid, e, 0u);
        local.total.set(grid, e, 0u);
    }
}

// Counts the pairs of all rows: those before row `first` in `next`, the others in `total`. Each thread has its own cursor.
static ANABRANCH_DEVICE void count_pairs(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local, u32 rows,
                                         u32 first) {
    const ReceivedView& received = args.received;
    u64 pairs = static_cast<u64>(rows) * received.top_k;
    RowCursor cursor = {0, 0, local.offsets.get(grid, 1)};
    for (u64 start = grid.thread; start < pairs; start += static_cast<u64>(grid.block_threads) * PAIRS_AT_ONCE) {
        u32 row[PAIRS_AT_ONCE], expert[PAIRS_AT_ONCE];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < PAIRS_AT_ONCE; ++u) {
            u64 pair = start + static_cast<u64>(u) * grid.block_threads;
            expert[u] = NO_EXPERT;
            row[u] = 0;
            if (pair >= pairs) continue;
            // The plan keeps the number of pairs below 2^32.
            row[u] = static_cast<u32>(pair) / received.top_k;
            cursor.move_to(grid, local.offsets, row[u]);
            u32 k = static_cast<u32>(pair) % received.top_k;
            expert[u] = local_expert(grid, received, cursor.source, cursor.window_row(received, row[u]), k);
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < PAIRS_AT_ONCE; ++u) {
            if (expert[u] == NO_EXPERT) continue;
            if (row[u] < first) {
                local.next.fetch_add(grid, expert[u], 1u);
            } else {
                local.total.fetch_add(grid, expert[u], 1u);
            }
        }
    }
}

// `total` becomes the pairs of all rows. Block 0 writes the counts.
static ANABRANCH_DEVICE void sum_pairs(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local) {
    for (u32 e = grid.thread; e < args.received.local_experts; e += grid.block_threads) {
        u32 pairs = local.next.get(grid, e) + local.total.get(grid, e);
        local.total.set(grid, e, pairs);
        if (grid.block != 0) continue;
        private_store(grid, args.pairs + e, pairs);
        private_store(grid, args.counts + e, minimum(pairs, args.capacity));
    }
}

// The rows of one source that a block places together.
struct ExpandTile {
    RowCursor cursor;
    u64 window_row;
    u32 row, count;

    // Moves to `row`, which is before `end`, the end of the run; without rows at the end.
    ANABRANCH_DEVICE void move_to(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local, u32 next, u32 end) {
        row = next;
        count = 0;
        if (row >= end) return;
        cursor.move_to(grid, local.offsets, row);
        window_row = cursor.window_row(args.received, row);
        count = minimum(minimum(cursor.end, end) - row, args.tile_rows);
    }
};

// The experts of a tile's pairs.
static ANABRANCH_DEVICE void name_pairs(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local,
                                        const ExpandTile& tile) {
    u32 top_k = args.received.top_k;
    for (u32 pair = grid.thread; pair < tile.count * top_k; pair += grid.block_threads) {
        u64 row = tile.window_row + pair / top_k;
        local.pair_expert.set(grid, pair, local_expert(grid, args.received, tile.cursor.source, row, pair % top_k));
        local.pair_slot.set(grid, pair, SLOT_NONE);
    }
}

// Puts the pairs of a tile in order: each wave does so for its share of the experts.
static ANABRANCH_DEVICE void place_pairs(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local,
                                         u32 pairs) {
    for (u32 expert = grid.wave(); expert < args.received.local_experts; expert += grid.waves_per_block()) {
        u32 place = local.next.get(grid, expert);
        u32 first = local.first(grid, args, expert);
        u32 room = local.room(grid, args, expert);
        for (u32 start = 0; start < pairs; start += WAVE_SIZE) {
            u32 pair = start + grid.lane();
            bool mine = pair < pairs && local.pair_expert.get(grid, pair) == expert;
            u64 wanted = grid.ballot(mine);
            if (mine) {
                u32 at = place + count_bits(wanted & grid.lanes_before());
                local.pair_slot.set(grid, pair, at < room ? first + at : SLOT_DROPPED);
            }
            place += count_bits(wanted);
        }
        grid.wave_barrier();
        if (grid.lane() == 0) local.next.set(grid, expert, place);
    }
}

// The offset of a source within each expert: the expert's pairs before the source's first row.
static ANABRANCH_DEVICE void write_source_offset(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local,
                                                 u32 source) {
    if (CONTIGUOUS) return;
    u64 stride = static_cast<u64>(args.received.ranks) + 1;
    for (u32 expert = grid.thread; expert < args.received.local_experts; expert += grid.block_threads) {
        u32 before = minimum(local.next.get(grid, expert), args.capacity);
        private_store(grid, args.source_offsets + expert * stride + source, before);
    }
}

// Row `row` is the first of source `last`, and of earlier sources without rows, which end there too.
static ANABRANCH_DEVICE void write_source_offsets(const Grid& grid, const ExpertExpandArgs& args,
                                                  const ExpandLocal& local, u32 last, u32 row) {
    write_source_offset(grid, args, local, last);
    for (u32 source = last; source > 0; --source) {
        if (local.offsets.get(grid, source - 1) != row) break;
        write_source_offset(grid, args, local, source - 1);
    }
}

// Before the pairs of a tile are placed: the offsets of the sources that begin with it.
static ANABRANCH_DEVICE void begin_tile(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local,
                                        const ExpandTile& tile) {
    if (tile.count == 0 || tile.row != tile.cursor.begin) return;
    write_source_offsets(grid, args, local, tile.cursor.source, tile.row);
}

// The whole grid comes here, each block after a barrier, with the running sum of rows in `offsets` and cleared counters.
static ANABRANCH_DEVICE void expand_received(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local) {
    const ReceivedView& received = args.received;
    u32 rows = local.offsets.get(grid, received.ranks);
    Runs runs = Runs::of(grid, rows);
    // Where rows are fewer than blocks, several blocks share a row, each with its part of the bytes.
    ExpandPart part = {grid.block % (grid.grid_blocks / runs.count), grid.grid_blocks / runs.count};
    u32 run = grid.block / part.parts;
    u32 first = run < runs.count ? runs.first(run) : rows;
    u32 end = run < runs.count ? runs.first(run + 1) : rows;

    ExpandTile tile = {{0, 0, 0}, 0, 0, 0};
    if (first < end) tile.cursor = RowCursor::at(grid, local.offsets, received.ranks, first);
    tile.move_to(grid, args, local, first, end);
    count_pairs(grid, args, local, rows, first);
    // With the count, so that their latencies overlap.
    name_pairs(grid, args, local, tile);
    grid.block_barrier();
    if (CONTIGUOUS) {
        line_up_experts<true>(grid, args, local);
    } else {
        sum_pairs(grid, args, local);
    }
    if (part.index == 0) begin_tile(grid, args, local, tile);
    grid.block_barrier();
    while (tile.count > 0) {
        u32 pairs = tile.count * received.top_k;
        place_pairs(grid, args, local, pairs);
        grid.block_barrier();
        if (part.index == 0) write_pairs(grid, args, local, tile.cursor.source, tile.window_row, pairs);
        copy_tile(grid, args, local, part, tile.window_row, tile.count);
        grid.block_barrier();
        tile.move_to(grid, args, local, tile.row + tile.count, end);
        name_pairs(grid, args, local, tile);
        if (part.index == 0) begin_tile(grid, args, local, tile);
        grid.block_barrier();
    }
    fill_padding(grid, args, local);
    // The run with the last rows has placed all pairs.
    if (run + 1 == runs.count && part.index == 0) write_source_offsets(grid, args, local, received.ranks, rows);
}

ANABRANCH_KERNEL(anabranch_ep_expert_expand, ExpertExpandArgs, 1024) {
    const ReceivedView& received = args.received;
    ExpandLocal local = ExpandLocal::at(0, received.ranks, received.local_experts, args.tile_rows * received.top_k);
    clear_pairs(grid, args, local);
    for (u32 source = grid.thread; source <= received.ranks; source += grid.block_threads) {
        local.offsets.set(grid, source, private_load(grid, received.offsets + source));
    }
    grid.block_barrier();
    expand_received(grid, args, local);
}
