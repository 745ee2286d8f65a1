// Each lane puts its requests into queues, waits as it is told, and says what came of each.
#include "anabranch/prelude.h"
#include "rdma/rdma.h"

static constexpr u32 POST = 0, POST_AND_WAIT = 1, POST_AND_QUIET = 2, FETCH = 3;

ANABRANCH_KERNEL(rdma_requests, RequestsArgs, 256) {
    WaitContext wait = wait_context(grid, args.control, 0x6001, 77, 5, 1);
    u64 lane = static_cast<u64>(grid.block) * grid.block_threads + grid.thread;
    for (u64 i = 0; i < args.each; ++i) {
        u64 index = lane * args.each + i;
        if (index >= args.count) continue;
        const AskedRequest* asked = args.requests + index;
        RdmaQueue queue = rdma::load_queue(grid, args.queues + private_load(grid, &asked->queue));
        rdma::Request request = {
            static_cast<rdma::Opcode>(private_load(grid, &asked->opcode)),
            private_load(grid, &asked->local),
            private_load(grid, &asked->remote),
            private_load(grid, &asked->bytes),
            private_load(grid, &asked->value),
            private_load(grid, &asked->compare),
            private_load(grid, &asked->word_bytes),
            private_load(grid, &asked->immediate),
            private_load(grid, &asked->fenced),
        };
        u32 how = private_load(grid, &asked->how);
        u64 end = 0, old = 0;
        WaitStatus status = WAIT_OK;
        if (how == FETCH) {
            status = rdma::fetch(grid, wait, queue, request, old);
        } else {
            status = rdma::post(grid, wait, queue, request, end);
            if (status == WAIT_OK && how == POST_AND_WAIT) status = rdma::wait_done(grid, wait, queue, end);
            if (status == WAIT_OK && how == POST_AND_QUIET) status = rdma::quiet(grid, wait, queue);
        }
        private_store(grid, &args.outcomes[index].status, static_cast<u64>(status));
        private_store(grid, &args.outcomes[index].end, end);
        private_store(grid, &args.outcomes[index].old, old);
    }
}
