// Requests to a NIC in the form that all providers share, and the progress that each provider reports.
//
// Every unit is compiled with
//   RDMA_PROVIDER   whose entries are written: 1 mlx5, 2 bnxt_re, 3 ionic, 4 posted by the host (Provider in Rust)
//   RDMA_ATOMICS    what that NIC can do: 0 none, 1 fetch-and-add and compare-and-swap of 64 bits, 2 also those with masks (Atomics)
#pragma once

#include "anabranch/prelude.h"

#if !defined(RDMA_ATOMICS) || RDMA_ATOMICS < 0 || RDMA_ATOMICS > 2
#error "the unit is compiled with RDMA_ATOMICS: 0, 1 or 2"
#endif

namespace rdma {

static constexpr u32 ATOMICS = RDMA_ATOMICS;
static constexpr u32 ATOMICS_STANDARD = 1;
static constexpr u32 ATOMICS_MASKED = 2;

enum class Opcode : u32 {
    WRITE = 0,            // `bytes` from `local` to `remote`
    WRITE_IMMEDIATE = 1,  // the same, then `immediate` to the peer's receive queue, also of no bytes
    READ = 2,             // `bytes` from `remote` to `local`
    WRITE_VALUE = 3,      // the low `bytes` (1, 2, 4 or 8) of `value` to `remote`, in one piece
    // Operations on the word of `word_bytes` (4 or 8) at `remote`, a multiple of them.
    FETCH_ADD = 4,
    COMPARE_SWAP = 5,  // `value` where `compare` was
    SWAP = 6,
    FETCH_AND = 7,
    FETCH_OR = 8,
    FETCH_XOR = 9,
};

struct Request {
    Opcode opcode;
    u64 local;   // WRITE, WRITE_IMMEDIATE, READ: in registered memory
    u64 remote;  // the address at the peer: RdmaQueue::remote_base and an offset
    u64 bytes;   // WRITE, WRITE_IMMEDIATE, READ: any number; WRITE_VALUE
    u64 value;
    u64 compare;
    u32 word_bytes;
    u32 immediate;  // WRITE_IMMEDIATE, in the order of the host's bytes
    // 1: not before earlier reads and atomic operations of this queue are done. (Writes are in order anyway; a request after a read or an
    // atomic operation may otherwise overtake it at the peer.)
    u32 fenced;
    // 1: an entry follows by which the NIC reads this device's memory before it completes (RdmaQueue::read_order). Set by `post`, never by
    // its caller.
    u32 dumped;
};

ANABRANCH_DEVICE constexpr bool is_atomic(Opcode opcode) { return opcode >= Opcode::FETCH_ADD; }
ANABRANCH_DEVICE constexpr bool has_local(Opcode opcode) { return opcode <= Opcode::READ; }
// Whether an operation is not atomic, or is an atomic operation of verbs.
ANABRANCH_DEVICE constexpr bool has_standard(Opcode opcode, u32 word_bytes) {
    bool is_standard = opcode == Opcode::FETCH_ADD || opcode == Opcode::COMPARE_SWAP;
    return !is_atomic(opcode) || (ATOMICS >= ATOMICS_STANDARD && is_standard && word_bytes == 8);
}
ANABRANCH_DEVICE u32 length_of(const Request& request) {
    return is_atomic(request.opcode) ? request.word_bytes : static_cast<u32>(request.bytes);
}

// The local side of a request as its entry names it: where the bytes of WRITE and READ are, or where the old value of an atomic operation
// goes.
struct Local {
    u64 address;
    u32 key;
};

// What a NIC reports of completions.
struct Progress {
    u64 completed;  // the position up to which entries are done
    bool failed;    // the queue pair has stopped, and completes nothing any more
    u64 position;   // ... the entry that the NIC names, or how far it was known to be
    u64 syndrome;   // ... as the provider numbers them; mlx5: vendor's << 8 | syndrome
};

// Reverses the bytes, for NICs whose fields are big-endian.
ANABRANCH_DEVICE u32 swap_bytes(u32 v) {
    return v >> 24 | (v >> 8 & 0xff00u) | (v << 8 & 0xff0000u) | v << 24;
}
ANABRANCH_DEVICE Vec16 big_endian(u32 a, u32 b, u32 c, u32 d) {
    return Vec16{{swap_bytes(a), swap_bytes(b), swap_bytes(c), swap_bytes(d)}};
}
ANABRANCH_DEVICE u32 high(u64 v) { return static_cast<u32>(v >> 32); }
ANABRANCH_DEVICE u32 low(u64 v) { return static_cast<u32>(v); }
// The value's low bytes, zeros above; at most eight.
ANABRANCH_DEVICE u64 low_bytes(u64 value, u32 bytes) { return bytes < 8 ? value & ((1ull << 8 * bytes) - 1) : value; }

// The position whose low 16 bits a NIC's counter has: `from` or up to 65535 after it.
ANABRANCH_DEVICE u64 behind(u64 from, u32 counter) { return from + ((counter - static_cast<u32>(from)) & 0xffffu); }

}  // namespace rdma
