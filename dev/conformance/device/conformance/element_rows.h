// Rows as elements, of any type that dispatch sends.
#pragma once

#include "anabranch/float8.h"
#include "anabranch/prelude.h"

// Elements of a row: whole bytes each, or two in one, the first in its low half.
template <class Element>
struct RowOf {
    static ANABRANCH_DEVICE u64 bytes(u32 hidden) { return static_cast<u64>(hidden) * Element::BYTES; }
    static ANABRANCH_DEVICE f32 load(const Grid& grid, u64 row, u32 i) {
        return Element::to_f32(heap_load(grid, reinterpret_cast<const typename Element::Raw*>(row) + i));
    }
};
template <>
struct RowOf<F4E2m1> {
    static ANABRANCH_DEVICE u64 bytes(u32 hidden) { return hidden / 2; }
    static ANABRANCH_DEVICE f32 load(const Grid& grid, u64 row, u32 i) {
        return F4E2m1::to_f32(static_cast<u8>(heap_load(grid, reinterpret_cast<const u8*>(row) + i / 2) >> (i % 2 * 4)));
    }
};
