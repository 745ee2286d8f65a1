// What a block of dispatch keeps in local memory, and where the copies go.
#pragma once

// Local memory, in this order: peer bases u64[R], the tile's destinations u64[TILE][fan_out], next row u32[R], first row
// u32[R], room u32[R], number of destinations u32[TILE], fault word; across nodes, next relay row u32[N]. The plan computes the same size
// (`dispatch_local_bytes`). Next rows are counted from 0 at each rank; this source's row 0 there is the window's `first_row`,
// and the rows from `room` on are dropped. The base of a rank that was masked when the block began is 0, and that of a rank on
// another node.
struct DispatchLocal {
    LocalArray<u64> peer_base;
    LocalArray<u64> destination;
    LocalArray<u32> next_row;
    LocalArray<u32> first_row;
    LocalArray<u32> room;
    LocalArray<u32> fan;
    LocalArray<u32> fault;
#ifdef EP_NODES
    // Of what goes to other nodes: where it is staged, and, where tokens go once to each, how many have gone.
    u64 staged_rows;
    u64 staged_meta;
    NodesView nodes;
    u32 max_tokens;
    u32* relayed;
    LocalArray<u32> next_relay;
    // Of what is forwarded: the source's records.
    u64 relay_meta;
#endif
#ifdef EP_ENGINE
    // Of what is copied by engines later: as the windows of all ranks lie, one rank's rows behind those of the other.
    u64 staged_rows;
    u64 staged_meta;
#endif

    static ANABRANCH_DEVICE DispatchLocal at(u32 ranks, u32 fan_out) {
        DispatchLocal local;
        u32 byte = 0;
        local.peer_base.byte = byte;
        byte += ranks * 8;
        local.destination.byte = byte;
        byte += TILE * fan_out * 8;
        local.next_row.byte = byte;
        byte += ranks * 4;
        local.first_row.byte = byte;
        byte += ranks * 4;
        local.room.byte = byte;
        byte += ranks * 4;
        local.fan.byte = byte;
        byte += TILE * 4;
        local.fault.byte = byte;
#ifdef EP_NODES
        byte += 4;
        local.next_relay.byte = byte;
#endif
        return local;
    }
};

// Whether the rank is reached by what is staged, not by stores.
#ifdef EP_NODES
static ANABRANCH_DEVICE bool is_far(const Grid& grid, const DispatchLocal& local, u32 rank) {
    return private_load(grid, local.nodes.node_of + rank) != local.nodes.node;
}
#else
static ANABRANCH_DEVICE bool is_far(const Grid&, const DispatchLocal&, u32) { return false; }
#endif
// Whether tokens go once to each node (EP_RELAY), and whether they are forwarded there (EP_FORWARD).
#ifdef EP_RELAY
static constexpr bool RELAYS = true;
#else
static constexpr bool RELAYS = false;
#endif
#ifdef EP_FORWARD
static constexpr bool FORWARDS = true;
#else
static constexpr bool FORWARDS = false;
#endif

// The ids of a token, and how far they are from those of the next: the caller's lie close, those forwarded in their records.
static ANABRANCH_DEVICE u32 id_stride(const DispatchArgs& args) { return FORWARDS ? args.meta_bytes / 4 : args.top_k; }
static ANABRANCH_DEVICE const i32* ids_of(const DispatchArgs& args, u32 token) {
    return args.ids + static_cast<u64>(token) * id_stride(args);
}

// A unit of a row that goes out: the caller's, or one that a peer has written here.
static ANABRANCH_DEVICE Vec16 load_unit(const Grid& grid, const Vec16* unit) {
    if constexpr (FORWARDS) return heap_load(grid, unit);
    return stream_load(grid, unit);
}

// Where a copy's row and its meta record are written: at their final places, or, compiled with EP_ENGINE, on this rank in an
// image of them, from which engines copy; with EP_NODES, those for other nodes on this rank, one target's behind those of the other.
#if defined(EP_NODES)
static ANABRANCH_DEVICE u64 near_base(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local, u64 entry) {
    u32 rank = destination_rank(entry);
    return RELAYS && rank >= args.team.size ? 0 : local.peer_base.get(grid, rank);
}
static ANABRANCH_DEVICE u64 staged_row(const DispatchArgs& args, const DispatchLocal& local, u64 entry) {
    u64 target = destination_rank(entry), row = destination_row(entry);
    if constexpr (RELAYS) return (target - args.team.size) * local.max_tokens + row;
    return target * args.row_stride + (row - static_cast<u64>(args.team.rank) * args.row_stride);
}
static ANABRANCH_DEVICE u64 row_at(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local, u64 entry) {
    u64 base = near_base(grid, args, local, entry), row = destination_row(entry);
    if (base == 0) return local.staged_rows + staged_row(args, local, entry) * args.row_bytes;
    return base + args.rows_offset + row * args.row_bytes;
}
static ANABRANCH_DEVICE u64 meta_at(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local, u64 entry) {
    u64 base = near_base(grid, args, local, entry), row = destination_row(entry);
    if (base == 0) return local.staged_meta + staged_row(args, local, entry) * args.meta_bytes;
    return base + args.meta_offset + row * args.meta_bytes;
}
#elif defined(EP_ENGINE)
static ANABRANCH_DEVICE u64 staged_row(const DispatchArgs& args, u64 entry) {
    u64 own = static_cast<u64>(args.team.rank) * args.row_stride;
    return static_cast<u64>(destination_rank(entry)) * args.row_stride + (destination_row(entry) - own);
}
static ANABRANCH_DEVICE u64 row_at(const Grid&, const DispatchArgs& args, const DispatchLocal& local, u64 entry) {
    return local.staged_rows + staged_row(args, entry) * args.row_bytes;
}
static ANABRANCH_DEVICE u64 meta_at(const Grid&, const DispatchArgs& args, const DispatchLocal& local, u64 entry) {
    return local.staged_meta + staged_row(args, entry) * args.meta_bytes;
}
#else
static ANABRANCH_DEVICE u64 row_at(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local, u64 entry) {
    u64 row = destination_row(entry);
    return local.peer_base.get(grid, destination_rank(entry)) + args.rows_offset + row * args.row_bytes;
}
static ANABRANCH_DEVICE u64 meta_at(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local, u64 entry) {
    u64 row = destination_row(entry);
    return local.peer_base.get(grid, destination_rank(entry)) + args.meta_offset + row * args.meta_bytes;
}
#endif
