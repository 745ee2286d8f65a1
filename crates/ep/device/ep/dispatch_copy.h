// The dispatch that does not cast: rows are sent as they are. `dispatch_cast.h` has the same function for kernels that cast.
#pragma once

#include "ep/dispatch_piece.h"

// A unit of a row that goes out: the caller's, or one that a peer has written here.
template <class Route>
static ANABRANCH_DEVICE Vec16 load_unit(const Grid& grid, const Vec16* unit) {
    if constexpr (Route::FORWARDS) return heap_load(grid, unit);
    return stream_load(grid, unit);
}

// One wave copies units of a token's row to all its destinations: loaded once, stored to each.
template <class Route>
static ANABRANCH_DEVICE void copy_units(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local,
                                        const Piece& piece, u32 token) {
    static constexpr u32 UNROLL = 4;
    const Vec16* source = reinterpret_cast<const Vec16*>(args.tokens + static_cast<u64>(token) * args.row_bytes);
    u32 fan = local.fan.get(grid, piece.index);
    for (u32 first = piece.begin + grid.lane(); first < piece.end; first += WAVE_SIZE * UNROLL) {
        Vec16 unit[UNROLL];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) {
            u32 at = first + u * WAVE_SIZE;
            if (at < piece.end) unit[u] = load_unit<Route>(grid, source + at);
        }
        // Each block starts with another destination, so that no link gets all blocks at once.
        u32 turn = (grid.block + args.team.rank) % maximum(fan, 1u);
        for (u32 n = 0; n < fan; ++n) {
            u64 entry = local.destination.get(grid, piece.index * args.fan_out + turn);
            turn = turn + 1 == fan ? 0 : turn + 1;
            Vec16* target = reinterpret_cast<Vec16*>(Route::row_at(grid, args, local, entry));
            ANABRANCH_UNROLL
            for (u32 u = 0; u < UNROLL; ++u) {
                u32 at = first + u * WAVE_SIZE;
                if (at < piece.end) remote_store(grid, target + at, unit[u]);
            }
        }
    }
}
