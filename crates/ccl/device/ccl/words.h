// Elements packed in a unit of memory: u8, u16, u32, u64 or Vec16.
#pragma once

#include "anabranch/prelude.h"

namespace ccl {

// A unit of memory as words of four bytes; smaller units are in the low bits of one word.
template <class Raw>
struct Words {
    static constexpr u32 COUNT = sizeof(Raw) < 4 ? 1 : sizeof(Raw) / 4;
    u32 word[COUNT] = {};

    static ANABRANCH_DEVICE Words of(Raw raw) {
        Words w;
        if constexpr (sizeof(Raw) == 16) {
            for (u32 i = 0; i < 4; ++i) w.word[i] = raw.word[i];
        } else if constexpr (sizeof(Raw) == 8) {
            w.word[0] = static_cast<u32>(raw);
            w.word[1] = static_cast<u32>(raw >> 32);
        } else {
            w.word[0] = raw;
        }
        return w;
    }
    ANABRANCH_DEVICE Raw raw() const {
        if constexpr (sizeof(Raw) == 16) {
            return Raw{{word[0], word[1], word[2], word[3]}};
        } else if constexpr (sizeof(Raw) == 8) {
            return word[0] | (static_cast<u64>(word[1]) << 32);
        } else {
            return static_cast<Raw>(word[0]);
        }
    }
    // Element `i` of the unit.
    template <class Bits>
    ANABRANCH_DEVICE Bits get(u32 i) const {
        if constexpr (sizeof(Bits) == 8) {
            return word[2 * i] | (static_cast<u64>(word[2 * i + 1]) << 32);
        } else {
            constexpr u32 EACH = 4 / sizeof(Bits);
            return static_cast<Bits>(word[i / EACH] >> (8 * sizeof(Bits) * (i % EACH)));
        }
    }
    // Sets element `i`, in ascending order: the first element of a word clears it.
    template <class Bits>
    ANABRANCH_DEVICE void put(u32 i, Bits bits) {
        if constexpr (sizeof(Bits) == 8) {
            word[2 * i] = static_cast<u32>(bits);
            word[2 * i + 1] = static_cast<u32>(bits >> 32);
        } else {
            constexpr u32 EACH = 4 / sizeof(Bits);
            u32 shifted = static_cast<u32>(bits) << (8 * sizeof(Bits) * (i % EACH));
            word[i / EACH] = i % EACH == 0 ? shifted : word[i / EACH] | shifted;
        }
    }
};

}  // namespace ccl
