// Reductions of short messages, for one element type: all_reduce, reduce_scatter and reduce. Every element is reduced in group-rank order
// and rounded once, by one rank or by all in the same way, so that every algorithm gives the same bits.
//
// - `one_shot`: every member sends its input to every member in packets (packets.h) and reduces all of it. One hop.
// - `two_shot`: every member sends part j to member j in packets, which reduces it and sends the result to all in packets. Two hops, fewer
//   bytes. Stage 0 carries the parts, stage 1 the results.
// - `scatter_packets`: the first hop of `two_shot`.
#include "ccl/packet_sums.h"
#include "ccl/buffer.h"
#include "ccl/parts.h"

#ifndef CCL_ELEMENT
#error "the kernel is compiled for an element type"
#endif

namespace ccl {

typedef CCL_ELEMENT Element;

// The buffers of a call as packets see them.
struct Buffers {
    u64 bytes;   // of the whole message, or of one part where each rank has one
    u64 units;
    bool wide;   // 8 bytes at a time
    bool keeps;  // whether this rank gets the result
};
static ANABRANCH_DEVICE Buffers buffers_of(const ReduceArgs& args) {
    u64 bytes = args.count * Element::BYTES;
    bool keeps = args.root == REDUCE_ALL || args.root == args.comm.team.rank;
    return Buffers{bytes, (bytes + PAYLOAD - 1) / PAYLOAD, (args.input.own | args.output.own) % PAYLOAD == 0, keeps};
}

// The first unit of this thread, whose load is in flight while the channel is opened.
static ANABRANCH_DEVICE u64 first_unit(const Grid& grid, const ReduceArgs& args, const Buffers& at) {
    u64 unit = grid.block * args.channel_units + grid.thread;
    return grid.thread < args.channel_units ? load_payload(grid, args.input.own, unit * PAYLOAD, at.bytes, at.wide) : 0;
}

template <bool SUM_ONLY>
static ANABRANCH_DEVICE void one_shot(const Grid& grid, const ReduceArgs& args, const Reduction& reduction, Channel& channel,
                                      const Buffers& at, u64 early) {
    const CommView& comm = args.comm;
    u64 begin = grid.block * args.channel_units, end = minimum(begin + args.channel_units, at.units);
    auto load = [&](u64 unit) { return load_payload(grid, args.input.own, unit * PAYLOAD, at.bytes, at.wide); };
    for (u64 first = begin; first < end && !channel.dead; first += comm.packet_units) {
        next_epoch(grid, comm, channel);
        u64 count = minimum(end - first, u64(comm.packet_units));
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            u64 mine = first + unit == begin + grid.thread ? early : load(first + unit);
            for (u32 i = 1; i < comm.team.size; ++i) send(grid, comm, channel, 0, rotated(comm, i), unit, mine);
        }
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            u64 mine = first + unit == begin + grid.thread ? early : load(first + unit);
            u64 result = 0;
            if (!reduce_unit<Element, SUM_ONLY>(grid, comm, reduction, channel, unit, mine, result)) break;
            if (at.keeps) store_payload(grid, args.output.own, (first + unit) * PAYLOAD, at.bytes, at.wide, result);
        }
        end_epoch(grid, channel);
    }
}

// Part j of the message is units [j * part, (j + 1) * part), as far as they exist. The channel handles a share of each part.
template <bool SUM_ONLY>
static ANABRANCH_DEVICE void two_shot(const Grid& grid, const ReduceArgs& args, const Reduction& reduction, Channel& channel,
                                      const Buffers& at) {
    const CommView& comm = args.comm;
    u32 size = comm.team.size, me = comm.team.rank;
    u64 part = args.part_units;
    u64 begin = grid.block * args.channel_units, end = minimum(begin + args.channel_units, part);
    for (u64 first = begin; first < end && !channel.dead; first += comm.packet_units) {
        next_epoch(grid, comm, channel);
        u64 count = minimum(end - first, u64(comm.packet_units));
        auto load = [&](u32 owner, u64 unit) {
            return load_payload(grid, args.input.own, (owner * part + first + unit) * PAYLOAD, at.bytes, at.wide);
        };
        auto store = [&](u32 owner, u64 unit, u64 payload) {
            if (!at.keeps) return;
            store_payload(grid, args.output.own, (owner * part + first + unit) * PAYLOAD, at.bytes, at.wide, payload);
        };
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            send_unit(grid, comm, channel, unit, [&](u32 owner) { return load(owner, unit); });
        }
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            u64 result = 0;
            if (!reduce_unit<Element, SUM_ONLY>(grid, comm, reduction, channel, unit, load(me, unit), result)) break;
            for (u32 i = 1; i < size; ++i) send(grid, comm, channel, 1, rotated(comm, i), unit, result);
            store(me, unit, result);
        }
        for (u32 base = 0; base < size; base += BATCH) {
            for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
                u64 payload[BATCH];
                if (!receive(grid, comm, channel, comm.heap, 1, base, unit, payload)) break;
                ANABRANCH_UNROLL
                for (u32 k = 0; k < BATCH; ++k) {
                    if (base + k < size && base + k != me) store(base + k, unit, payload[k]);
                }
            }
        }
        end_epoch(grid, channel);
    }
}

// Parts of equal length.
struct EvenParts {
    u64 bytes;
    ANABRANCH_DEVICE u64 of(u32) const { return bytes; }
    ANABRANCH_DEVICE u64 start(u32 member) const { return member * bytes; }
};

// `count` is the elements of the longest part. Member j gets part j. Packets beyond the end of a shorter part carry zeros.
template <bool SUM_ONLY, class AnyParts>
static ANABRANCH_DEVICE void scatter_packets(const Grid& grid, const ReduceArgs& args, const Reduction& reduction, Channel& channel,
                                             const Buffers& at, const AnyParts& parts, bool wide) {
    const CommView& comm = args.comm;
    u64 begin = grid.block * args.channel_units, end = minimum(begin + args.channel_units, at.units);
    for (u64 first = begin; first < end && !channel.dead; first += comm.packet_units) {
        next_epoch(grid, comm, channel);
        u64 count = minimum(end - first, u64(comm.packet_units));
        auto load = [&](u32 owner, u64 unit) {
            return load_payload(grid, args.input.own + parts.start(owner), (first + unit) * PAYLOAD, parts.of(owner), wide);
        };
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            send_unit(grid, comm, channel, unit, [&](u32 owner) { return load(owner, unit); });
        }
        for (u64 unit = grid.thread; unit < count; unit += grid.block_threads) {
            u64 result = 0;
            if (!reduce_unit<Element, SUM_ONLY>(grid, comm, reduction, channel, unit, load(comm.team.rank, unit), result)) break;
            store_payload(grid, args.output.own, (first + unit) * PAYLOAD, args.own_bytes, wide, result);
        }
        end_epoch(grid, channel);
    }
}

}  // namespace ccl

// Plain sums have a separate path.
#define CCL_FORM(FORM, CALL, ...)                                                                          \
    ccl::on_channel(grid, (CALL).comm, (CALL).input, (CALL).output, [&](ccl::Channel& channel) {           \
        const Reduction& given = (CALL).reduction;                                                         \
        if (given.op == ccl::SUM) return ccl::FORM<true>(grid, CALL, given, channel, __VA_ARGS__);         \
        ccl::FORM<false>(grid, CALL, ccl::with_scalar<ccl::Element>(grid, given), channel, __VA_ARGS__);   \
    })
ANABRANCH_KERNEL(anabranch_ccl_one_shot, ReduceArgs, 512) {
    ccl::Buffers at = ccl::buffers_of(args);
    u64 early = ccl::first_unit(grid, args, at);
    CCL_FORM(one_shot, args, at, early);
}
ANABRANCH_KERNEL(anabranch_ccl_two_shot, ReduceArgs, 512) { CCL_FORM(two_shot, args, ccl::buffers_of(args)); }
ANABRANCH_KERNEL(anabranch_ccl_scatter_packets, ReduceArgs, 512) {
    ccl::Buffers at = ccl::buffers_of(args);
    CCL_FORM(scatter_packets, args, at, ccl::EvenParts{at.bytes}, at.wide && at.bytes % ccl::PAYLOAD == 0);
}
ANABRANCH_KERNEL(anabranch_ccl_uneven_scatter_packets, UnevenReduceArgs, 512) {
    CCL_FORM(scatter_packets, args.reduce, ccl::buffers_of(args.reduce), ccl::UnevenParts(args), args.reduce.is_aligned != 0);
}
