// How many tokens an operation has: as many as the host says, or, in kernels compiled with EP_DEVICE_COUNT, what a word in this
// device's memory says when dispatch runs, but not more than the host says.
//
// The word is the caller's, who leaves it alone until dispatch has run. One kernel reads it and keeps the number in the slot's
// state: the count before a compact dispatch, else dispatch. Everything after that on the stream reads the state: the compact
// dispatch, which then has the number of the count, whose rows it fills, and combine. Why the state's number is not overwritten too
// early: the next kernel that keeps one there is that of the slot's next dispatch, after this one's combine on the stream.
#pragma once

#include "anabranch/prelude.h"

#ifdef EP_DEVICE_COUNT
template <class Args>
static ANABRANCH_DEVICE u32 given_tokens(const Grid& grid, const Args& args) {
    return args.device_count != nullptr ? private_load(grid, args.device_count) : args.token_count;
}

// One thread of the grid, after all its reads of the state's number. More than the host allows is reported to it.
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

// Those of a combine; a release, which has none, has none here.
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
