// Element types as f32: bf16, f16, f32. One rounding, to nearest even.
#pragma once

ANABRANCH_DEVICE f32 bf16_to_f32(u16 bits) { return bit_cast<f32>(static_cast<u32>(bits) << 16); }

ANABRANCH_DEVICE u16 f32_to_bf16(f32 value) {
    u32 word = bit_cast<u32>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<u16>((word >> 16) | 0x0040u);  // stays a quiet NaN
    return static_cast<u16>((word + 0x7fffu + ((word >> 16) & 1)) >> 16);
}

struct Bf16 {
    typedef u16 Raw;
    static constexpr u32 BYTES = 2;
    static ANABRANCH_DEVICE f32 to_f32(u16 bits) { return bf16_to_f32(bits); }
    static ANABRANCH_DEVICE u16 from_f32(f32 value) { return f32_to_bf16(value); }
};

struct F16 {
    typedef u16 Raw;
    static constexpr u32 BYTES = 2;
    static ANABRANCH_DEVICE f32 to_f32(u16 bits) { return target::f16_to_f32(bits); }
    static ANABRANCH_DEVICE u16 from_f32(f32 value) { return target::f32_to_f16(value); }
};

struct F32 {
    typedef u32 Raw;
    static constexpr u32 BYTES = 4;
    static ANABRANCH_DEVICE f32 to_f32(u32 bits) { return bit_cast<f32>(bits); }
    static ANABRANCH_DEVICE u32 from_f32(f32 value) { return bit_cast<u32>(value); }
};

// The elements of 16 bytes as f32, and back. All loops have constant bounds and unroll away.
template <class Element>
struct Wide {
    static constexpr u32 COUNT = 16 / Element::BYTES;
    f32 value[COUNT];

    static ANABRANCH_DEVICE Wide zero() {
        Wide w;
        for (u32 i = 0; i < COUNT; ++i) w.value[i] = 0.0f;
        return w;
    }
    static ANABRANCH_DEVICE Wide unpack(Vec16 v) {
        Wide w;
        if constexpr (Element::BYTES == 4) {
            for (u32 i = 0; i < 4; ++i) w.value[i] = Element::to_f32(v.word[i]);
        } else {
            for (u32 i = 0; i < 4; ++i) {
                w.value[2 * i] = Element::to_f32(static_cast<u16>(v.word[i]));
                w.value[2 * i + 1] = Element::to_f32(static_cast<u16>(v.word[i] >> 16));
            }
        }
        return w;
    }
    ANABRANCH_DEVICE Vec16 pack() const {
        Vec16 v;
        if constexpr (Element::BYTES == 4) {
            for (u32 i = 0; i < 4; ++i) v.word[i] = Element::from_f32(value[i]);
        } else {
            for (u32 i = 0; i < 4; ++i) {
                u32 low = Element::from_f32(value[2 * i]);
                u32 high = Element::from_f32(value[2 * i + 1]);
                v.word[i] = low | (high << 16);
            }
        }
        return v;
    }
    ANABRANCH_DEVICE void add(const Wide& other) {
        for (u32 i = 0; i < COUNT; ++i) value[i] += other.value[i];
    }
    // Multiplies without fusing into a later addition, so that every target rounds alike.
    ANABRANCH_DEVICE void scale(f32 factor) {
        for (u32 i = 0; i < COUNT; ++i) value[i] *= factor;
    }
};
