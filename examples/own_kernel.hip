// Each rank puts its row into the inbox of the next rank, waits for the row of the rank before, and adds it to its own.
// One block. The inbox is written once, so that no flag tells the sender that it may be written again.
#include "shmem/shmem.h"

ANABRANCH_KERNEL(ring_add, RingArgs, 256) {
    // 0x1000 and above are operation codes of users, for error messages.
    shmem::Context context = shmem::make_context(grid, args.team, 0x1000, 1);
    u32 size = context.size();
    shmem::GroupRank next = {(context.team.rank + 1) % size};
    shmem::GroupRank before = {(context.team.rank + size - 1) % size};
    shmem::Symmetric<f32> inbox = {args.inbox};
    shmem::Symmetric<u64> arrived = {args.arrived};

    // The row, then the signal: a rank that sees the signal sees the row.
    shmem::Status status = shmem::put_signal<shmem::Block>(
        grid, context, inbox, args.row, args.count, arrived, 1, shmem::SignalOp::SET, next);
    if (status != shmem::Status::OK) return;  // the host reports the fault
    status = shmem::signal_wait<shmem::Block>(grid, context, arrived, shmem::Compare::EQ, 1, before);
    if (status != shmem::Status::OK) return;

    const f32* received = shmem::own_pointer(grid, context, inbox);
    for (u32 i = grid.thread; i < args.count; i += grid.block_threads) {
        private_store(grid, args.sums + i, private_load(grid, args.row + i) + heap_load(grid, received + i));
    }
}
