// Copies by the queues of copy engines, in the order of a stream: what came before on it is what is copied, and what follows
// finds all copies done. One block of one wave; it moves no byte itself.
//
// Its queues are those of the device functions; nothing here waits for a peer. It ends when everything that its queues had before, others'
// operations too, is done (`quiet` in sdma/queue.h): lanes post any number of copies, and keep no position of each.
#include "anabranch/prelude.h"
#include "shmem/shmem.h"

static ANABRANCH_DEVICE const SdmaQueue* queue_of(const EngineCopiesArgs& args, u32 index) {
    u32 each = args.team.queues_per_peer;
    return args.team.queues + (static_cast<u64>(args.copies[index].peer) * each + index % each);
}

ANABRANCH_KERNEL(anabranch_engine_copies, EngineCopiesArgs, 64) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 0);
    // What earlier kernels wrote; their ends have released it, but not on every device past all caches.
    shmem::Wave::release_for_leader(grid);
    bool posted = true;
    for (u32 index = grid.lane(); index < args.count && posted; index += WAVE_SIZE) {
        SdmaQueue queue = sdma::load_queue(grid, queue_of(args, index));
        sdma::Operation copy = {args.copies[index].source, args.copies[index].target, args.copies[index].bytes,
                                sdma::Tail::NOTHING,     nullptr,                 0,
                                true};
        u64 end = 0;
        posted = sdma::post(grid, context.wait, queue, copy, end) == WAIT_OK;
    }
    for (u32 index = grid.lane(); index < args.count && posted; index += WAVE_SIZE) {
        SdmaQueue queue = sdma::load_queue(grid, queue_of(args, index));
        posted = sdma::quiet(grid, context.wait, queue) == WAIT_OK;
    }
    acquire_after_wait(grid);
}
