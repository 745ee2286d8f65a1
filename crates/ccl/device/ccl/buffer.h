// Buffers of a call: loads and stores of their bytes, a piece at a time. A peer may access them, so that only the primitives for such
// memory are used here.
#pragma once

#include "anabranch/prelude.h"

namespace ccl {

// Special member numbers, as in src/device/args.rs: every member, and none.
static constexpr u32 MOVE_ALL = 0xffffffffu;
static constexpr u32 MOVE_NONE = 0xfffffffeu;
static constexpr u32 REDUCE_ALL = 0xffffffffu;

// Loads up to 8 bytes at `byte` of a buffer of `bytes` bytes; the rest is zero. `wide`: the addresses of the buffer are multiples of 8.
ANABRANCH_DEVICE u64 load_payload(const Grid& grid, u64 buffer, u64 byte, u64 bytes, bool wide) {
    const u8* from = reinterpret_cast<const u8*>(buffer + byte);
    if (wide && byte + 8 <= bytes) return heap_load(grid, reinterpret_cast<const u64*>(from));
    u64 payload = 0;
    ANABRANCH_ROLLED
    for (u32 i = 0; i < 8; ++i) {
        if (byte + i < bytes) payload |= static_cast<u64>(heap_load(grid, from + i)) << (8 * i);
    }
    return payload;
}

ANABRANCH_DEVICE void store_payload(const Grid& grid, u64 buffer, u64 byte, u64 bytes, bool wide, u64 payload) {
    u8* to = reinterpret_cast<u8*>(buffer + byte);
    if (wide && byte + 8 <= bytes) {
        heap_store(grid, reinterpret_cast<u64*>(to), payload);
    } else {
        ANABRANCH_ROLLED
        for (u32 i = 0; i < 8; ++i) {
            if (byte + i < bytes) heap_store(grid, to + i, static_cast<u8>(payload >> (8 * i)));
        }
    }
}

// The number of bytes of a message of `bytes` bytes in [first, first + length).
ANABRANCH_DEVICE u64 cut(u64 first, u64 length, u64 bytes) { return first < bytes ? minimum(length, bytes - first) : 0; }

// Loads in flight per thread. More of them fill a link with fewer threads, but their code makes short kernels slower.
static constexpr u32 LOADS = 4;
static constexpr u32 LOADS_OF_LONG = 8;

// Copies bytes [0, bytes) in pieces of `sizeof(Raw)`, by `lanes` threads, of which this is number `lane`.
template <class Raw, u32 UNROLL = LOADS>
ANABRANCH_DEVICE void copy_as(const Grid& grid, u32 lane, u32 lanes, u64 to, u64 from, u64 bytes) {
    Raw* target = reinterpret_cast<Raw*>(to);
    const Raw* source = reinterpret_cast<const Raw*>(from);
    u64 count = bytes / sizeof(Raw);
    for (u64 next = lane; next < count; next += static_cast<u64>(lanes) * UNROLL) {
        u64 i = hidden(next);
        Raw piece[UNROLL];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) {
            u64 at = i + static_cast<u64>(u) * lanes;
            if (at < count) piece[u] = remote_load(grid, source + at);
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) {
            u64 at = i + static_cast<u64>(u) * lanes;
            if (at < count) remote_store(grid, target + at, piece[u]);
        }
    }
}

// Copies at any alignment: as wide as the addresses allow, the last bytes one by one.
template <u32 WIDE_LOADS = LOADS>
ANABRANCH_DEVICE void copy_bytes(const Grid& grid, u32 lane, u32 lanes, u64 to, u64 from, u64 bytes) {
    u64 offset = to | from;
    u64 wide = 0;
    if (offset % 16 == 0) {
        wide = bytes & ~u64(15);
        copy_as<Vec16, WIDE_LOADS>(grid, lane, lanes, to, from, wide);
    } else if (offset % 4 == 0) {
        wide = bytes & ~u64(3);
        copy_as<u32>(grid, lane, lanes, to, from, wide);
    } else if (offset % 2 == 0) {
        wide = bytes & ~u64(1);
        copy_as<u16>(grid, lane, lanes, to, from, wide);
    }
    copy_as<u8>(grid, lane, lanes, to + wide, from + wide, bytes - wide);
}
// By all threads of the block.
template <u32 WIDE_LOADS = LOADS>
ANABRANCH_DEVICE void copy_bytes(const Grid& grid, u64 to, u64 from, u64 bytes) {
    copy_bytes<WIDE_LOADS>(grid, grid.thread, grid.block_threads, to, from, bytes);
}

}  // namespace ccl
