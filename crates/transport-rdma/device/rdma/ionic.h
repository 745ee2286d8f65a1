// AMD Pollara (ionic): entries of 64 bytes with a bit that tells laps apart, doorbell, and completions.
//
// Fields, from rdma-core's public definitions (providers/ionic/ionic_fw.h, version 2 operations) and the queues that ROCm's mori and
// rocSHMEM drive from kernels; numbers are big-endian, but for the entry's own index.
//   base      0-7 index (little-endian) | 8 operation | 9 local ranges | 10-11 flags | 12-15 immediate
//   moves     16-23 remote address | 24 remote key | 28 bytes | 32-39 local address | 40 bytes | 44 local key, or from 32 on data
//   words     16-23 remote address | 24 remote key | 28-35 what is swapped in or added | 36-43 what is compared | 44 local key |
//             48-55 local address
// The colour among the flags is set on even laps of the ring (zeroed at first), and is stored last: bytes 8 to 15 in one piece.
// Doorbell: the owner's value with the place behind the last entry. One entry stays free, so that a full ring does not look empty.
// One completion (its memory zeroed at first) is overwritten by all: at byte 4 how many messages are done, 24 bits of it; at byte 24 a
// status, if at byte 28 bit 1 says that there is an error.
#pragma once

#include "rdma/operation.h"

namespace rdma {

struct Ionic {
    static constexpr u64 MOST_MESSAGE_BYTES = 1ull << 30;
    static constexpr bool DUMPS = false;
    static constexpr bool MARKS = true;
    static constexpr u32 SPARE = 1;

    enum Code : u32 { WRITE = 0x21, WRITE_IMMEDIATE = 0x61, READ = 0x02, CS = 0x04, FA = 0x05 };
    static constexpr u32 FENCE = 1, INLINE = 4, SIGNALED = 8, COLOUR = 16;
    static constexpr u32 ERROR = 2;

    ANABRANCH_DEVICE static constexpr bool supports(Opcode opcode, u32 word_bytes) { return has_standard(opcode, word_bytes); }
    ANABRANCH_DEVICE static u32 entries_of(const Request&) { return 1; }
    ANABRANCH_DEVICE static u64 position(u64 taken, u64) { return taken; }
    ANABRANCH_DEVICE static u64 after(const RdmaQueue&, u64 taken, const Request&) { return taken + 1; }
    ANABRANCH_DEVICE static u64 end(u64 taken, u64) { return taken; }

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
    ANABRANCH_DEVICE static u64* entry(const RdmaQueue& queue, u64 start) {
        return reinterpret_cast<u64*>(queue.ring) + (start & (queue.entries - 1)) * 8;
    }
    ANABRANCH_DEVICE static void write(const Grid& grid, const RdmaQueue& queue, const Request& request, Local local, u64 start, u64) {
        u64* word = entry(queue, start);
        Vec16* segment = reinterpret_cast<Vec16*>(word);
        u32 bytes = length_of(request);
        remote_store(grid, word, start);
        if (is_atomic(request.opcode)) {
            u64 value = request.value;
            u64 compare = request.opcode == Opcode::COMPARE_SWAP ? request.compare : 0;
            remote_store(grid, segment + 1, big_endian(high(request.remote), low(request.remote), queue.remote_key, high(value)));
            remote_store(grid, segment + 2, big_endian(low(value), high(compare), low(compare), local.key));
            remote_store(grid, segment + 3, big_endian(high(local.address), low(local.address), 0, 0));
            return;
        }
        remote_store(grid, segment + 1, big_endian(high(request.remote), low(request.remote), queue.remote_key, bytes));
        if (request.opcode == Opcode::WRITE_VALUE) {
            u64 value = low_bytes(request.value, bytes);
            remote_store(grid, segment + 2, Vec16{{low(value), high(value), 0, 0}});
        } else {
            remote_store(grid, segment + 2, big_endian(high(local.address), low(local.address), bytes, local.key));
        }
        remote_store(grid, segment + 3, Vec16{{0, 0, 0, 0}});
    }
    ANABRANCH_DEVICE static void mark(const Grid& grid, const RdmaQueue& queue, const Request& request, u64 start) {
        bool is_value = request.opcode == Opcode::WRITE_VALUE;
        u32 ranges = is_atomic(request.opcode) || (!is_value && request.bytes != 0) ? 1 : 0;
        u32 flags = request.fenced != 0 ? FENCE : 0;
        flags |= SIGNALED;
        if (is_value) flags |= INLINE;
        if ((start & queue.entries) == 0) flags |= COLOUR;
        u32 immediate = request.opcode == Opcode::WRITE_IMMEDIATE ? request.immediate : 0;
        u32 head = swap_bytes(code(request.opcode) << 24 | ranges << 16 | flags);
        flag_store(grid, entry(queue, start) + 1, static_cast<u64>(swap_bytes(immediate)) << 32 | head);
    }
    ANABRANCH_DEVICE static void record(const Grid&, const RdmaQueue&, u64) {}
    ANABRANCH_DEVICE static u64 doorbell(const RdmaQueue& queue, const Request&, u64, u64 next) {
        return queue.doorbell_value | (next & (queue.entries - 1));
    }

    ANABRANCH_DEVICE static Progress look(const Grid& grid, const RdmaQueue& queue, u64 completed) {
        u32 count = swap_bytes(high(flag_load(grid, queue.completions)));
        u64 reached = completed + ((count - low(completed)) & 0xffffffu);
        // Nothing new, or a count that is older than `completed`. What is under way is at most a ring.
        if (reached - completed > queue.entries) reached = completed;
        // A lane that sees the count of a failed entry sees its status.
        if (reached != completed) fence_acquire_system(grid);
        u64 status = flag_load(grid, queue.completions + 3);
        if ((swap_bytes(high(status)) & ERROR) != 0) return Progress{completed, true, completed, swap_bytes(low(status))};
        return Progress{reached, false, 0, 0};
    }
    ANABRANCH_DEVICE static u64 fetched(const Request&, u64 slot) { return slot; }
};

}  // namespace rdma
