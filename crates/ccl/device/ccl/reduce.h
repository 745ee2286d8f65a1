// The arithmetic of reductions. Every algorithm adds the contributions of ranks in the order of group ranks, in the accumulation type, and
// rounds once at the end: results have the same bits on every rank, for every algorithm and size.
//
//     Partial<Element, Vec16, true> partial = Partial<Element, Vec16, true>::first(reduction, of_rank_0);
//     partial.add(reduction, of_rank_1); ...
//     store(partial.finish(reduction));
//
// Min and Max of floats: any NaN gives the quiet NaN of the type, and -0 is less than +0. Integers wrap; their average is the wrapped sum,
// divided towards zero, as in NCCL. The host refuses operators that are not defined for the type (ReduceOp::check).
#pragma once

#include "ccl/reduce_exact.h"

namespace ccl {

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

}  // namespace ccl
