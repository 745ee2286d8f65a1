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
static ANABRANCH_DEVICE bool reduce_unit(const Grid& grid, const ReduceArgs& args, const Lane& lane, u64 unit, u64 mine,
                                         u64& result) {
    const Channel& channel = args.channel;
    Partial<Element, u64, SUM_ONLY> sum;
    for (u32 base = 0; base < channel.team.size; base += BATCH) {
        u64 payload[BATCH];
        if (!receive(grid, channel, lane, channel.heap, 0, base, unit, payload)) return false;
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
    u64 bytes;   // of the whole message, or of one part where each rank has one
    u64 units;
    bool wide;   // 8 bytes at a time
    bool keeps;  // whether this rank gets the result
};
static ANABRANCH_DEVICE Buffers buffers_of(const ReduceArgs& args) {
    u64 bytes = args.count * Element::BYTES;
    bool keeps = args.root == REDUCE_ALL || args.root == args.channel.team.rank;
    return Buffers{bytes, (bytes + PAYLOAD - 1) / PAYLOAD, (args.input.own | args.output.own) % PAYLOAD == 0, keeps};
}

// Whose bytes of the input go to `owner`, for unit `unit`: all of it to everybody, or the owner's part.
struct WholeMessage {
    static ANABRANCH_DEVICE u64 load(const Grid& grid, const ReduceArgs& args, const Buffers& at, u32, u64 unit) {
        return load_payload(grid, args.input.own, unit * PAYLOAD, at.bytes, at.wide);
    }
};
struct PartOfMessage {
    static ANABRANCH_DEVICE u64 load(const Grid& grid, const ReduceArgs& args, const Buffers& at, u32 owner, u64 unit) {
        return load_payload(grid, args.input.own, (owner * args.part_units + unit) * PAYLOAD, at.bytes, at.wide);
    }
};
struct OwnPart {
    static ANABRANCH_DEVICE u64 load(const Grid& grid, const ReduceArgs& args, const Buffers& at, u32 owner, u64 unit) {
        bool wide = at.wide && at.bytes % PAYLOAD == 0;
        return load_payload(grid, args.input.own + owner * at.bytes, unit * PAYLOAD, at.bytes, wide);
    }
};

template <class Form>
static ANABRANCH_DEVICE Payloads load_unit(const Grid& grid, const ReduceArgs& args, const Buffers& at, u64 unit) {
    return load_unit(args.channel, [&](u32 owner) { return Form::load(grid, args, at, owner, unit); });
}

// Sends units [first, first + count) of the lane; `early` is this thread's first of all.
template <class Form>
static ANABRANCH_DEVICE void send_units(const Grid& grid, const ReduceArgs& args, const Buffers& at, const Lane& lane, u64 first,
                                        u64 count, const Payloads& early, bool is_first) {
    for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
        bool loaded = is_first && unit == grid.thread;
        send_unit(grid, args.channel, lane, unit, loaded ? early : load_unit<Form>(grid, args, at, first + unit),
                  [&](u32 owner) { return Form::load(grid, args, at, owner, first + unit); });
    }
}

template <bool SUM_ONLY>
static ANABRANCH_DEVICE void one_shot(const Grid& grid, const ReduceArgs& args, Lane& lane, const Buffers& at,
                                      const Payloads& early) {
    const Channel& channel = args.channel;
    u64 begin = grid.block * args.lane_units, end = minimum(begin + args.lane_units, at.units);
    for (u64 first = begin; first < end && !lane.dead; first += channel.packet_units) {
        next_epoch(grid, channel, lane);
        u64 count = minimum(end - first, u64(channel.packet_units));
        send_units<WholeMessage>(grid, args, at, lane, first, count, early, first == begin);
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            bool loaded = first == begin && unit == grid.thread;
            u64 mine = loaded ? early.own : WholeMessage::load(grid, args, at, 0, first + unit);
            u64 result = 0;
            if (!reduce_unit<SUM_ONLY>(grid, args, lane, unit, mine, result)) break;
            if (at.keeps) store_payload(grid, args.output.own, (first + unit) * PAYLOAD, at.bytes, at.wide, result);
        }
        end_epoch(grid, lane);
    }
}

// Part j of the message is units [j * part, (j + 1) * part), as far as there are such; of each part the lane takes its share.
template <bool SUM_ONLY>
static ANABRANCH_DEVICE void two_shot(const Grid& grid, const ReduceArgs& args, Lane& lane, const Buffers& at,
                                      const Payloads& early) {
    const Channel& channel = args.channel;
    u32 size = channel.team.size, me = channel.team.rank;
    u64 begin = grid.block * args.lane_units, end = minimum(begin + args.lane_units, args.part_units);
    for (u64 first = begin; first < end && !lane.dead; first += channel.packet_units) {
        next_epoch(grid, channel, lane);
        u64 count = minimum(end - first, u64(channel.packet_units));
        auto store = [&](u32 owner, u64 unit, u64 payload) {
            u64 byte = (owner * args.part_units + first + unit) * PAYLOAD;
            if (at.keeps) store_payload(grid, args.output.own, byte, at.bytes, at.wide, payload);
        };
        send_units<PartOfMessage>(grid, args, at, lane, first, count, early, first == begin);
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            bool loaded = first == begin && unit == grid.thread;
            u64 mine = loaded ? early.own : PartOfMessage::load(grid, args, at, me, first + unit);
            u64 result = 0;
            if (!reduce_unit<SUM_ONLY>(grid, args, lane, unit, mine, result)) break;
            for (u32 i = 1; i < size; ++i) send(grid, channel, lane, 1, rotated(channel, i), unit, result);
            store(me, unit, result);
        }
        for (u32 base = 0; base < size; base += BATCH) {
            for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
                u64 payload[BATCH];
                if (!receive(grid, channel, lane, channel.heap, 1, base, unit, payload)) break;
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
static ANABRANCH_DEVICE void scatter_packets(const Grid& grid, const ReduceArgs& args, Lane& lane, const Buffers& at,
                                             const Payloads& early) {
    const Channel& channel = args.channel;
    bool wide = at.wide && at.bytes % PAYLOAD == 0;
    u64 begin = grid.block * args.lane_units, end = minimum(begin + args.lane_units, at.units);
    for (u64 first = begin; first < end && !lane.dead; first += channel.packet_units) {
        next_epoch(grid, channel, lane);
        u64 count = minimum(end - first, u64(channel.packet_units));
        send_units<OwnPart>(grid, args, at, lane, first, count, early, first == begin);
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            bool loaded = first == begin && unit == grid.thread;
            u64 mine = loaded ? early.own : OwnPart::load(grid, args, at, channel.team.rank, first + unit);
            u64 result = 0;
            if (!reduce_unit<SUM_ONLY>(grid, args, lane, unit, mine, result)) break;
            store_payload(grid, args.output.own, (first + unit) * PAYLOAD, at.bytes, wide, result);
        }
        end_epoch(grid, lane);
    }
}

}  // namespace ccl

// Each thread's first unit is loaded while the lane is opened. Plain sums have code of their own.
#define CCL_FORM(FORM, LOAD)                                                                                              \
    ccl::Buffers at = ccl::buffers_of(args);                                                                              \
    ccl::Payloads early = ccl::load_unit<ccl::LOAD>(grid, args, at, grid.block * args.lane_units + grid.thread);          \
    ccl::on_lane(grid, args.channel, args.input, args.output, [&](ccl::Lane& lane) {                                      \
        if (args.reduction.op == ccl::SUM) return ccl::FORM<true>(grid, args, lane, at, early);                           \
        ccl::FORM<false>(grid, args, lane, at, early);                                                                    \
    })
ANABRANCH_KERNEL(anabranch_ccl_one_shot, ReduceArgs, 512) { CCL_FORM(one_shot, WholeMessage); }
ANABRANCH_KERNEL(anabranch_ccl_two_shot, ReduceArgs, 512) { CCL_FORM(two_shot, PartOfMessage); }
ANABRANCH_KERNEL(anabranch_ccl_scatter_packets, ReduceArgs, 512) { CCL_FORM(scatter_packets, OwnPart); }
