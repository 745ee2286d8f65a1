//! What an endpoint says of what it did.

use core::ffi::{c_char, c_int, c_void};
use std::ffi::CStr;

use anabranch_transport_rdma::posting::{TURN, status};

use crate::bindings::{
    FI_EACCES, FI_EAGAIN, FI_EAVAIL, FI_ECANCELED, FI_ECONNABORTED, FI_ECONNREFUSED, FI_ECONNRESET,
    FI_EHOSTDOWN, FI_EHOSTUNREACH, FI_EKEYREJECTED, FI_ENOTCONN, FI_ESHUTDOWN, FI_ETIMEDOUT, FiContext2,
    FiCqEntry, FiCqErrEntry, FidCq,
};
use crate::flights::Fault;
use crate::wire::Wire;

impl Wire {
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
        let fault = self.fault("libfabric", entry.err, &more);
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

    pub(super) fn fault(&self, call: &str, code: c_int, more: &str) -> Fault {
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
