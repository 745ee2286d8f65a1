//! Shared parts of tests with different calls: memory of each kind, ranks that all fail, and their errors.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use anabranch_ccl::{CclConfig, Check, DataType, Error, Tensor};
use anabranch_hip::DeviceBuffer;
use anabranch_shmem::{RankError, Registration, SymmetricMemory, World, WorldConfig};

use super::{jit, on_ranks};

pub const RANKS: u32 = 3;
/// The rank with the different call.
pub const ODD: u32 = 1;
/// A mismatch is found immediately; the operation deadline is much longer.
pub const AT_ONCE: Duration = Duration::from_secs(10);

pub fn checked() -> CclConfig {
    CclConfig { staging_bytes: 64 << 10, ..CclConfig::default() }.check_calls(Check::Fingerprint)
}

/// Memory of each kind on one rank.
pub struct Memory {
    pub local: DeviceBuffer,
    pub symmetric: SymmetricMemory,
    pub registered: [Registration; 2],
    // They outlive the registrations.
    pub buffers: [DeviceBuffer; 2],
}

pub const BYTES: u64 = 64 << 10;

impl Memory {
    pub fn new(world: &World) -> Result<Self, Error> {
        let (device, group) = (world.device(), world.group());
        let buffers = [device.allocate(BYTES as usize)?, device.allocate(BYTES as usize)?];
        // SAFETY: the buffers are never freed (`keep`).
        let [one, two] = [&buffers[0], &buffers[1]]
            .map(|buffer| unsafe { world.register(group, buffer.address(), BYTES, "test") });
        Ok(Self {
            local: device.allocate(BYTES as usize)?,
            symmetric: world.allocate(group, BYTES, 256, "test")?,
            registered: [one?, two?],
            buffers,
        })
    }

    /// The second half of each kind is for outputs.
    pub fn tensor(&self, place: Place, data_type: DataType, count: u64, output: bool) -> Tensor<'_> {
        let half = if output { BYTES / 2 } else { 0 };
        match place {
            // SAFETY: inside the buffer, which outlives all launches.
            Place::Local => unsafe { Tensor::local(self.local.address().offset(half), data_type, count) },
            Place::Symmetric(offset) => {
                Tensor::symmetric(&self.symmetric, half + offset, data_type, count).unwrap()
            }
            Place::Registered(which) => {
                Tensor::registered(&self.registered[which], half, data_type, count).unwrap()
            }
        }
    }

    /// Peers have the registrations mapped until they notice that the world has failed.
    pub fn keep(self) {
        let _kept = std::mem::ManuallyDrop::new(self.buffers);
        let _kept = std::mem::ManuallyDrop::new(self.local);
    }
}

#[derive(Clone, Copy)]
pub enum Place {
    Local,
    Symmetric(u64),
    Registered(usize),
}

/// The outcome of a failed rank.
pub struct Seen {
    pub error: Error,
    /// The failure of the world.
    pub cause: String,
    /// The error of the next call.
    pub next: String,
    pub took: Duration,
}

/// Runs `work` on every rank of a world that fails; returns the outcomes.
pub fn failures(
    config: &WorldConfig,
    ranks: u32,
    work: impl Fn(&World) -> Result<Seen, Error> + Sync,
) -> Vec<Seen> {
    let seen = Mutex::new(BTreeMap::new());
    let results = on_ranks(ranks, 4, config, &jit(), |world| {
        let one = work(world)?;
        seen.lock().unwrap().insert(world.rank().get(), one);
        Ok(())
    });
    for result in results {
        // A world that has failed cannot be left.
        assert!(matches!(result, Err(RankError::World { .. })), "{result:?}");
    }
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len() as u32, ranks);
    seen.into_values().collect()
}

/// Checks that all ranks have the same error in time, with both calls. Returns its text.
pub fn judge(seen: &[Seen], fields: &[&str]) -> String {
    let text = seen[0].error.to_string();
    for Seen { error, cause, next, took } in seen {
        let Error::Mismatch(found) = error else { panic!("{error}") };
        assert_eq!(error.to_string(), text, "the same on all ranks");
        assert!(text.contains(&found.call) && text.contains(&found.other_call), "{text}");
        let named: Vec<_> = found.differences.iter().map(|difference| difference.field).collect();
        assert!(fields.iter().all(|field| named.contains(field)), "{fields:?} in {text}");
        assert!(cause.contains(&found.to_string()), "the world says why: {cause}");
        assert_eq!(*next, text, "the next call says so too");
        assert!(*took < AT_ONCE, "{took:?}");
    }
    text
}
