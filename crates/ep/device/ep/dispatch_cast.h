// The dispatch that casts: rows are read as EP_CAST_FROM and sent as 8-bit codes of EP_CAST, with one f32 scale per block of 128
// elements in the row's meta record, in the place of the caller's scales. A block is encoded once and stored to
// all destinations. An element is code times scale: the scale is the block's largest magnitude divided by the type's largest
// value (`Scaled` in `ep/codec.h`). In a block with a NaN or an infinity the scale and all codes are NaN.
#pragma once

#include "ep/codec.h"
#include "ep/dispatch_piece.h"

#ifndef EP_CAST_FROM
#error "a dispatch that casts is compiled for the type of the rows it reads: Bf16, F16 or F32"
#endif
typedef EP_CAST_FROM CastFrom;
typedef EP_CAST CastTo;
typedef Scaled<CastTo> Cast;
static_assert(Cast::UNITS == UNITS_TOGETHER, "a wave has whole blocks");

// One lane's share of a block of a row: EACH of its units, LANES apart. The lanes of a block reduce its largest magnitude together.
struct CastShare {
    static constexpr u32 LANES = Cast::UNITS < WAVE_SIZE ? Cast::UNITS : WAVE_SIZE;
    static constexpr u32 EACH = Cast::UNITS / LANES;
    static constexpr u32 BLOCKS = WAVE_SIZE / LANES;  // of a wave
    f32 value[EACH][Cast::ELEMENTS] = {};
    u32 scale;
    Vec16 codes[EACH];

    // The lane's first unit of a block.
    static ANABRANCH_DEVICE u32 unit(const Grid& grid, u32 block) { return block * Cast::UNITS + grid.lane() % LANES; }

    ANABRANCH_DEVICE void load(const Grid& grid, u64 row, u32 block) {
        ANABRANCH_UNROLL
        for (u32 e = 0; e < EACH; ++e) {
            u64 element = static_cast<u64>(unit(grid, block) + e * LANES) * Cast::ELEMENTS;
            load_elements<CastFrom>(grid, row + element * CastFrom::BYTES, value[e]);
        }
    }

    // The whole wave comes here, for the shuffles; a lane that has loaded nothing has zeros.
    ANABRANCH_DEVICE void encode(const Grid& grid) {
        // The order of magnitudes is that of their bits, infinity and then NaNs above all.
        u32 largest = 0;
        ANABRANCH_UNROLL
        for (u32 e = 0; e < EACH; ++e) {
            ANABRANCH_UNROLL
            for (u32 i = 0; i < Cast::ELEMENTS; ++i) largest = maximum(largest, bit_cast<u32>(value[e][i]) & 0x7fffffffu);
        }
        for (u32 step = 1; step < LANES; step *= 2) largest = maximum(largest, grid.shuffle(largest, grid.lane() ^ step));
        scale = Cast::scale_of(bit_cast<f32>(largest));
        f32 factor = Cast::factor(bit_cast<f32>(largest), scale);
        // Which NaN a product is differs from device to device.
        bool finite = largest < 0x7f800000u;
        ANABRANCH_UNROLL
        for (u32 e = 0; e < EACH; ++e) {
            codes[e] = Vec16{{0, 0, 0, 0}};
            ANABRANCH_UNROLL
            for (u32 i = 0; i < Cast::ELEMENTS; ++i) {
                u32 code = finite ? Cast::encode(value[e][i], factor) : CastTo::NOT_A_NUMBER;
                codes[e].word[i / 4] |= code << (i % 4 * 8);
            }
        }
    }
};

// One wave casts units of a token's row and stores them to all its destinations. `dispatch_copy.h` has the same function without a cast.
template <class Route>
static ANABRANCH_DEVICE void copy_units(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local,
                                        const Piece& piece, u32 token) {
    static constexpr u32 UNROLL = 2;
    // A code is a byte, so that a row has as many elements as bytes.
    u64 source = reinterpret_cast<u64>(args.tokens) + static_cast<u64>(token) * args.row_bytes * CastFrom::BYTES;
    u32 end = piece.end / Cast::UNITS;
    u32 fan = local.fan.get(grid, piece.index);
    for (u32 first = piece.begin / Cast::UNITS; first < end; first += CastShare::BLOCKS * UNROLL) {
        CastShare share[UNROLL];
        u32 block[UNROLL];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) {
            block[u] = first + u * CastShare::BLOCKS + grid.lane() / CastShare::LANES;
            if (block[u] < end) share[u].load(grid, source, block[u]);
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) share[u].encode(grid);
        // Each block starts with another destination, so that no link gets all blocks at once.
        u32 turn = (grid.block + args.team.rank) % maximum(fan, 1u);
        for (u32 n = 0; n < fan; ++n) {
            u64 entry = local.destination.get(grid, piece.index * args.fan_out + turn);
            turn = turn + 1 == fan ? 0 : turn + 1;
            Vec16* target = reinterpret_cast<Vec16*>(Route::row_at(grid, args, local, entry));
            u32* scales = reinterpret_cast<u32*>(Route::meta_at(grid, args, local, entry)) + 2 + 2 * args.top_k;
            ANABRANCH_UNROLL
            for (u32 u = 0; u < UNROLL; ++u) {
                if (block[u] >= end) continue;
                u32 unit = CastShare::unit(grid, block[u]);
                ANABRANCH_UNROLL
                for (u32 e = 0; e < CastShare::EACH; ++e) {
                    remote_store(grid, target + unit + e * CastShare::LANES, share[u].codes[e]);
                }
                if (grid.lane() % CastShare::LANES == 0) remote_store(grid, scales + block[u], share[u].scale);
            }
        }
    }
}
