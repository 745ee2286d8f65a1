//! The device functions in a real world: its heap, its team, its control words.

use anabranch_conformance::shmem::{BARRIER, BARRIER_UNIT, BarrierArgs, spec};
use anabranch_hip::{DeviceOrdinal, LaunchShape, Runtime};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_shmem::device_api::{BarrierWorkspace, has_operation};
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, HeapMode, RankSetup, World, WorldConfig, spawn_threads};
use anabranch_transport::{Operation, Scope, Support};

use crate::device_api::barrier::expected;
use crate::device_api::ranks::{jit, pointer, pointer_at};

const ROUNDS: u32 = 30;
const THREADS: u32 = 8;

fn work(world: &World) -> Result<Vec<u64>, Error> {
    let team = world.team(world.group())?;
    let size = team.size();
    let flags =
        world.allocate(world.group(), BarrierWorkspace::flag_bytes(size), DEFAULT_ALIGNMENT, "flags")?;
    let slot_bytes = u64::from(2 * (size + 1) * THREADS * 8);
    let slots = world.allocate(world.group(), slot_bytes, DEFAULT_ALIGNMENT, "slots")?;
    let mut log = vec![0; (ROUNDS * (size + 1) * THREADS) as usize];
    let buffer = world.device().allocate(log.len() * 8)?;
    let mut words = world.device().allocate(8 + THREADS as usize * 4)?;
    words.fill(0)?;
    let unit = world.jit().load(world.device(), &spec(&BARRIER_UNIT))?;
    let stream = world.device().create_stream()?;
    let arguments = BarrierArgs {
        team: team.view(),
        workspace: BarrierWorkspace { flags: flags.offset(), epoch: pointer(&words) },
        log: pointer(&buffer),
        statuses: pointer_at(&words, 8),
        slots: slots.offset(),
        skew_ns: 20_000,
        first_round: 0,
        rounds: ROUNDS,
        kind: 1,
        operation: 0x1001,
    };
    let shape = LaunchShape { grid_blocks: 1, block_threads: THREADS, local_bytes: 0 };
    // SAFETY: all buffers live until the stream is done.
    unsafe { unit.get(BARRIER)?.launch(shape, &stream, &arguments) }?;
    world.synchronize(&stream)?;
    buffer.copy_to_host(0, bytemuck::cast_slice_mut(&mut log))?;
    // The P2P transport says of itself what the headers have.
    for peer in world.group().members() {
        for operation in Operation::ALL {
            for scope in [Scope::Thread, Scope::Wave, Scope::Block] {
                let implemented = world.support(*peer, *operation, scope) != Support::Unsupported;
                assert_eq!(implemented, has_operation(*operation, scope), "{operation} at {scope}");
            }
        }
    }
    Ok(log)
}

#[test]
fn a_world_of_threads_runs_the_device_functions() {
    for (size, wave_width, heap_mode) in
        [(2, 4, HeapMode::Static), (4, 1, HeapMode::Static), (3, 4, HeapMode::Flat)]
    {
        let config = HostConfig { devices: size, wave_width, ..HostConfig::default() };
        let runtime: Runtime = HostMachine::new(config).unwrap().runtime();
        let make = |rank: anabranch_ranks::GlobalRank| {
            let device = runtime.device(DeviceOrdinal(rank.get()))?;
            Ok(RankSetup {
                config: WorldConfig { heap_bytes: 4 << 20, heap_mode, ..WorldConfig::default() },
                device,
                jit: jit(),
            })
        };
        let logs = spawn_threads(size, make, work);
        for (rank, log) in logs.into_iter().enumerate() {
            let log = log.unwrap();
            for (round, log) in log.chunks(((size + 1) * THREADS) as usize).enumerate() {
                assert_eq!(
                    log,
                    expected(rank as u32, size, THREADS, round as u32),
                    "rank {rank}, round {round}"
                );
            }
        }
    }
}
