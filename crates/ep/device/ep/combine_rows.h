// One token's part of a combine: the addresses of its rows, and their sum. Waves work on their own tokens here. The kernels
// `combine.hip`, `combine_engine.hip` and `combine_nodes.hip` order them, and define `result_of(grid, args, entry)`, the location of a
// copy's result.
#pragma once

#include "ep/mask.h"
#include "ep/send_map.h"

// The location of a copy's result: the rank that holds it, and the offset in that rank's heap.
struct Result {
    u32 holder;
    u64 offset;
};
// A row that is pulled from the combine window of the rank that computed it.
template <class Args>
static ANABRANCH_DEVICE Result pulled(const Args& args, u64 entry) {
    return {destination_rank(entry), args.rows_offset + static_cast<u64>(destination_row(entry)) * args.row_bytes};
}
// A row that was returned to this rank: `row_stride` rows per rank, in the order of that rank's combine window.
template <class Args>
static ANABRANCH_DEVICE Result returned(const Args& args, u64 window, u64 entry) {
    u64 own = static_cast<u64>(args.team.rank) * args.row_stride;
    u64 row = static_cast<u64>(destination_rank(entry)) * args.row_stride + (destination_row(entry) - own);
    return {args.team.rank, window + row * args.row_bytes};
}

// Some of the rows that a token went to, null where there is none.
static constexpr u32 ROWS = 4;
struct Rows {
    const Vec16* start[ROWS];
};

// The rows of entries [first, first + ROWS) of a token's map. All entries, then all bases: their latencies overlap.
template <class Args>
static ANABRANCH_DEVICE Rows rows_of(const Grid& grid, const Args& args, u32 token, u32 first) {
    const u64* map = args.send_map + static_cast<u64>(token) * args.fan_out + first;
    u64 entry[ROWS], base[ROWS], offset[ROWS];
    ANABRANCH_UNROLL
    for (u32 i = 0; i < ROWS; ++i) entry[i] = first + i < args.fan_out ? private_load(grid, map + i) : 0;
    ANABRANCH_UNROLL
    for (u32 i = 0; i < ROWS; ++i) {
        bool is_there = is_destination(entry[i]) && !is_dropped(entry[i]) && !LeftOut::has(grid, destination_rank(entry[i]));
        Result result = is_there ? result_of(grid, args, entry[i]) : Result{0, 0};
        base[i] = is_there ? private_load(grid, args.team.peer_bases + result.holder) : 0;
        offset[i] = result.offset;
    }
    Rows rows;
    ANABRANCH_UNROLL
    for (u32 i = 0; i < ROWS; ++i) {
        rows.start[i] = reinterpret_cast<const Vec16*>(base[i] == 0 ? 0 : base[i] + offset[i]);
    }
    return rows;
}

// Whether the addresses of a token's first rows are held in registers. Masks follow from the wait.
static constexpr bool LOADS_EARLY = !MASKS && ANABRANCH_HOLDS_ROWS != 0;

// One wave sums units [begin, end) of one token, whose first rows are `start`. Rows are loaded a few at a time, added in ascending rank
// order.
template <class Element, class Args>
static ANABRANCH_DEVICE void sum_units(const Grid& grid, const Args& args, u32 token, const Rows& start, u32 begin,
                                       u32 end) {
    static constexpr u32 UNROLL = 2;
    Vec16* target = reinterpret_cast<Vec16*>(args.output + static_cast<u64>(token) * args.row_bytes);
    for (u32 first = begin + grid.lane(); first < end; first += WAVE_SIZE * UNROLL) {
        Wide<Element> sum[UNROLL];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) sum[u] = Wide<Element>::zero();
        for (u32 n = 0; n < args.fan_out; n += ROWS) {
            Vec16 unit[ROWS][UNROLL];
            Rows rows = LOADS_EARLY && n == 0 ? start : rows_of(grid, args, token, n);
            ANABRANCH_UNROLL
            for (u32 i = 0; i < ROWS; ++i) {
                ANABRANCH_UNROLL
                for (u32 u = 0; u < UNROLL; ++u) {
                    u32 at = first + u * WAVE_SIZE;
                    if (rows.start[i] != nullptr && at < end) unit[i][u] = remote_load(grid, rows.start[i] + at);
                }
            }
            ANABRANCH_UNROLL
            for (u32 i = 0; i < ROWS; ++i) {
                if (rows.start[i] == nullptr) continue;
                ANABRANCH_UNROLL
                for (u32 u = 0; u < UNROLL; ++u) {
                    if (first + u * WAVE_SIZE < end) sum[u].add(Wide<Element>::unpack(unit[i][u]));
                }
            }
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) {
            u32 at = first + u * WAVE_SIZE;
            if (at < end) stream_store(grid, target + at, sum[u].pack());
        }
    }
}

// The addresses of the first rows of this wave's first token. They follow from the send map, which the dispatch has written, so they are
// computed before the wait for the ranks. The rows are loaded after it.
template <class Args>
static ANABRANCH_DEVICE Rows early_rows(const Grid& grid, const Args& args, u32 tokens) {
    u32 token = quotient_of(grid.grid_wave(), args.segments);
    if (!LOADS_EARLY || token >= tokens) return Rows{};
    return rows_of(grid, args, token, 0);
}

// The whole grid sums all tokens, `segments` waves a row.
template <class Element, class Args>
static ANABRANCH_DEVICE void sum_tokens(const Grid& grid, const Args& args, u32 tokens, const Rows& early) {
    u32 units = args.row_bytes / 16;
    u64 items = static_cast<u64>(tokens) * args.segments;
    for (u64 item = grid.grid_wave(); item < items; item += grid.grid_waves()) {
        u32 token = quotient_of(item, args.segments);
        u32 segment = static_cast<u32>(item - static_cast<u64>(token) * args.segments);
        u32 from = quotient_of(static_cast<u64>(units) * segment, args.segments);
        u32 to = quotient_of(static_cast<u64>(units) * (segment + 1), args.segments);
        Rows start = early;
        if (LOADS_EARLY && item != grid.grid_wave()) start = rows_of(grid, args, token, 0);
        sum_units<Element>(grid, args, token, start, from, to);
    }
}
