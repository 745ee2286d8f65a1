//! Collectives over the facade: settings reach the communicator, and errors come back with their kind.

use anabranch::ccl::{Options, Sum, TypedTensor};
use anabranch::config::LoadOptions;
use anabranch::{Communicator, Config, Error, ErrorKind, World, ccl_config};

fn config(set: &[&str]) -> Config {
    let set =
        ["heap.bytes=8 MiB", "device.host.wave=4"].iter().chain(set).map(|text| (*text).to_owned()).collect();
    Config::load_with(&LoadOptions { set, ..LoadOptions::default() }).unwrap().config
}

/// The sum of rank + 1 over all ranks, and how it was computed.
fn sum(config: &Config, world: &World) -> Result<(u32, String), Error> {
    let group = world.group();
    let mut communicator = Communicator::new(world, group, ccl_config(config)?)?;
    let mut memory = world.allocate(group, 4, 4, "sum")?;
    memory.write(0, &(world.rank().get() + 1).to_le_bytes())?;
    let stream = world.device().create_stream()?;
    let tensor = TypedTensor::<u32>::symmetric(&memory, 0, 1)?;
    let work = communicator.all_reduce(tensor, Sum, Options::on(&stream))?;
    work.join(config.deadline.operation.duration())?;
    let mut seen = [0; 4];
    memory.read(0, &mut seen)?;
    Ok((u32::from_le_bytes(seen), work.describe().to_owned()))
}

#[test]
fn the_settings_choose_how_a_collective_is_done() {
    for algorithm in ["packets", "pull"] {
        let config =
            config(&[&format!("ccl.algorithm={algorithm}"), "ccl.max_blocks=1", "ccl.staging_bytes=64 KiB"]);
        let results = anabranch::spawn_threads(&config, 3, |world| sum(&config, world)).unwrap();
        for result in results {
            let (value, description) = result.unwrap();
            assert_eq!(value, 6);
            assert!(description.contains(&format!("{algorithm}, 1 blocks")), "{description}");
        }
    }
}

#[test]
fn an_algorithm_that_cannot_do_the_call_is_a_matter_of_configuration() {
    let config = config(&["ccl.algorithm=staged"]);
    let results = anabranch::spawn_threads(&config, 2, |world| {
        let error = sum(&config, world).unwrap_err();
        Ok::<_, Error>((error.kind(), error.to_string()))
    });
    for result in results.unwrap() {
        let (kind, text) = result.unwrap();
        assert_eq!(
            (kind, text.as_str()),
            (ErrorKind::Config, "all_reduce cannot be done by staged: it moves bytes and reduces nothing")
        );
    }
}
