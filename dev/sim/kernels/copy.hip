// What a program does before and behind a collective: it writes buffers and reads them.
#include "anabranch/prelude.h"

// Either place may be memory that peers reach, also a peer's.
ANABRANCH_KERNEL(anabranch_sim_copy, CopyArgs, 256) {
    for (u32 word = grid.thread; word < args.words; word += grid.block_threads) {
        remote_store(grid, args.to + word, remote_load(grid, args.from + word));
    }
}

// What a copy engine does: bytes at any address.
ANABRANCH_KERNEL(anabranch_sim_copy_bytes, CopyBytesArgs, 256) {
    for (u64 byte = grid.thread; byte < args.bytes; byte += grid.block_threads) {
        remote_store(grid, args.to + byte, remote_load(grid, args.from + byte));
    }
}
