//! A NIC that takes commands and keeps them. It checks their order, and executes no entries.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};

use anabranch_transport::Region;
use anabranch_transport_rdma::mlx5::{Devx, DevxDoorbell, DevxMemory, DevxObject, NextHop, PathRequest};
use anabranch_transport_rdma::{NicError, Registered, Result};

/// Numbers that the fake gives.
pub(crate) const MEMORY: u32 = 0x11;
pub(crate) const PAGE: u32 = 0x22;
pub(crate) const EVENT_QUEUE: u32 = 0x33;
pub(crate) const DOMAIN: u32 = 0x44;
pub(crate) const COMPLETION_QUEUE: u32 = 0x0012_3456;
pub(crate) const QUEUE_PAIR: u32 = 0x00ab_cdef;
pub(crate) const MAC: [u8; 6] = [0x02, 0x42, 0x0a, 0x0b, 0x0c, 0x0d];

/// Where the doorbell is in a page of registers, in bytes.
const DOORBELL: usize = 0x800;

/// What the NIC was told, in order, and what it says.
#[derive(Debug, Default)]
pub(crate) struct State {
    log: Mutex<Vec<(String, Vec<u8>)>>,
    /// The call that fails, by its number from 0 on.
    fails: Mutex<Option<usize>>,
    /// What `QUERY_HCA_CAP` answers of each kind of capability: words by byte offset.
    capabilities: Mutex<BTreeMap<u32, Vec<(usize, u32)>>>,
    /// What `QUERY_QP` answers: words by byte offset.
    context: Mutex<Vec<(usize, u32)>>,
    /// The memory of the queue pair that was made last: its start and its bytes.
    memory: Mutex<(usize, usize)>,
    /// Objects, memory and pages that were made and not given back.
    live: AtomicUsize,
    /// Whom the next look for the way to a peer tells that it was asked, and for whom it waits then.
    held: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    /// The state of each queue pair that is there by its number.
    states: Mutex<BTreeMap<u32, QueueState>>,
    /// Numbers of queue pairs that came to send, also of those that are gone.
    sent: Mutex<Vec<u32>>,
    /// Queue pairs that were made, there or not.
    queue_pairs: AtomicUsize,
    /// The pages of registers that were given.
    pages: Mutex<Vec<Arc<Registers>>>,
}

/// States of a queue pair, in the order in which commands take it through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Reset,
    Init,
    Receive,
    Send,
}

/// A look for the way to a peer that waits.
#[derive(Debug)]
pub(crate) struct Held {
    asked: Receiver<()>,
    go: Sender<()>,
}

impl Held {
    pub(crate) fn wait_until_asked(&self) {
        self.asked.recv().unwrap();
    }

    pub(crate) fn let_go(&self) {
        self.go.send(()).unwrap();
    }
}

/// The NIC.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fake(pub(crate) Arc<State>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Kinds of capabilities (`MLX5_CAP_*`).
pub(crate) const GENERAL: u32 = 0;
pub(crate) const ATOMIC: u32 = 3;
pub(crate) const ROCE: u32 = 4;

/// General capabilities: `qpc_extension`, `roce`, `qp_error_syndrome`.
pub(crate) const CAN_SAY_ERRORS: [(usize, u32); 2] = [(0x34, 1 << 29), (0x5c, 1 << 12)];
pub(crate) const HAS_ROCE: (usize, u32) = (0x50, 1 << 2);

impl Fake {
    /// One with RoCE and all atomic operations, whose timestamps are of either format, and which can say why queue pairs stopped.
    pub(crate) fn new() -> Self {
        let fake = Self::default();
        fake.say(GENERAL, &[CAN_SAY_ERRORS[0], CAN_SAY_ERRORS[1], HAS_ROCE, (0x98, 2 << 30)]);
        fake.say(ATOMIC, &[(0x18, 1 << 30), (0x20, 0x0f), (0x24, 0x0c)]);
        fake.say(ROCE, &[(0x10, 2)]);
        fake
    }

    /// Sets the answer about capabilities of a kind.
    pub(crate) fn say(&self, kind: u32, words: &[(usize, u32)]) {
        locked(&self.0.capabilities).insert(kind, words.to_vec());
    }

    /// Sets the answer to `QUERY_QP`.
    pub(crate) fn say_context(&self, words: &[(usize, u32)]) {
        *locked(&self.0.context) = words.to_vec();
    }

    /// Writes to the memory of the queue pair that was made last, as its NIC or its kernels would.
    #[expect(unsafe_code, reason = "memory that was registered by its address")]
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let (start, length) = *locked(&self.0.memory);
        assert!(offset + bytes.len() <= length, "within the memory");
        // SAFETY: the test keeps the queue pair, whose memory stays registered; nothing else writes it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (start + offset) as *mut u8, bytes.len()) };
    }

    /// Makes a call fail, counted from now on.
    pub(crate) fn fail(&self, call: usize) {
        *locked(&self.0.fails) = Some(self.calls().len() + call);
    }

    /// Makes the next look for the way to a peer wait.
    pub(crate) fn hold_next_hop(&self) -> Held {
        let ((tell, asked), (go, wait)) = (channel(), channel());
        *locked(&self.0.held) = Some((tell, wait));
        Held { asked, go }
    }

    /// The queue pairs that may send, by number.
    pub(crate) fn sending(&self) -> Vec<u32> {
        let states = locked(&self.0.states);
        states.iter().filter(|(_, state)| **state == QueueState::Send).map(|(number, _)| *number).collect()
    }

    /// The queue pairs that were ever allowed to send, by number: also those that were destroyed since.
    #[allow(dead_code, reason = "the test of a world over this NIC uses it")]
    pub(crate) fn connected(&self) -> Vec<u32> {
        locked(&self.0.sent).clone()
    }

    /// Queue pairs that are there, in whatever state.
    pub(crate) fn queue_pairs(&self) -> usize {
        locked(&self.0.states).len()
    }

    /// What was stored last at the doorbell of each page.
    pub(crate) fn rung(&self) -> Vec<u64> {
        locked(&self.0.pages).iter().map(|page| page.0[DOORBELL / 8].load(Ordering::Acquire)).collect()
    }

    /// The calls by name.
    pub(crate) fn calls(&self) -> Vec<String> {
        locked(&self.0.log).iter().map(|(name, _)| name.clone()).collect()
    }

    /// The last command of a name, as words that are not zero by byte offset, and its length.
    pub(crate) fn command(&self, name: &str) -> (usize, Vec<(usize, u32)>) {
        let log = locked(&self.0.log);
        let bytes = &log.iter().rev().find(|(own, _)| own == name).unwrap().1;
        let words = bytes.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap()));
        (
            bytes.len(),
            words.enumerate().map(|(index, word)| (4 * index, word)).filter(|(_, word)| *word != 0).collect(),
        )
    }

    /// Things that were made and not given back.
    pub(crate) fn live(&self) -> usize {
        self.0.live.load(Ordering::Relaxed)
    }

    /// Notes a call; the answer's status says bad parameter if it is the one that fails.
    fn note(&self, call: &'static str, command: &[u8], answer: &mut [u8]) -> Result<()> {
        let number = self.calls().len();
        locked(&self.0.log).push((call.to_owned(), command.to_vec()));
        if *locked(&self.0.fails) != Some(number) {
            return Ok(());
        }
        if answer.len() >= 8 {
            answer[0] = 0x03;
            answer[4..8].copy_from_slice(&0x0012_abcd_u32.to_be_bytes());
        }
        Err(NicError::Call { call, nic: self.nic(), cause: "Remote I/O error".to_owned() })
    }

    fn made(&self) -> Live {
        self.0.live.fetch_add(1, Ordering::Relaxed);
        Live(self.clone())
    }
}

/// Counts while it lives.
struct Live(Fake);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.0.live.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Live")
    }
}

/// A page of registers.
#[derive(Debug)]
#[repr(align(4096))]
struct Registers([AtomicU64; 512]);

struct FakePage {
    registers: Arc<Registers>,
    _live: Live,
}

impl fmt::Debug for FakePage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("FakePage")
    }
}

impl DevxDoorbell for FakePage {
    fn page(&self) -> u32 {
        PAGE
    }

    fn mapped(&self) -> (NonNull<u8>, NonNull<u8>) {
        let start = NonNull::from(&self.registers.0).cast::<u8>();
        (start, start.map_addr(|address| address.checked_add(DOORBELL).unwrap()))
    }
}

#[derive(Debug)]
struct FakeMemory(#[expect(dead_code, reason = "counts while it lives")] Live);

impl DevxMemory for FakeMemory {
    fn number(&self) -> u32 {
        MEMORY
    }
}

/// An object, with its number where it is a queue pair.
#[derive(Debug)]
struct FakeObject(Live, Option<u32>);

impl Drop for FakeObject {
    fn drop(&mut self) {
        if let Some(number) = self.1 {
            locked(&self.0.0.0.states).remove(&number);
        }
    }
}

fn put(words: &[(usize, u32)], answer: &mut [u8]) {
    for (offset, word) in words {
        answer[*offset..*offset + 4].copy_from_slice(&word.to_be_bytes());
    }
}

impl DevxObject for FakeObject {
    fn query(&self, what: &'static str, command: &[u8], answer: &mut [u8]) -> Result<()> {
        self.0.0.note(what, command, answer)?;
        put(&locked(&self.0.0.0.context), answer);
        Ok(())
    }

    fn modify(&self, what: &'static str, command: &[u8], answer: &mut [u8]) -> Result<()> {
        let fake = &self.0.0;
        fake.note(what, command, answer)?;
        let number = self.1.expect("queue pairs alone are changed");
        let named = u32::from_be_bytes(command[8..12].try_into().unwrap());
        assert_eq!(named, number, "{what} names another queue pair");
        let opcode = u16::from_be_bytes(command[..2].try_into().unwrap());
        let mut states = locked(&fake.0.states);
        let state = states.get_mut(&number).expect("a queue pair that is there");
        // A NIC answers "bad queue state" to what is out of turn.
        *state = match (what, opcode, *state) {
            ("RST2INIT_QP", 0x502, QueueState::Reset) => QueueState::Init,
            ("INIT2RTR_QP", 0x503, QueueState::Init) => QueueState::Receive,
            ("RTR2RTS_QP", 0x504, QueueState::Receive) => QueueState::Send,
            other => panic!("out of turn: {other:?}"),
        };
        if *state == QueueState::Send {
            locked(&fake.0.sent).push(number);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Keys;

impl Registered for Keys {
    fn local_key(&self) -> u32 {
        1
    }

    fn remote_key(&self) -> u32 {
        2
    }
}

impl Devx for Fake {
    fn nic(&self) -> String {
        "mlx5_7".to_owned()
    }

    fn query(&self, command: &[u8], answer: &mut [u8]) -> Result<()> {
        self.note("QUERY_HCA_CAP", command, answer)?;
        let kind = u32::from_be_bytes(command[4..8].try_into().unwrap());
        assert_eq!(kind & 1, 1, "what is in force");
        put(locked(&self.0.capabilities).get(&(kind >> 1)).unwrap_or(&Vec::new()), answer);
        Ok(())
    }

    fn create(&self, what: &'static str, command: &[u8], answer: &mut [u8]) -> Result<Box<dyn DevxObject>> {
        self.note(what, command, answer)?;
        let queue_pair = (what == "CREATE_QP").then(|| {
            let number = QUEUE_PAIR - self.0.queue_pairs.fetch_add(1, Ordering::Relaxed) as u32;
            locked(&self.0.states).insert(number, QueueState::Reset);
            number
        });
        answer[8..12].copy_from_slice(&queue_pair.unwrap_or(COMPLETION_QUEUE).to_be_bytes());
        Ok(Box::new(FakeObject(self.made(), queue_pair)))
    }

    #[expect(unsafe_code, reason = "the trait's")]
    unsafe fn register_queue_memory(&self, address: *mut u8, bytes: usize) -> Result<Box<dyn DevxMemory>> {
        assert_eq!((address as usize % 4096, bytes % 4096), (0, 0), "whole pages");
        self.note("umem_reg", &(bytes as u64).to_be_bytes(), &mut [])?;
        *locked(&self.0.memory) = (address as usize, bytes);
        Ok(Box::new(FakeMemory(self.made())))
    }

    fn allocate_doorbell(&self) -> Result<Box<dyn DevxDoorbell>> {
        self.note("alloc_uar", &[], &mut [])?;
        let registers = Arc::new(Registers([const { AtomicU64::new(0) }; 512]));
        locked(&self.0.pages).push(Arc::clone(&registers));
        Ok(Box::new(FakePage { registers, _live: self.made() }))
    }

    fn event_queue(&self) -> Result<u32> {
        self.note("query_eqn", &[], &mut [])?;
        Ok(EVENT_QUEUE)
    }

    fn protection_domain(&self) -> Result<u32> {
        self.note("init_obj", &[], &mut [])?;
        Ok(DOMAIN)
    }

    fn next_hop(&self, path: &PathRequest) -> Result<NextHop> {
        self.note("create_ah", &path.remote_gid, &mut [])?;
        let held = locked(&self.0.held).take();
        if let Some((tell, wait)) = held {
            tell.send(()).unwrap();
            wait.recv().unwrap();
        }
        Ok(NextHop { mac: MAC })
    }

    fn register(&self, _region: Region) -> Result<Arc<dyn Registered>> {
        Ok(Arc::new(Keys))
    }
}
