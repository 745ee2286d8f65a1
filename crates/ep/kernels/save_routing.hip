// Saves the routing of a dispatch for `dispatch_replay.hip`: the send map, the number of copies
// sent to and received from each rank, and the ids and weights of the tokens. Waits for no peer.
//
// The caller may have overwritten its ids and weights. They are read back from the meta record of each token's first copy, at its
// destination, where this rank wrote them, so the saved ones are those that were sent. A token whose copies were all dropped
// has no record, and a replay does not send it either.
//
// Why the records are there. This rank's dispatch wrote them, released them and ended before this kernel began (slot order, see
// `dispatch.hip`). A rank overwrites them in a later dispatch on the slot, which it sends after its combine on the
// slot has seen this rank's combine flag. This rank sends that flag after this kernel (slot order).
#include "anabranch/prelude.h"
#include "ep/send_map.h"

// One wave: a token's entries, and its ids and weights from the record of its first sent copy.
static ANABRANCH_DEVICE void save_token(const Grid& grid, const SaveRoutingArgs& args, u32 token) {
    u64 at = static_cast<u64>(token) * args.fan_out;
    u64 first = 0;
    for (u32 n = 0; n < args.fan_out; ++n) {
        u64 entry = private_load(grid, args.send_map + at + n);
        if (first == 0 && is_destination(entry) && !is_dropped(entry)) first = entry;
        if (grid.lane() == 0) private_store(grid, args.saved.send_map + at + n, entry);
    }
    if (first == 0) return;
    u64 record = private_load(grid, args.team.peer_bases + destination_rank(first)) + args.meta_offset +
                 static_cast<u64>(destination_row(first)) * args.meta_bytes;
    u32* ids = reinterpret_cast<u32*>(args.saved.ids + static_cast<u64>(token) * args.top_k);
    u32* weights = reinterpret_cast<u32*>(args.saved.weights + static_cast<u64>(token) * args.top_k);
    for (u32 k = grid.lane(); k < 2 * args.top_k; k += WAVE_SIZE) {
        u32 value = remote_load(grid, reinterpret_cast<const u32*>(record) + 2 + k);
        private_store(grid, k < args.top_k ? ids + k : weights + (k - args.top_k), value);
    }
}

// The counts of each rank, and the head of the routing.
static ANABRANCH_DEVICE void save_counts(const Grid& grid, const SaveRoutingArgs& args) {
    for (u32 peer = grid.thread; peer < args.team.size; peer += grid.block_threads) {
        u32 capacity = args.row_stride != 0 ? args.row_stride : private_load(grid, args.capacity + peer);
        private_store(grid, args.saved.sent + peer, minimum(private_load(grid, args.routed + peer), capacity));
        private_store(grid, args.saved.counts + peer, private_load(grid, args.counts + peer));
    }
    if (grid.thread == 0) {
        u32 epoch = static_cast<u32>(private_load(grid, &args.state->dispatch_epoch));
        private_store(grid, &args.saved.head->identity, epoch << SLOT_BITS | args.slot);
        private_store(grid, &args.saved.head->tokens, args.token_count);
        private_store(grid, &args.saved.head->dropped, private_load(grid, &args.state->dropped_count));
    }
}

ANABRANCH_KERNEL(anabranch_ep_save_routing, SaveRoutingArgs, 1024) {
    // After a fault there is nothing to save.
    u64 poisoned = grid.thread == 0 && is_poisoned(grid, args.team.control) ? 1 : 0;
    if (grid.block_broadcast(poisoned) == 0) {
        if (grid.block == 0) save_counts(grid, args);
        for (u32 token = grid.grid_wave(); token < args.token_count; token += grid.grid_waves()) save_token(grid, args, token);
    }
}
