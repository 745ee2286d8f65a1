//! A doorbell register that all queue pairs of a NIC share (`rdma/doorbell.h`).

use std::collections::BTreeMap;

use anabranch_hip::NoMemory;
use anabranch_transport_rdma::Provider;

use crate::config::SoftNicConfig;
use crate::memory::{NicMemory, word};

/// Bytes: how many stores there were, who stored last, and the places.
pub(crate) const BYTES: u64 = 16 + 8 * SoftNicConfig::REGISTER_PLACES as u64;
const PLACES: u64 = 16;

/// The register, and where each queue pair's own doorbell word is, which its ring listens to.
#[derive(Debug)]
pub(crate) struct Register {
    base: u64,
    provider: Provider,
    heard: u64,
    listeners: BTreeMap<u32, Listener>,
}

#[derive(Debug)]
struct Listener {
    doorbell: u64,
    entries: u32,
}

impl Register {
    pub(crate) fn new(base: u64, provider: Provider) -> Self {
        Self { base, provider, heard: 0, listeners: BTreeMap::new() }
    }

    /// Adds a queue pair of so many entries.
    ///
    /// # Errors
    /// How many entries all queue pairs would have, where those are more than the register has places.
    pub(crate) fn add(&mut self, number: u32, doorbell: u64, entries: u32) -> Result<(), u64> {
        let all = self.listeners.values().map(|listener| u64::from(listener.entries)).sum::<u64>();
        let all = all + u64::from(entries);
        if all > u64::from(SoftNicConfig::REGISTER_PLACES) {
            return Err(all);
        }
        self.listeners.insert(self.named(number), Listener { doorbell, entries });
        Ok(())
    }

    /// Forgets a queue pair.
    pub(crate) fn remove(&mut self, number: u32) {
        self.listeners.remove(&self.named(number));
    }

    /// Hands every store on to the queue pair that its value names; whether there was one.
    pub(crate) fn listen(&mut self, memory: &dyn NicMemory) -> Result<bool, NoMemory> {
        let mut did = false;
        loop {
            let place = self.heard % u64::from(SoftNicConfig::REGISTER_PLACES);
            let address = self.base + PLACES + 8 * place;
            let value = word(memory, address)?;
            if value == [0; 8] {
                return Ok(did);
            }
            memory.write(address, &[0; 8])?;
            self.heard += 1;
            did = true;
            if let Some(listener) = self.listeners.get(&self.queue_of(value)) {
                memory.write(listener.doorbell, &value)?;
            } else {
                tracing::warn!(?value, "a doorbell for no queue pair of a NIC in software");
            }
        }
    }

    /// The part of a queue pair's number that doorbells have.
    fn named(&self, number: u32) -> u32 {
        if self.provider == Provider::Bnxt { number & 0x000f_ffff } else { number & 0x00ff_ffff }
    }

    /// The queue pair that a value names: with mlx5 the second word of a control segment, with `bnxt_re` bits 32 to 51, with ionic the
    /// bits from 24 on.
    fn queue_of(&self, value: [u8; 8]) -> u32 {
        let little = u64::from_le_bytes(value);
        let number = match self.provider {
            Provider::Mlx5 => u64::from_be_bytes(value) >> 8,
            Provider::Bnxt => little >> 32,
            Provider::Ionic | Provider::Posted => little >> 24,
        };
        self.named(number as u32)
    }
}
