//! The trait is object safe, a third party can implement it, and its matrix is complete.

use anabranch_ranks::GlobalRank;
use anabranch_transport::{
    Audience, Error, HostIdentity, Operation, PeerInfo, PeerMemory, ProcessIdentity, Reach, Refusal, Region,
    Result, Scope, Support, Transport, TransportKind, operation_table,
};

/// A third-party transport, which reaches no peer.
#[derive(Debug)]
struct Nowhere {
    closed: u32,
}

impl Transport for Nowhere {
    fn kind(&self) -> TransportKind {
        TransportKind::Rdma
    }

    fn support(&self, operation: Operation, _: Scope) -> Support {
        if operation == Operation::Put { Support::Implemented } else { Support::Unsupported }
    }

    fn reaches(&self, _: &PeerInfo) -> Result<Reach, Refusal> {
        Err(Refusal::Failed { cause: "nowhere".to_owned() })
    }

    fn export(&self, region: Region, _: Audience) -> Result<Vec<u8>> {
        Ok(region.address.to_le_bytes().into())
    }

    fn open(&self, peer: &PeerInfo, _: &[u8], _: u64) -> Result<Box<dyn PeerMemory>> {
        Err(Error::Offer { peer: peer.rank, kind: self.kind(), problem: "nothing can be opened" })
    }

    fn close(&mut self) {
        self.closed += 1;
    }
}

fn peer() -> PeerInfo {
    PeerInfo {
        rank: GlobalRank::new(3),
        host: HostIdentity("here".into()),
        nics_of: HostIdentity("here".into()),
        process: ProcessIdentity { pid: 7, nonce: 9 },
        runtime: "host".into(),
        instance: 1,
        device: 2,
        pci: "0000:02:00.0".into(),
        arch: "host:wave1".into(),
    }
}

#[test]
fn a_transport_is_object_safe() {
    let mut transport: Box<dyn Transport> = Box::new(Nowhere { closed: 0 });
    assert_eq!(transport.kind(), TransportKind::Rdma);
    assert!(transport.reaches(&peer()).is_err());
    assert_eq!(transport.export(Region { address: 5, bytes: 8 }, Audience::ThisHost).unwrap().len(), 8);
    let error = transport.open(&peer(), &[], 8).unwrap_err();
    assert_eq!(error.to_string(), "the offer of rank 3 is not one of rdma: nothing can be opened");
    transport.close();
}

#[test]
fn the_matrix_has_a_word_in_every_cell() {
    let table = operation_table(&[&Nowhere { closed: 0 }]);
    let rows: Vec<_> = table.lines().skip(2).collect();
    assert_eq!(rows.len(), Operation::ALL.len());
    for (row, operation) in rows.iter().zip(Operation::ALL) {
        let cells: Vec<_> = row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells.len(), 1 + Scope::ALL.len(), "{row}");
        assert_eq!(cells[0], format!("`{operation}`"));
        let expected = if *operation == Operation::Put { "implemented" } else { "Unsupported" };
        assert!(cells[1..].iter().all(|cell| *cell == expected), "{row}");
    }
    let (operation, scope, kind) = (Operation::AtomicSwap, Scope::Thread, TransportKind::Rdma);
    assert!(operation.is_atomic() && !Operation::Signal.is_atomic());
    Support::Words64.require_words(operation, scope, kind, 8).unwrap();
    let error = Support::Words64.require(operation, scope, kind).unwrap_err();
    assert_eq!(
        error.to_string(),
        "atomic_swap at thread scope is unsupported over rdma for words of 32 bits; those of 64 are supported"
    );
    let error = Support::SetOnly.require(Operation::Signal, scope, kind).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("signal at ") && text.contains("with a signal that adds"), "{text}");
    let error = Support::Unsupported.require(Operation::Fence, Scope::Wave, TransportKind::P2p).unwrap_err();
    assert_eq!(error.to_string(), "fence at wave scope is unsupported over p2p");
}

#[test]
fn identities_tell_hosts_and_processes_apart() {
    let mine = peer();
    let mut other = peer();
    assert!(mine.same_process(&other));
    other.process.nonce += 1;
    assert!(mine.same_host(&other) && !mine.same_process(&other));
    other = PeerInfo { host: HostIdentity("there".into()), ..peer() };
    assert!(!mine.same_host(&other) && !mine.same_process(&other));
}
