//! What an endpoint is asked to do.

use core::ffi::{c_int, c_void};

use anabranch_transport_rdma::posting::Fault;

use crate::bindings::{
    FI_ATOMIC_WRITE, FI_CSWAP, FI_EAGAIN, FI_SUM, FI_UINT8, FI_UINT16, FI_UINT32, FI_UINT64, FiOpsAtomic,
    FiOpsRma,
};
use crate::flights::Started;
use crate::wire::{Local, Target, Wire};

impl Wire {
    fn memory(&self) -> &FiOpsRma {
        // SAFETY: the endpoint is open, and its table of functions is the provider's; it was asked for FI_RMA.
        unsafe { &*(*self.endpoint).rma }
    }

    pub(super) fn atomics(&self) -> &FiOpsAtomic {
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
            code => Err(self.fault(call, -code as c_int, "")),
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
}
