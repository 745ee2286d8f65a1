// Broadcom Thor (bnxt_re): entries of three slots, sequence numbers kept by software, doorbell, and completions.
//
// Fields, from rdma-core's public definitions (providers/bnxt_re/bnxt_re-abi.h) and the queues that ROCm's mori and rocSHMEM drive from
// kernels; numbers are little-endian. An entry is three slots of 16 bytes, one behind the other:
//   header    0 slots[23:16] flags[15:8] type[7:0] | 1 immediate, or the remote key of an operation on a word | 2-3 bytes, or the remote
//             address of one
//   remote    0-1 address | 2 key | 3 zero           or operands: 0-1 what is swapped in or added | 2-3 what is compared
//   local     0-1 address | 2 key | 3 bytes          or up to 16 bytes of data
// A table beside the ring says which packets an entry is: first slot[63:48] next sequence number[47:24] first one[23:0]. It has half as
// many rows as the ring has slots, these rounded up to a power of two (`npsn` of mori's src/application/transport/rdma/providers/bnxt/
// bnxt.cpp): with three slots to an entry and a power of two of entries, twice as many rows as entries. A message's row is its number
// modulo the rows, so that the table has a lap of its own. Numbers follow each other in the order of entries, so room and number are
// taken in one exchange: `reserved` is number[63:40] position[39:0].
// Doorbell: slot behind the last[23:0] lap[24] queue[51:32] valid[58] kind[63:60], which is 0.
// One completion (its memory zeroed at first) is overwritten by all: at byte 8 how many entries are done, of which as many bits count as
// the ring has places; at byte 24 a status[15:8]. One entry stays free, so that a ring that is done is not taken for one that is not.
#pragma once

#include "rdma/operation.h"

namespace rdma {

struct Bnxt {
    static constexpr u64 MOST_MESSAGE_BYTES = 1ull << 30;
    static constexpr bool DUMPS = false;
    static constexpr bool MARKS = false;
    static constexpr u32 SPARE = 1;

    enum Code : u32 { WRITE = 0x04, WRITE_IMMEDIATE = 0x05, READ = 0x06, CS = 0x08, FA = 0x0b };
    static constexpr u32 SIGNALED = 0x01, FENCE = 0x02, INLINE = 0x10;
    static constexpr u64 SLOTS = 3;
    static constexpr u64 ROWS_PER_ENTRY = 2;
    static constexpr u32 NUMBER_SHIFT = 40;
    static constexpr u64 POSITION_MASK = (1ull << NUMBER_SHIFT) - 1;
    static constexpr u64 SEQUENCE_MASK = 0xffffff;
    static constexpr u32 LAP_SHIFT = 24, VALID_SHIFT = 58;

    ANABRANCH_DEVICE static constexpr bool supports(Opcode opcode, u32 word_bytes) { return has_standard(opcode, word_bytes); }
    ANABRANCH_DEVICE static u32 entries_of(const Request&) { return 1; }

    ANABRANCH_DEVICE static u32 code(Opcode opcode) {
        switch (opcode) {
            case Opcode::WRITE:
            case Opcode::WRITE_VALUE: return WRITE;
            case Opcode::WRITE_IMMEDIATE: return WRITE_IMMEDIATE;
            case Opcode::READ: return READ;
            case Opcode::FETCH_ADD: return FA;
            default: return CS;
        }
    }

    // ---- the word that room is taken from: of the position, as many bits as tell it from others around `completed` ----
    // (which may be a little ahead of it: what was taken was loaded earlier).
    ANABRANCH_DEVICE static u64 position(u64 taken, u64 completed) {
        static constexpr u32 ABOVE = 64 - NUMBER_SHIFT;
        return completed + static_cast<u64>(static_cast<i64>((taken - completed) << ABOVE) >> ABOVE);
    }
    ANABRANCH_DEVICE static u64 packets(const RdmaQueue& queue, const Request& request) {
        u64 bytes = is_atomic(request.opcode) ? 0 : request.bytes;
        return bytes == 0 ? 1 : (bytes + queue.path_mtu - 1) / queue.path_mtu;
    }
    ANABRANCH_DEVICE static u64 after(const RdmaQueue& queue, u64 taken, const Request& request) {
        u64 number = (taken >> NUMBER_SHIFT) + packets(queue, request);
        return number << NUMBER_SHIFT | ((taken + 1) & POSITION_MASK);
    }
    ANABRANCH_DEVICE static u64 end(u64 taken, u64 completed) { return position(taken, completed); }

    ANABRANCH_DEVICE static void write(const Grid& grid, const RdmaQueue& queue, const Request& request, Local local, u64 start,
                                       u64 taken) {
        u64 place = start & (queue.entries - 1);
        u64* slot = reinterpret_cast<u64*>(queue.ring) + place * SLOTS * 2;
        Opcode opcode = request.opcode;
        u64 flags = SIGNALED | (request.fenced != 0 ? FENCE : 0);
        bool is_value = opcode == Opcode::WRITE_VALUE;
        if (is_value) flags |= INLINE;
        u64 slots = SLOTS;
        u64 head = slots << 16 | flags << 8 | code(opcode);
        u32 immediate = request.immediate;
        u64 second = is_atomic(opcode) ? queue.remote_key : opcode == Opcode::WRITE_IMMEDIATE ? immediate : 0;
        remote_store(grid, slot, second << 32 | head);
        remote_store(grid, slot + 1, is_atomic(opcode) ? request.remote : static_cast<u64>(length_of(request)));
        if (is_atomic(opcode)) {
            u64 value = request.value;
            remote_store(grid, slot + 2, value);
            remote_store(grid, slot + 3, opcode == Opcode::COMPARE_SWAP ? request.compare : 0);
        } else {
            remote_store(grid, slot + 2, request.remote);
            remote_store(grid, slot + 3, static_cast<u64>(queue.remote_key));
        }
        remote_store(grid, slot + 4, is_value ? low_bytes(request.value, length_of(request)) : local.address);
        remote_store(grid, slot + 5, is_value ? 0ull : static_cast<u64>(length_of(request)) << 32 | local.key);
        u64 first = taken >> NUMBER_SHIFT;
        u64 next = (first + packets(queue, request)) & SEQUENCE_MASK;
        u64 row = start & (queue.entries * ROWS_PER_ENTRY - 1);
        remote_store(grid, queue.sequence_table + row, place * SLOTS << 48 | next << 24 | first);
    }
    ANABRANCH_DEVICE static void mark(const Grid&, const RdmaQueue&, const Request&, u64) {}
    ANABRANCH_DEVICE static void record(const Grid&, const RdmaQueue&, u64) {}
    ANABRANCH_DEVICE static u64 doorbell(const RdmaQueue& queue, const Request&, u64, u64 next) {
        u64 place = next & (queue.entries - 1);
        u64 lap = next / queue.entries & 1;
        u64 number = queue.number & 0xfffff;
        return 1ull << VALID_SHIFT | number << 32 | lap << LAP_SHIFT | place * SLOTS;
    }

    ANABRANCH_DEVICE static Progress look(const Grid& grid, const RdmaQueue& queue, u64 completed) {
        u64 mask = queue.entries - 1;
        // A count older than `completed` would be taken for one that is newer.
        fence_acquire_system(grid);
        u64 reached = completed + ((flag_load(grid, queue.completions + 1) - completed) & mask);
        // A lane that sees the count of a failed entry sees its status.
        if (reached != completed) fence_acquire_system(grid);
        u64 status = flag_load(grid, queue.completions + 3) >> 8 & 0xff;
        if (status != 0) return Progress{completed, true, completed, status};
        return Progress{reached, false, 0, 0};
    }
    ANABRANCH_DEVICE static u64 fetched(const Request&, u64 slot) { return slot; }
};

}  // namespace rdma
