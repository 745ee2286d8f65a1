// The register that tells a NIC to look: every store to it is heard, whichever of the NIC's queues it is for.
//
// RDMA_REGISTER, for tests on CPU threads: what stands for a register that all queues of a NIC in software share, as a word of memory
// would keep the last store alone. A count of stores, a word that is free, and that many places (a power of two), which the NIC empties.
#pragma once

#include "rdma/operation.h"

namespace rdma {

ANABRANCH_DEVICE void store_doorbell(const Grid& grid, const RdmaQueue& queue, u64 value) {
#if defined(RDMA_REGISTER)
    u64 place = fetch_add_system(grid, queue.doorbell, 1ull) & (RDMA_REGISTER - 1);
    flag_store(grid, queue.doorbell + 2 + place, value);
#else
    flag_store(grid, queue.doorbell, value);
#endif
}

}  // namespace rdma
