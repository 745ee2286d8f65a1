// Unrounded sums on links, for units of several elements: in the accumulation type for floats, as the elements themselves for types that
// are never rounded.
#pragma once

#include "ccl/reduce.h"

namespace ccl {

template <class Value>
struct BitsOf;
template <>
struct BitsOf<f32> {
    typedef u32 Type;
};
template <>
struct BitsOf<f64> {
    typedef u64 Type;
};

// Load and store of unit `i` of sums at address `at`.
template <class Element, class Raw, bool SUM_ONLY, Family = Kind<Element>::FAMILY>
struct Travelling {
    typedef Partial<Element, Raw, SUM_ONLY> Sum;
    // Bytes of one element.
    static constexpr u32 BYTES = Element::BYTES;
    static ANABRANCH_DEVICE Sum load(const Grid& grid, u64 at, u64 i) {
        return Sum{Words<Raw>::of(remote_load(grid, reinterpret_cast<const Raw*>(at) + i))};
    }
    static ANABRANCH_DEVICE void store(const Grid& grid, u64 at, u64 i, const Sum& sum) {
        remote_store(grid, reinterpret_cast<Raw*>(at) + i, sum.words.raw());
    }
};

template <class Element, class Raw, bool SUM_ONLY>
struct Travelling<Element, Raw, SUM_ONLY, Family::FLOAT> {
    typedef Partial<Element, Raw, SUM_ONLY> Sum;
    typedef typename Accumulation<Element>::Value Value;
    typedef typename BitsOf<Value>::Type Bits;
    static constexpr u32 BYTES = sizeof(Value);
    // As wide as the unit's sums allow.
    static constexpr bool IS_WIDE = Sum::COUNT * sizeof(Value) % 16 == 0;
    static constexpr u32 EACH = 16 / sizeof(Value);

    static ANABRANCH_DEVICE Sum load(const Grid& grid, u64 at, u64 i) {
        Sum sum;
        if constexpr (IS_WIDE) {
            constexpr u32 UNITS = Sum::COUNT / EACH;
            ANABRANCH_UNROLL
            for (u32 unit = 0; unit < UNITS; ++unit) {
                Words<Vec16> words = Words<Vec16>::of(remote_load(grid, reinterpret_cast<const Vec16*>(at) + i * UNITS + unit));
                ANABRANCH_UNROLL
                for (u32 k = 0; k < EACH; ++k) sum.value[unit * EACH + k] = bit_cast<Value>(words.template get<Bits>(k));
            }
        } else {
            const Bits* from = reinterpret_cast<const Bits*>(at) + i * Sum::COUNT;
            for (u32 k = 0; k < Sum::COUNT; ++k) sum.value[k] = bit_cast<Value>(remote_load(grid, from + k));
        }
        return sum;
    }
    static ANABRANCH_DEVICE void store(const Grid& grid, u64 at, u64 i, const Sum& sum) {
        if constexpr (IS_WIDE) {
            constexpr u32 UNITS = Sum::COUNT / EACH;
            ANABRANCH_UNROLL
            for (u32 unit = 0; unit < UNITS; ++unit) {
                Words<Vec16> words;
                ANABRANCH_UNROLL
                for (u32 k = 0; k < EACH; ++k) words.put(k, bit_cast<Bits>(sum.value[unit * EACH + k]));
                remote_store(grid, reinterpret_cast<Vec16*>(at) + i * UNITS + unit, words.raw());
            }
        } else {
            Bits* to = reinterpret_cast<Bits*>(at) + i * Sum::COUNT;
            for (u32 k = 0; k < Sum::COUNT; ++k) remote_store(grid, to + k, bit_cast<Bits>(sum.value[k]));
        }
    }
};

}  // namespace ccl
