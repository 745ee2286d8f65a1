// The route of mapped memory: rows are stored at their final places.
#pragma once

#include "ep/dispatch_local.h"

// Where a copy's row and record lie in the windows of a rank.
template <class Local>
static ANABRANCH_DEVICE u64 window_row(const Grid& grid, const DispatchArgs& args, const Local& local, u64 entry) {
    u64 row = destination_row(entry);
    return local.peer_base.get(grid, destination_rank(entry)) + args.rows_offset + row * args.row_bytes;
}
template <class Local>
static ANABRANCH_DEVICE u64 window_meta(const Grid& grid, const DispatchArgs& args, const Local& local, u64 entry) {
    u64 row = destination_row(entry);
    return local.peer_base.get(grid, destination_rank(entry)) + args.meta_offset + row * args.meta_bytes;
}

struct NearRoute {
    typedef CallerIds Ids;
    static constexpr bool RELAYS = false;
    static constexpr bool FORWARDS = false;
    static constexpr bool NUMBERS = false;

    ANABRANCH_DEVICE void place_tables(u32) {}
    ANABRANCH_DEVICE bool is_far(const Grid&, u32) const { return false; }

    typedef DispatchLocal<NearRoute> Local;
    static ANABRANCH_DEVICE u64 row_at(const Grid& grid, const DispatchArgs& args, const Local& local, u64 entry) {
        return window_row(grid, args, local, entry);
    }
    static ANABRANCH_DEVICE u64 meta_at(const Grid& grid, const DispatchArgs& args, const Local& local, u64 entry) {
        return window_meta(grid, args, local, entry);
    }
};
