// Combined weights (EP_COMBINE_WEIGHTS; else nothing of this is compiled): for each token and each of its top_k entries, the f32 sum, in
// group-rank order, of the weight windows of the ranks that received the token. A weight window is [rows][top_k] f32.
// Weights are pulled or pushed like the rows, under the same flags, and the same arguments hold: `fill_weights.hip`, then the experts, write
// the window after the dispatch has seen every rank. Pushed weights have a window of [fan_out][max_tokens][top_k] f32 ([ranks] in place of
// [fan_out] where ranks may be masked), a place per destination, as for rows.
#pragma once

#include "ep/mask.h"
#include "ep/send_map.h"
#include "ep/token_count.h"

#ifdef EP_COMBINE_WEIGHTS

// Sums for every token and k, by the whole grid. `weight(entry, place, token, k)` loads the weight of one destination.
template <class Args, class Weight>
static ANABRANCH_DEVICE void sum_weights(const Grid& grid, const Args& args, Weight weight) {
    u64 items = static_cast<u64>(combined_tokens(grid, args)) * args.top_k;
    u64 stride = static_cast<u64>(grid.grid_waves()) * WAVE_SIZE;
    for (u64 item = static_cast<u64>(grid.grid_wave()) * WAVE_SIZE + grid.lane(); item < items; item += stride) {
        u64 token = item / args.top_k;
        u32 k = static_cast<u32>(item % args.top_k);
        f32 sum = 0.0f;
        u32 place = 0;
        for (u32 n = 0; n < args.fan_out; ++n) {
            u64 entry = private_load(grid, args.send_map + token * args.fan_out + n);
            if (!is_destination(entry) || is_dropped(entry) || LeftOut::has(grid, destination_rank(entry))) continue;
            sum += weight(entry, MASKS ? destination_rank(entry) : place, token, k);
            ++place;
        }
        private_store(grid, args.weights + item, sum);
    }
}

// From the windows of the token's destinations.
template <class Args>
static ANABRANCH_DEVICE void sum_pulled_weights(const Grid& grid, const Args& args) {
    sum_weights(grid, args, [&](u64 entry, u32, u64, u32 k) {
        u64 window = private_load(grid, args.team.peer_bases + destination_rank(entry)) + args.weights_offset;
        u64 row = destination_row(entry);
        return remote_load(grid, reinterpret_cast<const f32*>(window) + row * args.top_k + k);
    });
}

// From this rank's own window, where the destinations have pushed them.
template <class Args>
static ANABRANCH_DEVICE void sum_pushed_weights(const Grid& grid, const Args& args, u64 own) {
    sum_weights(grid, args, [&](u64, u32 place, u64 token, u32 k) {
        u64 row = static_cast<u64>(place) * args.max_tokens + token;
        const f32* window = reinterpret_cast<const f32*>(own + args.pushed_weights_offset);
        return heap_load(grid, window + row * args.top_k + k);
    });
}

// One wave sends the weights of a received row to its origin.
template <class Args>
static ANABRANCH_DEVICE void push_weights(const Grid& grid, const Args& args, u64 own, u64 row, u32 source, u64 place, u64 token) {
    u64 base = private_load(grid, args.team.peer_bases + source);
    const f32* from = reinterpret_cast<const f32*>(own + args.weights_offset) + row * args.top_k;
    f32* to = reinterpret_cast<f32*>(base + args.pushed_weights_offset) + (place * args.max_tokens + token) * args.top_k;
    for (u32 k = grid.lane(); k < args.top_k; k += WAVE_SIZE) remote_store(grid, to + k, heap_load(grid, from + k));
}

#else

template <class Args>
static ANABRANCH_DEVICE void sum_pulled_weights(const Grid&, const Args&) {}
template <class Args>
static ANABRANCH_DEVICE void sum_pushed_weights(const Grid&, const Args&, u64) {}
template <class Args>
static ANABRANCH_DEVICE void push_weights(const Grid&, const Args&, u64, u64, u32, u64, u64) {}

#endif
