// NVIDIA ConnectX: entries, doorbell, and its collapsed completion queue entry.
//
// Fields, from rdma-core's public definitions (infiniband/mlx5dv.h) and the programmer's reference manual; numbers are big-endian.
// An entry is one or two blocks of 64 bytes, made of segments of 16:
//   control   0 opmod[31:24] index[23:8] opcode[7:0] | 1 number[31:8] segments[5:0] | 2 fence[7:5] completion[3:2] | 3 immediate
//   remote    0-1 address | 2 key | 3 zero
//   data      0 bytes | 1 key | 2-3 address           inline data: 0 1<<31 | bytes, then the bytes
//   dump      control and data alone: the NIC reads the bytes and drops them
//   atomic    0-1 what is swapped in or added | 2-3 what is compared
//   masked, of 8 bytes: swap, compare, then in a segment of its own their masks; or what is added and the tops of fields
//   masked, of 4 bytes: swap, compare and their masks; or what is added, the tops of fields, and zeros
// `index` is the number of the entry's first block, its low 16 bits; a completion names an entry by the same number.
// Masked operations: the order of operands and the size in opmod are UCX's (uct/ib/mlx5); a fetched value of 4 bytes is
// big-endian, one of 8 bytes is the host's (the driver makes sure of that mode).
#pragma once

#include "rdma/operation.h"

namespace rdma {

struct Mlx5 {
    static constexpr u64 MOST_MESSAGE_BYTES = 1ull << 30;
    // Nothing is stored after the release of the entries but the doorbell.
    static constexpr bool MARKS = false;
    // There is an entry by which the NIC reads memory of its own side (NVSHMEM's ibgda puts it after gets, with a fence).
    static constexpr bool DUMPS = true;
    // Entries of the ring that stay free.
    static constexpr u32 SPARE = 0;

    enum Code : u32 { WRITE = 0x08, WRITE_IMMEDIATE = 0x09, READ = 0x10, CS = 0x11, FA = 0x12, MASKED_CS = 0x14, MASKED_FA = 0x15, DUMP = 0x23 };
    static constexpr u32 MASKED_OPMOD_4 = 8, MASKED_OPMOD_8 = 9;
    static constexpr u32 SIGNALED = 2 << 2;  // CQ_UPDATE: a completion is requested
    static constexpr u32 FENCE = 4 << 5;     // after earlier reads and atomic operations
    static constexpr u32 INLINE = 1u << 31;
    enum CompletionCode : u32 { REQUESTER = 0, REQUESTER_ERROR = 13, RESPONDER_ERROR = 14 };
    // A bit of `reserved`: the last entry has two blocks. Its completion has the number of the first.
    static constexpr u64 ENDS_WIDE = 1ull << 63;

    ANABRANCH_DEVICE static constexpr bool supports(Opcode opcode, u32 word_bytes) {
        if (!is_atomic(opcode)) return true;
        if (ATOMICS == ATOMICS_MASKED) return word_bytes == 4 || word_bytes == 8;
        return has_standard(opcode, word_bytes);
    }

    ANABRANCH_DEVICE static Code code(const Request& request) {
        bool is_wide = request.word_bytes == 8;
        switch (request.opcode) {
            case Opcode::WRITE:
            case Opcode::WRITE_VALUE: return WRITE;
            case Opcode::WRITE_IMMEDIATE: return WRITE_IMMEDIATE;
            case Opcode::READ: return READ;
            case Opcode::FETCH_ADD: return is_wide ? FA : MASKED_FA;
            case Opcode::COMPARE_SWAP: return is_wide ? CS : MASKED_CS;
            case Opcode::FETCH_XOR: return MASKED_FA;
            default: return MASKED_CS;
        }
    }
    ANABRANCH_DEVICE static u32 segments_of(const Request& request) {
        if (is_atomic(request.opcode)) return code(request) == MASKED_CS && request.word_bytes == 8 ? 5 : 4;
        return request.opcode == Opcode::WRITE_IMMEDIATE && request.bytes == 0 ? 2 : 3;
    }
    ANABRANCH_DEVICE static bool is_wide(const Request& request) { return segments_of(request) > 4; }
    ANABRANCH_DEVICE static u32 entries_of(const Request& request) { return (is_wide(request) ? 2 : 1) + (request.dumped != 0 ? 1 : 0); }

    // ---- the word by which producers reserve entries ----
    ANABRANCH_DEVICE static u64 position(u64 taken, u64) { return taken & ~ENDS_WIDE; }
    ANABRANCH_DEVICE static u64 after(const RdmaQueue&, u64 taken, const Request& request) {
        bool ends_wide = is_wide(request) && request.dumped == 0;
        return ((taken & ~ENDS_WIDE) + entries_of(request)) | (ends_wide ? ENDS_WIDE : 0);
    }
    // The value of `completed` when everything before is done.
    ANABRANCH_DEVICE static u64 end(u64 taken, u64) { return (taken & ~ENDS_WIDE) - (taken >> 63); }

    // ---- entries ----
    ANABRANCH_DEVICE static Vec16 control(const RdmaQueue& queue, const Request& request, u64 start) {
        Code operation = code(request);
        bool is_masked = operation == MASKED_CS || operation == MASKED_FA;
        u32 opmod = !is_masked ? 0 : request.word_bytes == 8 ? MASKED_OPMOD_8 : MASKED_OPMOD_4;
        u32 index = static_cast<u32>(start) & 0xffffu;
        // If a dump follows, only its completion reports that the fetched data is in memory.
        bool is_signaled = request.dumped == 0;
        u32 flags = (is_signaled ? SIGNALED : 0) | (request.fenced != 0 ? FENCE : 0);
        u32 immediate = request.opcode == Opcode::WRITE_IMMEDIATE ? request.immediate : 0;
        u32 segments = segments_of(request);
        return big_endian(opmod << 24 | index << 8 | operation, queue.number << 8 | segments, flags, immediate);
    }
    // The control segment of a dump, which waits for reads and atomic operations before it.
    ANABRANCH_DEVICE static Vec16 dump_control(const RdmaQueue& queue, u64 at) {
        u32 flags = SIGNALED | FENCE;
        return big_endian((static_cast<u32>(at) & 0xffffu) << 8 | DUMP, queue.number << 8 | 2, flags, 0);
    }
    // Puts segments into the ring, which the second block of an entry may wrap.
    struct Writer {
        const RdmaQueue& queue;
        u64 next;
        ANABRANCH_DEVICE void segment(const Grid& grid, Vec16 v) {
            u64 mask = static_cast<u64>(queue.entries) * 4 - 1;
            remote_store(grid, reinterpret_cast<Vec16*>(queue.ring) + (next++ & mask), v);
        }
        ANABRANCH_DEVICE void wide(const Grid& grid, u64 a, u64 b) {
            segment(grid, big_endian(high(a), low(a), high(b), low(b)));
        }
    };
    ANABRANCH_DEVICE static void operands(const Grid& grid, Writer& writer, const Request& request) {
        u64 value = request.value, compare = 0, swap_mask = ~0ull, compare_mask = 0;
        if (request.opcode == Opcode::COMPARE_SWAP) compare = request.compare, compare_mask = ~0ull;
        if (request.opcode == Opcode::FETCH_AND) swap_mask = ~value, value = 0;
        if (request.opcode == Opcode::FETCH_OR) swap_mask = value;
        u64 tops = request.opcode == Opcode::FETCH_XOR ? ~0ull : 0;
        Code operation = code(request);
        bool is_wide = request.word_bytes == 8;
        if (operation == FA) return writer.wide(grid, value, 0);
        if (operation == CS) return writer.wide(grid, value, compare);
        if (operation == MASKED_FA) {
            return is_wide ? writer.wide(grid, value, tops) : writer.segment(grid, big_endian(low(value), low(tops), 0, 0));
        }
        if (!is_wide) return writer.segment(grid, big_endian(low(value), low(compare), low(swap_mask), low(compare_mask)));
        writer.wide(grid, value, compare);
        writer.wide(grid, swap_mask, compare_mask);
    }
    ANABRANCH_DEVICE static void write(const Grid& grid, const RdmaQueue& queue, const Request& request, Local local, u64 start,
                                       u64) {
        if (request.dumped != 0) {
            // It reads a byte of this rank's results, which are in the memory that reads and atomic operations write to.
            u64 at = start + entries_of(request) - 1;
            u64 byte = reinterpret_cast<u64>(queue.results + static_cast<u64>(queue.entries) * 2);
            Writer dump = {queue, at * 4};
            dump.segment(grid, dump_control(queue, at));
            dump.segment(grid, big_endian(1, queue.results_key, high(byte), low(byte)));
        }
        Writer writer = {queue, start * 4};
        writer.segment(grid, control(queue, request, start));
        writer.segment(grid, big_endian(high(request.remote), low(request.remote), queue.remote_key, 0));
        if (request.opcode == Opcode::WRITE_VALUE) {
            // Not big-endian: data is copied as bytes, the value's low byte first.
            u64 value = low_bytes(request.value, length_of(request));
            u32 head = INLINE | length_of(request);
            return writer.segment(grid, Vec16{{swap_bytes(head), low(value), high(value), 0}});
        }
        if (is_atomic(request.opcode)) operands(grid, writer, request);
        if (is_atomic(request.opcode) || request.bytes != 0) {
            writer.segment(grid, big_endian(length_of(request), local.key, high(local.address), low(local.address)));
        }
    }
    ANABRANCH_DEVICE static void mark(const Grid&, const RdmaQueue&, const Request&, u64) {}

    // ---- doorbell: the record has the producer's position, the register gets the first 8 bytes of the last control segment ----
    ANABRANCH_DEVICE static void record(const Grid& grid, const RdmaQueue& queue, u64 next) {
        u32 producer = static_cast<u32>(next) & 0xffffu;
        u32 record = swap_bytes(producer);
        remote_store(grid, queue.doorbell_record + 1, record);
        fence_release_system(grid);
    }
    ANABRANCH_DEVICE static u64 doorbell(const RdmaQueue& queue, const Request& request, u64 start, u64 next) {
        Vec16 head = request.dumped != 0 ? dump_control(queue, next - 1) : control(queue, request, start);
        return static_cast<u64>(head.word[1]) << 32 | head.word[0];
    }

    // ---- completions: every one overwrites the same 64 bytes, whose last eight are read in one piece ----
    ANABRANCH_DEVICE static Progress look(const Grid& grid, const RdmaQueue& queue, u64 completed) {
        u32 last = swap_bytes(high(flag_load(grid, queue.completions + 7)));
        Progress progress = {completed, false, 0, 0};
        u32 opcode = last >> 4 & 0xf;
        // All ones (never written) or a count older than `completed` is no progress: at most a ring of entries is in flight.
        u64 reached = behind(completed, (last >> 16) + 1);
        if (opcode == REQUESTER && reached - completed <= queue.entries) progress.completed = reached;
        if (opcode == REQUESTER_ERROR || opcode == RESPONDER_ERROR) {
            fence_acquire_system(grid);  // the rest of the 64 bytes
            u32 syndromes = swap_bytes(high(flag_load(grid, queue.completions + 6)));
            progress = {completed, true, behind(completed, last >> 16), syndromes & 0xffffu};
        }
        return progress;
    }

    // The value in a result slot.
    ANABRANCH_DEVICE static u64 fetched(const Request& request, u64 slot) {
        if (is_atomic(request.opcode) && request.word_bytes == 4) return swap_bytes(low(slot));
        return slot;
    }
};

}  // namespace rdma
