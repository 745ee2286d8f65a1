// The route of several nodes: rows for ranks of this node are stored at their final places, rows for other nodes are staged on this rank,
// grouped by target. A target is a rank, or, where tokens go once to each node (BY_NODE), a node: node n is destination R + n.
#pragma once

#include "ep/dispatch_local.h"
#include "ep/nodes.h"
#include "ep/route_near.h"

template <bool BY_NODE>
struct NodesRoute {
    typedef CallerIds Ids;
    static constexpr bool RELAYS = BY_NODE;
    static constexpr bool FORWARDS = false;
    static constexpr bool NUMBERS = false;
    u64 staged_rows;
    u64 staged_meta;
    NodesView nodes;
    u32 max_tokens;
    // The number of tokens for each node.
    u32* relayed;
    LocalArray<u32> next_relay;

    ANABRANCH_DEVICE void place_tables(u32 byte) { next_relay.byte = byte; }
    ANABRANCH_DEVICE bool is_far(const Grid& grid, u32 rank) const { return !is_near(grid, nodes, rank); }

    typedef DispatchLocal<NodesRoute> Local;
    static ANABRANCH_DEVICE bool is_staged(const Grid& grid, const DispatchArgs& args, const Local& local, u64 entry) {
        u32 rank = destination_rank(entry);
        return (BY_NODE && rank >= args.team.size) || local.peer_base.get(grid, rank) == 0;
    }
    // The number of a copy's row among the staged ones.
    ANABRANCH_DEVICE u64 staged_row(const DispatchArgs& args, u64 entry) const {
        u64 target = destination_rank(entry), row = destination_row(entry);
        if constexpr (BY_NODE) return (target - args.team.size) * max_tokens + row;
        return target * args.row_stride + (row - static_cast<u64>(args.team.rank) * args.row_stride);
    }
    static ANABRANCH_DEVICE u64 row_at(const Grid& grid, const DispatchArgs& args, const Local& local, u64 entry) {
        if (!is_staged(grid, args, local, entry)) return window_row(grid, args, local, entry);
        return local.route.staged_rows + local.route.staged_row(args, entry) * args.row_bytes;
    }
    static ANABRANCH_DEVICE u64 meta_at(const Grid& grid, const DispatchArgs& args, const Local& local, u64 entry) {
        if (!is_staged(grid, args, local, entry)) return window_meta(grid, args, local, entry);
        return local.route.staged_meta + local.route.staged_row(args, entry) * args.meta_bytes;
    }
};
