// The stand-in for an expert in tests and benchmarks: each received row times the sum of its weights for experts of this
// rank, in f32, rounded once. It reads the row and meta windows and writes the combine window.
#include "anabranch/prelude.h"
#include "ep/element_rows.h"
#include "ep/routing.h"

#if !defined(EP_INPUT) || !defined(EP_ELEMENT)
#error "the kernel is compiled for an input element type, and for an output element type: Bf16, F16 or F32"
#endif
typedef EP_INPUT Input;
typedef EP_ELEMENT Output;

ANABRANCH_KERNEL(anabranch_ep_reference_expert, ReferenceExpertArgs, 1024) {
    for (u32 source = 0; source < args.ranks; ++source) {
        Owners owners = Owners::of(args.placement, source);
        u32 rows = private_load(grid, args.counts + source);
        u64 base = first_row_of(grid, source, args.row_stride, args.offsets);
        for (u32 row = grid.grid_wave(); row < rows; row += grid.grid_waves()) {
            const u32* meta = reinterpret_cast<const u32*>(args.meta + (base + row) * args.meta_bytes);
            u32 token = heap_load(grid, meta);
            f32 weight = 0.0f;
            for (u32 k = 0; k < args.top_k; ++k) {
                u32 id = heap_load(grid, meta + 2 + k);
                if (id < args.placement.experts && owners.rank_of(grid, id, token) == args.rank) {
                    weight += bit_cast<f32>(heap_load(grid, meta + 2 + args.top_k + k));
                }
            }
            u64 from = reinterpret_cast<u64>(args.rows) + (base + row) * RowOf<Input>::bytes(args.hidden);
            Output::Raw* to = reinterpret_cast<Output::Raw*>(args.output + (base + row) * args.hidden * Output::BYTES);
            for (u32 i = grid.lane(); i < args.hidden; i += WAVE_SIZE) {
                heap_store(grid, to + i, Output::Raw(Output::from_f32(RowOf<Input>::load(grid, from, i) * weight)));
            }
        }
    }
}
