// Counts the received (row, k) pairs of each expert of this rank. The first kernel counts them for each run of rows, the
// second sums the runs. No block waits for another: later kernels of the stream read the counts of the runs.
#include "anabranch/prelude.h"
#include "ep/received_rows.h"

// Most rows that a block's threads divide at once, so that the number of their pairs fits 32 bits.
static constexpr u32 MOST_ROWS = 1u << 20;

ANABRANCH_KERNEL(anabranch_ep_expert_count, ExpertCountArgs, 1024) {
    const ReceivedView& received = args.received;
    LocalArray<u32> count = {0};
    for (u32 e = grid.thread; e < received.local_experts; e += grid.block_threads) count.set(grid, e, 0u);
    grid.block_barrier();
    Runs runs = Runs::of(grid, total_rows(grid, received));
    u32 row = grid.block < runs.count ? runs.first(grid.block) : runs.total;
    u32 end = grid.block < runs.count ? runs.first(grid.block + 1) : runs.total;
    RowCursor cursor = {0, 0, 0};
    SlotOffsets offsets = {received.offsets};
    if (row < end) cursor = RowCursor::at(grid, offsets, received.ranks, row);
    while (row < end) {
        cursor.move_to(grid, offsets, row);
        u32 stop = minimum(minimum(cursor.end, end), row + MOST_ROWS);
        u64 window_row = cursor.window_row(received, row);
        for (u32 pair = grid.thread; pair < (stop - row) * received.top_k; pair += grid.block_threads) {
            u32 expert =
                local_expert(grid, received, cursor.source, window_row + pair / received.top_k, pair % received.top_k);
            if (expert != NO_EXPERT) count.fetch_add(grid, expert, 1u);
        }
        row = stop;
    }
    grid.block_barrier();
    if (grid.block < runs.count) {
        u32* counts = args.run_counts + static_cast<u64>(grid.block) * received.local_experts;
        for (u32 e = grid.thread; e < received.local_experts; e += grid.block_threads) {
            private_store(grid, counts + e, count.get(grid, e));
        }
    }
}

ANABRANCH_KERNEL(anabranch_ep_expert_sum, ExpertSumArgs, 1024) {
    u32 total = private_load(grid, args.offsets + args.ranks);
    u32 runs = maximum(minimum(total, args.count_blocks), 1u);
    for (u32 e = grid.block * grid.block_threads + grid.thread; e < args.local_experts;
         e += grid.grid_blocks * grid.block_threads) {
        u32 sum = 0;
        for (u32 run = 0; run < runs; ++run) {
            sum += private_load(grid, args.run_counts + static_cast<u64>(run) * args.local_experts + e);
        }
        private_store(grid, args.output + e, sum);
    }
}
