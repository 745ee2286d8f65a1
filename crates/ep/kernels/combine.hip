// Combine: every rank pulls, for each of its tokens, the rows that the token's destinations computed, and sums them in
// group-rank order with f32 accumulation and one rounding. Copies that were dropped for lack of room are not there to be
// summed; a token without any copy gives zeros.
//
// Who writes what. Rank d's expert work has written the rows that d received in its combine window (or this kernel stages it there
// from another buffer); then d stores its combine flag at every rank s. Rank s waits for the flags of all ranks and reads.
// Split in two, the first kernel ends behind its flags, and the second begins with that wait.
//
// Why the window is not overwritten while it is read. Rank d writes its combine window again in epoch e + 1, after its
// dispatch e + 1 has seen every rank's dispatch flag e + 1. Rank s sends that flag after its combine e has ended (stream
// order on the slot, kept by the handle), so all reads of epoch e are over. The same chain protects the flag words.
#include "anabranch/prelude.h"
#include "ep/routing.h"

enum CombinePhase : u32 { COMBINE_WAIT_FLAG = 1, COMBINE_FLAG_OVERRUN = 2 };

#ifndef EP_ELEMENT
#error "the kernel is compiled for an element type: Bf16, F16 or F32"
#endif
typedef EP_ELEMENT Element;
#include "ep/combine_rows.h"

// Copies the caller's rows into the combine window. Rows are counted through all sources.
static ANABRANCH_DEVICE void stage_rows(const Grid& grid, const CombineArgs& args, u64 own) {
    u32 units = args.row_bytes / 16;
    for (u32 source = 0; source < args.team.size; ++source) {
        u32 rows = private_load(grid, args.counts + source);
        u64 base = first_row_of(grid, source, args.row_stride, args.offsets);
        for (u32 row = grid.grid_wave(); row < rows; row += grid.grid_waves()) {
            const Vec16* from = reinterpret_cast<const Vec16*>(args.staged + (base + row) * args.row_bytes);
            Vec16* to = reinterpret_cast<Vec16*>(own + args.rows_offset + (base + row) * args.row_bytes);
            for (u32 unit = grid.lane(); unit < units; unit += WAVE_SIZE) {
                heap_store(grid, to + unit, stream_load(grid, from + unit));
            }
        }
    }
}

static ANABRANCH_DEVICE void flag_all(const Grid& grid, const CombineArgs& args, u32 epoch) {
    u64 own = args.flags_offset + static_cast<u64>(args.team.rank) * args.flag_stride;
    for (u32 first = 0; first < args.team.size; first += RANKS_AT_ONCE) {
        u64 base[RANKS_AT_ONCE];
#pragma unroll
        for (u32 u = 0; u < RANKS_AT_ONCE; ++u) {
            bool is_rank = first + u < args.team.size;
            base[u] = is_rank ? private_load(grid, args.team.peer_bases + rotated(args.team.rank, args.team.size, first + u)) : 0;
        }
#pragma unroll
        for (u32 u = 0; u < RANKS_AT_ONCE; ++u) {
            if (first + u < args.team.size) flag_store(grid, reinterpret_cast<u64*>(base[u] + own), pack_flag(epoch, 0));
        }
    }
}

// Every block waits for every rank: the words are in this device's memory.
static ANABRANCH_DEVICE bool wait_for_rows(const Grid& grid, const CombineArgs& args, const WaitContext& wait, u64 own,
                                           const LocalArray<u32>& fault) {
    u32 epoch = static_cast<u32>(wait.epoch);
    if (grid.thread == 0) fault.set(grid, 0, 0u);
    grid.block_barrier();
    for (u32 peer = grid.thread; peer < args.team.size; peer += grid.block_threads) {
        ANABRANCH_TWIN(COMBINE_WAITS_FOR_ITSELF) { if (peer != args.team.rank) continue; }
        const u64* flag =
            reinterpret_cast<const u64*>(own + args.flags_offset + static_cast<u64>(peer) * args.flag_stride);
        u64 seen = 0;
        WaitStatus status = wait_until(
            grid, wait, COMBINE_WAIT_FLAG, peer, epoch, flag,
            [epoch](u64 value) { return flag_has_reached(value, epoch); }, seen);
        if (status == WAIT_OK && flag_epoch(seen) != epoch) {
            report_fault(grid, wait, COMBINE_FLAG_OVERRUN, peer, epoch, seen, 0);
            status = WAIT_FAULT;
        }
        if (status != WAIT_OK) fault.set(grid, 0, 1u);
        ANABRANCH_UNLESS(COMBINE_NO_ACQUIRE) acquire_after_wait(grid);
    }
    ANABRANCH_UNLESS(COMBINE_NO_BARRIER) grid.block_barrier();
    return fault.get(grid, 0) == 0;
}

// Every block read the epoch when it began, and is counted when it ends, so the last may advance it. No data is ordered by
// this: the next launch is. No fence orders the reads before the store either, so the epoch is read and written as a flag: a
// block has used the value, in its wait, before it is counted.
static ANABRANCH_DEVICE void advance_epoch(const Grid& grid, const CombineArgs& args, u64 epoch) {
    if (grid.thread != 0) return;
    ANABRANCH_TWIN(COMBINE_UNCOUNTED) return flag_store(grid, &args.state->combine_epoch, epoch);
    if (fetch_add_device(grid, &args.state->combine_ended, 1u) + 1 == grid.grid_blocks) {
        ANABRANCH_UNLESS(COMBINE_COUNT_NOT_RESET) private_store(grid, &args.state->combine_ended, 0u);
        ANABRANCH_TWIN(COMBINE_EPOCH_PLAIN) return private_store(grid, &args.state->combine_epoch, epoch);
        flag_store(grid, &args.state->combine_epoch, epoch);
    }
}

// The whole block comes here, or none of it. Stages the rows if they are elsewhere, and tells every rank that they are here.
static ANABRANCH_DEVICE void offer_rows(const Grid& grid, const CombineArgs& args, u64 own, u64 epoch) {
    ANABRANCH_TWIN(COMBINE_FLAG_FIRST) { if (grid.thread == 0) flag_all(grid, args, static_cast<u32>(epoch)); }
    if (args.staged != nullptr) {
        stage_rows(grid, args, own);
        if (arrive_is_last(grid, &args.state->combine_arrived, grid.grid_blocks) && grid.thread == 0) {
            flag_all(grid, args, static_cast<u32>(epoch));
        }
    } else if (grid.block == 0) {
        // The rows were written by earlier work on this stream; the fence carries them to the peers.
        ANABRANCH_UNLESS(COMBINE_UNRELEASED) block_release_system(grid);
        if (grid.thread == 0) flag_all(grid, args, static_cast<u32>(epoch));
    }
}

// The whole block comes here, or none of it.
static ANABRANCH_DEVICE void pull_and_sum(const Grid& grid, const CombineArgs& args, u64 own, const WaitContext& wait) {
    LocalArray<u32> fault = {0};
    if (!wait_for_rows(grid, args, wait, own, fault)) return;

    u32 units = args.row_bytes / 16;
    u64 items = static_cast<u64>(args.token_count) * args.segments;
    for (u64 item = grid.grid_wave(); item < items; item += grid.grid_waves()) {
        u32 token = static_cast<u32>(item / args.segments);
        u32 segment = static_cast<u32>(item % args.segments);
        u32 from = static_cast<u32>(static_cast<u64>(units) * segment / args.segments);
        u32 to = static_cast<u32>(static_cast<u64>(units) * (segment + 1) / args.segments);
        sum_units(grid, args, token, from, to);
    }
    advance_epoch(grid, args, wait.epoch);
}

// What every kernel begins with: the epoch, 0 when the world is poisoned.
static ANABRANCH_DEVICE u64 begin(const Grid& grid, const CombineArgs& args) {
    u64 epoch = 0;
    if (grid.thread == 0) {
        u64 last = flag_load(grid, &args.state->combine_epoch);
        epoch = is_poisoned(grid, args.team.control) ? 0 : last + 1;
    }
    return grid.block_broadcast(epoch);
}

static ANABRANCH_DEVICE WaitContext context_of(const Grid& grid, const CombineArgs& args, u64 epoch) {
    return wait_context(grid, args.team.control, args.operation, args.team.group, args.team.rank, epoch);
}

ANABRANCH_KERNEL(anabranch_ep_combine, CombineArgs, 1024) {
    u64 epoch = begin(grid, args);
    if (epoch == 0) return;
    WaitContext wait = context_of(grid, args, epoch);
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    offer_rows(grid, args, own, epoch);
    pull_and_sum(grid, args, own, wait);
}

// The two halves. The second advances the epoch.
ANABRANCH_KERNEL(anabranch_ep_combine_send, CombineArgs, 1024) {
    u64 epoch = begin(grid, args);
    if (epoch != 0) offer_rows(grid, args, private_load(grid, args.team.peer_bases + args.team.rank), epoch);
}

ANABRANCH_KERNEL(anabranch_ep_combine_recv, CombineArgs, 1024) {
    u64 epoch = begin(grid, args);
    if (epoch == 0) return;
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    pull_and_sum(grid, args, own, context_of(grid, args, epoch));
}
