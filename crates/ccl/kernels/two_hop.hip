// Broadcast of large messages in two hops: the tensor is cut into one part per member. The root writes part j to member j, and each member
// sends its part to all others but the root. Each member sends less than twice the tensor, where the root alone would send it members - 1
// times.
//
// - Mapped outputs: a barrier, the first hop, a barrier, the second hop, a barrier. After the first barrier outputs are free, since the
//   kernel of every member has begun; after the second the own part is complete; after the third all parts are complete, and the own part
//   has been read.
// - Other outputs, through the staging, in steps: each hop writes a half of it and a barrier follows, and each half is read before its
//   reader enters the next barrier, as meet.h requires. The own part is copied to the output before the barrier of the second hop.
//
// Barriers are per channel: a channel forwards what its own block wrote at the root, and waits for no other block. Parts are multiples of
// 16 bytes, so that for short tensors the last members have none; they pass all barriers all the same.
#include "ccl/meet.h"
#include "ccl/buffer.h"

namespace ccl {

// Pieces of a part are distributed over the channels: one each for mapped outputs. Smaller in tests, so that every channel has several.
#if !defined(CCL_TILE)
#define CCL_TILE (u64(1) << 60)
#endif
static ANABRANCH_DEVICE u64 piece_of(const MoveArgs& args) { return minimum(args.piece_bytes, u64(CCL_TILE)); }

// The pieces that the hops of a step move.
struct Pieces {
    u64 first;   // where the piece starts in each part
    u64 half;    // of the staging: what the hop writes
    u64 before;  // ... and what the hop before wrote
    bool second;
};
static ANABRANCH_DEVICE u64 bytes_of(const MoveArgs& args, u64 first, u32 member) {
    return cut(first, piece_of(args), cut(member * args.send_stride, args.send_stride, args.bytes));
}

// First hop: the root sends every member its part. Second hop: every member sends its part to the others.
static ANABRANCH_DEVICE void hop(const Grid& grid, const MoveArgs& args, const Channel& channel, const Pieces& at) {
    const CommView& comm = args.comm;
    u32 me = comm.team.rank, root = args.receive_from;
    bool relayed = args.output.bases == nullptr;
    for (u32 i = 1; i < comm.team.size; ++i) {
        u32 peer = turned_peer(comm, channel, i);
        u32 member = at.second ? me : peer;
        u64 within = member * args.send_stride + at.first;
        u64 from = me == root ? args.input.own + within : args.output.own + within;
        if (relayed && me != root) from = staging_of(comm, comm.heap, channel, at.before, root);
        u64 to = relayed ? staging_of(comm, member_base(grid, comm, peer), channel, at.half, me)
                         : output_of(grid, comm, peer) + within;
        bool sends = at.second ? peer != root : me == root;
        copy_bytes(grid, to, from, sends ? bytes_of(args, at.first, member) : 0);
    }
}

// Copies from the staging to the output: the own part after the first hop, the other parts after the second. Not at the root.
static ANABRANCH_DEVICE void take(const Grid& grid, const MoveArgs& args, const Channel& channel, const Pieces& at) {
    const CommView& comm = args.comm;
    for (u32 owner = 0; owner < comm.team.size; ++owner) {
        if (at.second == (owner == comm.team.rank)) continue;
        u64 from = staging_of(comm, comm.heap, channel, at.half, at.second ? owner : args.receive_from);
        copy_bytes(grid, args.output.own + owner * args.send_stride + at.first, from, bytes_of(args, at.first, owner));
    }
}

static ANABRANCH_DEVICE void two_hop(const Grid& grid, const MoveArgs& args, Channel& channel) {
    const CommView& comm = args.comm;
    u64 piece = piece_of(args), pieces = grid.grid_blocks * piece;
    bool relayed = args.output.bases == nullptr;
    bool takes = relayed && comm.team.rank != args.receive_from;
    if (!relayed) meet_first(grid, comm, channel);
    for (u64 step = 0; step * pieces < args.send_stride && !channel.dead; ++step) {
        Pieces at = {step * pieces + grid.block * piece, 0, 0, false};
        for (u32 number = 0; number < 2 && !channel.dead; ++number) {
            at.second = number == 1;
            at.before = at.half;
            if (relayed) at.half = next_half(channel);
            hop(grid, args, channel, at);
            // With mapped outputs the final barrier of the kernel is that of the second hop.
            if (relayed || !at.second) meet(grid, comm, channel);
            if (takes && !channel.dead) take(grid, args, channel, at);
        }
    }
    if (!relayed) meet(grid, comm, channel);
}

}  // namespace ccl

ANABRANCH_KERNEL(anabranch_ccl_two_hop, MoveArgs, 512) {
    ccl::on_channel(grid, args.comm, args.input, args.output,
                 [&](ccl::Channel& channel) { ccl::two_hop(grid, args, channel); });
}
