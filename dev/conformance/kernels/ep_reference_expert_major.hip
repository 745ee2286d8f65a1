// The reference experts for expert-major rows, in tests and benchmarks: each row times a factor of its expert, in f32,
// rounded once. The factor is 1 + (e mod 8) / 8 for expert e of the group, so that a row at another expert shows.
#include "anabranch/prelude.h"
#include "conformance/element_rows.h"

#if !defined(EP_INPUT) || !defined(EP_ELEMENT)
#error "the kernel is compiled for an input element type, and for an output element type: Bf16, F16 or F32"
#endif
typedef EP_INPUT Input;
typedef EP_ELEMENT Output;

ANABRANCH_KERNEL(anabranch_ep_reference_expert_major, ReferenceExpertMajorArgs, 1024) {
    for (u32 expert = 0; expert < args.local_experts; ++expert) {
        u32 rows = private_load(grid, args.counts + expert);
        u32 id = private_load(grid, args.expert_ids + expert);
        f32 factor = 1.0f + static_cast<f32>(id % 8) * 0.125f;
        u64 base = static_cast<u64>(expert) * args.capacity;
        for (u32 row = grid.grid_wave(); row < rows; row += grid.grid_waves()) {
            u64 from = reinterpret_cast<u64>(args.rows) + (base + row) * RowOf<Input>::bytes(args.hidden);
            Output::Raw* to = reinterpret_cast<Output::Raw*>(args.output + (base + row) * args.hidden * Output::BYTES);
            for (u32 i = grid.lane(); i < args.hidden; i += WAVE_SIZE) {
                private_store(grid, to + i, Output::Raw(Output::from_f32(RowOf<Input>::load(grid, from, i) * factor)));
            }
        }
    }
}
