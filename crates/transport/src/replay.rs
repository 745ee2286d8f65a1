//! The trait, inside the macro that can replay its text, and the plain data that it speaks of.

/// The text of [`trait@Transport`], with the given attributes in front of it.
///
/// Only for a crate that dispatches over an enum of transports; see the crate's documentation.
#[macro_export]
macro_rules! transport_trait {
    ($(#[$attribute:meta])*) => {
        $(#[$attribute])*
        pub trait Transport: ::core::fmt::Debug + ::core::marker::Send + ::core::marker::Sync {
            /// Which kind this is.
            fn kind(&self) -> ::anabranch_transport::TransportKind;

            /// Whether kernels can do `operation` at `scope` over this transport. A plan asks before anything
            /// is launched.
            fn support(
                &self,
                operation: ::anabranch_transport::Operation,
                scope: ::anabranch_transport::Scope,
            ) -> ::anabranch_transport::Support;

            /// Whether memory of `peer` can be reached, and by which mechanism. Asks the runtime where it can;
            /// maps nothing.
            ///
            /// # Errors
            /// Why it cannot.
            fn reaches(
                &self,
                peer: &::anabranch_transport::PeerInfo,
            ) -> ::core::result::Result<::anabranch_transport::Reach, ::anabranch_transport::Refusal>;

            /// What peers need to open `region` of this rank's memory: bytes to be sent to them.
            ///
            /// # Errors
            /// The region cannot be offered to that audience.
            fn export(
                &self,
                region: ::anabranch_transport::Region,
                audience: ::anabranch_transport::Audience,
            ) -> ::anabranch_transport::Result<::std::vec::Vec<u8>>;

            /// Opens the region that `peer` offered. Dropping the result closes it; the peer's memory must not
            /// be freed before.
            ///
            /// # Errors
            /// The offer is malformed or smaller than `bytes`, or the runtime refuses it.
            fn open(
                &self,
                peer: &::anabranch_transport::PeerInfo,
                offer: &[u8],
                bytes: u64,
            ) -> ::anabranch_transport::Result<::std::boxed::Box<dyn ::anabranch_transport::PeerMemory>>;

            /// Gives back what the transport itself holds (queues, sessions), after all opened memory was
            /// dropped. Doing it again does nothing.
            fn close(&mut self);

            /// In the place of [`Self::close`] when kernels may be in flight that never end: stops what can be stopped, and
            /// keeps for good what they may still read or write (rings, words, registrations). The default has nothing of the kind
            /// beside opened memory, which its owner keeps.
            fn abandon(&mut self) {}
        }
    };
}

transport_trait! {
    /// A way of reaching peers' memory. Object safe; one instance serves one rank of one world.
}

impl Transport for Box<dyn Transport> {
    fn kind(&self) -> crate::TransportKind {
        (**self).kind()
    }

    fn support(&self, operation: crate::Operation, scope: crate::Scope) -> crate::Support {
        (**self).support(operation, scope)
    }

    fn reaches(&self, peer: &crate::PeerInfo) -> Result<Reach, crate::Refusal> {
        (**self).reaches(peer)
    }

    fn export(&self, region: Region, audience: Audience) -> crate::Result<Vec<u8>> {
        (**self).export(region, audience)
    }

    fn open(&self, peer: &crate::PeerInfo, offer: &[u8], bytes: u64) -> crate::Result<Box<dyn PeerMemory>> {
        (**self).open(peer, offer, bytes)
    }

    fn close(&mut self) {
        (**self).close();
    }

    fn abandon(&mut self) {
        (**self).abandon();
    }
}

/// A range of this rank's device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its first byte, as a number.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Who is going to open an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Audience {
    /// Only threads of this process: addresses will do.
    ThisProcess,
    /// Other processes of this host too: the memory has to be shareable.
    ThisHost,
}

/// That a peer can be reached, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The mechanism.
    pub origin: Origin,
    /// The same with its evidence, for people.
    pub reason: String,
}

/// Where a mapped address comes from, which decides how it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// This rank's own memory.
    Own,
    /// Memory of another rank of this process, at the address that it has there. Nothing to close.
    SameProcess,
    /// Memory of another process, mapped by handle.
    Ipc,
    /// Physical memory of another rank, mapped into addresses that this rank reserved.
    Virtual,
    /// Memory of another rank that a NIC reaches and loads and stores do not: its address means something to the NIC alone.
    Remote,
}

/// A peer's memory, opened. Dropping it closes the mapping.
pub trait PeerMemory: core::fmt::Debug + Send + Sync {
    /// Where kernels of this rank find it; of [`Origin::Remote`], where the peer's NIC does.
    fn address(&self) -> u64;

    /// Bytes that may be accessed from there on.
    fn bytes(&self) -> u64;

    /// Where the address comes from.
    fn origin(&self) -> Origin;
}
