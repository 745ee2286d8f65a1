// The primitives for NVIDIA GPUs, as PTX. Loads and stores of shared words carry their order and scope in the
// instruction (PTX ISA, "Memory Consistency Model").
#pragma once

// What kernels with wide blocks declare: 64 registers a thread, and blocks of 512 threads fit twice on a multiprocessor.
#define ANABRANCH_WIDE_BLOCK 1024

#define ANABRANCH_HAS_PER_WAVE_RELEASE 0
#define ANABRANCH_POLL_ACQUIRES 1
// A kernel's stores have arrived, at peers too, when it ends, and its loads are over (see publish.h).
#define ANABRANCH_KERNELS_END_RELEASED 1
// Rows that are loaded before a wait stay in registers.
#define ANABRANCH_HOLDS_ROWS 1

extern __shared__ __align__(128) u8 anabranch_local_memory[];

namespace target {

ANABRANCH_DEVICE u32 thread_index() { return threadIdx.x; }
ANABRANCH_DEVICE u32 block_index() { return blockIdx.x; }

ANABRANCH_DEVICE u64 clock_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// ---- wide access to memory that a peer may touch ------------------------------------------------------------
ANABRANCH_DEVICE Vec16 load16(const void* p) {
    Vec16 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(p));
    return v;
}
ANABRANCH_DEVICE void store16(void* p, Vec16 v) {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.word[0]),
                 "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]));
}
ANABRANCH_DEVICE u64 load8(const void* p) {
    u64 v;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(p));
    return v;
}
ANABRANCH_DEVICE void store8(void* p, u64 v) { asm volatile("st.global.u64 [%0], %1;" ::"l"(p), "l"(v)); }
ANABRANCH_DEVICE u32 load4(const void* p) {
    u32 v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
ANABRANCH_DEVICE void store4(void* p, u32 v) { asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v)); }
ANABRANCH_DEVICE u16 load2(const void* p) {
    u16 v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}
ANABRANCH_DEVICE void store2(void* p, u16 v) { asm volatile("st.global.u16 [%0], %1;" ::"l"(p), "h"(v)); }
ANABRANCH_DEVICE u8 load1(const void* p) {
    u32 v;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p));
    return static_cast<u8>(v);
}
ANABRANCH_DEVICE void store1(void* p, u8 v) {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(static_cast<u32>(v)));
}

// Read-only for the whole kernel, read once.
ANABRANCH_DEVICE Vec16 stream_load16(const void* p) {
    Vec16 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
        : "l"(p));
    return v;
}
ANABRANCH_DEVICE void stream_store16(void* p, Vec16 v) { store16(p, v); }

// ---- flags: 8-byte words, system scope, relaxed; order comes from the fences --------------------------------
ANABRANCH_DEVICE u64 flag_load(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
ANABRANCH_DEVICE void flag_store(u64* p, u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// Two words in one access, each of them single and relaxed as a flag is (PTX: a vector access is several scalar ones).
ANABRANCH_DEVICE Packet packet_load(const Packet* p) {
    Packet v;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2];" : "=l"(v.half[0]), "=l"(v.half[1]) : "l"(p) : "memory");
    return v;
}
ANABRANCH_DEVICE void packet_store(Packet* p, Packet v) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1,%2};" ::"l"(p), "l"(v.half[0]), "l"(v.half[1]) : "memory");
}

// The load that a wait polls with. Acquiring in the load costs less than a fence after it: the fence would also wait for
// this thread's own stores to reach the peers.
ANABRANCH_DEVICE u64 flag_load_for_wait(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

// ---- fences -------------------------------------------------------------------------------------------------
ANABRANCH_DEVICE void fence_release_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
ANABRANCH_DEVICE void fence_acquire_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
ANABRANCH_DEVICE void fence_release_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
ANABRANCH_DEVICE void fence_acquire_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// ---- atomics: relaxed; `_device` among the blocks of this GPU, `_system` also with peers --------------------
#define ANABRANCH_PTX_ATOMIC(NAME, SCOPE, OP, TYPE, PTX, REG)                                        \
    ANABRANCH_DEVICE TYPE NAME(TYPE* p, TYPE v) {                                                    \
        TYPE old;                                                                                    \
        asm volatile("atom.relaxed." SCOPE ".global." OP "." PTX " %0, [%1], %2;"                    \
                     : "=" REG(old)                                                                  \
                     : "l"(p), REG(v)                                                                \
                     : "memory");                                                                    \
        return old;                                                                                  \
    }
ANABRANCH_PTX_ATOMIC(fetch_add_device, "gpu", "add", u32, "u32", "r")
ANABRANCH_PTX_ATOMIC(fetch_add_device, "gpu", "add", u64, "u64", "l")
ANABRANCH_PTX_ATOMIC(fetch_min_device, "gpu", "min", u64, "u64", "l")
ANABRANCH_PTX_ATOMIC(fetch_add_system, "sys", "add", u32, "u32", "r")
ANABRANCH_PTX_ATOMIC(fetch_add_system, "sys", "add", u64, "u64", "l")
ANABRANCH_PTX_ATOMIC(fetch_and_system, "sys", "and", u32, "b32", "r")
ANABRANCH_PTX_ATOMIC(fetch_and_system, "sys", "and", u64, "b64", "l")
ANABRANCH_PTX_ATOMIC(fetch_or_system, "sys", "or", u32, "b32", "r")
ANABRANCH_PTX_ATOMIC(fetch_or_system, "sys", "or", u64, "b64", "l")
ANABRANCH_PTX_ATOMIC(fetch_xor_system, "sys", "xor", u32, "b32", "r")
ANABRANCH_PTX_ATOMIC(fetch_xor_system, "sys", "xor", u64, "b64", "l")
ANABRANCH_PTX_ATOMIC(swap_system, "sys", "exch", u32, "b32", "r")
ANABRANCH_PTX_ATOMIC(swap_system, "sys", "exch", u64, "b64", "l")
#undef ANABRANCH_PTX_ATOMIC

ANABRANCH_DEVICE u32 compare_swap_system(u32* p, u32 expected, u32 desired) {
    u32 old;
    asm volatile("atom.relaxed.sys.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "l"(p), "r"(expected), "r"(desired)
                 : "memory");
    return old;
}
ANABRANCH_DEVICE u64 compare_swap_system(u64* p, u64 expected, u64 desired) {
    u64 old;
    asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(expected), "l"(desired)
                 : "memory");
    return old;
}

// ---- waves --------------------------------------------------------------------------------------------------
ANABRANCH_DEVICE u64 ballot(bool predicate) { return __ballot_sync(0xffffffffu, predicate); }
ANABRANCH_DEVICE u32 shuffle(u32 value, u32 lane) { return __shfl_sync(0xffffffffu, value, static_cast<int>(lane)); }
// Nothing to hide: lanes that wait for each other go on by themselves (Volta and later).
template <class Word>
ANABRANCH_DEVICE Word opaque(Word value) { return value; }
// The lanes that are here do it one behind the other, and meet between.
template <class Body>
ANABRANCH_DEVICE void one_by_one(u32 thread, Body body) {
    u32 here = __activemask();
    for (u32 left = here; left != 0; left &= left - 1) {
        if ((left & (0u - left)) == 1u << thread % ANABRANCH_WAVE_SIZE) body();
        __syncwarp(here);
    }
}
ANABRANCH_DEVICE void wave_barrier() { __syncwarp(); }
ANABRANCH_DEVICE void block_barrier() { __syncthreads(); }

// ---- local memory -------------------------------------------------------------------------------------------
template <class T>
ANABRANCH_DEVICE T local_load(u32 byte) {
    return *reinterpret_cast<const T*>(anabranch_local_memory + byte);
}
template <class T>
ANABRANCH_DEVICE void local_store(u32 byte, T value) {
    *reinterpret_cast<T*>(anabranch_local_memory + byte) = value;
}
ANABRANCH_DEVICE u32 local_fetch_add(u32 byte, u32 value) {
    return atomicAdd(reinterpret_cast<u32*>(anabranch_local_memory + byte), value);
}

// ---- f16 ----------------------------------------------------------------------------------------------------
ANABRANCH_DEVICE f32 f16_to_f32(u16 bits) {
    f32 value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
ANABRANCH_DEVICE u16 f32_to_f16(f32 value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

}  // namespace target
