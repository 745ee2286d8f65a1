// The primitives for the host runtime: GCC builtins, and calls back into the machine for everything that other
// lanes take part in. Wide accesses are two 8-byte relaxed atomics, so that a torn row is possible here as it is
// on a GPU.
#pragma once

// What kernels with wide blocks declare: nothing follows from it.
#define ANABRANCH_WIDE_BLOCK 1024

#include "anabranch/host_abi.h"

#if defined(HOST_CUMULATIVE)
#define ANABRANCH_HOST_KERNEL_ABI ANABRANCH_HOST_ABI_CUMULATIVE
#elif defined(HOST_INSTRUMENTED)
#define ANABRANCH_HOST_KERNEL_ABI ANABRANCH_HOST_ABI_INSTRUMENTED
#else
#define ANABRANCH_HOST_KERNEL_ABI ANABRANCH_HOST_ABI
#endif

// As on AMD GPUs, or, under seeds, as on NVIDIA's.
#if defined(HOST_CUMULATIVE)
#define ANABRANCH_HAS_PER_WAVE_RELEASE 0
#define ANABRANCH_POLL_ACQUIRES 1
#define ANABRANCH_KERNELS_END_RELEASED 1
#define ANABRANCH_HOLDS_ROWS 1
#else
#define ANABRANCH_HAS_PER_WAVE_RELEASE 1
#define ANABRANCH_POLL_ACQUIRES 0
#define ANABRANCH_KERNELS_END_RELEASED 0
#define ANABRANCH_HOLDS_ROWS 0
#endif

namespace target {

// ---- wide access to memory that a peer may touch ------------------------------------------------------------
template <class T>
ANABRANCH_DEVICE T relaxed_load(const void* p) {
    return __atomic_load_n(static_cast<const T*>(p), __ATOMIC_RELAXED);
}
template <class T>
ANABRANCH_DEVICE void relaxed_store(void* p, T v) {
    __atomic_store_n(static_cast<T*>(p), v, __ATOMIC_RELAXED);
}
ANABRANCH_DEVICE u64 load8(const void* p) { return relaxed_load<u64>(p); }
ANABRANCH_DEVICE void store8(void* p, u64 v) { relaxed_store<u64>(p, v); }
ANABRANCH_DEVICE u32 load4(const void* p) { return relaxed_load<u32>(p); }
ANABRANCH_DEVICE void store4(void* p, u32 v) { relaxed_store<u32>(p, v); }
ANABRANCH_DEVICE u16 load2(const void* p) { return relaxed_load<u16>(p); }
ANABRANCH_DEVICE void store2(void* p, u16 v) { relaxed_store<u16>(p, v); }
ANABRANCH_DEVICE u8 load1(const void* p) { return relaxed_load<u8>(p); }
ANABRANCH_DEVICE void store1(void* p, u8 v) { relaxed_store<u8>(p, v); }
ANABRANCH_DEVICE Vec16 load16(const void* p) {
    u64 half[2] = {load8(p), load8(static_cast<const u8*>(p) + 8)};
    Vec16 v;
    __builtin_memcpy(&v, half, 16);
    return v;
}
ANABRANCH_DEVICE void store16(void* p, Vec16 v) {
    u64 half[2];
    __builtin_memcpy(half, &v, 16);
    store8(p, half[0]);
    store8(static_cast<u8*>(p) + 8, half[1]);
}

// Read-only for the whole kernel, read once.
ANABRANCH_DEVICE Vec16 stream_load16(const void* p) {
    Vec16 v;
    __builtin_memcpy(&v, p, 16);
    return v;
}
ANABRANCH_DEVICE void stream_store16(void* p, Vec16 v) { __builtin_memcpy(p, &v, 16); }

// ---- flags: 8-byte words, relaxed; order comes from the fences ----------------------------------------------
ANABRANCH_DEVICE u64 flag_load(const u64* p) { return load8(p); }
ANABRANCH_DEVICE void flag_store(u64* p, u64 v) { store8(p, v); }

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
ANABRANCH_DEVICE void fence_release_system() { __atomic_thread_fence(__ATOMIC_RELEASE); }
ANABRANCH_DEVICE void fence_acquire_system() { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
ANABRANCH_DEVICE void fence_release_device() { __atomic_thread_fence(__ATOMIC_RELEASE); }
ANABRANCH_DEVICE void fence_acquire_device() { __atomic_thread_fence(__ATOMIC_ACQUIRE); }

// ---- the compiler -------------------------------------------------------------------------------------------
// Nothing to hide: lanes do not run in lock step.
template <class Word>
ANABRANCH_DEVICE Word opaque(Word value) {
    return value;
}

// ---- atomics: relaxed; `_device` among the blocks of this GPU, `_system` also with peers --------------------
template <class T>
ANABRANCH_DEVICE T fetch_add_device(T* p, T v) {
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
template <class T>
ANABRANCH_DEVICE T fetch_min_device(T* p, T v) {
    T seen = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v < seen && !__atomic_compare_exchange_n(p, &seen, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return seen;
}
template <class T>
ANABRANCH_DEVICE T fetch_add_system(T* p, T v) {
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
template <class T>
ANABRANCH_DEVICE T fetch_and_system(T* p, T v) {
    return __atomic_fetch_and(p, v, __ATOMIC_RELAXED);
}
template <class T>
ANABRANCH_DEVICE T fetch_or_system(T* p, T v) {
    return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}
template <class T>
ANABRANCH_DEVICE T fetch_xor_system(T* p, T v) {
    return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED);
}
template <class T>
ANABRANCH_DEVICE T swap_system(T* p, T v) {
    return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);
}
template <class T>
ANABRANCH_DEVICE T compare_swap_system(T* p, T expected, T desired) {
    __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

// ---- f16, in integers: not every C++ compiler has the type --------------------------------------------------
ANABRANCH_DEVICE f32 f16_to_f32(u16 bits) {
    u32 sign = static_cast<u32>(bits & 0x8000u) << 16;
    u32 exponent = (bits >> 10) & 0x1fu;
    u32 fraction = bits & 0x3ffu;
    u32 word;
    if (exponent == 0x1f) {
        word = sign | 0x7f800000u | (fraction << 13);
    } else if (exponent != 0) {
        word = sign | ((exponent + 112) << 23) | (fraction << 13);
    } else {
        f32 value = static_cast<f32>(fraction) * 0x1p-24f;
        __builtin_memcpy(&word, &value, 4);
        word |= sign;
    }
    f32 value;
    __builtin_memcpy(&value, &word, 4);
    return value;
}
ANABRANCH_DEVICE u16 f32_to_f16(f32 value) {
    u32 word;
    __builtin_memcpy(&word, &value, 4);
    u32 sign = (word >> 16) & 0x8000u;
    u32 magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<u16>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<u16>(sign | 0x7c00u);  // 65520 and above round to infinity
    if (magnitude < 0x38800000u) {
        // Below the smallest normal number: adding 0.5 aligns the fraction, and the adder rounds to even.
        f32 positive;
        __builtin_memcpy(&positive, &magnitude, 4);
        positive += 0.5f;
        u32 aligned;
        __builtin_memcpy(&aligned, &positive, 4);
        return static_cast<u16>(sign | (aligned - 0x3f000000u));
    }
    u32 odd = (magnitude >> 13) & 1;
    return static_cast<u16>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

}  // namespace target
