// Reductions of large messages, for one element type: all_reduce, reduce_scatter, reduce (push_to_root.hip has its form for larger ones).
// The message is cut into one part per member, which reduces it in group-rank order.
//
// - `pull`: a barrier; each member reads its part from every input and writes the result to every output that needs it; a barrier. After
//   the first barrier inputs are complete and outputs are free; after the second outputs are complete and inputs are free. Inputs and,
//   unless results stay local, outputs are mapped at peers.
// - `push`: each member writes pieces of the parts to the staging of their owners; a barrier; the owner reduces and sends the results to
//   all. It writes them directly to mapped outputs, and a last barrier completes them. Other outputs get them through the staging, at the
//   cost of one more barrier per step. Inputs need not be mapped. (meet.h states why the halves of the staging are free. An output is free
//   when its member has entered the first barrier, because its kernel has begun.)
// - `engine_reduce`: copy engines have copied the pieces of the peers to the staging of this rank, which here is used as a whole
//   (src/lower/engine.rs states why it is free, and when): a barrier, after which the pieces are complete; this rank reduces its part of
//   the round.
#include "ccl/parts.h"
#include "ccl/pieces.h"

#ifndef CCL_ELEMENT
#error "the kernel is compiled for an element type"
#endif

namespace ccl {

typedef CCL_ELEMENT Element;
// The division of a message into parts of equal length.
struct Parts {
    u64 bytes;   // of a full part
    u64 input;   // bytes between two parts of an input
    u64 output;  // ... of an output; 0 where each rank keeps its own part alone
    u64 total;   // of all parts
    ANABRANCH_DEVICE u64 of(u32 member) const {
        u64 first = member * input;
        return first < total ? minimum(bytes, total - first) : 0;
    }
    ANABRANCH_DEVICE u64 start(u32 member) const { return member * input; }
};
static ANABRANCH_DEVICE Parts parts_of(const ReduceArgs& args) {
    u64 part = args.part_bytes;
    if (args.is_scatter != 0) return Parts{part, part, 0, part * args.comm.team.size};
    return Parts{part, part, part, args.count * Element::BYTES};
}

// The targets that the reduction itself writes: this rank alone, the root, or all members. In phases only this rank and the next one; later
// phases copy to the others.
static ANABRANCH_DEVICE u32 targets_of(const ReduceArgs& args) {
    if (args.is_scatter != 0 || args.root != REDUCE_ALL) return 1;
    return args.is_phased != 0 ? minimum(args.comm.team.size, 2u) : args.comm.team.size;
}
static ANABRANCH_DEVICE u32 target_member(const ReduceArgs& args, const Channel& channel, u32 i) {
    if (args.is_scatter != 0) return args.comm.team.rank;
    if (args.root != REDUCE_ALL) return args.root;
    if (args.is_phased != 0) return rotated(args.comm, i);
    return turned(args.comm, channel, i);
}

// Pieces of a part are distributed over the channels. Smaller in tests, so that every channel has several.
#if !defined(CCL_TILE)
#define CCL_TILE (1 << 30)
#endif

template <bool SUM_ONLY>
static ANABRANCH_DEVICE void pull(const Grid& grid, const ReduceArgs& args, const Reduction& reduction, Channel& channel,
                                  const Parts& parts) {
    const CommView& comm = args.comm;
    u32 me = comm.team.rank;
    u64 mine = args.own_bytes, tile = minimum(args.piece_bytes, u64(CCL_TILE));
    meet_first(grid, comm, channel);
    for (u64 first = grid.block * tile; first < mine && !channel.dead; first += grid.grid_blocks * tile) {
        reduce_bytes<Element, SUM_ONLY>(
            grid, args, reduction, minimum(tile, mine - first),
            [&](u32 member) { return input_of(grid, comm, member) + args.own_start + first; }, targets_of(args),
            [&](u32 i) { return output_of(grid, comm, target_member(args, channel, i)) + me * parts.output + first; });
    }
    meet(grid, comm, channel);
}

// Writes the pieces of one step to the staging of the owners of the parts; a barrier follows.
template <class AnyParts>
static ANABRANCH_DEVICE void scatter_step(const Grid& grid, const ReduceArgs& args, Channel& channel, const AnyParts& parts, u64 first,
                                          u64 half) {
    const CommView& comm = args.comm;
    u32 me = comm.team.rank, size = comm.team.size;
    for (u32 i = 1; i < size; ++i) {
        // Without phases, channels start with different peers, so that all links work at the same time.
        u32 owner = args.is_phased != 0 ? rotated(comm, i) : turned_peer(comm, channel, i);
        u64 to = staging_of(comm, member_base(grid, comm, owner), channel, half, me);
        u64 bytes = channel.dead ? 0 : cut(first, args.piece_bytes, parts.of(owner));
        copy_bytes(grid, to, args.input.own + parts.start(owner) + first, bytes);
        if (args.is_phased != 0 && i + 1 < size) meet(grid, comm, channel);
    }
    meet(grid, comm, channel);
}

template <bool SUM_ONLY, class AnyParts>
static ANABRANCH_DEVICE void push(const Grid& grid, const ReduceArgs& args, const Reduction& reduction, Channel& channel,
                                  const AnyParts& parts) {
    const CommView& comm = args.comm;
    u32 me = comm.team.rank, size = comm.team.size;
    u64 own = comm.heap, input = args.input.own, output = args.output.own;
    u64 piece = args.piece_bytes;
    // Results pass the staging of peers unless outputs are mapped or results stay local.
    bool relayed = args.is_scatter == 0 && args.output.bases == nullptr;
    for (u64 step = 0; step * piece * grid.grid_blocks < parts.bytes && !channel.dead; ++step) {
        u64 first = (step * grid.grid_blocks + grid.block) * piece;
        u64 half = next_half(channel);
        scatter_step(grid, args, channel, parts, first, half);
        if (channel.dead) break;
        u64 next = relayed ? next_half(channel) : 0;
        u64 mine = cut(first, piece, parts.of(me));
        auto result_at = [&](u32 member) {
            if (member == me) return output + me * parts.output + first;
            if (relayed) return staging_of(comm, member_base(grid, comm, member), channel, next, me);
            return output_of(grid, comm, member) + me * parts.output + first;
        };
        reduce_bytes<Element, SUM_ONLY>(
            grid, args, reduction, mine,
            [&](u32 member) {
                return member == me ? input + args.own_start + first : staging_of(comm, own, channel, half, member);
            },
            targets_of(args), [&](u32 i) { return result_at(target_member(args, channel, i)); });
        for (u32 i = 2; i < size && args.is_phased != 0 && args.is_scatter == 0; ++i) {
            meet(grid, comm, channel);
            copy_bytes(grid, result_at(rotated(comm, i)), result_at(me), channel.dead ? 0 : mine);
        }
        if (!relayed) continue;
        meet(grid, comm, channel);
        for (u32 i = 1; i < size && !channel.dead && (args.root == REDUCE_ALL || args.root == me); ++i) {
            u32 owner = rotated(comm, i);
            u64 to = output + owner * parts.output + first;
            copy_bytes(grid, to, staging_of(comm, own, channel, next, owner), cut(first, piece, parts.of(owner)));
        }
    }
    if (args.is_scatter == 0 && !relayed) meet(grid, comm, channel);
}

template <bool SUM_ONLY>
static ANABRANCH_DEVICE void reduce_brought(const Grid& grid, const EngineReduceArgs& args, const Reduction& reduction,
                                            Channel& channel) {
    const ReduceArgs& call = args.reduce;
    const CommView& comm = call.comm;
    u32 me = comm.team.rank;
    u64 staged = comm.heap + comm.staging + u64(args.half) * comm.team.size * comm.staging_bytes;
    u64 tile = minimum(call.piece_bytes, u64(CCL_TILE));
    meet(grid, comm, channel);
    for (u64 first = grid.block * tile; first < args.bytes && !channel.dead; first += grid.grid_blocks * tile) {
        reduce_bytes<Element, SUM_ONLY>(
            grid, call, reduction, minimum(tile, args.bytes - first),
            [&](u32 member) { return first + (member == me ? call.input.own : staged + member * comm.staging_bytes); }, 1,
            [&](u32) { return call.output.own + first; });
    }
    if (args.ends_with_barrier != 0) meet(grid, comm, channel);
}

}  // namespace ccl

// Plain sums have a separate path.
#define CCL_FORM(FORM, CALL, PARTS)                                                                        \
    ccl::on_channel(grid, (CALL).comm, (CALL).input, (CALL).output, [&](ccl::Channel& channel) {           \
        const Reduction& given = (CALL).reduction;                                                         \
        if (given.op == ccl::SUM) return ccl::FORM<true>(grid, CALL, given, channel, PARTS);               \
        ccl::FORM<false>(grid, CALL, ccl::with_scalar<ccl::Element>(grid, given), channel, PARTS);         \
    })
ANABRANCH_KERNEL(anabranch_ccl_pull, ReduceArgs, 512) { CCL_FORM(pull, args, ccl::parts_of(args)); }
ANABRANCH_KERNEL(anabranch_ccl_push, ReduceArgs, 512) { CCL_FORM(push, args, ccl::parts_of(args)); }
ANABRANCH_KERNEL(anabranch_ccl_uneven_push, UnevenReduceArgs, 512) {
    CCL_FORM(push, args.reduce, ccl::UnevenParts(args));
}
ANABRANCH_KERNEL(anabranch_ccl_engine_reduce, EngineReduceArgs, 512) {
    const ReduceArgs& call = args.reduce;
    ccl::on_channel(grid, call.comm, call.input, call.output, [&](ccl::Channel& channel) {
        const Reduction& given = call.reduction;
        if (given.op == ccl::SUM) return ccl::reduce_brought<true>(grid, args, given, channel);
        ccl::reduce_brought<false>(grid, args, ccl::with_scalar<ccl::Element>(grid, given), channel);
    });
}
