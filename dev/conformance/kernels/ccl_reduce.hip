// The device arithmetic of one element type, put to the test: contributions lie side by side in this rank's own memory, and
// each thread reduces units of the asked width.
#include "anabranch/prelude.h"
#include "ccl/reduce.h"

#if !defined(CCL_ELEMENT)
#error "the kernel is compiled for an element type: a struct of ccl/elements.h"
#endif
typedef ccl::CCL_ELEMENT Element;

template <class Raw, bool SUM_ONLY>
static ANABRANCH_DEVICE void reduce_units(const Grid& grid, const ConformanceReduceArgs& args) {
    Reduction reduction = {args.op, args.size, args.scalar, 0};
    u64 units = args.bytes / sizeof(Raw);
    u64 step = static_cast<u64>(grid.grid_blocks) * grid.block_threads;
    for (u64 unit = static_cast<u64>(grid.block) * grid.block_threads + grid.thread; unit < units; unit += step) {
        const u8* from = args.inputs + unit * sizeof(Raw);
        typedef ccl::Partial<Element, Raw, SUM_ONLY> Partial;
        Partial partial = Partial::first(reduction, private_load(grid, reinterpret_cast<const Raw*>(from)));
        for (u32 rank = 1; rank < args.size; ++rank) {
            from += args.stride;
            partial.add(reduction, private_load(grid, reinterpret_cast<const Raw*>(from)));
        }
        private_store(grid, reinterpret_cast<Raw*>(args.output + unit * sizeof(Raw)), partial.finish(reduction));
    }
}

template <class Raw>
static ANABRANCH_DEVICE void reduce_width(const Grid& grid, const ConformanceReduceArgs& args) {
    if constexpr (sizeof(Raw) >= Element::BYTES) {
        if (args.sum_only != 0) {
            reduce_units<Raw, true>(grid, args);
        } else {
            reduce_units<Raw, false>(grid, args);
        }
    }
}

ANABRANCH_KERNEL(anabranch_ccl_conformance_reduce, ConformanceReduceArgs, 256) {
    if (args.unit_bytes == 1) {
        reduce_width<u8>(grid, args);
    } else if (args.unit_bytes == 2) {
        reduce_width<u16>(grid, args);
    } else if (args.unit_bytes == 4) {
        reduce_width<u32>(grid, args);
    } else if (args.unit_bytes == 8) {
        reduce_width<u64>(grid, args);
    } else {
        reduce_width<Vec16>(grid, args);
    }
}

// One rounding of each value of the accumulation type, and the element's value again.
ANABRANCH_KERNEL(anabranch_ccl_conformance_convert, ConformanceConvertArgs, 256) {
    if constexpr (ccl::Kind<Element>::FAMILY == ccl::Family::FLOAT) {
        typedef ccl::Accumulation<Element> In;
        typedef typename In::Value Value;
        u64 step = static_cast<u64>(grid.grid_blocks) * grid.block_threads;
        for (u64 i = static_cast<u64>(grid.block) * grid.block_threads + grid.thread; i < args.count; i += step) {
            Value value = private_load(grid, reinterpret_cast<const Value*>(args.values) + i);
            Element::Raw bits = In::narrow(value);
            private_store(grid, reinterpret_cast<Element::Raw*>(args.elements) + i, bits);
            private_store(grid, reinterpret_cast<Value*>(args.widened) + i, In::widen(bits));
        }
    }
}
