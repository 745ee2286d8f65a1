//! A reliable datagram endpoint with an address vector and a completion queue of its own.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_uint, c_void};
use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;

use anabranch_transport::Region;
use anabranch_transport_rdma::posting::{TURN, status};
use anabranch_transport_rdma::{NicError, Result};

use crate::bindings::{
    FI_ATOMIC_WRITE, FI_CQ_FORMAT_CONTEXT, FI_CSWAP, FI_EACCES, FI_EAGAIN, FI_EAVAIL, FI_ECANCELED,
    FI_ECONNABORTED, FI_ECONNREFUSED, FI_ECONNRESET, FI_EHOSTDOWN, FI_EHOSTUNREACH, FI_EKEYREJECTED,
    FI_ENABLE, FI_ENOTCONN, FI_ESHUTDOWN, FI_ETIMEDOUT, FI_RECV, FI_SUM, FI_TRANSMIT, FI_UINT8, FI_UINT16,
    FI_UINT32, FI_UINT64, FI_WAIT_NONE, FiAvAttr, FiContext2, FiCqAttr, FiCqEntry, FiCqErrEntry, FiOpsAtomic,
    FiOpsRma, Fid, FidAv, FidCq, FidEp,
};
use crate::domain::{Domain, close};
use crate::flights::{Fault, Started};
use crate::region::OfiRegion;

/// Bytes of the longest address that is asked for; those of providers today have some tens.
const MOST_ADDRESS_BYTES: usize = 1024;

/// The local side of an operation: bytes of a registered range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local<'a> {
    pub(crate) region: &'a OfiRegion,
    pub(crate) address: u64,
}

impl Local<'_> {
    fn at(&self) -> *mut c_void {
        self.address as *mut c_void
    }
}

/// The other side: what the peer's provider names the bytes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) peer: u64,
    pub(crate) address: u64,
    pub(crate) key: u64,
}

/// The endpoint. It is used by one thread at a time.
pub(crate) struct Wire {
    domain: Arc<Domain>,
    vector: *mut FidAv,
    queue: *mut FidCq,
    endpoint: *mut FidEp,
    /// One for each slot. The provider writes there while an operation is on its way.
    contexts: Box<[UnsafeCell<FiContext2>]>,
    /// What the operation that has operands has: the value, and what a compare-and-swap expects.
    operands: Box<UnsafeCell<[u64; 2]>>,
    /// Where the provider wants the operands registered.
    operands_region: Option<Arc<OfiRegion>>,
}

// SAFETY: the pointers are this value's, and the provider lets any thread use them.
unsafe impl Send for Wire {}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl Wire {
    /// An endpoint with that many slots.
    ///
    /// # Errors
    /// [`NicError::Call`].
    pub(crate) fn new(domain: &Arc<Domain>, slots: u32) -> Result<Self> {
        let blank = || UnsafeCell::new(FiContext2 { internal: [core::ptr::null_mut(); 8] });
        let operands = Box::new(UnsafeCell::new([0; 2]));
        let range = Region { address: operands.get() as u64, bytes: size_of::<[u64; 2]>() as u64 };
        let wants = domain.info.needs_local_registration();
        let operands_region = wants.then(|| OfiRegion::private(domain, range)).transpose()?;
        let mut wire = Self {
            domain: Arc::clone(domain),
            vector: core::ptr::null_mut(),
            queue: core::ptr::null_mut(),
            endpoint: core::ptr::null_mut(),
            contexts: (0..slots).map(|_| blank()).collect(),
            operands,
            operands_region,
        };
        wire.open_queues(slots)?;
        wire.open_endpoint()?;
        Ok(wire)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        self.domain.info.library().check(call, code, &self.domain.name)
    }

    fn open_queues(&mut self, slots: u32) -> Result<()> {
        let (domain, none) = (self.domain.raw(), core::ptr::null_mut());
        // SAFETY: the domain is open, and its table of functions is the provider's.
        let operations = unsafe { &*(*domain).ops };
        let mut attributes = FiAvAttr {
            kind: self.domain.info.vector_kind(),
            rx_ctx_bits: 0,
            count: 1,
            ep_per_node: 0,
            name: core::ptr::null(),
            map_addr: none,
            flags: 0,
        };
        // SAFETY: the call reads the struct and writes one pointer.
        let code = unsafe { (operations.av_open)(domain, &raw mut attributes, &raw mut self.vector, none) };
        self.check("fi_av_open", code)?;
        let mut attributes = FiCqAttr {
            size: slots as usize,
            flags: 0,
            format: FI_CQ_FORMAT_CONTEXT,
            wait_obj: FI_WAIT_NONE,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: none,
        };
        // SAFETY: as above.
        let code = unsafe { (operations.cq_open)(domain, &raw mut attributes, &raw mut self.queue, none) };
        self.check("fi_cq_open", code)
    }

    fn open_endpoint(&mut self) -> Result<()> {
        let (domain, none) = (self.domain.raw(), core::ptr::null_mut());
        // SAFETY: the domain is open, and its table of functions is the provider's.
        let open = unsafe { (*(*domain).ops).endpoint };
        // SAFETY: the element is the one that the domain was opened with; the call writes one pointer.
        let code = unsafe { open(domain, self.domain.info.raw(), &raw mut self.endpoint, none) };
        self.check("fi_endpoint", code)?;
        let own: *mut Fid = self.endpoint.cast();
        // SAFETY: the endpoint is open, and its table of functions is the provider's.
        let operations = unsafe { &*(*own).ops };
        // SAFETY: both objects are open and of one domain.
        let code = unsafe { (operations.bind)(own, self.vector.cast(), 0) };
        self.check("fi_ep_bind (address vector)", code)?;
        // SAFETY: as above.
        let code = unsafe { (operations.bind)(own, self.queue.cast(), FI_TRANSMIT | FI_RECV) };
        self.check("fi_ep_bind (completion queue)", code)?;
        // SAFETY: everything is bound; the command takes no argument.
        let code = unsafe { (operations.control)(own, FI_ENABLE, none) };
        self.check("fi_enable", code)
    }

    /// Whether the operations that kernels need are there, on 64 bits, and values of all sizes arrive in one piece.
    ///
    /// # Errors
    /// Which are not, in words.
    pub(crate) fn check_atomics(&self) -> Result<(), String> {
        let operations = self.atomics();
        let mut count = 0;
        let mut lacking = Vec::new();
        let mut look = |has: unsafe extern "C" fn(*mut FidEp, c_uint, c_uint, *mut usize) -> c_int,
                        what,
                        kind,
                        operation| {
            // SAFETY: the endpoint is open, and the call writes one number.
            if unsafe { has(self.endpoint, kind, operation, &raw mut count) } < 0 {
                lacking.push(what);
            }
        };
        for (what, kind) in [
            ("writes of 8 bits", FI_UINT8),
            ("writes of 16 bits", FI_UINT16),
            ("writes of 32 bits", FI_UINT32),
            ("writes of 64 bits", FI_UINT64),
        ] {
            look(operations.writevalid, what, kind, FI_ATOMIC_WRITE);
        }
        look(operations.readwritevalid, "fetch-and-add of 64 bits", FI_UINT64, FI_SUM);
        look(operations.compwritevalid, "compare-and-swap of 64 bits", FI_UINT64, FI_CSWAP);
        if lacking.is_empty() { Ok(()) } else { Err(format!("it has no atomic {}", lacking.join(", "))) }
    }

    /// Its address, as the provider writes it.
    ///
    /// # Errors
    /// [`NicError::Call`].
    pub(crate) fn address(&self) -> Result<Vec<u8>> {
        let mut address = vec![0; MOST_ADDRESS_BYTES];
        let mut bytes = address.len();
        // SAFETY: the endpoint is open, and its table of functions is the provider's.
        let name = unsafe { (*(*self.endpoint).cm).getname };
        // SAFETY: the call writes at most as many bytes as it is told, and how many there are.
        let code = unsafe { name(self.endpoint.cast(), address.as_mut_ptr().cast(), &raw mut bytes) };
        self.check("fi_getname", code)?;
        address.truncate(bytes);
        Ok(address)
    }

    /// Learns the address of the peer's endpoint, and returns what operations name it by.
    ///
    /// # Errors
    /// [`NicError::Call`].
    pub(crate) fn insert(&self, address: &[u8]) -> Result<u64> {
        let mut peer = u64::MAX;
        // SAFETY: the address vector is open, and its table of functions is the provider's.
        let insert = unsafe { (*(*self.vector).ops).insert };
        let none = core::ptr::null_mut();
        // SAFETY: the address has the form that `Endpoint::of_peer` compared, so the call reads no more of it than the peer's provider wrote;
        // it writes one number.
        let count = unsafe { insert(self.vector, address.as_ptr().cast(), 1, &raw mut peer, 0, none) };
        self.check("fi_av_insert", count)?;
        if count == 1 {
            return Ok(peer);
        }
        let (call, nic) = ("fi_av_insert", self.domain.name.clone());
        Err(NicError::Call { call, nic, cause: "the address was not taken".to_owned() })
    }

    fn memory(&self) -> &FiOpsRma {
        // SAFETY: the endpoint is open, and its table of functions is the provider's; it was asked for FI_RMA.
        unsafe { &*(*self.endpoint).rma }
    }

    fn atomics(&self) -> &FiOpsAtomic {
        // SAFETY: as above, for FI_ATOMIC.
        unsafe { &*(*self.endpoint).atomic }
    }

    fn context(&self, slot: usize) -> *mut c_void {
        self.contexts[slot].get().cast()
    }

    /// The operands of an operation that is about to start, and how they are registered.
    fn operands(&self, value: u64, compare: u64) -> (*mut u64, *mut c_void) {
        let operands = self.operands.get().cast::<u64>();
        // SAFETY: the memory is this value's, and no operation that has operands is on its way (rule 2 of flights.rs).
        unsafe { operands.write(value) };
        // SAFETY: as above; the array has two elements.
        let second = unsafe { operands.add(1) };
        // SAFETY: as above.
        unsafe { second.write(compare) };
        let region = self.operands_region.as_ref();
        (operands, region.map_or(core::ptr::null_mut(), |region| region.descriptor()))
    }

    fn started(&self, call: &str, code: isize) -> Result<Started, Fault> {
        match code {
            0.. => Ok(Started::Flying),
            code if code == -(FI_EAGAIN as isize) => Ok(Started::Later),
            code => Err(self.fault(call, -code as c_int, String::new())),
        }
    }

    /// `bytes` from here to the peer.
    pub(crate) fn write(
        &self,
        slot: usize,
        local: Local<'_>,
        bytes: usize,
        to: Target,
    ) -> Result<Started, Fault> {
        let (call, desc) = (self.memory().write, local.region.descriptor());
        let Target { peer, address, key } = to;
        // SAFETY: the bytes are of a registered range, which the caller keeps until the operation has ended; so is the context.
        let code =
            unsafe { call(self.endpoint, local.at(), bytes, desc, peer, address, key, self.context(slot)) };
        self.started("fi_write", code)
    }

    /// `bytes` from the peer to here.
    pub(crate) fn read(
        &self,
        slot: usize,
        local: Local<'_>,
        bytes: usize,
        from: Target,
    ) -> Result<Started, Fault> {
        let (call, desc) = (self.memory().read, local.region.descriptor());
        let Target { peer, address, key } = from;
        // SAFETY: as in `write`.
        let code =
            unsafe { call(self.endpoint, local.at(), bytes, desc, peer, address, key, self.context(slot)) };
        self.started("fi_read", code)
    }

    /// The low `bytes` (1, 2, 4 or 8) of a value to the peer, in one piece.
    pub(crate) fn write_value(
        &self,
        slot: usize,
        value: u64,
        bytes: u32,
        to: Target,
    ) -> Result<Started, Fault> {
        let kind = match bytes {
            1 => FI_UINT8,
            2 => FI_UINT16,
            4 => FI_UINT32,
            _ => FI_UINT64,
        };
        // The low bytes stand first, whatever this machine's order is.
        let (operands, desc) = self.operands(value.to_le(), 0);
        let (call, context) = (self.atomics().write, self.context(slot));
        let Target { peer, address, key } = to;
        let (at, endpoint) = (operands.cast_const().cast(), self.endpoint);
        // SAFETY: operands and context are this value's, which ends the endpoint before them.
        let code = unsafe { call(endpoint, at, 1, desc, peer, address, key, kind, FI_ATOMIC_WRITE, context) };
        self.started("fi_atomic (write)", code)
    }

    /// Adds to 64 bits of the peer's; the old value comes here.
    pub(crate) fn fetch_add(
        &self,
        slot: usize,
        value: u64,
        result: Local<'_>,
        at: Target,
    ) -> Result<Started, Fault> {
        let (operands, desc) = self.operands(value, 0);
        let (call, context) = (self.atomics().readwrite, self.context(slot));
        let Target { peer, address, key } = at;
        // SAFETY: as in `write_value`, and the result is 8 bytes of a registered range, as in `write`.
        let code = unsafe {
            call(
                self.endpoint,
                operands.cast_const().cast(),
                1,
                desc,
                result.at(),
                result.region.descriptor(),
                peer,
                address,
                key,
                FI_UINT64,
                FI_SUM,
                context,
            )
        };
        self.started("fi_fetch_atomic (sum)", code)
    }

    /// Puts `value` in the place of `compare` in 64 bits of the peer's; the old value comes here.
    pub(crate) fn compare_swap(
        &self,
        slot: usize,
        (value, compare): (u64, u64),
        result: Local<'_>,
        at: Target,
    ) -> Result<Started, Fault> {
        let (operands, desc) = self.operands(value, compare);
        let (call, context) = (self.atomics().compwrite, self.context(slot));
        let Target { peer, address, key } = at;
        // SAFETY: as in `fetch_add`; the second operand is what is compared with.
        let code = unsafe {
            call(
                self.endpoint,
                operands.cast_const().cast(),
                1,
                desc,
                operands.add(1).cast_const().cast(),
                desc,
                result.at(),
                result.region.descriptor(),
                peer,
                address,
                key,
                FI_UINT64,
                FI_CSWAP,
                context,
            )
        };
        self.started("fi_compare_atomic (swap)", code)
    }

    /// Adds what has ended, by slots; the provider does what peers ask for meanwhile.
    ///
    /// # Errors
    /// What the completion queue says of itself.
    pub(crate) fn poll(&self, ended: &mut Vec<(usize, Result<(), Fault>)>) -> Result<(), String> {
        let mut found = [FiCqEntry { op_context: core::ptr::null_mut() }; TURN];
        // SAFETY: the completion queue is open, and its table of functions is the provider's.
        let read = unsafe { (*(*self.queue).ops).read };
        // SAFETY: the call writes at most that many entries, of the format that the queue was made with.
        let count = unsafe { read(self.queue, found.as_mut_ptr().cast(), TURN) };
        match count {
            0.. => {
                for entry in &found[..(count as usize).min(TURN)] {
                    ended.push((self.slot(entry.op_context)?, Ok(())));
                }
                Ok(())
            }
            code if code == -(FI_EAGAIN as isize) => Ok(()),
            code if code == -(FI_EAVAIL as isize) => self.failed(ended),
            code => Err(format!("fi_cq_read: {}", self.domain.info.library().words(code as c_int))),
        }
    }

    /// Adds the operation that failed.
    fn failed(&self, ended: &mut Vec<(usize, Result<(), Fault>)>) -> Result<(), String> {
        // SAFETY: all bits zero are a value of this plain struct.
        let mut entry: FiCqErrEntry = unsafe { core::mem::zeroed() };
        // SAFETY: the completion queue is open, and its table of functions is the provider's.
        let operations = unsafe { &*(*self.queue).ops };
        // SAFETY: the call writes one entry.
        let code = unsafe { (operations.readerr)(self.queue, &raw mut entry, 0) };
        if code < 0 {
            if code == -(FI_EAGAIN as isize) {
                return Ok(());
            }
            return Err(format!("fi_cq_readerr: {}", self.domain.info.library().words(code as c_int)));
        }
        let more = operations.strerror.map_or_else(String::new, |words| self.provider_words(words, &entry));
        let fault = self.fault("libfabric", entry.err, more);
        match self.slot(entry.op_context) {
            Ok(slot) => ended.push((slot, Err(fault))),
            Err(problem) => return Err(format!("{}; {problem}", fault.words)),
        }
        Ok(())
    }

    /// What the provider says of an error.
    fn provider_words(
        &self,
        words: unsafe extern "C" fn(*mut FidCq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
        entry: &FiCqErrEntry,
    ) -> String {
        let none = core::ptr::null_mut();
        // SAFETY: the entry is the queue's last, whose data is valid until the queue is read again; no buffer is given.
        let text = unsafe { words(self.queue, entry.prov_errno, entry.err_data, none, 0) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: the call returns a text of the provider's that ends in a zero byte.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        format!(", of the provider: {text} ({})", entry.prov_errno)
    }

    fn fault(&self, call: &str, code: c_int, more: String) -> Fault {
        let words = format!("{call}: {}{more}", self.domain.info.library().words(code));
        Fault { status: status_of(code), words }
    }

    /// The slot whose context this is.
    fn slot(&self, context: *mut c_void) -> Result<usize, String> {
        let from = (context as usize).checked_sub(self.contexts.as_ptr() as usize);
        let slot = from.map(|bytes| bytes / size_of::<FiContext2>());
        let known = slot.filter(|slot| *slot < self.contexts.len());
        known.ok_or_else(|| "libfabric told of an operation that is none of this queue's".to_owned())
    }
}

/// What kernels are told of an error number.
fn status_of(code: c_int) -> u32 {
    match code {
        FI_EACCES | FI_EKEYREJECTED => status::REMOTE_ACCESS,
        FI_ECANCELED => status::FLUSHED,
        FI_ECONNABORTED | FI_ECONNREFUSED | FI_ECONNRESET | FI_EHOSTDOWN | FI_EHOSTUNREACH | FI_ENOTCONN
        | FI_ESHUTDOWN | FI_ETIMEDOUT => status::NO_ANSWER,
        _ => status::GENERAL,
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // The endpoint first: behind this nothing is on its way, and contexts and operands are nobody's.
        close("fi_close (endpoint)", self.endpoint.cast(), &self.domain);
        close("fi_close (completion queue)", self.queue.cast(), &self.domain);
        close("fi_close (address vector)", self.vector.cast(), &self.domain);
    }
}
