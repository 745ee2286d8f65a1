// Collectives that sum, for many bytes and one element type: all_reduce, reduce_scatter, reduce. The message is cut into one
// part a member, which reduces it in group-rank order.
//
// - `pull`: a meeting; each member reads its part from every input, and writes the result to every output that wants it; a
//   meeting. The first says that inputs are there and outputs free, the second that outputs are there and inputs free. Peers
//   have to reach inputs and, unless results stay here, outputs.
// - `push`: each member writes its pieces of the parts to their owners' staging; a meeting; the owner reduces, and hands the
//   results round. Outputs that peers reach get them directly, a last meeting says that they are there; others through the
//   staging, a step more each time. Peers need not reach inputs. (meet.h says why the staging's halves are free. An output is
//   free when its member has come to the first meeting: its kernel has begun.)
// - `engine`: copy engines have brought the peers' pieces to this rank's staging, all of which is one lane's here (src/engine.rs says
//   why it is free, and when): a meeting, behind which they are there; this rank reduces its part of the round.
#include "ccl/pieces.h"

#ifndef CCL_ELEMENT
#error "the kernel is compiled for an element type"
#endif

namespace ccl {

typedef CCL_ELEMENT Element;
// How a call's message is cut.
struct Parts {
    u64 bytes;   // of a full part
    u64 input;   // bytes between two parts of an input
    u64 output;  // ... of an output; 0 where each rank keeps its own part alone
    u64 total;   // of all parts
    ANABRANCH_DEVICE u64 of(u32 member) const {
        u64 first = member * input;
        return first < total ? minimum(bytes, total - first) : 0;
    }
};
static ANABRANCH_DEVICE Parts parts_of(const ReduceArgs& args) {
    u64 part = args.part_bytes;
    if (args.is_scatter != 0) return Parts{part, part, 0, part * args.channel.team.size};
    return Parts{part, part, part, args.count * Element::BYTES};
}

// Who gets this rank's results from the reduction itself: this rank alone, the root, or all, from number 0 on. When the call is
// phased, this rank and the next one; the others get them afterwards.
static ANABRANCH_DEVICE u32 targets_of(const ReduceArgs& args) {
    if (args.is_scatter != 0 || args.root != REDUCE_ALL) return 1;
    return args.is_phased != 0 ? minimum(args.channel.team.size, 2u) : args.channel.team.size;
}
static ANABRANCH_DEVICE u32 target_member(const ReduceArgs& args, const Lane& lane, u32 i) {
    if (args.is_scatter != 0) return args.channel.team.rank;
    if (args.root != REDUCE_ALL) return args.root;
    if (args.is_phased != 0) return rotated(args.channel, i);
    return turned(args.channel, lane, i);
}

// Pieces of a part go round the lanes. Smaller in tests, so that every lane has several.
#if !defined(CCL_TILE)
#define CCL_TILE (1 << 30)
#endif

template <bool SUM_ONLY>
static ANABRANCH_DEVICE void pull(const Grid& grid, const ReduceArgs& args, Lane& lane) {
    const Channel& channel = args.channel;
    Parts parts = parts_of(args);
    u32 me = channel.team.rank;
    u64 mine = parts.of(me), tile = minimum(args.piece_bytes, u64(CCL_TILE));
    meet(grid, channel, lane);
    for (u64 first = grid.block * tile; first < mine && !lane.dead; first += grid.grid_blocks * tile) {
        reduce_bytes<Element, SUM_ONLY>(
            grid, args, minimum(tile, mine - first),
            [&](u32 member) { return input_of(grid, channel, member) + me * parts.input + first; }, targets_of(args),
            [&](u32 i) { return output_of(grid, channel, target_member(args, lane, i)) + me * parts.output + first; });
    }
    meet(grid, channel, lane);
}

// This rank's pieces of one step, to the staging of the parts' owners, and the meeting behind them.
static ANABRANCH_DEVICE void scatter_step(const Grid& grid, const ReduceArgs& args, Lane& lane, const Parts& parts, u64 first,
                                          u64 half) {
    const Channel& channel = args.channel;
    u32 me = channel.team.rank, size = channel.team.size;
    for (u32 i = 1; i < size; ++i) {
        // Lanes begin with different peers, so that all links work at once; or all with the same, and wait for each other.
        u32 owner = args.is_phased != 0 ? rotated(channel, i) : turned_peer(channel, lane, i);
        u64 to = staging_of(channel, member_base(grid, channel, owner), lane, half, me);
        u64 bytes = lane.dead ? 0 : cut(first, args.piece_bytes, parts.of(owner));
        copy_bytes(grid, to, args.input.own + owner * parts.input + first, bytes);
        if (args.is_phased != 0 && i + 1 < size) meet(grid, channel, lane);
    }
    meet(grid, channel, lane);
}

template <bool SUM_ONLY>
static ANABRANCH_DEVICE void push(const Grid& grid, const ReduceArgs& args, Lane& lane) {
    const Channel& channel = args.channel;
    Parts parts = parts_of(args);
    u32 me = channel.team.rank, size = channel.team.size;
    u64 own = channel.heap, input = args.input.own, output = args.output.own;
    u64 piece = args.piece_bytes;
    // Results go to peers' staging unless the peer's output is reached, or nobody but this rank wants them.
    bool relayed = args.is_scatter == 0 && args.output.bases == nullptr;
    for (u64 step = 0; step * piece * grid.grid_blocks < parts.bytes && !lane.dead; ++step) {
        u64 first = (step * grid.grid_blocks + grid.block) * piece;
        u64 half = next_half(lane);
        scatter_step(grid, args, lane, parts, first, half);
        if (lane.dead) break;
        u64 next = relayed ? next_half(lane) : 0;
        u64 mine = cut(first, piece, parts.of(me));
        auto result_at = [&](u32 member) {
            if (member == me) return output + me * parts.output + first;
            if (relayed) return staging_of(channel, member_base(grid, channel, member), lane, next, me);
            return output_of(grid, channel, member) + me * parts.output + first;
        };
        reduce_bytes<Element, SUM_ONLY>(
            grid, args, mine,
            [&](u32 member) {
                return member == me ? input + me * parts.input + first : staging_of(channel, own, lane, half, member);
            },
            targets_of(args), [&](u32 i) { return result_at(target_member(args, lane, i)); });
        for (u32 i = 2; i < size && args.is_phased != 0 && args.is_scatter == 0 && args.root == REDUCE_ALL; ++i) {
            meet(grid, channel, lane);
            copy_bytes(grid, result_at(rotated(channel, i)), result_at(me), lane.dead ? 0 : mine);
        }
        if (!relayed) continue;
        meet(grid, channel, lane);
        for (u32 i = 1; i < size && !lane.dead && (args.root == REDUCE_ALL || args.root == me); ++i) {
            u32 owner = rotated(channel, i);
            u64 to = output + owner * parts.output + first;
            copy_bytes(grid, to, staging_of(channel, own, lane, next, owner), cut(first, piece, parts.of(owner)));
        }
    }
    if (args.is_scatter == 0 && !relayed) meet(grid, channel, lane);
}

template <bool SUM_ONLY>
static ANABRANCH_DEVICE void reduce_brought(const Grid& grid, const EngineReduceArgs& args, Lane& lane) {
    const ReduceArgs& call = args.reduce;
    const Channel& channel = call.channel;
    u32 me = channel.team.rank;
    u64 staged = channel.heap + channel.staging + u64(args.half) * channel.team.size * channel.staging_bytes;
    u64 tile = minimum(call.piece_bytes, u64(CCL_TILE));
    meet(grid, channel, lane);
    for (u64 first = grid.block * tile; first < args.bytes && !lane.dead; first += grid.grid_blocks * tile) {
        reduce_bytes<Element, SUM_ONLY>(
            grid, call, minimum(tile, args.bytes - first),
            [&](u32 member) { return first + (member == me ? call.input.own : staged + member * channel.staging_bytes); }, 1,
            [&](u32) { return call.output.own + first; });
    }
    if (args.meets_behind != 0) meet(grid, channel, lane);
}

}  // namespace ccl

#define CCL_FORM(FORM)                                                                        \
    ccl::on_lane(grid, args.channel, args.input, args.output, [&](ccl::Lane& lane) {          \
        if (args.reduction.op == ccl::SUM) return ccl::FORM<true>(grid, args, lane);          \
        ccl::FORM<false>(grid, args, lane);                                                   \
    })
ANABRANCH_KERNEL(anabranch_ccl_pull, ReduceArgs, 512) { CCL_FORM(pull); }
ANABRANCH_KERNEL(anabranch_ccl_push, ReduceArgs, 512) { CCL_FORM(push); }
ANABRANCH_KERNEL(anabranch_ccl_engine_reduce, EngineReduceArgs, 512) {
    const ReduceArgs& call = args.reduce;
    ccl::on_lane(grid, call.channel, call.input, call.output, [&](ccl::Lane& lane) {
        if (call.reduction.op == ccl::SUM) return ccl::reduce_brought<true>(grid, args, lane);
        ccl::reduce_brought<false>(grid, args, lane);
    });
}
