// Operators of reductions, and the partial result of one unit of memory, which ccl/reduce.h and ccl/reduce_exact.h define.
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
    } else if constexpr (Kind<Element>::FAMILY == Family::INTEGER) {
        if (given.scalar_at != 0) reduction.scalar = heap_load(grid, reinterpret_cast<const typename Element::Raw*>(given.scalar_at));
    }
    return reduction;
}

// The partial result of one unit of memory. SUM_ONLY compiles plain SUM and ignores the operator.
template <class Element, class Raw, bool SUM_ONLY, Family = Kind<Element>::FAMILY>
struct Partial;

}  // namespace ccl
