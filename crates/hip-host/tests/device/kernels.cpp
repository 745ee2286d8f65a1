// Kernels of the tests, written against the bare ABI.
#include <stdint.h>

#include "anabranch/host_abi.h"

typedef AnabranchHostLane Lane;

#define KERNEL_AS(NAME, ARGS, ABI, MOST)                                                     \
    extern "C" const AnabranchHostKernel NAME##_host_kernel = {ABI, WAVE, sizeof(ARGS), MOST, \
        [](Lane* lane, const void* arguments) { NAME(lane, *static_cast<const ARGS*>(arguments)); }};
#define KERNEL(NAME, ARGS) KERNEL_AS(NAME, ARGS, ANABRANCH_HOST_ABI, 1024)

static void barrier(Lane* lane, unsigned site) { lane->calls->block_barrier(lane, site); }
static const unsigned long long* exchange(Lane* lane, uint64_t value, unsigned site) {
    return lane->calls->wave_exchange(lane, value, site);
}
static uint32_t position(const Lane* lane) { return lane->block * lane->block_threads + lane->thread; }
static uint32_t lanes(const Lane* lane) { return lane->grid_blocks * lane->block_threads; }

static void wait_for(Lane* lane, uint64_t* word, uint64_t least) {
    unsigned waiting = 2;
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < least) {
        lane->calls->yield(lane, waiting);
        waiting = 1;
    }
}

struct Copy { uint32_t* target; const uint32_t* source; uint32_t count; };
static void copy(Lane* lane, const Copy& a) {
    for (uint32_t i = position(lane); i < a.count; i += lanes(lane)) a.target[i] = a.source[i];
}
KERNEL(copy, Copy)
// The same without room for blocks over 32 threads, and one of another ABI.
static void narrow(Lane* lane, const Copy& a) { copy(lane, a); }
KERNEL_AS(narrow, Copy, ANABRANCH_HOST_ABI, 32)
static void foreign(Lane* lane, const Copy& a) { copy(lane, a); }
KERNEL_AS(foreign, Copy, ANABRANCH_HOST_ABI + 1, 1024)

// Every lane sums what all lanes of its block left in local memory, `rounds` times.
struct BlockSum { uint64_t* out; uint32_t rounds; };
static void block_sum(Lane* lane, const BlockSum& a) {
    uint64_t* local = static_cast<uint64_t*>(lane->local_memory);
    uint64_t total = 0;
    for (uint32_t round = 0; round < a.rounds; ++round) {
        local[lane->thread] = lane->thread + round + lane->block;
        barrier(lane, __LINE__);
        for (uint32_t i = 0; i < lane->block_threads; ++i) total += local[i];
        barrier(lane, __LINE__);
    }
    a.out[position(lane)] = total;
}
KERNEL(block_sum, BlockSum)

struct Word { uint64_t* word; uint64_t value; };
static void local_contents(Lane* lane, const Word& a) {
    if (lane->thread != 0) return;
    a.word[0] = *static_cast<uint64_t*>(lane->local_memory);
    a.word[1] = reinterpret_cast<uintptr_t>(lane->local_memory) % 128;
}
KERNEL(local_contents, Word)

// Every lane of the grid adds and spins until all have, `rounds` times.
struct GridBarrier { uint64_t* counter; uint32_t rounds; };
static void grid_barrier(Lane* lane, const GridBarrier& a) {
    for (uint32_t round = 1; round <= a.rounds; ++round) {
        __atomic_fetch_add(a.counter, 1, __ATOMIC_ACQ_REL);
        wait_for(lane, a.counter, static_cast<uint64_t>(round) * lanes(lane));
    }
}
KERNEL(grid_barrier, GridBarrier)

// Each lane gives different values in each round and checks those of all others, late as well.
struct Exchange { uint64_t* errors; uint32_t rounds; };
static void exchange_check(Lane* lane, const Exchange& a) {
    uint32_t mine = lane->thread % WAVE, first = lane->thread - mine;
    uint64_t errors = lane->wave_width != WAVE;
    for (uint32_t round = 0; round < a.rounds; ++round) {
        const unsigned long long* values = exchange(lane, first * 1000003ull + mine * 17 + round * 71, __LINE__);
        if ((mine + round) % 3 == 0) lane->calls->yield(lane, 0);
        for (uint32_t i = 0; i < WAVE && first + i < lane->block_threads; ++i)
            errors += values[i] != first * 1000003ull + i * 17 + round * 71;
    }
    a.errors[position(lane)] = errors;
}
KERNEL(exchange_check, Exchange)

struct Diverge { uint32_t kind; };
static void diverge(Lane* lane, const Diverge& a) {
    bool odd = lane->thread % 2;
    switch (a.kind) {
        case 0: barrier(lane, odd ? 100 : 200); break;          // two barriers
        case 1: if (!odd) barrier(lane, 101); break;            // some leave
        case 2: exchange(lane, 0, odd ? 102 : 202); break;      // two wave operations
        case 3: if (!odd) exchange(lane, 0, 103); break;        // some leave
        case 4: odd ? barrier(lane, 104) : (void)exchange(lane, 0, 204); break;
    }
}
KERNEL(diverge, Diverge)

// Two of these, with the words crossed, wait for each other.
struct PingPong { uint64_t* mine; uint64_t* theirs; uint64_t rounds; };
static void ping_pong(Lane* lane, const PingPong& a) {
    for (uint64_t round = 1; round <= a.rounds; ++round) {
        __atomic_store_n(a.mine, round, __ATOMIC_RELEASE);
        wait_for(lane, a.theirs, round);
    }
}
KERNEL(ping_pong, PingPong)

static void wait_word(Lane* lane, const Word& a) { wait_for(lane, a.word, a.value); }
KERNEL(wait_word, Word)
static void store_word(Lane* lane, const Word& a) {
    if (position(lane) == 0) __atomic_store_n(a.word, a.value, __ATOMIC_RELEASE);
}
KERNEL(store_word, Word)
// word = word * value + 1: shows order and count.
static void step_word(Lane* lane, const Word& a) {
    if (position(lane) == 0) *a.word = *a.word * a.value + 1;
}
KERNEL(step_word, Word)
static void clock_word(Lane* lane, const Word& a) { *a.word = lane->calls->clock_ns(lane); }
KERNEL(clock_word, Word)

// Uses about `value` bytes of stack.
static uint64_t deep(Lane* lane, uint64_t bytes) {
    volatile char frame[512];
    for (unsigned i = 0; i < sizeof frame; ++i) frame[i] = static_cast<char>(i | 1);
    if (bytes <= sizeof frame) return frame[7];
    return deep(lane, bytes - sizeof frame) + frame[9];
}
static void use_stack(Lane* lane, const Word& a) { *a.word = deep(lane, a.value); }
KERNEL(use_stack, Word)
static uint64_t deep_yield(Lane* lane, uint64_t bytes) {
    volatile char frame[512];
    for (unsigned i = 0; i < sizeof frame; ++i) frame[i] = static_cast<char>(i | 1);
    if (bytes <= sizeof frame) { lane->calls->yield(lane, 0); return frame[7]; }
    return deep_yield(lane, bytes - sizeof frame) + frame[9];
}
static void use_stack_and_yield(Lane* lane, const Word& a) { *a.word = deep_yield(lane, a.value); }
KERNEL(use_stack_and_yield, Word)
