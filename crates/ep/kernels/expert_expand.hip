// Copies received rows to the experts of this rank, after a dispatch that had a kernel of its own: `ep/expand.h`, with the argument.
// Blocks wait for no peer.
#include "anabranch/prelude.h"
#include "ep/expand.h"

ANABRANCH_KERNEL(anabranch_ep_expert_expand, ExpertExpandArgs, 1024) {
    const ReceivedView& received = args.received;
    ExpandLocal local = ExpandLocal::at(0, received.ranks, received.local_experts, args.tile_rows * received.top_k);
    clear_pairs(grid, args, local);
    for (u32 source = grid.thread; source <= received.ranks; source += grid.block_threads) {
        local.offsets.set(grid, source, private_load(grid, received.offsets + source));
    }
    grid.block_barrier();
    expand_received(grid, args, local);
}
