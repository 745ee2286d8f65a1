// Fills the weight window with the dispatched weights of every received row. The experts may overwrite them.
//
// Why no peer reads the window any more. The kernel runs after a dispatch of epoch e + 1 on its stream, which has seen the dispatch
// flag e + 1 of every rank; each rank sent it after its combine e had ended, so all pulls of epoch e are over. Masked ranks have sent no
// rows, so none of their weights is written (`ep/mask.h`).
#include "anabranch/prelude.h"
#include "ep/received_rows.h"

// A wave a row.
ANABRANCH_KERNEL(anabranch_ep_fill_weights, FillWeightsArgs, 1024) {
    u32 total = total_rows(grid, args.received);
    u32 top_k = args.received.top_k;
    for (u32 number = grid.grid_wave(); number < total; number += grid.grid_waves()) {
        RowCursor cursor = RowCursor::at(grid, SlotOffsets{args.received.offsets}, args.received.ranks, number);
        u64 row = cursor.window_row(args.received, number);
        const u32* weights = meta_record(args.received, row) + 2 + top_k;
        for (u32 k = grid.lane(); k < top_k; k += WAVE_SIZE) {
            heap_store(grid, reinterpret_cast<u32*>(args.window) + row * top_k + k, heap_load(grid, weights + k));
        }
    }
}
