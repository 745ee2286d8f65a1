// RMSNorm of a row by one block, after a sum over ranks: in the kernel of the sum or in one after it (reduce_norm.hip).
//
//     keep<Element>(grid, norm, row, unit, sum, residual);   for each unit of the row, by any thread
//     grid.block_barrier();
//     finish_row<Element>(grid, norm, row);                  by every thread
//     grid.block_barrier();                                  before the next row
//
// A unit is 8 bytes. The bits of the results depend on the values alone, not on threads, waves or kernels:
// - kept = sum + residual in f32, rounded once to the element type;
// - squares of kept values are added in f32: unit u to partial sum u % PARTIALS, in ascending order; then those of TOGETHER partial sums
//   beside each other in a tree, and these sums likewise;
// - factor = 1 / sqrt(sum / elements + epsilon), by the same arithmetic on every target (`inverse_root`);
// - normed = kept * factor * weight in f32, rounded once to the element type;
// - in 8 bits: the normed value divided by the scale, rounded once, saturating. The scale is given, or, of a group of elements, its largest
//   magnitude, at least LEAST_MAGNITUDE, divided by the largest value of the type.
#pragma once

#include "ccl/row_codes.h"

namespace ccl {

// 1 / sqrt(value) of a normal f32, within some units of the last place: four steps of Newton's method from an estimate by the exponent. Multiplications and
// subtractions alone, so that every target computes the same bits. Zero for infinity; large and finite for zero.
ANABRANCH_DEVICE f32 inverse_root(f32 value) {
    if (bit_cast<u32>(value) == 0x7f800000u) return 0.0f;
    f32 half = value * 0.5f;
    f32 root = bit_cast<f32>(0x5f3759dfu - (bit_cast<u32>(value) >> 1));
    ANABRANCH_UNROLL
    for (u32 i = 0; i < 4; ++i) root = root * (1.5f - half * root * root);
    return root;
}

// Adds the residual, stores the result where the call wants it, and keeps it for the norm.
template <class Element>
ANABRANCH_DEVICE void keep(const Grid& grid, const RowNorm& norm, u64 row, u32 unit, u64 sum, u64 residual) {
    u64 kept = sum;
    if (norm.residual != 0) {
        Words<u64> first = Words<u64>::of(sum), second = Words<u64>::of(residual), both;
        ANABRANCH_UNROLL
        for (u32 i = 0; i < UNIT_BYTES / Element::BYTES; ++i) {
            both.put(i, Element::from_f32(element_of<Element>(first, i) + element_of<Element>(second, i)));
        }
        kept = both.raw();
    }
    if (norm.kept != 0) heap_store(grid, reinterpret_cast<u64*>(place_of(norm, norm.kept, row, unit)), kept);
    grid.local_store<u64>(unit_at(norm, unit), kept);
}

// The sum of 32 values in a tree: i and i + 16, then i and i + 8, and so on. `value(i)` gives value i.
template <class Value>
ANABRANCH_DEVICE f32 sum_of_32(Value value) {
    f32 sums[TOGETHER / 2];
    for (u32 i = 0; i < TOGETHER / 2; ++i) sums[i] = value(i) + value(i + TOGETHER / 2);
    for (u32 step = TOGETHER / 4; step > 0; step /= 2) {
        for (u32 i = 0; i < step; ++i) sums[i] += sums[i + step];
    }
    return sums[0];
}
// The same of the values of 32 lanes beside each other, in each of them. Additions commute, so every lane has the same bits.
ANABRANCH_DEVICE f32 sum_of_lanes(const Grid& grid, f32 value) {
    ANABRANCH_UNROLL
    for (u32 step = TOGETHER / 2; step > 0; step /= 2) value += bit_cast<f32>(grid.shuffle(bit_cast<u32>(value), grid.lane() ^ step));
    return value;
}

// Partial sum `number` of the squares of the kept row.
template <class Element>
ANABRANCH_DEVICE f32 partial_sum(const Grid& grid, const RowNorm& norm, u32 number) {
    f32 sum = 0.0f;
    for (u32 unit = number; unit < norm.units; unit += PARTIALS) {
        Words<u64> kept = Words<u64>::of(grid.local_load<u64>(unit_at(norm, unit)));
        ANABRANCH_UNROLL
        for (u32 i = 0; i < UNIT_BYTES / Element::BYTES; ++i) {
            f32 value = element_of<Element>(kept, i);
            sum += value * value;
        }
    }
    return sum;
}

// The sum of squares of the kept row, in every thread. Contains a block barrier.
template <class Element>
ANABRANCH_DEVICE f32 sum_of_squares(const Grid& grid, const RowNorm& norm) {
    constexpr bool HAS_LANES = WAVE_SIZE >= TOGETHER;
    for (u32 number = grid.thread; number < PARTIALS; number += grid.block_threads) {
        f32 sum = partial_sum<Element>(grid, norm, number);
        if constexpr (HAS_LANES) sum = sum_of_lanes(grid, sum);
        if (!HAS_LANES || number % TOGETHER == 0) {
            grid.local_store<u32>(partial_at(norm, HAS_LANES ? number / TOGETHER : number), bit_cast<u32>(sum));
        }
    }
    grid.block_barrier();
    auto stored = [&](u32 number) { return bit_cast<f32>(grid.local_load<u32>(partial_at(norm, number))); };
    if constexpr (HAS_LANES) return sum_of_lanes(grid, stored(grid.lane() % TOGETHER));
    return sum_of_32([&](u32 of) { return sum_of_32([&](u32 i) { return stored(of * TOGETHER + i); }); });
}

// Norms and stores the kept row. Every thread of the block, after a barrier.
template <class Element>
ANABRANCH_DEVICE void finish_row(const Grid& grid, const RowNorm& norm, u64 row) {
    constexpr u32 COUNT = UNIT_BYTES / Element::BYTES;
    u64 weight[UNITS_AT_ONCE];
    auto load_weights = [&](u32 base) {
        ANABRANCH_UNROLL
        for (u32 k = 0; k < UNITS_AT_ONCE; ++k) {
            weight[k] = load_unit(grid, norm.weight + Batch{base, norm.units}.near(grid, k) * UNIT_BYTES);
        }
    };
    // In flight while the squares are added.
    if (grid.thread < norm.units) load_weights(grid.thread);
    f32 mean = sum_of_squares<Element>(grid, norm) / static_cast<f32>(norm.units * COUNT);
    f32 factor = inverse_root(mean + norm.epsilon);
    for (u32 base = grid.thread; base < norm.units; base += UNITS_AT_ONCE * grid.block_threads) {
        if (base != grid.thread) load_weights(base);
        ANABRANCH_UNROLL
        for (u32 k = 0; k < UNITS_AT_ONCE; ++k) {
            u32 unit = Batch{base, norm.units}.unit(grid, k);
            if (unit >= norm.units) continue;
            Words<u64> kept = Words<u64>::of(grid.local_load<u64>(unit_at(norm, unit))), by = Words<u64>::of(weight[k]), result;
            ANABRANCH_UNROLL
            for (u32 i = 0; i < COUNT; ++i) {
                result.put(i, Element::from_f32(element_of<Element>(kept, i) * factor * element_of<Element>(by, i)));
            }
            if (norm.format == NORM_PLAIN) {
                heap_store(grid, reinterpret_cast<u64*>(place_of(norm, norm.output, row, unit)), result.raw());
            } else {
                grid.local_store<u64>(unit_at(norm, unit), result.raw());
            }
        }
    }
    if (norm.format == NORM_PLAIN) return;
    // The code of 8 bits is long: here it is out of the way of the other one.
    // lint: allow(return-before-barrier): the format is the call's, so that all threads return or none
    grid.block_barrier();
    if (norm.group == 0) {
        store_scaled<Element>(grid, norm, row);
    } else {
        store_groups<Element>(grid, norm, row);
    }
}

}  // namespace ccl
