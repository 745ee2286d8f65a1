// The numbers of pairs. A pair is a token and an index k at which it names an expert. Its number is that of the source's earlier pairs, by
// token, then by k, with the same expert and destination. A destination adds the totals of the sources before, and has the pair's place
// among the rows of the expert, without a look at any other pair.
//
// A destination that is full gets no more rows of this source, so its pairs are the earlier ones, and their numbers stay right. Its totals
// are those of the tokens before the first one that did not fit. The block of that token has counted them: it counts the pairs of all
// tokens before its own, which all fitted there, and of its own those that fit.
#pragma once

#include "ep/dispatch_rows.h"

// A block's tile: its first token, how many of its tokens another block reports, how many it has, and the block's first token.
struct PairTile {
    u32 tile, earlier, count, first;
};

// Ids that a thread loads together, so that latencies overlap.
static constexpr u32 NUMBERS_AT_ONCE = 4;

// The whole block clears the counts. Users need a block barrier.
template <class Route>
static ANABRANCH_DEVICE void clear_numbers(const Grid& grid, const DispatchLocal<Route>& local) {
    for (u32 copy = grid.thread; copy < local.route.copies; copy += grid.block_threads) local.route.next.set(grid, copy, 0u);
    for (u32 rank = grid.thread; rank <= local.route.ranks; rank += grid.block_threads) local.route.full.set(grid, rank, 0u);
}

template <class Route>
static ANABRANCH_DEVICE void mark_full(const Grid& grid, const DispatchLocal<Route>& local, u32 rank) {
    local.route.full.set(grid, rank, 1u);
    local.route.full.set(grid, local.route.ranks, 1u);
}

// The whole block counts the pairs of the tokens before `end`.
template <class Route>
static ANABRANCH_DEVICE void count_earlier(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local, u32 end) {
    Owners owners = Owners::of(args.placement, args.team.rank);
    u64 pairs = static_cast<u64>(end) * args.top_k;
    for (u64 start = grid.thread; start < pairs; start += static_cast<u64>(grid.block_threads) * NUMBERS_AT_ONCE) {
        i32 id[NUMBERS_AT_ONCE];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < NUMBERS_AT_ONCE; ++u) {
            u64 pair = start + static_cast<u64>(u) * grid.block_threads;
            id[u] = pair < pairs ? CallerIds::load(grid, args.ids, pair) : -1;
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < NUMBERS_AT_ONCE; ++u) {
            if (static_cast<u32>(id[u]) >= args.experts) continue;
            u32 token = static_cast<u32>((start + static_cast<u64>(u) * grid.block_threads) / args.top_k);
            local.route.next.fetch_add(grid, owners.copy_of(grid, static_cast<u32>(id[u]), token), 1u);
        }
    }
}

// Whether the tile's token `index` has a row at a rank to which it goes.
template <class Route>
static ANABRANCH_DEVICE bool has_row(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local, u32 index, u32 rank) {
    if (local.next_row.get(grid, rank) <= local.capacity.get(grid, rank)) return true;
    u32 fan = local.fan.get(grid, index);
    for (u32 n = 0; n < fan; ++n) {
        if (destination_rank(local.destination.get(grid, index * args.fan_out + n)) == rank) return true;
    }
    return false;
}

// One wave numbers the pairs of the tile's own tokens, in order.
template <class Route>
static ANABRANCH_DEVICE void number_pairs(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local,
                                          const PairTile& tile) {
    static constexpr u32 NO_COPY = ~0u;
    Owners owners = Owners::of(args.placement, args.team.rank);
    u32 pairs = tile.count * args.top_k;
    for (u32 start = tile.earlier * args.top_k; start < pairs; start += WAVE_SIZE) {
        u32 pair = start + grid.lane();
        u32 copy = NO_COPY;
        if (pair < pairs) {
            u32 index = pair / args.top_k;
            i32 id = CallerIds::load(grid, args.ids, static_cast<u64>(tile.tile) * args.top_k + pair);
            if (static_cast<u32>(id) < args.experts) {
                u32 token = tile.tile + index;
                u32 rank = owners.rank_of(grid, static_cast<u32>(id), token);
                if (has_row(grid, args, local, index, rank)) copy = owners.copy_of(grid, static_cast<u32>(id), token);
            }
        }
        // Lanes with the same copy: those that agree in every bit of its number.
        u64 same = grid.ballot(copy != NO_COPY);
        for (u32 rest = local.route.copies - 1, bit = 0; rest != 0; rest >>= 1, ++bit) {
            bool is_set = ((copy >> bit) & 1) != 0;
            u64 set = grid.ballot(is_set);
            same &= is_set ? set : ~set;
        }
        u32 number = 0;
        if (copy != NO_COPY) number = local.route.next.get(grid, copy) + count_bits(same & grid.lanes_before());
        if (pair < pairs) local.route.number.set(grid, pair, number);
        grid.wave_barrier();
        // The last of them.
        if (copy != NO_COPY && (same >> grid.lane()) == 1) local.route.next.set(grid, copy, number + 1);
        grid.wave_barrier();
    }
}

// The whole block, after the rows of a tile: numbers its pairs, and writes its records. The next tile's pairs need a block barrier.
template <class Route>
static ANABRANCH_DEVICE void write_numbered(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local,
                                            const PairTile& tile) {
    if (tile.tile + tile.earlier == tile.first && tile.first > 0) {
        count_earlier(grid, args, local, tile.first);
        grid.block_barrier();
    }
    if (grid.wave() == 0) number_pairs(grid, args, local, tile);
    grid.block_barrier();
    for (u32 index = tile.earlier + grid.wave(); index < tile.count; index += grid.waves_per_block()) {
        write_meta(grid, args, local, index, tile.tile + index);
    }
}

// The whole block, after its tiles: writes the totals for ranks that became full in its tokens, and, with the last tokens, for those with
// room for all.
template <class Route>
static ANABRANCH_DEVICE void write_totals(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local, bool has_last) {
    if (!has_last && local.route.full.get(grid, local.route.ranks) == 0) return;
    const PlacementView& placement = args.placement;
    Owners owners = Owners::of(placement, args.team.rank);
    u64 own = local.route.totals_offset + static_cast<u64>(args.team.rank) * local.route.totals_stride;
    for (u32 expert = grid.thread; expert < args.experts; expert += grid.block_threads) {
        bool is_listed = placement.starts != nullptr;
        u32 first = is_listed ? private_load(grid, placement.starts + expert) : expert;
        u32 end = is_listed ? private_load(grid, placement.starts + expert + 1) : expert + 1;
        for (u32 copy = first; copy < end; ++copy) {
            u32 rank = is_listed ? private_load(grid, placement.owners + copy) : owners.rank_of(grid, expert, 0);
            bool fits = local.next_row.get(grid, rank) <= local.capacity.get(grid, rank);
            if (local.route.full.get(grid, rank) == 0 && !(has_last && fits)) continue;
            u32* total = reinterpret_cast<u32*>(local.peer_base.get(grid, rank) + own) + expert;
            remote_store(grid, total, local.route.next.get(grid, copy));
        }
    }
}
