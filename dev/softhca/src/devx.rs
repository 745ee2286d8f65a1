//! Commands of the device that programs send through DEVX. Fields are named as in Linux's `mlx5_ifc.h`, and lie where it has them.

use crate::controls::{Atomics, Controls, Link, Step};
use crate::driver::{Driver, Object, State};
use crate::nic::queue::Place;
use crate::prm::entry::BLOCK;
use crate::prm::field::Field;
use crate::prm::{Syndrome, completion};

// Every command (`mlx5_ifc_mbox_in_bits`, `mlx5_ifc_mbox_out_bits`).
const OPCODE: Field = Field::new(0x00, 16);
const OP_MOD: Field = Field::new(0x30, 16);
const OUT_STATUS: Field = Field::new(0x00, 8);
const OUT_SYNDROME: Field = Field::new(0x20, 32);
/// Bytes that every answer has.
const LEAST_OUT: usize = 16;

/// `MLX5_CMD_OP_*` of Linux.
mod opcode {
    pub(super) const QUERY_HCA_CAP: u64 = 0x100;
    pub(super) const CREATE_CQ: u64 = 0x400;
    pub(super) const CREATE_QP: u64 = 0x500;
    pub(super) const RST2INIT_QP: u64 = 0x502;
    pub(super) const INIT2RTR_QP: u64 = 0x503;
    pub(super) const RTR2RTS_QP: u64 = 0x504;
    pub(super) const QUERY_QP: u64 = 0x50b;
}

/// Why a command is refused: `MLX5_CMD_STAT_*` of Linux, and a syndrome that a log would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    status: u8,
    syndrome: u32,
}

impl Refusal {
    const BAD_OPERATION: Self = Self { status: 0x02, syndrome: 0 };
    const BAD_PARAMETER: Self = Self { status: 0x03, syndrome: 0 };
    const BAD_STATE: Self = Self { status: 0x09, syndrome: 0 };
    const BAD_INPUT_LENGTH: Self = Self { status: 0x50, syndrome: 0 };
    const BAD_OUTPUT_LENGTH: Self = Self { status: 0x51, syndrome: 0 };
    /// By `SOFTHCA_REFUSE_DEVX`.
    const ASKED_FOR: Self = Self { status: 0x03, syndrome: 0x0057_d8a1 };
    /// By `SOFTHCA_CLOCK`.
    const CLOCK: Self = Self { status: 0x03, syndrome: 0x001a_2b3c };
}

/// What a command made, if anything.
type Made = Result<Option<Object>, Refusal>;

/// Which capabilities `QUERY_HCA_CAP` asks for (`enum mlx5_cap_type` of Linux), above the lowest bit of its modifier.
mod kind {
    pub(super) const GENERAL: u64 = 0;
    pub(super) const ATOMIC: u64 = 3;
    pub(super) const ROCE: u64 = 4;
}
/// The lowest bit: what is in force (`HCA_CAP_OPMOD_GET_CUR`), and not the most that could be.
const IN_FORCE: u64 = 1;
/// `mlx5_ifc_query_hca_cap_out_bits.capability`.
const CAPABILITY: usize = 0x80;
// `mlx5_ifc_cmd_hca_cap_bits`.
const QPC_EXTENSION: Field = Field::new(0x122, 1).within(CAPABILITY);
const ROCE: Field = Field::new(0x21d, 1).within(CAPABILITY);
const QP_ERROR_SYNDROME: Field = Field::new(0x273, 1).within(CAPABILITY);
const SQ_TS_FORMAT: Field = Field::new(0x440, 2).within(CAPABILITY);
// `mlx5_ifc_roce_cap_bits`.
const QP_TS_FORMAT: Field = Field::new(0x1e, 2).within(CAPABILITY);
/// `MLX5_TIMESTAMP_FORMAT_CAP_REAL_TIME`; a NIC with free-running time stamps alone reports 0.
const REAL_TIME_ONLY: u64 = 1;
// `mlx5_ifc_atomic_caps_bits`.
const ATOMIC_REQ_8B_ENDIANNESS_MODE: Field = Field::new(0x40, 2).within(CAPABILITY);
const SUPPORTED_8B_ENDIANNESS_MODE_1: Field = Field::new(0x46, 1).within(CAPABILITY);
const ATOMIC_OPERATIONS: Field = Field::new(0x90, 16).within(CAPABILITY);
const ATOMIC_SIZE_QP: Field = Field::new(0xb0, 16).within(CAPABILITY);
/// `MLX5_ATOMIC_OPS_*`: compare-and-swap, fetch-and-add; and the masked (extended) ones.
const STANDARD_OPERATIONS: u64 = 0b0011;
const EXTENDED_OPERATIONS: u64 = 0b1111;
/// A bit for each size by its logarithm: 4 and 8 bytes.
const SIZES_4_AND_8: u64 = 1 << 2 | 1 << 3;
/// Answers reach at least behind the last field that is set here.
const QUERY_OUT: usize = (CAPABILITY + 0x460) / 8;

/// Capabilities in force. Those that no client here reads are zero: the NIC has nothing that is optional.
fn query_capabilities(input: &[u8], output: &mut [u8], controls: &Controls) -> Made {
    if output.len() < QUERY_OUT {
        return Err(Refusal::BAD_OUTPUT_LENGTH);
    }
    let modifier = OP_MOD.get(input);
    if modifier & IN_FORCE == 0 {
        return Err(Refusal::BAD_PARAMETER);
    }
    let time_stamps = if controls.real_time_clock { REAL_TIME_ONLY } else { 0 };
    match modifier >> 1 {
        kind::GENERAL => {
            let says_first_error = u64::from(!controls.hides_first_error);
            QPC_EXTENSION.set(output, says_first_error);
            QP_ERROR_SYNDROME.set(output, says_first_error);
            ROCE.set(output, (controls.link == Link::Ethernet).into());
            SQ_TS_FORMAT.set(output, time_stamps);
        }
        kind::ROCE => QP_TS_FORMAT.set(output, time_stamps),
        kind::ATOMIC => set_atomics(output, controls.atomics),
        _ => {}
    }
    Ok(None)
}

fn set_atomics(output: &mut [u8], atomics: Atomics) {
    let operations = match atomics {
        Atomics::None => return,
        Atomics::Standard => STANDARD_OPERATIONS,
        Atomics::Extended => EXTENDED_OPERATIONS,
    };
    ATOMIC_REQ_8B_ENDIANNESS_MODE.set(output, 1);
    SUPPORTED_8B_ENDIANNESS_MODE_1.set(output, 1);
    ATOMIC_OPERATIONS.set(output, operations);
    ATOMIC_SIZE_QP.set(output, SIZES_4_AND_8);
}

/// `mlx5_ifc_create_cq_in_bits` and its context, `mlx5_ifc_cqc_bits`.
mod cq {
    use super::Field;

    pub(super) const INPUT: usize = 0x300 / 8;
    const CONTEXT: usize = 0x80;
    pub(super) const DBR_UMEM_VALID: Field = Field::new(0x06, 1).within(CONTEXT);
    pub(super) const CQE_SZ: Field = Field::new(0x08, 3).within(CONTEXT);
    pub(super) const CC: Field = Field::new(0x0b, 1).within(CONTEXT);
    pub(super) const OI: Field = Field::new(0x0e, 1).within(CONTEXT);
    pub(super) const DBR_UMEM_ID: Field = Field::new(0x20, 32).within(CONTEXT);
    pub(super) const LOG_CQ_SIZE: Field = Field::new(0x63, 5).within(CONTEXT);
    pub(super) const C_EQN: Field = Field::new(0xb8, 8).within(CONTEXT);
    pub(super) const DBR_ADDR: Field = Field::new(0x1c0, 64).within(CONTEXT);
    pub(super) const CQ_UMEM_OFFSET: Field = Field::new(0x280, 64);
    pub(super) const CQ_UMEM_ID: Field = Field::new(0x2c0, 32);
    pub(super) const CQ_UMEM_VALID: Field = Field::new(0x2e0, 1);
    pub(super) const OUT_CQN: Field = Field::new(0x48, 24);
}

/// The only event queue that `MLX5_IB_METHOD_DEVX_QUERY_EQN` names.
pub(crate) const EVENT_QUEUE: u32 = 7;
/// Bytes of a doorbell record.
const RECORD: usize = 8;

fn create_cq(driver: &mut Driver, input: &[u8], output: &mut [u8]) -> Made {
    use cq::{
        C_EQN, CC, CQ_UMEM_ID, CQ_UMEM_OFFSET, CQ_UMEM_VALID, CQE_SZ, DBR_ADDR, DBR_UMEM_ID, DBR_UMEM_VALID,
        INPUT, LOG_CQ_SIZE, OI, OUT_CQN,
    };
    if input.len() < INPUT {
        return Err(Refusal::BAD_INPUT_LENGTH);
    }
    let [is_collapsed, may_overrun] = [CC, OI].map(|flag| flag.get(input) == 1);
    let is_sound = CQ_UMEM_VALID.get(input) == 1
        && DBR_UMEM_VALID.get(input) == 1
        && CQE_SZ.get(input) == 0
        && C_EQN.get(input) == EVENT_QUEUE.into()
        // A collapsed queue says nothing about places that are free.
        && (may_overrun || !is_collapsed);
    let entries = 1u64 << LOG_CQ_SIZE.get(input);
    let bytes = entries * completion::BYTES as u64;
    let ring = driver.umem(CQ_UMEM_ID.get(input), CQ_UMEM_OFFSET.get(input), bytes, completion::BYTES);
    let record = driver.umem(DBR_UMEM_ID.get(input), DBR_ADDR.get(input), RECORD as u64, RECORD);
    let (true, Some(ring), Some(record)) = (is_sound, ring, record) else {
        return Err(Refusal::BAD_PARAMETER);
    };
    let consumer = Some(record).filter(|_| !may_overrun);
    // SAFETY: both lie in memory that the program registered, which it must keep for as long as the queue is.
    let number = unsafe { driver.add_completions(ring, entries as u32, is_collapsed, consumer) };
    OUT_CQN.set(output, number.into());
    Ok(Some(Object::CompletionQueue))
}

/// `mlx5_ifc_create_qp_in_bits`, `mlx5_ifc_rst2init_qp_in_bits` and so on, and their context, `mlx5_ifc_qpc_bits`.
mod qp {
    use super::Field;

    pub(super) const CREATE_INPUT: usize = 0x880 / 8;
    pub(super) const MODIFY_INPUT: usize = 0x800 / 8;
    const CONTEXT: usize = 0xc0;
    pub(super) const ST: Field = Field::new(0x08, 8).within(CONTEXT);
    pub(super) const LOG_RQ_SIZE: Field = Field::new(0x49, 4).within(CONTEXT);
    pub(super) const LOG_RQ_STRIDE: Field = Field::new(0x4d, 3).within(CONTEXT);
    pub(super) const LOG_SQ_SIZE: Field = Field::new(0x51, 4).within(CONTEXT);
    pub(super) const TS_FORMAT: Field = Field::new(0x58, 2).within(CONTEXT);
    pub(super) const UAR_PAGE: Field = Field::new(0x68, 24).within(CONTEXT);
    pub(super) const REMOTE_QPN: Field = Field::new(0xa8, 24).within(CONTEXT);
    pub(super) const CQN_SND: Field = Field::new(0x3e8, 24).within(CONTEXT);
    pub(super) const DBR_ADDR: Field = Field::new(0x500, 64).within(CONTEXT);
    pub(super) const RQ_TYPE: Field = Field::new(0x565, 3).within(CONTEXT);
    pub(super) const DBR_UMEM_VALID: Field = Field::new(0x683, 1).within(CONTEXT);
    pub(super) const DBR_UMEM_ID: Field = Field::new(0x720, 32).within(CONTEXT);
    pub(super) const WQ_UMEM_OFFSET: Field = Field::new(0x800, 64);
    pub(super) const WQ_UMEM_ID: Field = Field::new(0x840, 32);
    pub(super) const WQ_UMEM_VALID: Field = Field::new(0x860, 1);
    /// Of the input of changes, and of the output of the creation.
    pub(super) const QPN: Field = Field::new(0x48, 24);
}

/// `MLX5_QP_ST_RC`, `MLX5_TIMESTAMP_FORMAT_FREE_RUNNING`, `MLX5_ZERO_LEN_RQ` of Linux.
const RELIABLE_CONNECTED: u64 = 0;
const FREE_RUNNING: u64 = 0;
const NO_RECEIVE_QUEUE: u64 = 3;
/// The smallest entry of a receive queue.
const RECEIVE_STRIDE: u64 = 16;
/// In a doorbell record the send queue's word is the second (`MLX5_SND_DBR`).
pub(crate) const SEND_RECORD: usize = 4;

fn create_qp(driver: &mut Driver, input: &[u8], output: &mut [u8]) -> Made {
    use qp::{
        CQN_SND, CREATE_INPUT, DBR_ADDR, DBR_UMEM_ID, DBR_UMEM_VALID, LOG_RQ_SIZE, LOG_RQ_STRIDE,
        LOG_SQ_SIZE, QPN, RQ_TYPE, ST, TS_FORMAT, UAR_PAGE, WQ_UMEM_ID, WQ_UMEM_OFFSET, WQ_UMEM_VALID,
    };
    if input.len() < CREATE_INPUT {
        return Err(Refusal::BAD_INPUT_LENGTH);
    }
    if driver.controls.real_time_clock && TS_FORMAT.get(input) == FREE_RUNNING {
        return Err(Refusal::CLOCK);
    }
    let is_sound = WQ_UMEM_VALID.get(input) == 1
        && DBR_UMEM_VALID.get(input) == 1
        && ST.get(input) == RELIABLE_CONNECTED;
    let blocks = 1u32 << LOG_SQ_SIZE.get(input);
    // The receive queue lies before the send queue.
    let received = match RQ_TYPE.get(input) {
        NO_RECEIVE_QUEUE => 0,
        _ => (RECEIVE_STRIDE << LOG_RQ_STRIDE.get(input)) << LOG_RQ_SIZE.get(input),
    };
    let bytes = received + u64::from(blocks) * BLOCK as u64;
    let queue = driver.umem(WQ_UMEM_ID.get(input), WQ_UMEM_OFFSET.get(input), bytes, BLOCK);
    let record = driver.umem(DBR_UMEM_ID.get(input), DBR_ADDR.get(input), RECORD as u64, RECORD);
    let page = driver.page(UAR_PAGE.get(input) as u32);
    let (true, Some(queue), Some(record), Some(page)) = (is_sound, queue, record, page) else {
        return Err(Refusal::BAD_PARAMETER);
    };
    let place = Place { entries: queue + received as usize, blocks, record: record + SEND_RECORD, page };
    // SAFETY: all of them lie in memory that the program registered or mapped, which it must keep for as long as the queue pair is.
    let number = unsafe { driver.add_pair(place, CQN_SND.get(input) as u32) };
    let number = number.map_err(|_| Refusal::BAD_PARAMETER)?;
    QPN.set(output, number.into());
    Ok(Some(Object::Pair(number)))
}

/// Takes a queue pair from the state before to `wanted`.
fn change_state(driver: &mut Driver, input: &[u8], wanted: State) -> Made {
    if input.len() < qp::MODIFY_INPUT {
        return Err(Refusal::BAD_INPUT_LENGTH);
    }
    let number = qp::QPN.get(input) as u32;
    let state = driver.state(number).ok_or(Refusal::BAD_PARAMETER)?;
    if !state.may_become(wanted) {
        return Err(Refusal::BAD_STATE);
    }
    if wanted == State::Rtr {
        driver.set_destination(number, qp::REMOTE_QPN.get(input) as u32);
    }
    driver.set_state(number, wanted);
    Ok(None)
}

/// `mlx5_ifc_query_qp_in_bits` and `mlx5_ifc_query_qp_out_bits`, whose context lies where that of the other commands does.
mod query {
    use super::Field;

    pub(super) const QPC_EXT: Field = Field::new(0x40, 1);
    pub(super) const STATE: Field = Field::new(0xc0, 4);
    /// Bytes of an answer up to the list of pages, where the extension lies if it is asked for.
    pub(super) const OUTPUT: usize = EXTENSION / 8;
    pub(super) const OUTPUT_WITH_EXTENSION: usize = (EXTENSION + 0x600) / 8;
    const EXTENSION: usize = 0x880;
    /// `mlx5_ifc_qp_context_extension_bits.error_syndrome`.
    const ERROR: usize = EXTENSION + 0x60;
    // `mlx5_ifc_cqe_error_syndrome_bits`.
    pub(super) const VENDOR_ERROR_SYNDROME: Field = Field::new(0x10, 8).within(ERROR);
    pub(super) const SYNDROME: Field = Field::new(0x18, 8).within(ERROR);
}

/// A queue pair's state, and which error stopped it. The rest of the context is zero.
fn query_pair(driver: &mut Driver, input: &[u8], output: &mut [u8]) -> Made {
    let with_extension = query::QPC_EXT.get(input) == 1;
    if with_extension && driver.controls.hides_first_error {
        return Err(Refusal::BAD_PARAMETER);
    }
    if output.len() < if with_extension { query::OUTPUT_WITH_EXTENSION } else { query::OUTPUT } {
        return Err(Refusal::BAD_OUTPUT_LENGTH);
    }
    let number = qp::QPN.get(input) as u32;
    let state = driver.state(number).ok_or(Refusal::BAD_PARAMETER)?;
    match driver.first_error(number) {
        None => query::STATE.set(output, state.number().into()),
        Some(error) => set_stopped(output, error, with_extension),
    }
    Ok(None)
}

/// What the answer says of a queue pair that an error stopped.
fn set_stopped(output: &mut [u8], Syndrome(syndrome): Syndrome, with_extension: bool) {
    query::STATE.set(output, State::Error.number().into());
    if with_extension {
        query::VENDOR_ERROR_SYNDROME.set(output, completion::SOME_VENDOR_SYNDROME.into());
        query::SYNDROME.set(output, syndrome.into());
    }
}

/// The queue pair that a command asks about; none where it does not ask about one.
pub(crate) fn queried_pair(input: &[u8]) -> Option<u32> {
    (input.len() >= LEAST_OUT && OPCODE.get(input) == opcode::QUERY_QP).then(|| qp::QPN.get(input) as u32)
}

fn step_of(code: u64) -> Option<Step> {
    Some(match code {
        opcode::QUERY_HCA_CAP => Step::QueryHcaCap,
        opcode::CREATE_CQ => Step::CreateCq,
        opcode::CREATE_QP => Step::CreateQp,
        opcode::RST2INIT_QP => Step::Init,
        opcode::INIT2RTR_QP => Step::Rtr,
        opcode::RTR2RTS_QP => Step::Rts,
        _ => return None,
    })
}

fn dispatch(driver: &mut Driver, input: &[u8], output: &mut [u8]) -> Made {
    let code = OPCODE.get(input);
    // No step of a queue pair's creation.
    if code == opcode::QUERY_QP {
        return query_pair(driver, input, output);
    }
    let step = step_of(code).ok_or(Refusal::BAD_OPERATION)?;
    if driver.controls.refused_by_devx == Some(step) {
        return Err(Refusal::ASKED_FOR);
    }
    match step {
        Step::QueryHcaCap => query_capabilities(input, output, &driver.controls),
        Step::CreateCq => create_cq(driver, input, output),
        Step::CreateQp => create_qp(driver, input, output),
        Step::Init => change_state(driver, input, State::Init),
        Step::Rtr => change_state(driver, input, State::Rtr),
        Step::Rts => change_state(driver, input, State::Rts),
    }
}

/// Executes a command. The answer says why one is refused, as the error does: `MLX5_CMD_STAT_*`.
pub(crate) fn execute(driver: &mut Driver, input: &[u8], output: &mut [u8]) -> Result<Option<Object>, u8> {
    output.fill(0);
    if input.len() < LEAST_OUT || output.len() < LEAST_OUT {
        return Err(Refusal::BAD_INPUT_LENGTH.status);
    }
    dispatch(driver, input, output).map_err(|refusal| {
        OUT_STATUS.set(output, refusal.status.into());
        OUT_SYNDROME.set(output, refusal.syndrome.into());
        refusal.status
    })
}

#[cfg(test)]
#[path = "devx_tests.rs"]
mod tests;
