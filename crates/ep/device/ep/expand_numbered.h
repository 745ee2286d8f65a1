// Copies received rows to the experts of this rank by the numbers in their records (`ep/pair_numbers.h`). The layout is that of
// `ep/expand.h`. Every wave copies its share of all rows; a pair's place is its number after the totals of the sources before.
#pragma once

#include "ep/received_rows.h"
#include "ep/expand_places.h"
#include "ep/expand_rows.h"

// What sources sent beside the rows, and the tables of a block.
struct Numbered {
    // `[ranks][totals_stride]` bytes, a word an expert.
    const u8* totals;
    u32 totals_stride;
    // The word of a record with the first number.
    u32 numbers_word;
    // `next` has the pairs of earlier sources, `[ranks][experts]`, and `pair_slot` the slots of each wave's row, `[waves][top_k]`.
    ExpandLocal local;

    // Local memory from `byte` on. The host computes the same size (`numbered_local_bytes`).
    static ANABRANCH_DEVICE ExpandLocal tables(u32 byte, u32 ranks, u32 experts) {
        u32 next = byte + (ranks + 1) * 4;
        u32 total = next + ranks * experts * 4;
        u32 starts = total + experts * 4;
        return {{byte}, {next}, {total}, {starts}, {starts}, {starts}};
    }
    ANABRANCH_DEVICE u32 load_total(const Grid& grid, u32 source, u32 expert) const {
        return heap_load(grid, reinterpret_cast<const u32*>(totals + static_cast<u64>(source) * totals_stride) + expert);
    }
};

// Sources whose totals a thread loads together, so that latencies overlap.
static constexpr u32 TOTALS_AT_ONCE = 8;

// A thread adds up the totals of one expert. Block 0 writes its counts and the offsets of its sources.
static ANABRANCH_DEVICE void sum_totals(const Grid& grid, const ExpertExpandArgs& args, const Numbered& numbered, u32 id, u32 expert) {
    u32 ranks = args.received.ranks, experts = args.received.local_experts;
    u32* offsets = args.source_offsets + static_cast<u64>(expert) * (ranks + 1);
    u32 pairs = 0;
    for (u32 first = 0; first < ranks; first += TOTALS_AT_ONCE) {
        u32 total[TOTALS_AT_ONCE];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < TOTALS_AT_ONCE; ++u) total[u] = first + u < ranks ? numbered.load_total(grid, first + u, id) : 0;
        ANABRANCH_UNROLL
        for (u32 u = 0; u < TOTALS_AT_ONCE; ++u) {
            if (first + u >= ranks) break;
            numbered.local.next.set(grid, (first + u) * experts + expert, pairs);
            if (grid.block == 0) private_store(grid, offsets + first + u, minimum(pairs, args.capacity));
            pairs += total[u];
        }
    }
    numbered.local.total.set(grid, expert, pairs);
    if (grid.block != 0) return;
    private_store(grid, offsets + ranks, minimum(pairs, args.capacity));
    private_store(grid, args.pairs + expert, pairs);
    private_store(grid, args.counts + expert, minimum(pairs, args.capacity));
}

// The whole block adds up the totals of this rank's experts. Readers of the sums need a block barrier.
static ANABRANCH_DEVICE void sum_all_totals(const Grid& grid, const ExpertExpandArgs& args, const Numbered& numbered) {
    const ReceivedView& received = args.received;
    if (received.local_numbers == nullptr) {
        for (u32 expert = grid.thread; expert < received.local_experts; expert += grid.block_threads) {
            sum_totals(grid, args, numbered, received.first_expert + expert, expert);
        }
        return;
    }
    for (u32 id = grid.thread; id < received.placement.experts; id += grid.block_threads) {
        u32 expert = private_load(grid, received.local_numbers + id);
        if (expert != NO_EXPERT) sum_totals(grid, args, numbered, id, expert);
    }
}

// One wave finds the slots of a row's pairs, and, where it has the row's begin, writes what belongs to them.
static ANABRANCH_DEVICE void place_row(const Grid& grid, const ExpertExpandArgs& args, const Numbered& numbered, u32 source, u64 row,
                                       u32 first_pair, bool is_begin) {
    const ReceivedView& received = args.received;
    const u32* numbers = meta_record(received, row) + numbered.numbers_word;
    for (u32 k = grid.lane(); k < received.top_k; k += WAVE_SIZE) {
        u32 number = heap_load(grid, numbers + k);
        u32 expert = local_expert(grid, received, source, row, k);
        u32 slot = SLOT_NONE;
        if (expert != NO_EXPERT) {
            u32 place = numbered.local.next.get(grid, source * received.local_experts + expert) + number;
            bool fits = place < numbered.local.room(grid, args, expert);
            slot = fits ? numbered.local.first(grid, args, expert) + place : SLOT_DROPPED;
        }
        numbered.local.pair_slot.set(grid, first_pair + k, slot);
        if (is_begin) write_pair(grid, args, source, row, k, slot);
    }
}

// The grid's waves have equal shares of all rows' pieces; a piece has this many units for each lane.
static constexpr u32 PIECE_UNITS = 4;

// One wave copies its share.
static ANABRANCH_DEVICE void copy_share(const Grid& grid, const ExpertExpandArgs& args, const Numbered& numbered) {
    const ReceivedView& received = args.received;
    const ExpandLocal& local = numbered.local;
    u32 units = args.row_bytes / 16;
    u32 pieces = (units + WAVE_SIZE * PIECE_UNITS - 1) / (WAVE_SIZE * PIECE_UNITS);
    u64 all = static_cast<u64>(local.offsets.get(grid, received.ranks)) * pieces;
    u64 first = all * grid.grid_wave() / grid.grid_waves();
    u64 end = all * (grid.grid_wave() + 1) / grid.grid_waves();
    if (first >= end) return;
    u32 first_pair = grid.wave() * received.top_k;
    u32 row = static_cast<u32>(first / pieces), piece = static_cast<u32>(first % pieces);
    RowCursor cursor = RowCursor::at(grid, local.offsets, received.ranks, row);
    for (bool is_new = true; first < end; ++first) {
        cursor.move_to(grid, local.offsets, row);
        u64 window_row = cursor.window_row(received, row);
        const Vec16* source = reinterpret_cast<const Vec16*>(received.rows + window_row * args.row_bytes);
        u32 from = piece * WAVE_SIZE * PIECE_UNITS + grid.lane();
        Vec16 unit[PIECE_UNITS];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < PIECE_UNITS; ++u) {
            if (from + u * WAVE_SIZE < units) unit[u] = heap_load(grid, source + from + u * WAVE_SIZE);
        }
        if (is_new) {
            // Lanes may still read the slots of the row before.
            grid.wave_barrier();
            place_row(grid, args, numbered, cursor.source, window_row, first_pair, piece == 0);
            grid.wave_barrier();
            if (piece == 0 && args.scale_bytes > 0) copy_scales(grid, args, local, window_row, first_pair);
        }
        for (u32 k = 0; k < received.top_k; ++k) {
            u32 slot = local.pair_slot.get(grid, first_pair + k);
            if (!is_slot(slot)) continue;
            Vec16* target = reinterpret_cast<Vec16*>(args.rows + static_cast<u64>(slot) * args.row_bytes);
            ANABRANCH_UNROLL
            for (u32 u = 0; u < PIECE_UNITS; ++u) {
                if (from + u * WAVE_SIZE < units) private_store(grid, target + from + u * WAVE_SIZE, unit[u]);
            }
        }
        is_new = ++piece == pieces;
        if (!is_new) continue;
        piece = 0;
        ++row;
    }
}

// The whole grid comes here, each block after a barrier, with the rows of each source in `counted`.
static ANABRANCH_DEVICE void expand_numbered(const Grid& grid, const ExpertExpandArgs& args, const Numbered& numbered,
                                             const LocalArray<u32>& counted) {
    if (grid.thread == 0) {
        u32 total = 0;
        for (u32 source = 0; source < args.received.ranks; ++source) {
            numbered.local.offsets.set(grid, source, total);
            total += counted.get(grid, source);
        }
        numbered.local.offsets.set(grid, args.received.ranks, total);
    }
    sum_all_totals(grid, args, numbered);
    grid.block_barrier();
    copy_share(grid, args, numbered);
    fill_padding(grid, args, numbered.local);
}
