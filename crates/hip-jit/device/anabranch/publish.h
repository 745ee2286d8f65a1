// Making a block's stores visible before a flag. The only place where data, fence and flag are put in order.
//
// Argument. A flag store is relaxed; what orders the payload before it differs by target.
// - AMD (and the host, which follows it): `s_barrier` drains no other wave's stores, so every wave releases at system
//   scope and waits for its own stores; then the barrier; then one thread stores the flag.
// - NVIDIA: the barrier orders the block's stores before thread 0 (causality order is transitive through the barrier),
//   and thread 0's system fence is cumulative over them; then it stores the flag.
// Across blocks the last block to arrive must first acquire what the others released at device scope: its
// read-modify-write comes between a device release and a device acquire, then a system release covers all of it.
#pragma once

// Every thread of the block. After it returns, a flag stored by thread 0 publishes all stores that the block made
// before the call.
ANABRANCH_DEVICE void block_release_system(const Grid& grid) {
#if ANABRANCH_HAS_PER_WAVE_RELEASE
    fence_release_system(grid);
    grid.block_barrier();
#else
    grid.block_barrier();
    if (grid.thread == 0) fence_release_system(grid);
#endif
}

// Every thread of the block. After it returns, a flag that any thread of the block stores publishes what earlier work of the stream
// did in this device's memory. Nothing of this kernel: what it has stored before is not published.
//
// Argument. NVIDIA: a kernel begins when the work before it on its stream has ended, and that work's accesses to this device's memory
// are in its L2 cache then, through which peers access that memory too. So a peer that has seen a flag of the kernel finds the stores,
// and no load of earlier work finds what the peer stores. PTX states the order only with a fence in the thread that stores the flag;
// NCCL's symmetric kernels arrive relaxed here too (`ncclSymkRun_AllReduce_RSxLD_AGxST`, 2.28). It took 1.2 us at the start of a kernel on H200.
// AMD: a kernel may end without a release at system scope if HIP knows of no reader outside the device, so every wave releases, as
// after stores of its own.
ANABRANCH_DEVICE void offer_earlier_work(const Grid& grid) {
#if ANABRANCH_KERNELS_END_RELEASED
    name_earlier_work(grid);
#else
    block_release_system(grid);
#endif
}

// By thread 0 of the last block. Where fences are cumulative it covers all blocks, and has acquired what they counted in.
ANABRANCH_DEVICE void last_release_system(const Grid& grid) {
    fence_release_system(grid);
}

// Every thread of the block. Counts the block behind its stores, and returns true, in every thread of the block, in the one
// block that is the last of `blocks`. In that block a flag stored by thread 0 afterwards publishes the stores of all blocks.
// That block also sets the counter back to zero: it is alone with it, because all others have been counted, and the next
// launch that uses the counter comes later in stream order, on this stream or on one that waits for it.
//
// Where waves release on their own (AMD), each does so at system scope at once: its stores to a peer must have arrived
// before it is counted, because no other wave's fence drains them. On NVIDIA fences are cumulative: a release at device
// scope before the count, and one at system scope by the last block, order all stores before its flags.
ANABRANCH_DEVICE bool arrive_is_last(const Grid& grid, u32* counter, u32 blocks) {
#if ANABRANCH_HAS_PER_WAVE_RELEASE
    block_release_system(grid);
#else
    grid.block_barrier();
#endif
    u64 last = 0;
    if (grid.thread == 0 && blocks == 1) {
#if !ANABRANCH_HAS_PER_WAVE_RELEASE
        last_release_system(grid);
#endif
        last = 1;
    } else if (grid.thread == 0) {
        fence_release_device(grid);
        u32 arrived = fetch_add_device(grid, counter, 1u) + 1;
        last = arrived == blocks ? 1 : 0;
        if (last != 0) {
#if ANABRANCH_HAS_PER_WAVE_RELEASE
            fence_acquire_device(grid);
#endif
            last_release_system(grid);
            private_store(grid, counter, 0u);
        }
    }
    return grid.block_broadcast(last) != 0;
}
