// What the host asks of a team in the order of a stream, where members are reached by NIC. One block of one wave, but for the barrier; the
// counterparts for mapped members are team_barrier.hip and copies of streams. Compiled as units that use the device functions by NIC are.
#include "anabranch/prelude.h"
#include "shmem/shmem.h"

// A barrier of all members, mapped or not: the argument is that of `team_sync`. What came before on the stream is done first: copies and
// signals of the kernels below end with their completion, other kernels need not, and a NIC may still have what they put.
ANABRANCH_KERNEL(anabranch_nic_team_barrier, TeamBarrierArgs, 256) {
    // One answer for the whole block: the meeting at the end must not be missed by some of its threads.
    bool poisoned = grid.thread == 0 && is_poisoned(grid, args.team.control);
    if (grid.block_broadcast(poisoned ? 1 : 0) == 0) {
        shmem::Context context = shmem::make_context(grid, args.team, args.operation, 0);
        BarrierWorkspace workspace = {args.flags, args.epoch};
        shmem::team_barrier(grid, context, workspace);
    }
}

static ANABRANCH_DEVICE RdmaQueue queue_of(const Grid& grid, const NicCopiesArgs& args, u32 index) {
    u32 each = args.team.nics_per_peer;
    return rdma::load_queue(grid, args.team.nics + (static_cast<u64>(args.copies[index].peer) * each + index % each));
}

// Copies, and their completion: what came before on the stream is what is copied, and what follows finds all copies done. It moves no byte
// itself, and waits for no peer's kernel.
ANABRANCH_KERNEL(anabranch_nic_copies, NicCopiesArgs, 64) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 0);
    // What earlier kernels wrote; their ends have released it, but not on every device past all caches.
    shmem::Wave::release_for_leader(grid);
    bool posted = true;
    for (u32 index = grid.lane(); index < args.count && posted; index += WAVE_SIZE) {
        RdmaQueue queue = queue_of(grid, args, index);
        rdma::Request copy = {};
        copy.opcode = args.copies[index].is_get != 0 ? rdma::Opcode::READ : rdma::Opcode::WRITE;
        copy.local = args.copies[index].local;
        copy.remote = queue.remote_base + args.copies[index].offset;
        copy.bytes = args.copies[index].bytes;
        u64 end = 0;
        posted = rdma::post(grid, context.wait, queue, copy, end) == WAIT_OK;
    }
    // Of everything that the queue pairs have, others' requests too: lanes post any number of copies, and keep no position of each.
    for (u32 index = grid.lane(); index < args.count && posted; index += WAVE_SIZE) {
        posted = rdma::quiet(grid, context.wait, queue_of(grid, args, index)) == WAIT_OK;
    }
    acquire_after_wait(grid);
}

// One signal, and its completion: a SET writes the word, an ADD adds to it. What was put for the peer before it on the stream, by whatever
// kernel, is completed first, so that the peer's NIC has it; a reader of the word sees it by the guarantee for queue pairs of one NIC
// (docs/memory-model.md, "What a NIC's completion says"). Thread 0 works, since it is one word.
ANABRANCH_KERNEL(anabranch_nic_signal, NicSignalArgs, 64) {
    if (grid.thread != 0 || is_poisoned(grid, args.team.control)) return;
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 0);
    shmem::GroupRank peer = {args.peer};
    if (shmem::quiet<shmem::Thread>(grid, context, peer) != shmem::Status::OK) return;
    shmem::SignalOp op = args.adds != 0 ? shmem::SignalOp::ADD : shmem::SignalOp::SET;
    shmem::Symmetric<u64> word = {args.offset};
    if (shmem::signal<shmem::Thread>(grid, context, word, args.value, op, peer) != shmem::Status::OK) return;
    shmem::quiet<shmem::Thread>(grid, context, peer);
}

// Completes what this rank has put into the queue pairs of all members, whichever kernel put it there, before memory goes that it names.
// What never completes is a fault of the wait's budget; what failed is one of the NIC's. It waits for no peer's kernel.
ANABRANCH_KERNEL(anabranch_nic_drain, NicDrainArgs, 64) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 0);
    shmem::quiet<shmem::Wave>(grid, context);
}

// Reads the first word of each peer's heap by each queue pair to it. Where nothing orders what a NIC brings to this device before its
// completion, it brings the words to memory of the host, where completions lie too, and the host looks at them.
ANABRANCH_KERNEL(anabranch_nic_probe, NicProbeArgs, 64) {
    shmem::Context context = shmem::make_context(grid, args.team, args.operation, 0);
    u32 count = args.team.size * args.team.nics_per_peer;
    if (args.into_host != 0) {
        bool posted = true;
        for (u32 index = grid.lane(); index < count && posted; index += WAVE_SIZE) {
            RdmaQueue queue = rdma::load_queue(grid, args.team.nics + index);
            if (queue.route != shmem::ROUTE_NIC) continue;
            rdma::Request read = {};
            read.opcode = rdma::Opcode::READ;
            read.local = reinterpret_cast<u64>(args.seen + index);
            read.remote = queue.remote_base;
            read.bytes = 8;
            u64 end = 0;
            posted = rdma::post(grid, context.wait, queue, read, end) == WAIT_OK;
        }
        for (u32 index = grid.lane(); index < count && posted; index += WAVE_SIZE) {
            RdmaQueue queue = rdma::load_queue(grid, args.team.nics + index);
            if (queue.route == shmem::ROUTE_NIC) posted = rdma::quiet(grid, context.wait, queue) == WAIT_OK;
        }
        return;
    }
    for (u32 index = grid.lane(); index < count; index += WAVE_SIZE) {
        RdmaQueue queue = rdma::load_queue(grid, args.team.nics + index);
        if (queue.route != shmem::ROUTE_NIC) continue;
        rdma::Request read = {};
        read.opcode = rdma::Opcode::READ;
        read.remote = queue.remote_base;
        read.bytes = 8;
        u64 word = 0;
        if (rdma::fetch(grid, context.wait, queue, read, word) == WAIT_OK) private_store(grid, args.seen + index, word);
    }
}
