// Combine: every rank pulls, for each of its tokens, the rows that the token's destinations computed, and sums them in
// group-rank order with f32 accumulation and one rounding. Copies that were dropped because they did not fit are not
// summed, nor are those of ranks that are masked (`ep/mask.h`); a token without any copy gives zeros.
//
// Writers. Rank d's expert work has written the results of its received rows to its combine window; then d stores its
// combine flag at every rank s. Rank s waits for the flags of all ranks and reads.
// Split in two, the first kernel ends after its flags, and the second begins with that wait. A release is a combine of no tokens. What a
// slot is, and slot order: `dispatch.hip`.
//
// Why the window is not overwritten while it is read. Rank d writes its combine window again in epoch e + 1, after its
// dispatch e + 1 has seen every rank's dispatch flag e + 1. (The caller's experts write it, and the caller orders them after the dispatch
// or its receive.) Rank s sends that flag after its combine e has ended (slot order, see `dispatch.hip`), so all reads of epoch e are over.
// If dispatch e + 1 ends with a fault, d has not seen all flags. Its counts are zero then: experts that write counted rows alone write
// nothing, and others may change rows that s still reads.
// Why a flag word is not overwritten too early: by the same chain, s read d's flag e before it sent dispatch flag e + 1, for which d waits
// before its combine e + 1. An old flag is not taken for a new one: the epoch in it must equal the one waited for.
//
// Why this rank's own words are not reused too early. They are in device memory, one set for each slot, so slot order keeps the next kernel
// away until this one has ended.
// - `dispatch_epoch` was written by the dispatch of this operation, and `combine_epoch` is read by the host alone (`combine_flags.h`).
// - The send map is written by the dispatch of this operation; the next dispatch on the slot writes it again.
#include "anabranch/prelude.h"
#include "ep/combine_flags.h"
#include "ep/combine_rows.h"
#include "ep/combine_weights.h"

#ifndef EP_ELEMENT
#error "the kernel is compiled for an element type: Bf16, F16 or F32"
#endif
typedef EP_ELEMENT Element;

static ANABRANCH_DEVICE Result result_of(const Grid&, const CombineArgs& args, u64 entry) { return pulled(args, entry); }

// The whole block comes here, or none of it. Flags to every rank that the rows are in the window.
static ANABRANCH_DEVICE void offer_rows(const Grid& grid, const CombineArgs& args, const CombineBegin& begin) {
    if (grid.block == 0) {
        // The rows were written by earlier work on this stream, into this device's memory.
        offer_earlier_work(grid);
        if (grid.thread == 0) flag_all(grid, args, PULLED, static_cast<u32>(begin.epoch), begin.poisoned);
    }
}

// Every thread of the block.
static ANABRANCH_DEVICE void pull_and_sum(const Grid& grid, const CombineArgs& args, const CombineBegin& begin) {
    WaitContext wait = context_of(grid, args, begin.epoch);
    LocalArray<u32> fault = {0};
    u32 tokens = combined_tokens(grid, args);
    Rows early = early_rows(grid, args, tokens);
    if (!wait_for_rows(grid, args, PULLED, wait, begin.own, fault, begin.poisoned)) return;
    sum_tokens<Element>(grid, args, tokens, early);
    sum_pulled_weights(grid, args);
    end_combine(grid, args, begin.epoch);
}

ANABRANCH_KERNEL(anabranch_ep_combine, CombineArgs, 1024) {
    CombineBegin begin = begin_combine(grid, args);
    offer_rows(grid, args, begin);
    pull_and_sum(grid, args, begin);
}

// Send and receive.
ANABRANCH_KERNEL(anabranch_ep_combine_send, CombineArgs, 1024) { offer_rows(grid, args, begin_combine(grid, args)); }

ANABRANCH_KERNEL(anabranch_ep_combine_recv, CombineArgs, 1024) { pull_and_sum(grid, args, begin_combine(grid, args)); }
