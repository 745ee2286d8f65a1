//! Three ranks, which are threads, joined by the transport of this crate: kernels of its own device code count in each other's heaps.
//! Then the link of one rank is cut, and every rank gets an error that names it.

mod parcels;

use std::sync::Arc;

use anabranch::hip::{Device, LaunchShape};
use anabranch::jit::control::WaitControl;
use anabranch::jit::{DevicePointer, Jit, KernelSpec, PRELUDE, device_struct, kernel_unit};
use anabranch::shmem::{Error, World, WorldConfig};
use anabranch::transport::TransportKind;
use anabranch::{Config, GlobalRank, ProcessLayout, Platform, world_config};

use parcels::Parcels;

const RANKS: u32 = 3;
/// More than a mailbox holds.
const COUNT: u64 = 50;

device_struct! {
    /// Arguments of `parcels_count`.
    struct CountArgs {
        /// The mailbox of each rank.
        mailboxes: DevicePointer<DevicePointer<u64>>,
        /// This rank's words, one for each rank.
        words: DevicePointer<u64>,
        control: DevicePointer<WaitControl>,
        /// Of the words in every heap.
        offset: u64,
        count: u64,
        group: u64,
        rank: u32,
        ranks: u32,
        /// Users' operations have numbers from 0x1000 on.
        operation: u32,
        reserved: u32,
    }
}

kernel_unit! {
    static COUNT_UNIT: "parcels_count", include_str!("../device/count.hip"), &[PRELUDE, parcels::DEVICE_HEADERS];
    const COUNT_WORDS: Kernel<CountArgs> = "parcels_count";
}

fn main() -> anabranch::Result<()> {
    let mut config = Config::default();
    config.heap.bytes = Some(anabranch::config::ByteSize(1 << 20));
    let platform = Platform::open(&config, ProcessLayout::Threads { ranks: RANKS })?;
    for counted in on_every_rank(&platform, |world, parcels| count(world, parcels)) {
        assert_eq!(counted.expect("no link is cut"), [COUNT; RANKS as usize - 1]);
    }
    println!("{RANKS} ranks counted to {COUNT} in each other's heaps");

    let outcomes = on_every_rank(&platform, |world, parcels| {
        if world.rank() == GlobalRank::new(1) {
            parcels.fail(GlobalRank::new(2));
        }
        count(world, parcels)
    });
    for outcome in outcomes {
        let error = outcome.expect_err("the link from rank 1 to rank 2 is cut");
        let text = anabranch::hip::with_causes(&error);
        println!("{text}");
        assert!(text.contains("rank 1") && text.contains("the link was cut"), "{text}");
    }
    Ok(())
}

/// Joins a world over parcels on each rank, a thread, and does `work` there.
fn on_every_rank<T: Send>(
    platform: &Platform,
    work: impl Fn(&World, &Parcels) -> Result<T, Error> + Sync,
) -> Vec<Result<T, Error>> {
    let world = |rendezvous: Arc<dyn anabranch::bootstrap::Rendezvous>, device: Device, jit: Jit| {
        let parcels = Parcels::new(rendezvous.rank(), device.clone());
        let config = WorldConfig { transports: vec![TransportKind::Rdma], ..world_config(platform.config()) };
        let world = World::join_with(config, device, jit, rendezvous, vec![Box::new(parcels.clone())])?;
        let outcome = work(&world, &parcels);
        world.leave().and(outcome)
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = anabranch::bootstrap::threads(RANKS).into_iter().enumerate().collect();
        let threads = ranks.into_iter().map(|(rank, rendezvous)| {
            let device = platform.device(rank as u32).expect("each rank has a device");
            scope.spawn(|| world(Arc::new(rendezvous), device, platform.jit().clone()))
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Counts in the heaps of the others: the last numbers that they wrote here.
fn count(world: &World, parcels: &Parcels) -> Result<Vec<u64>, Error> {
    let mut memory = world.allocate(world.group(), u64::from(RANKS) * 8, 8, "words")?;
    memory.write(0, &[0; RANKS as usize * 8])?;
    world.barrier(world.group(), "words are zero")?;
    let table = parcels.table(RANKS)?;
    let own = world.peer_base(world.rank()).expect("a rank's own heap is mapped");
    let arguments = CountArgs {
        mailboxes: DevicePointer::new(table.address()),
        words: DevicePointer::new(own.offset(memory.offset())),
        control: world.control(),
        offset: memory.offset(),
        count: COUNT,
        group: 0,
        rank: world.rank().get(),
        ranks: RANKS,
        operation: 0x1000,
        reserved: 0,
    };
    let (device, stream) = (world.device(), world.device().create_stream()?);
    let kernel = world.jit().load(device, &KernelSpec::new(&COUNT_UNIT))?.get(COUNT_WORDS)?;
    let shape = LaunchShape { grid_blocks: 1, block_threads: 1, local_bytes: 0 };
    // SAFETY: what the arguments point to outlives the wait below.
    unsafe { kernel.launch(shape, &stream, &arguments) }?;
    world.synchronize(&stream)?;
    world.barrier(world.group(), "all have counted")?;
    let mut words = vec![0; RANKS as usize * 8];
    memory.read(0, &mut words)?;
    let others = words.chunks_exact(8).zip(0..).filter(|(_, rank)| *rank != world.rank().get());
    Ok(others.map(|(word, _)| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect())
}
