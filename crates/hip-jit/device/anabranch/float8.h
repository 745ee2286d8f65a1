// Floats of eight and four bits as f32, and back, and the scale of eight bits that goes with blocks of them.
//
// E4M3 and E5M2 as in the OCP 8-bit floating point specification (OFP8, revision 1.0), and the "fnuz" forms of MI300: finite, one
// NaN (0x80), no negative zero. Conversions do not saturate: what rounds beyond the largest finite value is a NaN (E4M3, both
// fnuz) or infinity (E5M2), as torch's casts have it; or, where asked for, they do (OFP8's SAT mode). E2M1 and E8M0 as in the OCP microscaling formats (MX,
// version 1.0). What the host has of these types is in the crate `anabranch-elements`; the two agree bit by bit.
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

    static ANABRANCH_DEVICE u8 from_f32(f32 value) { return rounded(value, BEYOND); }

    // The largest finite value in place of all above it, infinity too; a NaN stays one.
    static ANABRANCH_DEVICE u8 from_f32_saturating(f32 value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        // PTX ISA, `cvt`: two floats to a pair of codes, the second to the low byte; a NaN has no sign there. sm_89 has it too, but not with
        // the PTX of CUDA 12.0 and earlier.
        if constexpr (!FNUZ && FRACTION == 3) {
            u16 pair;
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
            return static_cast<u8>(pair | ((bit_cast<u32>(value) >> 24) & 0x80u));
        }
#endif
        return rounded(value, LARGEST);
    }

    // The largest finite value.
    static ANABRANCH_DEVICE f32 largest() { return to_f32(static_cast<u8>(LARGEST)); }

private:
    static ANABRANCH_DEVICE u8 rounded(f32 value, u32 beyond) {
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
        if (code > LARGEST) code = beyond;
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

    // The nearest value, ties to the even code; 6 in place of all above it, and of a NaN.
    static ANABRANCH_DEVICE u8 from_f32(f32 value) {
        u32 word = bit_cast<u32>(value);
        u32 magnitude = word & 0x7fffffffu;
        u32 odd = (magnitude >> 22) & 1u;
        u32 normal = ((magnitude + 0x1fffffu + odd) >> 22) - (126u << 1);
        // Below 1 the adder rounds to even: the last place of 2^22 is a half.
        u32 subnormal = bit_cast<u32>(bit_cast<f32>(magnitude) + 4194304.0f) - 0x4a800000u;
        u32 code = magnitude < 0x3f800000u ? subnormal : normal;
        if (code > 7u || magnitude > 0x7f800000u) code = 7u;
        return static_cast<u8>(code | ((word >> 28) & 8u));
    }
};

// A power of two, from 2^-127 to 2^127, or NaN: the scale of a block.
struct E8M0 {
    typedef u8 Raw;
    static constexpr u32 NOT_A_NUMBER = 0xffu;

    static ANABRANCH_DEVICE f32 to_f32(u8 code) {
        u32 word = static_cast<u32>(code) << 23;
        if (code == 0) word = 0x00400000u;  // 2^-127 is subnormal
        if (code == NOT_A_NUMBER) word = 0x7fc00000u;
        return bit_cast<f32>(word);
    }

    // The scale of a block with this largest magnitude, whose elements have 2^EXPONENT as largest power of two (MX, 6.3):
    // 2^(floor(log2(magnitude)) - EXPONENT), the smallest there is if that is smaller, NaN if the magnitude is not finite.
    template <u32 EXPONENT>
    static ANABRANCH_DEVICE u8 of_largest(f32 magnitude) {
        u32 exponent = (bit_cast<u32>(magnitude) >> 23) & 0xffu;
        if (exponent == 0xffu) return static_cast<u8>(NOT_A_NUMBER);
        return static_cast<u8>(exponent > EXPONENT ? exponent - EXPONENT : 0u);
    }

    // 1 / scale, which is a power of two as well; of NaN, NaN.
    static ANABRANCH_DEVICE f32 inverse(u8 code) {
        u32 word = (254u - code) << 23;
        if (code == 254) word = 0x00400000u;
        if (code == NOT_A_NUMBER) word = 0x7fc00000u;
        return bit_cast<f32>(word);
    }
};
