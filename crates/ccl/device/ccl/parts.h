// The parts of a reduce_scatter with different counts. All members know them, so that all take the steps of the longest part.
#pragma once

#include "anabranch/prelude.h"

namespace ccl {

struct UnevenParts {
    const UnevenReduceArgs& args;
    u64 bytes;          // of the longest part
    u64 output = 0;     // each rank keeps its own part alone
    ANABRANCH_DEVICE explicit UnevenParts(const UnevenReduceArgs& args) : args(args), bytes(args.reduce.part_bytes) {}
    ANABRANCH_DEVICE u64 of(u32 member) const { return args.parts[member].bytes; }
    ANABRANCH_DEVICE u64 start(u32 member) const { return args.parts[member].start; }
};

}  // namespace ccl
