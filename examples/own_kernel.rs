//! A user's kernel on the symmetric heap (`own_kernel.hip`): four ranks, which are threads on the `host` runtime, pass rows round a
//! ring. The same kernel is compiled at run time for AMD and NVIDIA GPUs: give a configuration file as the first argument.
#![allow(
    clippy::expect_used,
    clippy::float_cmp,
    clippy::print_stdout,
    reason = "a program that checks what it shows"
)]

use anabranch::hip::{DeviceBuffer, LaunchShape};
use anabranch::jit::{DevicePointer, KernelSpec, device_struct, kernel_unit};
use anabranch::shmem::TeamView;
use anabranch::shmem::device_api::{BarrierWorkspace, DEVICE_HEADERS};
use anabranch::{Config, Error, World};

device_struct! {
    /// Arguments of `ring_add`.
    struct RingArgs {
        /// The group's heaps, as this rank reaches them.
        team: TeamView,
        /// This rank's row.
        row: DevicePointer<f32>,
        /// Its sums.
        sums: DevicePointer<f32>,
        /// Offset of the inbox in every rank's heap, bytes.
        inbox: u64,
        /// Offset of the flag that the inbox is full.
        arrived: u64,
        /// Elements of a row.
        count: u64,
    }
}

kernel_unit! {
    static UNIT: "own_kernel", include_str!("own_kernel.hip"), &[DEVICE_HEADERS], layouts [BarrierWorkspace];
    const RING_ADD: Kernel<RingArgs> = "ring_add";
}

const COUNT: usize = 1000;

fn main() -> anabranch::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "config/host-4.toml".to_owned());
    for rank in anabranch::spawn_threads(&Config::load(path)?, 4, work)? {
        rank.expect("every rank succeeds");
    }
    Ok(())
}

fn work(world: &World) -> Result<(), Error> {
    let (device, stream) = (world.device(), world.device().create_stream()?);
    let team = world.team(world.group())?; // collective
    let inbox = world.allocate(world.group(), (COUNT * 4) as u64, 256, "inbox")?; // collective
    let mut arrived = world.allocate(world.group(), 8, 8, "arrived")?;
    arrived.write(0, &[0; 8])?;
    world.barrier(world.group(), "flags are zero")?; // no rank signals before

    let value = |rank: u32, at: usize| (rank * 10_000) as f32 + at as f32;
    let mine: Vec<u8> = (0..COUNT).flat_map(|at| value(world.rank().get(), at).to_le_bytes()).collect();
    let (mut row, mut sums) = (device.allocate(COUNT * 4)?, device.allocate(COUNT * 4)?);
    row.copy_from_host(0, &mine)?;
    sums.copy_from_host(0, &vec![0; COUNT * 4])?;

    let kernel = world.jit().load(device, &KernelSpec::new(&UNIT))?.get(RING_ADD)?;
    let pointer = |buffer: &DeviceBuffer| DevicePointer::new(buffer.address());
    let arguments = RingArgs {
        team: team.view(),
        row: pointer(&row),
        sums: pointer(&sums),
        inbox: inbox.offset(),
        arrived: arrived.offset(),
        count: COUNT as u64,
    };
    let shape = LaunchShape { grid_blocks: 1, block_threads: 256, local_bytes: 0 };
    team.launch_in_order(&stream, &[inbox.usage(), arrived.usage()], || {
        // SAFETY: both buffers and the heap live until `synchronize` below, and nothing else uses them during that time.
        Ok(unsafe { kernel.launch(shape, &stream, &arguments) }?)
    })?;
    world.synchronize(&stream)?;

    let mut bytes = vec![0; COUNT * 4];
    sums.copy_to_host(0, &mut bytes)?;
    let before = (world.rank().get() + world.size() - 1) % world.size();
    for (at, sum) in bytes.chunks_exact(4).enumerate() {
        let expected = value(world.rank().get(), at) + value(before, at);
        assert_eq!(f32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]), expected);
    }
    println!("{}: {COUNT} sums with the row of rank {before}", world.rank());
    Ok(())
}
