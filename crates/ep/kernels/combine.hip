// Slotted combine: every rank pulls, for each of its tokens, the rows that the token's destinations computed, and sums
// them in group-rank order with f32 accumulation and one rounding.
//
// Who writes what. Rank d's expert work has written the combine window [s][0 .. n) at d; then d stores its combine flag at
// every rank s. Rank s waits for the flags of all ranks and reads.
//
// Why the window is not overwritten while it is read. Rank d writes its combine window again in epoch e + 1, after its
// dispatch e + 1 has seen every rank's dispatch flag e + 1. Rank s sends that flag after its combine e has ended (stream
// order on the slot, kept by the handle), so all reads of epoch e are over. The same chain protects the flag words.
#include "anabranch/prelude.h"
#include "ep/routing.h"
#include "ep/combine_flags.h"

#ifndef EP_ELEMENT
#error "the kernel is compiled for an element type: Bf16, F16 or F32"
#endif
typedef EP_ELEMENT Element;

// One wave sums units [begin, end) of one token. Rows are loaded a few at a time, added in ascending rank order.
static ANABRANCH_DEVICE void sum_units(const Grid& grid, const CombineArgs& args, u32 token, u32 begin, u32 end) {
    static constexpr u32 UNROLL = 2;
    static constexpr u32 ROWS = 4;
    const u64* map = args.send_map + static_cast<u64>(token) * args.fan_out;
    Vec16* target = reinterpret_cast<Vec16*>(args.output + static_cast<u64>(token) * args.row_bytes);
    for (u32 first = begin + grid.lane(); first < end; first += WAVE_SIZE * UNROLL) {
        Wide<Element> sum[UNROLL];
#pragma unroll
        for (u32 u = 0; u < UNROLL; ++u) sum[u] = Wide<Element>::zero();
        for (u32 n = 0; n < args.fan_out; n += ROWS) {
            const Vec16* source[ROWS];
            Vec16 unit[ROWS][UNROLL];
#pragma unroll
            for (u32 i = 0; i < ROWS; ++i) {
                u64 entry = n + i < args.fan_out ? private_load(grid, map + n + i) : 0;
                source[i] = nullptr;
                if (is_destination(entry)) {
                    u64 row = static_cast<u64>(args.team.rank) * args.max_tokens + destination_row(entry);
                    source[i] = reinterpret_cast<const Vec16*>(
                        private_load(grid, args.team.peer_bases + destination_rank(entry)) + args.rows_offset +
                        row * args.row_bytes);
                }
            }
#pragma unroll
            for (u32 i = 0; i < ROWS; ++i) {
#pragma unroll
                for (u32 u = 0; u < UNROLL; ++u) {
                    u32 at = first + u * WAVE_SIZE;
                    if (source[i] != nullptr && at < end) unit[i][u] = remote_load(grid, source[i] + at);
                }
            }
#pragma unroll
            for (u32 i = 0; i < ROWS; ++i) {
                if (source[i] == nullptr) continue;
#pragma unroll
                for (u32 u = 0; u < UNROLL; ++u) {
                    if (first + u * WAVE_SIZE < end) sum[u].add(Wide<Element>::unpack(unit[i][u]));
                }
            }
        }
#pragma unroll
        for (u32 u = 0; u < UNROLL; ++u) {
            u32 at = first + u * WAVE_SIZE;
            if (at < end) stream_store(grid, target + at, sum[u].pack());
        }
    }
}

// The whole block comes here, or none of it.
static ANABRANCH_DEVICE void pull_and_sum(const Grid& grid, const CombineArgs& args, u64 epoch) {
    WaitContext wait = wait_context(grid, args.team.control, args.operation, args.team.group, args.team.rank, epoch);
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);

    if (grid.block == 0) {
        // The rows were written by earlier work on this stream; the fence carries them to the peers.
        ANABRANCH_UNLESS(COMBINE_UNRELEASED) block_release_system(grid);
        if (grid.thread == 0) flag_all(grid, args, PULLED, static_cast<u32>(epoch));
    }

    LocalArray<u32> fault = {0};
    if (!wait_for_rows(grid, args, PULLED, wait, own, fault)) return;

    u32 units = args.row_bytes / 16;
    u64 items = static_cast<u64>(args.token_count) * args.segments;
    for (u64 item = grid.grid_wave(); item < items; item += grid.grid_waves()) {
        u32 token = static_cast<u32>(item / args.segments);
        u32 segment = static_cast<u32>(item % args.segments);
        u32 from = static_cast<u32>(static_cast<u64>(units) * segment / args.segments);
        u32 to = static_cast<u32>(static_cast<u64>(units) * (segment + 1) / args.segments);
        sum_units(grid, args, token, from, to);
    }
    advance_epoch(grid, args, epoch);
}

ANABRANCH_KERNEL(anabranch_ep_combine, CombineArgs, 1024) {
    u64 epoch = next_epoch(grid, args);
    if (epoch != 0) pull_and_sum(grid, args, epoch);
}
