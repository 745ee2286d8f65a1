// Collectives that sum from neighbour to neighbour (ccl/ring.h), for one element type: all_reduce, reduce_scatter, reduce. A check on
// the other algorithms.
//
// A chunk's sum goes unrounded from member 0 to the last one, each of which adds its own: that is group-rank order. The last
// rounds it, and the result goes on to member 0 and from there as far as it is wanted. So a member has two steps for each chunk, `add`
// and `pass`, and the last member only the first. They are interleaved in one order on all members: pass c comes behind
// add c + lag, with a lag of one less than the members, so that a result is back at member 0 about when it is looked for.
//
// Why nobody waits in a circle. Say that step p in that order is done at member i at the time p + e * i, with e so small that
// e * members < 1, and the last member's add at its p. Then every step waits for earlier ones alone:
// - for a chunk: for step p at the member before, which is e earlier; pass c at member 0 for add c at the last member, whose p is
//   lower by 1 at least.
// - for a place: for the step at the next member that took the chunk `slots` before it on this link, of a p that is lower by as
//   much at least, which outweighs e. Add c at the last member, which gives the result to member 0, waits there for pass
//   c - slots or an earlier one: that stands behind add c - slots + lag and, as lag < slots, before add c.
#include "ccl/ring.h"
#include "ccl/unrounded.h"

#ifndef CCL_ELEMENT
#error "the kernel is compiled for an element type"
#endif

namespace ccl {

typedef CCL_ELEMENT Element;

// The chunks of this lane: of each piece of a part that falls to it, one for each part.
struct Chunk {
    u64 first;  // where it starts in the input
    u64 output; // ... and in the output of who keeps it
    u64 bytes;
    u32 until;  // the member up to which its result goes on from member 0; the last one where it does not
};
static ANABRANCH_DEVICE Chunk chunk_of(const Grid& grid, const ReduceArgs& args, u64 number) {
    u32 size = args.channel.team.size, last = size - 1;
    u32 parts = args.is_scatter != 0 ? size : 1;
    u64 within = (number / parts * grid.grid_blocks + grid.block) * args.piece_bytes;
    u32 part = static_cast<u32>(number % parts);
    u32 until = args.is_scatter != 0 ? part : args.root;
    if (args.is_scatter == 0 && args.root == REDUCE_ALL) until = size > 1 ? last - 1 : last;
    return Chunk{part * args.part_bytes + within, within, cut(within, args.piece_bytes, args.part_bytes), until};
}
// How many there are.
static ANABRANCH_DEVICE u64 chunks_of(const Grid& grid, const ReduceArgs& args) {
    u64 pieces = (args.part_bytes + args.piece_bytes - 1) / args.piece_bytes;
    u64 mine = grid.block < pieces ? (pieces - grid.block - 1) / grid.grid_blocks + 1 : 0;
    return mine * (args.is_scatter != 0 ? args.channel.team.size : 1);
}
static ANABRANCH_DEVICE bool keeps(const ReduceArgs& args, const Chunk& chunk) {
    bool all = args.is_scatter == 0 && args.root == REDUCE_ALL;
    return all || chunk.until == args.channel.team.rank;
}

// This rank's elements to the sum of those before it, and on to the next member.
static ANABRANCH_DEVICE void add(const Grid& grid, const ReduceArgs& args, Lane& lane, Ring& ring, const Chunk& chunk) {
    typedef Unrounded<Element> Travelling;
    typedef typename Element::Raw Raw;
    u32 me = args.channel.team.rank, last = args.channel.team.size - 1;
    bool takes = me != 0, gives = me != last || chunk.until != last;
    u64 count = chunk.bytes / Element::BYTES;
    ring_step(grid, args.channel, lane, ring, takes, gives, [&](u64 from, u64 to) {
        const Raw* input = reinterpret_cast<const Raw*>(args.input.own + chunk.first);
        for (u64 i = grid.thread; i < count; i += grid.block_threads) {
            Raw mine = remote_load(grid, input + i);
            typename Travelling::Sum sum;
            if (takes) {
                sum = Travelling::sum(args.reduction, remote_load(grid, reinterpret_cast<typename Travelling::Bits*>(from) + i));
                sum.add(args.reduction, mine);
            } else {
                sum = Travelling::Sum::first(args.reduction, mine);
            }
            if (me != last) {
                typename Travelling::Bits bits = Travelling::bits(args.reduction, sum);
                remote_store(grid, reinterpret_cast<typename Travelling::Bits*>(to) + i, bits);
                continue;
            }
            Raw result = sum.finish(args.reduction);
            if (gives) remote_store(grid, reinterpret_cast<Raw*>(to) + i, result);
            if (keeps(args, chunk)) remote_store(grid, reinterpret_cast<Raw*>(args.output.own + chunk.output) + i, result);
        }
    });
}

// A result to this rank's output, and on to the next member, as far as it is wanted. Not at the last member.
static ANABRANCH_DEVICE void pass(const Grid& grid, const ReduceArgs& args, Lane& lane, Ring& ring, const Chunk& chunk) {
    u32 me = args.channel.team.rank;
    if (chunk.until == args.channel.team.size - 1 || me > chunk.until) return;
    bool gives = me < chunk.until;
    ring_step(grid, args.channel, lane, ring, true, gives, [&](u64 from, u64 to) {
        if (keeps(args, chunk)) copy_bytes(grid, args.output.own + chunk.output, from, chunk.bytes);
        if (gives) copy_bytes(grid, to, from, chunk.bytes);
    });
}

static ANABRANCH_DEVICE void ring_reduce(const Grid& grid, const ReduceArgs& args, Lane& lane) {
    const Channel& channel = args.channel;
    u32 last = channel.team.size - 1;
    u64 chunks = chunks_of(grid, args);
    Ring ring = ring_open(grid, channel, lane);
    for (u64 step = 0; step < chunks + last && !lane.dead; ++step) {
        if (step < chunks) add(grid, args, lane, ring, chunk_of(grid, args, step));
        bool passes = step >= last && channel.team.rank != last && !lane.dead;
        if (passes) pass(grid, args, lane, ring, chunk_of(grid, args, step - last));
    }
    ring_close(grid, channel, lane, ring, 2 * chunks);
}

}  // namespace ccl

ANABRANCH_KERNEL(anabranch_ccl_ring_reduce, ReduceArgs, 512) {
    ccl::on_lane(grid, args.channel, args.input, args.output,
                 [&](ccl::Lane& lane) { ccl::ring_reduce(grid, args, lane); });
}
