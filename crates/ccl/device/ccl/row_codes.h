// Rows in local memory (row_norm.h), and their values in 8 bits with scales.
#pragma once

#include "ccl/elements.h"
#include "ccl/words.h"

namespace ccl {

// As in src/device/norm.rs.
enum NormOutput : u32 { NORM_PLAIN = 0, NORM_E4M3 = 1, NORM_E4M3_FNUZ = 2 };
static constexpr u32 PARTIALS = 1024;
// Partial sums that are added first: those of so many threads beside each other.
static constexpr u32 TOGETHER = 32;
static constexpr f32 LEAST_MAGNITUDE = 1e-10f;
// Units of a thread whose loads are in flight at once.
static constexpr u32 UNITS_AT_ONCE = 2;
static constexpr u32 UNIT_BYTES = 8;

// Local memory: the partial sums, then the row.
ANABRANCH_DEVICE u32 partial_at(const RowNorm& norm, u32 number) { return norm.local + number * 4; }
ANABRANCH_DEVICE u32 unit_at(const RowNorm& norm, u32 unit) { return norm.local + PARTIALS * 4 + unit * UNIT_BYTES; }

// The units that a thread handles at once: `base`, and those that many threads further. Loads are of `near` units, so that they need no
// branch: the first one stands for those beyond the end.
struct Batch {
    u32 base;
    u32 end;
    ANABRANCH_DEVICE u32 unit(const Grid& grid, u32 k) const { return base + k * grid.block_threads; }
    ANABRANCH_DEVICE u32 near(const Grid& grid, u32 k) const { return unit(grid, k) < end ? unit(grid, k) : base; }
};

ANABRANCH_DEVICE u64 place_of(const RowNorm& norm, u64 buffer, u64 row, u32 unit) {
    return buffer + (row * norm.units + unit) * UNIT_BYTES;
}
ANABRANCH_DEVICE u64 load_unit(const Grid& grid, u64 address) { return heap_load(grid, reinterpret_cast<const u64*>(address)); }

// The residual of a unit; unused where there is none.
ANABRANCH_DEVICE u64 residual_of(const Grid& grid, const RowNorm& norm, u64 row, u32 unit) {
    return norm.residual == 0 ? 0 : load_unit(grid, place_of(norm, norm.residual, row, unit));
}

// Element i of a unit.
template <class Element>
ANABRANCH_DEVICE f32 element_of(const Words<u64>& unit, u32 i) {
    return Element::to_f32(unit.template get<typename Element::Raw>(i));
}

// Stores a unit in 8 bits, an element a byte.
template <class Element>
ANABRANCH_DEVICE void store_codes(const Grid& grid, const RowNorm& norm, u64 row, u32 unit, u64 normed, f32 scale) {
    constexpr u32 COUNT = UNIT_BYTES / Element::BYTES;
    Words<u64> words = Words<u64>::of(normed);
    u32 codes = 0;
    ANABRANCH_UNROLL
    for (u32 i = 0; i < COUNT; ++i) {
        f32 value = element_of<Element>(words, i) / scale;
        u32 code = norm.format == NORM_E4M3 ? F8E4m3::from_f32_saturating(value) : F8E4m3Fnuz::from_f32_saturating(value);
        codes |= code << (8 * i);
    }
    u64 to = norm.output + (row * norm.units + unit) * COUNT;
    if constexpr (COUNT == 4) {
        heap_store(grid, reinterpret_cast<u32*>(to), codes);
    } else {
        heap_store(grid, reinterpret_cast<u16*>(to), static_cast<u16>(codes));
    }
}

// Stores the normed row, which is in local memory, in 8 bits with the scale of the call.
template <class Element>
ANABRANCH_DEVICE void store_scaled(const Grid& grid, const RowNorm& norm, u64 row) {
    f32 scale = bit_cast<f32>(heap_load(grid, reinterpret_cast<const u32*>(norm.scales)));
    ANABRANCH_ROLLED
    for (u32 unit = grid.thread; unit < norm.units; unit += grid.block_threads) {
        store_codes<Element>(grid, norm, row, unit, grid.local_load<u64>(unit_at(norm, unit)), scale);
    }
}

// Stores the normed row, which is in local memory, in 8 bits with a scale for each group of elements. A wave has a group at a time.
template <class Element>
ANABRANCH_DEVICE void store_groups(const Grid& grid, const RowNorm& norm, u64 row) {
    constexpr u32 COUNT = UNIT_BYTES / Element::BYTES;
    f32 largest = norm.format == NORM_E4M3 ? F8E4m3::largest() : F8E4m3Fnuz::largest();
    u32 group_units = norm.group / COUNT;
    for (u32 first = grid.wave() * group_units, group = grid.wave(); first < norm.units;
         first += grid.waves_per_block() * group_units, group += grid.waves_per_block()) {
        // As bits, magnitudes have the order of their values, and a NaN is the largest.
        u32 most = bit_cast<u32>(LEAST_MAGNITUDE);
        for (u32 unit = first + grid.lane(); unit < first + group_units; unit += WAVE_SIZE) {
            Words<u64> words = Words<u64>::of(grid.local_load<u64>(unit_at(norm, unit)));
            ANABRANCH_UNROLL
            for (u32 i = 0; i < COUNT; ++i) {
                most = maximum(most, bit_cast<u32>(element_of<Element>(words, i)) & 0x7fffffffu);
            }
        }
        for (u32 step = WAVE_SIZE / 2; step > 0; step /= 2) most = maximum(most, grid.shuffle(most, grid.lane() ^ step));
        f32 scale = bit_cast<f32>(most) / largest;
        if (grid.lane() == 0) {
            u64 place = row * norm.scale_row_stride + group * norm.scale_group_stride;
            heap_store(grid, reinterpret_cast<u32*>(norm.scales) + place, bit_cast<u32>(scale));
        }
        ANABRANCH_ROLLED
        for (u32 unit = first + grid.lane(); unit < first + group_units; unit += WAVE_SIZE) {
            store_codes<Element>(grid, norm, row, unit, grid.local_load<u64>(unit_at(norm, unit)), scale);
        }
    }
}

}  // namespace ccl
