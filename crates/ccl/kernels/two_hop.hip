// Broadcast of large messages in two hops: the tensor is cut into one part for each member but the root. The root writes part j to its
// owner, and each owner sends its part to all others but the root. So every member sends and receives about the tensor once, where the root
// alone would send it members - 1 times.
//
// The hops are pipelined: in step k the root sends piece k of each part, while each owner sends on piece k - 1 of its part. A barrier
// follows, so that what step k wrote is there in step k + 1. All members take the same steps.
//
// - Mapped outputs: a barrier precedes the first step, after which outputs are free, since the kernel of every member has begun. After the
//   last barrier all parts are complete, and the own part has been read.
// - Other outputs: step k writes one half of the staging. Step k + 1 reads it, before its barrier, as meet.h requires: an owner sends its
//   own piece on and copies it to its output, and every member copies the pieces of the other owners. The root reads nothing.
//
// Barriers are per channel: a channel forwards what its own block wrote at the root, and waits for no other block. Parts are multiples of
// 16 bytes, so that for short tensors the last owners have none; they pass all barriers all the same.
#include "ccl/hops.h"

namespace ccl {

// Pieces of a part are distributed over the channels. Smaller in tests, so that every channel has several.
#if !defined(CCL_TILE)
#define CCL_TILE (u64(1) << 60)
#endif

static ANABRANCH_DEVICE u64 start_of(const MoveArgs& args, u32 owner) { return hop_start(owner, args.receive_from, args.send_stride); }
static ANABRANCH_DEVICE u64 bytes_of(const MoveArgs& args, u64 piece, u64 first, u32 owner) {
    return cut(first, piece, cut(start_of(args, owner), args.send_stride, args.bytes));
}

// Sends to peers: the root to every owner its part, an owner its part to the other owners.
static ANABRANCH_DEVICE void send(const Grid& grid, const MoveArgs& args, const Channel& channel, u64 piece, const HopStep& step) {
    const CommView& comm = args.comm;
    u32 me = comm.team.rank, root = args.receive_from;
    bool relayed = args.output.bases == nullptr;
    for (u32 i = 1; i < comm.team.size; ++i) {
        u32 peer = turned_peer(comm, channel, i);
        if (peer == root) continue;
        u32 owner = me == root ? peer : me;
        u64 first = me == root ? step.first : step.before;
        u64 within = start_of(args, owner) + first;
        u64 from = me == root ? args.input.own + within : args.output.own + within;
        if (relayed && me != root) from = staging_of(comm, comm.heap, channel, step.from, root);
        u64 to = relayed ? staging_of(comm, member_base(grid, comm, peer), channel, step.to, me)
                         : output_of(grid, comm, peer) + within;
        copy_bytes<LOADS_OF_LONG>(grid, to, from, bytes_of(args, piece, first, owner));
    }
}

// Copies what the step before wrote from the staging to the output: the own piece from the root, the pieces of other owners from these.
static ANABRANCH_DEVICE void take(const Grid& grid, const MoveArgs& args, const Channel& channel, u64 piece, const HopStep& step) {
    const CommView& comm = args.comm;
    u32 root = args.receive_from;
    for (u32 owner = 0; owner < comm.team.size; ++owner) {
        if (owner == root) continue;
        bool own = owner == comm.team.rank;
        u64 first = own ? step.before : step.earlier;
        u64 from = staging_of(comm, comm.heap, channel, step.from, own ? root : owner);
        copy_bytes<LOADS_OF_LONG>(grid, args.output.own + start_of(args, owner) + first, from, bytes_of(args, piece, first, owner));
    }
}

static ANABRANCH_DEVICE void two_hop(const Grid& grid, const MoveArgs& args, Channel& channel) {
    const CommView& comm = args.comm;
    HopPieces pieces(grid, minimum(args.piece_bytes, u64(CCL_TILE)), args.send_stride);
    bool relayed = args.output.bases == nullptr;
    bool takes = relayed && comm.team.rank != args.receive_from;
    if (!relayed) meet_first(grid, comm, channel);
    HopStep step;
    // One step more for the second hop.
    for (u64 k = 0; k <= pieces.count && !channel.dead; ++k) {
        step.advance(pieces.at(k), relayed ? next_half(channel) : 0);
        send(grid, args, channel, pieces.bytes, step);
        if (takes) take(grid, args, channel, pieces.bytes, step);
        meet(grid, comm, channel);
    }
    if (!takes || channel.dead) return;
    step.advance(NO_PIECE, 0);
    take(grid, args, channel, pieces.bytes, step);
}

}  // namespace ccl

ANABRANCH_KERNEL(anabranch_ccl_two_hop, MoveArgs, 512) {
    ccl::on_channel(grid, args.comm, args.input, args.output,
                 [&](ccl::Channel& channel) { ccl::two_hop(grid, args, channel); });
}
