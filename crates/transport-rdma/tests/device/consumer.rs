//! A NIC of a few lines beside the kernels: it reads what they have made known, checks what a NIC would stumble over, does it in its
//! own memory, and tells. Entries are read by offsets, apart from the headers that write them.

use std::sync::{Arc, Mutex};

use anabranch_hip::{Actor, EngineMemory, Step};
use anabranch_transport_rdma::{Provider, RdmaQueue};

use crate::device::bench::{Bench, LOCAL_KEY, REMOTE_KEY, RESULTS_KEY};

mod entries;

/// What an entry asks for.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    opcode: Kind,
    blocks: u64,
    remote: u64,
    remote_key: u32,
    local: u64,
    local_key: u32,
    bytes: u64,
    value: u64,
    compare: u64,
    swap_mask: u64,
    compare_mask: u64,
    tops: u64,
    immediate: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Write,
    Read,
    Value,
    Add,
    Swap,
}

/// How the NIC behaves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// Seeds its pauses.
    pub(crate) seed: u64,
    /// The entry that fails, counted from the first, with this syndrome.
    pub(crate) fails: Option<(u64, u8)>,
}

/// What a test sees of it.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) done: u64,
    pub(crate) immediates: Vec<u32>,
    /// What it stumbled over, and stopped.
    pub(crate) stopped: Option<String>,
}

/// No doorbell's value.
const UNSEEN: u64 = u64::MAX - 1;

#[derive(Debug)]
struct Nic {
    memory: Arc<dyn EngineMemory>,
    queue: RdmaQueue,
    provider: Provider,
    manner: Manner,
    /// Entries up to here have been done, told, and made known.
    done: u64,
    told: u64,
    known: u64,
    /// What a completion of everything done tells.
    end: u64,
    first: u64,
    rung: u64,
    /// `bnxt_re`: the next packet's number.
    sequence: Mutex<Option<u64>>,
    /// Held by whichever of the NICs does an operation on a word: they share a memory.
    words: Arc<Mutex<()>>,
    seen: Arc<Mutex<Seen>>,
}

/// Starts one for each queue.
pub(crate) fn start(bench: &Bench, manner: Manner) -> Vec<Arc<Mutex<Seen>>> {
    let engines = bench.device.runtime().engines(bench.device.ordinal()).unwrap();
    let first = bench.setup.position();
    let words = Arc::new(Mutex::new(()));
    let one = |(queue, index): (&RdmaQueue, u64)| {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let nic = Nic {
            memory: Arc::clone(&engines.memory),
            queue: *queue,
            provider: bench.setup.provider,
            manner: Manner { seed: manner.seed * 16 + index, ..manner },
            done: first,
            told: first,
            known: first,
            end: first,
            first,
            rung: UNSEEN,
            sequence: Mutex::new(None),
            words: Arc::clone(&words),
            seen: Arc::clone(&seen),
        };
        engines.starter.start(Box::new(nic));
        seen
    };
    bench.views.iter().zip(0..).map(one).collect()
}

impl Actor for Nic {
    fn step(&mut self) -> Step {
        match self.work() {
            Ok(true) => Step::Progress,
            Ok(false) => Step::Waiting,
            Err(why) => {
                self.seen.lock().unwrap().stopped = Some(why);
                Step::Finished
            }
        }
    }
}

impl Nic {
    fn draw(&mut self, below: u64) -> u64 {
        self.manner.seed =
            self.manner.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.manner.seed >> 33) % below
    }

    fn load(&self, address: u64) -> Result<u64, String> {
        self.memory.load_64(address).map_err(|refused| refused.to_string())
    }

    fn work(&mut self) -> Result<bool, String> {
        if self.draw(4) == 0 {
            return Ok(true);
        }
        self.look()?;
        if self.done < self.known {
            let asked = self.decode()?;
            if let Some((at, syndrome)) = self.manner.fails
                && self.done - self.first >= at
            {
                self.tell(self.done)?;
                self.tell_failure(syndrome)?;
                return Err(format!("failed as told: {syndrome}"));
            }
            self.execute(&asked)?;
            let start = self.done;
            self.done += asked.blocks;
            // mlx5 tells the first block of the last entry.
            self.end = if self.provider == Provider::Mlx5 { start + 1 } else { self.done };
            self.seen.lock().unwrap().done += 1;
            // Completions are late, and one tells of several.
            if self.draw(3) == 0 {
                self.tell(self.end)?;
            }
            return Ok(true);
        }
        let is_late = self.told < self.end;
        if is_late {
            self.tell(self.end)?;
        }
        Ok(is_late)
    }

    /// How far entries have been made known.
    fn look(&mut self) -> Result<(), String> {
        let rung = self.load(self.queue.doorbell.address().0)?;
        if rung == self.rung || (self.rung == UNSEEN && rung == self.untouched()) {
            return Ok(());
        }
        self.rung = rung;
        let entries = u64::from(self.queue.entries);
        let known = match self.provider {
            Provider::Mlx5 => {
                let record = self.load(self.queue.doorbell_record.address().0)?;
                let count = u64::from(((record >> 32) as u32).swap_bytes());
                self.known + (count.wrapping_sub(self.known) & 0xffff)
            }
            Provider::Bnxt => {
                let number = rung >> 32 & 0xf_ffff;
                if rung >> 58 != 1 || number != u64::from(self.queue.number & 0xf_ffff) {
                    return Err(format!("doorbell {rung:#x}"));
                }
                let (slot, lap) = (rung & 0xff_ffff, rung >> 24 & 1);
                self.known + ((slot / 3 + lap * entries).wrapping_sub(self.known) & (2 * entries - 1))
            }
            Provider::Ionic => {
                let place = rung - self.queue.doorbell_value;
                self.known + (place.wrapping_sub(self.known) & (entries - 1))
            }
            Provider::Posted => rung,
        };
        if known < self.known || known - self.done > entries {
            return Err(format!("{known} made known behind {}, and {} done", self.known, self.done));
        }
        self.known = known;
        Ok(())
    }

    /// What the doorbell holds before it is rung.
    fn untouched(&self) -> u64 {
        if self.provider == Provider::Mlx5 { u64::MAX } else { 0 }
    }

    fn tell(&mut self, end: u64) -> Result<(), String> {
        if end <= self.told {
            return Ok(());
        }
        self.told = end;
        let number = u64::from(self.queue.number.swap_bytes()) & 0xffff_ff00;
        match self.provider {
            // Operation and number, count of the first block of the last entry, requester.
            Provider::Mlx5 => {
                self.complete(7, number | u64::from((end as u16).wrapping_sub(1).swap_bytes()) << 32)
            }
            Provider::Bnxt => self.complete(1, end & 0xffff),
            Provider::Ionic => self.complete(0, u64::from((end as u32 & 0xff_ffff).swap_bytes()) << 32),
            Provider::Posted => self.complete(0, end),
        }
    }

    fn tell_failure(&self, syndrome: u8) -> Result<(), String> {
        let (at, syndrome) = (self.done, u64::from(syndrome));
        match self.provider {
            Provider::Mlx5 => {
                self.complete(6, 0x81 << 48 | syndrome << 56)?;
                self.complete(7, u64::from((at as u16).swap_bytes()) << 32 | 0xd0 << 56)
            }
            Provider::Bnxt => {
                self.complete(3, syndrome << 8)?;
                self.complete(1, (at + 1) & 0xffff)
            }
            Provider::Ionic => {
                self.complete(3, syndrome << 24 | 2 << 56)?;
                self.complete(0, u64::from(((at as u32 + 1) & 0xff_ffff).swap_bytes()) << 32)
            }
            Provider::Posted => self.complete(1, (at << 8) | (syndrome + 1)),
        }
    }

    fn complete(&self, word: u64, value: u64) -> Result<(), String> {
        self.store(self.queue.completions.address().0 + 8 * word, value)
    }

    fn execute(&self, asked: &Asked) -> Result<(), String> {
        let memory = &self.memory;
        let refused = |refused: anabranch_hip::NoMemory| refused.to_string();
        let wanted = match asked.opcode {
            Kind::Value => 0,
            Kind::Write | Kind::Read if asked.bytes == 0 => asked.local_key,
            Kind::Read if asked.local_key == RESULTS_KEY => RESULTS_KEY,
            Kind::Write | Kind::Read => LOCAL_KEY,
            Kind::Add | Kind::Swap => RESULTS_KEY,
        };
        if asked.remote_key != REMOTE_KEY || asked.local_key != wanted {
            return Err(format!("keys of {asked:x?}"));
        }
        match asked.opcode {
            Kind::Write => memory.copy(asked.local, asked.remote, asked.bytes).map_err(refused)?,
            Kind::Read => memory.copy(asked.remote, asked.local, asked.bytes).map_err(refused)?,
            Kind::Value => match asked.bytes {
                8 => self.store(asked.remote, asked.value)?,
                4 => memory.store_32(asked.remote, asked.value as u32).map_err(refused)?,
                bytes => return Err(format!("a value of {bytes} bytes")),
            },
            Kind::Add | Kind::Swap => self.modify(asked)?,
        }
        if let Some(immediate) = asked.immediate {
            self.seen.lock().unwrap().immediates.push(immediate);
        }
        Ok(())
    }

    /// An operation on a word, as the table of masked ones says; a fetched word of 4 bytes is big-endian on mlx5.
    fn modify(&self, asked: &Asked) -> Result<(), String> {
        let refused = |refused: anabranch_hip::NoMemory| refused.to_string();
        let _held = self.words.lock().unwrap();
        let old = if asked.bytes == 4 {
            u64::from(self.memory.load_32(asked.remote).map_err(refused)?)
        } else {
            self.load(asked.remote)?
        };
        let new = match asked.opcode {
            Kind::Add if asked.tops == 0 => old.wrapping_add(asked.value),
            Kind::Add => old ^ asked.value,
            _ if (old ^ asked.compare) & asked.compare_mask == 0 => {
                old & !asked.swap_mask | asked.value & asked.swap_mask
            }
            _ => old,
        };
        if asked.bytes == 4 {
            self.memory.store_32(asked.remote, new as u32).map_err(refused)?;
            return self.memory.store_32(asked.local, (old as u32).swap_bytes()).map_err(refused);
        }
        self.store(asked.remote, new)?;
        self.store(asked.local, old)
    }

    fn store(&self, address: u64, value: u64) -> Result<(), String> {
        self.memory.store_64(address, value).map_err(|refused| refused.to_string())
    }
}
