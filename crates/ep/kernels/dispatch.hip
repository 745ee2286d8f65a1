// Dispatch: every token goes once to each rank that owns one of its experts, straight to its final row.
//
// Writers. Rank s writes, at rank d, n rows of the row and meta windows, then the one flag word [s] with {epoch, n}; n is the number of its
// tokens that go to d and fit there. In the slotted mode s owns `row_stride` rows of every window, from s * row_stride on. In the compact
// mode `count.hip` has computed where its rows begin (`bases`) and how many fit (`capacity`), the same on all ranks, so that no two sources
// share a row. A copy that does not fit is dropped before it is sent; the send map reports it to combine and to the host. The last block
// of rank d waits for the flags of all ranks and writes counts and offsets. Split in two, the first kernel ends after its flags, and the
// second, one block, begins with that wait: other work of the stream may run between them, and other ranks may do all in one (but not in that
// of `dispatch_experts.hip`, whose flags differ).
//
// Slot order. All arguments here and in the other kernels rest on it: kernels that this crate launches through a handle on one slot run one
// after the other on each rank, in the order of their launches. The handle of an operation holds the slot, exclusively, until its combine
// or release. It records an event after the launches of each call, and its next call makes its stream wait for that event. Outside
// captures the next operation on the slot waits for that of the last call that was not captured (`SlotTicket` in `slot.rs`).
// The caller orders:
// - the experts' work between dispatch and combine, which uses the slot's windows without an event on the slot;
// - successive operations on one slot within a capture;
// - replays with other work on the slot.
//
// Why a row window is not written too early. The rows of epoch e + 1 overwrite those of epoch e. Rank s starts dispatch e + 1 on a slot
// after its combine e (slot order; a release is a combine of no tokens, and flags and waits like any other). Combine e at s ended
// after it saw d's combine flag of epoch e. Rank d sent that flag after its dispatch e had seen the flags of all sources, so no row of
// epoch e is still under way, and after its expert work of epoch e had read the rows (stream order at d, which peers observe by
// `offer_earlier_work` of `publish.h`; on NVIDIA that rests on how its caches work).
// After a wait that fails the world is poisoned: kernels that begin then send no rows and no flags, so nothing is overwritten.
// Why a flag is not overwritten too early: by the same chain, d read the flag of epoch e in its dispatch e, before it sent its combine flag
// e. Why an old flag is not taken for a new one: its epoch is lower than the one waited for. A higher one is a fault.
// With a mask, `ep/mask.h` argues that all of this holds without the masked ranks.
//
// Why this rank's own words are not reused too early. They are in device memory, one set for each slot, so slot order keeps the
// next kernel away until this one has ended. `token_count.h` argues for `token_count` and `excess_*`, and `count.hip` for the tally, bases
// and capacity of the compact mode. Within a grid:
// - `dispatch_epoch` starts at 0; the epoch of a dispatch is one more. Each block reads it before it arrives. Only the block that
//   has waited for the flags advances it, and that block is the last of its grid to arrive, or the only one.
// - `dispatch_arrived` is 0 when a grid begins: the last block to arrive, after which no block of the grid touches it, stores 0.
//   If a block sees poison it does not arrive, and the counter stays above 0. No later kernel uses it: a world stays poisoned.
// - `routed` is written by one block before it arrives, and read by the last block after all have arrived.
// - `dropped_count` and `masked_count` are written by the last block to arrive, `counts` and `offsets` by the block that waits for the
//   flags: the last one, or the only one of the receive. If a wait of that block expires, it writes zeros to `counts` and `offsets`, and the
//   other two keep the values of this dispatch. A block that sees poison when it begins does not arrive, so no block of its grid is the
//   last. In a whole dispatch and in a receive it writes atomic zeros to all four words (`report_nothing`).
// - An entry of the send map is written by the one wave that routes its token.
// - Kernels change `invalid_count` and `invalid_first` by atomics only. The host reads and clears them at any time; it may lose ids that a
//   dispatch counts meanwhile (`take_invalid` in `slot.rs`).
// Later readers of these words (combine, `save_routing.hip`, the flags of other routes) come in slot order before the next dispatch.
#include "anabranch/prelude.h"
#include "ep/route_near.h"
#include "ep/dispatch_send.h"

typedef NearRoute Route;
typedef DispatchLocal<Route> Local;

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

// Send and receive. After a fault the receive reports nothing for both.
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
