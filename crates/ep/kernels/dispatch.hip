// Dispatch: every token goes once to each rank that owns one of its experts, straight to its final row.
//
// Who writes what. Rank s writes, at rank d, n rows of the row and meta windows, n being the number of its tokens that go to d
// and find room there, then the one flag word [s] with {epoch, n}. Slotted, it owns `row_stride` rows of every window, those
// from s * row_stride on. Compact, `count.hip` has computed where its rows begin (`bases`) and how many are left there (`capacity`),
// the same on all ranks, so that no two sources share a row. Copies that find no room are dropped before they are sent, and
// reported to combine and to the host in the send map. Rank d's last block waits for the flags of all ranks and writes counts and
// offsets. Split in two, the first kernel ends after its flags, and the second, one block, begins with that wait: other work
// of the stream may stand between them, and other ranks may do all in one.
//
// Why a row window is not written too early. The rows of epoch e + 1 overwrite those of epoch e. Rank s starts dispatch
// e + 1 on a slot after its combine e on that slot (stream order, kept by the handle; a release is a combine of no tokens,
// and flags and waits like any other). Combine e at s ended after it saw
// d's combine flag of epoch e, which d sent after its expert work of epoch e had read the rows (stream order at d).
// Why a flag is not overwritten too early: by the same chain, d read the flag of epoch e in its dispatch e, before its
// combine flag e. Why an old flag is not taken for a new one: the epoch in it must equal the one waited for; epochs
// live in device memory, start at 1, and are advanced only by the block that has waited, after every block has read them.
// With a mask, `ep/mask.h` says why all of this holds without the ranks that it names.
#include "anabranch/prelude.h"
#include "ep/dispatch_grid.h"
#include "ep/route_near.h"

typedef NearRoute Route;
typedef DispatchLocal<Route> Local;

// Thread 0 of the last block: reports to every rank how many rows it got from here.
static ANABRANCH_DEVICE void flag_counts(const Grid& grid, const DispatchArgs& args, const Local& local, u32 epoch) {
    u32 ranks = args.team.size;
    // Rotated, so that the ranks do not all flag rank 0 first; some counts at a time, so that their latencies overlap.
    u32 dropped = 0, masked = 0;
    for (u32 first = 0; first < ranks; first += RANKS_AT_ONCE) {
        u32 routed[RANKS_AT_ONCE];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < RANKS_AT_ONCE; ++u) {
            routed[u] = first + u < ranks ? private_load(grid, args.routed + rotated(args.team.rank, ranks, first + u)) : 0;
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < RANKS_AT_ONCE; ++u) {
            if (first + u >= ranks) break;
            u32 peer = rotated(args.team.rank, ranks, first + u);
            bool is_told = !is_masked(grid, args.mask, peer);
            masked += is_told ? 0 : routed[u];
            if (!is_told) continue;
            u32 count = minimum(routed[u], local.capacity.get(grid, peer));
            dropped += routed[u] - count;
            u64* flag = reinterpret_cast<u64*>(local.peer_base.get(grid, peer) + args.flags_offset +
                                               static_cast<u64>(args.team.rank) * args.flag_stride);
            flag_store(grid, flag, pack_flag(epoch, count));
        }
    }
    private_store(grid, &args.state->dropped_count, dropped);
    if constexpr (MASKS) private_store(grid, &args.state->masked_count, masked);
}

// The whole block comes here, or none of it. True in the block that was the last to arrive, which has sent the counts.
static ANABRANCH_DEVICE bool send_rows(const Grid& grid, const DispatchArgs& args, const Local& local, u64 epoch,
                                       u32 given) {
    bool last = write_rows(grid, args, local, given);
    if (last && grid.thread == 0) flag_counts(grid, args, local, static_cast<u32>(epoch));
    return last;
}

ANABRANCH_KERNEL(anabranch_ep_dispatch, DispatchArgs, 1024) {
    Local local = Local::at(args.team.size, args.fan_out, Route{});
    u32 given = given_tokens(grid, args);
    u64 epoch = begin(grid, args, local);
    WaitContext wait = context_of(grid, args, epoch);
    if (epoch == 0) {
        report_nothing(grid, args);
    } else if (send_rows(grid, args, local, epoch, given)) {
        learn_counts(grid, args, local, wait);
    }
}

// The two halves. After a fault the second reports nothing for both.
ANABRANCH_KERNEL(anabranch_ep_dispatch_send, DispatchArgs, 1024) {
    Local local = Local::at(args.team.size, args.fan_out, Route{});
    u32 given = given_tokens(grid, args);
    u64 epoch = begin(grid, args, local);
    if (epoch != 0) send_rows(grid, args, local, epoch, given);
}

ANABRANCH_KERNEL(anabranch_ep_dispatch_recv, DispatchArgs, 1024) {
    Local local = Local::at(args.team.size, args.fan_out, Route{});
    u64 epoch = begin(grid, args, local);
    if (epoch == 0) {
        report_nothing(grid, args);
    } else {
        learn_counts(grid, args, local, context_of(grid, args, epoch));
    }
}
