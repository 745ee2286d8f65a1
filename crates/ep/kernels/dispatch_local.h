// What a block of dispatch keeps in local memory, and where the copies go.
#pragma once

// Local memory, in this order: peer bases u64[R], the tile's destinations u64[TILE][fan_out], next row u32[R], first row
// u32[R], room u32[R], number of destinations u32[TILE], fault word. The plan computes the same size
// (`dispatch_local_bytes`). Next rows are counted from 0 at each rank; this source's row 0 there is the window's `first_row`,
// and the rows from `room` on are dropped. The base of a rank that was masked when the block began is 0.
struct DispatchLocal {
    LocalArray<u64> peer_base;
    LocalArray<u64> destination;
    LocalArray<u32> next_row;
    LocalArray<u32> first_row;
    LocalArray<u32> room;
    LocalArray<u32> fan;
    LocalArray<u32> fault;
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
        return local;
    }
};

// Where a copy's row and its meta record are written: at their final places, or, compiled with EP_ENGINE, on this rank in an
// image of them, from which engines copy.
#ifdef EP_ENGINE
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
