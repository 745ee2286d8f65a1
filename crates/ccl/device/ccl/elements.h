// Element types of collectives, named as the variants of DataType in Rust. A value crosses memory as its bits (Raw) and is
// reduced in its accumulation type: f32 for floats of up to four bytes, f64 for F64, its own bits for the rest.
//
// 8-bit floats: E4M3 and E5M2 as in the OCP 8-bit floating point specification (OFP8, revision 1.0), and the "fnuz" forms of
// MI300: finite, one NaN (0x80), no negative zero. Conversions do not saturate: what rounds beyond the largest finite value
// is a NaN (E4M3, both fnuz) or infinity (E5M2), as torch's casts have it.
#pragma once

#include "anabranch/prelude.h"

namespace ccl {

using ::Bf16;
using ::F16;
using ::F32;

struct F64 {
    typedef u64 Raw;
    static constexpr u32 BYTES = 8;
};

// LARGEST is the code of the largest finite magnitude, BEYOND the code of all above it.
template <u32 FRACTION, u32 BIAS, u32 LARGEST, u32 BEYOND, bool FNUZ>
struct Float8 {
    typedef u8 Raw;
    static constexpr u32 BYTES = 1;
    static constexpr u32 NOT_A_NUMBER = FNUZ ? 0x80u : 0x7fu;

    static ANABRANCH_DEVICE f32 to_f32(u8 code) {
        u32 sign = static_cast<u32>(code & 0x80u) << 24;
        u32 magnitude = code & 0x7fu;
        // The fields in the places of an f32's, whose bias is 127: a product with a power of two moves the exponent, and is
        // exact for subnormal codes too.
        f32 scaled = bit_cast<f32>(magnitude << (23 - FRACTION)) * bit_cast<f32>((254 - BIAS) << 23);
        u32 word = bit_cast<u32>(scaled) | sign;
        if constexpr (FNUZ) {
            if (code == NOT_A_NUMBER) word = 0x7fc00000u;
        } else {
            if (magnitude > LARGEST) word = sign | 0x7fc00000u;
            if (magnitude == BEYOND && BEYOND != NOT_A_NUMBER) word = sign | 0x7f800000u;
        }
        return bit_cast<f32>(word);
    }

    static ANABRANCH_DEVICE u8 from_f32(f32 value) {
        constexpr u32 SHIFT = 23 - FRACTION;
        constexpr u32 SMALLEST_NORMAL = (128 - BIAS) << 23;
        constexpr u32 ALIGNER = (151 - BIAS - FRACTION) << 23;  // its last place is the smallest subnormal
        u32 word = bit_cast<u32>(value);
        u32 sign = (word >> 24) & 0x80u;
        u32 magnitude = word & 0x7fffffffu;
        u32 odd = (magnitude >> SHIFT) & 1u;
        u32 normal = ((magnitude + (1u << (SHIFT - 1)) - 1 + odd) >> SHIFT) - ((127 - BIAS) << FRACTION);
        // The adder rounds to even.
        u32 subnormal = bit_cast<u32>(bit_cast<f32>(magnitude) + bit_cast<f32>(ALIGNER)) - ALIGNER;
        u32 code = magnitude < SMALLEST_NORMAL ? subnormal : normal;
        if (code > LARGEST) code = BEYOND;
        if (magnitude > 0x7f800000u) code = NOT_A_NUMBER;
        if (FNUZ && code == 0) sign = 0;
        return static_cast<u8>(code | sign);
    }
};

typedef Float8<3, 7, 0x7e, 0x7f, false> F8E4m3;
typedef Float8<2, 15, 0x7b, 0x7c, false> F8E5m2;
typedef Float8<3, 8, 0x7f, 0x80, true> F8E4m3Fnuz;
typedef Float8<2, 16, 0x7f, 0x80, true> F8E5m2Fnuz;

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

// A byte; whatever is not zero is true.
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
    // With the top bit turned over, signed numbers are in the order of unsigned ones.
    static constexpr Bits ORDER = SIGNED ? static_cast<Bits>(Bits(1) << (8 * sizeof(Bits) - 1)) : Bits(0);
};
template <>
struct Kind<Bool> {
    static constexpr Family FAMILY = Family::BOOLEAN;
};

// The quiet NaN that Min and Max give.
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

// A float's accumulation type, and the way there and back: one rounding, to nearest even.
template <class Element>
struct Accumulation {
    typedef f32 Value;
    static ANABRANCH_DEVICE f32 widen(typename Element::Raw bits) { return Element::to_f32(bits); }
    static ANABRANCH_DEVICE typename Element::Raw narrow(f32 value) { return Element::from_f32(value); }
    static ANABRANCH_DEVICE f32 scalar(u64 bits) { return bit_cast<f32>(static_cast<u32>(bits)); }
    static ANABRANCH_DEVICE bool is_negative(f32 value) { return (bit_cast<u32>(value) >> 31) != 0; }
};
template <>
struct Accumulation<F64> {
    typedef f64 Value;
    static ANABRANCH_DEVICE f64 widen(u64 bits) { return bit_cast<f64>(bits); }
    static ANABRANCH_DEVICE u64 narrow(f64 value) { return bit_cast<u64>(value); }
    static ANABRANCH_DEVICE f64 scalar(u64 bits) { return bit_cast<f64>(bits); }
    static ANABRANCH_DEVICE bool is_negative(f64 value) { return (bit_cast<u64>(value) >> 63) != 0; }
};

}  // namespace ccl
