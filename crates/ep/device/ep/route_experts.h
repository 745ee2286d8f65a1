// The route of a dispatch to experts: mapped memory, and records with the numbers of pairs (`ep/pair_numbers.h`).
#pragma once

#include "ep/route_near.h"

struct ExpertRoute {
    typedef CallerIds Ids;
    static constexpr bool RELAYS = false;
    static constexpr bool FORWARDS = false;
    static constexpr bool NUMBERS = true;

    // Copies of all experts, the word of a record with the first number, and the window of totals.
    u32 copies, numbers_word, totals_stride;
    u64 totals_offset;
    // Local memory: earlier pairs of each copy of an expert u32[copies], whether a rank became full in this block's tokens u32[ranks],
    // whether any did. The host computes the same size (`numbering_local_bytes`).
    u32 ranks;
    LocalArray<u32> next, full;

    ANABRANCH_DEVICE void place_tables(u32 byte) {
        next.byte = byte;
        full.byte = byte + copies * 4;
    }
    ANABRANCH_DEVICE u32 end_byte() const { return full.byte + (ranks + 1) * 4; }
    ANABRANCH_DEVICE bool is_far(const Grid&, u32) const { return false; }

    typedef DispatchLocal<ExpertRoute> Local;
    static ANABRANCH_DEVICE u64 row_at(const Grid& grid, const DispatchArgs& args, const Local& local, u64 entry) {
        return window_row(grid, args, local, entry);
    }
    static ANABRANCH_DEVICE u64 meta_at(const Grid& grid, const DispatchArgs& args, const Local& local, u64 entry) {
        return window_meta(grid, args, local, entry);
    }
};
