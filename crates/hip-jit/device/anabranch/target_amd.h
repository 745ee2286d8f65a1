// The primitives for AMD GPUs, as compiler builtins; no HIP header. Every pointer is cast to the global or local
// address space, so that no slow `flat_` access is generated.
//
// Two facts of the code generator decide correctness here (both checked in the generated code of every kernel):
// - clang before 23 drops the wait behind a lone `buffer_wbl2` (LLVM pull request 178316), so a release store may
//   pass the write-back. `fence_release_system` therefore waits itself, and flags are stored relaxed.
// - a block barrier does not drain the stores of other waves on gfx90a, gfx942 and gfx950, so every wave that wrote
//   releases on its own before the barrier (ANABRANCH_HAS_PER_WAVE_RELEASE).
#pragma once

// What kernels with wide blocks declare: 256 registers a thread, and blocks of 256 threads fit twice on a compute unit.
#define ANABRANCH_WIDE_BLOCK 512

#define ANABRANCH_HAS_PER_WAVE_RELEASE 1
#define ANABRANCH_POLL_ACQUIRES 0
#define ANABRANCH_KERNELS_END_RELEASED 0
// Kernels of 1024 threads have 128 vector registers: rows that are held across a wait spill.
#define ANABRANCH_HOLDS_ROWS 0
#define ANABRANCH_GLOBAL __attribute__((address_space(1)))
#define ANABRANCH_LOCAL __attribute__((address_space(3)))

extern __attribute__((shared)) __attribute__((aligned(128))) u8 anabranch_local_memory[];

namespace target {

typedef u32 NativeVec16 __attribute__((ext_vector_type(4)));

ANABRANCH_DEVICE u32 thread_index() { return __builtin_amdgcn_workitem_id_x(); }
ANABRANCH_DEVICE u32 block_index() { return __builtin_amdgcn_workgroup_id_x(); }

// The realtime counter's rate differs by GPU; the host gives it and checks it against what the device reports.
#ifndef ANABRANCH_NS_PER_TICK
#error "the host defines ANABRANCH_NS_PER_TICK"
#endif
ANABRANCH_DEVICE u64 clock_ns() { return __builtin_readsteadycounter() * ANABRANCH_NS_PER_TICK; }

template <class T>
ANABRANCH_DEVICE ANABRANCH_GLOBAL T* global(const void* p) {
    return (ANABRANCH_GLOBAL T*)(reinterpret_cast<u64>(p));
}

// ---- wide access to memory that a peer may touch ------------------------------------------------------------
ANABRANCH_DEVICE Vec16 load16(const void* p) {
    NativeVec16 n = __builtin_nontemporal_load(global<NativeVec16>(p));
    return Vec16{{n.x, n.y, n.z, n.w}};
}
ANABRANCH_DEVICE void store16(void* p, Vec16 v) {
    NativeVec16 n = {v.word[0], v.word[1], v.word[2], v.word[3]};
    __builtin_nontemporal_store(n, global<NativeVec16>(p));
}
template <class T>
ANABRANCH_DEVICE T relaxed_load(const void* p) {
    return __hip_atomic_load(global<T>(p), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
template <class T>
ANABRANCH_DEVICE void relaxed_store(void* p, T v) {
    __hip_atomic_store(global<T>(p), v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
ANABRANCH_DEVICE u64 load8(const void* p) { return relaxed_load<u64>(p); }
ANABRANCH_DEVICE void store8(void* p, u64 v) { relaxed_store<u64>(p, v); }
ANABRANCH_DEVICE u32 load4(const void* p) { return relaxed_load<u32>(p); }
ANABRANCH_DEVICE void store4(void* p, u32 v) { relaxed_store<u32>(p, v); }
ANABRANCH_DEVICE u16 load2(const void* p) { return relaxed_load<u16>(p); }
ANABRANCH_DEVICE void store2(void* p, u16 v) { relaxed_store<u16>(p, v); }
ANABRANCH_DEVICE u8 load1(const void* p) { return relaxed_load<u8>(p); }
ANABRANCH_DEVICE void store1(void* p, u8 v) { relaxed_store<u8>(p, v); }

// Read-only for the whole kernel, read once.
ANABRANCH_DEVICE Vec16 stream_load16(const void* p) { return load16(p); }
ANABRANCH_DEVICE void stream_store16(void* p, Vec16 v) { store16(p, v); }

// ---- flags: 8-byte words, system scope, relaxed; order comes from the fences --------------------------------
ANABRANCH_DEVICE u64 flag_load(const u64* p) { return relaxed_load<u64>(p); }
ANABRANCH_DEVICE void flag_store(u64* p, u64 v) { relaxed_store<u64>(p, v); }

// Two words, each of them single and relaxed as a flag is.
ANABRANCH_DEVICE Packet packet_load(const Packet* p) { return Packet{{load8(&p->half[0]), load8(&p->half[1])}}; }
ANABRANCH_DEVICE void packet_store(Packet* p, Packet v) {
    store8(&p->half[0], v.half[0]);
    store8(&p->half[1], v.half[1]);
}

// The load that a wait polls with: relaxed, as an acquire would invalidate caches at every look; `acquire_after_wait`
// fences once.
ANABRANCH_DEVICE u64 flag_load_for_wait(const u64* p) { return flag_load(p); }

// ---- fences -------------------------------------------------------------------------------------------------
ANABRANCH_DEVICE void drain_stores() {
#if defined(ANABRANCH_AMD_GFX12)
    asm volatile("s_wait_storecnt 0x0\n\ts_wait_loadcnt 0x0" ::: "memory");
#elif defined(ANABRANCH_AMD_GFX9)
    __builtin_amdgcn_s_waitcnt(0);
    asm volatile("" ::: "memory");
#else
    asm volatile("s_waitcnt vmcnt(0)\n\ts_waitcnt_vscnt null, 0x0" ::: "memory");
#endif
}
ANABRANCH_DEVICE void fence_release_system() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
    drain_stores();
}
ANABRANCH_DEVICE void fence_acquire_system() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, ""); }
ANABRANCH_DEVICE void fence_release_device() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    drain_stores();
}
ANABRANCH_DEVICE void fence_acquire_device() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent"); }

// ---- atomics: relaxed; `_device` among the blocks of this GPU, `_system` also with peers --------------------
#define ANABRANCH_HIP_ATOMIC(NAME, SCOPE, BUILTIN, TYPE)                              \
    ANABRANCH_DEVICE TYPE NAME(TYPE* p, TYPE v) {                                     \
        return BUILTIN(global<TYPE>(p), v, __ATOMIC_RELAXED, SCOPE);                  \
    }
ANABRANCH_HIP_ATOMIC(fetch_add_device, __HIP_MEMORY_SCOPE_AGENT, __hip_atomic_fetch_add, u32)
ANABRANCH_HIP_ATOMIC(fetch_add_device, __HIP_MEMORY_SCOPE_AGENT, __hip_atomic_fetch_add, u64)
ANABRANCH_HIP_ATOMIC(fetch_min_device, __HIP_MEMORY_SCOPE_AGENT, __hip_atomic_fetch_min, u64)
ANABRANCH_HIP_ATOMIC(fetch_add_system, __HIP_MEMORY_SCOPE_SYSTEM, __hip_atomic_fetch_add, u32)
ANABRANCH_HIP_ATOMIC(fetch_add_system, __HIP_MEMORY_SCOPE_SYSTEM, __hip_atomic_fetch_add, u64)
ANABRANCH_HIP_ATOMIC(fetch_and_system, __HIP_MEMORY_SCOPE_SYSTEM, __hip_atomic_fetch_and, u32)
ANABRANCH_HIP_ATOMIC(fetch_and_system, __HIP_MEMORY_SCOPE_SYSTEM, __hip_atomic_fetch_and, u64)
ANABRANCH_HIP_ATOMIC(fetch_or_system, __HIP_MEMORY_SCOPE_SYSTEM, __hip_atomic_fetch_or, u32)
ANABRANCH_HIP_ATOMIC(fetch_or_system, __HIP_MEMORY_SCOPE_SYSTEM, __hip_atomic_fetch_or, u64)
ANABRANCH_HIP_ATOMIC(fetch_xor_system, __HIP_MEMORY_SCOPE_SYSTEM, __hip_atomic_fetch_xor, u32)
ANABRANCH_HIP_ATOMIC(fetch_xor_system, __HIP_MEMORY_SCOPE_SYSTEM, __hip_atomic_fetch_xor, u64)
ANABRANCH_HIP_ATOMIC(swap_system, __HIP_MEMORY_SCOPE_SYSTEM, __hip_atomic_exchange, u32)
ANABRANCH_HIP_ATOMIC(swap_system, __HIP_MEMORY_SCOPE_SYSTEM, __hip_atomic_exchange, u64)
#undef ANABRANCH_HIP_ATOMIC

template <class T>
ANABRANCH_DEVICE T compare_swap_system(T* p, T expected, T desired) {
    __hip_atomic_compare_exchange_strong(global<T>(p), &expected, desired, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                         __HIP_MEMORY_SCOPE_SYSTEM);
    return expected;
}

// ---- waves --------------------------------------------------------------------------------------------------
ANABRANCH_DEVICE u64 ballot(bool predicate) {
#if ANABRANCH_WAVE_SIZE == 64
    return __builtin_amdgcn_ballot_w64(predicate);
#else
    return __builtin_amdgcn_ballot_w32(predicate);
#endif
}
ANABRANCH_DEVICE u32 shuffle(u32 value, u32 lane) {
    return static_cast<u32>(__builtin_amdgcn_ds_bpermute(static_cast<int>(lane * 4), static_cast<int>(value)));
}
// The same value, of which the compiler knows nothing any more.
template <class Word>
ANABRANCH_DEVICE Word opaque(Word value) {
    asm volatile("" : "+v"(value));
    return value;
}
// The lanes that are here do it one behind the other. Were `waits` known, the last part of the loop would lie behind it, where all lanes
// come at once.
template <class Body>
ANABRANCH_DEVICE void one_by_one(u32 thread, Body body) {
    for (u32 waits = 1; waits != 0; waits = opaque(waits)) {
        if (static_cast<u32>(__builtin_amdgcn_readfirstlane(thread)) != thread) continue;
        body();
        waits = 0;
    }
}
ANABRANCH_DEVICE void wave_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
ANABRANCH_DEVICE void block_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// ---- local memory -------------------------------------------------------------------------------------------
template <class T>
ANABRANCH_DEVICE ANABRANCH_LOCAL T* local_pointer(u32 byte) {
    return (ANABRANCH_LOCAL T*)((ANABRANCH_LOCAL u8*)anabranch_local_memory + byte);
}
template <class T>
ANABRANCH_DEVICE T local_load(u32 byte) {
    return *local_pointer<T>(byte);
}
template <class T>
ANABRANCH_DEVICE void local_store(u32 byte, T value) {
    *local_pointer<T>(byte) = value;
}
ANABRANCH_DEVICE u32 local_fetch_add(u32 byte, u32 value) {
    return __hip_atomic_fetch_add(local_pointer<u32>(byte), value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// ---- f16 ----------------------------------------------------------------------------------------------------
ANABRANCH_DEVICE f32 f16_to_f32(u16 bits) { return static_cast<f32>(__builtin_bit_cast(_Float16, bits)); }
ANABRANCH_DEVICE u16 f32_to_f16(f32 value) { return __builtin_bit_cast(u16, static_cast<_Float16>(value)); }

}  // namespace target
