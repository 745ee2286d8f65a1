// Copies the rows of a dispatch out of its windows, one after the other in the order of source rank, then token, with the local numbers of
// their experts. It waits for no peer, and each wave writes its own rows or parts of rows.
//
// Peers wrote what is read here before the flags of their dispatch, for which an earlier kernel of the stream has waited. They write it again
// in the slot's next dispatch, after this one's combine.
#include "anabranch/prelude.h"
#include "ep/received_rows.h"

// Units of a row that a lane loads together.
static constexpr u32 UNROLL = 4;

// One wave: experts and weights of the row with this number in the outputs.
static ANABRANCH_DEVICE void unpack_experts(const Grid& grid, const UnpackArgs& args, u32 number, bool came, u32 source, u64 row) {
    u32 top_k = args.received.top_k;
    const u32* weights = meta_record(args.received, row) + 2 + top_k;
    for (u32 k = grid.lane(); k < top_k; k += WAVE_SIZE) {
        u64 at = static_cast<u64>(number) * top_k + k;
        u32 expert = came ? local_expert(grid, args.received, source, row, k) : NO_EXPERT;
        if (args.ids != nullptr) private_store(grid, args.ids + at, expert == NO_EXPERT ? ~u64(0) : u64(expert));
        if (args.weights != nullptr) private_store(grid, args.weights + at, expert == NO_EXPERT ? 0u : heap_load(grid, weights + k));
    }
}

// One wave: units [begin, end) of a row.
static ANABRANCH_DEVICE void unpack_units(const Grid& grid, const UnpackArgs& args, u32 number, u64 row, u32 begin, u32 end) {
    const Vec16* from = reinterpret_cast<const Vec16*>(args.received.rows + row * args.row_bytes);
    Vec16* to = reinterpret_cast<Vec16*>(args.rows + static_cast<u64>(number) * args.row_bytes);
    for (u32 first = begin + grid.lane(); first < end; first += WAVE_SIZE * UNROLL) {
        Vec16 unit[UNROLL];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) {
            if (first + u * WAVE_SIZE < end) unit[u] = heap_load(grid, from + first + u * WAVE_SIZE);
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) {
            if (first + u * WAVE_SIZE < end) private_store(grid, to + first + u * WAVE_SIZE, unit[u]);
        }
    }
}

ANABRANCH_KERNEL(anabranch_ep_unpack, UnpackArgs, 1024) {
    u32 total = total_rows(grid, args.received);
    u32 units = args.rows == nullptr ? 0 : args.row_bytes / 16;
    // Where rows are fewer than waves, waves share rows.
    u32 finest = maximum(units / (UNROLL * WAVE_SIZE), 1u);
    u32 segments = minimum(maximum(grid.grid_waves() / maximum(args.count, 1u), 1u), finest);
    u64 items = static_cast<u64>(args.count) * segments;
    for (u64 item = grid.grid_wave(); item < items; item += grid.grid_waves()) {
        u32 number = static_cast<u32>(item / segments);
        u32 segment = static_cast<u32>(item % segments);
        bool came = number < total;
        u32 source = 0;
        u64 row = 0;
        if (came) {
            RowCursor cursor = RowCursor::at(grid, SlotOffsets{args.received.offsets}, args.received.ranks, number);
            source = cursor.source;
            row = cursor.window_row(args.received, number);
        }
        if (segment == 0) unpack_experts(grid, args, number, came, source, row);
        if (!came) continue;
        u32 from = static_cast<u32>(static_cast<u64>(units) * segment / segments);
        u32 to = static_cast<u32>(static_cast<u64>(units) * (segment + 1) / segments);
        unpack_units(grid, args, number, row, from, to);
        if (segment != 0 || args.scales == nullptr) continue;
        const u32* scales = meta_record(args.received, row) + 2 + 2 * args.received.top_k;
        for (u32 word = grid.lane(); word < args.scale_words; word += WAVE_SIZE) {
            private_store(grid, args.scales + static_cast<u64>(number) * args.scale_words + word, heap_load(grid, scales + word));
        }
    }
}
