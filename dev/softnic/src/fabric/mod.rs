//! How frames get from NIC to NIC: in order and once, or the peer is gone.

mod address;
mod frame;
mod in_process;
mod socket;
mod stream;

use std::fmt;

use anabranch_transport_rdma::NicError;

pub(crate) use address::Address;
pub use frame::{Body, Frame};
pub use in_process::{InProcess, InProcessPort};
pub use socket::Listen;
pub use stream::StreamPort;

/// A NIC, among those that it can reach. Drawn by the fabric, not equal for two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NicNumber(pub u64);

impl fmt::Display for NicNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NIC {:x}", self.0)
    }
}

/// What a fabric has for its NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A frame came.
    Came {
        /// From whom.
        from: NicNumber,
        /// The frame.
        frame: Frame,
    },
    /// A NIC does not answer any more and never will; told once, behind its last frame.
    Gone {
        /// Which.
        peer: NicNumber,
        /// What was noticed.
        why: String,
    },
}

/// One NIC's way to others. Frames to one NIC arrive in order and once. Nothing here blocks.
pub trait Fabric: fmt::Debug + Send {
    /// Which kind it is, for people and for endpoints.
    fn kind(&self) -> &'static str;

    /// The NIC's own number.
    fn number(&self) -> NicNumber;

    /// By what others reach it: text that travels in endpoints.
    fn address(&self) -> String;

    /// Makes a NIC reachable by its address. Again for the same one does nothing.
    ///
    /// # Errors
    /// [`NicError::System`] for an address that is none or cannot be reached.
    fn open(&mut self, peer: NicNumber, address: &str) -> Result<(), NicError>;

    /// Gives a frame on its way to a NIC that was opened. One to a NIC that is gone is lost.
    fn send(&mut self, peer: NicNumber, frame: Frame);

    /// Whether so much waits to be sent to a NIC that no more should be given.
    fn is_full(&self, peer: NicNumber) -> bool;

    /// Moves what can be moved, and gives what came.
    fn poll(&mut self) -> Option<Event>;
}
