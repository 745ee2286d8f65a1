// The arithmetic of reductions. Every algorithm adds the contributions of ranks in the order of group ranks, in the accumulation type, and
// rounds once at the end: results have the same bits on every rank, for every algorithm and size.
//
//     Partial<Element, Vec16, true> partial = Partial<Element, Vec16, true>::first(reduction, of_rank_0);
//     partial.add(reduction, of_rank_1); ...
//     store(partial.finish(reduction));
//
// Min and Max of floats: any NaN gives the quiet NaN of the type, and -0 is less than +0. Integers wrap. The host refuses operators that
// are not defined for the type (ReduceOp::check).
#pragma once

#include "ccl/elements.h"
#include "ccl/words.h"

namespace ccl {

// ReduceOp::torch_value in Rust.
enum ReduceOp : u32 { SUM = 0, AVG = 1, PRODUCT = 2, MIN = 3, MAX = 4, BAND = 5, BOR = 6, BXOR = 7, PREMUL_SUM = 8 };

// `Reduction` is declared in src/device/args.rs.

// The operator with its scalar in the arguments. A scalar in device memory is read once per thread and launch: earlier work of the stream
// has written it, and nothing writes it until the kernel ends.
template <class Element>
ANABRANCH_DEVICE Reduction with_scalar(const Grid& grid, const Reduction& given) {
    Reduction reduction = given;
    if constexpr (Kind<Element>::FAMILY == Family::FLOAT) {
        typedef Accumulation<Element> In;
        if (given.scalar_at != 0) {
            auto bits = heap_load(grid, reinterpret_cast<const typename Element::Raw*>(given.scalar_at));
            reduction.scalar = In::scalar_bits(In::widen(bits));
        }
    }
    return reduction;
}

// The partial result of one unit of memory. SUM_ONLY compiles plain SUM and ignores the operator.
template <class Element, class Raw, bool SUM_ONLY, Family = Kind<Element>::FAMILY>
struct Partial;

template <class Element, class Raw, bool SUM_ONLY>
struct Partial<Element, Raw, SUM_ONLY, Family::FLOAT> {
    static_assert(sizeof(Raw) >= Element::BYTES, "a unit holds at least one element");
    static constexpr u32 COUNT = sizeof(Raw) / Element::BYTES;
    typedef Accumulation<Element> In;
    typedef typename In::Value Value;
    typedef typename Element::Raw Bits;
    Value value[COUNT];

    // The contribution of group rank 0.
    static ANABRANCH_DEVICE Partial first(const Reduction& reduction, Raw raw) {
        Words<Raw> words = Words<Raw>::of(raw);
        Partial partial;
        for (u32 i = 0; i < COUNT; ++i) partial.value[i] = In::widen(words.template get<Bits>(i));
        if constexpr (!SUM_ONLY) {
            if (reduction.op == PREMUL_SUM) {
                for (u32 i = 0; i < COUNT; ++i) partial.value[i] *= In::scalar(reduction.scalar);
            }
        }
        return partial;
    }
    // Adds the contribution of the next group rank.
    ANABRANCH_DEVICE void add(const Reduction& reduction, Raw raw) {
        Partial next = first(reduction, raw);
        if constexpr (!SUM_ONLY) {
            if (reduction.op == PRODUCT) {
                for (u32 i = 0; i < COUNT; ++i) value[i] *= next.value[i];
                return;
            }
            if (reduction.op == MIN) {
                for (u32 i = 0; i < COUNT; ++i) value[i] = least(value[i], next.value[i]);
                return;
            }
            if (reduction.op == MAX) {
                for (u32 i = 0; i < COUNT; ++i) value[i] = greatest(value[i], next.value[i]);
                return;
            }
        }
        for (u32 i = 0; i < COUNT; ++i) value[i] += next.value[i];
    }
    // Rounds once.
    ANABRANCH_DEVICE Raw finish(const Reduction& reduction) const {
        Partial result = *this;
        bool selected = false;
        if constexpr (!SUM_ONLY) {
            if (reduction.op == AVG) {
                for (u32 i = 0; i < COUNT; ++i) result.value[i] /= static_cast<Value>(reduction.size);
            }
            selected = reduction.op == MIN || reduction.op == MAX;
        }
        Words<Raw> words;
        for (u32 i = 0; i < COUNT; ++i) {
            Bits bits = In::narrow(result.value[i]);
            if (selected && result.value[i] != result.value[i]) bits = static_cast<Bits>(QuietNan<Element>::BITS);
            words.put(i, bits);
        }
        return words.raw();
    }

private:
    // NaN if either is NaN: comparisons with it are false.
    static ANABRANCH_DEVICE Value least(Value a, Value b) {
        return a != a || a < b || (a == b && In::is_negative(a)) ? a : b;
    }
    static ANABRANCH_DEVICE Value greatest(Value a, Value b) {
        return a != a || b < a || (a == b && !In::is_negative(a)) ? a : b;
    }
};

template <class Element, class Raw, bool SUM_ONLY>
struct Partial<Element, Raw, SUM_ONLY, Family::INTEGER> {
    static_assert(sizeof(Raw) >= Element::BYTES, "a unit holds at least one element");
    static constexpr u32 COUNT = sizeof(Raw) / Element::BYTES;
    typedef typename Element::Raw Bits;
    Words<Raw> words;

    static ANABRANCH_DEVICE Partial first(const Reduction&, Raw raw) { return Partial{Words<Raw>::of(raw)}; }
    ANABRANCH_DEVICE void add(const Reduction& reduction, Raw raw) {
        Words<Raw> next = Words<Raw>::of(raw);
        if constexpr (!SUM_ONLY) {
            if (reduction.op >= BAND && reduction.op <= BXOR) {
                for (u32 i = 0; i < Words<Raw>::COUNT; ++i) {
                    words.word[i] = bitwise(reduction.op, words.word[i], next.word[i]);
                }
                return;
            }
            if (reduction.op != SUM) {
                Words<Raw> result;
                for (u32 i = 0; i < COUNT; ++i) {
                    result.put(i, each(reduction.op, words.template get<Bits>(i), next.template get<Bits>(i)));
                }
                words = result;
                return;
            }
        }
        if constexpr (sizeof(Bits) == 8) {
            for (u32 i = 0; i < COUNT; ++i) words.put(i, words.template get<u64>(i) + next.template get<u64>(i));
        } else {
            for (u32 i = 0; i < Words<Raw>::COUNT; ++i) words.word[i] = side_by_side(words.word[i], next.word[i]);
        }
    }
    ANABRANCH_DEVICE Raw finish(const Reduction&) const { return words.raw(); }

private:
    // The sums of a word's elements: first without their top bits, so that nothing carries into the next, then these.
    static ANABRANCH_DEVICE u32 side_by_side(u32 a, u32 b) {
        constexpr u32 TOP = sizeof(Bits) == 1 ? 0x80808080u : sizeof(Bits) == 2 ? 0x80008000u : 0;
        return ((a & ~TOP) + (b & ~TOP)) ^ ((a ^ b) & TOP);
    }
    static ANABRANCH_DEVICE u32 bitwise(u32 op, u32 a, u32 b) { return op == BAND ? a & b : op == BOR ? a | b : a ^ b; }
    static ANABRANCH_DEVICE Bits each(u32 op, Bits a, Bits b) {
        // Not in `Bits`: two u16 would multiply as signed ints.
        typedef decltype(Bits(0) + u32(0)) Unsigned;
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
