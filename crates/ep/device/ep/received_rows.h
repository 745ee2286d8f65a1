// The rows that a dispatch delivered, numbered through all sources: row n of source s is number offsets[s] + n. The windows
// have other indices: source s owns `row_stride` rows from s * row_stride on, or, where the stride is 0, the rows from
// offsets[s] on.
#pragma once

#include "ep/routing.h"

// Whether all experts share the places, one after the other.
#ifdef EP_CONTIGUOUS
static constexpr bool CONTIGUOUS = true;
#else
static constexpr bool CONTIGUOUS = false;
#endif

static constexpr u32 NO_EXPERT = ~0u;
// Slot map entries without a row: the pair's expert is not on this rank, or its capacity is full.
static constexpr u32 SLOT_NONE = ~0u;
static constexpr u32 SLOT_DROPPED = ~0u - 1;

ANABRANCH_DEVICE u32 total_rows(const Grid& grid, const ReceivedView& received) {
    return private_load(grid, received.offsets + received.ranks);
}

// The running sum of rows in the slot's memory. Kernels that have it in local memory take it from there.
struct SlotOffsets {
    const u32* words;
    ANABRANCH_DEVICE u32 get(const Grid& grid, u32 index) const { return private_load(grid, words + index); }
};

// Iterates over row numbers.
struct RowCursor {
    u32 source;
    u32 begin;
    u32 end;

    // At `row`, which is below the total.
    template <class Offsets>
    static ANABRANCH_DEVICE RowCursor at(const Grid& grid, const Offsets& offsets, u32 ranks, u32 row) {
        u32 low = 0;
        u32 high = ranks;
        while (high - low > 1) {
            u32 middle = low + (high - low) / 2;
            bool before = offsets.get(grid, middle) <= row;
            low = before ? middle : low;
            high = before ? high : middle;
        }
        return {low, offsets.get(grid, low), offsets.get(grid, low + 1)};
    }

    // To `row`, which is not before the current one and below the total.
    template <class Offsets>
    ANABRANCH_DEVICE void move_to(const Grid& grid, const Offsets& offsets, u32 row) {
        while (end <= row) {
            ++source;
            begin = end;
            end = offsets.get(grid, source + 1);
        }
    }

    // Where the row lies in the windows.
    ANABRANCH_DEVICE u64 window_row(const ReceivedView& received, u32 row) const {
        u64 first = received.row_stride != 0 ? static_cast<u64>(source) * received.row_stride : begin;
        return first + (row - begin);
    }
};

ANABRANCH_DEVICE const u32* meta_record(const ReceivedView& received, u64 window_row) {
    return reinterpret_cast<const u32*>(received.meta + window_row * received.meta_bytes);
}

// The local number of an expert that the record of a row of `source` names; NO_EXPERT if another rank computes it.
ANABRANCH_DEVICE u32 expert_here(const Grid& grid, const ReceivedView& received, u32 source, const u32* meta, u32 id) {
    if (received.local_numbers == nullptr) {
        // A masked id is a large number here.
        u32 expert = id - received.first_expert;
        return expert < received.local_experts ? expert : NO_EXPERT;
    }
    if (id >= received.placement.experts) return NO_EXPERT;
    u32 expert = private_load(grid, received.local_numbers + id);
    if (expert == NO_EXPERT) return NO_EXPERT;
    bool here = Owners::of(received.placement, source).rank_by_table(grid, id, heap_load(grid, meta)) == received.rank;
    return here ? expert : NO_EXPERT;
}

// The local number of the expert that a row of `source` names at index k; NO_EXPERT if another rank computes it.
ANABRANCH_DEVICE u32 local_expert(const Grid& grid, const ReceivedView& received, u32 source, u64 window_row, u32 k) {
    const u32* meta = meta_record(received, window_row);
    return expert_here(grid, received, source, meta, heap_load(grid, meta + 2 + k));
}

// Consecutive rows, in as many runs as the grid has blocks, or as there are rows where those are fewer. Without rows there is
// one run.
struct Runs {
    u32 total;
    u32 count;

    static ANABRANCH_DEVICE Runs of(const Grid& grid, u32 total) {
        return {total, maximum(minimum(total, grid.grid_blocks), 1u)};
    }
    // The first row of a run; of the number after the last, the total.
    ANABRANCH_DEVICE u32 first(u32 run) const { return static_cast<u32>(static_cast<u64>(total) * run / count); }
};
