//! The transport.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anabranch_hip::types::{HipError, HipIpcMemHandle};
use anabranch_hip::{Device, DeviceAddress, DeviceOrdinal, IpcHandle, IpcMapping};
use anabranch_transport::{
    Audience, Error, Operation, Origin, PeerInfo, PeerMemory, Reach, Refusal, Region, Result, Scope, Support,
    Transport, TransportKind,
};

use crate::mapping::Mapping;
use crate::offer::{Name, Offer};
use crate::window::FlatWindow;

/// Peer memory by loads and stores, for one rank.
#[derive(Debug)]
pub struct P2pTransport {
    device: Device,
    local: PeerInfo,
    /// Allocations of other processes that are mapped now, by their handles.
    mapped: Mutex<HashMap<[u8; IpcHandle::BYTES], Weak<IpcMapping>>>,
    /// The flat range that this rank's memory and the peers' are mapped into, where there is one.
    window: Option<Arc<FlatWindow>>,
}

impl P2pTransport {
    /// The transport of the rank that `local` describes, on its `device`.
    pub fn new(device: Device, local: PeerInfo) -> Self {
        Self { device, local, mapped: Mutex::default(), window: None }
    }

    /// The same with a flat range: regions of this rank's slot are offered as physical memory, and such offers of peers are
    /// opened by mapping them into their slots of the range.
    #[must_use]
    pub fn with_window(device: Device, local: PeerInfo, window: Arc<FlatWindow>) -> Self {
        Self { device, local, mapped: Mutex::default(), window: Some(window) }
    }

    /// How a peer is to be reached, by what it said about itself.
    fn mechanism(&self, peer: &PeerInfo) -> Result<Origin, Refusal> {
        let local = &self.local;
        if peer.rank == local.rank {
            return Ok(Origin::Own);
        }
        if !peer.same_host(local) {
            return Err(Refusal::OtherHost { local: local.host.clone(), peer: peer.host.clone() });
        }
        if peer.runtime != local.runtime {
            return Err(Refusal::OtherRuntime { local: local.runtime.clone(), peer: peer.runtime.clone() });
        }
        if !peer.same_process(local) {
            return Ok(Origin::Ipc);
        }
        if peer.instance == local.instance {
            Ok(Origin::SameProcess)
        } else {
            Err(Refusal::OtherInstance { runtime: local.runtime.clone() })
        }
    }

    /// The peer's device as this process counts: by index within the process, by PCI address between processes.
    /// `None` when it is not visible here.
    fn peer_device(&self, peer: &PeerInfo, origin: Origin) -> anabranch_hip::Result<Option<Device>> {
        let runtime = self.device.runtime();
        if origin == Origin::SameProcess {
            return runtime.device(DeviceOrdinal(peer.device)).map(Some);
        }
        for ordinal in 0..runtime.device_count()? {
            let device = runtime.device(DeviceOrdinal(ordinal))?;
            if device.pci_bus_id()? == peer.pci {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }

    fn allocation_handle(&self, base: DeviceAddress) -> anabranch_hip::Result<IpcHandle, HipError> {
        let _guard = self.device.guard().map_err(|error| error.code().unwrap_or(HipError::UNKNOWN))?;
        let mut handle = HipIpcMemHandle { reserved: [0; IpcHandle::BYTES] };
        // SAFETY: hipIpcGetMemHandle fills 64 bytes; `base` is the start of an allocation, as the runtime said,
        // and any other address only gives an error code.
        let code =
            unsafe { (self.device.runtime().api().hipIpcGetMemHandle)(&raw mut handle, base.as_ptr()) };
        if code == HipError::SUCCESS { Ok(IpcHandle(handle)) } else { Err(code) }
    }

    /// Opens a handle, or shares the mapping that an earlier opening of the same one made.
    fn map(&self, handle: &IpcHandle) -> anabranch_hip::Result<Arc<IpcMapping>> {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mapping) = mapped.get(&handle.to_bytes()).and_then(Weak::upgrade) {
            return Ok(mapping);
        }
        mapped.retain(|_, mapping| mapping.strong_count() > 0);
        let mapping = Arc::new(self.device.open_ipc(handle)?);
        mapped.insert(handle.to_bytes(), Arc::downgrade(&mapping));
        Ok(mapping)
    }
}

impl Transport for P2pTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::P2p
    }

    fn support(&self, operation: Operation, scope: Scope) -> Support {
        use Operation as O;
        let implemented = match operation {
            // In the order of a stream they return at once.
            O::PutNbi | O::GetNbi | O::PutSignalNbi | O::Signal | O::SignalWait => {
                matches!(scope, Scope::Thread | Scope::Wave | Scope::Block | Scope::Stream)
            }
            O::Put | O::Get | O::PutSignal | O::Quiet => {
                matches!(scope, Scope::Thread | Scope::Wave | Scope::Block)
            }
            O::PutValue
            | O::GetValue
            | O::SignalTest
            | O::Fence
            | O::AtomicAdd
            | O::AtomicAnd
            | O::AtomicOr
            | O::AtomicXor
            | O::AtomicFetchAdd
            | O::AtomicFetchAnd
            | O::AtomicFetchOr
            | O::AtomicFetchXor
            | O::AtomicSwap
            | O::AtomicCompareSwap => scope == Scope::Thread,
            O::TeamSync => scope == Scope::Block,
            O::TeamBarrier => matches!(scope, Scope::Block | Scope::Stream),
            _ => false,
        };
        if implemented { Support::Implemented } else { Support::Unsupported }
    }

    fn reaches(&self, peer: &PeerInfo) -> Result<Reach, Refusal> {
        let origin = self.mechanism(peer)?;
        if origin == Origin::Own {
            let reason = match &self.window {
                None => "own memory".to_owned(),
                Some(_) => format!("own memory at slot {} of a flat range", peer.rank.get()),
            };
            return Ok(Reach { origin, reason });
        }
        let mechanism = match (origin, &self.window) {
            (Origin::SameProcess, None) => "same process, plain address".to_owned(),
            (Origin::SameProcess, Some(_)) => {
                format!("same process, physical memory mapped at slot {} of a flat range", peer.rank.get())
            }
            (_, None) => "same host, IPC handle".to_owned(),
            (_, Some(_)) => {
                format!("same host, file descriptor mapped at slot {} of a flat range", peer.rank.get())
            }
        };
        let device = self.peer_device(peer, origin).map_err(|error| Refusal::from_error(&error))?;
        let origin = if self.window.is_some() { Origin::Virtual } else { origin };
        let Some(device) = device else {
            // The peer's device is hidden from this process (a visibility mask); opening the handle will tell.
            let reason = format!("{mechanism}; the peer's device {} is not visible here", peer.pci);
            return Ok(Reach { origin, reason });
        };
        let can = self.device.can_access_peer(&device).map_err(|error| Refusal::from_error(&error))?;
        if !can {
            return Err(Refusal::NoPeerAccess {
                local: self.local.device,
                local_pci: self.local.pci.clone(),
                peer: device.ordinal().0,
                peer_pci: peer.pci.clone(),
            });
        }
        let reason = if device.ordinal() == self.device.ordinal() {
            format!("{mechanism}; the same device")
        } else {
            format!("{mechanism}; {} can access {}", self.local.pci, peer.pci)
        };
        Ok(Reach { origin, reason })
    }

    fn export(&self, region: Region, audience: Audience) -> Result<Vec<u8>> {
        let kind = TransportKind::P2p;
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Export {
            kind,
            address: region.address,
            bytes: region.bytes,
            source,
        };
        let address = DeviceAddress(region.address);
        if let Some(window) = &self.window
            && let Some(offset) = window.own_offset(region)
        {
            let name = Name::Physical { handle: window.handle(), mailbox: window.mailbox() };
            return Ok(Offer { address: region.address, bytes: region.bytes, offset, name }.encode());
        }
        let (owner, base, length) =
            self.device.allocation_of(address).map_err(|error| failed(Box::new(error)))?;
        let offset = region.address.saturating_sub(base.0);
        let available = (length as u64).saturating_sub(offset);
        if owner != self.device.ordinal().0 || region.bytes > available {
            let device = self.device.ordinal().0;
            let (address, bytes) = (region.address, region.bytes);
            return Err(Error::NotOneAllocation { address, bytes, device, owner, available });
        }
        let name = match audience {
            Audience::ThisProcess => Name::Address,
            Audience::ThisHost => Name::Ipc(self.allocation_handle(base).map_err(|code| {
                failed(Box::new(anabranch_hip::Error::Call {
                    call: "hipIpcGetMemHandle",
                    runtime: self.device.runtime().kind(),
                    device: self.device.ordinal(),
                    code,
                }))
            })?),
        };
        Ok(Offer { address: region.address, bytes: region.bytes, offset, name }.encode())
    }

    fn open(&self, peer: &PeerInfo, offer: &[u8], bytes: u64) -> Result<Box<dyn PeerMemory>> {
        let kind = TransportKind::P2p;
        let refused = |refusal| Error::Refused { peer: peer.rank, kind, refusal };
        let failed =
            |error: anabranch_hip::Error| Error::Open { peer: peer.rank, kind, source: Box::new(error) };
        let origin = self.mechanism(peer).map_err(refused)?;
        let offer = Offer::decode(peer.rank, offer)?;
        if offer.bytes < bytes {
            return Err(Error::Offer { peer: peer.rank, kind, problem: "fewer bytes than agreed" });
        }
        let address = DeviceAddress(offer.address);
        let mapping = match (origin, offer.name) {
            (Origin::Own, _) => Mapping::Own { address, bytes },
            (_, Name::Physical { handle, .. }) => {
                let window = self.window.as_ref().ok_or(Error::Offer {
                    peer: peer.rank,
                    kind,
                    problem: "physical memory, and there is no flat range here to map it into",
                })?;
                let same_process = origin == Origin::SameProcess;
                let slot = window
                    .map(peer.rank, same_process.then_some(handle))
                    .map_err(|source| Error::Open { peer: peer.rank, kind, source: Box::new(source) })?;
                if offer.offset.checked_add(offer.bytes).is_none_or(|end| end > slot.len() as u64) {
                    return Err(Error::Offer { peer: peer.rank, kind, problem: "a region beyond its slot" });
                }
                Mapping::Virtual { slot, offset: offer.offset, bytes }
            }
            (Origin::SameProcess, _) => {
                if let Some(device) = self.peer_device(peer, origin).map_err(failed)? {
                    self.device.enable_peer_access(&device).map_err(failed)?;
                }
                Mapping::SameProcess { address, bytes }
            }
            (_, name) => {
                let Name::Ipc(handle) = name else {
                    let problem = "no handle, though the peer is another process";
                    return Err(Error::Offer { peer: peer.rank, kind, problem });
                };
                Mapping::Ipc { allocation: self.map(&handle).map_err(failed)?, offset: offer.offset, bytes }
            }
        };
        Ok(Box::new(mapping))
    }

    fn close(&mut self) {
        self.mapped.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
