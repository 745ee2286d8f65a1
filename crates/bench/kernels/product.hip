// C = A * B^T of square matrices, rows of bf16 and sums in f32, tile by tile: a plain product for runtimes without a library of products
// that this program knows. The size is a multiple of a tile's.
#include "anabranch/prelude.h"

static constexpr u32 TILE = 16;
static constexpr u32 TILE_ELEMENTS = TILE * TILE;
// Local memory: a tile of A, one of B, and the sums; each sum is its thread's own.
static constexpr u32 LOCAL_A = 0;
static constexpr u32 LOCAL_B = TILE_ELEMENTS * 4;
static constexpr u32 LOCAL_SUMS = 2 * TILE_ELEMENTS * 4;

ANABRANCH_KERNEL(anabranch_bench_product, ProductArgs, 256) {
    u64 size = args.size, tiles = size / TILE;
    for (u64 tile = grid.block; tile < tiles * tiles; tile += grid.grid_blocks) {
        u64 row = tile / tiles * TILE, column = tile % tiles * TILE;
        for (u32 e = grid.thread; e < TILE_ELEMENTS; e += grid.block_threads) grid.local_store<f32>(LOCAL_SUMS + e * 4, 0.0f);
        for (u64 k = 0; k < size; k += TILE) {
            grid.block_barrier();
            for (u32 e = grid.thread; e < TILE_ELEMENTS; e += grid.block_threads) {
                u64 inner = k + e % TILE;
                u16 a = private_load(grid, args.a + (row + e / TILE) * size + inner);
                u16 b = private_load(grid, args.b + (column + e / TILE) * size + inner);
                grid.local_store<f32>(LOCAL_A + e * 4, bf16_to_f32(a));
                grid.local_store<f32>(LOCAL_B + e * 4, bf16_to_f32(b));
            }
            grid.block_barrier();
            for (u32 e = grid.thread; e < TILE_ELEMENTS; e += grid.block_threads) {
                f32 sum = grid.local_load<f32>(LOCAL_SUMS + e * 4);
                for (u32 j = 0; j < TILE; ++j) {
                    f32 a = grid.local_load<f32>(LOCAL_A + (e / TILE * TILE + j) * 4);
                    f32 b = grid.local_load<f32>(LOCAL_B + (e % TILE * TILE + j) * 4);
                    sum += a * b;
                }
                grid.local_store<f32>(LOCAL_SUMS + e * 4, sum);
            }
        }
        for (u32 e = grid.thread; e < TILE_ELEMENTS; e += grid.block_threads) {
            private_store(grid, args.c + (row + e / TILE) * size + column + e % TILE, grid.local_load<f32>(LOCAL_SUMS + e * 4));
        }
    }
}
