// Reductions of types whose results are never rounded: integers and Bool.
#pragma once

#include "ccl/reduction.h"

namespace ccl {

template <class Element, class Raw, bool SUM_ONLY>
struct Partial<Element, Raw, SUM_ONLY, Family::INTEGER> {
    static_assert(sizeof(Raw) >= Element::BYTES, "a unit holds at least one element");
    static constexpr u32 COUNT = sizeof(Raw) / Element::BYTES;
    typedef typename Element::Raw Bits;
    // Not `Bits`: two u16 would multiply as signed ints.
    typedef decltype(Bits(0) + u32(0)) Unsigned;
    Words<Raw> words;

    static ANABRANCH_DEVICE Partial first(const Reduction& reduction, Raw raw) {
        Words<Raw> given = Words<Raw>::of(raw);
        if constexpr (!SUM_ONLY) {
            if (reduction.op == PREMUL_SUM) {
                Unsigned scalar = static_cast<Unsigned>(reduction.scalar);
                Words<Raw> scaled;
                for (u32 i = 0; i < COUNT; ++i) scaled.put(i, static_cast<Bits>(given.template get<Bits>(i) * scalar));
                return Partial{scaled};
            }
        }
        return Partial{given};
    }
    ANABRANCH_DEVICE void add(const Reduction& reduction, Raw raw) {
        Words<Raw> next = first(reduction, raw).words;
        if constexpr (!SUM_ONLY) {
            if (reduction.op >= BAND && reduction.op <= BXOR) {
                for (u32 i = 0; i < Words<Raw>::COUNT; ++i) words.word[i] = bitwise(reduction.op, words.word[i], next.word[i]);
                return;
            }
            if (reduction.op >= PRODUCT && reduction.op <= MAX) {
                Words<Raw> given = words;
                for (u32 i = 0; i < COUNT; ++i) words.put(i, each(reduction.op, given.template get<Bits>(i), next.template get<Bits>(i)));
                return;
            }
        }
        if constexpr (sizeof(Bits) == 8) {
            for (u32 i = 0; i < COUNT; ++i) words.put(i, words.template get<u64>(i) + next.template get<u64>(i));
        } else {
            for (u32 i = 0; i < Words<Raw>::COUNT; ++i) words.word[i] = side_by_side(words.word[i], next.word[i]);
        }
    }
    ANABRANCH_DEVICE Raw finish(const Reduction& reduction) const {
        if constexpr (!SUM_ONLY) {
            if (reduction.op == AVG) {
                Words<Raw> result;
                for (u32 i = 0; i < COUNT; ++i) result.put(i, divided(words.template get<Bits>(i), reduction.size));
                return result.raw();
            }
        }
        return words.raw();
    }

private:
    // Towards zero.
    static ANABRANCH_DEVICE Bits divided(Bits sum, u32 size) {
        bool negative = (sum & Kind<Element>::ORDER) != 0;
        Unsigned quotient = static_cast<Unsigned>(negative ? static_cast<Bits>(0 - sum) : sum) / size;
        return static_cast<Bits>(negative ? 0 - quotient : quotient);
    }
    // The sums of a word's elements: first without their top bits, so that nothing carries into the next, then these.
    static ANABRANCH_DEVICE u32 side_by_side(u32 a, u32 b) {
        constexpr u32 TOP = sizeof(Bits) == 1 ? 0x80808080u : sizeof(Bits) == 2 ? 0x80008000u : 0;
        return ((a & ~TOP) + (b & ~TOP)) ^ ((a ^ b) & TOP);
    }
    static ANABRANCH_DEVICE u32 bitwise(u32 op, u32 a, u32 b) { return op == BAND ? a & b : op == BOR ? a | b : a ^ b; }
    static ANABRANCH_DEVICE Bits each(u32 op, Bits a, Bits b) {
        if (op == PRODUCT) return static_cast<Bits>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
        constexpr Bits ORDER = Kind<Element>::ORDER;
        bool before = static_cast<Bits>(a ^ ORDER) < static_cast<Bits>(b ^ ORDER);
        return before == (op == MIN) ? a : b;
    }
};

// Bytes of 0 and 1, four per word. As in torch, the sum of Bools is their disjunction and the product their conjunction.
template <class Element, class Raw, bool SUM_ONLY>
struct Partial<Element, Raw, SUM_ONLY, Family::BOOLEAN> {
    Words<Raw> words;

    static ANABRANCH_DEVICE Partial first(const Reduction&, Raw raw) {
        Partial partial = {Words<Raw>::of(raw)};
        for (u32 i = 0; i < Words<Raw>::COUNT; ++i) {
            u32 word = partial.words.word[i];
            // The addition carries into a byte's top bit exactly when one of its lower bits is set.
            partial.words.word[i] = ((((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) >> 7) & 0x01010101u;
        }
        return partial;
    }
    ANABRANCH_DEVICE void add(const Reduction& reduction, Raw raw) {
        Partial next = first(reduction, raw);
        for (u32 i = 0; i < Words<Raw>::COUNT; ++i) {
            u32 a = words.word[i], b = next.words.word[i];
            if constexpr (SUM_ONLY) {
                words.word[i] = a | b;
            } else {
                bool both = reduction.op == PRODUCT || reduction.op == MIN || reduction.op == BAND;
                words.word[i] = both ? a & b : reduction.op == BXOR ? a ^ b : a | b;
            }
        }
    }
    ANABRANCH_DEVICE Raw finish(const Reduction&) const { return words.raw(); }
};

}  // namespace ccl
