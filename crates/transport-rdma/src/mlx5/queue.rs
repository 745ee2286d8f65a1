//! A queue pair.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};

use anabranch_hip::{DeviceAddress, HostBuffer};
use anabranch_ranks::GlobalRank;

use super::commands::{
    Connection, CqSpec, QpSpec, create_cq, create_qp, first_error, init_to_receive, query_qp,
    receive_to_send, refusal, reset_to_init,
};
use super::completion::{ENTRY, ErrorCompletion, FirstError, INVALID, Stop, last_done};
use super::devx::{DevxMemory, DevxObject};
use super::driver::{Driven, call};
use super::field::Command;
use super::layout::answer;
use super::path::{PathRequest, log_reads};
use super::request::{request_words, starts};
use crate::driver::{NicQueue, QueueSpec, QueueWords, UnansweredRequests};
use crate::endpoint::{Endpoint, first_packet};
use crate::error::{NicError, Result};
use crate::nics::LinkLayer;

/// The NIC's pages: parts of the registered memory begin at a multiple.
const PAGE: u64 = 4096;
/// The driver's word in endpoints, with the version of their form.
const DRIVER: &str = "mlx5 2";

/// Where the parts of a queue pair are within its memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    ring: u64,
    completions: u64,
    /// The queue pair's doorbell record, and behind it that of the completion queue, a cache line each.
    records: u64,
    bytes: u64,
}

impl Parts {
    fn of(entries: u32) -> Self {
        let part = (u64::from(entries) * ENTRY).next_multiple_of(PAGE);
        Self { ring: 0, completions: part, records: 2 * part, bytes: 2 * part + PAGE }
    }
}

/// A queue pair and its parts. What is declared first is destroyed first.
#[derive(Debug)]
pub(super) struct Mlx5Queue {
    queue_pair: Box<dyn DevxObject>,
    _completion_queue: Box<dyn DevxObject>,
    _registered: Box<dyn DevxMemory>,
    memory: HostBuffer,
    driven: Arc<Driven>,
    parts: Parts,
    spec: QueueSpec,
    /// What is sent to the peer.
    own: Endpoint,
    /// A thread has begun to connect it. No lock: looking a peer up may take seconds, and other callers do not wait
    /// for that.
    begun: AtomicBool,
    /// Bytes of a packet, once connected.
    path_mtu: OnceLock<u32>,
    /// Why it stopped, by the first look that saw an error. Later completions overwrite what that look saw.
    stop: OnceLock<Stop>,
}

impl Mlx5Queue {
    /// Makes one, in the state INIT.
    #[expect(unsafe_code, reason = "memory for queues is registered by its address")]
    pub(super) fn new(driven: Arc<Driven>, spec: QueueSpec) -> Result<Self> {
        let parts = Parts::of(spec.entries);
        let memory = driven.device.allocate_host(parts.bytes as usize)?;
        let (completions, records) = (parts.completions as usize, parts.records as usize);
        memory.write(0, &vec![0; completions])?;
        memory.write(completions, &vec![INVALID; records - completions])?;
        memory.write(records, &vec![0; parts.bytes as usize - records])?;
        // SAFETY: the buffer is dropped after what is created here (the order of the fields).
        let registered = unsafe { driven.devx.register_queue_memory(memory.as_ptr(), memory.len()) }?;
        let log_entries = spec.entries.ilog2();
        let cq = create_cq(&CqSpec {
            memory: registered.number(),
            entries_offset: parts.completions,
            log_entries,
            record_offset: parts.records + ENTRY,
            doorbell_page: driven.doorbell.page(),
            event_queue: driven.event_queue,
        });
        let (completion_queue, cq_number) = create(&driven, "CREATE_CQ", &cq)?;
        let qp = create_qp(&QpSpec {
            memory: registered.number(),
            ring_offset: parts.ring,
            log_entries,
            record_offset: parts.records,
            doorbell_page: driven.doorbell.page(),
            protection_domain: driven.protection_domain,
            completion_queue: cq_number,
            default_timestamps: driven.capabilities.default_timestamps,
        });
        let (queue_pair, number) = create(&driven, "CREATE_QP", &qp)?;
        let port = &driven.port;
        let own = Endpoint {
            driver: DRIVER.to_owned(),
            number,
            first_packet: first_packet(),
            link_layer: port.link_layer,
            lid: port.lid,
            gid: port.gid,
            gid_kind: port.gid_kind,
            mtu: port.mtu,
            most_answered: 1 << log_reads(port.most_answered),
        };
        let queue = Self {
            queue_pair,
            _completion_queue: completion_queue,
            _registered: registered,
            memory,
            driven,
            parts,
            spec,
            own,
            begun: AtomicBool::new(false),
            path_mtu: OnceLock::new(),
            stop: OnceLock::new(),
        };
        let mode = queue.driven.capabilities.atomics.mode();
        queue.modify("RST2INIT_QP", &reset_to_init(number, &queue.driven.port, mode))?;
        Ok(queue)
    }

    fn modify(&self, what: &'static str, command: &Command) -> Result<()> {
        let mut reply = Command::new(&answer::LAYOUT);
        let done = self.queue_pair.modify(what, command.bytes(), reply.bytes_mut());
        judge(&self.driven, what, done, &reply)
    }

    fn place(&self, offset: u64) -> DeviceAddress {
        self.memory.device_address().offset(offset)
    }
}

/// Makes an object and reads its number.
fn create(driven: &Driven, what: &'static str, command: &Command) -> Result<(Box<dyn DevxObject>, u32)> {
    let mut reply = Command::new(&answer::LAYOUT);
    let made = driven.devx.create(what, command.bytes(), reply.bytes_mut());
    let object = match made {
        Ok(object) => {
            judge(driven, what, Ok(()), &reply)?;
            object
        }
        Err(error) => {
            return Err(judge(driven, what, Err(error), &reply)
                .err()
                .unwrap_or_else(|| call(what, driven, String::new())));
        }
    };
    Ok((object, reply.get(answer::number) as u32))
}

/// The NIC's own words before the system's.
fn judge(driven: &Driven, what: &'static str, done: Result<()>, reply: &Command) -> Result<()> {
    match (refusal(reply), done) {
        (None, done) => done,
        (Some(words), Ok(())) => Err(call(what, driven, words)),
        (Some(words), Err(NicError::Call { cause, .. })) => {
            Err(call(what, driven, format!("{cause}; {words}")))
        }
        (Some(_), Err(error)) => Err(error),
    }
}

impl NicQueue for Mlx5Queue {
    fn endpoint(&self) -> Vec<u8> {
        self.own.to_bytes()
    }

    fn connect(&self, peer: GlobalRank, endpoint: &[u8]) -> Result<()> {
        let wrong = |problem: String| NicError::Endpoint { peer, driver: DRIVER.to_owned(), problem };
        let theirs = self.own.of_peer(endpoint).map_err(wrong)?;
        if self.begun.swap(true, Ordering::AcqRel) {
            return Err(wrong(format!("{} is connected already, or was tried to be", self.describe())));
        }
        let Driven { port, settings, devx, .. } = self.driven.as_ref();
        let (traffic_class, service_level) = (settings.traffic_class, settings.service_level);
        let hop = match port.link_layer {
            LinkLayer::Infiniband => None,
            LinkLayer::Ethernet => Some(devx.next_hop(&PathRequest {
                port: port.number,
                gid_index: port.gid_index,
                remote_gid: theirs.gid,
                traffic_class,
                service_level,
            })?),
        };
        let connection = Connection {
            own: &self.own,
            peer: &theirs,
            port,
            traffic_class,
            service_level,
            ack_timeout: settings.ack_timeout,
        };
        self.modify("INIT2RTR_QP", &init_to_receive(&connection, hop.as_ref()))?;
        self.modify("RTR2RTS_QP", &receive_to_send(&connection))?;
        let _ = self.path_mtu.set(connection.path_mtu());
        Ok(())
    }

    fn words(&self) -> QueueWords {
        QueueWords {
            ring: self.place(self.parts.ring),
            entries: self.spec.entries,
            completions: self.place(self.parts.completions),
            doorbell_record: self.place(self.parts.records),
            doorbell: self.driven.doorbell.register(),
            sequence_table: DeviceAddress::NULL,
            number: self.own.number,
            path_mtu: self.path_mtu.get().copied().unwrap_or(self.own.mtu),
            doorbell_value: 0,
        }
    }

    fn describe(&self) -> String {
        format!(
            "queue pair {:#x} to {}, channel {}, on {}",
            self.own.number,
            self.spec.peer,
            self.spec.channel,
            self.driven.devx.nic()
        )
    }

    fn stopped(&self) -> Option<String> {
        self.stop().map(Stop::words)
    }

    fn is_consequence(&self) -> bool {
        self.stop().is_some_and(Stop::is_consequence)
    }

    fn unanswered(&self) -> Option<UnansweredRequests> {
        let entry = self.completion()?;
        if ErrorCompletion::of(&entry).is_some() {
            return None;
        }
        let mut record = [0; 4];
        // The second word of the record is the send queue's.
        self.memory.read(self.parts.records as usize + 4, &mut record).ok()?;
        let known = u32::from_be_bytes(record) as u16;
        let read = |index: u16| {
            let slot = u64::from(u32::from(index) & (self.spec.entries - 1));
            let mut request = [0; ENTRY as usize];
            self.memory.read((self.parts.ring + slot * ENTRY) as usize, &mut request).ok()?;
            Some(request)
        };
        // A request takes one or two entries, and a completion says the first of them.
        let candidates = match last_done(&entry) {
            Some(done) => [done.wrapping_add(1), done.wrapping_add(2)],
            None => [0, 0],
        };
        let number = self.own.number;
        let is_there = |index: &u16| read(*index).is_some_and(|request| starts(&request, *index, number));
        let missing = known.wrapping_sub(candidates[0]);
        // The record may be read before the NIC's completion of what it says.
        if missing == 0 || u32::from(missing) > self.spec.entries {
            return None;
        }
        let oldest = candidates.into_iter().find(is_there)?;
        let missing = known.wrapping_sub(oldest);
        let request = request_words(&read(oldest)?);
        let words =
            format!("{missing} entries are on their way, the oldest is {request}, entry {oldest} (16 bits)");
        (missing > 0).then(|| UnansweredRequests { oldest: oldest.into(), words })
    }
}

impl Mlx5Queue {
    /// The entry in which the NIC reports the last completion.
    fn completion(&self) -> Option<[u8; ENTRY as usize]> {
        let mut entry = [0; ENTRY as usize];
        self.memory.read(self.parts.completions as usize, &mut entry).ok()?;
        Some(entry)
    }

    /// Why it stopped, if it has; the same at each look. The NIC is asked where the last completion does not say it, once.
    fn stop(&self) -> Option<Stop> {
        if let Some(stop) = self.stop.get() {
            return Some(*stop);
        }
        ErrorCompletion::of(&self.completion()?)?;
        // The entry's last byte, which the NIC writes last, has been read: the rest is read after it.
        fence(Ordering::Acquire);
        let last = ErrorCompletion::of(&self.completion()?)?;
        Some(*self.stop.get_or_init(|| Stop::of(last, || self.ask_first_error())))
    }

    fn ask_first_error(&self) -> FirstError {
        if !self.driven.capabilities.says_first_error {
            return FirstError::Unsupported;
        }
        let (command, mut reply) = query_qp(self.own.number);
        let asked = self.queue_pair.query("QUERY_QP", command.bytes(), reply.bytes_mut());
        if let Err(error) = judge(&self.driven, "QUERY_QP", asked, &reply) {
            tracing::warn!(%error, "the NIC does not say which error stopped a queue pair");
            return FirstError::Refused;
        }
        let (syndrome, vendor) = first_error(&reply);
        FirstError::said(syndrome, vendor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_begin_at_pages_and_do_not_overlap() {
        for log in 4..=15 {
            let parts = Parts::of(1 << log);
            let queue = 64u64 << log;
            assert!(parts.completions >= parts.ring + queue && parts.records >= parts.completions + queue);
            assert!(parts.bytes >= parts.records + 2 * ENTRY);
            assert!(
                [parts.ring, parts.completions, parts.records, parts.bytes].iter().all(|at| at % PAGE == 0)
            );
        }
    }
}
