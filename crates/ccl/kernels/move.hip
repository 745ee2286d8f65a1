// Collectives that only move bytes: all_gather, all_to_all, broadcast, gather, scatter, with equal or unequal counts, and the
// barrier. What goes where is in the arguments; payload is bytes, so one object serves every type.
//
// - `packets`: flags inside the data (packets.h), for few bytes. No fence, one hop.
// - `staged`: bytes go to the peers' staging and from there to the output (meet.h says why its halves are free). For buffers
//   that peers do not reach.
// - `direct`: a meeting, then bytes go straight to the peers' outputs, then a meeting. The first says that every member's
//   kernel has begun, so that what came before it on its stream is done with the output; the second that all bytes are there,
//   and that the input may be used again.
// - `barrier`: a meeting. Kernels before and after it on their streams begin and end with fences of their own.
// Every member takes part in every step, also who sends and receives nothing: the arguments of meet.h and packets.h need it.
#include "ccl/packets.h"
#include "ccl/buffer.h"

namespace ccl {

// Whether `peer` is one of those that `who` names: a member, all, or none.
static ANABRANCH_DEVICE bool names(u32 who, u32 peer) { return who == MOVE_ALL || who == peer; }

// What this rank sends to a peer and gets from it, where all counts are equal.
struct EvenEntries {
    static constexpr bool UNEVEN = false;
    const MoveArgs& args;
    ANABRANCH_DEVICE MoveEntry operator()(u32 peer) const {
        return MoveEntry{peer * args.send_stride, names(args.send_to, peer) ? args.bytes : 0, peer * args.receive_stride,
                         names(args.receive_from, peer) ? args.bytes : 0};
    }
};
// ... and where they are listed.
struct UnevenEntries {
    static constexpr bool UNEVEN = true;
    const UnevenArgs& args;
    ANABRANCH_DEVICE MoveEntry operator()(u32 peer) const { return args.entries[peer]; }
};

// This rank's bytes for itself. Nothing where input and output are the same place.
template <class Entries>
static ANABRANCH_DEVICE void copy_own(const Grid& grid, const MoveArgs& args, const Entries& entries) {
    MoveEntry own = entries(args.comm.team.rank);
    u64 bytes = minimum(own.send_bytes, own.receive_bytes), first = grid.block * args.channel_bytes;
    u64 from = args.input.own + own.send_offset + first, to = args.output.own + own.receive_offset + first;
    if (from != to) copy_bytes(grid, to, from, cut(first, args.channel_bytes, bytes));
}

// One unit to every peer: payloads are loaded before the first is sent.
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
    // The same number of units between any two members, at least one: some carry nothing.
    u64 begin = grid.block * args.channel_units, end = begin + args.channel_units;
    for (u64 first = begin; first < end && !channel.dead; first += comm.packet_units) {
        next_epoch(grid, comm, channel);
        u64 count = minimum(end - first, u64(comm.packet_units));
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            send_unit(grid, args, entries, channel, (first + unit) * PAYLOAD, unit, wide);
        }
        if (first == begin) copy_own(grid, args, entries);
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
        // Only each pair knows how much it exchanges: the longest message decides for all how many steps there are.
        meet_with_values(grid, comm, channel, [&](u32) { return args.most_bytes; });
        for (u32 peer = 0; peer < comm.team.size && !channel.dead; ++peer) {
            most = maximum(most, value_from(grid, comm, channel, peer));
        }
        // All channels take part in a step, also when it does not fill the staging.
        piece = minimum(comm.staging_bytes, round_up((most + grid.grid_blocks - 1) / grid.grid_blocks, 16));
    }
    copy_own(grid, args, entries);
    for (u64 step = 0; step * piece * grid.grid_blocks < most && !channel.dead; ++step) {
        u64 first = (step * grid.grid_blocks + grid.block) * piece;
        u64 half = next_half(channel);
        for (u32 i = 1; i < comm.team.size; ++i) {
            u32 peer = rotated(comm, i);
            MoveEntry entry = entries(peer);
            u64 to = staging_of(comm, member_base(grid, comm, peer), channel, half, comm.team.rank);
            copy_bytes(grid, to, input + entry.send_offset + first, cut(first, piece, entry.send_bytes));
        }
        meet(grid, comm, channel);
        for (u32 i = 1; i < comm.team.size && !channel.dead; ++i) {
            u32 source = rotated(comm, i);
            MoveEntry entry = entries(source);
            u64 from = staging_of(comm, comm.heap, channel, half, source);
            copy_bytes(grid, output + entry.receive_offset + first, from, cut(first, piece, entry.receive_bytes));
        }
    }
}

// Pieces of a message go round the channels. Smaller in tests, so that every channel has several.
#if !defined(CCL_TILE)
#define CCL_TILE (1 << 30)
#endif

template <class Entries>
static ANABRANCH_DEVICE void move_direct(const Grid& grid, const MoveArgs& args, const Entries& entries, Channel& channel) {
    const CommView& comm = args.comm;
    u64 input = args.input.own, tile = minimum(args.piece_bytes, u64(CCL_TILE));
    // Where a peer wants this rank's bytes is known to the peer alone when counts differ.
    if constexpr (Entries::UNEVEN) {
        meet_with_values(grid, comm, channel, [&](u32 peer) { return entries(peer).receive_offset; });
    } else {
        meet(grid, comm, channel);
    }
    for (u32 i = 0; i < comm.team.size && !channel.dead; ++i) {
        u32 peer = turned(comm, channel, i);
        MoveEntry entry = entries(peer);
        u64 offset = Entries::UNEVEN ? value_from(grid, comm, channel, peer) : comm.team.rank * args.remote_stride;
        u64 from = input + entry.send_offset, to = output_of(grid, comm, peer) + offset;
        bool needed = !(peer == comm.team.rank && from == to);
        for (u64 first = grid.block * tile; first < entry.send_bytes && needed; first += grid.grid_blocks * tile) {
            copy_bytes(grid, to + first, from + first, cut(first, tile, entry.send_bytes));
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
