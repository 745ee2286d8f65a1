//! What `anabranch sim --list` says of the protocols.

use crate::Protocol;

/// What a protocol is, in a sentence.
pub const fn about(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Ep => {
            "slotted dispatch, experts, and the combine that pulls; --staged for the one that pushes"
        }
        Protocol::EpCompact => {
            "dispatch that counts first, with half the room it could need; experts and combine; --staged as for ep"
        }
        Protocol::EpSplit => {
            "dispatch and combine in halves on odd ranks, in one on even; --staged as for ep"
        }
        Protocol::EpMask => {
            "dispatch and combine that go on without ranks that are late, which some are in most runs; --staged as for ep"
        }
        Protocol::EpExperts => {
            "dispatch, expert-major rows with less room than some experts need, and combine; --staged as for ep"
        }
        Protocol::EpReplay => {
            "compact dispatch with a routing that was kept, after another, and combined weights; --staged for slotted, and as for ep"
        }
        Protocol::EpNodes => {
            "dispatch, experts and combine across nodes, rows straight to their ranks; --staged as for ep"
        }
        Protocol::EpRelay => "the same with rows that go once to each node and are forwarded there",
        Protocol::Barrier => "the team barrier, between kernels that write and kernels that read",
        Protocol::StreamSignal => "signals and waits in the order of a stream, between kernels",
        Protocol::PutSignal => "put with signal, and the wait for it, of the device API",
        Protocol::PutQuiet => {
            "put, then quiet or fence, then signal, over slots used again; --staged for the next rank only"
        }
        Protocol::Gather => "waits for several signals, with data behind them",
        Protocol::DeviceBarrier => "barriers within a kernel; --staged for team_barrier",
        Protocol::Atomics => "atomic operations on words that all ranks work on",
        Protocol::Ping => "a payload and a flag to and fro between two ranks",
        Protocol::Ccl => "calls of all collectives on one channel; --staged for epochs of two bits",
        Protocol::CclMove => "collectives that move bytes, and the barrier; --staged for epochs of two bits",
        Protocol::CclPackets => "reductions in packets; --staged for epochs of two bits",
        Protocol::CclBulk => "reductions that pull or push; --staged for epochs of two bits",
        Protocol::CclNorm => {
            "sums with a norm of their rows, in one kernel or two; --staged for epochs of two bits"
        }
        Protocol::CclHops => {
            "broadcasts and reductions to a root in two hops; --staged for epochs of two bits"
        }
        Protocol::CclEngine => {
            "collectives by copies between meetings, with others through the staging; --staged for epochs of two bits"
        }
        Protocol::CclFingerprint => {
            "the comparison of calls before a collective; --staged for a call that differs in the end"
        }
        Protocol::CclPipes => {
            "sends and receives of ccl, random batches after each other; --staged for each message alone"
        }
        Protocol::CclNetwork => {
            "collectives of members on several machines, two on each; --staged for one on each"
        }
        Protocol::CclGatherMany => {
            "many tensors gathered in one launch of ccl; --staged for epochs of two bits"
        }
        Protocol::Sdma => {
            "messages by copy engines in software, whose queues kernels write; --staged for one thing that goes wrong"
        }
        Protocol::Rdma => {
            "messages by NICs in software, whose queue pairs kernels write; --staged for one thing that goes wrong"
        }
        Protocol::World => {
            "join, dispatch, experts, combine and leave of rank threads, with --fault; --staged as for ep"
        }
    }
}
