// Dispatch to experts: a dispatch (`dispatch.hip`) whose grid then copies the rows that it received to the experts of this rank, to the
// places that `expert_expand.hip` gives them. Sources number their pairs (`ep/pair_numbers.h`), so that each wave of the receiver places
// rows alone (`ep/expand_numbered.h`). All arguments of `dispatch.hip` hold here, for these reasons.
//
// Writers. Rank s writes the numbers in its own records, and, of the totals, words [s][e] at the ranks that have expert e: one block for each
// rank. That is the block with the last tokens, or, where rank d has no room for all, the block with the first token that does not fit. Both
// are written before their block arrives, so they are released with the rows, before the flag. A wave of the receiver writes the places of the
// pairs of its rows; no two pairs have one place, since the numbers of a source and the sums of totals differ. Places are bounded by the
// room of their expert whatever a peer sent.
//
// A rank that dispatches without numbers. Its flag says so: receivers report a fault, and place nothing. Ranks whose memory is too small for
// the tables of an expand send numbers by a kernel that does not expand.
//
// Waits. In a dispatch one block waits for the flags of all ranks; here every block does, and takes the counts from the flags that it has
// seen, so no block waits for another of its grid. The last block of a grid to arrive sends the grid's flags, and no block waits before it
// has arrived, so all ranks send their flags. The grid is resident. Rows and records were released before the flags that a block acquires.
//
// Why a flag is not overwritten while a block still waits for it. Rank s stores the flag of epoch e + 1 after its combine e has ended, for
// which it has waited for this rank's combine flag e. A later kernel of this stream sends that flag.
//
// Why no row, record or total is overwritten while it is read: as for a flag, since those of epoch e + 1 come after combine e at their
// source.
//
// The slot's words. Every block has read `dispatch_epoch` before it arrives. The last block to arrive writes `counts`, `offsets` and
// `dispatch_epoch`, and no block of this grid reads what it writes.
//
// After a fault. A block that has not seen all flags copies nothing. If that is block 0, it reports that no expert has a row. If it is another
// block alone (a flag that came at the end of the patience), some rows of experts, their sources and slots keep their content. All of these
// are valid: the host has cleared the tables of padded rows, and a contract takes no place that is not below the number of places. The
// world is poisoned, so no rank uses the sums. The last block writes counts other than zero only after it has seen all flags, as
// `combine.hip` needs.
#include "anabranch/prelude.h"
#include "ep/route_experts.h"
#include "ep/dispatch_send.h"
#include "ep/expand_numbered.h"

static_assert(!MASKS, "blocks that wait for themselves may disagree about a masked rank");

typedef ExpertRoute Route;
typedef DispatchLocal<Route> Local;

// Block 0, without all flags: no expert has a pair.
static ANABRANCH_DEVICE void report_no_pairs(const Grid& grid, const ExpertExpandArgs& args) {
    if (grid.block != 0) return;
    u32 experts = args.received.local_experts;
    if (CONTIGUOUS && grid.thread == 0) private_store(grid, args.starts + experts, 0u);
    for (u32 e = grid.thread; e < experts; e += grid.block_threads) {
        private_store(grid, args.counts + e, 0u);
        if (CONTIGUOUS) {
            private_store(grid, args.starts + e, 0u);
            continue;
        }
        private_store(grid, args.pairs + e, 0u);
        for (u32 source = 0; source <= args.received.ranks; ++source) {
            private_store(grid, args.source_offsets + static_cast<u64>(e) * (args.received.ranks + 1) + source, 0u);
        }
    }
}

// The tables of a block, and the route with what it sends.
static ANABRANCH_DEVICE Local local_of(const DispatchExpertsArgs& args) {
    Route route = {args.copies, args.numbers_word, args.totals_stride, args.totals_offset, args.dispatch.team.size, {}, {}};
    return Local::at(args.dispatch.team.size, args.dispatch.fan_out, route);
}

ANABRANCH_KERNEL(anabranch_ep_dispatch_experts, DispatchExpertsArgs, 1024) {
    const DispatchArgs& dispatch = args.dispatch;
    const ExpertExpandArgs& experts = args.experts;
    Local local = local_of(args);
    clear_numbers(grid, local);
    u32 given = given_tokens(grid, dispatch);
    u64 epoch = begin(grid, dispatch, local);
    WaitContext wait = context_of(grid, dispatch, epoch);
    bool came = false;
    if (epoch == 0) {
        report_nothing(grid, dispatch);
    } else {
        bool last = send_rows(grid, dispatch, local, epoch, given);
        came = last ? learn_counts(grid, dispatch, local, wait) : await_counts(grid, dispatch, local, wait);
    }
    if (came) {
        Numbered numbered = {reinterpret_cast<const u8*>(local.peer_base.get(grid, dispatch.team.rank) + args.totals_offset),
                             args.totals_stride, args.numbers_word, local.next_row,
                             Numbered::tables(local.route.end_byte(), dispatch.team.size, experts.received.local_experts)};
        expand_numbered(grid, experts, numbered);
    } else {
        report_no_pairs(grid, experts);
    }
}

// A dispatch whose records have the numbers, for a rank whose expand is a kernel of its own while those of other ranks are not. Only its last
// block waits, as in `dispatch.hip`.
ANABRANCH_KERNEL(anabranch_ep_dispatch_numbered, DispatchExpertsArgs, 1024) {
    const DispatchArgs& dispatch = args.dispatch;
    Local local = local_of(args);
    clear_numbers(grid, local);
    u32 given = given_tokens(grid, dispatch);
    u64 epoch = begin(grid, dispatch, local);
    WaitContext wait = context_of(grid, dispatch, epoch);
    if (epoch == 0) {
        report_nothing(grid, dispatch);
    } else if (send_rows(grid, dispatch, local, epoch, given)) {
        learn_counts(grid, dispatch, local, wait);
    }
}
