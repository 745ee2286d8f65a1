// Tokens that go once to each other node (`NodesRoute<true>`), and the relay that forwards them there (`ForwardRoute`).
//
// A source stages, for each other node, the rows and meta records of its tokens that go to any rank there, in their order, even if all
// their copies are dropped. It puts them to one rank of the node, its relay. The relay computes from the ids in the records to which
// ranks of the node each token goes, and to which row there: the number of the source's earlier tokens that go to that rank. The source
// computes the same rows for its send map. The `place` word of these records is a bit mask of the sent copies of the token, from which
// the relay computes the place of each copy.
#pragma once

#include "ep/route_nodes.h"
#include "ep/mask.h"

// The nodes first .. first + 63 to which a token goes, as bits, without this rank's node.
static ANABRANCH_DEVICE u64 nodes_of(const Grid& grid, const DispatchLocal<NodesRoute<true>>& local, const i32* ids, u32 top_k, const Owners& owners,
                                     u32 token, u32 first) {
    u64 found = 0;
    for (u32 k = 0; k < top_k; ++k) {
        i32 id = CallerIds::load(grid, ids, k);
        if (static_cast<u32>(id) >= owners.placement.experts) continue;
        u32 node = private_load(grid, local.route.nodes.node_of + owners.rank_of(grid, static_cast<u32>(id), token));
        if (node != local.route.nodes.node && node - first < RANKS_PER_MASK) found |= u64(1) << (node - first);
    }
    return found;
}

// The whole wave. Adds the copies for other nodes to a token's destinations, of which it has `fan`: node n is destination R + n.
static ANABRANCH_DEVICE u32 route_to_nodes(const Grid& grid, const DispatchArgs& args, const DispatchLocal<NodesRoute<true>>& local,
                                           const Owners& owners, const i32* ids, u32 token, u32 index, u32 fan) {
    for (u32 base = 0; base < local.route.nodes.count; base += RANKS_PER_MASK) {
        u64 mask = ids != nullptr ? nodes_of(grid, local, ids, args.top_k, owners, token, base) : 0;
        u32 end = minimum(local.route.nodes.count - base, RANKS_PER_MASK);
        for (u32 bit = 0; bit < end; ++bit) {
            bool goes = (mask >> bit) & 1;
            u64 goers = grid.ballot(goes);
            u32 row = local.route.next_relay.get(grid, base + bit);
            if (goes) {
                u32 mine = row + count_bits(goers & grid.lanes_before());
                local.destination.set(grid, index * args.fan_out + fan, pack_destination(args.team.size + base + bit, mine));
                ++fan;
            }
            grid.wave_barrier();
            if (grid.lane() == 0) local.route.next_relay.set(grid, base + bit, row + count_bits(goers));
            grid.wave_barrier();
        }
    }
    return fan;
}

// Counts, for every other node, the tokens before `end` that go to it, like `count_tokens`.
static ANABRANCH_DEVICE void count_relays(const Grid& grid, const DispatchArgs& args, const DispatchLocal<NodesRoute<true>>& local, u32 end) {
    Owners owners = Owners::of(args.placement, args.team.rank);
    for (u32 start = grid.wave() * WAVE_SIZE; start < end; start += grid.block_threads) {
        u32 token = start + grid.lane();
        for (u32 base = 0; base < local.route.nodes.count; base += RANKS_PER_MASK) {
            u64 mask = 0;
            if (token < end) mask = nodes_of(grid, local, args.ids + static_cast<u64>(token) * CallerIds::stride(args.top_k), args.top_k, owners, token, base);
            u32 bits = minimum(local.route.nodes.count - base, RANKS_PER_MASK);
            for (u32 bit = 0; bit < bits; ++bit) {
                u32 count = count_bits(grid.ballot((mask >> bit) & 1));
                if (grid.lane() == 0 && count > 0) local.route.next_relay.fetch_add(grid, base + bit, count);
            }
        }
    }
}

static ANABRANCH_DEVICE void clear_relays(const Grid& grid, const DispatchLocal<NodesRoute<true>>& local) {
    for (u32 node = grid.thread; node < local.route.nodes.count; node += grid.block_threads) local.route.next_relay.set(grid, node, 0u);
}

static ANABRANCH_DEVICE void flag_relayed(const Grid& grid, const DispatchLocal<NodesRoute<true>>& local) {
    for (u32 node = grid.thread; node < local.route.nodes.count; node += grid.block_threads) {
        private_store(grid, local.route.relayed + node, local.route.next_relay.get(grid, node));
    }
}

// A copy's place among the sent copies of its token; for a node, the bit mask of the sent copies. The send map has all, ascending by rank.
static ANABRANCH_DEVICE u32 place_of(const Grid& grid, const DispatchArgs& args, const DispatchLocal<NodesRoute<true>>&, u32 token,
                                     u64 entry) {
    const u64* map = args.send_map + static_cast<u64>(token) * args.fan_out;
    u32 sent = 0, place = 0, count = 0;
    for (u32 i = 0; i < args.fan_out; ++i) {
        u64 other = private_load(grid, map + i);
        if (!is_destination(other) || is_dropped(other)) continue;
        if (destination_rank(other) == destination_rank(entry)) place = count;
        sent |= 1u << i;
        ++count;
    }
    return destination_rank(entry) >= args.team.size ? sent : place;
}

// Ids in meta records that a peer wrote. A token's number at its source is its record's first word, two words before the ids.
struct RecordIds {
    static ANABRANCH_DEVICE i32 load(const Grid& grid, const i32* ids, u64 k) { return heap_load(grid, ids + k); }
    static ANABRANCH_DEVICE u32 token(const Grid& grid, const i32* ids, u32) {
        return heap_load(grid, reinterpret_cast<const u32*>(ids) - 2);
    }
};

// Rows that ranks of other nodes have put here are forwarded to the ranks of this node.
struct ForwardRoute {
    typedef RecordIds Ids;
    static constexpr bool RELAYS = false;
    static constexpr bool FORWARDS = true;
    static constexpr bool NUMBERS = false;
    NodesView nodes;
    // The source's records.
    u64 relay_meta;

    ANABRANCH_DEVICE void place_tables(u32) {}
    ANABRANCH_DEVICE bool is_far(const Grid& grid, u32 rank) const { return !is_near(grid, nodes, rank); }

    typedef DispatchLocal<ForwardRoute> Local;
    static ANABRANCH_DEVICE u64 row_at(const Grid& grid, const DispatchArgs& args, const Local& local, u64 entry) {
        return window_row(grid, args, local, entry);
    }
    static ANABRANCH_DEVICE u64 meta_at(const Grid& grid, const DispatchArgs& args, const Local& local, u64 entry) {
        return window_meta(grid, args, local, entry);
    }
};

// Where a relay reports what a rank sent: waits for the relay's own flag first, so that an expired wait names a missing relay and not the
// rank whose rows it forwards.
static ANABRANCH_DEVICE WaitStatus await_reporter(const Grid& grid, const DispatchLocal<ForwardRoute>& local, const WaitContext& wait, u32 phase,
                                                u32 rank, u64 flags, u32 flag_stride) {
    u32 reporter = private_load(grid, local.route.nodes.reporters + rank);
    if (reporter == rank) return WAIT_OK;
    u64 seen = 0;
    const u64* flag = reinterpret_cast<const u64*>(flags + static_cast<u64>(reporter) * flag_stride);
    return await_flag(grid, wait, phase, reporter, flag, seen);
}

// The number of copies of a row's token for ranks below `rank`.
static ANABRANCH_DEVICE u32 copies_below(const Grid& grid, const DispatchArgs& args, const Owners& owners, u32 row, u32 rank) {
    const i32* ids = args.ids + static_cast<u64>(row) * (args.meta_bytes / 4);
    u32 token = RecordIds::token(grid, ids, row), below = 0;
    for (u32 base = 0; base < rank; base += RANKS_PER_MASK) {
        u64 ranks = destinations_of<RecordIds>(grid, ids, args.top_k, owners, token, base).ranks;
        if (rank - base < RANKS_PER_MASK) ranks &= (u64(1) << (rank - base)) - 1;
        below += count_bits(ranks);
    }
    return below;
}

// One wave writes a forwarded token's record at all its destinations in this node.
static ANABRANCH_DEVICE void forward_meta(const Grid& grid, const DispatchArgs& args, const DispatchLocal<ForwardRoute>& local, u32 index,
                                          u32 row) {
    u32 fan = local.fan.get(grid, index);
    u32 words = args.meta_bytes / 4;
    Owners owners = Owners::of(args.placement, args.team.rank);
    const u32* record = reinterpret_cast<const u32*>(local.route.relay_meta + static_cast<u64>(row) * args.meta_bytes);
    for (u32 word = grid.lane(); word < words; word += WAVE_SIZE) {
        u32 value = heap_load(grid, record + word);
        for (u32 n = 0; n < fan; ++n) {
            u64 entry = local.destination.get(grid, index * args.fan_out + n);
            u32 mine = value;
            if (word == 1) {
                u32 below = copies_below(grid, args, owners, row, destination_rank(entry));
                mine = count_bits(static_cast<u64>(value) & ((u64(1) << below) - 1));
            }
            remote_store(grid, reinterpret_cast<u32*>(ForwardRoute::meta_at(grid, args, local, entry)) + word, mine);
        }
    }
}
