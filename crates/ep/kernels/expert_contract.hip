// Sums the experts' outputs of each received row, from the expert-major layout: over its pairs, in the order of k, weight times
// output. The sum starts at 0; each product and each sum is rounded to f32, and the result once to the row type. Dropped pairs are left out.
// Weights are those of the dispatch, late weights (`late_weights.hip`), given for each row of the layout, or with EP_CONTIGUOUS ones.
// The sums go to the combine window, which peers pull later, or to a buffer, which this rank pushes. One wave, or waves with a part each,
// write a row; blocks wait for no peer.
//
// Peers read the window after the flags of the next combine on the stream. Their reads of the last combine are over, because this slot's
// dispatch came after them (`combine.hip`). Only this rank's next combine on the stream reads a buffer.
#include "anabranch/prelude.h"
#include "ep/received_rows.h"

#ifndef EP_ELEMENT
#error "the kernel is compiled for an element type: Bf16, F16 or F32"
#endif
typedef EP_ELEMENT Element;

// 16-byte units of a row that a lane sums together, and pairs whose rows are loaded together.
static constexpr u32 SUM_UNITS = 2;
static constexpr u32 SUM_PAIRS = 4;

// The pairs that a wave processes together, one per lane.
struct LanePairs {
    u32 slot;
    u32 weight;

    static ANABRANCH_DEVICE LanePairs load(const Grid& grid, const ExpertContractArgs& args, u64 window_row, u32 first) {
        u32 top_k = args.received.top_k;
        u32 k = first + grid.lane();
        if (k >= top_k) return {SLOT_NONE, 0};
        u32 slot = private_load(grid, args.slot_map + window_row * top_k + k);
        if (CONTIGUOUS) {
            // The map is the caller's.
            if (slot >= args.places) slot = SLOT_NONE;
            if (args.is_unweighted != 0) return {slot, bit_cast<u32>(1.0f)};
        }
        if (args.weights != nullptr) return {slot, slot < SLOT_DROPPED ? private_load(grid, args.weights + slot) : 0};
        if (args.late != nullptr) return {slot, heap_load(grid, args.late + window_row * top_k + k)};
        return {slot, heap_load(grid, meta_record(args.received, window_row) + 2 + top_k + k)};
    }
};

// Adds these pairs to the sums. Their rows are loaded a few at a time and added in the order of the lanes.
static ANABRANCH_DEVICE void add_pairs(const Grid& grid, const ExpertContractArgs& args, const LanePairs& pairs, u32 first,
                                       u32 end, Wide<Element> (&sum)[SUM_UNITS]) {
    u64 left = grid.ballot(pairs.slot < SLOT_DROPPED);
    while (left != 0) {
        const Vec16* source[SUM_PAIRS];
        f32 weight[SUM_PAIRS] = {};
        Vec16 unit[SUM_PAIRS][SUM_UNITS];
        ANABRANCH_UNROLL
        for (u32 i = 0; i < SUM_PAIRS; ++i) {
            source[i] = nullptr;
            if (left == 0) continue;
            u32 lane = count_bits((left & (~left + 1)) - 1);
            left &= left - 1;
            u64 slot = grid.wave_broadcast(pairs.slot, lane);
            weight[i] = bit_cast<f32>(grid.wave_broadcast(pairs.weight, lane));
            source[i] = reinterpret_cast<const Vec16*>(args.experts + slot * args.row_bytes);
        }
        ANABRANCH_UNROLL
        for (u32 i = 0; i < SUM_PAIRS; ++i) {
            ANABRANCH_UNROLL
            for (u32 u = 0; u < SUM_UNITS; ++u) {
                u32 at = first + u * WAVE_SIZE;
                if (source[i] != nullptr && at < end) unit[i][u] = stream_load(grid, source[i] + at);
            }
        }
        ANABRANCH_UNROLL
        for (u32 i = 0; i < SUM_PAIRS; ++i) {
            if (source[i] == nullptr) continue;
            ANABRANCH_UNROLL
            for (u32 u = 0; u < SUM_UNITS; ++u) {
                if (first + u * WAVE_SIZE >= end) continue;
                Wide<Element> addend = Wide<Element>::unpack(unit[i][u]);
                addend.scale(weight[i]);
                sum[u].add(addend);
            }
        }
    }
}

// One wave sums units [begin, end) of one row.
static ANABRANCH_DEVICE void contract_units(const Grid& grid, const ExpertContractArgs& args, u64 window_row,
                                            u32 begin, u32 end) {
    Vec16* target = reinterpret_cast<Vec16*>(args.output + window_row * args.row_bytes);
    LanePairs pairs = LanePairs::load(grid, args, window_row, 0);
    for (u32 start = begin; start < end; start += WAVE_SIZE * SUM_UNITS) {
        u32 first = start + grid.lane();
        Wide<Element> sum[SUM_UNITS];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < SUM_UNITS; ++u) sum[u] = Wide<Element>::zero();
        for (u32 k = 0; k < args.received.top_k; k += WAVE_SIZE) {
            // One look is enough for all units where a wave has a lane for every k.
            if (args.received.top_k > WAVE_SIZE) pairs = LanePairs::load(grid, args, window_row, k);
            add_pairs(grid, args, pairs, first, end, sum);
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < SUM_UNITS; ++u) {
            u32 at = first + u * WAVE_SIZE;
            if (at < end) heap_store(grid, target + at, sum[u].pack());
        }
    }
}

// The whole grid sums all received rows.
ANABRANCH_KERNEL(anabranch_ep_expert_contract, ExpertContractArgs, 1024) {
    u32 total = total_rows(grid, args.received);
    u32 units = args.row_bytes / 16;
    // Where rows are fewer than waves, waves share rows.
    u32 finest = maximum(units / (SUM_UNITS * WAVE_SIZE), 1u);
    u32 segments = minimum(maximum(grid.grid_waves() / maximum(total, 1u), 1u), finest);
    u64 items = static_cast<u64>(total) * segments;
    u64 item = items * grid.grid_wave() / grid.grid_waves();
    u64 last = items * (grid.grid_wave() + 1) / grid.grid_waves();
    u32 row = static_cast<u32>(item / segments);
    u32 segment = static_cast<u32>(item % segments);
    SlotOffsets offsets = {args.received.offsets};
    RowCursor cursor = {0, 0, 0};
    if (item < last) cursor = RowCursor::at(grid, offsets, args.received.ranks, row);
    for (; item < last; ++item) {
        cursor.move_to(grid, offsets, row);
        u32 from = segments == 1 ? 0 : static_cast<u32>(static_cast<u64>(units) * segment / segments);
        u32 to = segments == 1 ? units : static_cast<u32>(static_cast<u64>(units) * (segment + 1) / segments);
        contract_units(grid, args, cursor.window_row(args.received, row), from, to);
        ++segment;
        if (segment == segments) {
            segment = 0;
            ++row;
        }
    }
}
