// Pipelines of two hops on a channel, in steps: in step k the first hop writes piece k, and the second hop works on piece k - 1, which the
// step before brought. A barrier ends each step.
#pragma once

#include "ccl/buffer.h"
#include "ccl/meet.h"

namespace ccl {

// Where the part of an owner starts: those of all members but the root, in their order.
ANABRANCH_DEVICE u64 hop_start(u32 owner, u32 root, u64 part) { return (owner - (owner > root ? 1 : 0)) * part; }

// Where a step has no piece: beyond every part.
static constexpr u64 NO_PIECE = u64(1) << 62;

// The pieces of a part that a channel moves. Parts have equal strides, and all members take the steps of the longest part.
struct HopPieces {
    u64 bytes;   // of a piece
    u64 stride;  // between two pieces of a channel
    u64 count;   // of pieces
    u64 start;   // of the first piece
    ANABRANCH_DEVICE HopPieces(const Grid& grid, u64 bytes, u64 part)
        : bytes(bytes), stride(grid.grid_blocks * bytes), count((part + stride - 1) / stride), start(grid.block * bytes) {}
    // Where piece k starts in each part.
    ANABRANCH_DEVICE u64 at(u64 k) const { return k < count ? start + k * stride : NO_PIECE; }
};

struct HopStep {
    u64 first = NO_PIECE;    // where piece k starts in each part
    u64 before = NO_PIECE;   // ... and piece k - 1
    u64 earlier = NO_PIECE;  // ... and piece k - 2
    u64 to = 0;              // the half of the staging that this step writes
    u64 from = 0;            // ... and that the step before wrote
    ANABRANCH_DEVICE void advance(u64 next, u64 half) {
        earlier = before;
        before = first;
        first = next;
        from = to;
        to = half;
    }
};

}  // namespace ccl
