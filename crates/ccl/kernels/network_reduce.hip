// Internode reductions, for one element type: all_reduce, reduce_scatter and reduce, as lists of steps (ccl/network.h). A step that reduces
// adds its sources in list order, which is group-rank order. The first source may be the unrounded sum of all previous members.
#include "ccl/network.h"
#include "ccl/travelling.h"

#ifndef CCL_ELEMENT
#error "the kernel is compiled for an element type"
#endif

namespace ccl {

typedef CCL_ELEMENT Element;

// Sources whose units are loaded before any is added.
static constexpr u32 AT_ONCE = 4;

// Reduces `count` units from byte `first` of the chunk on, in bytes of tensors.
template <class Raw, bool SUM_ONLY>
static ANABRANCH_DEVICE void reduce_units(const Grid& grid, const NetworkArgs& args, const Reduction& reduction, const LinkStep& step,
                                          u64 first, u64 count) {
    typedef Travelling<Element, Raw, SUM_ONLY> Unrounded;
    typedef Partial<Element, Raw, SUM_ONLY> Sum;
    const Links& links = args.links;
    bool takes = (step.flags & STEP_TAKES_UNROUNDED) != 0, gives = (step.flags & STEP_GIVES_UNROUNDED) != 0;
    u64 first_unrounded = first / Element::BYTES * Unrounded::BYTES;
    for (u64 i = grid.thread; i < count; i += grid.block_threads) {
        Sum sum;
        if (takes) sum = Unrounded::load(grid, chunk_at(grid, links, 0) + first_unrounded, i);
        for (u32 base = takes ? 1 : 0; base < step.sources; base += AT_ONCE) {
            Raw unit[AT_ONCE];
            ANABRANCH_UNROLL
            for (u32 k = 0; k < AT_ONCE; ++k) {
                if (base + k >= step.sources) continue;
                unit[k] = remote_load(grid, reinterpret_cast<const Raw*>(chunk_at(grid, links, base + k) + first) + i);
            }
            ANABRANCH_UNROLL
            for (u32 k = 0; k < AT_ONCE; ++k) {
                if (base + k >= step.sources) continue;
                if (base + k == 0) {
                    sum = Sum::first(reduction, unit[k]);
                } else {
                    sum.add(reduction, unit[k]);
                }
            }
        }
        for (u32 k = 0; k < step.targets; ++k) {
            u64 to = chunk_at(grid, links, step.sources + k);
            if (gives) {
                Unrounded::store(grid, to + first_unrounded, i, sum);
            } else {
                remote_store(grid, reinterpret_cast<Raw*>(to + first) + i, sum.finish(reduction));
            }
        }
    }
}

template <bool SUM_ONLY>
static ANABRANCH_DEVICE void reduce_chunk(const Grid& grid, const NetworkArgs& args, const LinkStep& step, u64 bytes) {
    Reduction reduction = SUM_ONLY ? args.reduction : with_scalar<Element>(grid, args.reduction);
    u64 places = 0;
    for (u32 i = 0; i < step.sources + step.targets; ++i) places |= chunk_at(grid, args.links, i);
    u64 wide = places % 16 == 0 ? bytes & ~u64(15) : 0;
    if (wide != 0) reduce_units<Vec16, SUM_ONLY>(grid, args, reduction, step, 0, wide / 16);
    if (wide == bytes) return;
    reduce_units<typename Element::Raw, SUM_ONLY>(grid, args, reduction, step, wide, (bytes - wide) / Element::BYTES);
}

}  // namespace ccl

ANABRANCH_KERNEL(anabranch_ccl_network_reduce, NetworkArgs, 512) {
    auto length = [](const LinkStep& step, u64 bytes) {
        typedef ccl::Travelling<ccl::Element, ccl::Element::Raw, false> Unrounded;
        bool gives = (step.flags & ccl::STEP_GIVES_UNROUNDED) != 0;
        return gives ? bytes / ccl::Element::BYTES * Unrounded::BYTES : bytes;
    };
    ccl::run_steps(grid, args, length, [&](const LinkStep& step, u64 bytes) {
        if ((step.flags & ccl::STEP_REDUCES) == 0) return ccl::move_chunk(grid, args.links, step, bytes);
        if (args.reduction.op == ccl::SUM) return ccl::reduce_chunk<true>(grid, args, step, bytes);
        ccl::reduce_chunk<false>(grid, args, step, bytes);
    });
}
