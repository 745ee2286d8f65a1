// Combine from experts: the grid sums the experts' outputs of each received row into the combine window (`ep/contract_rows.h`), flags every
// rank, and then combines as `combine.hip` does, whose arguments hold here.
//
// Writers. All blocks of rank d write the window. The last to arrive stores d's combine flag at every rank; the arrival releases the rows
// of all blocks before. No block waits before it has arrived, so all ranks send their flags.
//
// Why the window is not overwritten while it is read: this kernel writes it after the dispatch of its epoch, as experts do for `combine.hip`.
// If that dispatch ended with a fault its counts are zero, and nothing is written; a poisoned world ends this kernel at its begin.
//
// Why `combine_arrived` is not reused too early: the last block resets it, and slot order keeps the next kernel of the slot behind this one.
// In a poisoned world blocks may not arrive and the word stays above zero; no kernel of that world counts again.
#include "anabranch/prelude.h"
#include "ep/combine_flags.h"
#include "ep/combine_rows.h"
#include "ep/combine_weights.h"
#include "ep/contract_rows.h"

#ifndef EP_ELEMENT
#error "the kernel is compiled for an element type: Bf16, F16 or F32"
#endif
typedef EP_ELEMENT Element;

static ANABRANCH_DEVICE Result result_of(const Grid&, const CombineArgs& args, u64 entry) { return pulled(args, entry); }

// The whole block comes here, or none of it. Sums into the window, then flags every rank.
static ANABRANCH_DEVICE void contract_and_flag(const Grid& grid, const CombineExpertsArgs& args, u64 epoch) {
    contract_rows<Element>(grid, args.contract);
    if (arrive_is_last(grid, &args.combine.state->combine_arrived, grid.grid_blocks) && grid.thread == 0) {
        flag_all(grid, args.combine, PULLED, static_cast<u32>(epoch));
    }
}

// The whole block comes here, or none of it.
static ANABRANCH_DEVICE void pull_and_sum(const Grid& grid, const CombineArgs& args, const WaitContext& wait) {
    LocalArray<u32> fault = {0};
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    u32 tokens = combined_tokens(grid, args);
    Rows early = early_rows(grid, args, tokens);
    if (!wait_for_rows(grid, args, PULLED, wait, own, fault)) return;
    sum_tokens<Element>(grid, args, tokens, early);
    sum_pulled_weights(grid, args);
    end_combine(grid, args, wait.epoch);
}

ANABRANCH_KERNEL(anabranch_ep_combine_experts, CombineExpertsArgs, 1024) {
    u64 epoch = next_epoch(grid, args.combine);
    if (epoch == 0) return;
    WaitContext wait = context_of(grid, args.combine, epoch);
    contract_and_flag(grid, args, epoch);
    pull_and_sum(grid, args.combine, wait);
}
