//! NICs that do not go on: every rank ends with an error that names the peer and the NIC's syndrome, and memory that a NIC may still write is
//! not given away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::engines::exchange;
use crate::support::nics::{ChangedNic, Machines, soft};
use crate::support::{all, met};
use anabranch_bootstrap::Deadline;
use anabranch_clock::Moment;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{Error, NicSource, RankError, World, spawn_threads};
use anabranch_softnic::{NicFaults, SoftNics, Syndrome};
use anabranch_transport::Region;
use anabranch_transport_rdma::{
    NicDriver, NicError, NicLimits, NicQueue, Provider, QueueSpec, QueueWords, RdmaQueue, Registered,
    UnansweredRequests,
};

/// The errors of ranks of which one's NIC goes wrong after the first reads.
fn errors_of(faults: NicFaults) -> Vec<String> {
    let nics = SoftNics::in_process(soft(None)).with_faults(GlobalRank::new(1), faults);
    let mut machines = Machines::new(&[1, 1], 4, nics);
    machines.bench.config.operation_deadline = Duration::from_secs(3);
    machines.bench.config.rdma.patience = Duration::from_millis(300);
    let results = spawn_threads(2, |rank| machines.setup(rank), |world: &World| exchange(world, 50));
    results
        .into_iter()
        .map(|result| match result {
            Err(RankError::Work { error, .. }) => error.to_string(),
            other => panic!("{other:?}"),
        })
        .collect()
}

/// Who notices first is a matter of time: the peer, whose requests are not answered (the completion that a kernel sees may be that of a
/// request behind the one that failed; the queue pair says which that was), or the rank itself, whose own are not done.
fn is_about_the_nic_of_rank_1(text: &str) -> bool {
    let by_peer = text.contains("to rank 1") && text.contains("syndrome 0x15");
    let silent = text.contains("a queue pair to rank 0 does not go on");
    let dead = text.contains("to rank 0") && text.contains("the NIC has died");
    by_peer || (text.contains("rank 1 found in") && (silent || dead))
}

#[test]
fn a_request_that_fails_is_named_with_its_peer_and_syndrome() {
    let errors = errors_of(NicFaults { fails: Some((40, Syndrome::RemoteAccess)), ..NicFaults::default() });
    for text in &errors {
        assert!(text.contains("rank 1 found in") && text.contains("to rank 0"), "{text}");
        assert!(text.contains("syndrome 0x13") && text.contains("has stopped"), "{text}");
    }
}

/// What failed at a rank's work, or when it left.
fn text_of(result: &Result<(), RankError<Error>>) -> String {
    match result {
        Err(RankError::Work { error, .. } | RankError::World { error, .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Two machines of one rank, of which rank 1's NIC goes wrong; 2 requests of each are done when the world is joined, and each barrier is one.
fn with_faults(faults: NicFaults, deadline: Duration) -> Machines {
    let nics = SoftNics::in_process(soft(None)).with_faults(GlobalRank::new(1), faults);
    let mut machines = Machines::new(&[1, 1], 4, nics);
    machines.bench.config.operation_deadline = deadline;
    machines
}

/// Rank 1's last barrier ends, as rank 0 has come to it; that rank 1 has come is what failed, and rank 1 looks at nothing any more. Rank 0, to
/// which nothing comes, says why all the same.
#[test]
fn an_expired_wait_names_the_failed_request() {
    let faults = NicFaults { fails: Some((9, Syndrome::RemoteOperation)), ..NicFaults::default() };
    let machines = with_faults(faults, Duration::from_secs(2));
    let results = spawn_threads(
        2,
        |rank| machines.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let stream = world.device().create_stream()?;
            for _ in 0..7 {
                team.barrier(&stream)?;
            }
            if world.rank().get() == 1 {
                let deadline = Deadline::after(Duration::from_secs(20));
                world.rendezvous().wait("rank 0 has its error", deadline).unwrap();
                return world.check();
            }
            let start = Moment::now();
            let outcome = world.synchronize(&stream);
            assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
            world.rendezvous().set("rank 0 has its error", b"").unwrap();
            outcome
        },
    );
    for result in results {
        let Err(RankError::Work { error, .. }) = result else { panic!("{result:?}") };
        let text = error.to_string();
        assert!(text.contains("rank 1 found in requests by NIC (completion): queue pair"), "{text}");
        assert!(text.contains("to rank 0") && text.contains("syndrome 0x14"), "{text}");
    }
}

/// The same, and rank 1 leaves: that is when its last request fails, and rank 0 hears of it.
#[test]
fn a_failure_during_leave_is_reported() {
    let faults = NicFaults { fails: Some((9, Syndrome::RemoteOperation)), ..NicFaults::default() };
    let machines = with_faults(faults, Duration::from_secs(2));
    let results = spawn_threads(
        2,
        |rank| machines.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let stream = world.device().create_stream()?;
            for _ in 0..6 {
                team.barrier(&stream)?;
            }
            world.synchronize(&stream)?;
            if world.rank().get() == 1 {
                // Rank 0 has come to the last barrier before.
                anabranch_clock::sleep(Duration::from_millis(300));
            }
            team.barrier(&stream)?;
            // Its own work is over, as its last put needs no completion.
            while world.rank().get() == 1 && !stream.is_idle()? {
                std::thread::yield_now();
            }
            if world.rank().get() == 1 { Ok(()) } else { world.synchronize(&stream) }
        },
    );
    for result in results {
        let text = text_of(&result);
        assert!(text.contains("rank 1 found in") && text.contains("to rank 0"), "{text}");
        assert!(text.contains("syndrome 0x14"), "{text}");
    }
}

/// Rank 1 asks with a key that is none, and rank 0's NIC refuses: that stops both ends, and rank 0 knows of no request of its own that
/// failed. Both say which of rank 1's it was.
#[test]
fn a_request_that_the_peer_refuses_is_named_by_both() {
    let machines = with_faults(NicFaults::default(), Duration::from_secs(2));
    let results = spawn_threads(
        2,
        |rank| machines.setup(rank),
        |world: &World| {
            let (team, stream) = met(world)?;
            if world.rank().get() == 1 {
                let (view, at) = (team.view(), std::mem::offset_of!(RdmaQueue, remote_key) as u64);
                for channel in 0..view.nics_per_peer {
                    let entry =
                        view.nics.address().offset(u64::from(channel) * size_of::<RdmaQueue>() as u64);
                    let key = entry.offset(at).0 as *mut u32;
                    // SAFETY: the host runtime's device memory is the process's own, and no kernel runs.
                    unsafe { *key ^= 0x5a5a };
                }
            }
            team.barrier(&stream)?;
            world.synchronize(&stream)
        },
    );
    for result in results {
        let text = text_of(&result);
        assert!(text.contains("rank 1 found in") && text.contains("to rank 0"), "{text}");
        assert!(text.contains("syndrome 0x13"), "{text}");
    }
}

/// The team goes, with the words of a barrier whose last put the NIC has not done: its place in the heap is kept until it is, or the world has
/// failed of it.
#[test]
fn memory_is_kept_until_what_was_put_there_is_done() {
    let faults = NicFaults { falls_silent_after: Some(6), ..NicFaults::default() };
    let machines = with_faults(faults, Duration::from_secs(3));
    let results = spawn_threads(
        2,
        |rank| machines.setup(rank),
        |world: &World| {
            let live = world.heap_usage().live;
            let team = world.team(world.group())?;
            let stream = world.device().create_stream()?;
            for _ in 0..3 {
                team.barrier(&stream)?;
            }
            world.synchronize(&stream)?;
            if world.rank().get() == 1 {
                // Rank 0 has come to the last barrier before, and its NIC has been answered.
                anabranch_clock::sleep(Duration::from_millis(500));
            }
            team.barrier(&stream)?;
            if world.rank().get() == 1 {
                world.synchronize(&stream)?;
                team.complete_by_nic(&[])?;
                drop(team);
                assert_eq!(world.heap_usage().live, live + 1, "given back while the NIC may write there");
            }
            world.synchronize(&stream)?;
            let end = Moment::now().after(Duration::from_secs(10));
            while world.check().is_ok() && !end.remaining().is_zero() {
                anabranch_clock::sleep(Duration::from_millis(10));
            }
            world.check()
        },
    );
    let Err(RankError::Work { error, .. }) = &results[1] else { panic!("{results:?}") };
    let text = error.to_string();
    // Rank 0 waits for what is not done, or whose answer does not come, and may give up first.
    let itself = text.contains("rank 1 found in completion of puts by NIC")
        && text.contains("a queue pair to rank 0 does not go on");
    let peer = ["for rank 1 in team barrier", "a queue pair to rank 1 does not go on"];
    assert!(itself || peer.iter().any(|words| text.contains(words)), "{text}");
}

/// Memory of puts that are done is given back, without a wait for anybody.
#[test]
fn memory_is_given_back_when_what_was_put_there_is_done() {
    for seed in [None, Some(3)] {
        let machines = Machines::new(&[1, 1], 4, SoftNics::in_process(soft(seed)));
        all(spawn_threads(
            2,
            |rank| machines.setup(rank),
            |world: &World| {
                let stream = world.device().create_stream()?;
                let kept = world.team(world.group())?;
                let live = world.heap_usage().live;
                for _ in 0..5 {
                    let team = world.team(world.group())?;
                    team.barrier(&stream)?;
                    world.synchronize(&stream)?;
                    team.complete_by_nic(&[])?;
                }
                let end = Moment::now().after(Duration::from_secs(10));
                while world.heap_usage().live > live && !end.remaining().is_zero() {
                    anabranch_clock::sleep(Duration::from_millis(2));
                    // What goes lets the world look at what else is over.
                    drop(kept.table(&[0])?);
                }
                assert_eq!(world.heap_usage().live, live);
                Ok::<_, Error>(())
            },
        ));
    }
}

#[test]
fn a_silent_nic_is_named_by_its_peer() {
    let faults = NicFaults { falls_silent_after: Some(40), ..NicFaults::default() };
    let errors = errors_of(faults);
    let text = &errors[0];
    assert!(is_about_the_nic_of_rank_1(text), "{text}");
}

#[test]
fn a_nic_that_dies_is_named_by_its_peer() {
    let errors = errors_of(NicFaults { dies_after: Some(40), ..NicFaults::default() });
    let text = &errors[0];
    assert!(is_about_the_nic_of_rank_1(text), "{text}");
}

/// A NIC whose queue pairs do not answer; at each look the oldest request of each of the two channels is so much further on.
#[derive(Debug)]
struct UnansweringNic(Arc<dyn NicDriver>, [u64; 2]);

#[derive(Debug)]
struct UnansweringQueue(Arc<dyn NicQueue>, u64, AtomicU64);

impl NicDriver for UnansweringNic {
    fn provider(&self) -> Provider {
        self.0.provider()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn limits(&self) -> NicLimits {
        self.0.limits()
    }

    fn register(&self, region: Region) -> Result<Arc<dyn Registered>, NicError> {
        self.0.register(region)
    }

    fn create_queue(&self, spec: QueueSpec) -> Result<Arc<dyn NicQueue>, NicError> {
        let step = self.1[spec.channel as usize];
        Ok(Arc::new(UnansweringQueue(self.0.create_queue(spec)?, step, AtomicU64::new(7))))
    }
}

impl NicQueue for UnansweringQueue {
    fn endpoint(&self) -> Vec<u8> {
        self.0.endpoint()
    }

    fn connect(&self, peer: GlobalRank, endpoint: &[u8]) -> Result<(), NicError> {
        self.0.connect(peer, endpoint)
    }

    fn words(&self) -> QueueWords {
        self.0.words()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn stop(&self, reason: &str) {
        self.0.stop(reason);
    }

    fn stopped(&self) -> Option<String> {
        self.0.stopped()
    }

    fn is_consequence(&self) -> bool {
        self.0.is_consequence()
    }

    fn unanswered(&self) -> Option<UnansweredRequests> {
        let oldest = self.2.fetch_add(self.1, Ordering::Relaxed);
        Some(UnansweredRequests { oldest, words: format!("the oldest is entry {oldest}") })
    }
}

/// What both ranks report when rank 0's wait for rank 1, which does not come to a barrier, expires.
fn errors_of_unanswered(steps: [u64; 2]) -> Vec<String> {
    let mut machines = Machines::new(&[1, 1], 4, SoftNics::in_process(soft(None)));
    let nics = SoftNics::in_process(soft(None));
    let change = move |nic| Arc::new(UnansweringNic(nic, steps)) as _;
    machines.bench.config.nic = NicSource::new(Arc::new(ChangedNic { nics, rank: 0, change }));
    machines.bench.config.operation_deadline = Duration::from_secs(1);
    let barriers = |world: &World| {
        let (team, stream) = met(world)?;
        if world.rank().get() == 0 {
            team.barrier(&stream)?;
            return world.synchronize(&stream);
        }
        let end = Moment::now().after(Duration::from_secs(60));
        while world.check().is_ok() && !end.remaining().is_zero() {
            anabranch_clock::sleep(Duration::from_millis(2));
        }
        world.check()
    };
    spawn_threads(2, |rank| machines.setup(rank), barriers).iter().map(text_of).collect()
}

/// Nothing has failed: without what the queue pair says, the wait names the peer alone.
#[test]
fn a_request_that_a_nic_does_not_answer_is_named_with_its_queue_pair() {
    let texts = errors_of_unanswered([0, 0]);
    let text = &texts[0];
    assert!(
        text.contains("rank 0 found in team barrier")
            && text.contains("for rank 1, epoch ")
            && text.contains("; queue pair "),
        "{text}"
    );
    assert!(text.contains(" to rank 1, channel 0 does not answer: the oldest is entry 7"), "{text}");
    // It died of rank 0 before or after it heard why.
    assert!(texts[1].contains("rank 0"), "{}", texts[1]);
}

#[test]
fn a_nic_that_answers_late_is_not_taken_for_one_that_does_not() {
    let texts = errors_of_unanswered([1, 1]);
    assert!(texts[0].contains("for rank 1 in team barrier"), "{}", texts[0]);
    assert!(texts.iter().all(|text| !text.contains("does not answer")), "{texts:?}");
}

#[test]
fn a_stuck_queue_pair_is_named_although_another_progresses() {
    let texts = errors_of_unanswered([1, 0]);
    let wanted = " to rank 1, channel 1 does not answer: the oldest is entry 7";
    assert!(texts[0].contains(wanted), "{}", texts[0]);
}
