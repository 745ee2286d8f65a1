// Collectives that sum, for many bytes and one element type: all_reduce, reduce_scatter, reduce. The message is cut into one
// part a member, which reduces it in group-rank order.
//
// - `pull`: a meeting; each member reads its part from every input, and writes the result to every output that wants it; a
//   meeting. The first says that inputs are there and outputs free, the second that outputs are there and inputs free. Peers
//   have to reach inputs and, unless results stay here, outputs.
// - `push`: each member writes its pieces of the parts to their owners' staging; a meeting; the owner reduces, and hands the
//   results round. Outputs that peers reach get them directly, a last meeting says that they are there; others through the
//   staging, a step more each time. Peers need not reach inputs. (lane.h says why the staging's halves are free. An output is
//   free when its member has come to the first meeting: its kernel has begun.)
#include "ccl/lane.h"
#include "ccl/place.h"
#include "ccl/reduce.h"

#ifndef CCL_ELEMENT
#error "the kernel is compiled for an element type"
#endif

namespace ccl {

typedef CCL_ELEMENT Element;
// Members whose pieces are loaded before any is added.
static constexpr u32 SOURCES = 4;
// Pieces of each that a thread has in flight.
static constexpr u32 PIECES = 2;

// Reduces `count` pieces. `source(member)` is where a member's are, `target(i)` where result number i goes, of `targets`.
template <class Raw, bool SUM_ONLY, class Source, class Target>
static ANABRANCH_DEVICE void reduce_pieces(const Grid& grid, const ReduceArgs& args, u64 count, Source source, u32 targets,
                                           Target target) {
    u32 size = args.channel.team.size;
    for (u64 first = grid.thread; first < count; first += static_cast<u64>(grid.block_threads) * PIECES) {
        Partial<Element, Raw, SUM_ONLY> sum[PIECES];
        for (u32 base = 0; base < size; base += SOURCES) {
            Raw piece[SOURCES][PIECES];
#pragma unroll
            for (u32 k = 0; k < SOURCES; ++k) {
                if (base + k >= size) continue;
                const Raw* from = reinterpret_cast<const Raw*>(source(base + k));
#pragma unroll
                for (u32 u = 0; u < PIECES; ++u) {
                    u64 at = first + static_cast<u64>(u) * grid.block_threads;
                    if (at < count) piece[k][u] = remote_load(grid, from + at);
                }
            }
#pragma unroll
            for (u32 k = 0; k < SOURCES; ++k) {
                if (base + k >= size) continue;
#pragma unroll
                for (u32 u = 0; u < PIECES; ++u) {
                    if (first + static_cast<u64>(u) * grid.block_threads >= count) continue;
                    if (base + k == 0) {
                        sum[u] = Partial<Element, Raw, SUM_ONLY>::first(args.reduction, piece[k][u]);
                    } else {
                        sum[u].add(args.reduction, piece[k][u]);
                    }
                }
            }
        }
        Raw result[PIECES];
#pragma unroll
        for (u32 u = 0; u < PIECES; ++u) {
            if (first + static_cast<u64>(u) * grid.block_threads < count) result[u] = sum[u].finish(args.reduction);
        }
        for (u32 i = 0; i < targets; ++i) {
            Raw* to = reinterpret_cast<Raw*>(target(i));
#pragma unroll
            for (u32 u = 0; u < PIECES; ++u) {
                u64 at = first + static_cast<u64>(u) * grid.block_threads;
                if (at < count) remote_store(grid, to + at, result[u]);
            }
        }
    }
}

// Bytes [0, bytes) of everybody's, as wide as the addresses allow.
template <bool SUM_ONLY, class Source, class Target>
static ANABRANCH_DEVICE void reduce_bytes(const Grid& grid, const ReduceArgs& args, u64 bytes, Source source, u32 targets,
                                          Target target) {
    u64 wide = args.is_aligned != 0 ? bytes & ~u64(15) : 0;
    if (wide != 0) reduce_pieces<Vec16, SUM_ONLY>(grid, args, wide / 16, source, targets, target);
    if (wide == bytes) return;
    typedef typename Element::Raw Narrow;
    reduce_pieces<Narrow, SUM_ONLY>(
        grid, args, (bytes - wide) / Element::BYTES, [&](u32 member) { return source(member) + wide; }, targets,
        [&](u32 i) { return target(i) + wide; });
}

// How a call's message is cut.
struct Parts {
    u64 bytes;   // of a full part
    u64 input;   // bytes between two parts of an input
    u64 output;  // ... of an output; 0 where each rank keeps its own part alone
    u64 total;   // of all parts
    ANABRANCH_DEVICE u64 of(u32 member) const {
        u64 first = member * input;
        return first < total ? minimum(bytes, total - first) : 0;
    }
};
static ANABRANCH_DEVICE Parts parts_of(const ReduceArgs& args) {
    u64 size = args.channel.team.size;
    u64 bytes = args.count * Element::BYTES;
    if (args.is_scatter != 0) return Parts{bytes, bytes, 0, bytes * size};
    u64 part = round_up((bytes + size - 1) / size, 16);
    return Parts{part, part, part, bytes};
}

// Result number `i` of this rank's part: for which member. One for each member, for the root, or for this rank alone.
static ANABRANCH_DEVICE u32 target_member(const Grid& grid, const ReduceArgs& args, u32 i) {
    if (args.is_scatter != 0) return args.channel.team.rank;
    return args.root != REDUCE_ALL ? args.root : rotated(args.channel, (1 + i + grid.block) % args.channel.team.size);
}
static ANABRANCH_DEVICE u32 targets_of(const ReduceArgs& args) {
    return args.is_scatter != 0 || args.root != REDUCE_ALL ? 1 : args.channel.team.size;
}

// Tiles of a part go round the lanes. Small in tests, so that every lane has some.
#if !defined(CCL_TILE)
#define CCL_TILE 16384
#endif
static constexpr u64 TILE = CCL_TILE;

template <bool SUM_ONLY>
static ANABRANCH_DEVICE void pull(const Grid& grid, const ReduceArgs& args, Lane& lane) {
    const Channel& channel = args.channel;
    Parts parts = parts_of(args);
    u32 me = channel.team.rank;
    u64 mine = parts.of(me);
    ANABRANCH_UNLESS(PULL_NO_FIRST_MEETING) meet(grid, channel, lane);
    for (u64 first = grid.block * TILE; first < mine && !lane.dead; first += grid.grid_blocks * TILE) {
        reduce_bytes<SUM_ONLY>(
            grid, args, minimum(TILE, mine - first),
            [&](u32 member) { return input_of(grid, channel, member) + me * parts.input + first; }, targets_of(args),
            [&](u32 i) { return output_of(grid, channel, target_member(grid, args, i)) + me * parts.output + first; });
    }
    ANABRANCH_UNLESS(PULL_NO_LAST_MEETING) meet(grid, channel, lane);
}

template <bool SUM_ONLY>
static ANABRANCH_DEVICE void push(const Grid& grid, const ReduceArgs& args, Lane& lane) {
    const Channel& channel = args.channel;
    Parts parts = parts_of(args);
    u32 me = channel.team.rank, size = channel.team.size;
    u64 own = member_base(grid, channel, me), input = input_of(grid, channel, me), output = output_of(grid, channel, me);
    u64 piece = channel.staging_bytes;
    // Results go to peers' staging unless the peer's output is reached, or nobody but this rank wants them.
    bool relayed = args.is_scatter == 0 && args.output.bases == nullptr;
    for (u64 step = 0; step * piece * grid.grid_blocks < parts.bytes && !lane.dead; ++step) {
        u64 first = (step * grid.grid_blocks + grid.block) * piece;
        u64 half = (lane.meets + 1) % 2;
        ANABRANCH_TWIN(STAGING_ONE_HALF) half = 0;
        for (u32 i = 1; i < size; ++i) {
            u32 owner = rotated(channel, 1 + (i - 1 + grid.block) % (size - 1));
            u64 to = staging_of(channel, member_base(grid, channel, owner), lane, half, me);
            copy_bytes(grid, to, input + owner * parts.input + first, cut(first, piece, parts.of(owner)));
        }
        ANABRANCH_UNLESS(PUSH_NO_MEETING) meet(grid, channel, lane);
        if (lane.dead) break;
        u64 next = (lane.meets + 1) % 2;
        ANABRANCH_TWIN(RELAYED_SAME_HALF) next = half;
        reduce_bytes<SUM_ONLY>(
            grid, args, cut(first, piece, parts.of(me)),
            [&](u32 member) {
                return member == me ? input + me * parts.input + first : staging_of(channel, own, lane, half, member);
            },
            targets_of(args),
            [&](u32 i) {
                u32 member = target_member(grid, args, i);
                if (member == me) return output + me * parts.output + first;
                if (relayed) return staging_of(channel, member_base(grid, channel, member), lane, next, me);
                return output_of(grid, channel, member) + me * parts.output + first;
            });
        if (!relayed) continue;
        ANABRANCH_UNLESS(RELAYED_NO_MEETING) meet(grid, channel, lane);
        for (u32 i = 1; i < size && !lane.dead && (args.root == REDUCE_ALL || args.root == me); ++i) {
            u32 owner = rotated(channel, i);
            u64 to = output + owner * parts.output + first;
            copy_bytes(grid, to, staging_of(channel, own, lane, next, owner), cut(first, piece, parts.of(owner)));
        }
    }
    if constexpr (MUTANT == MUTANT_PUSH_NO_LAST_MEETING) return;
    if (args.is_scatter == 0 && !relayed) meet(grid, channel, lane);
}

}  // namespace ccl

#define CCL_FORM(FORM)                                                                        \
    ccl::on_lane(grid, args.channel, args.input, args.output, [&](ccl::Lane& lane) {          \
        if (args.reduction.op == ccl::SUM) return ccl::FORM<true>(grid, args, lane);          \
        ccl::FORM<false>(grid, args, lane);                                                   \
    })
ANABRANCH_KERNEL(anabranch_ccl_pull, ReduceArgs, 1024) { CCL_FORM(pull); }
ANABRANCH_KERNEL(anabranch_ccl_push, ReduceArgs, 1024) { CCL_FORM(push); }
