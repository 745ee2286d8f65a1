//! What an endpoint reports about what it did.

use core::ffi::{c_char, c_int, c_void};
use std::ffi::CStr;

use anabranch_transport_rdma::posting::{Fault, TURN, status};

use crate::bindings::{
    FI_EACCES, FI_EAGAIN, FI_EAVAIL, FI_ECANCELED, FI_ECONNABORTED, FI_ECONNREFUSED, FI_ECONNRESET,
    FI_EHOSTDOWN, FI_EHOSTUNREACH, FI_EKEYREJECTED, FI_ENOTCONN, FI_ESHUTDOWN, FI_ETIMEDOUT, FiContext2,
    FiCqEntry, FiCqErrEntry, FidCq,
};
use crate::wire::Wire;

/// An entry with room behind it: libraries from 1.20 have one more field, which they write for those who asked for that version.
#[repr(C)]
struct PaddedErrEntry {
    entry: FiCqErrEntry,
    later: [u64; 8],
}

impl Wire {
    /// Adds what has ended, by slots; the provider does what peers ask for meanwhile.
    ///
    /// # Errors
    /// What the completion queue reports about itself, and what a peer asked for that failed here.
    pub(crate) fn poll(&self, ended: &mut Vec<(usize, Result<(), Fault>)>) -> Result<(), Fault> {
        let mut found = [FiCqEntry { op_context: core::ptr::null_mut() }; TURN];
        // SAFETY: the completion queue is open, and its table of functions is the provider's.
        let read = unsafe { (*(*self.queue).ops).read };
        // SAFETY: the call writes at most that many entries, of the format that the queue was made with.
        let count = unsafe { read(self.queue, found.as_mut_ptr().cast(), TURN) };
        match count {
            0.. => {
                for entry in &found[..(count as usize).min(TURN)] {
                    let slot = self.slot(entry.op_context).ok_or_else(|| {
                        fatal("libfabric reported an operation that this queue did not post".to_owned())
                    })?;
                    ended.push((slot, Ok(())));
                }
                Ok(())
            }
            code if code == -(FI_EAGAIN as isize) => Ok(()),
            code if code == -(FI_EAVAIL as isize) => self.failed(ended),
            code => Err(fatal(format!("fi_cq_read: {}", self.domain.info.library().words(code as c_int)))),
        }
    }

    /// Adds the operation that failed.
    fn failed(&self, ended: &mut Vec<(usize, Result<(), Fault>)>) -> Result<(), Fault> {
        // SAFETY: all bits zero are a value of this plain struct.
        let mut padded: PaddedErrEntry = unsafe { core::mem::zeroed() };
        // SAFETY: the completion queue is open, and its table of functions is the provider's.
        let operations = unsafe { &*(*self.queue).ops };
        // SAFETY: the call writes one entry, which may be longer than the one that is declared; there is room behind it.
        let code = unsafe { (operations.readerr)(self.queue, (&raw mut padded).cast(), 0) };
        let entry = padded.entry;
        if code < 0 {
            if code == -(FI_EAGAIN as isize) {
                return Ok(());
            }
            let words = self.domain.info.library().words(code as c_int);
            return Err(fatal(format!("fi_cq_readerr: {words}")));
        }
        let more = operations.strerror.map_or_else(String::new, |words| self.provider_words(words, &entry));
        let fault = self.fault("libfabric", entry.err, &more);
        let Some(slot) = self.slot(entry.op_context) else {
            // No operation of this queue: providers report so what they do for a peer. The peer's own queue reports the operation.
            let words = format!("what the peer asked for failed here: {}", fault.words);
            return Err(Fault { status: status::FLUSHED, words });
        };
        ended.push((slot, Err(fault)));
        Ok(())
    }

    /// What the provider reports about an error.
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
    fn slot(&self, context: *mut c_void) -> Option<usize> {
        let from = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let slot = from / size_of::<FiContext2>();
        (slot < self.contexts.len()).then_some(slot)
    }
}

fn fatal(words: String) -> Fault {
    Fault { status: status::FATAL, words }
}

/// What is reported to kernels for an error number. A cancelled operation counts as a consequence of something else: layered providers over
/// `tcp` (xnet) cancel what is on its way when a connection ends, also when that is because the peer died. What is posted after that may be tried
/// again by the provider (`ofi_rxm` connects anew, and is refused) until the queue's patience is over, which then is the status.
fn status_of(code: c_int) -> u32 {
    match code {
        FI_EACCES | FI_EKEYREJECTED => status::REMOTE_ACCESS,
        FI_ECANCELED => status::FLUSHED,
        FI_ECONNABORTED | FI_ECONNREFUSED | FI_ECONNRESET | FI_EHOSTDOWN | FI_EHOSTUNREACH | FI_ENOTCONN
        | FI_ESHUTDOWN | FI_ETIMEDOUT => status::NO_ANSWER,
        _ => status::GENERAL,
    }
}
