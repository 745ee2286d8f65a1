// One rank's part of a dispatch: the destinations of each token, and the copies. Waves and blocks work on their own tokens here; the
// kernels order them.
#pragma once

#include "ep/dispatch_local.h"
#include "ep/mask.h"
#ifdef EP_CAST
#include "ep/dispatch_cast.h"
#else
#include "ep/dispatch_copy.h"
#endif

// The distance between the ids of two tokens in words: the caller's are dense, forwarded ones are in their meta records.
template <class Route>
static ANABRANCH_DEVICE u32 id_stride(const DispatchArgs& args) {
    return Route::FORWARDS ? args.meta_bytes / 4 : CallerIds::stride(args.top_k);
}

// Whether no rows are sent to the rank.
template <class Route>
static ANABRANCH_DEVICE bool gets_no_rows(const Grid& grid, const DispatchLocal<Route>& local, u32 rank) {
    return (MASKS || Route::FORWARDS) && local.peer_base.get(grid, rank) == 0;
}

// Whether another rank of its node forwards a rank's rows.
template <class Route>
static ANABRANCH_DEVICE bool is_relayed(const Grid& grid, const DispatchLocal<Route>& local, u32 rank) {
    return Route::RELAYS && local.peer_base.get(grid, rank) == 0;
}

// Wave 0 gives every token of the tile its destinations and rows. Each token is reported by one block, those from `reported` on
// by this one: it counts their invalid ids and writes the send map, which includes dropped copies. For forwarded tokens the source
// has done so.
template <class Route>
static ANABRANCH_DEVICE void route_tile(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local,
                                        u32 first, u32 count, u32 reported) {
    typedef typename Route::Ids Ids;
    u32 ranks = args.team.size;
    Owners owners = Owners::of(args.placement, args.team.rank);
    for (u32 start = 0; start < count; start += WAVE_SIZE) {
        u32 index = start + grid.lane();
        bool live = index < count;
        bool report = !Route::FORWARDS && live && index >= reported;
        u32 token = first + index;
        const i32* ids = args.ids + static_cast<u64>(token) * id_stride<Route>(args);
        u64* map = args.send_map + static_cast<u64>(token) * args.fan_out;
        u32 named = 0;
        u32 fan = 0;
        for (u32 base = 0; base < ranks; base += RANKS_PER_MASK) {
            Destinations found = {0, 0};
            if (live) found = destinations_of<Ids>(grid, ids, args.top_k, owners, Ids::token(grid, ids, token), base);
            u64 mask = found.ranks;
            u32 invalid = report && base == 0 ? found.invalid : 0;
            for (u32 k = 0; invalid != 0; ++k, invalid >>= 1) {
                if ((invalid & 1) == 0) continue;
                fetch_add_device(grid, &args.state->invalid_count, 1u);
                fetch_min_device(grid, &args.state->invalid_first, pack_invalid(token, k, Ids::load(grid, ids, k)));
            }
            u32 end = minimum(ranks - base, RANKS_PER_MASK);
            for (u32 bit = 0; bit < end; ++bit) {
                bool goes = (mask >> bit) & 1;
                u64 goers = grid.ballot(goes);
                u32 row = local.next_row.get(grid, base + bit);
                if (goes && !gets_no_rows(grid, local, base + bit)) {
                    u32 mine = row + count_bits(goers & grid.lanes_before());
                    u64 entry = pack_destination(base + bit, local.first_row.get(grid, base + bit) + mine);
                    if (mine >= local.capacity.get(grid, base + bit)) {
                        entry |= DROPPED;
                        if constexpr (Route::NUMBERS) {
                            // The first that does not fit.
                            if (report && mine == local.capacity.get(grid, base + bit)) mark_full(grid, local, base + bit);
                        }
                    } else if (!is_relayed(grid, local, base + bit)) {
                        local.destination.set(grid, index * args.fan_out + fan, entry);
                        ++fan;
                    }
                    if (report) private_store(grid, map + named, entry);
                    ++named;
                }
                grid.wave_barrier();
                if (grid.lane() == 0) local.next_row.set(grid, base + bit, row + count_bits(goers));
                grid.wave_barrier();
            }
        }
        if constexpr (Route::RELAYS) fan = route_to_nodes(grid, args, local, owners, live ? ids : nullptr, token, index, fan);
        if (live) {
            local.fan.set(grid, index, fan);
            for (u32 n = report ? named : args.fan_out; n < args.fan_out; ++n) private_store(grid, map + n, u64(0));
        }
    }
}

// One wave writes the meta record of a token at all its destinations: {token, place among those destinations,
// ids, weights, scales}. Combine pushes the row's result to that place. Where ranks may be masked the place is the
// destination's rank.
template <class Route>
static ANABRANCH_DEVICE void write_meta(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local, u32 index,
                                        u32 token) {
    u32 fan = local.fan.get(grid, index);
    u32 words = 2 + 2 * args.top_k + args.scale_bytes / 4;
    for (u32 word = grid.lane(); word < words; word += WAVE_SIZE) {
        // One load for all lanes, from whichever tensor has the word; wide ids have a load of their own.
        u32 scales_at = 2 + 2 * args.top_k;
        u64 row = static_cast<u64>(token);
        bool is_id = word >= 2 && word < 2 + args.top_k;
        const u32* from = nullptr;
        if (word >= scales_at) {
            from = reinterpret_cast<const u32*>(args.scales + row * args.scale_bytes) + (word - scales_at);
        } else if (word >= 2 + args.top_k) {
            if (args.weights != nullptr) {
                from = reinterpret_cast<const u32*>(args.weights + row * args.top_k) + (word - 2 - args.top_k);
            }
        } else if (is_id && CallerIds::WORDS == 1) {
            from = reinterpret_cast<const u32*>(args.ids + row * args.top_k) + (word - 2);
        }
        u32 value = from != nullptr ? private_load(grid, from) : 0;
        if (word == 0) value = token;
        if (is_id && CallerIds::WORDS == 2) {
            value = static_cast<u32>(CallerIds::load(grid, args.ids, row * args.top_k + (word - 2)));
        }
        if (is_id) value = static_cast<u32>(valid_id(static_cast<i32>(value), args.experts));
        for (u32 n = 0; n < fan; ++n) {
            u64 entry = local.destination.get(grid, index * args.fan_out + n);
            u32* target = reinterpret_cast<u32*>(Route::meta_at(grid, args, local, entry));
            if (word == 1) {
                value = MASKS ? destination_rank(entry) : n;
                if constexpr (Route::RELAYS) value = place_of(grid, args, local, token, entry);
            }
            remote_store(grid, target + word, value);
        }
    }
}
