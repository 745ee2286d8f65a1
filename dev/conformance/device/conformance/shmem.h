// What the conformance kernels share: a number that depends on everything it is made from, known to the oracle too.
#pragma once

#include "shmem/shmem.h"

ANABRANCH_DEVICE u64 mixed(u64 value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

// Keeps this thread for `ns` nanoseconds.
ANABRANCH_DEVICE void delay(const Grid& grid, u64 ns) {
    u64 start = grid.clock_ns();
    for (u32 looks = 1; grid.clock_ns() - start < ns; ++looks) grid.relax(looks);
}

enum ScopeCode : u32 { SCOPE_THREAD = 0, SCOPE_WAVE = 1, SCOPE_BLOCK = 2 };

// How many groups of a scope the grid has, and which one this lane belongs to.
template <class Scope>
struct Groups;
template <>
struct Groups<shmem::Thread> {
    static ANABRANCH_DEVICE u32 index(const Grid& grid) { return grid.block * grid.block_threads + grid.thread; }
    static ANABRANCH_DEVICE u32 count(const Grid& grid) { return grid.grid_blocks * grid.block_threads; }
};
template <>
struct Groups<shmem::Wave> {
    static ANABRANCH_DEVICE u32 index(const Grid& grid) { return grid.grid_wave(); }
    static ANABRANCH_DEVICE u32 count(const Grid& grid) { return grid.grid_waves(); }
};
template <>
struct Groups<shmem::Block> {
    static ANABRANCH_DEVICE u32 index(const Grid& grid) { return grid.block; }
    static ANABRANCH_DEVICE u32 count(const Grid& grid) { return grid.grid_blocks; }
};
