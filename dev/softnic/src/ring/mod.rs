//! A send queue as its NIC sees it: doorbell, entries, completions.

mod bnxt;
mod ionic;
mod mlx5;
mod slots;

use std::fmt;

use anabranch_hip::NoMemory;

use crate::decode::Entry;
use crate::memory::NicMemory;
use crate::stopped::Stopped;
use crate::syndrome::Syndrome;

use anabranch_transport_rdma::{Provider, QueueWords};

/// The ring of a provider's format, and what its memory holds before the first entry; none of a provider whose entries no NIC reads.
pub(crate) fn start(
    provider: Provider,
    memory: &dyn NicMemory,
    words: QueueWords,
    most_inline: u32,
) -> Result<Option<Box<dyn Ring>>, NoMemory> {
    Ok(match provider {
        Provider::Mlx5 => Some(Box::new(mlx5::Mlx5Ring::start(memory, words, most_inline)?)),
        Provider::Bnxt => Some(Box::new(bnxt::BnxtRing::start(memory, words, most_inline)?)),
        Provider::Ionic => Some(Box::new(ionic::IonicRing::start(memory, words, most_inline)?)),
        Provider::Posted => None,
    })
}

/// An entry that was read, and where.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    /// Its first block, a running count.
    pub(crate) position: u64,
    /// What its blocks held.
    pub(crate) bytes: Vec<u8>,
    pub(crate) entry: Entry,
}

impl Fetched {
    /// The position behind it.
    pub(crate) fn end(&self) -> u64 {
        self.position + u64::from(self.entry.blocks)
    }
}

/// A send queue of one format. Positions count blocks and never wrap.
pub(crate) trait Ring: fmt::Debug + Send {
    /// Looks at the doorbell; true where it says something new. With `beyond` it may also fetch what is known to be written but was
    /// not rung yet.
    fn look(&mut self, memory: &dyn NicMemory, beyond: bool) -> Result<bool, Stopped>;

    /// The next entry that may be read.
    fn fetch(&mut self, memory: &dyn NicMemory) -> Result<Option<Fetched>, Stopped>;

    /// Whether everything that was written was also rung; else why not.
    fn is_settled(&self, memory: &dyn NicMemory) -> Result<(), Stopped>;

    /// Gives blocks back whose entry is done: they must be as they were, and hold poison then.
    fn release(&mut self, memory: &dyn NicMemory, done: &Fetched) -> Result<(), Stopped>;

    /// Tells that everything up to this entry is complete. `bit` is what the format leaves open.
    fn tell(&mut self, memory: &dyn NicMemory, done: &Fetched, bit: bool) -> Result<(), NoMemory>;

    /// Tells that the entry at a position failed.
    fn tell_failure(
        &mut self,
        memory: &dyn NicMemory,
        position: u64,
        syndrome: Syndrome,
        vendor: u8,
    ) -> Result<(), NoMemory>;

    /// Whether the doorbell was rung since the last look, and for which entry. Checks nothing.
    fn rung_anew(&mut self, memory: &dyn NicMemory) -> Option<u64>;

    /// The position of the entry that comes next.
    fn next(&self) -> u64;
}
