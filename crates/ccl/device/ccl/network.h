// The execution of the steps of an internode call by one channel. links.h defines links, src/network/schedule.rs steps.
#pragma once

#include "ccl/links.h"

namespace ccl {

// Every thread: one step for the chunk of `bytes` bytes at offset `first` of a tensor. Waits until all its ports are ready, runs `data`,
// and sets the counters at the other ends. `length` is the bytes of the chunk on links. False after a fault.
template <class Data>
ANABRANCH_DEVICE bool do_step(const Grid& grid, const NetworkArgs& args, const shmem::Context& context, const LinkStep& step,
                              u64 first, u64 length, Data data) {
    const Links& links = args.links;
    u32 ports = step.sources + step.targets;
    auto port_of = [&](u32 i) { return load_port(grid, args, step.first_port + i); };
    for (u32 i = grid.thread; i < ports; i += grid.block_threads) {
        bool ready = ready_port(grid, links, context.wait, port_of(i), i < step.sources, first, i);
        if (!ready) grid.local_fetch_add(LINK_FAULT, 1u);
    }
    acquire_after_wait(grid);
    grid.block_barrier();
    bool well = grid.local_load<u32>(LINK_FAULT) == 0;
    if (well) data();
    shmem::Block::release_for_first(grid, ports);
    for (u32 i = grid.thread; i < ports && well; i += grid.block_threads) {
        LinkPort port = port_of(i);
        if (port.flags == PORT_LINK) count_inside(grid, links, port, i < step.sources, count_at(grid, links, i));
    }
    for (u32 i = 0; i < ports && well; ++i) {
        LinkPort port = port_of(i);
        if ((port.flags & PORT_INTERNODE) == 0) continue;
        u64 at = chunk_at(grid, links, i), count = count_at(grid, links, i);
        well = count_internode(grid, links, context, port, i < step.sources, at, count, length);
    }
    // The next step overwrites the addresses of chunks.
    grid.block_barrier();
    return well;
}

// Every thread: all steps of all chunks of this channel. `length(step, bytes)` is the length of a chunk on a link, `data(step, bytes)`
// moves it.
template <class Length, class Data>
ANABRANCH_DEVICE void run_steps(const Grid& grid, const NetworkArgs& args, Length length, Data data) {
    const Links& links = args.links;
    shmem::Context context = shmem::make_context(grid, links.team, links.operation, 0);
    open_links(grid, links);
    bool well = grid.local_load<u32>(LINK_OPENED) == 0;
    for (u64 time = 0; time < args.times && well; ++time) {
        for (u32 i = 0; i < args.step_count && well; ++i) {
            LinkStep step = load_step(grid, args, i);
            if (time < step.lag) continue;
            u64 chunk = time - step.lag;
            u64 first = (chunk * grid.grid_blocks + grid.block) * args.piece_bytes;
            bool is_token = (step.flags & STEP_IS_TOKEN) != 0 && chunk == 0 && grid.block == 0;
            if (first >= step.bytes && !is_token) continue;
            u64 bytes = minimum(args.piece_bytes, step.bytes - first);
            well = do_step(grid, args, context, step, first, length(step, bytes), [&]() { data(step, bytes); });
        }
    }
    if (well) close_links(grid, links);
}

// Bytes from one piece of a packed chunk to the next: packed_stride in src/network/schedule.rs.
ANABRANCH_DEVICE u64 packed_stride(u64 bytes) { return (bytes + 15) & ~u64(15); }

// Length of a moved chunk on a link.
ANABRANCH_DEVICE u64 moved_length(const LinkStep& step, u64 bytes) {
    return (step.flags & STEP_PACKS) != 0 ? step.sources * packed_stride(bytes) : bytes;
}

// Moves, packs or unpacks `bytes` bytes of each source or target. Short pieces are copied concurrently, one by each wave.
ANABRANCH_DEVICE void move_chunk(const Grid& grid, const Links& links, const LinkStep& step, u64 bytes) {
    if (step.sources == 0) return;
    bool packs = (step.flags & STEP_PACKS) != 0, unpacks = (step.flags & STEP_UNPACKS) != 0;
    u64 stride = packed_stride(bytes);
    u32 copies = packs ? step.sources : step.targets;
    bool by_wave = copies > 1 && bytes < static_cast<u64>(grid.block_threads) * 16;
    u32 wave = by_wave ? grid.wave() : 0, waves = by_wave ? grid.waves_per_block() : 1;
    u32 lane = by_wave ? grid.lane() : grid.thread, lanes = by_wave ? WAVE_SIZE : grid.block_threads;
    for (u32 i = wave; i < copies; i += waves) {
        u64 from = chunk_at(grid, links, packs ? i : 0) + (unpacks ? i * stride : 0);
        u64 to = chunk_at(grid, links, step.sources + (packs ? 0 : i)) + (packs ? i * stride : 0);
        if (to != from) copy_bytes(grid, lane, lanes, to, from, bytes);
    }
}

}  // namespace ccl
