// Push combine: every rank sends its experts' result of each received row straight to the row's origin, encoded by a
// codec; then every rank sums, for each of its tokens, the rows that it got, in group-rank order with f32 accumulation and
// one rounding.
//
// Writers. The destinations that received a token have places in ascending order of rank, which dispatch sent them. The rank of
// place n writes row [n][token] of the push window at the origin, and no other rank does: [fan out][max_tokens] rows, however few
// rows a rank may receive. A copy that was dropped because it did not fit has no place, and the sum skips it. Where ranks may be masked
// (`ep/mask.h`) places are ranks: a late row of a rank that is masked by now is written where no other rank writes. Then rank d stores its
// combine flag at every rank. Rank s waits for the flags of all ranks, its own too, and reads. Split in two, the first kernel
// ends after its flags, and the second begins with that wait.
//
// Why the window is not overwritten while it is read. Rank d writes at s again in epoch e + 1, after its dispatch e + 1 has
// seen every rank's dispatch flag e + 1. Rank s sends that flag after its combine e has ended (slot order, see
// `dispatch.hip`), so all its reads of epoch e are over. The same chain protects the flag words.
//
// Why it may share memory with the window of the pulling combine (a plan for both). If epoch e pulls and e + 1 pushes, all pulls of e are
// over when d pushes, by that chain for every reader. If epoch e pushes and e + 1 pulls, the experts of s
// write its window after its dispatch e + 1, and its combine e had waited for the rows of all ranks. Within an epoch all ranks use
// one way; their flags name it, and another way is a fault.
#include "anabranch/prelude.h"
#include "ep/combine_flags.h"
#include "ep/codec.h"
#include "ep/combine_weights.h"

#if !defined(EP_ELEMENT) || !defined(EP_CODEC)
#error "the kernel is compiled for an element type: Bf16, F16 or F32; and for a codec of ep/codec.h"
#endif
typedef EP_ELEMENT Element;
typedef EP_CODEC<Element> Codec;
static constexpr u32 BLOCK_ELEMENTS = Codec::ELEMENTS * Codec::UNITS;

// The source of the row with this number in the order of sources: the number of sources that end before it. The whole wave comes here.
static ANABRANCH_DEVICE u32 source_of(const Grid& grid, const CombinePushArgs& args, u32 number) {
    u32 source = 0;
    for (u32 first = 0; first < args.team.size; first += WAVE_SIZE) {
        u32 next = first + grid.lane();
        bool ends = next < args.team.size && private_load(grid, args.offsets + next + 1) <= number;
        source += count_bits(grid.ballot(ends));
    }
    return source;
}

// One wave copies units [begin, end) of a row as they are, UNROLL a lane at a time.
template <u32 UNROLL>
static ANABRANCH_DEVICE void copy_units(const Grid& grid, u64 from, u64 to, u32 begin, u32 end) {
    for (u32 first = begin + grid.lane(); first < end; first += WAVE_SIZE * UNROLL) {
        Vec16 unit[UNROLL];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) {
            u32 at = first + u * WAVE_SIZE;
            if (at < end) unit[u] = stream_load(grid, reinterpret_cast<const Vec16*>(from) + at);
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) {
            u32 at = first + u * WAVE_SIZE;
            if (at < end) remote_store(grid, reinterpret_cast<Vec16*>(to) + at, unit[u]);
        }
    }
}

// The whole grid sends the received rows home.
static ANABRANCH_DEVICE void push_rows(const Grid& grid, const CombinePushArgs& args, u64 own) {
    u32 ranks = args.team.size;
    u32 total = private_load(grid, args.offsets + ranks);
    // If there are more waves than rows, several waves share a row.
    u32 segments = minimum(maximum(grid.grid_waves() / maximum(total, 1u), 1u), args.push_segments);
    // Rows are in the order of their sources. Concurrent waves begin in different parts of them, each rank with a different
    // part, so that no link gets all rows at once.
    u32 part_rows = (total + ranks - 1) / ranks;
    u32 blocks = args.hidden / BLOCK_ELEMENTS;
    u32 row_bytes = args.hidden * Element::BYTES;
    for (u32 item = grid.grid_wave(); item < part_rows * ranks * segments; item += grid.grid_waves()) {
        u32 part = (item + args.team.rank) % ranks;
        u32 index = item / ranks / segments;
        u32 segment = item / ranks % segments;
        u32 number = part * part_rows + index;
        if (number >= total) continue;
        u32 source = source_of(grid, args, number);
        u32 before = private_load(grid, args.offsets + source);
        u64 row = static_cast<u64>(first_row_of(grid, source, args.row_stride, args.offsets)) + (number - before);
        const u32* meta = reinterpret_cast<const u32*>(own + args.meta_offset + row * args.meta_bytes);
        u64 token = heap_load(grid, meta);
        u64 place = heap_load(grid, meta + 1);
        u64 from = reinterpret_cast<u64>(args.rows) + row * row_bytes;
        u64 to = private_load(grid, args.team.peer_bases + source) + args.push_offset +
                 (place * args.max_tokens + token) * args.wire_bytes;
        u32 begin = static_cast<u32>(static_cast<u64>(blocks) * segment / segments);
        u32 end = static_cast<u32>(static_cast<u64>(blocks) * (segment + 1) / segments);
        if constexpr (Codec::COPIES) {
            copy_units<4>(grid, from, to, begin, end);
        } else {
            encode_blocks<Codec, Element>(grid, from, to, to + scales_offset<Codec>(args.hidden), begin, end);
        }
        if (segment == 0) push_weights(grid, args, own, row, source, place, token);
    }
}

// One wave sums units [begin, end) of one token, in its own window. Rows are loaded a few at a time, added in ascending rank order.
static ANABRANCH_DEVICE void sum_units(const Grid& grid, const CombinePushArgs& args, u64 own, u32 token, u32 begin, u32 end) {
    static constexpr u32 ROWS = 4;
    static constexpr u32 COUNT = Codec::ELEMENTS;
    static constexpr u32 IN_STORE = 16 / Element::BYTES;
    const u64* map = args.send_map + static_cast<u64>(token) * args.fan_out;
    u64 window = own + args.push_offset + static_cast<u64>(token) * args.wire_bytes;
    u64 place_bytes = static_cast<u64>(args.max_tokens) * args.wire_bytes;
    u64 scales_at = scales_offset<Codec>(args.hidden);
    Vec16* target = reinterpret_cast<Vec16*>(args.output + static_cast<u64>(token) * args.hidden * Element::BYTES);
    for (u32 at = begin + grid.lane(); at < end; at += WAVE_SIZE) {
        f32 sum[COUNT] = {};
        u32 place = 0;
        for (u32 n = 0; n < args.fan_out; n += ROWS) {
            bool there[ROWS];
            typename Codec::Unit unit[ROWS];
            f32 scale[ROWS];
            ANABRANCH_UNROLL
            for (u32 i = 0; i < ROWS; ++i) {
                u64 entry = n + i < args.fan_out ? private_load(grid, map + n + i) : 0;
                there[i] = is_destination(entry) && !is_dropped(entry) && !LeftOut::has(grid, destination_rank(entry));
                if (!there[i]) continue;
                u64 row = window + (MASKS ? destination_rank(entry) : place) * place_bytes;
                ++place;
                unit[i] = heap_load(grid, reinterpret_cast<const typename Codec::Unit*>(row) + at);
                if constexpr (Codec::SCALE_BYTES > 0) {
                    typedef typename Codec::Scale Scale;
                    scale[i] = Codec::scale_value(
                        heap_load(grid, reinterpret_cast<const Scale*>(row + scales_at) + at / Codec::UNITS));
                } else {
                    scale[i] = 1.0f;
                }
            }
            ANABRANCH_UNROLL
            for (u32 i = 0; i < ROWS; ++i) {
                if (!there[i]) continue;
                ANABRANCH_UNROLL
                for (u32 j = 0; j < COUNT; ++j) sum[j] += Codec::decode(unit[i], j, scale[i]);
            }
        }
        ANABRANCH_UNROLL
        for (u32 i = 0; i < COUNT / IN_STORE; ++i) {
            Wide<Element> part;
            ANABRANCH_UNROLL
            for (u32 j = 0; j < IN_STORE; ++j) part.value[j] = sum[i * IN_STORE + j];
            stream_store(grid, target + at * (COUNT / IN_STORE) + i, part.pack());
        }
    }
}

// The whole block comes here, or none of it. Sends the rows, then flags every rank.
static ANABRANCH_DEVICE void push_and_flag(const Grid& grid, const CombinePushArgs& args, u64 own, u64 epoch) {
    push_rows(grid, args, own);
    if (arrive_is_last(grid, &args.state->combine_arrived, grid.grid_blocks) && grid.thread == 0) {
        flag_all(grid, args, PUSHED, static_cast<u32>(epoch));
    }
}

// The whole block comes here, or none of it.
static ANABRANCH_DEVICE void wait_and_sum(const Grid& grid, const CombinePushArgs& args, u64 own, const WaitContext& wait) {
    LocalArray<u32> fault = {0};
    u32 tokens = combined_tokens(grid, args);
    if (!wait_for_rows(grid, args, PUSHED, wait, own, fault)) return;

    u32 units = args.hidden / Codec::ELEMENTS;
    u64 items = static_cast<u64>(tokens) * args.segments;
    for (u64 item = grid.grid_wave(); item < items; item += grid.grid_waves()) {
        u32 token = static_cast<u32>(item / args.segments);
        u32 segment = static_cast<u32>(item % args.segments);
        u32 from = static_cast<u32>(static_cast<u64>(units) * segment / args.segments);
        u32 to = static_cast<u32>(static_cast<u64>(units) * (segment + 1) / args.segments);
        sum_units(grid, args, own, token, from, to);
    }
    sum_pushed_weights(grid, args, own);
    end_combine(grid, args, wait.epoch);
}

ANABRANCH_KERNEL(anabranch_ep_combine_push, CombinePushArgs, 1024) {
    u64 epoch = next_epoch(grid, args);
    if (epoch == 0) return;
    WaitContext wait = context_of(grid, args, epoch);
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    push_and_flag(grid, args, own, epoch);
    wait_and_sum(grid, args, own, wait);
}

// Send and receive.
ANABRANCH_KERNEL(anabranch_ep_combine_push_send, CombinePushArgs, 1024) {
    u64 epoch = next_epoch(grid, args);
    if (epoch != 0) push_and_flag(grid, args, private_load(grid, args.team.peer_bases + args.team.rank), epoch);
}

ANABRANCH_KERNEL(anabranch_ep_combine_push_recv, CombinePushArgs, 1024) {
    u64 epoch = next_epoch(grid, args);
    if (epoch == 0) return;
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    wait_and_sum(grid, args, own, context_of(grid, args, epoch));
}
