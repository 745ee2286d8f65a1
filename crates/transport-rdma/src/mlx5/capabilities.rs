//! The capabilities that the NIC reports (`QUERY_HCA_CAP`).

use super::commands::refusal;
use super::devx::Devx;
use super::field::{Command, Field};
use super::layout::{
    CAPABILITY, atomic_caps, cmd_hca_cap, opcode, query_hca_cap_in, query_hca_cap_out, roce_cap,
};
use crate::driver::Atomics;
use crate::error::{NicError, Result};

/// `MLX5_CAP_GENERAL`.
const GENERAL: u64 = 0;
/// `MLX5_CAP_ATOMIC`.
const ATOMIC: u64 = 3;
/// `MLX5_CAP_ROCE`.
const ROCE: u64 = 4;
/// What is in force, and not the most that could be (`HCA_CAP_OPMOD_GET_CUR`).
const IN_FORCE: u64 = 1;

/// What queue pairs and kernels need to know of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capabilities {
    /// Of its atomic operations.
    pub(super) atomics: AtomicCapabilities,
    /// Whether queue pairs say `ts_format` "default". A NIC whose clock is in real-time mode refuses a queue pair with timestamps of a
    /// free running counter, and one that has no such mode does not know the field (`mlx5_get_qp_default_ts` of Linux).
    pub(super) default_timestamps: bool,
    /// Whether `QUERY_QP` says which error stopped a queue pair (`mlx5_ib_qp_err_syndrome` of Linux).
    pub(super) says_first_error: bool,
}

impl Capabilities {
    /// Asks the NIC.
    ///
    /// # Errors
    /// [`NicError::Call`] for a question that it refuses.
    pub(super) fn ask(devx: &dyn Devx) -> Result<Self> {
        let general = ask(devx, GENERAL)?;
        let has = |field: Field| get(&general, field) != 0;
        let roce = if has(cmd_hca_cap::roce) { Some(ask(devx, ROCE)?) } else { None };
        // The format of send queues counts only where RoCE is off.
        let timestamps = roce.map_or_else(
            || get(&general, cmd_hca_cap::sq_ts_format),
            |roce| get(&roce, roce_cap::qp_ts_format),
        );
        Ok(Self {
            atomics: AtomicCapabilities::of(&ask(devx, ATOMIC)?),
            default_timestamps: timestamps != 0,
            says_first_error: has(cmd_hca_cap::qpc_extension) && has(cmd_hca_cap::qp_error_syndrome),
        })
    }
}

fn get(answer: &Command, field: Field) -> u64 {
    answer.get(field.within(CAPABILITY))
}

fn ask(devx: &dyn Devx, kind: u64) -> Result<Command> {
    let command = Command::new(&query_hca_cap_in::LAYOUT)
        .set(query_hca_cap_in::opcode, opcode::QUERY_HCA_CAP)
        .set(query_hca_cap_in::op_mod, kind << 1 | IN_FORCE);
    let mut answer = Command::new(&query_hca_cap_out::LAYOUT);
    let asked = devx.query(command.bytes(), answer.bytes_mut());
    if let Some(cause) = refusal(&answer) {
        return Err(NicError::Call { call: "QUERY_HCA_CAP", nic: devx.nic(), cause });
    }
    asked.map(|()| answer)
}

/// What a NIC reports about its atomic operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicCapabilities {
    /// Bit 0 compare-and-swap, 1 fetch-and-add, 2 and 3 the same with masks.
    pub operations: u32,
    /// Sizes in bytes that reliable queue pairs know, added up.
    pub sizes: u32,
    /// Whether 8-byte results come in the host's order.
    pub host_order: bool,
}

impl AtomicCapabilities {
    /// Compare-and-swap and fetch-and-add.
    const STANDARD: u32 = 0b0011;
    /// Either of the two with masks.
    const WITH_MASKS: u32 = 0b1100;

    /// Reads them from the answer to `QUERY_HCA_CAP`.
    fn of(answer: &Command) -> Self {
        Self {
            operations: get(answer, atomic_caps::atomic_operations) as u32,
            sizes: get(answer, atomic_caps::atomic_size_qp) as u32,
            host_order: get(answer, atomic_caps::atomic_req_8B_endianness_mode) == 1,
        }
    }

    /// What kernels may use. They take 8-byte results in the host's order, which Linux sets wherever the NIC knows it
    /// (`handle_hca_cap_atomic` of `mlx5_core`).
    pub(crate) fn atomics(self) -> Atomics {
        let has = |operations: u32, sizes: u32| {
            self.operations & operations == operations && self.sizes & sizes == sizes
        };
        match () {
            () if !self.host_order || !has(Self::STANDARD, 8) => Atomics::None,
            () if has(Self::STANDARD | Self::WITH_MASKS, 4 | 8) => Atomics::Masked,
            () => Atomics::Standard,
        }
    }

    /// The `atomic_mode` of queue pairs whose peers may do atomic operations, as `get_atomic_mode` of Linux's `mlx5_ib` chooses it; `None`
    /// where the NIC has none that kernels could use: its queue pairs then do not allow peers any.
    pub(crate) fn mode(self) -> Option<u32> {
        /// `MLX5_ATOMIC_MODE_IB_COMP`: the two operations of InfiniBand.
        const STANDARD_OF_8_BYTES: u32 = 1;
        /// `MLX5_ATOMIC_MODE_8B`. From here on modes are powers of two of the most bytes.
        const UP_TO_8_BYTES: u32 = 3;
        /// Sizes that modes know: up to 256 bytes.
        const SIZES: u32 = 0x1ff;
        if self.atomics() == Atomics::None {
            return None;
        }
        if self.operations & Self::WITH_MASKS == 0 {
            return Some(STANDARD_OF_8_BYTES);
        }
        let largest = (self.sizes & SIZES).checked_ilog2();
        Some(largest.map_or(STANDARD_OF_8_BYTES, |largest| largest.max(UP_TO_8_BYTES)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_atomic_operations_are_those_that_linux_sets() {
        // Operations, sizes, and what Linux's `get_atomic_mode` makes of them.
        for (operations, sizes, mode) in [
            (0b1111, 4 | 8, Some(3)),
            (0b1111, 4 | 8 | 16, Some(4)),
            (0b1111, 0x1ff, Some(8)),
            (0b1111, 0x3fff, Some(8)),
            (0b0111, 8, Some(3)),
            (0b0011, 8, Some(1)),
            (0b0011, 4 | 8, Some(1)),
            (0, 0, None),
            (0b0001, 8, None),
        ] {
            let capabilities = AtomicCapabilities { operations, sizes, host_order: true };
            assert_eq!(capabilities.mode(), mode, "{operations:#b} {sizes:#x}");
            assert_eq!(AtomicCapabilities { host_order: false, ..capabilities }.mode(), None);
        }
    }
}
