// Plain types with stated sizes, and the words for functions that run on the device. No vendor header is
// included anywhere: the same source must mean the same under every tool chain.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;
typedef double f64;

static_assert(sizeof(u8) == 1 && sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "integer sizes");
static_assert(sizeof(f32) == 4 && sizeof(f64) == 8 && sizeof(void*) == 8, "float and pointer sizes");

#if defined(ANABRANCH_TARGET_HOST)
#define ANABRANCH_DEVICE inline __attribute__((always_inline))
#elif defined(ANABRANCH_TARGET_NVIDIA)
#define ANABRANCH_DEVICE __device__ __forceinline__
#elif defined(ANABRANCH_TARGET_AMD)
#define ANABRANCH_DEVICE __attribute__((device)) inline __attribute__((always_inline))
#else
#error "one of ANABRANCH_TARGET_HOST, ANABRANCH_TARGET_NVIDIA and ANABRANCH_TARGET_AMD must be defined"
#endif

// In front of a loop: unrolled as far as its bounds are known, or not at all. GCC decides by itself, and warns of the pragma.
#if defined(__clang__) || defined(ANABRANCH_TARGET_NVIDIA)
#define ANABRANCH_UNROLL _Pragma("unroll")
#define ANABRANCH_ROLLED _Pragma("unroll 1")
#else
#define ANABRANCH_UNROLL
#define ANABRANCH_ROLLED
#endif

// The unit that wide copies move: one load or store instruction of one lane.
struct alignas(16) Vec16 {
    u32 word[4];
};

// Data with its flag inside: two words that arrive each as a whole, in any order. Each carries 4 bytes and a 32-bit flag.
struct alignas(16) Packet {
    u64 half[2];
};

template <class To, class From>
ANABRANCH_DEVICE To bit_cast(From value) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
    To result;
#if defined(ANABRANCH_TARGET_NVIDIA)
    memcpy(&result, &value, sizeof(To));
#else
    __builtin_memcpy(&result, &value, sizeof(To));
#endif
    return result;
}

template <class T>
ANABRANCH_DEVICE T minimum(T a, T b) {
    return b < a ? b : a;
}

template <class T>
ANABRANCH_DEVICE T maximum(T a, T b) {
    return a < b ? b : a;
}

ANABRANCH_DEVICE u64 round_up(u64 value, u64 multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

// value / by, which fits 32 bits. A division of 64 bits is a function of its own on GPUs, several times as long as one of 32.
ANABRANCH_DEVICE u32 quotient_of(u64 value, u32 by) {
    if ((value >> 32) == 0) return static_cast<u32>(value) / by;
    return static_cast<u32>(value / by);
}

ANABRANCH_DEVICE u32 count_bits(u64 mask) {
#if defined(ANABRANCH_TARGET_NVIDIA)
    return static_cast<u32>(__popcll(mask));
#else
    return static_cast<u32>(__builtin_popcountll(mask));
#endif
}
