// Copies received rows to the experts of this rank by the numbers in their records (`ep/pair_numbers.h`). The layout is that of
// `expert_expand.hip`. Every wave copies its share of all rows; a pair's place is its number after the totals of the sources before.
#pragma once

#include "ep/expand_rows.h"

// What sources sent beside the rows, and the tables of a block.
struct Numbered {
    // `[ranks][totals_stride]` bytes, a word an expert.
    const u8* totals;
    u32 totals_stride;
    // The word of a record with the first number.
    u32 numbers_word;
    // The rows of each source.
    LocalArray<u32> rows;
    // `next` has the pairs of earlier sources, `[ranks][experts]`, and `pair_slot` the slots of each wave's row, `[waves][top_k]`.
    ExpandLocal local;

    // Local memory from `byte` on. The host computes the same size (`placing_local_bytes`).
    static ANABRANCH_DEVICE ExpandLocal tables(u32 byte, u32 ranks, u32 experts) {
        u32 total = byte + ranks * experts * 4;
        u32 starts = total + experts * 4;
        u32 slots = CONTIGUOUS ? starts + (experts + 1) * 4 : starts;
        return {{byte}, {byte}, {total}, {starts}, {slots}, {slots}};
    }
    ANABRANCH_DEVICE u32 load_total(const Grid& grid, u32 source, u32 expert) const {
        return heap_load(grid, reinterpret_cast<const u32*>(totals + static_cast<u64>(source) * totals_stride) + expert);
    }
};

// Sources whose totals a thread loads together, so that latencies overlap.
static constexpr u32 TOTALS_AT_ONCE = 8;

// A thread adds up the totals of one expert. Block 0 writes its counts and the offsets of its sources, unless experts share the places.
static ANABRANCH_DEVICE void sum_totals(const Grid& grid, const ExpertExpandArgs& args, const Numbered& numbered, u32 id, u32 expert) {
    u32 ranks = args.received.ranks, experts = args.received.local_experts;
    bool is_written = !CONTIGUOUS && grid.block == 0;
    u32* offsets = is_written ? args.source_offsets + static_cast<u64>(expert) * (ranks + 1) : nullptr;
    u32 pairs = 0;
    for (u32 first = 0; first < ranks; first += TOTALS_AT_ONCE) {
        u32 total[TOTALS_AT_ONCE];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < TOTALS_AT_ONCE; ++u) total[u] = first + u < ranks ? numbered.load_total(grid, first + u, id) : 0;
        ANABRANCH_UNROLL
        for (u32 u = 0; u < TOTALS_AT_ONCE; ++u) {
            if (first + u >= ranks) break;
            numbered.local.next.set(grid, (first + u) * experts + expert, pairs);
            if (is_written) private_store(grid, offsets + first + u, minimum(pairs, args.capacity));
            pairs += total[u];
        }
    }
    numbered.local.total.set(grid, expert, pairs);
    if (!is_written) return;
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

// The grid's waves have equal shares of all rows' pieces, in which a lane has at most so many units.
static constexpr u32 PIECE_UNITS = 8;

// What a wave copies: pieces of consecutive rows, and of the first what it holds.
struct Share {
    u64 first, end;
    RowCursor cursor;
    u32 row, piece, pieces, units, piece_units;
    Vec16 unit[PIECE_UNITS];
    // Of the pair `lane` of the row: its id and number.
    u32 id, number;

    static ANABRANCH_DEVICE Share of(const Grid& grid, const ExpertExpandArgs& args, const Numbered& numbered) {
        Share share;
        share.units = args.row_bytes / 16;
        share.pieces = (share.units + WAVE_SIZE * PIECE_UNITS - 1) / (WAVE_SIZE * PIECE_UNITS);
        // Pieces of the same size, as far as whole waves allow.
        share.piece_units = static_cast<u32>(round_up((share.units + share.pieces - 1) / share.pieces, WAVE_SIZE));
        u32 rows = 0;
        for (u32 source = 0; source < args.received.ranks; ++source) rows += numbered.rows.get(grid, source);
        u64 all = static_cast<u64>(rows) * share.pieces;
        share.first = all * grid.grid_wave() / grid.grid_waves();
        share.end = all * (grid.grid_wave() + 1) / grid.grid_waves();
        share.row = static_cast<u32>(share.first / share.pieces);
        share.piece = static_cast<u32>(share.first % share.pieces);
        share.cursor = {0, 0, numbered.rows.get(grid, 0)};
        return share;
    }
    // Loads the first piece, and, with `is_new`, the pairs of its row.
    ANABRANCH_DEVICE void load(const Grid& grid, const ExpertExpandArgs& args, const Numbered& numbered, bool is_new) {
        if (first >= end) return;
        while (cursor.end <= row) {
            ++cursor.source;
            cursor.begin = cursor.end;
            cursor.end += numbered.rows.get(grid, cursor.source);
        }
        u64 window_row = cursor.window_row(args.received, row);
        if (is_new && grid.lane() < args.received.top_k) {
            const u32* meta = meta_record(args.received, window_row);
            id = heap_load(grid, meta + 2 + grid.lane());
            number = heap_load(grid, meta + numbered.numbers_word + grid.lane());
        }
        const Vec16* source = reinterpret_cast<const Vec16*>(args.received.rows + window_row * args.row_bytes) + first_unit(grid);
        ANABRANCH_UNROLL
        for (u32 u = 0; u < PIECE_UNITS; ++u) {
            if (has(grid, u)) unit[u] = heap_load(grid, source + u * WAVE_SIZE);
        }
    }
    ANABRANCH_DEVICE u32 first_unit(const Grid& grid) const { return piece * piece_units + grid.lane(); }
    ANABRANCH_DEVICE bool has(const Grid& grid, u32 u) const {
        return u * WAVE_SIZE < piece_units && first_unit(grid) + u * WAVE_SIZE < units;
    }
    // Whether the next piece is of another row.
    ANABRANCH_DEVICE bool advance() {
        ++first;
        if (++piece < pieces) return false;
        piece = 0;
        ++row;
        return true;
    }
};

// One wave finds the slots of its row's pairs, and, where it has the row's begin, writes what belongs to them.
static ANABRANCH_DEVICE void place_row(const Grid& grid, const ExpertExpandArgs& args, const Numbered& numbered, const Share& share,
                                       u32 first_pair) {
    const ReceivedView& received = args.received;
    u32 source = share.cursor.source;
    u64 row = share.cursor.window_row(received, share.row);
    const u32* meta = meta_record(received, row);
    for (u32 k = grid.lane(); k < received.top_k; k += WAVE_SIZE) {
        u32 id = k < WAVE_SIZE ? share.id : heap_load(grid, meta + 2 + k);
        u32 number = k < WAVE_SIZE ? share.number : heap_load(grid, meta + numbered.numbers_word + k);
        u32 expert = expert_here(grid, received, source, meta, id);
        u32 slot = SLOT_NONE;
        if (expert != NO_EXPERT) {
            u32 place = numbered.local.next.get(grid, source * received.local_experts + expert) + number;
            bool fits = place < numbered.local.room(grid, args, expert);
            slot = fits ? numbered.local.first(grid, args, expert) + place : SLOT_DROPPED;
        }
        numbered.local.pair_slot.set(grid, first_pair + k, slot);
        if (share.piece == 0) write_pair(grid, args, source, row, k, slot);
    }
}

// One wave copies its share, whose first piece it holds.
static ANABRANCH_DEVICE void copy_share(const Grid& grid, const ExpertExpandArgs& args, const Numbered& numbered, Share& share) {
    const ExpandLocal& local = numbered.local;
    u32 first_pair = grid.wave() * args.received.top_k;
    for (bool is_new = true; share.first < share.end;) {
        if (is_new) {
            // Lanes may still read the slots of the row before.
            grid.wave_barrier();
            place_row(grid, args, numbered, share, first_pair);
            grid.wave_barrier();
            if (share.piece == 0 && args.scale_bytes > 0) {
                copy_scales(grid, args, local, share.cursor.window_row(args.received, share.row), first_pair);
            }
        }
        for (u32 k = 0; k < args.received.top_k; ++k) {
            u32 slot = local.pair_slot.get(grid, first_pair + k);
            if (!is_slot(slot)) continue;
            Vec16* target = reinterpret_cast<Vec16*>(args.rows + static_cast<u64>(slot) * args.row_bytes) + share.first_unit(grid);
            ANABRANCH_UNROLL
            for (u32 u = 0; u < PIECE_UNITS; ++u) {
                if (share.has(grid, u)) private_store(grid, target + u * WAVE_SIZE, share.unit[u]);
            }
        }
        share.load(grid, args, numbered, is_new = share.advance());
    }
}

// The whole grid comes here, each block after a barrier.
static ANABRANCH_DEVICE void expand_numbered(const Grid& grid, const ExpertExpandArgs& args, const Numbered& numbered) {
    // Loads of rows and of totals are under way together.
    Share share = Share::of(grid, args, numbered);
    share.load(grid, args, numbered, true);
    sum_all_totals(grid, args, numbered);
    grid.block_barrier();
    if (CONTIGUOUS) {
        line_up_experts<false>(grid, args, numbered.local);
        grid.block_barrier();
    }
    copy_share(grid, args, numbered, share);
    fill_padding(grid, args, numbered.local);
}
