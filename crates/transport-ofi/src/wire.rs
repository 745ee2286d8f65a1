//! A reliable datagram endpoint with an address vector and a completion queue of its own.

mod completions;
mod operations;

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use anabranch_transport::Region;
use anabranch_transport_rdma::{NicError, Result};

use crate::bindings::{
    FI_ATOMIC_WRITE, FI_CQ_FORMAT_CONTEXT, FI_CSWAP, FI_ENABLE, FI_RECV, FI_SUM, FI_TRANSMIT, FI_UINT8,
    FI_UINT16, FI_UINT32, FI_UINT64, FI_WAIT_NONE, FiAvAttr, FiContext2, FiCqAttr, Fid, FidAv, FidCq, FidEp,
};
use crate::domain::{Domain, close};
use crate::region::OfiRegion;
use crate::signals;

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
        let _handlers = signals::keep();
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

    /// Over objects that a test made up.
    #[cfg(test)]
    pub(crate) fn of_test(
        domain: &Arc<Domain>,
        endpoint: &mut crate::fake::Object<FidEp>,
        queue: &mut crate::fake::Object<FidCq>,
        vector: &mut crate::fake::Object<FidAv>,
        slots: u32,
    ) -> Self {
        let blank = || UnsafeCell::new(FiContext2 { internal: [core::ptr::null_mut(); 8] });
        Self {
            domain: Arc::clone(domain),
            vector: core::ptr::from_mut(vector).cast(),
            queue: core::ptr::from_mut(queue).cast(),
            endpoint: core::ptr::from_mut(endpoint).cast(),
            contexts: (0..slots).map(|_| blank()).collect(),
            operands: Box::new(UnsafeCell::new([0; 2])),
            operands_region: None,
        }
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
        // SAFETY: the call writes at most the given number of bytes, and how many there are.
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
        // A peer's text may be shorter than what the provider takes an address to be: zeros follow it.
        let mut padded = address.to_vec();
        padded.resize(address.len().max(MOST_ADDRESS_BYTES) + 1, 0);
        // SAFETY: the form of the address is that of this provider (`Endpoint::of_peer`), none of whose addresses has more bytes than are
        // given; the call writes one number.
        let count = unsafe { insert(self.vector, padded.as_ptr().cast(), 1, &raw mut peer, 0, none) };
        self.check("fi_av_insert", count)?;
        if count == 1 {
            return Ok(peer);
        }
        let (call, nic) = ("fi_av_insert", self.domain.name.clone());
        Err(NicError::Call { call, nic, cause: "the address was not taken".to_owned() })
    }

    /// Closes the endpoint: after this no operation is in flight or uses its context, operand or local memory. Where the
    /// provider does not close it, what it may still use is never given back: `false`, for the caller to keep the local sides.
    pub(crate) fn end(&mut self) -> bool {
        let endpoint = core::mem::replace(&mut self.endpoint, core::ptr::null_mut());
        let queue = core::mem::replace(&mut self.queue, core::ptr::null_mut());
        let vector = core::mem::replace(&mut self.vector, core::ptr::null_mut());
        if !close("fi_close (endpoint)", endpoint.cast(), &self.domain) {
            tracing::error!(
                "{}: an endpoint that cannot be closed stays, and what was on its way may still read and write memory of this process",
                self.domain.name
            );
            let contexts = core::mem::take(&mut self.contexts);
            let operands = core::mem::replace(&mut self.operands, Box::new(UnsafeCell::new([0; 2])));
            let made = (contexts, operands, self.operands_region.take(), Arc::clone(&self.domain));
            let _kept = ManuallyDrop::new(made);
            return false;
        }
        close("fi_close (completion queue)", queue.cast(), &self.domain);
        close("fi_close (address vector)", vector.cast(), &self.domain);
        true
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests;
