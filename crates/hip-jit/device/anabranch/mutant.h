// Broken twins: the prelude with one mistake, chosen by the parameter PRELUDE_MUTANT. A search that does not find the
// mistake does not test the line. 0, the default, is the prelude as it is.
#pragma once

#if !defined(PRELUDE_MUTANT)
#define PRELUDE_MUTANT 0
#endif

enum Mutant : u32 {
    MUTANT_NONE = 0,
    MUTANT_RELEASE_BY_ONE_THREAD = 1,     // block_release_system: only thread 0 releases, behind the barrier
    MUTANT_NO_RELEASE = 2,                // block_release_system: nobody releases
    MUTANT_COUNT_BEFORE_RELEASE = 3,      // arrive_is_last: counted, so flagged by others, before the block's release
    MUTANT_EPOCH_LOOSE = 4,               // has_reached, flag_has_reached: the epoch before is good enough
    MUTANT_NO_ACQUIRE_AFTER_WAIT = 5,     // acquire_after_wait: nothing
    MUTANT_NO_ACQUIRE_BETWEEN_BLOCKS = 6, // arrive_is_last: the last block does not acquire
    MUTANT_RELEASE_AT_DEVICE_SCOPE = 7,   // block_release_system: release, but not as far as peers
    MUTANT_FLAG_BEFORE_DATA = 8,          // arrive_is_last: true in the first block to arrive, not in the last
    // Of the form with cumulative fences alone; elsewhere each wave's own release makes up for them.
    MUTANT_NO_RELEASE_BEFORE_COUNT = 9,   // arrive_is_last: a block is counted without a release
    MUTANT_LAST_DOES_NOT_RELEASE = 10,    // arrive_is_last: the last block does not release to peers
    MUTANT_RELEASE_BEFORE_BARRIER = 11,   // block_release_system: thread 0's release comes before the barrier
    MUTANT_LAST = 11,
};
static constexpr u32 MUTANT = PRELUDE_MUTANT;
static_assert(MUTANT <= MUTANT_LAST, "PRELUDE_MUTANT names no mutant");
