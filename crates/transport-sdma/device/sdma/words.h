// An operation as the packets of a copy engine, and these as words of a ring. Which bits are what: sdma/packets.h.
#pragma once

#include "anabranch/prelude.h"
#include "sdma/packets.h"

namespace sdma {

// Bytes in which room is taken.
static constexpr u64 UNIT = 32;

// The signal behind an operation's copies.
enum class Tail : u32 {
    NOTHING = 0,
    SET = 1,  // two words, the low one first: a value that grows is never seen too large
    ADD = 2,
    FLAG = 3,  // two words, the high one first: a lane that sees the low one sees the high one, too
};

// What is put into a queue in one piece.
struct Operation {
    u64 source;
    u64 target;
    u64 bytes;
    Tail tail;
    u64* word;     // at the peer; SET, ADD, FLAG
    u64 value;     // ...
    bool tells;    // whether the queue's `done` says when this is done
};

static constexpr u32 SIGNAL_WORDS = 8;
static_assert(2 * SDMA_FENCE_WORDS == SIGNAL_WORDS && SDMA_ATOMIC_WORDS == SIGNAL_WORDS, "a signal is two fences or an atomic");

// Puts words into a ring, one after the other.
struct Writer {
    u32* at;

    ANABRANCH_DEVICE void word(const Grid& grid, u32 value) { remote_store(grid, at++, value); }
    ANABRANCH_DEVICE void pair(const Grid& grid, u64 value) {
        word(grid, static_cast<u32>(value));
        word(grid, static_cast<u32>(value >> 32));
    }
    ANABRANCH_DEVICE void copy(const Grid& grid, u64 source, u64 target, u32 bytes) {
        word(grid, SDMA_COPY);
        word(grid, bytes - 1);
        word(grid, 0);
        pair(grid, source);
        pair(grid, target);
    }
    ANABRANCH_DEVICE void fence(const Grid& grid, u32 head, u64 address, u32 value) {
        word(grid, head);
        pair(grid, address);
        word(grid, value);
    }
    ANABRANCH_DEVICE void add(const Grid& grid, u64 address, u64 value) {
        word(grid, SDMA_ATOMIC | SDMA_ATOMIC_ADD_64 << SDMA_ATOMIC_OPERATION_SHIFT);
        pair(grid, address);
        pair(grid, value);
        for (u32 i = 0; i < 3; ++i) word(grid, 0);
    }
    ANABRANCH_DEVICE void signal(const Grid& grid, u32 head, const Operation& operation) {
        u64 address = reinterpret_cast<u64>(operation.word);
        if (operation.tail == Tail::ADD) return add(grid, address, operation.value);
        u32 low = static_cast<u32>(operation.value), high = static_cast<u32>(operation.value >> 32);
        bool is_flag = operation.tail == Tail::FLAG;
        if (is_flag) fence(grid, head, address + 4, high);
        fence(grid, head, address, low);
        if (!is_flag) fence(grid, head, address + 4, high);
    }
};

// `words` words that the engine passes over: heads that say how many follow. Multiples of 4 bytes.
ANABRANCH_DEVICE void pass_over(const Grid& grid, u32* at, u64 words) {
    static constexpr u64 LONGEST = SDMA_NOP_SKIP_MOST + 1;
    for (u64 first = 0; first < words; first += LONGEST) {
        u32 skip = static_cast<u32>(minimum(words - first, LONGEST) - 1);
        remote_store(grid, at + first, SDMA_NOP | skip << SDMA_NOP_SKIP_SHIFT);
    }
}

// Writes an operation's packets where they stand, and what is passed over around them.
ANABRANCH_DEVICE void write_packets(const Grid& grid, const SdmaQueue& queue, const Operation& operation, u64 start,
                                    u64 padding, u64 end) {
    u64 mask = queue.ring_bytes - 1;
    u32* ring = queue.ring;
    if (padding != 0) pass_over(grid, ring + (start & mask) / 4, padding / 4);
    Writer writer = {ring + ((start + padding) & mask) / 4};
    for (u64 at = 0; at < operation.bytes; at += queue.most_copy_bytes) {
        u32 piece = static_cast<u32>(minimum<u64>(operation.bytes - at, queue.most_copy_bytes));
        writer.copy(grid, operation.source + at, operation.target + at, piece);
    }
    if (operation.tail != Tail::NOTHING) writer.signal(grid, queue.fence_head, operation);
    if (operation.tells) {
        writer.fence(grid, queue.fence_head, reinterpret_cast<u64>(queue.done), static_cast<u32>(end / UNIT));
    }
    u32* last = ring + ((end - UNIT) & mask) / 4 + UNIT / 4;
    pass_over(grid, writer.at, static_cast<u64>(last - writer.at));
}

// Bytes of an operation with `pieces` copies, in whole units; with the fence that tells, or without.
ANABRANCH_DEVICE u64 bytes_of(const Operation& operation, u64 pieces, bool tells) {
    u64 words = pieces * SDMA_COPY_WORDS;
    if (operation.tail != Tail::NOTHING) words += SIGNAL_WORDS;
    if (tells) words += SDMA_FENCE_WORDS;
    return (words * 4 + UNIT - 1) / UNIT * UNIT;
}

}  // namespace sdma
