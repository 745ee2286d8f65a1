// Encodings of rows that combine pushes to their origin. A codec encodes elements to units, one per lane, with one scale per block, and
// decodes them. An encoded row is its units, then its scales, then 0 to 15 bytes of padding that no kernel reads.
//
// Elements are rounded once, to nearest even. In Fp8Block and Fp4Block a block with a NaN or an infinity decodes to
// NaNs, because E2M1 and a scale cannot represent them. Fp8Direct keeps NaNs and saturates infinities.
#pragma once

#include "anabranch/float8.h"
#include "anabranch/prelude.h"

// Half of a unit of 16 bytes: as many elements of four bits as a lane has registers for.
struct alignas(8) Vec8 {
    u32 word[2];
};

// The rows' own type. No code for it: units are copied.
template <class Element>
struct Unchanged {
    typedef Vec16 Unit;
    static constexpr bool COPIES = true;
    static constexpr u32 ELEMENTS = 16 / Element::BYTES;  // of a unit
    static constexpr u32 UNITS = 1;                       // of a block
    static constexpr u32 SCALE_BYTES = 0;                 // of a block
    typedef u8 Scale;

    static ANABRANCH_DEVICE f32 scale_value(u8) { return 1.0f; }
    static ANABRANCH_DEVICE f32 decode(const Vec16& unit, u32 i, f32) {
        if constexpr (Element::BYTES == 4) {
            return Element::to_f32(unit.word[i]);
        } else {
            return Element::to_f32(static_cast<u16>(unit.word[i / 2] >> (i % 2 * 16)));
        }
    }
};

// Eight bits an element, rounded and saturated, no scale.
template <class Float>
struct Direct {
    typedef Vec16 Unit;
    static constexpr bool COPIES = false;
    static constexpr u32 ELEMENTS = 16;
    static constexpr u32 UNITS = 1;
    static constexpr u32 SCALE_BYTES = 0;
    typedef u8 Scale;

    static ANABRANCH_DEVICE u8 scale_of(f32) { return 0; }
    static ANABRANCH_DEVICE f32 factor(f32, u8) { return 1.0f; }
    static ANABRANCH_DEVICE f32 scale_value(u8) { return 1.0f; }
    static ANABRANCH_DEVICE u32 encode(f32 value, f32) { return Float::from_f32_saturating(value); }
    static ANABRANCH_DEVICE f32 decode(const Vec16& unit, u32 i, f32) {
        return Float::to_f32(static_cast<u8>(unit.word[i / 4] >> (i % 4 * 8)));
    }
};

// Eight bits an element; blocks of 128 with the f32 scale largest magnitude / largest value of the type. The magnitude counts
// as 2^-100 where it is smaller, 0 too, so that neither the scale nor its inverse leaves the normal numbers.
template <class Float>
struct Scaled {
    typedef Vec16 Unit;
    static constexpr bool COPIES = false;
    static constexpr u32 ELEMENTS = 16;
    static constexpr u32 UNITS = 8;
    static constexpr u32 SCALE_BYTES = 4;
    typedef u32 Scale;

    static ANABRANCH_DEVICE f32 at_least(f32 magnitude) {
        constexpr u32 SMALLEST = (127u - 100u) << 23;
        return bit_cast<u32>(magnitude) < SMALLEST ? bit_cast<f32>(SMALLEST) : magnitude;
    }
    static ANABRANCH_DEVICE u32 scale_of(f32 magnitude) {
        if (bit_cast<u32>(magnitude) >= 0x7f800000u) return 0x7fc00000u;
        return bit_cast<u32>(at_least(magnitude) / Float::largest());
    }
    static ANABRANCH_DEVICE f32 factor(f32 magnitude, u32) { return Float::largest() / at_least(magnitude); }
    static ANABRANCH_DEVICE f32 scale_value(u32 scale) { return bit_cast<f32>(scale); }
    static ANABRANCH_DEVICE u32 encode(f32 value, f32 factor) { return Float::from_f32_saturating(value * factor); }
    static ANABRANCH_DEVICE f32 decode(const Vec16& unit, u32 i, f32 scale) {
        return Float::to_f32(static_cast<u8>(unit.word[i / 4] >> (i % 4 * 8))) * scale;
    }
};

// MXFP4: four bits an element, the first of a byte in its low half; blocks of 32 with an E8M0 scale.
struct Fp4 {
    typedef Vec8 Unit;
    static constexpr bool COPIES = false;
    static constexpr u32 ELEMENTS = 16;
    static constexpr u32 UNITS = 2;
    static constexpr u32 SCALE_BYTES = 1;
    static constexpr u32 EXPONENT = 2;  // of E2M1's largest power of two
    typedef u8 Scale;

    static ANABRANCH_DEVICE u8 scale_of(f32 magnitude) { return E8M0::of_largest<EXPONENT>(magnitude); }
    static ANABRANCH_DEVICE f32 factor(f32, u8 scale) { return E8M0::inverse(scale); }
    static ANABRANCH_DEVICE f32 scale_value(u8 scale) { return E8M0::to_f32(scale); }
    static ANABRANCH_DEVICE u32 encode(f32 value, f32 factor) { return F4E2m1::from_f32(value * factor); }
    static ANABRANCH_DEVICE f32 decode(const Vec8& unit, u32 i, f32 scale) {
        return F4E2m1::to_f32(static_cast<u8>(unit.word[i / 8] >> (i % 8 * 4))) * scale;
    }
};

// The parameter EP_CODEC: each for rows of any element type.
template <class Element> using None = Unchanged<Element>;
template <class Element> using Fp8Direct = Direct<F8E4m3>;
template <class Element> using Fp8DirectFnuz = Direct<F8E4m3Fnuz>;
template <class Element> using Fp8Block = Scaled<F8E4m3>;
template <class Element> using Fp8BlockFnuz = Scaled<F8E4m3Fnuz>;
template <class Element> using Fp4Block = Fp4;

// Where the scales of a row on the wire begin.
template <class Codec>
static ANABRANCH_DEVICE u64 scales_offset(u32 hidden) {
    return static_cast<u64>(hidden / Codec::ELEMENTS) * sizeof(typename Codec::Unit);
}

// Elements i .. i + Codec::ELEMENTS of a row as f32; `from` is the address of the first, a multiple of 16.
template <class Element, u32 COUNT>
static ANABRANCH_DEVICE void load_elements(const Grid& grid, u64 from, f32 (&value)[COUNT]) {
    constexpr u32 IN_LOAD = 16 / Element::BYTES;
    ANABRANCH_UNROLL
    for (u32 i = 0; i < COUNT / IN_LOAD; ++i) {
        Wide<Element> part = Wide<Element>::unpack(stream_load(grid, reinterpret_cast<const Vec16*>(from) + i));
        ANABRANCH_UNROLL
        for (u32 j = 0; j < IN_LOAD; ++j) value[i * IN_LOAD + j] = part.value[j];
    }
}

// One wave encodes blocks [begin, end) of the row at `from` into the wire row at `to`, whose scales begin at `scales`.
// The lanes of a block share its units, and find its largest magnitude together.
template <class Codec, class Element>
static ANABRANCH_DEVICE void encode_blocks(const Grid& grid, u64 from, u64 to, u64 scales, u32 begin, u32 end) {
    constexpr u32 LANES = Codec::UNITS < WAVE_SIZE ? Codec::UNITS : WAVE_SIZE;
    constexpr u32 EACH = Codec::UNITS / LANES;
    // The whole wave stays, for the shuffles.
    for (u32 first = begin; first < end; first += WAVE_SIZE / LANES) {
        u32 block = first + grid.lane() / LANES;
        bool live = block < end;
        u64 unit = static_cast<u64>(block) * Codec::UNITS + grid.lane() % LANES;
        f32 value[EACH][Codec::ELEMENTS] = {};
        u32 largest = 0;
        ANABRANCH_UNROLL
        for (u32 e = 0; e < EACH; ++e) {
            u64 element = (unit + e * LANES) * Codec::ELEMENTS;
            if (live) load_elements<Element>(grid, from + element * Element::BYTES, value[e]);
            // The order of magnitudes is that of their bits, infinity and then NaNs above all.
            ANABRANCH_UNROLL
            for (u32 i = 0; i < Codec::ELEMENTS; ++i) largest = maximum(largest, bit_cast<u32>(value[e][i]) & 0x7fffffffu);
        }
        if constexpr (Codec::SCALE_BYTES > 0) {
            for (u32 step = 1; step < LANES; step *= 2) largest = maximum(largest, grid.shuffle(largest, grid.lane() ^ step));
        }
        typename Codec::Scale scale = Codec::scale_of(bit_cast<f32>(largest));
        f32 factor = Codec::factor(bit_cast<f32>(largest), scale);
        if (!live) continue;
        ANABRANCH_UNROLL
        for (u32 e = 0; e < EACH; ++e) {
            typedef typename Codec::Unit Unit;
            constexpr u32 BITS = sizeof(Unit) * 8 / Codec::ELEMENTS, IN_WORD = 32 / BITS;
            Unit codes = {};
            ANABRANCH_UNROLL
            for (u32 i = 0; i < Codec::ELEMENTS; ++i) {
                codes.word[i / IN_WORD] |= Codec::encode(value[e][i], factor) << (i % IN_WORD * BITS);
            }
            remote_store(grid, reinterpret_cast<Unit*>(to) + unit + e * LANES, codes);
        }
        if constexpr (Codec::SCALE_BYTES > 0) {
            if (grid.lane() % LANES == 0) remote_store(grid, reinterpret_cast<typename Codec::Scale*>(scales) + block, scale);
        }
    }
}
