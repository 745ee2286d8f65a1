//! A reliably connected queue pair with a completion queue of its own.

use core::ffi::c_int;
use core::time::Duration;
use std::fmt;
use std::sync::Arc;

use super::nic::{Nic, last_error};
use crate::bindings::{
    CompareAddOrKey, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC, IBV_SEND_INLINE, IBV_SEND_SIGNALED,
    IBV_WC_SUCCESS, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IbvCq, IbvGid, IbvQp, IbvQpAttr, IbvQpCap, IbvQpInitAttr, IbvSendWr, IbvSge, IbvWc,
};
use crate::endpoint::{Endpoint, first_packet, mtu_code};
use crate::error::{NicError, Result};
use crate::posted::{PostedOpcode, PostedRequest};
use crate::posting::{Completion, Fault, TURN, WorkQueue, opcode, status};

/// Bytes that a request carries itself: a value.
pub(crate) const INLINE_BYTES: u32 = 8;
/// How often a packet is sent again. The field has 3 bits, but `rdma_rxe` takes 7 for "for ever" (`rxe_comp.c` of Linux 6.1).
const RETRIES: u8 = 6;
/// How often a receiver that is not ready is asked again; 7 would be for ever. Nothing here needs a receive.
const RECEIVER_RETRIES: u8 = 6;
/// The code of 0.64 ms, the wait between those.
const RECEIVER_TIMER: u8 = 12;
/// Routers that a packet may pass.
const HOPS: u8 = 64;
/// Verbs have 8 bits for the reads and atomic operations under way.
pub(crate) const MOST_8_BITS: u32 = u8::MAX as u32;

/// How packets are marked, and from which port and address they go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
}

/// The queue pair. It is used by one thread at a time.
pub(crate) struct QueuePair {
    nic: Arc<Nic>,
    completions: *mut IbvCq,
    pair: *mut IbvQp,
    path: Path,
    first_packet: u32,
    found: Vec<IbvWc>,
}

// SAFETY: the pointers are owned by this value, and libibverbs lets any thread use them.
unsafe impl Send for QueuePair {}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("nic", &self.nic.name)
            .field("number", &self.number())
            .finish_non_exhaustive()
    }
}

impl QueuePair {
    /// A queue pair that takes `entries` requests at a time, not connected.
    ///
    /// # Errors
    /// [`NicError::Call`], [`NicError::Limit`] where it cannot carry a value of 8 bytes.
    pub(crate) fn new(nic: &Arc<Nic>, path: Path, entries: u32) -> Result<Self> {
        let verbs = &nic.verbs;
        let none = core::ptr::null_mut();
        // SAFETY: the context is open; no channel, the first vector.
        let completions = unsafe { (verbs.ibv_create_cq)(nic.context, entries as c_int, none, none, 0) };
        if completions.is_null() {
            return Err(last_error("ibv_create_cq", &nic.name));
        }
        let (nic, found, first_packet) = (Arc::clone(nic), Vec::with_capacity(TURN), first_packet());
        let mut queue = Self { nic, completions, pair: core::ptr::null_mut(), path, first_packet, found };
        let cap = IbvQpCap {
            max_send_wr: entries,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE_BYTES,
        };
        let mut attributes = IbvQpInitAttr {
            qp_context: none,
            send_cq: completions,
            recv_cq: completions,
            srq: none,
            cap,
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain is live; the call reads the struct and writes its capabilities.
        queue.pair = unsafe { (queue.nic.verbs.ibv_create_qp)(queue.nic.pd, &raw mut attributes) };
        if queue.pair.is_null() {
            return Err(last_error("ibv_create_qp", &queue.nic.name));
        }
        if attributes.cap.max_inline_data < INLINE_BYTES {
            let given = u64::from(INLINE_BYTES);
            let allowed = attributes.cap.max_inline_data.to_string();
            return Err(NicError::Limit {
                what: "inline bytes",
                given,
                allowed,
                nic: queue.nic.name.clone(),
            });
        }
        Ok(queue)
    }

    /// Its number, 24 bits.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is live where it is not null; its number does not change.
        if self.pair.is_null() { 0 } else { unsafe { (*self.pair).qp_num } }
    }

    /// The packet sequence number that it starts with.
    pub(crate) fn first_packet(&self) -> u32 {
        self.first_packet
    }

    /// Connects it: to INIT, ready to receive, ready to send. `patience` is what the NIC retries for.
    ///
    /// # Errors
    /// [`NicError::Call`].
    pub(crate) fn connect(&mut self, own: &Endpoint, peer: &Endpoint, patience: Duration) -> Result<()> {
        let mut attributes = blank();
        attributes.qp_state = IBV_QPS_INIT;
        attributes.port_num = self.path.port;
        attributes.qp_access_flags = self.nic.remote_access();
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp (to INIT)", &mut attributes, mask)?;

        let mut attributes = blank();
        attributes.qp_state = IBV_QPS_RTR;
        attributes.path_mtu = mtu_code(own.mtu.min(peer.mtu));
        attributes.dest_qp_num = peer.number;
        attributes.rq_psn = peer.first_packet;
        // A driver's own is at most what 8 bits hold.
        attributes.max_dest_rd_atomic = own.most_answered.min(MOST_8_BITS) as u8;
        attributes.min_rnr_timer = RECEIVER_TIMER;
        attributes.ah_attr.port_num = self.path.port;
        attributes.ah_attr.sl = self.path.service_level;
        attributes.ah_attr.dlid = peer.lid;
        attributes.ah_attr.is_global = u8::from(own.is_global(peer));
        attributes.ah_attr.grh.dgid = IbvGid(peer.gid);
        attributes.ah_attr.grh.sgid_index = self.path.gid_index;
        attributes.ah_attr.grh.hop_limit = HOPS;
        attributes.ah_attr.grh.traffic_class = self.path.traffic_class;
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp (to RTR)", &mut attributes, mask)?;

        let mut attributes = blank();
        attributes.qp_state = IBV_QPS_RTS;
        attributes.sq_psn = self.first_packet;
        attributes.timeout = timeout_code(patience);
        attributes.retry_cnt = RETRIES;
        attributes.rnr_retry = RECEIVER_RETRIES;
        let asked = self.nic.attributes.max_qp_init_rd_atom.max(0) as u32;
        attributes.max_rd_atomic = peer.most_answered.min(asked).min(MOST_8_BITS) as u8;
        let mask = IBV_QP_STATE
            | IBV_QP_SQ_PSN
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp (to RTS)", &mut attributes, mask)
    }

    fn modify(&self, call: &'static str, attributes: &mut IbvQpAttr, mask: c_int) -> Result<()> {
        // SAFETY: the queue pair is live; the call reads the fields that the mask names.
        let code = unsafe { (self.nic.verbs.ibv_modify_qp)(self.pair, attributes, mask) };
        self.nic.check(call, code)
    }
}

impl WorkQueue for QueuePair {
    fn post(&mut self, requests: &[(u64, PostedRequest)]) -> Result<(), (usize, String)> {
        let values: Vec<u64> = requests.iter().map(|(_, request)| request.value.to_le()).collect();
        let mut pieces: Vec<IbvSge> =
            requests.iter().zip(&values).map(|((_, request), value)| piece(request, value)).collect();
        let mut work: Vec<IbvSendWr> = requests
            .iter()
            .zip(&mut pieces)
            .map(|((position, request), piece)| entry(*position, request, piece))
            .collect();
        let first = work.as_mut_ptr();
        for index in 1..work.len() {
            // SAFETY: within the vector, which is not moved or resized until the call below is over.
            unsafe { (*first.add(index - 1)).next = first.add(index) };
        }
        // SAFETY: the queue pair is live, so is its context, whose operations the provider filled when it was opened.
        let post = unsafe { (*(*self.pair).context).ops.post_send };
        let Some(post) = post else { return Err((0, "the provider has no post_send".to_owned())) };
        let mut refused = core::ptr::null_mut();
        // SAFETY: the list ends in null; requests, pieces and inline values live until the call returns, which copies them. What
        // the entries name by keys is checked by the NIC.
        let code = unsafe { post(self.pair, first, &raw mut refused) };
        if code == 0 {
            return Ok(());
        }
        let taken = work.iter().position(|entry| core::ptr::eq(entry, refused)).unwrap_or(0);
        Err((taken, format!("ibv_post_send: {}", std::io::Error::from_raw_os_error(code.abs()))))
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), Fault> {
        let broken = |words| Fault { status: status::FATAL, words };
        // SAFETY: as in `post`, of the completion queue.
        let poll = unsafe { (*(*self.completions).context).ops.poll_cq };
        let Some(poll) = poll else { return Err(broken("the provider has no poll_cq".to_owned())) };
        self.found.clear();
        // SAFETY: the completion queue is live, and the call writes at most TURN elements, for which there is room.
        let count = unsafe { poll(self.completions, TURN as c_int, self.found.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| broken(format!("ibv_poll_cq returned {count}")))?;
        // SAFETY: the call wrote that many elements, at most the capacity.
        unsafe { self.found.set_len(count.min(TURN)) };
        completions.extend(self.found.iter().map(|found| Completion {
            position: found.wr_id,
            status: found.status,
            cause: match found.status {
                IBV_WC_SUCCESS => String::new(),
                _ => format!("vendor syndrome {:#x}", found.vendor_err),
            },
        }));
        Ok(())
    }

    fn stop(&mut self) {
        let mut attributes = blank();
        attributes.qp_state = IBV_QPS_ERR;
        if let Err(error) = self.modify("ibv_modify_qp (to ERR)", &mut attributes, IBV_QP_STATE) {
            tracing::warn!("{error}");
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.pair.is_null() {
            // SAFETY: the queue pair is this value's and ends once.
            let code = unsafe { (self.nic.verbs.ibv_destroy_qp)(self.pair) };
            if let Err(error) = self.nic.check("ibv_destroy_qp", code) {
                tracing::warn!("{error}");
            }
        }
        // SAFETY: the completion queue is this value's, and its queue pair is gone.
        let code = unsafe { (self.nic.verbs.ibv_destroy_cq)(self.completions) };
        if let Err(error) = self.nic.check("ibv_destroy_cq", code) {
            tracing::warn!("{error}");
        }
    }
}

fn blank() -> IbvQpAttr {
    // SAFETY: all bits zero are a value of this plain struct.
    unsafe { core::mem::zeroed() }
}

/// The local side of a request.
fn piece(request: &PostedRequest, value: &u64) -> IbvSge {
    let (addr, length, lkey) = match opcode(request) {
        // Inline: the address is one of this process, and the key is not looked at.
        Some(PostedOpcode::WriteValue) => (core::ptr::from_ref(value) as u64, request.bytes, 0),
        Some(PostedOpcode::FetchAdd | PostedOpcode::CompareSwap) => (request.local, 8, request.local_key),
        _ => (request.local, request.bytes, request.local_key),
    };
    IbvSge { addr, length, lkey }
}

/// The entry of a request that the lane let through.
fn entry(position: u64, request: &PostedRequest, piece: &mut IbvSge) -> IbvSendWr {
    let PostedRequest { remote, value, compare, remote_key, .. } = *request;
    // SAFETY: all bits zero are a value of this plain struct.
    let mut work: IbvSendWr = unsafe { core::mem::zeroed() };
    work.wr_id = position;
    // A piece of no bytes would be one of 2 GiB to some NICs.
    work.num_sge = c_int::from(piece.length > 0);
    work.sg_list = piece;
    work.send_flags = IBV_SEND_SIGNALED;
    work.remote_addr = remote;
    work.compare_add_or_rkey = CompareAddOrKey { compare_add: 0 };
    work.compare_add_or_rkey.rkey = remote_key;
    match opcode(request) {
        Some(PostedOpcode::Read) => work.opcode = IBV_WR_RDMA_READ,
        Some(PostedOpcode::FetchAdd) => {
            work.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
            work.compare_add_or_rkey.compare_add = value;
            work.atomic_rkey[0] = remote_key;
        }
        Some(PostedOpcode::CompareSwap) => {
            work.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
            work.compare_add_or_rkey.compare_add = compare;
            work.swap = value;
            work.atomic_rkey[0] = remote_key;
        }
        Some(PostedOpcode::WriteValue) => {
            work.opcode = IBV_WR_RDMA_WRITE;
            work.send_flags |= IBV_SEND_INLINE;
        }
        _ => work.opcode = IBV_WR_RDMA_WRITE,
    }
    work
}

/// The code of the largest timeout (4.096 us times a power of two) with which all retries are over within the patience.
fn timeout_code(patience: Duration) -> u8 {
    let whole = |code: u32| Duration::from_nanos(4096u64 << code) * (u32::from(RETRIES) + 1);
    (1..=31u32).rev().find(|code| whole(*code) <= patience).unwrap_or(1) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_end_within_the_patience_and_not_much_earlier() {
        for millis in [1u64, 20, 500, 10_000, 60_000] {
            let patience = Duration::from_millis(millis);
            let whole = Duration::from_nanos(4096 << timeout_code(patience)) * (u32::from(RETRIES) + 1);
            assert!(whole <= patience && whole * 2 > patience, "{patience:?}: {whole:?}");
        }
        assert_eq!(timeout_code(Duration::ZERO), 1, "0 would be no timeout at all");
    }

    #[test]
    fn requests_become_the_work_that_they_ask_for() {
        let mut request: PostedRequest = bytemuck::Zeroable::zeroed();
        (request.local, request.remote, request.bytes) = (0x1000, 0x2000, 24);
        (request.value, request.compare) = (0x0102_0304_0506_0708, 9);
        (request.local_key, request.remote_key) = (0x11, 0x22);
        let made = |change: fn(&mut PostedRequest)| {
            let mut request = request;
            change(&mut request);
            let value = request.value.to_le();
            let mut piece = piece(&request, &value);
            let work = entry(77, &request, &mut piece);
            // SAFETY: every bit pattern is a value of either member.
            let (first, key) =
                unsafe { (work.compare_add_or_rkey.compare_add, work.compare_add_or_rkey.rkey) };
            let inline = (work.send_flags & IBV_SEND_INLINE != 0).then(|| {
                // SAFETY: an inline piece is of the value above.
                unsafe { core::slice::from_raw_parts(piece.addr as *const u8, piece.length as usize) }
                    .to_vec()
            });
            assert_eq!((work.wr_id, work.remote_addr, work.send_flags & IBV_SEND_SIGNALED), (77, 0x2000, 2));
            (work, first, key, piece, inline)
        };
        let (work, _, key, piece_of, inline) = made(|request| request.opcode = PostedOpcode::Write as u32);
        assert_eq!((work.opcode, key, work.num_sge, inline), (IBV_WR_RDMA_WRITE, 0x22, 1, None));
        assert_eq!((piece_of.addr, piece_of.length, piece_of.lkey), (0x1000, 24, 0x11));
        let (work, ..) = made(|request| (request.opcode, request.bytes) = (PostedOpcode::Read as u32, 0));
        assert_eq!((work.opcode, work.num_sge), (IBV_WR_RDMA_READ, 0), "no bytes, no piece");
        let (work, _, key, _, inline) =
            made(|request| (request.opcode, request.bytes) = (PostedOpcode::WriteValue as u32, 4));
        assert_eq!(
            (work.opcode, key, inline),
            (IBV_WR_RDMA_WRITE, 0x22, Some(vec![8, 7, 6, 5])),
            "low bytes first"
        );
        let (work, first, _, piece_of, _) = made(|request| request.opcode = PostedOpcode::FetchAdd as u32);
        assert_eq!(
            (work.opcode, first, piece_of.length),
            (IBV_WR_ATOMIC_FETCH_AND_ADD, 0x0102_0304_0506_0708, 8)
        );
        assert_eq!(work.atomic_rkey[0], 0x22);
        let (work, first, ..) = made(|request| request.opcode = PostedOpcode::CompareSwap as u32);
        assert_eq!((work.opcode, first, work.swap), (IBV_WR_ATOMIC_CMP_AND_SWP, 9, 0x0102_0304_0506_0708));
    }
}
