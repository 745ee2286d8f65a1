//! Worlds whose routes are copy engines, and a use of them.

use anabranch_conformance::shmem::{COPY, CopyArgs, CopyCase};
use anabranch_hip::LaunchShape;
use anabranch_hip_jit::DevicePointer;
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, HeapMode, SdmaConfig, SoftwareConfig, World};
use anabranch_transport::TransportKind;

use super::Bench;

const BYTES: u64 = 5000;

/// Small rings and packets, so that both come to their limits.
pub(crate) fn bench(ranks: u32, wave: u32, mode: HeapMode, software: SoftwareConfig) -> Bench {
    let mut bench = Bench::with_wave(ranks, wave).with_mode(mode);
    bench.config.transports = vec![TransportKind::Sdma, TransportKind::P2p];
    bench.config.sdma =
        SdmaConfig { queues: 2, ring_bytes: 512, most_copy_bytes: 1024, software, ..SdmaConfig::default() };
    bench
}

/// Every rank puts to every rank by its engines, `rounds` times, and reads what came.
pub(crate) fn exchange(world: &World, rounds: u64) -> Result<(), Error> {
    let (me, size) = (u64::from(world.rank().get()), u64::from(world.size()));
    let team = world.team(world.group())?;
    let mut out = world.allocate(world.group(), BYTES, DEFAULT_ALIGNMENT, "out")?;
    let incoming = world.allocate(world.group(), size * BYTES, DEFAULT_ALIGNMENT, "in")?;
    let words = world.allocate(world.group(), size * 8, DEFAULT_ALIGNMENT, "words")?;
    let case = |peer: u64| CopyCase {
        remote: incoming.offset() + me * BYTES,
        local: out.offset(),
        bytes: BYTES,
        signal: words.offset() + me * 8,
        value: 1,
        peer: peer as u32,
        signal_op: 1,
    };
    let cases: Vec<CopyCase> = (0..size).map(case).collect();
    let mut buffer = world.device().allocate(size_of_val(&cases[..]))?;
    buffer.copy_from_host(0, bytemuck::cast_slice(&cases))?;
    let statuses = world.device().allocate(cases.len() * 4)?;
    let stream = world.device().create_stream()?;
    let kernel = world.jit().load(world.device(), &world.kernel(COPY.unit()))?.get(COPY)?;
    let shape = LaunchShape { grid_blocks: 2, block_threads: 2 * world.device().wave_size(), local_bytes: 0 };
    let byte = |rank: u64, round: u64, at: u64| (at * 7 + rank * 31 + round * 13) as u8;
    for round in 0..rounds {
        let mine: Vec<u8> = (0..BYTES).map(|at| byte(me, round, at)).collect();
        out.write(0, &mine)?;
        let arguments = CopyArgs {
            team: team.view(),
            cases: DevicePointer::new(buffer.address()),
            statuses: DevicePointer::new(statuses.address()),
            case_count: cases.len() as u32,
            // put_signal_nbi, and a quiet behind all.
            kind: 5,
            scope: 1,
            operation: 0x1001,
        };
        // SAFETY: what the arguments name lives until the stream is synchronised.
        unsafe { kernel.launch(shape, &stream, &arguments)? };
        team.barrier(&stream)?;
        world.synchronize(&stream)?;
        let mut seen = vec![0; (size * BYTES) as usize];
        incoming.read(0, &mut seen)?;
        for (from, seen) in seen.chunks(BYTES as usize).enumerate() {
            let sent: Vec<u8> = (0..BYTES).map(|at| byte(from as u64, round, at)).collect();
            assert_eq!(seen, sent, "round {round}, from {from} to {me}");
        }
        let mut counts = vec![0; (size * 8) as usize];
        words.read(0, &mut counts)?;
        assert!(counts.chunks(8).all(|count| count == (round + 1).to_le_bytes()), "{counts:?}");
        // No rank overwrites what a peer has not read.
        team.barrier(&stream)?;
        world.synchronize(&stream)?;
    }
    Ok(())
}
