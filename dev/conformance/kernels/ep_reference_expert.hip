// The reference expert of tests and benchmarks: each received row times the sum of its weights for experts of this rank, in f32, rounded
// once. It reads the row and meta windows and writes the combine window.
#include "anabranch/prelude.h"
#include "conformance/element_rows.h"

#if !defined(EP_INPUT) || !defined(EP_ELEMENT)
#error "the kernel is compiled for an input element type, and for an output element type: Bf16, F16 or F32"
#endif
typedef EP_INPUT Input;
typedef EP_ELEMENT Output;

// The rank to which token `token` of rank `source` goes for an expert, by the definition.
static ANABRANCH_DEVICE u32 owner_of(const Grid& grid, const ReferenceExpertArgs& args, u32 expert, u32 source, u32 token) {
    if (args.starts == nullptr) return static_cast<u32>((static_cast<u64>(expert + 1) * args.ranks - 1) / args.experts);
    u32 first = private_load(grid, args.starts + expert);
    u32 replicas = private_load(grid, args.starts + expert + 1) - first;
    return private_load(grid, args.owners + first + (source + token) % replicas);
}

ANABRANCH_KERNEL(anabranch_ep_reference_expert, ReferenceExpertArgs, 1024) {
    for (u32 source = 0; source < args.ranks; ++source) {
        u32 rows = private_load(grid, args.counts + source);
        // Slotted, a source owns `row_stride` rows; compact, its rows follow those of the ranks before it.
        u64 base = args.row_stride != 0 ? static_cast<u64>(source) * args.row_stride : private_load(grid, args.offsets + source);
        for (u32 row = grid.grid_wave(); row < rows; row += grid.grid_waves()) {
            const u32* meta = reinterpret_cast<const u32*>(args.meta + (base + row) * args.meta_bytes);
            u32 token = heap_load(grid, meta);
            f32 weight = 0.0f;
            for (u32 k = 0; k < args.top_k; ++k) {
                u32 id = heap_load(grid, meta + 2 + k);
                if (id < args.experts && owner_of(grid, args, id, source, token) == args.rank) {
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
