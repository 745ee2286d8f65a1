// Slotted dispatch: every token goes once to each rank that owns one of its experts, straight to its final row.
//
// Who writes what. Rank s writes, at rank d, the rows [s][0 .. n) of the row and meta windows, n being the number of its
// tokens that go to d, then the one flag word [s] with {epoch, n}. Nobody else writes there. Rank d's last block waits
// for the flags of all ranks and writes counts and offsets.
//
// Why a row window is not written too early. The rows of epoch e + 1 overwrite those of epoch e. Rank s starts dispatch
// e + 1 on a slot after its combine e on that slot (stream order, kept by the handle). Combine e at s ended after it saw
// d's combine flag of epoch e, which d sent after its expert work of epoch e had read the rows (stream order at d).
// Why a flag is not overwritten too early: by the same chain, d read the flag of epoch e in its dispatch e, before its
// combine flag e. Why an old flag is not taken for a new one: the epoch in it must equal the one waited for; epochs
// live in device memory, start at 1, and are advanced by the last block only, after every block has read them.
#include "anabranch/prelude.h"
#include "ep/routing.h"

enum DispatchPhase : u32 { DISPATCH_WAIT_FLAG = 1, DISPATCH_FLAG_OVERRUN = 2 };

// Local memory, in this order: peer bases u64[R], next row u32[R], fault word, then for the tile: number of
// destinations u32[TILE], destinations u64[TILE][fan_out]. The plan computes the same (`dispatch_local_bytes`).
struct DispatchLocal {
    LocalArray<u64> peer_base;
    LocalArray<u64> destination;
    LocalArray<u32> next_row;
    LocalArray<u32> fan;
    LocalArray<u32> fault;

    static ANABRANCH_DEVICE DispatchLocal at(u32 ranks, u32 fan_out) {
        DispatchLocal local;
        u32 byte = 0;
        local.peer_base.byte = byte;
        byte += ranks * 8;
        local.destination.byte = byte;
        byte += TILE * fan_out * 8;
        local.next_row.byte = byte;
        byte += ranks * 4;
        local.fan.byte = byte;
        byte += TILE * 4;
        local.fault.byte = byte;
        return local;
    }
};

// Counts, for every rank, the tokens before `first` that go to it.
static ANABRANCH_DEVICE void count_earlier(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local,
                                           u32 first) {
    u32 ranks = args.team.size;
    for (u32 start = grid.wave() * WAVE_SIZE; start < first; start += grid.block_threads) {
        u32 token = start + grid.lane();
        for (u32 base = 0; base < ranks; base += RANKS_PER_MASK) {
            u64 mask = 0;
            if (token < first) {
                mask = destination_mask(grid, args.ids + static_cast<u64>(token) * args.top_k, args.top_k, args.experts,
                                        ranks, base);
            }
            u32 end = minimum(ranks - base, RANKS_PER_MASK);
            for (u32 bit = 0; bit < end; ++bit) {
                u32 count = count_bits(grid.ballot((mask >> bit) & 1));
                if (grid.lane() == 0 && count > 0) local.next_row.fetch_add(grid, base + bit, count);
            }
        }
    }
}

// Wave 0 gives every token of the tile its destinations and rows. `report` is set in one block per token.
static ANABRANCH_DEVICE void route_tile(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local,
                                        u32 first, u32 count, bool report) {
    u32 ranks = args.team.size;
    for (u32 start = 0; start < count; start += WAVE_SIZE) {
        u32 index = start + grid.lane();
        bool live = index < count;
        u32 token = first + index;
        const i32* ids = args.ids + static_cast<u64>(token) * args.top_k;
        if (live && report) {
            for (u32 k = 0; k < args.top_k; k += IDS_AT_ONCE) {
                i32 id[IDS_AT_ONCE];
                load_ids(grid, ids, k, args.top_k, id);
#pragma unroll
                for (u32 u = 0; u < IDS_AT_ONCE; ++u) {
                    if (id[u] == -1 || static_cast<u32>(id[u]) < args.experts) continue;
                    fetch_add_device(grid, &args.state->invalid_count, 1u);
                    fetch_min_device(grid, &args.state->invalid_first, pack_invalid(token, k + u, id[u]));
                }
            }
        }
        u32 fan = 0;
        for (u32 base = 0; base < ranks; base += RANKS_PER_MASK) {
            u64 mask = live ? destination_mask(grid, ids, args.top_k, args.experts, ranks, base) : 0;
            u32 end = minimum(ranks - base, RANKS_PER_MASK);
            for (u32 bit = 0; bit < end; ++bit) {
                bool goes = (mask >> bit) & 1;
                u64 goers = grid.ballot(goes);
                u32 row = local.next_row.get(grid, base + bit);
                if (goes) {
                    u32 mine = row + count_bits(goers & grid.lanes_before());
                    local.destination.set(grid, index * args.fan_out + fan, pack_destination(base + bit, mine));
                    ++fan;
                }
                grid.wave_barrier();
                if (grid.lane() == 0) local.next_row.set(grid, base + bit, row + count_bits(goers));
                grid.wave_barrier();
            }
        }
        if (live) {
            local.fan.set(grid, index, fan);
            if (report) {
                u64* map = args.send_map + static_cast<u64>(token) * args.fan_out;
                for (u32 n = 0; n < args.fan_out; ++n) {
                    private_store(grid, map + n, n < fan ? local.destination.get(grid, index * args.fan_out + n) : u64(0));
                }
            }
        }
    }
}

// One wave copies 16-byte units [begin, end) of a token's row to all its destinations: loaded once, stored to each.
static ANABRANCH_DEVICE void copy_units(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local, u32 index,
                                        u32 token, u32 begin, u32 end) {
    static constexpr u32 UNROLL = 4;
    const Vec16* source = reinterpret_cast<const Vec16*>(args.tokens + static_cast<u64>(token) * args.row_bytes);
    u32 fan = local.fan.get(grid, index);
    for (u32 first = begin + grid.lane(); first < end; first += WAVE_SIZE * UNROLL) {
        Vec16 unit[UNROLL];
#pragma unroll
        for (u32 u = 0; u < UNROLL; ++u) {
            u32 at = first + u * WAVE_SIZE;
            if (at < end) unit[u] = stream_load(grid, source + at);
        }
        // Each block starts with another destination, so that no link gets all blocks at once.
        u32 turn = (grid.block + args.team.rank) % maximum(fan, 1u);
        for (u32 n = 0; n < fan; ++n) {
            u64 entry = local.destination.get(grid, index * args.fan_out + turn);
            turn = turn + 1 == fan ? 0 : turn + 1;
            u64 row = static_cast<u64>(args.team.rank) * args.max_tokens + destination_row(entry);
            Vec16* target = reinterpret_cast<Vec16*>(local.peer_base.get(grid, destination_rank(entry)) +
                                                     args.rows_offset + row * args.row_bytes);
#pragma unroll
            for (u32 u = 0; u < UNROLL; ++u) {
                u32 at = first + u * WAVE_SIZE;
                if (at < end) remote_store(grid, target + at, unit[u]);
            }
        }
    }
}

// One wave writes the meta record of a token at all its destinations: {token, top_k, ids, weights, scales}.
static ANABRANCH_DEVICE void write_meta(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local, u32 index,
                                        u32 token) {
    u32 fan = local.fan.get(grid, index);
    u32 words = 2 + 2 * args.top_k + args.scale_bytes / 4;
    for (u32 word = grid.lane(); word < words; word += WAVE_SIZE) {
        u32 value;
        u32 scales_at = 2 + 2 * args.top_k;
        if (word == 0) {
            value = token;
        } else if (word == 1) {
            value = args.top_k;
        } else if (word < 2 + args.top_k) {
            i32 id = private_load(grid, args.ids + static_cast<u64>(token) * args.top_k + (word - 2));
            value = static_cast<u32>(valid_id(id, args.experts));
        } else if (word < scales_at) {
            u32 k = word - 2 - args.top_k;
            value = args.weights == nullptr
                        ? 0u
                        : bit_cast<u32>(private_load(grid, args.weights + static_cast<u64>(token) * args.top_k + k));
        } else {
            const u32* scales = reinterpret_cast<const u32*>(args.scales + static_cast<u64>(token) * args.scale_bytes);
            value = private_load(grid, scales + (word - scales_at));
        }
        for (u32 n = 0; n < fan; ++n) {
            u64 entry = local.destination.get(grid, index * args.fan_out + n);
            u64 row = static_cast<u64>(args.team.rank) * args.max_tokens + destination_row(entry);
            u32* target = reinterpret_cast<u32*>(local.peer_base.get(grid, destination_rank(entry)) + args.meta_offset +
                                                 row * args.meta_bytes);
            remote_store(grid, target + word, value);
        }
    }
}

// The last block: tells every rank how many rows it got from here, then learns from every rank.
static ANABRANCH_DEVICE void exchange_counts(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local,
                                             const WaitContext& wait) {
    u32 ranks = args.team.size;
    u32 epoch = static_cast<u32>(wait.epoch);
    if (grid.thread == 0) {
        local.fault.set(grid, 0, 0u);
        for (u32 i = 0; i < ranks; ++i) {
            // Rotated, so that the ranks do not all flag rank 0 first.
            u32 peer = args.team.rank + i < ranks ? args.team.rank + i : args.team.rank + i - ranks;
            u64* flag = reinterpret_cast<u64*>(local.peer_base.get(grid, peer) + args.flags_offset +
                                               static_cast<u64>(args.team.rank) * args.flag_stride);
            flag_store(grid, flag, pack_flag(epoch, private_load(grid, args.sent + peer)));
        }
    }
    grid.block_barrier();
    u64 own = local.peer_base.get(grid, args.team.rank) + args.flags_offset;
    for (u32 peer = grid.thread; peer < ranks; peer += grid.block_threads) {
        const u64* flag = reinterpret_cast<const u64*>(own + static_cast<u64>(peer) * args.flag_stride);
        u64 seen = 0;
        WaitStatus status = wait_until(
            grid, wait, DISPATCH_WAIT_FLAG, peer, epoch, flag,
            [epoch](u64 value) { return static_cast<i32>(flag_epoch(value) - epoch) >= 0; }, seen);
        if (status == WAIT_OK && flag_epoch(seen) != epoch) {
            report_fault(grid, wait, DISPATCH_FLAG_OVERRUN, peer, epoch, seen, 0);
            status = WAIT_FAULT;
        }
        if (status != WAIT_OK) local.fault.set(grid, 0, 1u);
        // What was sent is told; the same words now hold what was received.
        local.next_row.set(grid, peer, status == WAIT_OK ? flag_count(seen) : 0u);
    }
    acquire_after_wait(grid);
    grid.block_barrier();
    bool fault = local.fault.get(grid, 0) != 0;
    if (grid.thread == 0) {
        u32 total = 0;
        for (u32 peer = 0; peer < ranks; ++peer) {
            u32 count = fault ? 0 : local.next_row.get(grid, peer);
            private_store(grid, args.counts + peer, count);
            private_store(grid, args.offsets + peer, total);
            total += count;
        }
        private_store(grid, args.offsets + ranks, total);
        if (!fault) private_store(grid, &args.state->dispatch_epoch, wait.epoch);
    }
}

// Behind a fault: no rows, so that whatever comes next on the stream finds nothing to do.
static ANABRANCH_DEVICE void report_nothing(const Grid& grid, const DispatchArgs& args) {
    if (grid.block != 0) return;
    for (u32 peer = grid.thread; peer <= args.team.size; peer += grid.block_threads) {
        if (peer < args.team.size) private_store(grid, args.counts + peer, 0u);
        private_store(grid, args.offsets + peer, 0u);
    }
}

ANABRANCH_KERNEL(anabranch_ep_dispatch, DispatchArgs, 1024) {
    u32 ranks = args.team.size;
    DispatchLocal local = DispatchLocal::at(ranks, args.fan_out);
    for (u32 peer = grid.thread; peer < ranks; peer += grid.block_threads) {
        local.peer_base.set(grid, peer, private_load(grid, args.team.peer_bases + peer));
        local.next_row.set(grid, peer, 0u);
    }
    u64 epoch = 0;  // none: the world is poisoned
    if (grid.thread == 0) {
        u64 last = private_load(grid, &args.state->dispatch_epoch);
        epoch = is_poisoned(grid, args.team.control) ? 0 : last + 1;
    }
    epoch = grid.block_broadcast(epoch);
    if (epoch == 0) {
        report_nothing(grid, args);
        return;
    }
    WaitContext wait = wait_context(grid, args.team.control, args.operation, args.team.group, args.team.rank, epoch);

    // `parts` blocks share a run of tokens, each with its part of every row.
    u32 part = grid.block % args.parts;
    u32 run = grid.block / args.parts;
    u32 runs = grid.grid_blocks / args.parts;
    u32 first = static_cast<u32>(static_cast<u64>(args.token_count) * run / runs);
    u32 end = static_cast<u32>(static_cast<u64>(args.token_count) * (run + 1) / runs);
    count_earlier(grid, args, local, first);
    grid.block_barrier();

    u32 units = args.row_bytes / 16;
    u32 segments = args.parts * args.segments;
    for (u32 tile = first; tile < end; tile += TILE) {
        u32 count = minimum(end - tile, TILE);
        if (grid.wave() == 0) route_tile(grid, args, local, tile, count, part == 0);
        grid.block_barrier();
        // One more item a token than it has segments: its meta record, written by the first part.
        u32 items = args.segments + (part == 0 ? 1 : 0);
        for (u32 item = grid.wave(); item < count * items; item += grid.waves_per_block()) {
            u32 index = item / items;
            if (item % items == args.segments) {
                write_meta(grid, args, local, index, tile + index);
                continue;
            }
            u32 segment = part * args.segments + item % items;
            u32 from = static_cast<u32>(static_cast<u64>(units) * segment / segments);
            u32 to = static_cast<u32>(static_cast<u64>(units) * (segment + 1) / segments);
            copy_units(grid, args, local, index, tile + index, from, to);
        }
        grid.block_barrier();
    }
    // The run with the last tokens has counted all of them.
    if (run + 1 == runs && part == 0) {
        for (u32 peer = grid.thread; peer < ranks; peer += grid.block_threads) {
            private_store(grid, args.sent + peer, local.next_row.get(grid, peer));
        }
    }
    if (arrive_is_last(grid, &args.state->dispatch_arrived, grid.grid_blocks)) {
        exchange_counts(grid, args, local, wait);
    }
}
