// Packets: data with flags inside. Short messages in one hop, without a fence.
//
// A channel has, at every member, `packet_units` packets for each source, stage and parity of the epoch. In epoch e senders write the
// packets of parity e % 2, with flag e in both halves. A receiver polls until both halves have flag e. A half arrives as a whole with its
// flag, so nothing has to be ordered before or after it.
//
// Two rules hold for every kernel: in each epoch every member sends at least one packet of stage 0 to every other member, and the receiver
// waits for every packet sent to it before its block ends the epoch (`end_epoch`).
//
// Why a packet may be overwritten. The next to write the packets of epoch e is the same sender, in epoch e + 2 or later. It has ended epoch
// e + 1, so it has received a packet of stage 0 of e + 1 from this member, which sent it after the block barrier that ended its epoch e,
// after the reads of all its threads. (A read is complete when its value has ended the polling loop; no store after that loop and the
// barrier precedes it.)
// Why an old packet is not mistaken for a new one. A packet holds data of some earlier epoch of the same parity, perhaps long ago, but
// after the flags last restarted at 1. Flags are the low bits of the epoch, and zero is no flag: when they are zero, the channel clears its
// own packets, passes a barrier, and takes the next epoch (`next_epoch`). What is cleared has arrived and been read, by the second rule and
// the block barrier that ended the previous epoch. No member sends new packets before all have entered the barrier, each after its
// clearing. The epochs before and after may have the same parity: the barrier replaces the alternation.
#pragma once

#include "ccl/meet.h"

namespace ccl {

// Payload bytes of a packet.
static constexpr u32 PAYLOAD = 8;
// Sources that a thread polls at once.
static constexpr u32 BATCH = 4;

ANABRANCH_DEVICE u32 epoch_fault(const Channel& channel) { return FAULT_IN_EPOCH + static_cast<u32>(channel.epoch % 2) * 4; }

ANABRANCH_DEVICE u32 packet_flag(const Channel& channel) { return static_cast<u32>(channel.epoch) & EPOCH_MASK; }

ANABRANCH_DEVICE Packet* packet_at(const CommView& comm, u64 base, const Channel& channel, u32 stage, u32 source, u64 unit) {
    u64 parity = channel.epoch % 2;
    u64 index = ((static_cast<u64>(channel.index) * 2 + parity) * 2 + stage) * comm.team.size + source;
    return reinterpret_cast<Packet*>(base + comm.packets) + index * comm.packet_units + unit;
}

ANABRANCH_DEVICE void clear_packets(const Grid& grid, const CommView& comm, const Channel& channel) {
    u64 own = member_base(grid, comm, comm.team.rank);
    u64 count = static_cast<u64>(4) * comm.team.size * comm.packet_units;
    Packet* first = reinterpret_cast<Packet*>(own + comm.packets) + channel.index * count;
    for (u64 i = grid.thread; i < count; i += grid.block_threads) packet_store(grid, first + i, Packet{{0, 0}});
}

// Starts the next epoch of the packets. Every thread of the block.
ANABRANCH_DEVICE void next_epoch(const Grid& grid, const CommView& comm, Channel& channel) {
    channel.epoch += 1;
    if ((channel.epoch & EPOCH_MASK) != 0) return;  // lint: allow(return-before-barrier): the epoch is the block's
    clear_packets(grid, comm, channel);
    meet(grid, comm, channel);
    channel.epoch += 1;
}

// Ends an epoch: no thread sends packets of the next epoch before all threads have read those of this one. Every thread of the block.
ANABRANCH_DEVICE void end_epoch(const Grid& grid, Channel& channel) {
    grid.block_barrier();
    channel_look(grid, channel, epoch_fault(channel));
}

ANABRANCH_DEVICE void send(const Grid& grid, const CommView& comm, const Channel& channel, u32 stage, u32 peer, u64 unit,
                           u64 payload) {
    u64 flag = static_cast<u64>(packet_flag(channel)) << 32;
    Packet packet = {{flag | (payload & 0xffffffffu), flag | (payload >> 32)}};
    packet_store(grid, packet_at(comm, member_base(grid, comm, peer), channel, stage, comm.team.rank, unit), packet);
}

ANABRANCH_DEVICE bool has_flag(Packet packet, u32 flag) {
    return static_cast<u32>(packet.half[0] >> 32) == flag && static_cast<u32>(packet.half[1] >> 32) == flag;
}

// Receives up to N packets at once: packet k is `unit(k)` of `source(k)`, if `is_awaited(k)`; other payloads are not modified. False after a
// fault.
template <u32 N, class IsAwaited, class Source, class Unit>
ANABRANCH_DEVICE bool receive_packets(const Grid& grid, const CommView& comm, const Channel& channel, u64 own, u32 stage,
                                      IsAwaited is_awaited, Source source, Unit unit, u64 (&payload)[N]) {
    u32 flag = packet_flag(channel);
    Packet packet[N];
    auto look = [&]() {
        bool all = true;
        ANABRANCH_UNROLL
        for (u32 k = 0; k < N; ++k) {
            if (is_awaited(k)) packet[k] = packet_load(grid, packet_at(comm, own, channel, stage, source(k), unit(k)));
        }
        ANABRANCH_UNROLL
        for (u32 k = 0; k < N; ++k) {
            if (is_awaited(k)) all = all && has_flag(packet[k], flag);
        }
        return all;
    };
    auto missing = [&]() {
        Missing who = {is_awaited(0) ? source(0) : source(1), flag, 0};
        ANABRANCH_UNROLL
        for (u32 k = 0; k < N; ++k) {
            if (is_awaited(k) && !has_flag(packet[k], flag)) who = Missing{source(k), flag, packet[k].half[0] >> 32};
        }
        return who;
    };
    if (wait_for(grid, channel.wait, PHASE_PACKETS, look, missing) != WAIT_OK) {
        channel_fail(grid, epoch_fault(channel));
        return false;
    }
    ANABRANCH_UNROLL
    for (u32 k = 0; k < N; ++k) {
        if (is_awaited(k)) payload[k] = (packet[k].half[0] & 0xffffffffu) | (packet[k].half[1] << 32);
    }
    return true;
}

// Receives the payloads of one unit from sources `first .. first + BATCH`, as far as they exist. The payload of this rank is not modified.
// False after a fault.
ANABRANCH_DEVICE bool receive(const Grid& grid, const CommView& comm, const Channel& channel, u64 own, u32 stage, u32 first,
                              u64 unit, u64 (&payload)[BATCH]) {
    auto is_awaited = [&](u32 k) { return first + k < comm.team.size && first + k != comm.team.rank; };
    auto source = [first](u32 k) { return first + k; };
    return receive_packets(grid, comm, channel, own, stage, is_awaited, source, [unit](u32) { return unit; }, payload);
}

}  // namespace ccl
