// From expert ids to destination ranks and rows.
//
// Where experts are placed evenly, rank r owns the experts from floor(r E / R) up to floor((r + 1) E / R), so expert e belongs to rank
// floor(((e + 1) R - 1) / E). A token sends one row to each distinct rank among its owners; its row at that rank is
// the number of this source's earlier tokens that go there too. Both are functions of the ids alone: no counter of
// another rank is touched, and every run places every row alike.
#pragma once

#include "anabranch/prelude.h"
#include "ep/send_map.h"

// Tokens that one block routes at a time; a multiple of every wave width. The plan sizes local memory with it.
#ifndef EP_TILE
#error "the plan gives EP_TILE"
#endif
static constexpr u32 TILE = EP_TILE;
static_assert(TILE % WAVE_SIZE == 0, "whole waves route a tile");
// Destinations whose membership one lane holds as bits.
static constexpr u32 RANKS_PER_MASK = 64;

// The owner of each expert, for the tokens of one rank. With a table an expert may be on several ranks; token t of rank s
// goes to number (s + t) mod n of its n ranks. The plan keeps E times R below 2^32. Kernels begin with cold instruction caches, so short
// code is fast: a division by E is a product with `inverse`, ceil(2^32 / E), whose result is at most one too large.
struct Owners {
    PlacementView placement;
    u32 source, inverse;

    static ANABRANCH_DEVICE Owners of(const PlacementView& placement, u32 source) {
        return Owners{placement, source, 0xffffffffu / placement.experts + 1};
    }
    // The rank to which token `token` of rank `source` goes for an expert.
    ANABRANCH_DEVICE u32 rank_of(const Grid& grid, u32 expert, u32 token) const {
        if (placement.starts != nullptr) return rank_by_table(grid, expert, token);
        u32 scaled = (expert + 1) * placement.ranks - 1;
        if (placement.experts == 1) return scaled;
        u32 quotient = static_cast<u32>((static_cast<u64>(scaled) * inverse) >> 32);
        return static_cast<u64>(quotient) * placement.experts > scaled ? quotient - 1 : quotient;
    }
    ANABRANCH_DEVICE u32 rank_by_table(const Grid& grid, u32 expert, u32 token) const {
        return private_load(grid, placement.owners + copy_of(grid, expert, token));
    }
    // The number of the expert's copy that the token goes to, among all copies of all experts: with a table its place in `owners`.
    ANABRANCH_DEVICE u32 copy_of(const Grid& grid, u32 expert, u32 token) const {
        if (placement.starts == nullptr) return expert;
        u32 first = private_load(grid, placement.starts + expert);
        u32 replicas = private_load(grid, placement.starts + expert + 1) - first;
        return first + (replicas > 1 ? (source + token) % replicas : 0);
    }
};

// The id that routing uses: itself when it names an expert, else -1.
ANABRANCH_DEVICE i32 valid_id(i32 id, u32 experts) { return static_cast<u32>(id) < experts ? id : -1; }

// The caller's ids, dense: `top_k` per token, of 32 bits or (EP_WIDE_IDS) 64.
struct CallerIds {
#ifdef EP_WIDE_IDS
    static constexpr u32 WORDS = 2;
    // Id `k` of those from `ids` on. One beyond 32 bits names no expert, and must not be cut to one that does.
    static ANABRANCH_DEVICE i32 load(const Grid& grid, const i32* ids, u64 k) {
        i64 id = private_load(grid, reinterpret_cast<const i64*>(ids) + k);
        i32 narrow = static_cast<i32>(id);
        return id == narrow ? narrow : static_cast<i32>(0x80000000u);
    }
#else
    static constexpr u32 WORDS = 1;
    static ANABRANCH_DEVICE i32 load(const Grid& grid, const i32* ids, u64 k) { return private_load(grid, ids + k); }
#endif
    // The distance between the ids of two tokens in words of 32 bits.
    static ANABRANCH_DEVICE u32 stride(u32 top_k) { return top_k * WORDS; }
    // The token's number at its source.
    static ANABRANCH_DEVICE u32 token(const Grid&, const i32*, u32 row) { return row; }
};

// Ids are loaded a few at a time, so that their latencies overlap.
static constexpr u32 IDS_AT_ONCE = 8;

template <class Ids>
ANABRANCH_DEVICE void load_ids(const Grid& grid, const i32* ids, u32 first, u32 top_k, i32 (&id)[IDS_AT_ONCE]) {
    ANABRANCH_UNROLL
    for (u32 u = 0; u < IDS_AT_ONCE; ++u) id[u] = first + u < top_k ? Ids::load(grid, ids, first + u) : -1;
}

// The ranks first .. first + 63 to which a token goes, as bits, and which of its ids are invalid: neither an expert nor -1.
struct Destinations {
    u64 ranks;
    u32 invalid;
};
template <class Ids>
ANABRANCH_DEVICE Destinations destinations_of(const Grid& grid, const i32* ids, u32 top_k, const Owners& owners, u32 token,
                                              u32 first) {
    Destinations found = {0, 0};
    for (u32 k = 0; k < top_k; k += IDS_AT_ONCE) {
        i32 id[IDS_AT_ONCE];
        load_ids<Ids>(grid, ids, k, top_k, id);
        ANABRANCH_UNROLL
        for (u32 u = 0; u < IDS_AT_ONCE; ++u) {
            bool is_expert = static_cast<u32>(id[u]) < owners.placement.experts;
            u32 bit = is_expert ? owners.rank_of(grid, static_cast<u32>(id[u]), token) - first : RANKS_PER_MASK;
            if (bit < RANKS_PER_MASK) found.ranks |= u64(1) << bit;
            if (!is_expert && id[u] != -1) found.invalid |= 1u << (k + u);
        }
    }
    return found;
}

// Adds, for every rank, the tokens first .. end that go to it to `counts`. The waves of the block share the tokens; readers of the
// counts need a block barrier. The ids of two tokens are `stride` apart.
template <class Ids>
ANABRANCH_DEVICE void count_tokens(const Grid& grid, const PlacementView& placement, const i32* ids, u32 stride, u32 top_k,
                                   u32 source, const LocalArray<u32>& counts, u32 first, u32 end) {
    Owners owners = Owners::of(placement, source);
    u32 ranks = placement.ranks;
    for (u32 start = first + grid.wave() * WAVE_SIZE; start < end; start += grid.block_threads) {
        u32 token = start + grid.lane();
        for (u32 base = 0; base < ranks; base += RANKS_PER_MASK) {
            u64 mask = 0;
            if (token < end) {
                const i32* own = ids + static_cast<u64>(token) * stride;
                mask = destinations_of<Ids>(grid, own, top_k, owners, Ids::token(grid, own, token), base).ranks;
            }
            u32 bits = minimum(ranks - base, RANKS_PER_MASK);
            for (u32 bit = 0; bit < bits; ++bit) {
                u32 count = count_bits(grid.ballot((mask >> bit) & 1));
                if (grid.lane() == 0 && count > 0) counts.fetch_add(grid, base + bit, count);
            }
        }
    }
}

// The first invalid id as one word that orders by token, then by k: {token:26, k:6, id:32}. The plan checks the ranges.
ANABRANCH_DEVICE u64 pack_invalid(u32 token, u32 k, i32 id) {
    return (((static_cast<u64>(token) << 6) | k) << 32) | static_cast<u32>(id);
}
