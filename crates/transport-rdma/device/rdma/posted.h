// Requests that a thread of the host posts: PostedRequest in Rust says what each field means.
//
// An entry's `stamp` is stored last, behind a release, and the doorbell behind that: the host takes entries up to the doorbell.
#pragma once

#include "rdma/operation.h"

namespace rdma {

struct Posted {
    static constexpr u64 MOST_MESSAGE_BYTES = 1ull << 30;
    static constexpr bool DUMPS = false;
    static constexpr bool MARKS = true;
    static constexpr u32 SPARE = 0;
    // PostedOpcode in Rust.
    enum Code : u32 { WRITE = 1, WRITE_IMMEDIATE = 2, READ = 3, WRITE_VALUE = 4, FETCH_ADD = 5, COMPARE_SWAP = 6 };
    static constexpr u32 FENCED = 1;

    ANABRANCH_DEVICE static constexpr bool supports(Opcode opcode, u32 word_bytes) { return has_standard(opcode, word_bytes); }
    ANABRANCH_DEVICE static u32 entries_of(const Request&) { return 1; }
    ANABRANCH_DEVICE static u64 position(u64 taken, u64) { return taken; }
    ANABRANCH_DEVICE static u64 after(const RdmaQueue&, u64 taken, const Request&) { return taken + 1; }
    ANABRANCH_DEVICE static u64 end(u64 taken, u64) { return taken; }

    ANABRANCH_DEVICE static Code code(Opcode opcode) {
        switch (opcode) {
            case Opcode::WRITE: return WRITE;
            case Opcode::WRITE_IMMEDIATE: return WRITE_IMMEDIATE;
            case Opcode::READ: return READ;
            case Opcode::WRITE_VALUE: return WRITE_VALUE;
            case Opcode::FETCH_ADD: return FETCH_ADD;
            default: return COMPARE_SWAP;
        }
    }
    ANABRANCH_DEVICE static PostedRequest* slot(const RdmaQueue& queue, u64 position) {
        return reinterpret_cast<PostedRequest*>(queue.ring) + (position & (queue.entries - 1));
    }
    ANABRANCH_DEVICE static void write(const Grid& grid, const RdmaQueue& queue, const Request& request, Local local, u64 start,
                                       u64) {
        PostedRequest* entry = slot(queue, start);
        Opcode opcode = request.opcode;
        bool is_value = opcode == Opcode::WRITE_VALUE;
        u64 value = is_value ? low_bytes(request.value, length_of(request)) : is_atomic(opcode) ? request.value : 0;
        remote_store(grid, &entry->local, local.address);
        remote_store(grid, &entry->remote, request.remote);
        remote_store(grid, &entry->value, value);
        remote_store(grid, &entry->compare, opcode == Opcode::COMPARE_SWAP ? request.compare : 0ull);
        remote_store(grid, &entry->bytes, length_of(request));
        remote_store(grid, &entry->opcode, static_cast<u32>(code(opcode)));
        remote_store(grid, &entry->local_key, local.key);
        remote_store(grid, &entry->remote_key, queue.remote_key);
        remote_store(grid, &entry->immediate, opcode == Opcode::WRITE_IMMEDIATE ? request.immediate : 0u);
        remote_store(grid, &entry->flags, request.fenced != 0 ? FENCED : 0u);
    }
    ANABRANCH_DEVICE static void mark(const Grid& grid, const RdmaQueue& queue, const Request&, u64 start) {
        flag_store(grid, &slot(queue, start)->stamp, start + 1);
    }
    ANABRANCH_DEVICE static void record(const Grid&, const RdmaQueue&, u64) {}
    ANABRANCH_DEVICE static u64 doorbell(const RdmaQueue&, const Request&, u64, u64 next) { return next; }

    ANABRANCH_DEVICE static Progress look(const Grid& grid, const RdmaQueue& queue, u64 completed) {
        u64 reached = flag_load(grid, queue.completions);
        u64 failed = flag_load(grid, queue.completions + 1);
        bool is_new = has_reached(reached, completed) && reached - completed <= queue.entries;
        Progress progress = {is_new ? reached : completed, false, 0, 0};
        // Its low byte is the verbs status plus one, for which there is no vendor's.
        if (failed != 0) progress = {progress.completed, true, failed >> 8, (failed & 0xff) - 1};
        return progress;
    }
    ANABRANCH_DEVICE static u64 fetched(const Request&, u64 slot) { return slot; }
};

}  // namespace rdma
