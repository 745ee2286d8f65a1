//! What launchers say, and what is wrong with it.

use anabranch_bootstrap::launcher::{Launch, Launcher, Options, from_environment, from_environment_with};
use anabranch_bootstrap::{Error, Secret};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

const TORCHRUN: &str =
    "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=head MASTER_PORT=29500";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                        OMPI_COMM_WORLD_LOCAL_SIZE=2 ANABRANCH_BOOTSTRAP=head:7000";
const MPICH: &str =
    "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 ANABRANCH_BOOTSTRAP=10.0.0.1:7000";
const SLURM: &str = "SLURM_PROCID=9 SLURM_NTASKS=11 SLURM_LOCALID=1 SLURM_NODEID=2 \
                     SLURM_STEP_TASKS_PER_NODE=4(x2),3 SLURM_STEP_NODELIST=node[03-05] \
                     SLURM_JOB_ID=1234567 SLURM_STEP_ID=2";

const EXPLICIT: &str = "ANABRANCH_RANK=1 ANABRANCH_WORLD_SIZE=6 ANABRANCH_LOCAL_RANK=0 \
                        ANABRANCH_LOCAL_WORLD_SIZE=3 ANABRANCH_BOOTSTRAP=head:7000";
// Flux sets MPICH's variables too.
const FLUX: &str = "FLUX_TASK_RANK=5 FLUX_JOB_SIZE=8 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_NNODES=2 FLUX_JOB_ID=77 \
                    PMI_RANK=5 PMI_SIZE=8 ANABRANCH_BOOTSTRAP=head:7000";

/// The variables of a text, with changes: `NAME=value` sets, `NAME=` removes.
fn variables(text: &str, changes: &str) -> BTreeMap<String, String> {
    format!("{text} {changes}")
        .split_whitespace()
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn launch(text: &str, changes: &str) -> Result<Launch, Error> {
    let variables = variables(text, changes);
    from_environment(&|name| variables.get(name).cloned())
}

fn place(launch: &Launch) -> (Launcher, [u32; 4], &str) {
    (launch.origin, [launch.rank, launch.size, launch.local_rank, launch.local_size], &launch.address)
}

#[test]
fn every_launcher_is_understood() {
    assert_eq!(place(&launch(TORCHRUN, "").unwrap()), (Launcher::Torchrun, [5, 8, 1, 4], "head:29501"));
    assert_eq!(place(&launch(OPEN_MPI, "").unwrap()), (Launcher::OpenMpi, [3, 4, 1, 2], "head:7000"));
    assert_eq!(place(&launch(EXPLICIT, "").unwrap()), (Launcher::Explicit, [1, 6, 0, 3], "head:7000"));
    assert_eq!(place(&launch(FLUX, "").unwrap()), (Launcher::Flux, [5, 8, 1, 4], "head:7000"));
    let cray = launch(MPICH, "MPI_LOCALRANKID= MPI_LOCALNRANKS= PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=4").unwrap();
    assert_eq!(place(&cray), (Launcher::Mpich, [2, 4, 1, 4], "10.0.0.1:7000"));
    // A step of fewer tasks than the job.
    let step = launch(SLURM, "SLURM_STEP_NUM_TASKS=10").unwrap();
    assert_eq!((step.rank, step.size), (9, 10));
    assert_eq!(place(&launch(MPICH, "").unwrap()), (Launcher::Mpich, [2, 4, 0, 2], "10.0.0.1:7000"));
    let port = 20_000 + (31 * 1_234_567 + 2) % 12_000;
    assert_eq!(
        place(&launch(SLURM, "").unwrap()),
        (Launcher::Slurm, [9, 11, 1, 3], format!("node03:{port}").as_str())
    );
}

#[test]
fn the_order_is_the_documented_one() {
    let origin = |text: &str| launch(text, "").unwrap().origin;
    assert_eq!(origin(&[SLURM, MPICH, OPEN_MPI, TORCHRUN].join(" ")), Launcher::Torchrun);
    assert_eq!(origin(&[TORCHRUN, FLUX, EXPLICIT].join(" ")), Launcher::Explicit);
    assert_eq!(origin(&[SLURM, FLUX, OPEN_MPI].join(" ")), Launcher::OpenMpi);
    assert_eq!(origin(&[SLURM, MPICH, FLUX].join(" ")), Launcher::Flux);
    assert_eq!(origin(&[SLURM, MPICH, OPEN_MPI].join(" ")), Launcher::OpenMpi);
    assert_eq!(origin(&[SLURM, MPICH].join(" ")), Launcher::Mpich);
    // srun with PMI sets both, alike.
    assert_eq!(origin(&[SLURM, "PMI_RANK=9 PMI_SIZE=11"].join(" ")), Launcher::Slurm);
    let Err(Error::NoLauncher { looked_for }) = launch("HOME=/root RANK=", "") else { panic!("found one") };
    let names =
        ["ANABRANCH_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "FLUX_TASK_RANK", "PMI_RANK", "SLURM_PROCID"];
    assert_eq!(looked_for, names);
}

#[test]
fn the_address_can_be_chosen_in_three_ways() {
    let address = |text: &str, changes: &str| launch(text, changes).unwrap().address;
    assert_eq!(address(TORCHRUN, "ANABRANCH_BOOTSTRAP=[::1]:80"), "[::1]:80");
    assert_eq!(address(TORCHRUN, "ANABRANCH_BOOTSTRAP=a:80,10.0.0.1:80"), "a:80,10.0.0.1:80");
    assert_eq!(address(SLURM, "MASTER_ADDR=fe80::1 MASTER_PORT=100"), "[fe80::1]:101");
    assert_eq!(address(OPEN_MPI, "ANABRANCH_BOOTSTRAP= MASTER_ADDR=a MASTER_PORT=100"), "a:101");
    let variables = variables(TORCHRUN, "");
    let options = Options { port_offset: 0 };
    let launch = from_environment_with(&|name| variables.get(name).cloned(), options).unwrap();
    assert_eq!(launch.address, "head:29500");
}

#[test]
fn two_steps_of_a_job_have_different_ports_in_the_documented_range() {
    for job in [0_u64, 1, 99, 123_456_789, u64::MAX] {
        let port = |step: u32| {
            let address = launch(SLURM, &format!("SLURM_JOB_ID={job} SLURM_STEP_ID={step}")).unwrap().address;
            address.rsplit_once(':').unwrap().1.parse::<u16>().unwrap()
        };
        assert!((20_000..32_000).contains(&port(0)) && (20_000..32_000).contains(&port(1)));
        assert_ne!(port(0), port(1));
    }
}

#[test]
fn the_secret_is_passed_on_and_not_printed() {
    assert_eq!(launch(TORCHRUN, "").unwrap().secret, Secret::none());
    let launched = launch(TORCHRUN, "ANABRANCH_SECRET=sixteen-letters-").unwrap();
    assert_eq!(launched.secret, Secret::new("sixteen-letters-"));
    assert!(!format!("{launched:?}").contains("sixteen"));
    let short = launch(TORCHRUN, "ANABRANCH_SECRET=hush").unwrap_err().to_string();
    assert_eq!(short, "ANABRANCH_SECRET: the secret has 4 bytes, and at least 16 are needed");

    let path = std::env::temp_dir().join(format!("anabranch-launcher-secret-{}", std::process::id()));
    std::fs::write(&path, "from a file, and long enough\n").unwrap();
    let by_file = format!("ANABRANCH_SECRET_FILE={}", path.display());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(launch(TORCHRUN, &by_file).unwrap_err(), Error::Secret { .. }));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let launched = launch(TORCHRUN, &by_file).unwrap();
    assert_eq!(launched.secret, Secret::new("from a file, and long enough"));
    let both = launch(TORCHRUN, &format!("{by_file} ANABRANCH_SECRET=sixteen-letters-")).unwrap_err();
    assert!(both.to_string().contains("ANABRANCH_SECRET is set as well"), "{both}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn being_insecure_is_asked_for_in_one_way() {
    let insecure = |changes: &str| launch(TORCHRUN, changes).map(|launch| launch.insecure);
    assert!(!insecure("").unwrap() && !insecure("ANABRANCH_INSECURE=0").unwrap());
    assert!(insecure("ANABRANCH_INSECURE=1").unwrap());
    let error = insecure("ANABRANCH_INSECURE=yes").unwrap_err().to_string();
    assert_eq!(error, "ANABRANCH_INSECURE=yes: 0 or 1");
}

#[test]
fn ranks_of_one_machine_without_a_secret_meet_on_loopback() {
    let alone = "RANK=1 LOCAL_WORLD_SIZE=4 WORLD_SIZE=4";
    let address = |changes: &str| launch(TORCHRUN, &format!("{alone} {changes}")).unwrap().address;
    assert_eq!(address(""), "127.0.0.1:29501");
    assert_eq!(address("ANABRANCH_SECRET=sixteen-letters-"), "head:29501");
    assert_eq!(address("ANABRANCH_INSECURE=1"), "head:29501");
    assert_eq!(address("ANABRANCH_BOOTSTRAP=head:80"), "head:80");
}

#[test]
fn runs_and_their_restarts_are_distinguished() {
    let session = |text: &str, changes: &str| {
        let session = launch(text, changes).unwrap().session;
        (session.run, session.generation)
    };
    let elastic = "TORCHELASTIC_RUN_ID=abc TORCHELASTIC_RESTART_COUNT=2";
    // On several machines, each agent counts for itself.
    assert_eq!(session(TORCHRUN, elastic), ("abc".into(), 0));
    let alone = format!("{elastic} RANK=1 LOCAL_WORLD_SIZE=4 WORLD_SIZE=4");
    assert_eq!(session(TORCHRUN, &alone), ("abc".into(), 2));
    assert_eq!(session(TORCHRUN, ""), (String::new(), 0));
    assert_eq!(session(SLURM, "SLURM_RESTART_COUNT=1"), ("1234567.2".into(), 1));
    assert_eq!(session(FLUX, ""), ("77".into(), 0));
    assert_eq!(session(EXPLICIT, "ANABRANCH_RUN_ID=r ANABRANCH_RESTART_COUNT=3"), ("r".into(), 3));
    assert_eq!(session(OPEN_MPI, "PMIX_NAMESPACE=job-7@1"), ("job-7@1".into(), 0));
    let error = launch(SLURM, "SLURM_RESTART_COUNT=x").unwrap_err().to_string();
    assert_eq!(error, "SLURM_RESTART_COUNT=x: a whole number of at most 32 bits, not negative");
}

#[test]
fn what_is_missing_or_malformed_is_named_with_its_value() {
    for (text, changes, words) in [
        (
            TORCHRUN,
            "WORLD_SIZE=",
            "torchrun is the launcher, but WORLD_SIZE (the number of ranks) is not set",
        ),
        (TORCHRUN, "WORLD_SIZE=four", "WORLD_SIZE=four: a whole number of at most 32 bits, not negative"),
        (TORCHRUN, "WORLD_SIZE=0", "WORLD_SIZE=0: a world has at least one rank"),
        (TORCHRUN, "RANK=-1", "RANK=-1: a whole number of at most 32 bits, not negative"),
        (TORCHRUN, "RANK=8", "RANK=8: below WORLD_SIZE=8"),
        (TORCHRUN, "LOCAL_RANK=4", "LOCAL_RANK=4: below LOCAL_WORLD_SIZE=4"),
        (TORCHRUN, "LOCAL_WORLD_SIZE=9", "LOCAL_WORLD_SIZE=9: between 1 and WORLD_SIZE=8"),
        (
            TORCHRUN,
            "MASTER_ADDR=",
            "torchrun is the launcher, but MASTER_ADDR (the host of the root) is not set",
        ),
        (
            TORCHRUN,
            "MASTER_PORT=",
            "torchrun is the launcher, but MASTER_PORT (the port of the root) is not set",
        ),
        (TORCHRUN, "MASTER_PORT=70000", "MASTER_PORT=70000: a whole number of at most 16 bits, not negative"),
        (
            TORCHRUN,
            "MASTER_PORT=65535",
            "MASTER_PORT=65535: with the port offset 1 it is no port (1 to 65535)",
        ),
        (
            OPEN_MPI,
            "ANABRANCH_BOOTSTRAP=",
            "Open MPI is the launcher, but ANABRANCH_BOOTSTRAP or MASTER_ADDR (where the root is, as host:port or a host) is not set",
        ),
        (
            OPEN_MPI,
            "ANABRANCH_BOOTSTRAP=head",
            "ANABRANCH_BOOTSTRAP=head: host:port, with a port from 1 to 65535",
        ),
        (
            MPICH,
            "MPI_LOCALRANKID=",
            "MPICH is the launcher, but MPI_LOCALRANKID (the rank on this machine) is not set",
        ),
        (
            SLURM,
            "SLURM_STEP_NODELIST=node[",
            "SLURM_STEP_NODELIST=node[: a list of hosts, such as node[03-07,9],other",
        ),
        (
            SLURM,
            "SLURM_NODEID=3",
            "SLURM_STEP_TASKS_PER_NODE=4(x2),3: a list such as 4(x2),3 with an entry for node 3",
        ),
        // The shell of a batch job, in which every process sees rank 0.
        (
            SLURM,
            "SLURM_STEP_ID=",
            "SLURM is the launcher, but SLURM_STEP_ID (which srun sets for the ranks that it starts) is not set",
        ),
        (
            FLUX,
            "FLUX_JOB_NNODES=3",
            "FLUX_JOB_NNODES=3: FLUX_JOB_SIZE=8 is no multiple of it, so it does not say how many ranks are on this machine: set \
             ANABRANCH_RANK, ANABRANCH_WORLD_SIZE, ANABRANCH_LOCAL_RANK and ANABRANCH_LOCAL_WORLD_SIZE",
        ),
        (
            FLUX,
            "FLUX_JOB_NNODES=0",
            "FLUX_JOB_NNODES=0: FLUX_JOB_SIZE=8 is no multiple of it, so it does not say how many ranks are on this machine: set \
             ANABRANCH_RANK, ANABRANCH_WORLD_SIZE, ANABRANCH_LOCAL_RANK and ANABRANCH_LOCAL_WORLD_SIZE",
        ),
        (SLURM, "SLURM_JOB_ID=x", "SLURM_JOB_ID=x: a whole number of at most 64 bits, not negative"),
    ] {
        assert_eq!(launch(text, changes).unwrap_err().to_string(), words);
    }
}
