//! The transport over a NIC that moves nothing and counts what is made of it.

use std::sync::atomic::{AtomicU32, Ordering};

use anabranch_hip::{DeviceAddress, DeviceBuffer, DeviceOrdinal};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_transport::{HostIdentity, ProcessIdentity};

use super::*;
use crate::driver::{NicLimits, NicQueue, QueueSpec, QueueWords, Registered, UnansweredRequests};

/// What there is of a NIC's.
#[derive(Debug, Default)]
struct Counts {
    queues: AtomicU32,
    keys: AtomicU32,
    stopped: AtomicU32,
}

impl Counts {
    fn now(&self) -> (u32, u32) {
        (self.queues.load(Ordering::Relaxed), self.keys.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct Paper {
    counts: Arc<Counts>,
    limits: NicLimits,
    /// The most queue pairs that it makes.
    most_queues: u32,
    read_order: ReadOrder,
    provider: Provider,
    immediates: bool,
}

#[derive(Debug)]
struct PaperKey(Arc<Counts>);

#[derive(Debug)]
struct PaperQueue {
    counts: Arc<Counts>,
    spec: QueueSpec,
    path_mtu: AtomicU32,
}

impl NicDriver for Paper {
    fn provider(&self) -> Provider {
        self.provider
    }

    fn takes_immediates(&self) -> bool {
        self.immediates
    }

    fn describe(&self) -> String {
        "a NIC on paper".to_owned()
    }

    fn limits(&self) -> NicLimits {
        self.limits
    }

    fn read_order(&self) -> ReadOrder {
        self.read_order
    }

    fn register(&self, _: Region) -> Result<Arc<dyn Registered>, NicError> {
        self.counts.keys.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(PaperKey(Arc::clone(&self.counts))))
    }

    fn create_queue(&self, spec: QueueSpec) -> Result<Arc<dyn NicQueue>, NicError> {
        if self.counts.queues.load(Ordering::Relaxed) == self.most_queues {
            let reasons = "it has no queue pair left".to_owned();
            return Err(NicError::NoNic { reasons });
        }
        self.counts.queues.fetch_add(1, Ordering::Relaxed);
        let (counts, path_mtu) = (Arc::clone(&self.counts), AtomicU32::new(4096));
        Ok(Arc::new(PaperQueue { counts, spec, path_mtu }))
    }
}

impl Registered for PaperKey {
    fn local_key(&self) -> u32 {
        1
    }

    fn remote_key(&self) -> u32 {
        2
    }
}

impl Drop for PaperKey {
    fn drop(&mut self) {
        self.0.keys.fetch_sub(1, Ordering::Relaxed);
    }
}

impl NicQueue for PaperQueue {
    fn endpoint(&self) -> Vec<u8> {
        vec![7]
    }

    fn connect(&self, _: GlobalRank, _: &[u8]) -> Result<(), NicError> {
        // The path has less than this end could do.
        self.path_mtu.store(1024, Ordering::Relaxed);
        Ok(())
    }

    fn words(&self) -> QueueWords {
        QueueWords {
            ring: DeviceAddress::NULL,
            entries: self.spec.entries,
            completions: DeviceAddress::NULL,
            doorbell_record: DeviceAddress::NULL,
            doorbell: DeviceAddress::NULL,
            sequence_table: DeviceAddress::NULL,
            number: 3 + self.spec.channel,
            path_mtu: self.path_mtu.load(Ordering::Relaxed),
            doorbell_value: 0,
        }
    }

    fn describe(&self) -> String {
        "a queue pair on paper".to_owned()
    }

    fn stop(&self, _: &str) {
        self.counts.stopped.fetch_add(1, Ordering::Relaxed);
    }

    fn stopped(&self) -> Option<String> {
        None
    }

    fn is_consequence(&self) -> bool {
        false
    }

    /// All but the first.
    fn unanswered(&self) -> Option<UnansweredRequests> {
        let channel = self.spec.channel;
        let requests = || UnansweredRequests { oldest: 70 + u64::from(channel), words: "one".to_owned() };
        (channel > 0).then(requests)
    }
}

impl Drop for PaperQueue {
    fn drop(&mut self) {
        self.counts.queues.fetch_sub(1, Ordering::Relaxed);
    }
}

const LIMITS: NicLimits =
    NicLimits { most_message_bytes: 1 << 20, inline_bytes: 8, atomics: Atomics::Masked };

fn peer(rank: u32) -> PeerInfo {
    PeerInfo {
        rank: GlobalRank::new(rank),
        host: HostIdentity(format!("machine {rank}")),
        nics_of: HostIdentity(format!("machine {rank}")),
        process: ProcessIdentity { pid: 1, nonce: 0 },
        runtime: "host".to_owned(),
        instance: 0,
        device: 0,
        pci: String::new(),
        arch: "host".to_owned(),
    }
}

/// The transport of rank 0 of two, and a heap.
struct Bench {
    transport: RdmaTransport,
    counts: Arc<Counts>,
    heap: DeviceBuffer,
}

impl Bench {
    fn new(limits: NicLimits) -> Self {
        Self::with(limits, u32::MAX, ReadOrder::Ordered)
    }

    fn with(limits: NicLimits, most_queues: u32, read_order: ReadOrder) -> Self {
        Self::of(|nic| Paper { limits, most_queues, read_order, ..nic }, RdmaConfig::default())
    }

    /// With another NIC and configuration.
    fn of(nic: impl FnOnce(Paper) -> Paper, config: RdmaConfig) -> Self {
        let machine = HostMachine::new(HostConfig::default()).unwrap();
        let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
        let heap = device.allocate(4096).unwrap();
        let counts = Arc::<Counts>::default();
        let plain = Paper {
            counts: Arc::clone(&counts),
            limits: LIMITS,
            most_queues: u32::MAX,
            read_order: ReadOrder::Ordered,
            provider: Provider::Mlx5,
            immediates: false,
        };
        let transport = RdmaTransport::new(device, peer(0), 2, Ok(Arc::new(nic(plain))), config);
        Self { transport, counts, heap }
    }

    fn region(&self) -> Region {
        Region { address: self.heap.address().0, bytes: 4096 }
    }

    fn export(&self) -> Result<Vec<u8>> {
        self.transport.export(self.region(), Audience::ThisHost)
    }

    /// What opening rank 1's offer says.
    fn refuses(&self, offer: &Offer) -> String {
        anabranch_hip::with_causes(&self.transport.open(&peer(1), &offer.encode(), 4096).unwrap_err())
    }
}

/// What rank 1 offers of its heap.
fn offer_of_rank_1() -> Offer {
    let queues = RdmaConfig::default().queues as usize;
    Offer {
        provider: Provider::Mlx5,
        atomics: Atomics::Masked,
        base: 1 << 20,
        bytes: 4096,
        key: Some(9),
        endpoints: vec![vec![vec![7]; queues], Vec::new()],
    }
}

#[test]
fn a_region_without_a_key_is_accepted_only_after_the_heap() {
    let bench = Bench::new(LIMITS);
    bench.export().unwrap();
    let heap = offer_of_rank_1();
    let later = Offer { key: None, endpoints: Vec::new(), ..heap.clone() };
    let text = bench.refuses(&later);
    assert!(text.contains("a region without a key before the heap's"), "{text}");
    assert_eq!(bench.transport.open(&peer(1), &heap.encode(), 4096).unwrap().origin(), Origin::Remote);
    assert_eq!(bench.transport.open(&peer(1), &later.encode(), 4096).unwrap().origin(), Origin::Remote);
}

#[test]
fn a_heap_with_queue_pairs_for_other_ranks_than_there_are_is_refused() {
    let bench = Bench::new(LIMITS);
    bench.export().unwrap();
    let mut offer = offer_of_rank_1();
    offer.endpoints.push(vec![vec![7]; 2]);
    let text = bench.refuses(&offer);
    assert!(text.contains("queue pairs for another number of ranks"), "{text}");
    offer.endpoints.truncate(1);
    let text = bench.refuses(&offer);
    assert!(text.contains("queue pairs for another number of ranks"), "{text}");
}

#[test]
fn nics_with_other_atomic_operations_are_refused_with_both_ranks() {
    let bench = Bench::new(NicLimits { atomics: Atomics::Standard, ..LIMITS });
    bench.export().unwrap();
    let text = bench.refuses(&offer_of_rank_1());
    for part in
        ["rank 0 has atomic operations of 64 bits alone", "that of rank 1 atomic operations with masks"]
    {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn later_errors_name_the_queue_pairs_that_were_not_made() {
    let bench = Bench::with(LIMITS, 1, ReadOrder::Ordered);
    let ready = bench.refuses(&offer_of_rank_1());
    assert!(ready.contains("this rank has no queue pairs"), "{ready}");
    let reason =
        "this rank's own queue pairs were not created: no NIC can be used: it has no queue pair left";
    let text = anabranch_hip::with_causes(&bench.export().unwrap_err());
    assert!(text.contains("it has no queue pair left"), "{text}");
    assert_eq!(bench.counts.now(), (0, 0), "nothing stays behind");
    let text = anabranch_hip::with_causes(&bench.export().unwrap_err());
    assert!(text.contains(reason), "{text}");
    assert_eq!(bench.transport.reaches(&peer(1)).unwrap_err().to_string(), reason);
    let text = bench.refuses(&offer_of_rank_1());
    assert!(text.contains(reason), "{text}");
}

#[test]
fn what_kernels_may_still_use_is_stopped_and_kept() {
    let mut bench = Bench::new(LIMITS);
    bench.export().unwrap();
    let made = (RdmaConfig::default().queues, 2);
    assert_eq!(bench.counts.now(), made);
    bench.transport.abandon();
    assert_eq!(bench.counts.stopped.load(Ordering::Relaxed), made.0);
    bench.transport.close();
    let counts = Arc::clone(&bench.counts);
    drop(bench);
    assert_eq!(counts.now(), made, "queue pairs and registrations are there");
    // Unused memory is freed.
    let mut bench = Bench::new(LIMITS);
    bench.export().unwrap();
    bench.transport.close();
    assert_eq!((bench.counts.now(), bench.counts.stopped.load(Ordering::Relaxed)), ((0, 0), 0));
}

#[test]
fn what_brings_values_is_refused_where_nothing_orders_it_before_its_completion() {
    use Operation as O;
    let of = |order| Bench::with(LIMITS, u32::MAX, order);
    let (ordered, dumped, unordered) =
        (of(ReadOrder::Ordered), of(ReadOrder::Dumped), of(ReadOrder::Unordered));
    let support = |bench: &Bench, operation| bench.transport.support(operation, Scope::Thread);
    let brings =
        [O::Get, O::GetNbi, O::GetValue, O::AtomicFetchAdd, O::AtomicSwap, O::AtomicCompareSwap, O::AtomicOr];
    for operation in brings {
        assert_eq!(support(&ordered, operation), Support::Implemented, "{operation}");
        assert_eq!(support(&dumped, operation), Support::Implemented, "{operation}");
        assert_eq!(support(&unordered, operation), Support::Unsupported, "{operation}");
    }
    for operation in [O::Put, O::PutValue, O::PutSignal, O::Signal, O::AtomicAdd, O::Quiet] {
        assert_eq!(support(&unordered, operation), Support::Implemented, "{operation}");
    }
    let reason = |bench: &Bench| bench.transport.reaches(&peer(1)).unwrap().reason;
    assert!(reason(&unordered).contains("no gets nor fetches"), "{}", reason(&unordered));
    assert!(!reason(&dumped).contains("no gets"), "{}", reason(&dumped));
    for (bench, number) in [(&unordered, 0), (&ordered, 1), (&dumped, 2)] {
        bench.export().unwrap();
        assert_eq!(bench.transport.queues(GlobalRank::new(1), 1)[0].read_order, number);
    }
    assert!(!reason(&ordered).contains("no gets"), "{}", reason(&ordered));
}

#[test]
fn a_nic_without_atomic_operations_writes_and_reads_and_refuses_what_needs_them() {
    use Operation as O;
    let bench = Bench::new(NicLimits { atomics: Atomics::None, ..LIMITS });
    let support = |operation| bench.transport.support(operation, Scope::Thread);
    for operation in Operation::ALL {
        let expected = match operation {
            O::Signal | O::PutSignal | O::PutSignalNbi => Support::SetOnly,
            one if one.is_atomic() => Support::Unsupported,
            O::TeamSync | O::TeamBarrier => continue,
            _ => Support::Implemented,
        };
        assert_eq!(support(*operation), expected, "{operation}");
    }
    assert_eq!(bench.transport.support(O::TeamBarrier, Scope::Stream), Support::Implemented);
    assert_eq!(bench.transport.support(O::Signal, Scope::Stream), Support::SetOnly);
    let reason = bench.transport.reaches(&peer(1)).unwrap().reason;
    assert!(reason.contains("no atomic operations nor signals that add, as the NIC has no"), "{reason}");
    bench.export().unwrap();
}

#[test]
fn rings_are_no_longer_than_the_provider_counts() {
    let refused = |provider, entries| {
        let config = RdmaConfig { entries, ..RdmaConfig::default() };
        let bench = Bench::of(|nic| Paper { provider, ..nic }, config);
        bench.transport.reaches(&peer(1)).err().map(|refusal| refusal.to_string())
    };
    for provider in Provider::ALL {
        let most = if provider == Provider::Bnxt { 16 << 10 } else { 32 << 10 };
        assert_eq!(refused(provider, most), None, "{provider}");
        let text = refused(provider, 2 * most).unwrap();
        let wanted = format!("entries of a send queue: {} given, a power of two from 16 to {most}", 2 * most);
        assert!(text.contains(&wanted), "{provider}: {text}");
    }
}

#[test]
fn every_queue_pair_that_does_not_answer_is_found() {
    let config = RdmaConfig { queues: 4, ..RdmaConfig::default() };
    let bench = Bench::of(|nic| nic, config);
    bench.export().unwrap();
    let oldest = |rank| {
        let unanswered = bench.transport.unanswered(GlobalRank::new(rank)).into_iter();
        unanswered.map(|one| one.oldest).collect::<Vec<_>>()
    };
    assert_eq!(oldest(1), [(4, 71), (5, 72), (6, 73)]);
    assert_eq!(oldest(0), [], "none to itself");
}

#[test]
fn kernels_learn_the_packet_that_both_ends_agreed_on_and_who_takes_immediates() {
    for immediates in [false, true] {
        let bench = Bench::of(|nic| Paper { immediates, ..nic }, RdmaConfig::default());
        bench.export().unwrap();
        let seen = |bench: &Bench| {
            let views = bench.transport.queues(GlobalRank::new(1), 1);
            views.iter().map(|view| (view.path_mtu, view.immediates)).collect::<Vec<_>>()
        };
        let queues = RdmaConfig::default().queues as usize;
        assert_eq!(seen(&bench), vec![(4096, u32::from(immediates)); queues]);
        bench.transport.open(&peer(1), &offer_of_rank_1().encode(), 4096).unwrap();
        assert_eq!(seen(&bench), vec![(1024, u32::from(immediates)); queues]);
    }
}
