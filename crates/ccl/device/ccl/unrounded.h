// The unrounded partial result of one element as bits: of the accumulation type for floats, of the element itself for types that are never
// rounded.
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

template <class Element, Family = Kind<Element>::FAMILY>
struct Unrounded {
    typedef typename Element::Raw Bits;
    typedef Partial<Element, Bits, false> Sum;
    static ANABRANCH_DEVICE Bits bits(const Reduction& reduction, const Sum& sum) { return sum.finish(reduction); }
    static ANABRANCH_DEVICE Sum sum(const Reduction& reduction, Bits bits) { return Sum::first(reduction, bits); }
};

template <class Element>
struct Unrounded<Element, Family::FLOAT> {
    typedef typename Accumulation<Element>::Value Value;
    typedef typename BitsOf<Value>::Type Bits;
    typedef Partial<Element, typename Element::Raw, false> Sum;
    static ANABRANCH_DEVICE Bits bits(const Reduction&, const Sum& sum) { return bit_cast<Bits>(sum.value[0]); }
    static ANABRANCH_DEVICE Sum sum(const Reduction&, Bits bits) {
        Sum sum;
        sum.value[0] = bit_cast<Value>(bits);
        return sum;
    }
};

}  // namespace ccl
