//! What the kernel's driver keeps of a process: pages, memory, queues. One for all NICs that the process opens.

use std::sync::{Arc, Mutex};

use crate::Errno;
use crate::controls::Controls;
use crate::nic::Nic;
use crate::nic::memory::Region;
use crate::nic::queue::{Place, SendQueue};
use crate::prm::Syndrome;
use crate::prm::completion::Ring;

/// Numbers of completion queues begin here, so that they are not taken for handles.
const FIRST_CQN: u32 = 0x400;
/// Doorbell pages that a process may have.
const MOST_PAGES: usize = 64;
/// Queue pairs and regions that numbers have room for.
const MOST_NUMBERS: usize = 255;
const MOST_KEYS: usize = 4095;

/// States of a queue pair: `IBV_QPS_*` of `verbs.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Reset,
    Init,
    Rtr,
    Rts,
    Error,
}

impl State {
    /// By the number of `enum ibv_qp_state`.
    pub(crate) fn of_verbs(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            6 => Self::Error,
            _ => return None,
        })
    }

    /// The number of `MLX5_QP_STATE_*` of Linux, which is that of verbs.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Reset => 0,
            Self::Init => 1,
            Self::Rtr => 2,
            Self::Rts => 3,
            Self::Error => 6,
        }
    }

    /// Whether a queue pair may go from this state to another: up step by step, down from anywhere.
    pub(crate) fn may_become(self, wanted: Self) -> bool {
        match wanted {
            Self::Reset | Self::Error => true,
            Self::Init => self == Self::Reset,
            Self::Rtr => self == Self::Init,
            Self::Rts => self == Self::Rtr,
        }
    }
}

/// Memory that DEVX commands name.
#[derive(Clone, Copy, Debug)]
struct Umem {
    address: usize,
    bytes: u64,
}

/// A queue pair as the kernel keeps it.
#[derive(Clone, Copy, Debug)]
struct Pair {
    number: u32,
    destination: u32,
    state: State,
}

/// An object made by a DEVX command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Object {
    CompletionQueue,
    Pair(u32),
}

/// The driver's state.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) controls: Controls,
    pub(crate) nic: Arc<Nic>,
    /// Addresses of mapped pages; zero before they are.
    pages: Vec<usize>,
    umems: Vec<Option<Umem>>,
    completions: Vec<Arc<Mutex<Ring>>>,
    pairs: Vec<Pair>,
    keys: Vec<u32>,
    objects: Vec<Object>,
    protection_domains: u32,
}

impl Driver {
    pub(crate) fn new(controls: Controls) -> Result<Self, Errno> {
        let nic = Arc::new(Nic::new(controls.clone()));
        nic.start()?;
        Ok(Self {
            controls,
            nic,
            pages: Vec::new(),
            umems: Vec::new(),
            completions: Vec::new(),
            pairs: Vec::new(),
            keys: Vec::new(),
            objects: Vec::new(),
            protection_domains: 0,
        })
    }

    /// Says what the program asks for, where it is wanted.
    pub(crate) fn trace(&self, text: std::fmt::Arguments<'_>) {
        if self.controls.trace {
            crate::report(text);
        }
    }

    pub(crate) fn new_protection_domain(&mut self) -> u32 {
        self.protection_domains += 1;
        self.protection_domains
    }

    /// The number of a page that the program can map, from 1 on.
    pub(crate) fn new_page(&mut self) -> Result<u32, Errno> {
        if self.pages.len() == MOST_PAGES {
            return Err(Errno(libc::ENOMEM));
        }
        self.pages.push(0);
        Ok(self.pages.len() as u32)
    }

    /// A page of `new_page` is mapped.
    pub(crate) fn map_page(&mut self, number: u32, address: usize) -> Result<(), Errno> {
        let page = (number as usize).checked_sub(1).and_then(|index| self.pages.get_mut(index));
        *page.ok_or(Errno(libc::EINVAL))? = address;
        Ok(())
    }

    /// Where a page is mapped.
    pub(crate) fn page(&self, number: u32) -> Option<usize> {
        let page = (number as usize).checked_sub(1).and_then(|index| self.pages.get(index));
        page.copied().filter(|address| *address != 0)
    }

    /// Registers memory for DEVX commands; its number, from 1 on.
    pub(crate) fn add_umem(&mut self, address: u64, bytes: u64) -> u32 {
        self.umems.push(Some(Umem { address: address as usize, bytes }));
        self.umems.len() as u32
    }

    pub(crate) fn remove_umem(&mut self, number: u32) {
        let umem = (number as usize).checked_sub(1).and_then(|index| self.umems.get_mut(index));
        if let Some(umem) = umem {
            *umem = None;
        }
    }

    /// Where so many bytes of registered memory lie; none where they are not aligned as is wanted.
    pub(crate) fn umem(&self, number: u64, offset: u64, bytes: u64, alignment: usize) -> Option<usize> {
        let umem = (number as usize).checked_sub(1).and_then(|index| *self.umems.get(index)?)?;
        let end = offset.checked_add(bytes)?;
        let address = umem.address + offset as usize;
        (end <= umem.bytes && address.is_multiple_of(alignment)).then_some(address)
    }

    /// Registers memory for requests; its handle and key.
    ///
    /// # Safety
    ///
    /// As `Memory::add`.
    pub(crate) unsafe fn add_region(&mut self, region: Region) -> Result<(u32, u32), Errno> {
        let handle = self.keys.len() as u32 + 1;
        if self.keys.len() == MOST_KEYS {
            return Err(Errno(libc::ENOMEM));
        }
        // The last byte is the key's variant; the rest tells processes and regions apart, as on a NIC that they share.
        let key = (std::process::id() & 0xfff) << 20 | handle << 8;
        self.keys.push(key);
        // SAFETY: this function's contract.
        unsafe { self.nic.memory.add(Region { key, ..region }) };
        Ok((handle, key))
    }

    pub(crate) fn remove_region(&mut self, handle: u32) -> Result<(), Errno> {
        let key = (handle as usize).checked_sub(1).and_then(|index| self.keys.get(index));
        self.nic.memory.remove(*key.ok_or(Errno(libc::EINVAL))?);
        Ok(())
    }

    /// A completion queue's number, from which its handle comes.
    ///
    /// # Safety
    ///
    /// As `Ring::new`.
    pub(crate) unsafe fn add_completions(
        &mut self,
        address: usize,
        entries: u32,
        collapsed: bool,
        consumer: Option<usize>,
    ) -> u32 {
        // SAFETY: this function's contract.
        let ring = unsafe { Ring::new(address, entries, collapsed, consumer) };
        self.completions.push(Arc::new(Mutex::new(ring)));
        FIRST_CQN + self.completions.len() as u32
    }

    fn completions(&self, number: u32) -> Option<&Arc<Mutex<Ring>>> {
        let index = number.checked_sub(FIRST_CQN + 1)?;
        self.completions.get(index as usize)
    }

    /// Makes a queue pair whose completions go to the queue `cqn`; its number.
    ///
    /// # Safety
    ///
    /// As `SendQueue::new`.
    pub(crate) unsafe fn add_pair(&mut self, place: Place, cqn: u32) -> Result<u32, Errno> {
        let completions = Arc::clone(self.completions(cqn).ok_or(Errno(libc::EINVAL))?);
        if self.pairs.len() == MOST_NUMBERS {
            return Err(Errno(libc::ENOMEM));
        }
        let number = (std::process::id() & 0xffff) << 8 | (self.pairs.len() as u32 + 1);
        // SAFETY: this function's contract.
        self.nic.add(unsafe { SendQueue::new(number, place, completions) })?;
        self.pairs.push(Pair { number, destination: 0, state: State::Reset });
        Ok(number)
    }

    fn pair(&mut self, number: u32) -> Option<&mut Pair> {
        self.pairs.iter_mut().find(|pair| pair.number == number)
    }

    pub(crate) fn state(&mut self, number: u32) -> Option<State> {
        self.pair(number).map(|pair| pair.state)
    }

    /// Which error stopped a queue pair.
    pub(crate) fn first_error(&self, number: u32) -> Option<Syndrome> {
        self.nic.first_error(number)
    }

    /// Where a queue pair's requests shall go.
    pub(crate) fn set_destination(&mut self, number: u32, destination: u32) {
        if let Some(pair) = self.pair(number) {
            pair.destination = destination;
        }
    }

    /// Takes a queue pair to a state.
    pub(crate) fn set_state(&mut self, number: u32, state: State) {
        let nic = Arc::clone(&self.nic);
        if let Some(pair) = self.pair(number) {
            pair.state = state;
            match state {
                State::Rts => nic.connect(number, pair.destination),
                State::Error => nic.fail(number),
                State::Reset | State::Init | State::Rtr => {}
            }
        }
    }

    pub(crate) fn remove_pair(&mut self, number: u32) {
        self.nic.remove(number);
    }

    /// The handle of a new object.
    pub(crate) fn add_object(&mut self, object: Object) -> u64 {
        self.objects.push(object);
        self.objects.len() as u64
    }

    /// Whether the handle is that of this queue pair.
    pub(crate) fn is_pair(&self, handle: u64, number: u32) -> bool {
        let object = (handle as usize).checked_sub(1).and_then(|index| self.objects.get(index));
        matches!(object, Some(Object::Pair(own)) if *own == number)
    }

    pub(crate) fn remove_object(&mut self, handle: u64) {
        let object = (handle as usize).checked_sub(1).and_then(|index| self.objects.get(index));
        if let Some(Object::Pair(number)) = object.copied() {
            self.remove_pair(number);
        }
    }
}
