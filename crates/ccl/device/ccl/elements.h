// Element types of collectives, named as the variants of DataType in Rust. In memory a value is its bits (Raw). It is reduced in its
// accumulation type: f32 for floats of up to four bytes, f64 for F64, its own bits for all others.
#pragma once

#include "anabranch/float8.h"
#include "anabranch/prelude.h"

namespace ccl {

using ::Bf16;
using ::F16;
using ::F32;
using ::F8E4m3;
using ::F8E4m3Fnuz;
using ::F8E5m2;
using ::F8E5m2Fnuz;

struct F64 {
    typedef u64 Raw;
    static constexpr u32 BYTES = 8;
};

template <class Bits, bool SIGNED>
struct Integer {
    typedef Bits Raw;
    static constexpr u32 BYTES = sizeof(Bits);
};

typedef Integer<u8, true> I8;
typedef Integer<u8, false> U8;
typedef Integer<u16, true> I16;
typedef Integer<u16, false> U16;
typedef Integer<u32, true> I32;
typedef Integer<u32, false> U32;
typedef Integer<u64, true> I64;
typedef Integer<u64, false> U64;

// A byte, true unless zero.
struct Bool {
    typedef u8 Raw;
    static constexpr u32 BYTES = 1;
};

enum class Family : u32 { FLOAT, INTEGER, BOOLEAN };

template <class Element>
struct Kind {
    static constexpr Family FAMILY = Family::FLOAT;
};
template <class Bits, bool SIGNED>
struct Kind<Integer<Bits, SIGNED>> {
    static constexpr Family FAMILY = Family::INTEGER;
    // With the top bit inverted, signed numbers have the order of unsigned ones.
    static constexpr Bits ORDER = SIGNED ? static_cast<Bits>(Bits(1) << (8 * sizeof(Bits) - 1)) : Bits(0);
};
template <>
struct Kind<Bool> {
    static constexpr Family FAMILY = Family::BOOLEAN;
};

// The quiet NaN that Min and Max return.
template <class Element>
struct QuietNan {
    static constexpr u32 BITS = Element::NOT_A_NUMBER;
};
template <>
struct QuietNan<F32> {
    static constexpr u32 BITS = 0x7fc00000u;
};
template <>
struct QuietNan<F16> {
    static constexpr u32 BITS = 0x7e00u;
};
template <>
struct QuietNan<Bf16> {
    static constexpr u32 BITS = 0x7fc0u;
};
template <>
struct QuietNan<F64> {
    static constexpr u64 BITS = 0x7ff8000000000000ull;
};

// The accumulation type of a float, and the conversions: one rounding, to nearest even.
template <class Element>
struct Accumulation {
    typedef f32 Value;
    static ANABRANCH_DEVICE f32 widen(typename Element::Raw bits) { return Element::to_f32(bits); }
    static ANABRANCH_DEVICE typename Element::Raw narrow(f32 value) { return Element::from_f32(value); }
    static ANABRANCH_DEVICE u64 scalar_bits(f32 value) { return bit_cast<u32>(value); }
    static ANABRANCH_DEVICE f32 scalar(u64 bits) { return bit_cast<f32>(static_cast<u32>(bits)); }
    static ANABRANCH_DEVICE bool is_negative(f32 value) { return (bit_cast<u32>(value) >> 31) != 0; }
};
template <>
struct Accumulation<F64> {
    typedef f64 Value;
    static ANABRANCH_DEVICE f64 widen(u64 bits) { return bit_cast<f64>(bits); }
    static ANABRANCH_DEVICE u64 narrow(f64 value) { return bit_cast<u64>(value); }
    static ANABRANCH_DEVICE u64 scalar_bits(f64 value) { return bit_cast<u64>(value); }
    static ANABRANCH_DEVICE f64 scalar(u64 bits) { return bit_cast<f64>(bits); }
    static ANABRANCH_DEVICE bool is_negative(f64 value) { return (bit_cast<u64>(value) >> 63) != 0; }
};

}  // namespace ccl
