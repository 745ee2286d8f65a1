// Copies received rows to the experts of this rank, in the expert-major layout. The pairs (row, k) of an expert are in the order of their
// rows (source rank, then token), and for one row in the order of k.
//
// Writers. A pair's place is the number of its expert's earlier pairs: the pairs of earlier runs of rows, which the kernel
// before this one has counted (`expert_count.hip`), and the earlier pairs of its own run, which the block that owns the run counts in
// order, tile by tile. So no two blocks write one place, no counter is shared, and the places are the same in every launch.
// Blocks wait for no peer. Peers wrote the input before the dispatch ended; later kernels of the stream
// read the output. An expand that overwrites the buffers is later on the stream too.
#include "anabranch/prelude.h"
#include "ep/received_rows.h"
#include "ep/expand_rows.h"

// Puts the pairs of a tile in order: each wave does so for its share of the experts.
static ANABRANCH_DEVICE void place_pairs(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local,
                                         u32 pairs) {
    for (u32 expert = grid.wave(); expert < args.received.local_experts; expert += grid.waves_per_block()) {
        u32 place = local.next.get(grid, expert);
        for (u32 start = 0; start < pairs; start += WAVE_SIZE) {
            u32 pair = start + grid.lane();
            bool mine = pair < pairs && local.pair_expert.get(grid, pair) == expert;
            u64 wanted = grid.ballot(mine);
            if (mine) {
                u32 at = place + count_bits(wanted & grid.lanes_before());
                local.pair_slot.set(grid, pair, at < args.capacity ? expert * args.capacity + at : SLOT_DROPPED);
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
        if (private_load(grid, args.received.offsets + source - 1) != row) break;
        write_source_offset(grid, args, local, source - 1);
    }
}

// The rows of one tile, all of one source, copied to their places.
static ANABRANCH_DEVICE void expand_tile(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local,
                                         const ExpandPart& part, const RowCursor& cursor, u32 row, u32 count) {
    u64 window_row = cursor.window_row(args.received, row);
    u32 pairs = count * args.received.top_k;
    if (part.index == 0 && row == cursor.begin) write_source_offsets(grid, args, local, cursor.source, row);
    for (u32 pair = grid.thread; pair < pairs; pair += grid.block_threads) {
        u32 k = pair % args.received.top_k;
        u64 row_of_pair = window_row + pair / args.received.top_k;
        local.pair_expert.set(grid, pair, local_expert(grid, args.received, cursor.source, row_of_pair, k));
        local.pair_slot.set(grid, pair, SLOT_NONE);
    }
    grid.block_barrier();
    place_pairs(grid, args, local, pairs);
    grid.block_barrier();
    if (part.index == 0) write_pairs(grid, args, local, cursor.source, window_row, pairs);
    copy_tile(grid, args, local, part, window_row, count);
    grid.block_barrier();
}

ANABRANCH_KERNEL(anabranch_ep_expert_expand, ExpertExpandArgs, 1024) {
    const ReceivedView& received = args.received;
    ExpandLocal local = ExpandLocal::at(received.local_experts, args.tile_rows * received.top_k);
    Runs runs = Runs::of(grid, received);
    // Where rows are fewer than blocks, several blocks share a row, each with its part of the bytes.
    ExpandPart part = {grid.block % (grid.grid_blocks / runs.count), grid.grid_blocks / runs.count};
    u32 run = grid.block / part.parts;

    for (u32 e = grid.thread; e < received.local_experts; e += grid.block_threads) {
        local.next.set(grid, e, 0u);
        local.total.set(grid, e, 0u);
    }
    grid.block_barrier();
    for (u32 counted = grid.wave(); counted < runs.count; counted += grid.waves_per_block()) {
        const u32* counts = args.run_counts + static_cast<u64>(counted) * received.local_experts;
        for (u32 e = grid.lane(); e < received.local_experts; e += WAVE_SIZE) {
            u32 pairs = private_load(grid, counts + e);
            local.total.fetch_add(grid, e, pairs);
            if (counted < run) local.next.fetch_add(grid, e, pairs);
        }
    }
    grid.block_barrier();
    if (grid.block == 0) {
        for (u32 e = grid.thread; e < received.local_experts; e += grid.block_threads) {
            u32 pairs = local.total.get(grid, e);
            private_store(grid, args.pairs + e, pairs);
            private_store(grid, args.counts + e, minimum(pairs, args.capacity));
        }
    }
    zero_padding(grid, args, local);

    u32 row = run < runs.count ? runs.first(run) : runs.total;
    u32 end = run < runs.count ? runs.first(run + 1) : runs.total;
    RowCursor cursor = {0, 0, 0};
    if (row < end) cursor = RowCursor::at(grid, received, row);
    while (row < end) {
        cursor.move_to(grid, received, row);
        u32 count = minimum(minimum(cursor.end, end) - row, args.tile_rows);
        expand_tile(grid, args, local, part, cursor, row, count);
        row += count;
    }
    // The run with the last rows has counted all pairs.
    if (run + 1 == runs.count && part.index == 0) {
        write_source_offsets(grid, args, local, received.ranks, runs.total);
    }
}
