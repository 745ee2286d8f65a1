// The route of copy engines: rows are staged on this rank, `row_stride` rows per destination; copy engines copy them from there.
#pragma once

#include "ep/dispatch_local.h"

struct EngineRoute {
    typedef CallerIds Ids;
    static constexpr bool RELAYS = false;
    static constexpr bool FORWARDS = false;
    static constexpr bool NUMBERS = false;
    u64 staged_rows;
    u64 staged_meta;

    ANABRANCH_DEVICE void place_tables(u32) {}
    ANABRANCH_DEVICE bool is_far(const Grid&, u32) const { return false; }

    // The number of a copy's row among the staged ones.
    static ANABRANCH_DEVICE u64 staged_row(const DispatchArgs& args, u64 entry) {
        u64 own = static_cast<u64>(args.team.rank) * args.row_stride;
        return static_cast<u64>(destination_rank(entry)) * args.row_stride + (destination_row(entry) - own);
    }
    typedef DispatchLocal<EngineRoute> Local;
    static ANABRANCH_DEVICE u64 row_at(const Grid&, const DispatchArgs& args, const Local& local, u64 entry) {
        return local.route.staged_rows + staged_row(args, entry) * args.row_bytes;
    }
    static ANABRANCH_DEVICE u64 meta_at(const Grid&, const DispatchArgs& args, const Local& local, u64 entry) {
        return local.route.staged_meta + staged_row(args, entry) * args.meta_bytes;
    }
};
