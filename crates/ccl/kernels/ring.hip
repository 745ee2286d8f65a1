// Collectives that move bytes from neighbour to neighbour (ccl/ring.h): all_gather and broadcast. A check on the other algorithms.
//
// - all_gather: for each piece, a member gives its own, and hands on those of the others but the last, as they come. Step i of
//   a piece takes what step i - 1 gave at the member before.
// - broadcast: pieces go from the root round to the member before it.
// Why nobody waits in a circle. Number a member's steps from 0 on. A broadcast's steps wait for the same number at the member before,
// and for a place, so for a lower number at the next; and from the member before the root to the root nothing goes. In an
// all_gather step t takes what step t - 1 gave. It gives a chunk for which a place is free when the chunk before the one
// before it, at the latest, was taken, as slots are two or more; that was in a step of the next member below t. So the lowest
// step that has not been done anywhere waits for nothing.
#include "ccl/ring.h"

namespace ccl {

// What is in `from` goes to `at` and, if it goes on, `to` the next member.
static ANABRANCH_DEVICE void hand_on(const Grid& grid, u64 at, u64 to, u64 from, u64 bytes, bool gives) {
    if (from != at) copy_bytes(grid, at, from, bytes);
    if (gives) copy_bytes(grid, to, from, bytes);
}

static ANABRANCH_DEVICE void ring_move(const Grid& grid, const MoveArgs& args, Lane& lane) {
    const Channel& channel = args.channel;
    u32 me = channel.team.rank, size = channel.team.size, root = args.receive_from;
    bool gathers = root == MOVE_ALL;
    u64 chunks = 0;
    Ring ring = ring_open(grid, channel, lane);
    for (u64 first = grid.block * args.piece_bytes; first < args.bytes && !lane.dead;
         first += grid.grid_blocks * args.piece_bytes) {
        u64 bytes = cut(first, args.piece_bytes, args.bytes);
        u32 steps = gathers ? size : 1;
        for (u32 i = 0; i < steps && !lane.dead; ++i) {
            bool takes = gathers ? i > 0 : me != root;
            bool gives = gathers ? i + 1 < size : ring.next != root;
            u32 whose = gathers ? rotated(channel, size - i) : 0;
            u64 at = args.output.own + whose * args.receive_stride + first;
            ring_step(grid, channel, lane, ring, takes, gives, [&](u64 from, u64 to) {
                hand_on(grid, at, to, takes ? from : args.input.own + first, bytes, gives);
            });
        }
        chunks += steps;
    }
    ring_close(grid, channel, lane, ring, chunks);
}

}  // namespace ccl

ANABRANCH_KERNEL(anabranch_ccl_ring_move, MoveArgs, 512) {
    ccl::on_lane(grid, args.channel, args.input, args.output,
                 [&](ccl::Lane& lane) { ccl::ring_move(grid, args, lane); });
}
