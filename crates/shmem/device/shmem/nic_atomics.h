// Atomic operations by NIC. An operation that the NIC has is one request. On words of 64 bits the others are a loop of compare-and-swap,
// until no other operation came between. What the NIC cannot do at all is a fault (PHASE_NIC_UNSUPPORTED), and nothing moves;
// `World::support` reports it beforehand.
#pragma once

#include "shmem/nic.h"

namespace shmem {

enum class AtomicOp : u32 {
    ADD,
    AND,
    OR,
    XOR,
    SWAP,
    COMPARE_SWAP,
};

#if SHMEM_NIC

template <AtomicOp OP>
struct NicOpcode;
template <>
struct NicOpcode<AtomicOp::ADD> {
    static constexpr rdma::Opcode VALUE = rdma::Opcode::FETCH_ADD;
};
template <>
struct NicOpcode<AtomicOp::AND> {
    static constexpr rdma::Opcode VALUE = rdma::Opcode::FETCH_AND;
};
template <>
struct NicOpcode<AtomicOp::OR> {
    static constexpr rdma::Opcode VALUE = rdma::Opcode::FETCH_OR;
};
template <>
struct NicOpcode<AtomicOp::XOR> {
    static constexpr rdma::Opcode VALUE = rdma::Opcode::FETCH_XOR;
};
template <>
struct NicOpcode<AtomicOp::SWAP> {
    static constexpr rdma::Opcode VALUE = rdma::Opcode::SWAP;
};
template <>
struct NicOpcode<AtomicOp::COMPARE_SWAP> {
    static constexpr rdma::Opcode VALUE = rdma::Opcode::COMPARE_SWAP;
};

// The word after the operation.
template <AtomicOp OP>
ANABRANCH_DEVICE u64 combined(u64 word, u64 value) {
    if constexpr (OP == AtomicOp::ADD) return word + value;
    if constexpr (OP == AtomicOp::AND) return word & value;
    if constexpr (OP == AtomicOp::OR) return word | value;
    if constexpr (OP == AtomicOp::XOR) return word ^ value;
    return value;
}

// An operation whose old value is waited for. One thread.
template <AtomicOp OP, class Raw>
ANABRANCH_DEVICE Status fetch_by_nic(const Grid& grid, const Context& context, GroupRank peer, const Raw* word, Raw value, Raw compare,
                                     Raw& old) {
    constexpr rdma::Opcode OPCODE = NicOpcode<OP>::VALUE;
    constexpr bool CAN_SWAP = sizeof(Raw) == 8 && rdma::supports(rdma::Opcode::COMPARE_SWAP, 8);
    constexpr bool IS_ONE_REQUEST = rdma::supports(OPCODE, sizeof(Raw));
    RdmaQueue queue = rdma::load_queue(grid, nic_entry(grid, context, peer));
    u64 seen = 0;
    WaitStatus done = WAIT_OK;
    old = 0;
    if constexpr (IS_ONE_REQUEST || !CAN_SWAP) {
        // `rdma::fetch` refuses what the NIC does not have, with a fault report.
        done = rdma::fetch(grid, context.wait, queue, nic_operation(OPCODE, word, value, compare, sizeof(Raw)), seen);
        if (!IS_ONE_REQUEST) return Status::UNSUPPORTED;
    } else {
        // The first try compares with a guess, each later one with the value that the last one read. A try fails only if another operation
        // on the word succeeded; the wait's budget ends a thread that never succeeds.
        u64 expected = 0;
        bool failed = false;
        WaitStatus tried = wait_for(
            grid, context.wait, PHASE_NIC_CONTENDED,
            [&]() {
                u64 desired = combined<OP>(expected, value);
                rdma::Request swap = nic_operation(rdma::Opcode::COMPARE_SWAP, word, desired, expected, 8);
                failed = rdma::fetch(grid, context.wait, queue, swap, seen) != WAIT_OK;
                bool is_ours = seen == expected;
                expected = seen;
                return failed || is_ours;
            },
            [&]() { return Missing{peer.value, expected, seen}; });
        done = failed ? WAIT_FAULT : tried;
    }
    if (done != WAIT_OK) return Status::FAULT;
    old = static_cast<Raw>(seen);
    return Status::OK;
}

// The same without the old value: not waited for where the NIC has the operation. One thread.
template <AtomicOp OP, class Raw>
ANABRANCH_DEVICE Status change_by_nic(const Grid& grid, const Context& context, GroupRank peer, const Raw* word, Raw value) {
    static constexpr rdma::Opcode OPCODE = NicOpcode<OP>::VALUE;
    if constexpr (rdma::supports(OPCODE, sizeof(Raw))) {
        RdmaQueue queue = rdma::load_queue(grid, nic_entry(grid, context, peer));
        u64 end = 0;
        return from_nic(rdma::post(grid, context.wait, queue, nic_operation(OPCODE, word, value, 0, sizeof(Raw)), end));
    } else {
        Raw old = 0;
        return fetch_by_nic<OP>(grid, context, peer, word, value, Raw(0), old);
    }
}

// The word now: by an operation that changes nothing, where the NIC has one, as others are atomic with respect to that; else by a read.
template <class Raw>
ANABRANCH_DEVICE Raw word_by_nic(const Grid& grid, const Context& context, GroupRank peer, const Raw* word) {
    if constexpr (rdma::supports(rdma::Opcode::FETCH_ADD, sizeof(Raw))) {
        Raw old = 0;
        fetch_by_nic<AtomicOp::ADD>(grid, context, peer, word, Raw(0), Raw(0), old);
        return old;
    } else {
        return get_value_by_nic(grid, context, peer, word);
    }
}

#else

// Without NICs these are never called.
template <AtomicOp OP, class Raw>
ANABRANCH_DEVICE Status fetch_by_nic(const Grid&, const Context&, GroupRank, const Raw*, Raw, Raw, Raw&) {
    return Status::UNREACHABLE;
}
template <AtomicOp OP, class Raw>
ANABRANCH_DEVICE Status change_by_nic(const Grid&, const Context&, GroupRank, const Raw*, Raw) {
    return Status::UNREACHABLE;
}
template <class Raw>
ANABRANCH_DEVICE Raw word_by_nic(const Grid&, const Context&, GroupRank, const Raw*) {
    return 0;
}

#endif

}  // namespace shmem
