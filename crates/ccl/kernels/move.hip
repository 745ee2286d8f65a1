// Collectives that only move bytes: all_gather, all_to_all, broadcast, gather, scatter, with equal or different counts, and barrier. The
// arguments describe sources and targets. Data is bytes, so one object serves every element type.
//
// - `packets`: packets with flags inside (packets.h), for short messages. No fence, one hop.
// - `staged`: bytes are written to the staging of peers and copied to the output there (meet.h states why its halves are free). For buffers
//   that are not mapped at peers.
// - `direct`: a barrier, then bytes are written directly to the outputs of peers, then a barrier. After the first barrier the kernel of
//   every member has begun, so that earlier work of its stream is done with the output. After the second all bytes are complete, and the
//   input may be reused.
// - `barrier`: a barrier. Kernels before and after it on their streams begin and end with fences of their own.
//
// Every member takes part in every step, even if it sends and receives nothing: the arguments of meet.h and packets.h need it.
#include "ccl/packets.h"
#include "ccl/buffer.h"

namespace ccl {

// Whether `who` (a member, MOVE_ALL or MOVE_NONE) includes `peer`.
static ANABRANCH_DEVICE bool names(u32 who, u32 peer) { return who == MOVE_ALL || who == peer; }

// The bytes exchanged with a peer, with equal counts.
struct EvenEntries {
    static constexpr bool UNEVEN = false;
    const MoveArgs& args;
    ANABRANCH_DEVICE MoveEntry operator()(u32 peer) const {
        return MoveEntry{peer * args.send_stride, names(args.send_to, peer) ? args.bytes : 0, peer * args.receive_stride,
                         names(args.receive_from, peer) ? args.bytes : 0};
    }
};
// The bytes exchanged with a peer, with different counts.
struct UnevenEntries {
    static constexpr bool UNEVEN = true;
    const UnevenArgs& args;
    ANABRANCH_DEVICE MoveEntry operator()(u32 peer) const { return args.entries[peer]; }
};

// Copies at most `most` of the bytes of this rank for itself, from `first` on. Skips buffers in place.
template <u32 WIDE_LOADS, class Entries>
static ANABRANCH_DEVICE void copy_own(const Grid& grid, const MoveArgs& args, const Entries& entries, u64 first, u64 most) {
    MoveEntry own = entries(args.comm.team.rank);
    u64 from = args.input.own + own.send_offset, to = args.output.own + own.receive_offset;
    u64 bytes = minimum(own.send_bytes, own.receive_bytes);
    if (from != to) copy_bytes<WIDE_LOADS>(grid, to + first, from + first, cut(first, most, bytes));
}

// Sends one unit to every peer. Payloads are loaded before the first is sent.
template <class Entries>
static ANABRANCH_DEVICE void send_unit(const Grid& grid, const MoveArgs& args, const Entries& entries, const Channel& channel,
                                       u64 byte, u64 unit, bool wide) {
    const CommView& comm = args.comm;
    for (u32 base = 1; base < comm.team.size; base += BATCH) {
        u64 payload[BATCH];
        ANABRANCH_UNROLL
        for (u32 k = 0; k < BATCH; ++k) {
            if (base + k >= comm.team.size) continue;
            MoveEntry entry = entries(rotated(comm, base + k));
            payload[k] = load_payload(grid, args.input.own + entry.send_offset, byte, entry.send_bytes, wide);
        }
        ANABRANCH_UNROLL
        for (u32 k = 0; k < BATCH; ++k) {
            if (base + k < comm.team.size) send(grid, comm, channel, 0, rotated(comm, base + k), unit, payload[k]);
        }
    }
}

template <class Entries>
static ANABRANCH_DEVICE void move_packets(const Grid& grid, const MoveArgs& args, const Entries& entries, Channel& channel) {
    const CommView& comm = args.comm;
    u64 output = args.output.own;
    bool wide = !Entries::UNEVEN && (args.input.own | output | args.send_stride | args.receive_stride) % PAYLOAD == 0;
    // The same number of units between any two members, at least one; some have no payload.
    u64 begin = grid.block * args.channel_units, end = begin + args.channel_units;
    for (u64 first = begin; first < end && !channel.dead; first += comm.packet_units) {
        next_epoch(grid, comm, channel);
        u64 count = minimum(end - first, u64(comm.packet_units));
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            send_unit(grid, args, entries, channel, (first + unit) * PAYLOAD, unit, wide);
        }
        if (first == begin) copy_own<LOADS>(grid, args, entries, grid.block * args.channel_bytes, args.channel_bytes);
        for (u32 base = 0; base < comm.team.size; base += BATCH) {
            for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
                u64 payload[BATCH];
                if (!receive(grid, comm, channel, comm.heap, 0, base, unit, payload)) break;
                ANABRANCH_UNROLL
                for (u32 k = 0; k < BATCH; ++k) {
                    u32 source = base + k;
                    if (source >= comm.team.size || source == comm.team.rank) continue;
                    MoveEntry entry = entries(source);
                    u64 byte = (first + unit) * PAYLOAD;
                    store_payload(grid, output + entry.receive_offset, byte, entry.receive_bytes, wide, payload[k]);
                }
            }
        }
        end_epoch(grid, channel);
    }
}

template <class Entries>
static ANABRANCH_DEVICE void move_staged(const Grid& grid, const MoveArgs& args, const Entries& entries, Channel& channel) {
    const CommView& comm = args.comm;
    u64 input = args.input.own, output = args.output.own;
    u64 most = args.most_bytes, piece = args.piece_bytes;
    if constexpr (Entries::UNEVEN) {
        // Only pairs know their counts: all members use the number of steps of the longest message.
        meet_with_values(grid, comm, channel, [&](u32) { return args.most_bytes; });
        for (u32 peer = 0; peer < comm.team.size && !channel.dead; ++peer) {
            most = maximum(most, value_from(grid, comm, channel, peer));
        }
        // All channels take part in every step, also if it does not fill the staging.
        piece = minimum(comm.staging_bytes, round_up((most + grid.grid_blocks - 1) / grid.grid_blocks, 16));
    }
    u64 done = 0;
    for (; done < most && !channel.dead; done += piece * grid.grid_blocks) {
        u64 first = done + grid.block * piece;
        u64 half = next_half(channel);
        for (u32 i = 1; i < comm.team.size; ++i) {
            u32 peer = rotated(comm, i);
            MoveEntry entry = entries(peer);
            u64 to = staging_of(comm, member_base(grid, comm, peer), channel, half, comm.team.rank);
            copy_bytes<LOADS_OF_LONG>(grid, to, input + entry.send_offset + first, cut(first, piece, entry.send_bytes));
        }
        // While the stores to peers are under way.
        copy_own<LOADS_OF_LONG>(grid, args, entries, first, piece);
        meet(grid, comm, channel);
        for (u32 i = 1; i < comm.team.size && !channel.dead; ++i) {
            u32 source = rotated(comm, i);
            MoveEntry entry = entries(source);
            u64 from = staging_of(comm, comm.heap, channel, half, source);
            copy_bytes<LOADS_OF_LONG>(grid, output + entry.receive_offset + first, from, cut(first, piece, entry.receive_bytes));
        }
    }
    // This rank may have more bytes for itself than any rank for another.
    MoveEntry self = entries(comm.team.rank);
    u64 own = minimum(self.send_bytes, self.receive_bytes);
    if (done < own && !channel.dead) {
        u64 share = round_up((own - done + grid.grid_blocks - 1) / grid.grid_blocks, 16);
        copy_own<LOADS_OF_LONG>(grid, args, entries, done + grid.block * share, share);
    }
}

// Pieces of a message are distributed over the channels. Smaller in tests, so that every channel has several.
#if !defined(CCL_TILE)
#define CCL_TILE (1 << 30)
#endif

template <class Entries>
static ANABRANCH_DEVICE void move_direct(const Grid& grid, const MoveArgs& args, const Entries& entries, Channel& channel) {
    const CommView& comm = args.comm;
    u64 input = args.input.own, tile = minimum(args.piece_bytes, u64(CCL_TILE));
    // With different counts, only the peer knows the offset in its output: it sends the offset with the barrier.
    if constexpr (Entries::UNEVEN) {
        meet_with_values(grid, comm, channel, [&](u32 peer) { return entries(peer).receive_offset; });
    } else {
        meet_first(grid, comm, channel);
    }
    for (u32 i = 0; i < comm.team.size && !channel.dead; ++i) {
        u32 peer = turned(comm, channel, i);
        MoveEntry entry = entries(peer);
        u64 offset = Entries::UNEVEN ? value_from(grid, comm, channel, peer) : comm.team.rank * args.remote_stride;
        u64 from = input + entry.send_offset, to = output_of(grid, comm, peer) + offset;
        bool needed = !(peer == comm.team.rank && from == to);
        for (u64 first = grid.block * tile; first < entry.send_bytes && needed; first += grid.grid_blocks * tile) {
            copy_bytes<LOADS_OF_LONG>(grid, to + first, from + first, cut(first, tile, entry.send_bytes));
        }
    }
    meet(grid, comm, channel);
}

}  // namespace ccl

ANABRANCH_KERNEL(anabranch_ccl_barrier, MoveArgs, 512) {
    ccl::on_channel(grid, args.comm, args.input, args.output,
                 [&](ccl::Channel& channel) { ccl::meet(grid, args.comm, channel); });
}
ANABRANCH_KERNEL(anabranch_ccl_move_packets, MoveArgs, 512) {
    ccl::on_channel(grid, args.comm, args.input, args.output,
                 [&](ccl::Channel& channel) { ccl::move_packets(grid, args, ccl::EvenEntries{args}, channel); });
}
ANABRANCH_KERNEL(anabranch_ccl_move_uneven_packets, UnevenArgs, 512) {
    ccl::on_channel(grid, args.even.comm, args.even.input, args.even.output,
                 [&](ccl::Channel& channel) { ccl::move_packets(grid, args.even, ccl::UnevenEntries{args}, channel); });
}
ANABRANCH_KERNEL(anabranch_ccl_move_staged, MoveArgs, 512) {
    ccl::on_channel(grid, args.comm, args.input, args.output,
                 [&](ccl::Channel& channel) { ccl::move_staged(grid, args, ccl::EvenEntries{args}, channel); });
}
ANABRANCH_KERNEL(anabranch_ccl_move_uneven_staged, UnevenArgs, 512) {
    ccl::on_channel(grid, args.even.comm, args.even.input, args.even.output,
                 [&](ccl::Channel& channel) { ccl::move_staged(grid, args.even, ccl::UnevenEntries{args}, channel); });
}
ANABRANCH_KERNEL(anabranch_ccl_move_direct, MoveArgs, 512) {
    ccl::on_channel(grid, args.comm, args.input, args.output,
                 [&](ccl::Channel& channel) { ccl::move_direct(grid, args, ccl::EvenEntries{args}, channel); });
}
ANABRANCH_KERNEL(anabranch_ccl_move_uneven_direct, UnevenArgs, 512) {
    ccl::on_channel(grid, args.even.comm, args.even.input, args.even.output,
                 [&](ccl::Channel& channel) { ccl::move_direct(grid, args.even, ccl::UnevenEntries{args}, channel); });
}
