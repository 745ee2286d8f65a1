//! Communicators, their tensors and operators, and launched work.

use std::ffi::CString;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex};

use anabranch::Group;
use anabranch::ccl::{self, Call, DataType, DeviceScalar, ReduceOp, Tensor};
use anabranch::hip::DeviceAddress;
use anabranch::shmem::SymmetricMemory;

use crate::group::anabranch_group;
use crate::handle::{Handle, OfWorld, Out, destroy, get, limit, put, with};
use crate::state::{State, locked};
use crate::status::{Failure, Result, anabranch_status};
use crate::types::{anabranch_data_type, anabranch_op, data_type};
use crate::versioned::{self, Versioned};
use crate::world::anabranch_world;

/// The first operator that is not a constant.
const OPERATORS: anabranch_op = 256;

/// The collectives of one group on one rank. All ranks of the group make the same calls in the same order, with the same counts and types.
/// Threads may share it: their calls run one after the other, and have to be in that same order.
#[derive(Debug)]
pub struct anabranch_comm {
    state: Arc<State>,
    group: Group,
    inner: Mutex<ccl::Communicator>,
    is_symmetric: bool,
    /// Operators with scalars; their numbers are from [`OPERATORS`] on.
    operators: Mutex<Vec<ReduceOp>>,
}

impl Handle for anabranch_comm {
    const NAME: &'static str = "comm";
}

impl OfWorld for anabranch_comm {
    fn state(&self) -> &State {
        &self.state
    }
}

/// A collective that was launched. Any thread may use it.
#[derive(Debug)]
pub struct anabranch_work {
    state: Arc<State>,
    inner: ccl::Work,
    description: CString,
}

impl Handle for anabranch_work {
    const NAME: &'static str = "work";
}

impl OfWorld for anabranch_work {
    fn state(&self) -> &State {
        &self.state
    }
}

/// Choices of a communicator, equal on all ranks.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct anabranch_comm_options {
    /// `sizeof(anabranch_comm_options)`.
    pub size: usize,
    /// 1: an address in memory of `anabranch_heap_allocate` is symmetric: peers reach it directly, and all ranks of a call give the same part
    /// of the same allocation. The group of the allocation contains that of the communicator. 0: every address is local memory, which
    /// calls copy through memory of the communicator.
    pub symmetric: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: numbers, the size first.
unsafe impl Versioned for anabranch_comm_options {
    const NAME: &'static str = "anabranch_comm_options";
    const LEAST: usize = size_of::<usize>();

    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// A tensor of a call, with what keeps its memory.
pub(crate) struct Buffer {
    address: DeviceAddress,
    data_type: DataType,
    count: u64,
    symmetric: Option<(Arc<SymmetricMemory>, u64)>,
}

impl Buffer {
    /// As a call takes it.
    pub(crate) fn tensor(&self) -> Result<Tensor<'_>> {
        match &self.symmetric {
            Some((memory, offset)) => Ok(Tensor::symmetric(memory, *offset, self.data_type, self.count)?),
            // SAFETY: the caller's: device memory of as many elements, left alone until the work is done.
            None => Ok(unsafe { Tensor::local(self.address, self.data_type, self.count) }),
        }
    }
}

impl anabranch_comm {
    /// Ranks of the group.
    pub(crate) fn size(&self) -> u32 {
        self.group.size()
    }

    /// This rank in the group. A communicator is made by members alone.
    pub(crate) fn rank(&self) -> usize {
        self.group.rank_of(self.state.world.rank()).map_or(0, |rank| rank.get() as usize)
    }

    /// The elements of all parts.
    pub(crate) fn whole(&self, part: u64) -> Result<u64> {
        let whole = part.checked_mul(self.size().into());
        whole.ok_or_else(|| {
            Failure::usage(format!("{} parts of {part} elements are more than memory can hold", self.size()))
        })
    }

    /// A tensor of `count` elements.
    pub(crate) fn buffer(
        &self,
        name: &str,
        address: *const c_void,
        count: u64,
        of: anabranch_data_type,
    ) -> Result<Buffer> {
        let data_type = data_type(of)?;
        if count.checked_mul(u64::from(data_type.bits())).is_none() {
            return Err(Failure::usage(format!(
                "{name} has {count} elements of {data_type}: more than memory can hold"
            )));
        }
        if address.is_null() && count > 0 {
            return Err(Failure::usage(format!("{name} is NULL; it has {count} elements of {data_type}")));
        }
        let address = DeviceAddress(address as u64);
        let symmetric = if self.is_symmetric { self.state.allocation_at(address.0) } else { None };
        Ok(Buffer { address, data_type, count, symmetric })
    }

    /// An operator by its number.
    pub(crate) fn operator(&self, op: anabranch_op) -> Result<ReduceOp> {
        if let Some(index) = op.checked_sub(OPERATORS) {
            let own = locked(&self.operators).get(index as usize).copied();
            return own.ok_or_else(|| {
                Failure::usage(format!("op is {op}, which no anabranch_premul_sum of this comm made"))
            });
        }
        ReduceOp::from_torch(op, None).map_err(|error| Failure::usage(format!("op: {error}")))
    }

    fn keep_operator(&self, op: ReduceOp) -> anabranch_op {
        let mut operators = locked(&self.operators);
        let index = operators.iter().position(|known| *known == op).unwrap_or_else(|| {
            operators.push(op);
            operators.len() - 1
        });
        OPERATORS + index as anabranch_op
    }

    /// Launches a call.
    pub(crate) fn launch(
        &self,
        call: &Call<'_>,
        stream: *mut c_void,
        work: Option<Out<anabranch_work>>,
    ) -> Result {
        let stream = self.state.stream(stream)?;
        let inner = locked(&self.inner).run(call, &stream)?;
        if let Some(work) = work {
            let description = CString::new(inner.describe()).unwrap_or_default();
            work.give(anabranch_work { state: Arc::clone(&self.state), inner, description });
        }
        Ok(())
    }
}

/// Makes a communicator of the ranks of a group (NULL: the world). Collective over the group. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_comm_create(
    world: *const anabranch_world,
    group: *const anabranch_group,
    options: *const anabranch_comm_options,
    comm: *mut *mut anabranch_comm,
) -> anabranch_status {
    let out = Out::new(comm);
    with(world, |world| {
        let out = out?;
        let is_symmetric = match versioned::read_or_zero(options)?.symmetric {
            0 => false,
            1 => true,
            other => return Err(Failure::usage(format!("symmetric is {other}; allowed are 0 and 1"))),
        };
        let group = world.state.group(group)?;
        let live = world.state.live()?;
        live.compare(
            &group,
            "options of a communicator",
            vec![("symmetric".to_owned(), is_symmetric.to_string())],
        )?;
        let inner = Mutex::new(live.communicator(&group)?);
        let (state, operators) = (Arc::clone(&world.state), Mutex::default());
        out.give(anabranch_comm { state, group, inner, is_symmetric, operators });
        Ok(())
    })
}

/// Frees it, on all ranks in the same order relative to the communicators that are made. Work in flight goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_comm_destroy(comm: *mut anabranch_comm) {
    destroy(comm);
}

/// This rank in the group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_comm_rank(comm: *const anabranch_comm) -> u32 {
    get(comm).map_or(u32::MAX, |comm| comm.rank() as u32)
}

/// Ranks of the group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_comm_size(comm: *const anabranch_comm) -> u32 {
    get(comm).map_or(0, anabranch_comm::size)
}

/// The operator that multiplies each contribution by a scalar and sums. For integers the scalar is whole and of magnitude below 2^53. The
/// operator lives as long as the communicator; equal scalars give the same operator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_premul_sum(
    comm: *const anabranch_comm,
    scalar: f64,
    op: *mut anabranch_op,
) -> anabranch_status {
    with(comm, |comm| put(op, comm.keep_operator(ReduceOp::PreMulSum(scalar)), "op"))
}

/// The same with a scalar in device memory, of the type of the tensors, which each call reads when it runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_premul_sum_device(
    comm: *const anabranch_comm,
    scalar: *const c_void,
    scalar_type: anabranch_data_type,
    op: *mut anabranch_op,
) -> anabranch_status {
    with(comm, |comm| {
        if scalar.is_null() {
            return Err(Failure::usage("scalar is NULL"));
        }
        // SAFETY: the caller's: an element of device memory that is left alone until calls with the operator are done.
        let scalar = unsafe { DeviceScalar::at(DeviceAddress(scalar as u64), data_type(scalar_type)?) };
        put(op, comm.keep_operator(ReduceOp::PreMulSumAt(scalar)), "op")
    })
}

/// Makes later work on the stream wait for this work. Does not wait itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_work_wait_on(
    work: *const anabranch_work,
    stream: *mut c_void,
) -> anabranch_status {
    with(work, |work| Ok(work.inner.wait_on(&work.state.stream(stream)?)?))
}

/// Waits on the host until the work is done, and returns what made it fail. After `limit_seconds` (below 0: none)
/// `ANABRANCH_ERROR_BUSY`; the work then goes on. Not for captured work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_work_join(
    work: *const anabranch_work,
    limit_seconds: f64,
) -> anabranch_status {
    with(work, |work| {
        work.state.live()?;
        Ok(work.inner.join(limit(limit_seconds)?)?)
    })
}

/// Writes 1 to `is_done` where the work is done, else 0. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_work_poll(
    work: *const anabranch_work,
    is_done: *mut u32,
) -> anabranch_status {
    with(work, |work| {
        work.state.live()?;
        put(is_done, work.inner.poll()?.into(), "is_done")
    })
}

/// What runs: the collective, its algorithm, blocks and bytes. Valid until the work is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_work_text(work: *const anabranch_work) -> *const c_char {
    get(work).map_or(c"".as_ptr(), |work| work.description.as_ptr())
}

/// Frees the handle. The work goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_work_destroy(work: *mut anabranch_work) {
    destroy(work);
}
