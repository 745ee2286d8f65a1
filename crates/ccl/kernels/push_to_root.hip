// Reduction of large messages to a root, for one element type. The message is cut into one part for each member but the root. Every member
// writes pieces of the parts to the staging of their owners (its own part stays in its input), which reduce them in group-rank order and
// send the results to the root. So every member sends and receives about the message once.
//
// The two hops are pipelined: in step k every member sends piece k of each part, and each owner reduces piece k - 1. A barrier follows, so that
// what step k wrote is there in step k + 1. All members take the same steps.
//
// - Each step writes one half of the staging, which step k + 1 reads before its barrier, as meet.h requires. The staging of the root
//   receives only results, because no member sends it contributions.
// - Mapped outputs: owners write them directly, in step 1 at the earliest. The root has entered the barrier of step 0 by then, so that its
//   kernel has begun and its output is free; in place, it has sent piece k - 1 of its input. After the last barrier the output is complete.
// - Other outputs: the root copies results from its staging one step after their owners wrote them, the last ones after the last barrier. In
//   place, it sent that piece of its input two steps earlier, and has passed barriers since.
// - Only its own rank reads an input, so it is free when the kernel ends. After a failed barrier the block stops, results are undefined and
//   the world is poisoned. Flags of barriers: meet.h. Counters of the channel: channel.h.
#include "ccl/hops.h"
#include "ccl/pieces.h"

#ifndef CCL_ELEMENT
#error "the kernel is compiled for an element type"
#endif

namespace ccl {

typedef CCL_ELEMENT Element;

static ANABRANCH_DEVICE u64 start_of(const ReduceArgs& args, u32 owner) { return hop_start(owner, args.root, args.part_bytes); }
// The bytes of the piece from `first` on of the part of an owner.
static ANABRANCH_DEVICE u64 bytes_of(const ReduceArgs& args, u64 first, u32 owner) {
    return cut(first, args.piece_bytes, cut(start_of(args, owner), args.part_bytes, args.count * Element::BYTES));
}

// Sends peers the pieces of their parts.
static ANABRANCH_DEVICE void contribute(const Grid& grid, const ReduceArgs& args, const Channel& channel, const HopStep& step) {
    const CommView& comm = args.comm;
    for (u32 i = 1; i < comm.team.size; ++i) {
        u32 owner = turned_peer(comm, channel, i);
        if (owner == args.root) continue;
        u64 to = staging_of(comm, member_base(grid, comm, owner), channel, step.to, comm.team.rank);
        copy_bytes(grid, to, args.input.own + start_of(args, owner) + step.first, bytes_of(args, step.first, owner));
    }
}

// At an owner: reduces what the step before brought, and writes the results to the root.
template <bool SUM_ONLY>
static ANABRANCH_DEVICE void reduce_own(const Grid& grid, const ReduceArgs& args, const Reduction& reduction, const Channel& channel,
                                        const HopStep& step) {
    const CommView& comm = args.comm;
    u32 me = comm.team.rank, root = args.root;
    u64 within = start_of(args, me) + step.before;
    u64 to = args.output.bases != nullptr ? output_of(grid, comm, root) + within
                                          : staging_of(comm, member_base(grid, comm, root), channel, step.to, me);
    reduce_bytes<Element, SUM_ONLY>(
        grid, args, reduction, bytes_of(args, step.before, me),
        [&](u32 member) {
            return member == me ? args.input.own + within : staging_of(comm, comm.heap, channel, step.from, member);
        },
        1, [&](u32) { return to; });
}

// At the root: copies the results that the step before brought to the output.
static ANABRANCH_DEVICE void take(const Grid& grid, const ReduceArgs& args, const Channel& channel, const HopStep& step) {
    const CommView& comm = args.comm;
    for (u32 i = 1; i < comm.team.size; ++i) {
        u32 owner = rotated(comm, i);
        u64 to = args.output.own + start_of(args, owner) + step.earlier;
        copy_bytes(grid, to, staging_of(comm, comm.heap, channel, step.from, owner), bytes_of(args, step.earlier, owner));
    }
}

template <bool SUM_ONLY>
static ANABRANCH_DEVICE void push_to_root(const Grid& grid, const ReduceArgs& args, const Reduction& reduction, Channel& channel) {
    const CommView& comm = args.comm;
    HopPieces pieces(grid, args.piece_bytes, args.part_bytes);
    bool is_root = comm.team.rank == args.root, takes = is_root && args.output.bases == nullptr;
    HopStep step;
    // One step more, in which owners write their last results to the root.
    for (u64 k = 0; k <= pieces.count && !channel.dead; ++k) {
        step.advance(pieces.at(k), next_half(channel));
        contribute(grid, args, channel, step);
        if (!is_root) reduce_own<SUM_ONLY>(grid, args, reduction, channel, step);
        if (takes) take(grid, args, channel, step);
        meet(grid, comm, channel);
    }
    if (!takes || channel.dead) return;
    step.advance(NO_PIECE, 0);
    take(grid, args, channel, step);
}

}  // namespace ccl

// Plain sums have a separate path.
ANABRANCH_KERNEL(anabranch_ccl_push_to_root, ReduceArgs, 512) {
    ccl::on_channel(grid, args.comm, args.input, args.output, [&](ccl::Channel& channel) {
        const Reduction& given = args.reduction;
        if (given.op == ccl::SUM) return ccl::push_to_root<true>(grid, args, given, channel);
        ccl::push_to_root<false>(grid, args, ccl::with_scalar<ccl::Element>(grid, given), channel);
    });
}
