// The number of tokens of an operation: the host's number, or, in kernels compiled with EP_DEVICE_COUNT, a word in this
// device's memory when dispatch runs, with the host's number as its bound.
//
// The caller does not write the word until dispatch has run. One kernel reads it and stores the number in the slot's
// state: the count before a compact dispatch, else dispatch. Later kernels read the state: the compact
// dispatch, so that it has the number of the count, late weights, and combine. Why the state's number is not overwritten too
// early: the slot's next dispatch is the next to store it, after this one's combine in slot order.
#pragma once

#include "anabranch/prelude.h"

#ifdef EP_DEVICE_COUNT
template <class Args>
static ANABRANCH_DEVICE u32 given_tokens(const Grid& grid, const Args& args) {
    return args.device_count != nullptr ? private_load(grid, args.device_count) : args.token_count;
}

// One thread of the grid, after all reads of the state's number. A number above the bound is recorded for the host.
template <class Args>
static ANABRANCH_DEVICE void keep_tokens(const Grid& grid, const Args& args, u32 given) {
    SlotState* state = args.state;
    private_store(grid, &state->token_count, minimum(given, args.token_count));
    if (given <= args.token_count) return;
    u32 before = private_load(grid, &state->excess_count);
    private_store(grid, &state->excess_count, before + 1);
    if (before != 0) return;
    private_store(grid, &state->excess_given, given);
    private_store(grid, &state->excess_allowed, args.token_count);
}

// The tokens of a combine; 0 for a release.
template <class Args>
static ANABRANCH_DEVICE u32 combined_tokens(const Grid& grid, const Args& args) {
    return minimum(args.token_count, private_load(grid, &args.state->token_count));
}
#else
template <class Args>
static ANABRANCH_DEVICE u32 given_tokens(const Grid&, const Args& args) {
    return args.token_count;
}
template <class Args>
static ANABRANCH_DEVICE void keep_tokens(const Grid&, const Args&, u32) {}
template <class Args>
static ANABRANCH_DEVICE u32 combined_tokens(const Grid&, const Args& args) {
    return args.token_count;
}
#endif
