// Floats of eight and four bits as f32, and back.
//
// E4M3 and E5M2 as in the OCP 8-bit floating point specification (OFP8, revision 1.0), and the "fnuz" forms of MI300: finite, one
// NaN (0x80), no negative zero. Conversions do not saturate: what rounds beyond the largest finite value is a NaN (E4M3, both
// fnuz) or infinity (E5M2), as torch's casts have it. E2M1 as in the OCP microscaling formats (MX, version 1.0): neither.
#pragma once

#include "anabranch/prelude.h"

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

// Two in a byte, the first in its low half.
struct F4E2m1 {
    typedef u8 Raw;
    static constexpr u32 BITS = 4;

    static ANABRANCH_DEVICE f32 to_f32(u8 code) {
        u32 sign = static_cast<u32>(code & 8u) << 28;
        // As for eight bits: exponent and fraction in the places of an f32's, and a bias of 1.
        f32 scaled = bit_cast<f32>(static_cast<u32>(code & 7u) << 22) * bit_cast<f32>((254u - 1u) << 23);
        return bit_cast<f32>(bit_cast<u32>(scaled) | sign);
    }
};
