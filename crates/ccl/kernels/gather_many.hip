// all_gather of several tensors in one launch. The inputs of a rank are one message: laid out one after the other, each at a multiple of
// 16, so that pieces are as aligned as the tensors. The message moves as in move.hip: in packets, through the staging, or directly to the
// outputs of peers. The arguments of meet.h and packets.h hold unchanged.
#include "ccl/packets.h"
#include "ccl/buffer.h"

namespace ccl {

static ANABRANCH_DEVICE u64 segment_start(const Grid& grid, const GatherManyArgs& args, u32 index) {
    return args.table == nullptr ? args.segments[index].start : private_load(grid, &args.table[index].start);
}
static ANABRANCH_DEVICE Segment segment_of(const Grid& grid, const GatherManyArgs& args, u32 index) {
    if (args.table == nullptr) return args.segments[index];
    const Segment* entry = args.table + index;
    BufferView output = {private_load(grid, &entry->output.bases), private_load(grid, &entry->output.offset),
                    private_load(grid, &entry->output.own)};
    return Segment{private_load(grid, &entry->input), output, private_load(grid, &entry->bytes),
                   private_load(grid, &entry->start)};
}
// The last segment that starts at or before `byte`. There is one: the first starts at 0.
static ANABRANCH_DEVICE u32 segment_at(const Grid& grid, const GatherManyArgs& args, u64 byte) {
    u32 low = 0, high = args.count - 1;
    while (low < high) {
        u32 middle = (low + high + 1) / 2;
        if (segment_start(grid, args, middle) <= byte) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}
// The address of the input of `source` in the output of `member`, and of this rank.
static ANABRANCH_DEVICE u64 target_of(const Grid& grid, const Segment& segment, u32 member, u32 source) {
    return buffer_at(grid, segment.output, member) + source * segment.bytes;
}
static ANABRANCH_DEVICE u64 own_target(const Segment& segment, u32 source) {
    return segment.output.own + source * segment.bytes;
}

// Calls `copy(segment, offset, at, bytes)` for each part of a segment in bytes [first, end) of the message. `offset` is in the segment and
// `at` in the message.
template <class Copy>
static ANABRANCH_DEVICE void for_each_part(const Grid& grid, const GatherManyArgs& args, u64 first, u64 end, Copy copy) {
    if (first >= end || args.count == 0) return;
    for (u32 i = segment_at(grid, args, first); i < args.count; ++i) {
        Segment segment = segment_of(grid, args, i);
        if (segment.start >= end) break;
        u64 at = maximum(first, segment.start), last = minimum(end, segment.start + segment.bytes);
        if (at < last) copy(segment, at - segment.start, at, last - at);
    }
}

// Copies the share of this channel of the inputs of this rank to its outputs. Skips inputs that are in place.
static ANABRANCH_DEVICE void copy_own(const Grid& grid, const GatherManyArgs& args) {
    u64 units = args.total / 16;
    u64 first = units * grid.block / grid.grid_blocks * 16, end = units * (grid.block + 1) / grid.grid_blocks * 16;
    u32 me = args.comm.team.rank;
    for_each_part(grid, args, first, end, [&](const Segment& segment, u64 offset, u64, u64 bytes) {
        u64 to = own_target(segment, me);
        if (to != segment.input) copy_bytes(grid, to + offset, segment.input + offset, bytes);
    });
}

static ANABRANCH_DEVICE void gather_packets(const Grid& grid, const GatherManyArgs& args, Channel& channel) {
    const CommView& comm = args.comm;
    u32 me = comm.team.rank;
    bool wide = args.is_wide != 0;
    // At least one packet between any two members in each channel; some have no payload.
    u64 units = maximum(args.total / PAYLOAD, u64(grid.grid_blocks));
    u64 begin = units * grid.block / grid.grid_blocks, end = units * (grid.block + 1) / grid.grid_blocks;
    for (u64 first = begin; first < end && !channel.dead; first += comm.packet_units) {
        next_epoch(grid, comm, channel);
        u64 count = minimum(end - first, u64(comm.packet_units));
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            u64 byte = (first + unit) * PAYLOAD, payload = 0;
            if (byte < args.total) {
                Segment segment = segment_of(grid, args, segment_at(grid, args, byte));
                payload = load_payload(grid, segment.input, byte - segment.start, segment.bytes, wide);
            }
            for (u32 i = 1; i < comm.team.size; ++i) send(grid, comm, channel, 0, rotated(comm, i), unit, payload);
        }
        if (first == begin) copy_own(grid, args);
        for (u32 base = 0; base < comm.team.size; base += BATCH) {
            for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
                u64 payload[BATCH];
                if (!receive(grid, comm, channel, comm.heap, 0, base, unit, payload)) break;
                u64 byte = (first + unit) * PAYLOAD;
                if (byte >= args.total) continue;
                Segment segment = segment_of(grid, args, segment_at(grid, args, byte));
                ANABRANCH_UNROLL
                for (u32 k = 0; k < BATCH; ++k) {
                    u32 source = base + k;
                    if (source >= comm.team.size || source == me) continue;
                    u64 to = own_target(segment, source);
                    store_payload(grid, to, byte - segment.start, segment.bytes, wide, payload[k]);
                }
            }
        }
        end_epoch(grid, channel);
    }
}

static ANABRANCH_DEVICE void gather_staged(const Grid& grid, const GatherManyArgs& args, Channel& channel) {
    const CommView& comm = args.comm;
    u32 me = comm.team.rank;
    // All channels take part in every step, also if it does not fill the staging.
    u64 share = round_up((args.total + grid.grid_blocks - 1) / grid.grid_blocks, 256);
    u64 piece = minimum(comm.staging_bytes, share);
    copy_own(grid, args);
    for (u64 step = 0; step * piece * grid.grid_blocks < args.total && !channel.dead; ++step) {
        u64 first = (step * grid.grid_blocks + grid.block) * piece;
        u64 end = minimum(first + piece, args.total);
        u64 half = next_half(channel);
        for (u32 i = 1; i < comm.team.size; ++i) {
            u64 to = staging_of(comm, member_base(grid, comm, rotated(comm, i)), channel, half, me);
            for_each_part(grid, args, first, end, [&](const Segment& segment, u64 offset, u64 at, u64 bytes) {
                copy_bytes(grid, to + (at - first), segment.input + offset, bytes);
            });
        }
        meet(grid, comm, channel);
        for (u32 i = 1; i < comm.team.size && !channel.dead; ++i) {
            u32 source = rotated(comm, i);
            u64 from = staging_of(comm, comm.heap, channel, half, source);
            for_each_part(grid, args, first, end, [&](const Segment& segment, u64 offset, u64 at, u64 bytes) {
                copy_bytes(grid, own_target(segment, source) + offset, from + (at - first), bytes);
            });
        }
    }
}

// Tiles of the message are distributed over the channels. Smaller in tests, so that every channel has several.
#if !defined(CCL_TILE)
#define CCL_TILE 32768
#endif

static ANABRANCH_DEVICE void gather_direct(const Grid& grid, const GatherManyArgs& args, Channel& channel) {
    const CommView& comm = args.comm;
    u32 me = comm.team.rank;
    meet_first(grid, comm, channel);
    for (u32 i = 0; i < comm.team.size && !channel.dead; ++i) {
        u32 peer = turned(comm, channel, i);
        for (u64 first = u64(grid.block) * CCL_TILE; first < args.total; first += u64(grid.grid_blocks) * CCL_TILE) {
            u64 end = minimum(first + CCL_TILE, args.total);
            for_each_part(grid, args, first, end, [&](const Segment& segment, u64 offset, u64, u64 bytes) {
                u64 to = target_of(grid, segment, peer, me);
                if (to != segment.input || peer != me) copy_bytes(grid, to + offset, segment.input + offset, bytes);
            });
        }
    }
    meet(grid, comm, channel);
}

// The buffers are in the segments, not in the channel.
static ANABRANCH_DEVICE Channel gather_open(const Grid& grid, const GatherManyArgs& args) {
    BufferView none = {nullptr, 0, 0};
    return channel_open(grid, args.comm, none, none);
}

}  // namespace ccl

ANABRANCH_KERNEL(anabranch_ccl_gather_many_packets, GatherManyArgs, 512) {
    ccl::Channel channel = ccl::gather_open(grid, args);
    if (!channel.dead) ccl::gather_packets(grid, args, channel);
    ccl::channel_close(grid, args.comm, channel);
}

ANABRANCH_KERNEL(anabranch_ccl_gather_many_staged, GatherManyArgs, 512) {
    ccl::Channel channel = ccl::gather_open(grid, args);
    if (!channel.dead) ccl::gather_staged(grid, args, channel);
    ccl::channel_close(grid, args.comm, channel);
}

ANABRANCH_KERNEL(anabranch_ccl_gather_many_direct, GatherManyArgs, 512) {
    ccl::Channel channel = ccl::gather_open(grid, args);
    if (!channel.dead) ccl::gather_direct(grid, args, channel);
    ccl::channel_close(grid, args.comm, channel);
}
