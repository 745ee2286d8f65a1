// Internode collectives that move bytes: all_gather, all_to_all, broadcast, gather, scatter and barrier, as lists of steps (ccl/network.h).
#include "ccl/network.h"

ANABRANCH_KERNEL(anabranch_ccl_network_move, NetworkArgs, 512) {
    auto length = [](const LinkStep& step, u64 bytes) { return ccl::moved_length(step, bytes); };
    ccl::run_steps(grid, args, length,
                   [&](const LinkStep& step, u64 bytes) { ccl::move_chunk(grid, args.links, step, bytes); });
}
