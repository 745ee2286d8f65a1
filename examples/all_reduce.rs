//! Sums a tensor over all ranks. `cargo run --example all_reduce` runs four ranks as threads on the `host` runtime; under torchrun, srun,
//! mpirun or `anabranch run` each process is a rank. The first argument is a configuration file: `config/h200-4.toml` for GPUs.
#![allow(
    clippy::expect_used,
    clippy::float_cmp,
    clippy::print_stdout,
    reason = "a program that checks what it shows"
)]

use anabranch::ccl::{Options, Sum, TypedTensor};
use anabranch::{Config, Error, World};

const COUNT: usize = 1 << 16;

fn main() -> anabranch::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "config/host-4.toml".to_owned());
    let config = Config::load(path)?;
    if anabranch::Environment::of_process().get("WORLD_SIZE").is_some() {
        let world = anabranch::join(&config, &anabranch::rendezvous_from_launcher(&config)?)?;
        work(&world)?;
        return Ok(world.leave()?);
    }
    for rank in anabranch::spawn_threads(&config, 4, work)? {
        rank.expect("every rank succeeds");
    }
    Ok(())
}

fn work(world: &World) -> Result<(), Error> {
    let mut communicator = world.communicator(world.group())?; // collective
    let mut memory = world.allocate(world.group(), (COUNT * 4) as u64, 256, "tensor")?; // collective: bytes, alignment, name
    let mine = vec![(world.rank().get() + 1) as f32; COUNT];
    memory.write(0, &mine.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())?;

    let stream = world.device().create_stream()?;
    let tensor = TypedTensor::<f32>::symmetric(&memory, 0, COUNT as u64)?;
    communicator.all_reduce(tensor, Sum, Options::on(&stream))?.wait_on(&stream)?;
    world.synchronize(&stream)?; // has a deadline; the error names the rank that failed

    let mut bytes = vec![0; COUNT * 4];
    memory.read(0, &mut bytes)?;
    let expected = (1..=world.size()).map(|rank| rank as f32).sum::<f32>();
    for sum in bytes.chunks_exact(4) {
        assert_eq!(f32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]), expected);
    }
    println!("{}: {COUNT} sums of {expected}", world.rank());
    Ok(())
}
