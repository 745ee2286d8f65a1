// What `bench p2p` measures: copies by kernel stores and loads, and the latency of a flag with and without data.
#include "anabranch/prelude.h"

static constexpr u32 UNROLL = 8;
// Copies `units` 16-byte units with the threads of `blocks` blocks, of which this is number `block`.
static ANABRANCH_DEVICE void copy(const Grid& grid, const Vec16* source, Vec16* target, u64 units, u32 block, u32 blocks) {
    u64 step = static_cast<u64>(blocks) * grid.block_threads;
    for (u64 first = static_cast<u64>(block) * grid.block_threads + grid.thread; first < units; first += step * UNROLL) {
        Vec16 unit[UNROLL];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) {
            u64 at = first + u * step;
            if (at < units) unit[u] = remote_load(grid, source + at);
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) {
            u64 at = first + u * step;
            if (at < units) remote_store(grid, target + at, unit[u]);
        }
    }
}

// Ranks meet in steps: in step n rank r pushes to rank r + n, or pulls from it. Steps args.first_step up to
// args.first_step + args.peers - 1 run at once.
static ANABRANCH_DEVICE u32 ahead(const P2pCopyArgs& args, u32 slot) {
    return (args.team.rank + args.first_step + slot) % args.team.size;
}
static ANABRANCH_DEVICE u32 behind(const P2pCopyArgs& args, u32 slot) {
    return (args.team.rank + args.team.size - (args.first_step + slot) % args.team.size) % args.team.size;
}

// Each block serves one peer. A push goes from my outgoing area [peer] to its incoming area [me], a pull from its
// outgoing area [me] to my incoming area [peer].
template <bool STORES>
static ANABRANCH_DEVICE void exchange(const Grid& grid, const P2pCopyArgs& args) {
    u32 slot = grid.block % args.peers;
    u32 peer = ahead(args, slot);
    u32 block = grid.block / args.peers;
    u32 blocks = (grid.grid_blocks - slot + args.peers - 1) / args.peers;
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    u64 other = private_load(grid, args.team.peer_bases + peer);
    u64 units = args.bytes / 16;
    if (STORES) {
        copy(grid, reinterpret_cast<const Vec16*>(own + args.outgoing + peer * args.stride),
             reinterpret_cast<Vec16*>(other + args.incoming + args.team.rank * args.stride), units, block, blocks);
    } else {
        copy(grid, reinterpret_cast<const Vec16*>(other + args.outgoing + args.team.rank * args.stride),
             reinterpret_cast<Vec16*>(own + args.incoming + peer * args.stride), units, block, blocks);
    }
}

ANABRANCH_KERNEL(anabranch_p2p_store, P2pCopyArgs, 1024) { exchange<true>(grid, args); }
ANABRANCH_KERNEL(anabranch_p2p_load, P2pCopyArgs, 1024) { exchange<false>(grid, args); }

// Fills my outgoing areas with words that name sender, receiver, place and run.
ANABRANCH_KERNEL(anabranch_p2p_fill, P2pCopyArgs, 1024) {
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    u64 step = static_cast<u64>(grid.grid_blocks) * grid.block_threads;
    for (u32 slot = 0; slot < args.peers; ++slot) {
        u32 peer = args.pushed ? ahead(args, slot) : behind(args, slot);
        Vec16* outgoing = reinterpret_cast<Vec16*>(own + args.outgoing + peer * args.stride);
        for (u64 at = static_cast<u64>(grid.block) * grid.block_threads + grid.thread; at < args.bytes / 16; at += step) {
            Vec16 unit = {{args.team.rank, peer, static_cast<u32>(at), args.seed}};
            heap_store(grid, outgoing + at, unit);
        }
    }
}

// Counts the units of my incoming areas that are not what their sender wrote in this run.
ANABRANCH_KERNEL(anabranch_p2p_check, P2pCopyArgs, 1024) {
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    u64 step = static_cast<u64>(grid.grid_blocks) * grid.block_threads;
    for (u32 slot = 0; slot < args.peers; ++slot) {
        u32 peer = args.pushed ? behind(args, slot) : ahead(args, slot);
        const Vec16* incoming = reinterpret_cast<const Vec16*>(own + args.incoming + peer * args.stride);
        for (u64 at = static_cast<u64>(grid.block) * grid.block_threads + grid.thread; at < args.bytes / 16; at += step) {
            Vec16 unit = heap_load(grid, incoming + at);
            bool right = unit.word[0] == peer && unit.word[1] == args.team.rank &&
                         unit.word[2] == static_cast<u32>(at) && unit.word[3] == args.seed;
            if (!right) fetch_add_device(grid, args.wrong, u64(1));
        }
    }
}

enum PingPhase : u32 { PING_WAIT = 1 };
// What one thread sends of the payload: in registers, so that the rounds measure the way to the peer and not a load.
static constexpr u32 PAYLOAD_UNITS = 2;
static ANABRANCH_DEVICE void send_payload(const Grid& grid, const P2pPingArgs& args, const Vec16 (&unit)[PAYLOAD_UNITS],
                                          Vec16* target, u64* flag, u64 value) {
    ANABRANCH_UNROLL
    for (u32 u = 0; u < PAYLOAD_UNITS; ++u) {
        u64 at = static_cast<u64>(u) * grid.block_threads + grid.thread;
        if (at < args.bytes / 16) remote_store(grid, target + at, unit[u]);
    }
    block_release_system(grid);
    if (grid.thread == 0) flag_store(grid, flag, value);
}

// Set by thread 0 when its wait failed; read by the block behind the barrier that also hands over what was acquired. Between
// two waits stands the barrier of a send, so no wait reads the word of the next one.
static constexpr LocalArray<u32> PING_FAULT = {0};
static ANABRANCH_DEVICE bool await_payload(const Grid& grid, const P2pPingArgs& args, const WaitContext& wait,
                                           const u64* flag, u64 value) {
    if (grid.thread == 0) {
        u64 seen;
        WaitStatus status = wait_until(grid, wait, PING_WAIT, args.peer, value, flag,
                                       [value](u64 word) { return has_reached(word, value); }, seen);
        acquire_after_wait(grid);
        if (status != WAIT_OK) PING_FAULT.set(grid, 0, 1u);
    }
    grid.block_barrier();
    return PING_FAULT.get(grid, 0) == 0;
}

// What the payload's unit `at` holds in a verifying launch: it differs from round to round and from rank to rank.
static ANABRANCH_DEVICE Vec16 payload_unit(u32 sender, u64 value, u64 at) {
    return {{sender, static_cast<u32>(value), static_cast<u32>(value >> 32), static_cast<u32>(at)}};
}

// Counts the units that arrived and are not those of this round. The next round cannot have overwritten them: its
// flag is stored behind a barrier of this block, and the peer sends only after it has seen that flag.
static ANABRANCH_DEVICE void check_payload(const Grid& grid, const P2pPingArgs& args, const Vec16* incoming, u64 value) {
    for (u64 at = grid.thread; at < args.bytes / 16; at += grid.block_threads) {
        Vec16 unit = heap_load(grid, incoming + at);
        Vec16 right = payload_unit(args.peer, value, at);
        bool same = unit.word[0] == right.word[0] && unit.word[1] == right.word[1] && unit.word[2] == right.word[2] &&
                    unit.word[3] == right.word[3];
        if (!same) fetch_add_device(grid, args.wrong, u64(1));
    }
}

// The rounds of a ping with a payload; whether one of them ended in a fault. Only a verifying launch changes the
// payload and looks at what arrives, so that a timed one does nothing but send and wait.
template <bool VERIFY>
static ANABRANCH_DEVICE bool exchange_payloads(const Grid& grid, const P2pPingArgs& args, const WaitContext& wait, u64 base,
                                               const u64* mine, u64* theirs) {
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    u64 other = private_load(grid, args.team.peer_bases + args.peer);
    const Vec16* source = reinterpret_cast<const Vec16*>(own + args.outgoing);
    const Vec16* incoming = reinterpret_cast<const Vec16*>(own + args.incoming);
    Vec16* target = reinterpret_cast<Vec16*>(other + args.incoming);
    Vec16 unit[PAYLOAD_UNITS];
    ANABRANCH_UNROLL
    for (u32 u = 0; u < PAYLOAD_UNITS; ++u) {
        u64 at = static_cast<u64>(u) * grid.block_threads + grid.thread;
        if (at < args.bytes / 16) unit[u] = heap_load(grid, source + at);
    }
    if (grid.thread == 0) PING_FAULT.set(grid, 0, 0u);
    bool fault = false;
    for (u32 round = 1; round <= args.rounds && !fault; ++round) {
        u64 value = base + round;
        if (VERIFY) {
            ANABRANCH_UNROLL
            for (u32 u = 0; u < PAYLOAD_UNITS; ++u) {
                unit[u] = payload_unit(args.team.rank, value, static_cast<u64>(u) * grid.block_threads + grid.thread);
            }
        }
        if (args.first) send_payload(grid, args, unit, target, theirs, value);
        fault = !await_payload(grid, args, wait, mine, value);
        if (VERIFY && !fault) check_payload(grid, args, incoming, value);
        if (!args.first) send_payload(grid, args, unit, target, theirs, value);
    }
    return fault;
}

// One block on each of two ranks. `first` writes `bytes` and a flag to the other, which answers in kind; `rounds` times.
// Round n (from 1) of a launch has the value base + n; `base` lives in device memory and grows by `rounds` a launch.
// No flag is overwritten too early: the next round's flag is stored only after the answer to this one was seen.
static ANABRANCH_DEVICE void ping(const Grid& grid, const P2pPingArgs& args) {
    u64 base = grid.block_broadcast(grid.thread == 0 ? private_load(grid, args.base) : 0);
    WaitContext wait = wait_context(grid, args.team.control, args.operation, args.team.group, args.team.rank, base);
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    u64 other = private_load(grid, args.team.peer_bases + args.peer);
    u64* mine = reinterpret_cast<u64*>(own + args.flags_offset + static_cast<u64>(args.peer) * args.flag_stride);
    u64* theirs = reinterpret_cast<u64*>(other + args.flags_offset + static_cast<u64>(args.team.rank) * args.flag_stride);
    bool fault = false;
    if (args.bytes == 0) {
        // A bare flag: one thread, no fence, as there is no data to order.
        for (u32 round = 1; round <= args.rounds && grid.thread == 0 && !fault; ++round) {
            u64 seen;
            u64 value = base + round;
            if (args.first) flag_store(grid, theirs, value);  // lint: allow(flag-after-barrier): bare
            fault = wait_until<RELAXED>(grid, wait, PING_WAIT, args.peer, value, mine,
                                        [value](u64 flag) { return has_reached(flag, value); }, seen) != WAIT_OK;
            if (!args.first) flag_store(grid, theirs, value);  // lint: allow(flag-after-barrier): bare
        }
    } else if (args.verify) {
        fault = exchange_payloads<true>(grid, args, wait, base, mine, theirs);
    } else {
        fault = exchange_payloads<false>(grid, args, wait, base, mine, theirs);
    }
    grid.block_barrier();
    if (grid.thread == 0 && !fault) private_store(grid, args.base, base + args.rounds);
}

ANABRANCH_KERNEL(anabranch_p2p_ping, P2pPingArgs, 1024) {
    bool poisoned = grid.block_broadcast(grid.thread == 0 && is_poisoned(grid, args.team.control) ? 1 : 0) != 0;
    if (!poisoned) ping(grid, args);
}
