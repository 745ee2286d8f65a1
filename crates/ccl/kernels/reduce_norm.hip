// RMSNorm of a sum over ranks, for one element type (row_norm.h): in the kernel of the sum, which sends packets, or in a kernel of its own
// after any algorithm.
//
// A block has rows of its own, one after the other, and all members do all rows. In one shot every member sends each row to every member and
// sums it; in two shots member j sums part j of each row and sends it to all. Packets have the rules of packets.h: a channel's epoch is a row,
// or as many units of one as a channel has packets for.
#include "ccl/buffer.h"
#include "ccl/packet_sums.h"
#include "ccl/row_norm.h"

#ifndef CCL_ELEMENT
#error "the kernel is compiled for an element type"
#endif

namespace ccl {

typedef CCL_ELEMENT Element;

// The rows of a block.
struct Rows {
    u64 begin;
    u64 end;
};
static ANABRANCH_DEVICE Rows rows_of(const Grid& grid, const RowNorm& norm) {
    u64 each = (norm.rows + grid.grid_blocks - 1) / grid.grid_blocks;
    u64 begin = minimum(grid.block * each, norm.rows);
    return Rows{begin, minimum(begin + each, norm.rows)};
}

// Receives the contributions to `count` units from `first` on of a row, whose own ones are in local memory, and keeps their sums.
static ANABRANCH_DEVICE void sum_units(const Grid& grid, const ReduceNormArgs& args, const Channel& channel, u64 row, u32 first, u32 count) {
    const CommView& comm = args.comm;
    Reduction plain = {SUM, comm.team.size, 0, 0};
    for (u32 base = grid.thread; base < count; base += UNITS_AT_ONCE * grid.block_threads) {
        Batch at = {base, count};
        auto near = [&](u32 k) { return at.near(grid, k); };
        u64 residual[UNITS_AT_ONCE], payload[UNITS_AT_ONCE];
        Partial<Element, u64, true> sum[UNITS_AT_ONCE];
        ANABRANCH_UNROLL
        for (u32 k = 0; k < UNITS_AT_ONCE; ++k) residual[k] = residual_of(grid, args.norm, row, first + near(k));
        for (u32 source = 0; source < comm.team.size; ++source) {
            if (source == comm.team.rank) {
                ANABRANCH_UNROLL
                for (u32 k = 0; k < UNITS_AT_ONCE; ++k) payload[k] = grid.local_load<u64>(unit_at(args.norm, first + near(k)));
            } else {
                auto is_awaited = [](u32) { return true; };
                auto of = [source](u32) { return source; };
                if (!receive_packets(grid, comm, channel, comm.heap, 0, is_awaited, of, near, payload)) return;
            }
            ANABRANCH_UNROLL
            for (u32 k = 0; k < UNITS_AT_ONCE; ++k) {
                if (source == 0) {
                    sum[k] = Partial<Element, u64, true>::first(plain, payload[k]);
                } else {
                    sum[k].add(plain, payload[k]);
                }
            }
        }
        ANABRANCH_UNROLL
        for (u32 k = 0; k < UNITS_AT_ONCE; ++k) {
            u32 unit = at.unit(grid, k);
            if (unit < count) keep<Element>(grid, args.norm, row, first + unit, sum[k].finish(plain), residual[k]);
        }
    }
}

// Sends `count` units from `first` on of a row to every member, and leaves them in local memory, each where its thread alone reads it.
static ANABRANCH_DEVICE void send_units(const Grid& grid, const ReduceNormArgs& args, const Channel& channel, u64 row, u32 first, u32 count) {
    const CommView& comm = args.comm;
    for (u32 base = grid.thread; base < count; base += UNITS_AT_ONCE * grid.block_threads) {
        Batch at = {base, count};
        u64 mine[UNITS_AT_ONCE];
        ANABRANCH_UNROLL
        for (u32 k = 0; k < UNITS_AT_ONCE; ++k) {
            mine[k] = load_unit(grid, place_of(args.norm, args.input.own, row, first + at.near(grid, k)));
        }
        ANABRANCH_UNROLL
        for (u32 k = 0; k < UNITS_AT_ONCE; ++k) {
            u32 unit = at.unit(grid, k);
            if (unit >= count) continue;
            for (u32 i = 1; i < comm.team.size; ++i) send(grid, comm, channel, 0, rotated(comm, i), unit, mine[k]);
            grid.local_store<u64>(unit_at(args.norm, first + unit), mine[k]);
        }
    }
}

static ANABRANCH_DEVICE void one_shot_row(const Grid& grid, const ReduceNormArgs& args, Channel& channel, u64 row) {
    const CommView& comm = args.comm;
    for (u32 first = 0; first < args.norm.units && !channel.dead; first += comm.packet_units) {
        next_epoch(grid, comm, channel);
        u32 count = minimum(args.norm.units - first, comm.packet_units);
        send_units(grid, args, channel, row, first, count);
        sum_units(grid, args, channel, row, first, count);
        end_epoch(grid, channel);
    }
}

// Part j of a row is units [j * part, (j + 1) * part), as far as they exist.
static ANABRANCH_DEVICE void two_shot_row(const Grid& grid, const ReduceNormArgs& args, Channel& channel, u64 row) {
    const CommView& comm = args.comm;
    u32 size = comm.team.size, me = comm.team.rank;
    u32 part = (args.norm.units + size - 1) / size;
    Reduction plain = {SUM, size, 0, 0};
    for (u32 first = 0; first < part && !channel.dead; first += comm.packet_units) {
        next_epoch(grid, comm, channel);
        u32 count = minimum(part - first, comm.packet_units);
        auto place = [&](u32 owner, u32 unit) { return owner * part + first + unit; };
        auto load = [&](u32 owner, u32 unit) {
            u32 at = place(owner, unit);
            return at < args.norm.units ? load_unit(grid, place_of(args.norm, args.input.own, row, at)) : 0;
        };
        auto kept = [&](u32 owner, u32 unit, u64 sum) {
            u32 at = place(owner, unit);
            if (at < args.norm.units) keep<Element>(grid, args.norm, row, at, sum, residual_of(grid, args.norm, row, at));
        };
        for (u32 unit = grid.thread; unit < count; unit += grid.block_threads) {
            send_unit(grid, comm, channel, unit, [&](u32 owner) { return load(owner, unit); });
        }
        for (u32 unit = grid.thread; unit < count; unit += grid.block_threads) {
            u64 sum = 0;
            if (!reduce_unit<Element, true>(grid, comm, plain, channel, unit, load(me, unit), sum)) break;
            for (u32 i = 1; i < size; ++i) send(grid, comm, channel, 1, rotated(comm, i), unit, sum);
            kept(me, unit, sum);
        }
        for (u32 base = 0; base < size; base += BATCH) {
            for (u32 unit = grid.thread; unit < count; unit += grid.block_threads) {
                u64 payload[BATCH];
                if (!receive(grid, comm, channel, comm.heap, 1, base, unit, payload)) break;
                ANABRANCH_UNROLL
                for (u32 k = 0; k < BATCH; ++k) {
                    if (base + k < size && base + k != me) kept(base + k, unit, payload[k]);
                }
            }
        }
        end_epoch(grid, channel);
    }
}

// `sum_row(row)` keeps a row, and ends with a barrier.
template <class SumRow>
static ANABRANCH_DEVICE void norm_rows(const Grid& grid, const ReduceNormArgs& args, Channel& channel, SumRow sum_row) {
    Rows rows = rows_of(grid, args.norm);
    for (u64 row = rows.begin; row < rows.end; ++row) {
        // The threads have read the row before.
        if (row != rows.begin) grid.block_barrier();
        sum_row(row);
        if (channel.dead) return;  // lint: allow(return-before-barrier): the same in every thread
        finish_row<Element>(grid, args.norm, row);
    }
}

}  // namespace ccl

ANABRANCH_KERNEL(anabranch_ccl_one_shot_norm, ReduceNormArgs, ANABRANCH_WIDE_BLOCK) {
    ccl::on_channel(grid, args.comm, args.input, args.input, [&](ccl::Channel& channel) {
        ccl::norm_rows(grid, args, channel, [&](u64 row) { ccl::one_shot_row(grid, args, channel, row); });
    });
}
ANABRANCH_KERNEL(anabranch_ccl_two_shot_norm, ReduceNormArgs, ANABRANCH_WIDE_BLOCK) {
    ccl::on_channel(grid, args.comm, args.input, args.input, [&](ccl::Channel& channel) {
        ccl::norm_rows(grid, args, channel, [&](u64 row) { ccl::two_shot_row(grid, args, channel, row); });
    });
}

// The sum is in memory.
ANABRANCH_KERNEL(anabranch_ccl_rms_norm, RmsNormArgs, ANABRANCH_WIDE_BLOCK) {
    ccl::Rows rows = ccl::rows_of(grid, args.norm);
    for (u64 row = rows.begin; row < rows.end; ++row) {
        if (row != rows.begin) grid.block_barrier();
        for (u32 base = grid.thread; base < args.norm.units; base += ccl::UNITS_AT_ONCE * grid.block_threads) {
            ccl::Batch at = {base, args.norm.units};
            u64 sum[ccl::UNITS_AT_ONCE], residual[ccl::UNITS_AT_ONCE];
            ANABRANCH_UNROLL
            for (u32 k = 0; k < ccl::UNITS_AT_ONCE; ++k) {
                sum[k] = ccl::load_unit(grid, ccl::place_of(args.norm, args.sum, row, at.near(grid, k)));
                residual[k] = ccl::residual_of(grid, args.norm, row, at.near(grid, k));
            }
            ANABRANCH_UNROLL
            for (u32 k = 0; k < ccl::UNITS_AT_ONCE; ++k) {
                u32 unit = at.unit(grid, k);
                if (unit < args.norm.units) ccl::keep<ccl::Element>(grid, args.norm, row, unit, sum[k], residual[k]);
            }
        }
        grid.block_barrier();
        ccl::finish_row<ccl::Element>(grid, args.norm, row);
    }
}
