// The dispatch that casts: rows are read as EP_CAST_FROM and sent as codes of EP_CAST, of eight bits, with one f32 scale for each
// block of 128 elements in the row's meta record, where scales of the caller's would lie. A block is encoded once and stored to
// all destinations. Code times scale is the element: the scale is the block's largest magnitude divided by the type's largest
// value (`Scaled` in `ep/codec.h`). A block that holds a NaN or an infinity has NaNs for its scale and all its codes.
#pragma once

#include "ep/codec.h"

#ifndef EP_CAST_FROM
#error "a dispatch that casts is compiled for the type of the rows it reads: Bf16, F16 or F32"
#endif
typedef EP_CAST_FROM CastFrom;
typedef EP_CAST CastTo;
typedef Scaled<CastTo> Cast;
static_assert(Cast::UNITS == UNITS_TOGETHER, "a wave has whole blocks");

// In place of the copy that `dispatch_rows.h` has for other kernels.
static ANABRANCH_DEVICE void copy_units(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local,
                                        const Piece& piece, u32 token) {
    typedef BlockShare<Cast, CastFrom> Share;
    static constexpr u32 UNROLL = 2;
    // A code is a byte, so that a row has as many elements as bytes.
    u64 source = reinterpret_cast<u64>(args.tokens) + static_cast<u64>(token) * args.row_bytes * CastFrom::BYTES;
    u32 begin = piece.begin / Cast::UNITS, end = piece.end / Cast::UNITS;
    u32 fan = local.fan.get(grid, piece.index);
    for (u32 first = begin; first < end; first += Share::BLOCKS * UNROLL) {
        Share share[UNROLL];
        u32 block[UNROLL];
        Vec16 codes[UNROLL][Share::EACH];
        u32 scale[UNROLL];
#pragma unroll
        for (u32 u = 0; u < UNROLL; ++u) {
            block[u] = first + u * Share::BLOCKS + grid.lane() / Share::LANES;
            share[u].load(grid, source, block[u], block[u] < end);
        }
#pragma unroll
        for (u32 u = 0; u < UNROLL; ++u) {
            share[u].find_largest(grid);
            f32 largest = bit_cast<f32>(share[u].largest);
            bool finite = share[u].largest < 0x7f800000u;
            scale[u] = Cast::scale_of(largest);
            f32 factor = Cast::factor(largest, scale[u]);
#pragma unroll
            for (u32 e = 0; e < Share::EACH; ++e) {
                codes[u][e] = share[u].codes(e, factor);
                // Which NaN a product is differs from device to device.
                u32 nans = CastTo::NOT_A_NUMBER * 0x01010101u;
#pragma unroll
                for (u32 w = 0; w < 4; ++w) codes[u][e].word[w] = finite ? codes[u][e].word[w] : nans;
            }
        }
        // Each block starts with another destination, so that no link gets all blocks at once.
        u32 turn = (grid.block + args.team.rank) % maximum(fan, 1u);
        for (u32 n = 0; n < fan; ++n) {
            u64 entry = local.destination.get(grid, piece.index * args.fan_out + turn);
            turn = turn + 1 == fan ? 0 : turn + 1;
            u64 base = local.peer_base.get(grid, destination_rank(entry));
            u64 row = destination_row(entry);
            Vec16* target = reinterpret_cast<Vec16*>(base + args.rows_offset + row * args.row_bytes);
            u32* scales = reinterpret_cast<u32*>(base + args.meta_offset + row * args.meta_bytes) + 2 + 2 * args.top_k;
#pragma unroll
            for (u32 u = 0; u < UNROLL; ++u) {
                if (block[u] >= end) continue;
#pragma unroll
                for (u32 e = 0; e < Share::EACH; ++e) {
                    remote_store(grid, target + Share::unit(grid, block[u]) + e * Share::LANES, codes[u][e]);
                }
                if (grid.lane() % Share::LANES == 0) remote_store(grid, scales + block[u], scale[u]);
            }
        }
    }
}
