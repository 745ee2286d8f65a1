// The copies and tables of a tile of rows that a block of `expert_expand.hip` places. Its threads and waves work on their own pairs and rows
// here.
#pragma once

#include "ep/expand_rows.h"

// The part of every row that a block copies.
struct ExpandPart {
    u32 index;
    u32 parts;
};

// The pairs of a tile.
static ANABRANCH_DEVICE void write_pairs(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local,
                                         u32 source, u64 window_row, u32 pairs) {
    u32 top_k = args.received.top_k;
    for (u32 pair = grid.thread; pair < pairs; pair += grid.block_threads) {
        write_pair(grid, args, source, window_row + pair / top_k, pair % top_k, local.pair_slot.get(grid, pair));
    }
}

// One wave copies units [begin, end) of a row to all its places: loaded once, stored to each.
static ANABRANCH_DEVICE void copy_to_places(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local,
                                            u64 window_row, u32 first_pair, u32 begin, u32 end) {
    static constexpr u32 UNROLL = 4;
    const Vec16* source = reinterpret_cast<const Vec16*>(args.received.rows + window_row * args.row_bytes);
    for (u32 first = begin + grid.lane(); first < end; first += WAVE_SIZE * UNROLL) {
        Vec16 unit[UNROLL];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) {
            u32 at = first + u * WAVE_SIZE;
            if (at < end) unit[u] = heap_load(grid, source + at);
        }
        for (u32 k = 0; k < args.received.top_k; ++k) {
            u32 slot = local.pair_slot.get(grid, first_pair + k);
            if (!is_slot(slot)) continue;
            Vec16* target = reinterpret_cast<Vec16*>(args.rows + static_cast<u64>(slot) * args.row_bytes);
            ANABRANCH_UNROLL
            for (u32 u = 0; u < UNROLL; ++u) {
                u32 at = first + u * WAVE_SIZE;
                if (at < end) private_store(grid, target + at, unit[u]);
            }
        }
    }
}

// The block's part of the rows of a tile. Where the block has more waves than the tile has rows, waves share rows.
static ANABRANCH_DEVICE void copy_tile(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local,
                                       const ExpandPart& part, u64 window_row, u32 count) {
    if (CONTIGUOUS && args.capacity == 0) return;  // pairs are only counted
    u32 units = args.row_bytes / 16;
    u32 finest = maximum(units / (2 * WAVE_SIZE * part.parts), 1u);
    u32 each = minimum(maximum(grid.waves_per_block() / count, 1u), finest);
    u32 segments = each * part.parts;
    // One more item a row than it has segments where there are scales, which the first part copies.
    u32 items = each + (part.index == 0 && args.scale_bytes > 0 ? 1 : 0);
    for (u32 item = grid.wave(); item < count * items; item += grid.waves_per_block()) {
        u32 index = item / items;
        u32 first_pair = index * args.received.top_k;
        if (item % items == each) {
            copy_scales(grid, args, local, window_row + index, first_pair);
            continue;
        }
        u32 segment = part.index * each + item % items;
        u32 from = static_cast<u32>(static_cast<u64>(units) * segment / segments);
        u32 to = static_cast<u32>(static_cast<u64>(units) * (segment + 1) / segments);
        copy_to_places(grid, args, local, window_row + index, first_pair, from, to);
    }
}
