// The numbers of pairs. A pair is a token and an index k at which it names an expert. Its number is that of the source's earlier pairs, by
// token, then by k, with the same expert and destination. A destination adds the totals of the sources before, and has the pair's place
// among the rows of the expert, without a look at any other pair.
//
// A destination that is full gets no more rows of this source, so its pairs are the earlier ones, and their numbers stay right. Its totals
// are those of the tokens before the first one that did not fit. The block of that token has counted them: it counts the pairs of all
// tokens before its own, which all fitted there, and of its own those that fit.
#pragma once

#include "ep/dispatch_rows.h"

// Ids that a thread loads together, so that latencies overlap.
static constexpr u32 NUMBERS_AT_ONCE = 8;

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

// Counts the pairs of the tokens before `end`, by all waves but the first, which routes meanwhile, if there are others. Readers need a
// block barrier.
template <class Route>
static ANABRANCH_DEVICE void count_earlier(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local, u32 end) {
    Owners owners = Owners::of(args.placement, args.team.rank);
    u32 skipped = grid.block_threads > WAVE_SIZE ? WAVE_SIZE : 0;
    if (grid.thread < skipped) return;
    u32 threads = grid.block_threads - skipped;
    u64 pairs = static_cast<u64>(end) * args.top_k;
    for (u64 start = grid.thread - skipped; start < pairs; start += static_cast<u64>(threads) * NUMBERS_AT_ONCE) {
        i32 id[NUMBERS_AT_ONCE];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < NUMBERS_AT_ONCE; ++u) {
            u64 pair = start + static_cast<u64>(u) * threads;
            id[u] = pair < pairs ? CallerIds::load(grid, args.ids, pair) : -1;
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < NUMBERS_AT_ONCE; ++u) {
            if (static_cast<u32>(id[u]) >= args.experts) continue;
            u32 token = static_cast<u32>((start + static_cast<u64>(u) * threads) / args.top_k);
            local.route.next.fetch_add(grid, owners.copy_of(grid, static_cast<u32>(id[u]), token), 1u);
        }
    }
}

// Where the tile's token `index` has its record at a rank; 0 where it has no row there.
template <class Route>
static ANABRANCH_DEVICE u64 record_at(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local, u32 index, u32 rank) {
    u32 fan = local.fan.get(grid, index);
    for (u32 n = 0; n < fan; ++n) {
        u64 entry = local.destination.get(grid, index * args.fan_out + n);
        if (destination_rank(entry) == rank) return Route::meta_at(grid, args, local, entry);
    }
    return 0;
}

// The first wave numbers the pairs of the tile's tokens from `begin` on, in order, and writes the numbers to their records.
template <class Route>
static ANABRANCH_DEVICE void number_pairs(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local, u32 tile,
                                          u32 begin, u32 end) {
    Owners owners = Owners::of(args.placement, args.team.rank);
    for (u32 start = begin * args.top_k; start < end * args.top_k; start += WAVE_SIZE) {
        u32 pair = start + grid.lane();
        u32 index = pair / args.top_k, k = pair % args.top_k, copy = 0;
        u64 record = 0;
        if (index < end) {
            u32 id = static_cast<u32>(CallerIds::load(grid, args.ids, static_cast<u64>(tile) * args.top_k + pair));
            if (id < args.experts) {
                copy = owners.copy_of(grid, id, tile + index);
                record = record_at(grid, args, local, index, owners.rank_of(grid, id, tile + index));
            }
        }
        // Lanes with the same copy: those that agree in every bit of its number.
        u64 same = grid.ballot(record != 0);
        for (u32 rest = local.route.copies - 1, bit = 0; rest != 0; rest >>= 1, ++bit) {
            bool is_set = ((copy >> bit) & 1) != 0;
            u64 set = grid.ballot(is_set);
            same &= is_set ? set : ~set;
        }
        u32 number = 0;
        if (record != 0) {
            number = local.route.next.get(grid, copy) + count_bits(same & grid.lanes_before());
            remote_store(grid, reinterpret_cast<u32*>(record) + local.route.numbers_word + k, number);
        }
        grid.wave_barrier();
        // The last of them.
        if (record != 0 && (same >> grid.lane()) == 1) local.route.next.set(grid, copy, number + 1);
        grid.wave_barrier();
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
