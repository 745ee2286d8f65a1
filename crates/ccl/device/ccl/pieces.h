// Reduces ranges of bytes at several members, or in several parts of the staging.
#pragma once

#include "ccl/meet.h"
#include "ccl/buffer.h"
#include "ccl/reduce.h"

namespace ccl {

// Members whose pieces are loaded before any is added.
static constexpr u32 SOURCES = 4;
// Pieces per member that a thread has in flight: two in the fast variant. In the other variants code size would double.
template <class Raw, bool SUM_ONLY>
static constexpr u32 PIECES_OF = SUM_ONLY && sizeof(Raw) == 16 ? 2 : 1;

// Reduces `count` pieces. `source(member)` is the address of the pieces of a member, `target(i)` that of result i, of `targets`.
template <class Element, class Raw, bool SUM_ONLY, class Source, class Target>
ANABRANCH_DEVICE void reduce_pieces(const Grid& grid, const ReduceArgs& args, const Reduction& reduction, u64 count, Source source,
                                    u32 targets, Target target) {
    static constexpr u32 PIECES = PIECES_OF<Raw, SUM_ONLY>;
    u32 size = args.comm.team.size;
    for (u64 first = grid.thread; first < count; first += static_cast<u64>(grid.block_threads) * PIECES) {
        Partial<Element, Raw, SUM_ONLY> sum[PIECES];
        for (u32 base = 0; base < size; base += SOURCES) {
            Raw piece[SOURCES][PIECES];
            ANABRANCH_UNROLL
            for (u32 k = 0; k < SOURCES; ++k) {
                if (base + k >= size) continue;
                const Raw* from = reinterpret_cast<const Raw*>(source(base + k));
                ANABRANCH_UNROLL
                for (u32 u = 0; u < PIECES; ++u) {
                    u64 at = first + static_cast<u64>(u) * grid.block_threads;
                    if (at < count) piece[k][u] = remote_load(grid, from + at);
                }
            }
            ANABRANCH_UNROLL
            for (u32 k = 0; k < SOURCES; ++k) {
                if (base + k >= size) continue;
                ANABRANCH_UNROLL
                for (u32 u = 0; u < PIECES; ++u) {
                    if (first + static_cast<u64>(u) * grid.block_threads >= count) continue;
                    if (base + k == 0) {
                        sum[u] = Partial<Element, Raw, SUM_ONLY>::first(reduction, piece[k][u]);
                    } else {
                        sum[u].add(reduction, piece[k][u]);
                    }
                }
            }
        }
        Raw result[PIECES];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < PIECES; ++u) {
            if (first + static_cast<u64>(u) * grid.block_threads < count) result[u] = sum[u].finish(reduction);
        }
        for (u32 i = 0; i < targets; ++i) {
            Raw* to = reinterpret_cast<Raw*>(target(i));
            ANABRANCH_UNROLL
            for (u32 u = 0; u < PIECES; ++u) {
                u64 at = first + static_cast<u64>(u) * grid.block_threads;
                if (at < count) remote_store(grid, to + at, result[u]);
            }
        }
    }
}

// Reduces bytes [0, bytes) of all members, as wide as the addresses allow.
template <class Element, bool SUM_ONLY, class Source, class Target>
ANABRANCH_DEVICE void reduce_bytes(const Grid& grid, const ReduceArgs& args, const Reduction& reduction, u64 bytes, Source source,
                                   u32 targets, Target target) {
    u64 wide = args.is_aligned != 0 ? bytes & ~u64(15) : 0;
    if (wide != 0) reduce_pieces<Element, Vec16, SUM_ONLY>(grid, args, reduction, wide / 16, source, targets, target);
    if (wide == bytes) return;
    typedef typename Element::Raw Narrow;
    reduce_pieces<Element, Narrow, SUM_ONLY>(
        grid, args, reduction, (bytes - wide) / Element::BYTES, [&](u32 member) { return source(member) + wide; }, targets,
        [&](u32 i) { return target(i) + wide; });
}

}  // namespace ccl
