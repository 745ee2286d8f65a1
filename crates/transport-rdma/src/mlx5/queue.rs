//! A queue pair.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anabranch_hip::{DeviceAddress, HostBuffer};
use anabranch_ranks::GlobalRank;

use super::commands::{
    Connection, CqSpec, QpSpec, create_cq, create_qp, init_to_receive, receive_to_send, refusal,
    reset_to_init,
};
use super::devx::{DevxMemory, DevxObject};
use super::driver::{Driven, call};
use super::field::Command;
use super::layout::answer;
use super::path::{PathRequest, log_reads};
use crate::driver::{NicQueue, QueueSpec, QueueWords};
use crate::endpoint::{Endpoint, first_packet};
use crate::error::{NicError, Result};
use crate::nics::LinkLayer;
use crate::provider::Provider;
use crate::syndrome::syndrome_words;

/// The NIC's pages: parts of the registered memory begin at a multiple.
const PAGE: u64 = 4096;
/// Bytes of an entry, of either queue.
const ENTRY: u64 = 64;
/// The driver's word in endpoints, with the version of their form.
const DRIVER: &str = "mlx5 2";
/// What completion entries are filled with: opcode 15, which says that nothing was written yet.
const INVALID: u8 = 0xff;

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

/// A queue pair and all that it is made of. What is declared first is given back first.
#[derive(Debug)]
pub(super) struct Mlx5Queue {
    queue_pair: Box<dyn DevxObject>,
    _completion_queue: Box<dyn DevxObject>,
    _registered: Box<dyn DevxMemory>,
    memory: HostBuffer,
    driven: Arc<Driven>,
    parts: Parts,
    spec: QueueSpec,
    /// What the peer is told.
    own: Endpoint,
    /// Somebody has begun to connect it. No lock: looking a peer up may take seconds, and whoever else asks for something does not wait
    /// for that.
    begun: AtomicBool,
    /// Bytes of a packet, once connected.
    path_mtu: OnceLock<u32>,
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
        // SAFETY: the buffer is dropped behind what is made here (the order of the fields).
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
        };
        queue.modify("RST2INIT_QP", &reset_to_init(number, &queue.driven.port))?;
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
        let words = completion_error(&self.completion()?)?;
        Some(format!("{}: {words}", self.describe()))
    }

    fn is_consequence(&self) -> bool {
        self.completion().and_then(|entry| error_syndrome(&entry)) == Some(FLUSHED)
    }
}

impl Mlx5Queue {
    /// The entry by which the NIC tells of the last completion.
    fn completion(&self) -> Option<[u8; ENTRY as usize]> {
        let mut entry = [0; ENTRY as usize];
        self.memory.read(self.parts.completions as usize, &mut entry).ok()?;
        Some(entry)
    }
}

/// `MLX5_CQE_SYNDROME_WR_FLUSH_ERR` of `mlx5dv.h`.
const FLUSHED: u8 = 0x05;

/// The syndrome of an error completion; `None` for any other entry.
fn error_syndrome(entry: &[u8; ENTRY as usize]) -> Option<u8> {
    const REQUESTER_ERROR: u8 = 13;
    const RESPONDER_ERROR: u8 = 14;
    [REQUESTER_ERROR, RESPONDER_ERROR].contains(&(entry[63] >> 4)).then_some(entry[55])
}

/// What an error completion says (`struct mlx5_err_cqe` of `mlx5dv.h`); `None` for any other entry.
fn completion_error(entry: &[u8; ENTRY as usize]) -> Option<String> {
    let (vendor, syndrome) = (entry[54], error_syndrome(entry)?);
    let index = u16::from_be_bytes([entry[60], entry[61]]);
    let seen = u64::from(vendor) << 8 | u64::from(syndrome);
    Some(format!("{} at entry {index} (16 bits)", syndrome_words(Provider::Mlx5, seen)))
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

    #[test]
    fn an_error_completion_is_told_in_words() {
        let mut entry = [INVALID; 64];
        assert_eq!(completion_error(&entry), None, "nothing was written yet");
        entry[63] = 0x01;
        assert_eq!(completion_error(&entry), None, "a completed request");
        (entry[54], entry[55], entry[60], entry[61], entry[63]) = (0x88, 0x13, 0x01, 0x02, 0xd1);
        let words = completion_error(&entry).unwrap();
        assert_eq!(
            words,
            "access refused by the peer's NIC (syndrome 0x13, vendor's 0x88) at entry 258 (16 bits)"
        );
        entry[55] = 0x77;
        assert!(completion_error(&entry).unwrap().starts_with("an unknown syndrome"));
    }
}
