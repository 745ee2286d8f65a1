// What belongs to the rows of experts: the tables of pairs, scales and padding. Threads and waves work on their own pairs and rows here.
#pragma once

#include "ep/expand_places.h"

static ANABRANCH_DEVICE bool is_slot(u32 slot) { return slot < SLOT_DROPPED; }

// One thread writes the slot map entry, weight and row source of a pair.
static ANABRANCH_DEVICE void write_pair(const Grid& grid, const ExpertExpandArgs& args, u32 source, u64 row, u32 k, u32 slot) {
    u32 top_k = args.received.top_k;
    private_store(grid, args.slot_map + row * top_k + k, slot);
    if (!is_slot(slot)) return;
    const u32* meta = meta_record(args.received, row);
    const u32* weight = meta + 2 + top_k + k;
    if (CONTIGUOUS) {
        if (args.weights != nullptr) private_store(grid, args.weights + slot, bit_cast<f32>(heap_load(grid, weight)));
        return;
    }
    ExpertRowSource* target = args.sources + slot;
    private_store(grid, &target->row, static_cast<u32>(row));
    private_store(grid, &target->source_rank, source);
    private_store(grid, &target->source_token, heap_load(grid, meta));
    private_store(grid, &target->k, k);
    private_store(grid, &target->weight, bit_cast<f32>(heap_load(grid, weight)));
}

// ScaleLayout in Rust.
enum ScaleLayout : u32 { SCALE_ROWS = 0, SCALE_COLUMNS = 1, SCALE_PACKED_COLUMNS = 2 };

// Words of a row's scales in the layout, and where they are.
struct ScalePlaces {
    u32* scales;
    u32 words, column;
    bool is_column_major, is_packed;

    static ANABRANCH_DEVICE ScalePlaces of(const ExpertExpandArgs& args) {
        bool packed = args.scale_layout == SCALE_PACKED_COLUMNS;
        u32 words = args.scale_bytes / 4;
        return {reinterpret_cast<u32*>(args.scales), packed ? (words + 3) / 4 : words, args.scale_column,
                args.scale_layout != SCALE_ROWS, packed};
    }
    ANABRANCH_DEVICE u32* at(u32 slot, u32 word) const {
        if (!is_column_major) return scales + static_cast<u64>(slot) * words + word;
        // Rows that share their columns: those of an expert, or all.
        u32 group = slot / column;
        return scales + (static_cast<u64>(group) * words + word) * column + slot % column;
    }
    ANABRANCH_DEVICE u32 load(const Grid& grid, const ExpertExpandArgs& args, const u32* source, u32 word) const {
        if (!is_packed) return heap_load(grid, source + word);
        u32 value = 0;
        for (u32 i = 0; i < 4 && word * 4 + i < args.scale_bytes / 4; ++i) {
            value |= (heap_load(grid, source + word * 4 + i) >> 23 & 0xff) << (8 * i);
        }
        return value;
    }
};

// One wave copies a row's scales to all its places.
static ANABRANCH_DEVICE void copy_scales(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local,
                                         u64 window_row, u32 first_pair) {
    const u32* source = meta_record(args.received, window_row) + 2 + 2 * args.received.top_k;
    ScalePlaces places = ScalePlaces::of(args);
    for (u32 word = grid.lane(); word < places.words; word += WAVE_SIZE) {
        u32 value = places.load(grid, args, source, word);
        for (u32 k = 0; k < args.received.top_k; ++k) {
            u32 slot = local.pair_slot.get(grid, first_pair + k);
            if (is_slot(slot)) private_store(grid, places.at(slot, word), value);
        }
    }
}

// A row of padding: zeros, without a source. One wave.
static ANABRANCH_DEVICE void zero_place(const Grid& grid, const ExpertExpandArgs& args, const ScalePlaces& places, u32 slot) {
    Vec16* units = reinterpret_cast<Vec16*>(args.rows + static_cast<u64>(slot) * args.row_bytes);
    for (u32 unit = grid.lane(); unit < args.row_bytes / 16; unit += WAVE_SIZE) {
        private_store(grid, units + unit, Vec16{{0, 0, 0, 0}});
    }
    for (u32 word = grid.lane(); word < places.words; word += WAVE_SIZE) {
        private_store(grid, places.at(slot, word), 0u);
    }
    if (grid.lane() != 0 || CONTIGUOUS) return;
    ExpertRowSource* source = args.sources + slot;
    private_store(grid, &source->row, ~0u);
    private_store(grid, &source->source_rank, ~0u);
    private_store(grid, &source->source_token, ~0u);
    private_store(grid, &source->k, ~0u);
    private_store(grid, &source->weight, 0.0f);
}

// The padding: rows from an expert's last row to the next multiple of the alignment. The grid's waves share them.
static ANABRANCH_DEVICE void fill_padding(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local) {
    if (CONTIGUOUS && args.has_zeros == 0 && args.weights == nullptr) return;
    // Fits 32 bits: a block's local memory has words for every expert.
    u32 most = args.alignment - 1;
    ScalePlaces places = ScalePlaces::of(args);
    for (u32 item = grid.grid_wave(); item < most * args.received.local_experts; item += grid.grid_waves()) {
        u32 expert = item / most;
        u32 room = local.room(grid, args, expert);
        u32 kept = minimum(local.total.get(grid, expert), room);
        u32 row = kept + item % most;
        if (row >= room || row >= round_up(kept, args.alignment)) continue;
        // Fits 32 bits, by the plan.
        u32 slot = local.first(grid, args, expert) + row;
        if (!CONTIGUOUS || args.has_zeros != 0) zero_place(grid, args, places, slot);
        if (CONTIGUOUS && args.weights != nullptr && grid.lane() == 0) private_store(grid, args.weights + slot, 0.0f);
    }
    if (!CONTIGUOUS || args.weights == nullptr) return;
    // Places after those of all experts.
    u32 thread = grid.block * grid.block_threads + grid.thread;
    for (u64 slot = static_cast<u64>(local.starts.get(grid, args.received.local_experts)) + thread; slot < args.capacity;
         slot += grid.grid_blocks * grid.block_threads) {
        private_store(grid, args.weights + slot, 0.0f);
    }
}
