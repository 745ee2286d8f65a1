// Collectives that sum: all_reduce, reduce_scatter and reduce, for one element type. Every element is reduced by one rank, or
// by all in the same way, in group-rank order and rounded once, so that every form gives the same bits.
//
// - `one_shot`: everybody sends everything to everybody in packets (packets.h) and reduces all of it. One hop.
// - `two_shot`: part j goes to member j in packets, which reduces it and sends the result to all in packets. Two hops, fewer
//   bytes. Stage 0 carries the parts, stage 1 the results.
// - `scatter_packets`: the first half of that.
// Bulk forms: bulk_reduce.hip.
#include "ccl/packets.h"
#include "ccl/place.h"
#include "ccl/reduce.h"

#ifndef CCL_ELEMENT
#error "the kernel is compiled for an element type"
#endif

namespace ccl {

typedef CCL_ELEMENT Element;

// One unit from every member, reduced in group-rank order. `mine` is this rank's. False after a fault.
template <bool SUM_ONLY>
static ANABRANCH_DEVICE bool reduce_unit(const Grid& grid, const ReduceArgs& args, const Lane& lane, u64 own, u64 unit,
                                         u64 mine, u64& result) {
    const Channel& channel = args.channel;
    Partial<Element, u64, SUM_ONLY> sum;
    for (u32 base = 0; base < channel.team.size; base += BATCH) {
        u64 payload[BATCH];
        if (!receive(grid, channel, lane, own, 0, base, unit, payload)) return false;
#pragma unroll
        for (u32 k = 0; k < BATCH; ++k) {
            u32 source = base + k;
            if (source >= channel.team.size) continue;
            u64 raw = source == channel.team.rank ? mine : payload[k];
            if (source == 0) {
                sum = Partial<Element, u64, SUM_ONLY>::first(args.reduction, raw);
            } else {
                sum.add(args.reduction, raw);
            }
        }
    }
    result = sum.finish(args.reduction);
    return true;
}

// The buffers of a call as packets see them.
struct Buffers {
    u64 input;
    u64 output;
    u64 own;     // this rank's heap
    u64 bytes;   // of the whole message, or of one part where each rank has one
    u64 units;
    bool wide;   // 8 bytes at a time
    bool keeps;  // whether this rank gets the result
};
static ANABRANCH_DEVICE Buffers buffers_of(const Grid& grid, const ReduceArgs& args) {
    const Channel& channel = args.channel;
    u64 input = input_of(grid, channel, channel.team.rank), output = output_of(grid, channel, channel.team.rank);
    u64 bytes = args.count * Element::BYTES;
    bool keeps = args.root == REDUCE_ALL || args.root == channel.team.rank;
    return Buffers{input, output, member_base(grid, channel, channel.team.rank), bytes, (bytes + PAYLOAD - 1) / PAYLOAD,
                   (input | output) % PAYLOAD == 0, keeps};
}

template <bool SUM_ONLY>
static ANABRANCH_DEVICE void one_shot(const Grid& grid, const ReduceArgs& args, Lane& lane) {
    const Channel& channel = args.channel;
    Buffers at = buffers_of(grid, args);
    u64 begin = at.units * grid.block / grid.grid_blocks, end = at.units * (grid.block + 1) / grid.grid_blocks;
    for (u64 first = begin; first < end && !lane.dead; first += channel.packet_units) {
        next_epoch(grid, channel, lane);
        u64 count = minimum(end - first, u64(channel.packet_units));
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            u64 mine = load_payload(grid, at.input, (first + unit) * PAYLOAD, at.bytes, at.wide);
            for (u32 i = 1; i < channel.team.size; ++i) send(grid, channel, lane, 0, rotated(channel, i), unit, mine);
        }
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            u64 byte = (first + unit) * PAYLOAD;
            u64 mine = load_payload(grid, at.input, byte, at.bytes, at.wide);
            u64 result = 0;
            if (!reduce_unit<SUM_ONLY>(grid, args, lane, at.own, unit, mine, result)) break;
            if (at.keeps) store_payload(grid, at.output, byte, at.bytes, at.wide, result);
        }
        end_epoch(grid, lane);
    }
}

// Part j of the message is units [j * part, (j + 1) * part), as far as there are such; of each part the lane takes its share.
template <bool SUM_ONLY>
static ANABRANCH_DEVICE void two_shot(const Grid& grid, const ReduceArgs& args, Lane& lane) {
    const Channel& channel = args.channel;
    Buffers at = buffers_of(grid, args);
    u32 size = channel.team.size, me = channel.team.rank;
    u64 part = (at.units + size - 1) / size;
    u64 begin = part * grid.block / grid.grid_blocks, end = part * (grid.block + 1) / grid.grid_blocks;
    for (u64 first = begin; first < end && !lane.dead; first += channel.packet_units) {
        next_epoch(grid, channel, lane);
        u64 count = minimum(end - first, u64(channel.packet_units));
        auto load = [&](u32 owner, u64 unit) {
            return load_payload(grid, at.input, (owner * part + first + unit) * PAYLOAD, at.bytes, at.wide);
        };
        auto store = [&](u32 owner, u64 unit, u64 payload) {
            if (!at.keeps) return;
            store_payload(grid, at.output, (owner * part + first + unit) * PAYLOAD, at.bytes, at.wide, payload);
        };
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            for (u32 i = 1; i < size; ++i) {
                u32 owner = rotated(channel, i);
                send(grid, channel, lane, 0, owner, unit, load(owner, unit));
            }
        }
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            u64 result = 0;
            if (!reduce_unit<SUM_ONLY>(grid, args, lane, at.own, unit, load(me, unit), result)) break;
            for (u32 i = 1; i < size; ++i) send(grid, channel, lane, 1, rotated(channel, i), unit, result);
            store(me, unit, result);
        }
        for (u32 base = 0; base < size; base += BATCH) {
            for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
                u64 payload[BATCH];
                if (!receive(grid, channel, lane, at.own, 1, base, unit, payload)) break;
#pragma unroll
                for (u32 k = 0; k < BATCH; ++k) {
                    if (base + k < size && base + k != me) store(base + k, unit, payload[k]);
                }
            }
        }
        end_epoch(grid, lane);
    }
}

// `count` is that of one part; member j gets part j.
template <bool SUM_ONLY>
static ANABRANCH_DEVICE void scatter_packets(const Grid& grid, const ReduceArgs& args, Lane& lane) {
    const Channel& channel = args.channel;
    Buffers at = buffers_of(grid, args);
    bool wide = at.wide && at.bytes % PAYLOAD == 0;
    u64 begin = at.units * grid.block / grid.grid_blocks, end = at.units * (grid.block + 1) / grid.grid_blocks;
    for (u64 first = begin; first < end && !lane.dead; first += channel.packet_units) {
        next_epoch(grid, channel, lane);
        u64 count = minimum(end - first, u64(channel.packet_units));
        auto load = [&](u32 owner, u64 unit) {
            return load_payload(grid, at.input + owner * at.bytes, (first + unit) * PAYLOAD, at.bytes, wide);
        };
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            for (u32 i = 1; i < channel.team.size; ++i) {
                u32 owner = rotated(channel, i);
                send(grid, channel, lane, 0, owner, unit, load(owner, unit));
            }
        }
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            u64 result = 0;
            if (!reduce_unit<SUM_ONLY>(grid, args, lane, at.own, unit, load(channel.team.rank, unit), result)) break;
            store_payload(grid, at.output, (first + unit) * PAYLOAD, at.bytes, wide, result);
        }
        end_epoch(grid, lane);
    }
}

}  // namespace ccl

// Plain sums have code of their own.
#define CCL_FORM(FORM)                                                                        \
    ccl::on_lane(grid, args.channel, args.input, args.output, [&](ccl::Lane& lane) {          \
        if (args.reduction.op == ccl::SUM) return ccl::FORM<true>(grid, args, lane);          \
        ccl::FORM<false>(grid, args, lane);                                                   \
    })
ANABRANCH_KERNEL(anabranch_ccl_one_shot, ReduceArgs, 1024) { CCL_FORM(one_shot); }
ANABRANCH_KERNEL(anabranch_ccl_two_shot, ReduceArgs, 1024) { CCL_FORM(two_shot); }
ANABRANCH_KERNEL(anabranch_ccl_scatter_packets, ReduceArgs, 1024) { CCL_FORM(scatter_packets); }
