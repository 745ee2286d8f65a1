// What a block of dispatch keeps in local memory.
#pragma once

#include "ep/routing.h"

// Local memory, in this order: peer bases u64[R], the tile's destinations u64[TILE][fan_out], next row u32[R], first row
// u32[R], capacity u32[R], number of destinations u32[TILE], fault word; then what the route has: on several nodes,
// next relay row u32[N], in a dispatch to experts the counts of pairs (`route_experts.h`). The plan computes the
// same size (`dispatch_local_bytes`). Next rows are counted from 0 at each rank; this source's row 0 there is the window's `first_row`,
// and the rows from `capacity` on are dropped. The base of a rank that was masked when the block began is 0, as is the base of a rank on
// another node.
//
// A `Route` defines how rows reach other ranks (`route_near.h`, `route_engine.h`, `route_nodes.h`, `route_relay.h`, `route_experts.h`). A kernel includes its
// route before the headers that are templates over it. A route has:
//   Ids           how ids are read
//   RELAYS        whether tokens go once to each other node; `route_relay.h` has the functions for it
//   FORWARDS      whether the rows are those that ranks of other nodes put here
//   NUMBERS       whether records have the numbers of pairs; `pair_numbers.h` has the functions for it
//   place_tables  takes local memory from this byte on
//   is_far        whether stores cannot reach a rank
//   row_at, meta_at  where a copy's row and its meta record are written
template <class Route>
struct DispatchLocal {
    LocalArray<u64> peer_base;
    LocalArray<u64> destination;
    LocalArray<u32> next_row;
    LocalArray<u32> first_row;
    LocalArray<u32> capacity;
    LocalArray<u32> fan;
    LocalArray<u32> fault;
    Route route;

    static ANABRANCH_DEVICE DispatchLocal at(u32 ranks, u32 fan_out, const Route& route) {
        DispatchLocal local;
        local.route = route;
        u32 byte = 0;
        local.peer_base.byte = byte;
        byte += ranks * 8;
        local.destination.byte = byte;
        byte += TILE * fan_out * 8;
        local.next_row.byte = byte;
        byte += ranks * 4;
        local.first_row.byte = byte;
        byte += ranks * 4;
        local.capacity.byte = byte;
        byte += ranks * 4;
        local.fan.byte = byte;
        byte += TILE * 4;
        local.fault.byte = byte;
        local.route.place_tables(byte + 4);
        return local;
    }
};
