//! The content of each command. Nothing here sends one.

use super::field::Command;
use super::layout::{
    CQ_CONTEXT, PRIMARY_PATH, QP_CONTEXT, QP_EXTENSION, ads, answer, cqc, create_cq_in, create_qp_in,
    modify_qp_in, opcode, qp_context_extension, qpc, query_qp_in, query_qp_out,
};
use super::path::{NextHop, PortFacts, log_reads};
use crate::endpoint::{Endpoint, mtu_code};
use crate::nics::{GidKind, LinkLayer};

/// `MLX5_QPC_PM_STATE_MIGRATED`: no alternate path.
const MIGRATED: u64 = 3;
/// A receive queue of no entries (`MLX5_QPC_RQ_TYPE_ZERO_SIZE_RQ`).
const NO_RECEIVE_QUEUE: u64 = 3;
/// The NIC's own format of timestamps (`MLX5_TIMESTAMP_FORMAT_DEFAULT`); 0 is a free running counter.
const DEFAULT_TIMESTAMPS: u64 = 1;
/// Messages of up to 2 to this power bytes.
pub(super) const LOG_MESSAGE: u32 = 30;
/// How often a message without an answer is sent again.
const RETRIES: u64 = 7;
/// How often a message to a receive queue without entries is sent again: not for ever, which 7 would mean.
const RECEIVER_RETRIES: u64 = 6;
/// Code of 0.64 ms between those (InfiniBand 1.4, table 46).
const RECEIVER_WAIT: u64 = 12;
/// RoCE v2's routers may take a packet this often.
const HOPS: u64 = 64;
/// The first UDP source port that RoCE v2 uses (`IB_ROCE_UDP_ENCAP_VALID_PORT_MIN` of Linux).
const FIRST_SOURCE_PORT: u32 = 0xc000;

/// Parameters of a completion queue. Offsets are bytes within the registered memory, multiples of 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqSpec {
    /// Registered memory (`umem`).
    pub memory: u32,
    /// Where the entries begin.
    pub entries_offset: u64,
    /// Entries as a power of two, of 64 bytes each.
    pub log_entries: u32,
    /// Where the doorbell record of 8 bytes is.
    pub record_offset: u64,
    /// Page of the NIC's registers.
    pub doorbell_page: u32,
    /// Event queue, which gets no events.
    pub event_queue: u32,
}

/// Parameters of a queue pair. Offsets as in [`CqSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpSpec {
    /// Registered memory (`umem`).
    pub memory: u32,
    /// Where the send queue begins.
    pub ring_offset: u64,
    /// Entries of the send queue as a power of two, of 64 bytes each.
    pub log_entries: u32,
    /// Where the doorbell record of 8 bytes is.
    pub record_offset: u64,
    /// Page of the NIC's registers.
    pub doorbell_page: u32,
    /// Protection domain.
    pub protection_domain: u32,
    /// Completion queue, of both directions.
    pub completion_queue: u32,
    /// Whether completions have timestamps in the NIC's own format, and not of a free running counter.
    pub default_timestamps: bool,
}

/// Parameters of a connection: both ends as exchanged, and the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Connection<'a> {
    /// This end.
    pub(super) own: &'a Endpoint,
    /// The peer's.
    pub(super) peer: &'a Endpoint,
    /// The port of this end: its number, and its address' place in the table.
    pub(super) port: &'a PortFacts,
    /// Traffic class.
    pub(super) traffic_class: u8,
    /// Service level, or the priority on Ethernet.
    pub(super) service_level: u8,
    /// Exponent of the time to an answer: 4.096 us times 2 to this power.
    pub(super) ack_timeout: u32,
}

impl Connection<'_> {
    /// Bytes of a packet: what both ports take.
    pub(super) fn path_mtu(&self) -> u32 {
        self.own.mtu.min(self.peer.mtu)
    }
}

/// `CREATE_CQ`: collapsed to one entry, which may be overwritten unread.
pub(super) fn create_cq(spec: &CqSpec) -> Command {
    let context = |field: super::field::Field| field.within(CQ_CONTEXT);
    Command::new(&create_cq_in::LAYOUT)
        .set(create_cq_in::opcode, opcode::CREATE_CQ)
        .set(context(cqc::dbr_umem_valid), 1)
        .set(context(cqc::cc), 1)
        .set(context(cqc::oi), 1)
        .set(context(cqc::dbr_umem_id), spec.memory.into())
        .set(context(cqc::log_cq_size), spec.log_entries.into())
        .set(context(cqc::uar_page), spec.doorbell_page.into())
        .set(context(cqc::c_eqn), spec.event_queue.into())
        .set(context(cqc::dbr_addr), spec.record_offset)
        .set(create_cq_in::cq_umem_offset, spec.entries_offset)
        .set(create_cq_in::cq_umem_id, spec.memory.into())
        .set(create_cq_in::cq_umem_valid, 1)
}

/// `CREATE_QP`: reliably connected, without a receive queue.
pub(super) fn create_qp(spec: &QpSpec) -> Command {
    let context = |field: super::field::Field| field.within(QP_CONTEXT);
    Command::new(&create_qp_in::LAYOUT)
        .set(create_qp_in::opcode, opcode::CREATE_QP)
        .set(context(qpc::pm_state), MIGRATED)
        .set(context(qpc::pd), spec.protection_domain.into())
        .set(context(qpc::log_sq_size), spec.log_entries.into())
        .set(context(qpc::ts_format), if spec.default_timestamps { DEFAULT_TIMESTAMPS } else { 0 })
        .set(context(qpc::uar_page), spec.doorbell_page.into())
        .set(context(qpc::cqn_snd), spec.completion_queue.into())
        .set(context(qpc::cqn_rcv), spec.completion_queue.into())
        .set(context(qpc::dbr_addr), spec.record_offset)
        .set(context(qpc::rq_type), NO_RECEIVE_QUEUE)
        .set(context(qpc::dbr_umem_valid), 1)
        .set(context(qpc::dbr_umem_id), spec.memory.into())
        .set(create_qp_in::wq_umem_offset, spec.ring_offset)
        .set(create_qp_in::wq_umem_id, spec.memory.into())
        .set(create_qp_in::wq_umem_valid, 1)
}

fn modify(code: u64, number: u32) -> Command {
    Command::new(&modify_qp_in::LAYOUT).set(modify_qp_in::opcode, code).set(modify_qp_in::qpn, number.into())
}

/// `RST2INIT_QP`: what peers may do. `atomic_mode` as [`AtomicCapabilities::mode`](super::AtomicCapabilities::mode).
pub(super) fn reset_to_init(number: u32, port: &PortFacts, atomic_mode: Option<u32>) -> Command {
    let context = |field: super::field::Field| field.within(QP_CONTEXT);
    modify(opcode::RST2INIT_QP, number)
        .set(context(qpc::pm_state), MIGRATED)
        .set(context(qpc::rre), 1)
        .set(context(qpc::rwe), 1)
        .set(context(qpc::rae), atomic_mode.is_some().into())
        .set(context(qpc::atomic_mode), atomic_mode.unwrap_or(0).into())
        .set(context(ads::vhca_port_num.within(PRIMARY_PATH)), port.number.into())
}

/// `INIT2RTR_QP`: who the peer is, and the way there. `hop` is needed on Ethernet.
pub(super) fn init_to_receive(connection: &Connection<'_>, hop: Option<&NextHop>) -> Command {
    let Connection { own, peer, port, .. } = connection;
    let context = |field: super::field::Field| field.within(QP_CONTEXT);
    let path = |field: super::field::Field| field.within(QP_CONTEXT + PRIMARY_PATH);
    let command = modify(opcode::INIT2RTR_QP, own.number)
        .set(context(qpc::mtu), mtu_code(connection.path_mtu()).into())
        .set(context(qpc::log_msg_max), LOG_MESSAGE.into())
        .set(context(qpc::remote_qpn), peer.number.into())
        .set(context(qpc::log_rra_max), log_reads(own.most_answered).into())
        .set(context(qpc::min_rnr_nak), RECEIVER_WAIT)
        .set(context(qpc::next_rcv_psn), peer.first_packet.into())
        .set(path(ads::vhca_port_num), port.number.into());
    let with_address = |command: Command| {
        command
            .set(path(ads::src_addr_index), port.gid_index.into())
            .set(path(ads::hop_limit), HOPS)
            .set(path(ads::tclass), connection.traffic_class.into())
            .set_bytes(path(ads::rgid_rip_high).offset, &peer.gid)
    };
    match port.link_layer {
        LinkLayer::Ethernet => {
            let command = with_address(command).set(path(ads::eth_prio), connection.service_level.into());
            // Packets of RoCE v1 have neither a UDP nor an IP header (`mlx5_set_path` of Linux).
            let command = match own.gid_kind {
                GidKind::InfinibandOrRoceV1 => command,
                GidKind::RoceV2 => {
                    let source = FIRST_SOURCE_PORT | (own.number ^ peer.number.rotate_left(7)) & 0x3fff;
                    command
                        .set(path(ads::dscp), u64::from(connection.traffic_class >> 2))
                        .set(path(ads::udp_sport), source.into())
                }
            };
            match hop {
                Some(hop) => command.set_bytes(path(ads::rmac_47_32).offset, &hop.mac),
                None => command,
            }
        }
        LinkLayer::Infiniband => {
            let command = command
                .set(path(ads::rlid), peer.lid.into())
                .set(path(ads::sl), connection.service_level.into());
            if own.is_global(peer) { with_address(command.set(path(ads::grh), 1)) } else { command }
        }
    }
}

/// `RTR2RTS_QP`: how sending goes.
pub(super) fn receive_to_send(connection: &Connection<'_>) -> Command {
    let Connection { own, peer, port, .. } = connection;
    // The peer keeps room for what it answers, and has none for more.
    let asked = port.most_asked.min(peer.most_answered);
    let context = |field: super::field::Field| field.within(QP_CONTEXT);
    modify(opcode::RTR2RTS_QP, own.number)
        .set(context(qpc::log_sra_max), log_reads(asked).into())
        .set(context(qpc::retry_count), RETRIES)
        .set(context(qpc::rnr_retry), RECEIVER_RETRIES)
        .set(context(qpc::next_send_psn), own.first_packet.into())
        .set(context(ads::ack_timeout.within(PRIMARY_PATH)), connection.ack_timeout.into())
}

/// `QUERY_QP` with the context's extension, and an empty answer.
pub(super) fn query_qp(number: u32) -> (Command, Command) {
    let command = Command::new(&query_qp_in::LAYOUT)
        .set(query_qp_in::opcode, opcode::QUERY_QP)
        .set(query_qp_in::qpc_ext, 1)
        .set(query_qp_in::qpn, number.into());
    (command, Command::new(&query_qp_out::LAYOUT))
}

/// The syndromes of the error that stopped a queue pair, the NIC's and the vendor's, from the answer to [`query_qp`].
pub(super) fn first_error(reply: &Command) -> (u8, u8) {
    let get = |field: super::field::Field| reply.get(field.within(QP_EXTENSION)) as u8;
    (get(qp_context_extension::syndrome), get(qp_context_extension::vendor_error_syndrome))
}

/// What an answer reports about its command: `None` if it was done, else status and syndrome in words.
pub(super) fn refusal(reply: &Command) -> Option<String> {
    let (status, syndrome) = (reply.get(answer::status), reply.get(answer::syndrome));
    if status == 0 {
        return None;
    }
    // `enum mlx5_cmd_status` of Linux.
    let words = match status {
        0x01 => "internal error",
        0x02 => "bad operation",
        0x03 => "bad parameter",
        0x04 => "bad system state",
        0x05 => "bad resource",
        0x06 => "resource busy",
        0x08 => "limit exceeded",
        0x09 => "bad resource state",
        0x0a => "bad index",
        0x0f => "no resources",
        0x10 => "bad queue state",
        0x30 => "bad packet",
        0x40 => "bad size",
        0x50 => "bad input length",
        0x51 => "bad output length",
        _ => "a status without a name",
    };
    Some(format!("the NIC answers {words} (status {status:#04x}, syndrome {syndrome:#010x})"))
}
