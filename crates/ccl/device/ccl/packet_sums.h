// Sums of packets: what the kernels that reduce short messages share.
#pragma once

#include "ccl/packets.h"
#include "ccl/reduce.h"

namespace ccl {

// Receives one unit from every member and reduces in group-rank order. `mine` is that of this rank. False after a fault.
template <class Element, bool SUM_ONLY>
static ANABRANCH_DEVICE bool reduce_unit(const Grid& grid, const CommView& comm, const Reduction& reduction, const Channel& channel,
                                         u64 unit, u64 mine, u64& result) {
    Partial<Element, u64, SUM_ONLY> sum;
    for (u32 base = 0; base < comm.team.size; base += BATCH) {
        u64 payload[BATCH];
        if (!receive(grid, comm, channel, comm.heap, 0, base, unit, payload)) return false;
        ANABRANCH_UNROLL
        for (u32 k = 0; k < BATCH; ++k) {
            u32 source = base + k;
            if (source >= comm.team.size) continue;
            u64 raw = source == comm.team.rank ? mine : payload[k];
            if (source == 0) {
                sum = Partial<Element, u64, SUM_ONLY>::first(reduction, raw);
            } else {
                sum.add(reduction, raw);
            }
        }
    }
    result = sum.finish(reduction);
    return true;
}

// Sends one unit of this thread: one payload per peer, up to BATCH of them loaded before the first is sent.
template <class Load>
static ANABRANCH_DEVICE void send_unit(const Grid& grid, const CommView& comm, const Channel& channel, u64 unit, Load load) {
    for (u32 base = 1; base < comm.team.size; base += BATCH) {
        u64 payload[BATCH];
        ANABRANCH_UNROLL
        for (u32 k = 0; k < BATCH; ++k) {
            if (base + k < comm.team.size) payload[k] = load(rotated(comm, base + k));
        }
        ANABRANCH_UNROLL
        for (u32 k = 0; k < BATCH; ++k) {
            if (base + k < comm.team.size) send(grid, comm, channel, 0, rotated(comm, base + k), unit, payload[k]);
        }
    }
}

}  // namespace ccl
