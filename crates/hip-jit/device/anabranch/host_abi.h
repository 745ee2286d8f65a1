// The contract between a kernel compiled for the host runtime and the machine that runs it (hip-host).
//
// A kernel is a function that one *lane* (a stackful coroutine) runs from start to end. The lane calls back
// into the machine to yield, for barriers with the lanes of its block or wave, and to read the clock. A kernel
// has no statics, no thread-local storage and no local memory of its own: what it shares within the block is
// `local_memory`.
//
// For each kernel NAME the shared object exports the entry function NAME and a descriptor NAME_host_kernel,
// which hipModuleGetFunction looks up. Rust mirrors these structs in hip-host/src/grid/abi.rs.
#pragma once

// The versions. They change with the structs and with the meaning of a call; a new number of an access, fence or atomic needs none, as
// the machine and the kernels of one build have the same header.
#define ANABRANCH_HOST_ABI 1
// Of instrumented kernels: `lane->calls` points to AnabranchHostInstrumentedCalls, and addresses of global memory are
// numbers that only those calls understand.
#define ANABRANCH_HOST_ABI_INSTRUMENTED 0x105
// Of those whose prelude relies on cumulative fences, as NVIDIA's does.
#define ANABRANCH_HOST_ABI_CUMULATIVE 0x106

// The kinds of access of an instrumented kernel. dev/weakmem has the same numbers (lane.rs, world.rs, effects.rs).
#define ANABRANCH_ACCESS_REMOTE 0   // memory that a peer may touch
#define ANABRANCH_ACCESS_PRIVATE 1  // memory of this device alone
#define ANABRANCH_ACCESS_FLAG 2     // a word of a protocol, 8 bytes
#define ANABRANCH_ACCESS_FLAG_ACQUIRE 3  // a load of one that acquires at system scope what the word's writer released
// The kinds of access to local memory.
#define ANABRANCH_LOCAL_LOAD 0
#define ANABRANCH_LOCAL_STORE 1
#define ANABRANCH_LOCAL_ATOMIC 2
#define ANABRANCH_SCOPE_DEVICE 0
#define ANABRANCH_SCOPE_SYSTEM 1
#define ANABRANCH_FENCE_RELEASE 0
#define ANABRANCH_FENCE_ACQUIRE 1
#define ANABRANCH_FENCE_OF_EARLIER 2  // no fence: flags of the lane carry from now on what earlier launches of its stream released
#define ANABRANCH_ATOMIC_ADD 0
#define ANABRANCH_ATOMIC_MIN 1
#define ANABRANCH_ATOMIC_AND 2
#define ANABRANCH_ATOMIC_OR 3
#define ANABRANCH_ATOMIC_XOR 4
#define ANABRANCH_ATOMIC_SWAP 5
#define ANABRANCH_ATOMIC_COMPARE_SWAP 6

extern "C" {

struct AnabranchHostLane;

struct AnabranchHostCalls {
    // Lets other lanes run. `waiting` is 0 when the lane has more to do itself; 2 after the first failed look
    // at memory that another agent has to change, and 1 after each further one: a machine whose lanes all
    // pass 1 may rest its thread. (Passing 1 for the first look too is right, but a chain of short waits then
    // looks like one long one, and rests come early.)
    void (*yield)(AnabranchHostLane* lane, unsigned waiting);
    // Returns when every lane of the block has called it. `site` (a line number) must be the same for all.
    void (*block_barrier)(AnabranchHostLane* lane, unsigned site);
    // Deposits `value` and returns the values of all lanes of the wave, indexed by lane. Convergent: every
    // lane of the wave must call it with the same `site`. Lanes that an incomplete last wave lacks count as 0.
    // The array stays as it is until this lane's next wave_exchange.
    const unsigned long long* (*wave_exchange)(AnabranchHostLane* lane, unsigned long long value, unsigned site);
    // Nanoseconds of a clock that only grows and is the same for all processes of the machine.
    unsigned long long (*clock_ns)(AnabranchHostLane* lane);
};

// The calls of an instrumented kernel. `bytes` is 1, 2, 4 or 8, and the address a multiple of it; wider accesses are
// several calls. Values are in the low bits.
struct AnabranchHostInstrumentedCalls {
    AnabranchHostCalls base;
    unsigned long long (*load)(AnabranchHostLane* lane, const void* p, unsigned bytes, unsigned access);
    void (*store)(AnabranchHostLane* lane, void* p, unsigned long long value, unsigned bytes, unsigned access);
    void (*fence)(AnabranchHostLane* lane, unsigned order, unsigned scope);
    // Returns the old value. `expected` matters to compare-and-swap only. Operands of signed words may have sign bits above `bytes`.
    unsigned long long (*modify)(AnabranchHostLane* lane, void* p, unsigned long long operand,
                                 unsigned long long expected, unsigned bytes, unsigned operation, unsigned scope);
    // As wave_exchange, and orders memory among the lanes of the wave, which ballots and shuffles do not.
    void (*wave_barrier)(AnabranchHostLane* lane, unsigned site);
    // The lane is about to touch bytes of its block's local memory, which it does itself: no other lane runs in between.
    void (*local)(AnabranchHostLane* lane, unsigned byte, unsigned bytes, unsigned access);
};

struct AnabranchHostLane {
    const AnabranchHostCalls* calls;
    void* local_memory;      // of the block; aligned to 128 bytes; contents undefined at the start
    unsigned local_bytes;    // what the launch asked for
    unsigned thread;         // within the block
    unsigned block;          // within the grid
    unsigned block_threads;
    unsigned grid_blocks;
    unsigned wave_width;
};

typedef void (*AnabranchHostEntry)(AnabranchHostLane* lane, const void* arguments);

struct AnabranchHostKernel {
    unsigned abi;                // ANABRANCH_HOST_ABI
    unsigned wave_width;         // the width it was compiled for; must be the machine's
    unsigned argument_bytes;     // size of the one by-value argument struct
    unsigned max_block_threads;
    AnabranchHostEntry entry;
};
}

static_assert(sizeof(AnabranchHostCalls) == 32, "as in abi.rs");
static_assert(__builtin_offsetof(AnabranchHostCalls, clock_ns) == 24, "as in abi.rs");
static_assert(sizeof(AnabranchHostInstrumentedCalls) == 80, "as in abi.rs");
static_assert(__builtin_offsetof(AnabranchHostInstrumentedCalls, load) == 32, "as in abi.rs");
static_assert(sizeof(AnabranchHostLane) == 40, "as in abi.rs");
static_assert(__builtin_offsetof(AnabranchHostLane, thread) == 20, "as in abi.rs");
static_assert(__builtin_offsetof(AnabranchHostLane, wave_width) == 36, "as in abi.rs");
static_assert(sizeof(AnabranchHostKernel) == 24, "as in abi.rs");
static_assert(__builtin_offsetof(AnabranchHostKernel, entry) == 16, "as in abi.rs");
