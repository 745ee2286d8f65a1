//! From a configuration to a world, over the facade.

#[cfg(feature = "rdma")]
use std::num::NonZeroU32;

use anabranch::config::LoadOptions;
use anabranch::{Config, Environment, Error, ErrorKind, Platform, ProcessLayout};

fn config(set: &[&str]) -> Result<Config, Error> {
    let set =
        ["heap.bytes=1 MiB", "deadline.rendezvous=20 s"].iter().chain(set).map(|text| (*text).to_owned());
    Ok(Config::load_with(&LoadOptions { set: set.collect(), ..LoadOptions::default() })?.config)
}

#[test]
fn threads_join_one_world() {
    for mode in ["static", "flat"] {
        let config = config(&["device.host.wave=4", &format!("heap.mode={mode}")]).unwrap();
        let results = anabranch::spawn_threads(&config, 5, |world| {
            let said = world.exchange(world.group(), "greet", &[world.rank().get() as u8])?;
            assert_eq!(world.flat_heap().is_some(), mode == "flat");
            Ok::<_, anabranch::shmem::Error>((said, world.device().wave_size(), world.device().ordinal().0))
        });
        let results: Vec<_> = results.unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!(results.len(), 5);
        for (rank, (said, wave, device)) in results.into_iter().enumerate() {
            assert_eq!(said, [[0], [1], [2], [3], [4]]);
            assert_eq!((wave, device as usize), (4, rank), "each rank has a device of its own");
        }
    }
}

#[cfg(feature = "seeded")]
#[test]
fn a_seed_decides_for_ranks_that_are_threads() {
    let seeded = ["device.host.schedule=seeded", "device.host.seed=7"];
    let flat = config(&[&seeded[..], &["heap.mode=flat"]].concat()).unwrap();
    let config = config(&seeded).unwrap();
    let run = |config: &Config| {
        let results = anabranch::spawn_threads(config, 3, |world| {
            let team = world.team(world.group())?;
            let stream = world.device().create_stream()?;
            team.barrier(&stream)?;
            world.synchronize(&stream)?;
            let said = world.exchange(world.group(), "greet", &[world.rank().get() as u8])?;
            Ok::<_, anabranch::shmem::Error>((said, world.device().wave_size()))
        });
        results.unwrap().into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    let (first, again) = (run(&config), run(&config));
    assert_eq!(first, again);
    assert!(first.iter().all(|(said, wave)| said == &[[0], [1], [2]] && *wave == 4), "{first:?}");
    assert_eq!(run(&flat), first, "physical memory is known to the seeded machine too");
    let processes = ProcessLayout::Processes { ranks: 2 };
    let error = Platform::open(&config, processes).unwrap_err();
    assert!(matches!(error, Error::SeededProcesses { ranks: 2 }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Config);
    Platform::open(&config, ProcessLayout::Processes { ranks: 1 }).unwrap();
}

#[cfg(feature = "seeded")]
#[test]
fn a_configured_death_is_an_error_that_names_the_rank() {
    let set = ["device.host.schedule=seeded", "device.host.seed=7", "device.host.faults=kill:1@40"];
    let results = anabranch::spawn_threads(&config(&set).unwrap(), 2, |world| {
        world.barrier(world.group(), "meet").map(drop)
    });
    let survivor = results.unwrap().swap_remove(0).unwrap_err().to_string();
    assert!(survivor.contains("rank 1"), "{survivor}");
}

#[test]
fn listed_devices_are_used_in_their_order() {
    let config = config(&["device.devices=3,1"]).unwrap();
    let results = anabranch::spawn_threads(&config, 2, |world| Ok::<_, Error>(world.device().ordinal().0));
    let ordinals: Vec<u32> = results.unwrap().into_iter().map(Result::unwrap).collect();
    assert_eq!(ordinals, [3, 1]);
}

#[test]
fn more_ranks_than_devices_is_an_error_before_anything_starts() {
    let config = config(&["device.host.count=2"]).unwrap();
    let error = anabranch::spawn_threads(&config, 3, |_| Ok::<_, Error>(())).unwrap_err();
    assert!(matches!(error, Error::TooManyRanks { ranks: 3, .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Config);
    let text = error.to_string();
    assert!(text.contains("3 ranks") && text.contains("device.host.count is 2"), "{text}");
}

#[test]
fn a_missing_runtime_error_names_where_it_was_looked_for() {
    let config = config(&["device.runtime=amd", "device.library=/nonexistent/libamdhip64.so.7"]).unwrap();
    let environment: Environment = [("HOME".to_owned(), "/tmp".to_owned())].into_iter().collect();
    let opened = Platform::open_with(&config, ProcessLayout::Threads { ranks: 1 }, &environment, None);
    // Where AMD's library is installed, the named one is passed over and this proves nothing.
    let Err(error) = opened else { return };
    assert_eq!(error.kind(), ErrorKind::Environment);
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(next) = cause {
        text.push_str(&next.to_string());
        cause = next.source();
    }
    assert!(text.contains("/nonexistent/libamdhip64.so.7"), "{text}");
}

#[test]
#[cfg(feature = "rdma")]
fn what_a_driver_of_nics_lacks_ends_a_world_of_two_machines_and_not_that_of_one() {
    for driver in ["verbs", "mlx5", "auto"] {
        let set = ["transport.order=p2p,rdma", &format!("transport.rdma.driver={driver}")];
        let config = config(&set).unwrap();
        assert_eq!(anabranch::world_config(&config).nic.name(), driver);
        let platform = Platform::open(&config, ProcessLayout::Threads { ranks: 2 }).unwrap();
        let apart = platform.as_machines(NonZeroU32::new(2).unwrap());
        for result in apart.spawn_threads(|_| Ok::<_, Error>(())).unwrap() {
            let error = result.unwrap_err();
            let text = format!("{error}: {}", anabranch::hip::with_causes(&error));
            // What is missing depends on the machine; that something is does not, as no port is named that a fake machine's rank could have.
            let missing = ["no NIC can be used", "cannot be opened", "failed on"];
            assert!(text.contains("rdma: ") && missing.iter().any(|part| text.contains(part)), "{text}");
        }
        // Ranks that map each other's memory need no NIC.
        let results = anabranch::spawn_threads(&config, 2, |world| {
            Ok::<_, Error>(world.routes().iter().map(|route| route.kind.to_string()).collect::<Vec<_>>())
        });
        let kinds: Vec<_> = results.unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!(kinds, [["p2p", "p2p"], ["p2p", "p2p"]]);
    }
}

#[test]
#[cfg(feature = "libfabric")]
fn libfabric_carries_a_world_of_two_nodes_and_names_what_it_lacks() {
    if let Err(error) =
        anabranch_transport_ofi::OfiNics::new(Some("tcp".to_owned())).survey(&["=lo".to_owned()])
        && error.to_string().contains("package is libfabric1")
    {
        println!("skipped: {error}");
        return;
    }
    let by = |provider: &str| {
        let provider = format!("transport.rdma.fabric_provider={provider}");
        let set = [
            "transport.order=p2p,rdma",
            "transport.rdma.driver=libfabric",
            "transport.rdma.nics=lo,shm",
            &provider,
        ];
        let platform = Platform::open(&config(&set).unwrap(), ProcessLayout::Threads { ranks: 2 }).unwrap();
        platform.as_machines(NonZeroU32::new(2).unwrap())
    };
    let routes = by("tcp").spawn_threads(|world| {
        let routes = world.routes().iter().map(|route| format!("{}: {}", route.kind, route.reason));
        Ok::<_, Error>(routes.collect::<Vec<_>>())
    });
    for (rank, routes) in routes.unwrap().into_iter().enumerate() {
        let route = &routes.unwrap()[1 - rank];
        let parts = ["rdma: ", "posted by the host", "libfabric's tcp", " on lo"];
        assert!(parts.iter().all(|part| route.contains(part)), "{route}");
    }
    // Which of shm's two errors it is depends on the environment of the tests.
    let shared = ["FI_SHM_DISABLE_CMA=1 has to be in the environment", "both are in process"];
    for (provider, expected) in
        [("shm", &shared[..]), ("pigeons", &["finds nothing for provider \"pigeons\""][..])]
    {
        for result in by(provider).spawn_threads(|_| Ok::<_, Error>(())).unwrap() {
            let error = result.unwrap_err();
            let text = format!("{error}: {}", anabranch::hip::with_causes(&error));
            let is_told = expected.iter().any(|words| text.contains(words));
            assert!(text.contains("rdma: ") && is_told, "{text}");
        }
    }
}
