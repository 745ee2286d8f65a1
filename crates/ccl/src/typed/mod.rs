//! Collectives as methods: torch.distributed's names and order of arguments, with element types and operators that the compiler
//! checks.
//!
//! Nothing is decided here: [`Call`](crate::Call) has a constructor for each call, and the method of
//! [`Communicator`](crate::Communicator) with that name runs it. A call that is made often is better prepared once, outside of
//! captures: `communicator.prepare(&Call::all_reduce(tensor, Sum))`.
//!
//! ```
//! use anabranch_ccl::{Communicator, Options, PreMulSum, Result, Sum, TypedTensor};
//! use anabranch_hip::Stream;
//!
//! fn gradients(
//!     communicator: &mut Communicator,
//!     loss: TypedTensor<'_, f64>,
//!     gradients: TypedTensor<'_, f32>,
//!     stream: &Stream,
//! ) -> Result<()> {
//!     // A synchronous call of torch: what follows on the stream is behind it.
//!     communicator.all_reduce(loss, Sum, Options::on(stream))?.wait_on(stream)?;
//!     let scaled = PreMulSum(1.0 / 1024.0);
//!     communicator.all_reduce(gradients, scaled, Options::on(stream))?.wait_on(stream)
//! }
//! ```
//!
//! # Names
//!
//! A method has torch's name where it has torch's arguments. torch has two names where tensors come as a list or as one; here
//! they are always one, and the short name is theirs. rustdoc finds torch's other names as aliases.
//!
//! | torch.distributed | here |
//! |---|---|
//! | `all_reduce(tensor, op)` | `all_reduce`; out of place `all_reduce_into(output, input, op)` |
//! | `reduce_scatter_tensor(output, input, op)` | `reduce_scatter` |
//! | `all_gather_into_tensor(output, input)` | `all_gather` |
//! | `all_gather(tensor_list, tensor)` of unequal lengths | `all_gather_uneven(output, input, counts)` |
//! | `all_to_all_single(output, input)` | `all_to_all` |
//! | `all_to_all_single(output, input, output_split_sizes, input_split_sizes)` | `all_to_all_single`; splits count elements, torch's count rows |
//! | `broadcast(tensor, group_src=root)` | `broadcast` |
//! | `reduce(tensor, group_dst=root, op=op)` | `reduce`; out of place `reduce_into(output, input, root, op)` |
//! | `gather(tensor, gather_list, group_dst=root)` | `gather`, with `Some` output at the root |
//! | `scatter(tensor, scatter_list, group_src=root)` | `scatter`, with `Some` input at the root |
//! | `barrier()` | `barrier` |
//! | `all_gather_into_tensor` for each of many, coalesced | `all_gather_many`, of [`TypedTensor::gathering`] |
//! | `send(tensor, group_dst=to)`, `isend` | `send` |
//! | `recv(tensor, group_src=from)`, `irecv` | `recv` |
//! | `batch_isend_irecv([P2POp(isend, tensor, peer), ..])` | `batch_isend_irecv`, of [`PointToPoint::send`](crate::call::message::PointToPoint::send) and [`receive`](crate::call::message::PointToPoint::receive) |
//!
//! The types within one call are the compiler's to check. Those of two members' calls are not: what a member sends as f32 another
//! may receive as i32, as long as it is as many bytes.
//!
//! Roots and peers are ranks of the group. torch's `src` and `dst` are ranks of the world even where a group is given; a front end that
//! takes them goes through [`Root`](anabranch_ranks::Root):
//!
//! ```
//! use anabranch_ccl::{Communicator, Options, TypedTensor};
//! use anabranch_hip::Stream;
//! use anabranch_ranks::{GlobalRank, GroupRank, Root};
//!
//! /// torch's `broadcast(tensor, src=None, group=..., group_src=None)`.
//! fn broadcast(
//!     communicator: &mut Communicator,
//!     tensor: TypedTensor<'_, f32>,
//!     src: Option<GlobalRank>,
//!     group_src: Option<GroupRank>,
//!     stream: &Stream,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     let root = Root::from_src(communicator.group(), src, group_src)?;
//!     Ok(communicator.broadcast(tensor, root, Options::on(stream))?.wait_on(stream)?)
//! }
//! ```
//!
//! Bindings, whose types and operators are values, make the [`Call`](crate::Call) themselves, from [`Tensor`]s and
//! [`ReduceOp::from_torch`](crate::types::ReduceOp::from_torch); what does not fit together is
//! [`Error::Unsupported`](crate::types::Error::Unsupported) there.

mod messages;
mod methods;

use std::marker::PhantomData;

use anabranch_hip::{DeviceAddress, DeviceBuffer, Stream};
use anabranch_shmem::{Registration, SymmetricMemory};

use crate::call::tensor::Tensor;
use crate::types::{Element, LocationKind, Result};

/// A [`Tensor`] whose elements have a type that the compiler knows. A view: copies name the same elements.
///
/// Tensors of two types do not meet in one call:
///
/// ```compile_fail,E0308
/// use anabranch_ccl::{Call, Sum, TypedTensor};
/// fn call<'a>(output: TypedTensor<'a, f64>, input: TypedTensor<'a, f32>) -> Call<'a> {
///     Call::all_reduce_into(output, input, Sum)
/// }
/// ```
///
/// nor does a tensor meet an operator that is not defined for its elements:
///
/// ```compile_fail,E0277
/// use anabranch_ccl::{BitAnd, Call, TypedTensor};
/// fn call<'a>(tensor: TypedTensor<'a, f32>) -> Call<'a> {
///     Call::all_reduce(tensor, BitAnd)
/// }
/// ```
///
/// or a scalar of another type:
///
/// ```compile_fail,E0277
/// use anabranch_ccl::{Call, PreMulSum, TypedTensor};
/// fn call<'a>(tensor: TypedTensor<'a, f64>) -> Call<'a> {
///     Call::all_reduce(tensor, PreMulSum(2.0f32))
/// }
/// ```
///
/// nor do the tensors of an entry of a list:
///
/// ```compile_fail,E0308
/// use anabranch_ccl::{Tensor, TypedTensor};
/// fn entry<'a>(output: TypedTensor<'a, f64>, input: TypedTensor<'a, f32>) -> (Tensor<'a>, Tensor<'a>) {
///     output.gathering(input)
/// }
/// ```
///
/// With the right ones all do:
///
/// ```
/// use anabranch_ccl::{BitAnd, Call, PreMulSum, Tensor, TypedTensor};
/// fn entries<'a>(floats: TypedTensor<'a, f32>, bytes: TypedTensor<'a, u8>) -> [(Tensor<'a>, Tensor<'a>); 2] {
///     [floats.gathering(floats), bytes.gathering(bytes)]
/// }
/// fn calls<'a>(floats: TypedTensor<'a, f32>, integers: TypedTensor<'a, u8>) -> [Call<'a>; 2] {
///     [Call::all_reduce(floats, PreMulSum(2.0)), Call::all_reduce(integers, BitAnd)]
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TypedTensor<'a, T: Element> {
    tensor: Tensor<'a>,
    element: PhantomData<fn() -> T>,
}

impl<'a, T: Element> TypedTensor<'a, T> {
    const fn of(tensor: Tensor<'a>) -> Self {
        Self { tensor, element: PhantomData }
    }

    /// [`Tensor::local`]: `count` elements anywhere in this rank's device memory.
    ///
    /// # Safety
    /// As for [`Tensor::local`]. Of floats and integers any bits are values; of bool any byte that is not zero is true.
    pub const unsafe fn local(address: DeviceAddress, count: u64) -> Self {
        // SAFETY: the caller's promise.
        Self::of(unsafe { Tensor::local(address, T::DATA_TYPE, count) })
    }

    /// [`Tensor::of_buffer`]: `count` elements, `byte_offset` bytes into a buffer of this rank's device.
    ///
    /// # Errors
    /// As [`Tensor::of_buffer`].
    ///
    /// # Safety
    /// As for [`Tensor::of_buffer`].
    pub unsafe fn of_buffer(buffer: &'a DeviceBuffer, byte_offset: u64, count: u64) -> Result<Self> {
        // SAFETY: the caller's promise.
        Ok(Self::of(unsafe { Tensor::of_buffer(buffer, byte_offset, T::DATA_TYPE, count) }?))
    }

    /// [`Tensor::symmetric`]: `count` elements, `byte_offset` bytes into an allocation of the symmetric heap.
    ///
    /// # Errors
    /// As [`Tensor::symmetric`].
    pub fn symmetric(memory: &'a SymmetricMemory, byte_offset: u64, count: u64) -> Result<Self> {
        Ok(Self::of(Tensor::symmetric(memory, byte_offset, T::DATA_TYPE, count)?))
    }

    /// [`Tensor::registered`]: `count` elements, `byte_offset` bytes behind the start of every member's registration.
    ///
    /// # Errors
    /// As [`Tensor::registered`].
    pub fn registered(registration: &'a Registration, byte_offset: u64, count: u64) -> Result<Self> {
        Ok(Self::of(Tensor::registered(registration, byte_offset, T::DATA_TYPE, count)?))
    }

    /// The `count` elements from `start` on, torch's `narrow(0, start, count)`. In-place forms name this rank's part with it.
    ///
    /// # Errors
    /// As [`Tensor::narrow`].
    pub fn narrow(self, start: u64, count: u64) -> Result<Self> {
        Ok(Self::of(self.tensor.narrow(start, count)?))
    }

    /// Number of elements.
    pub const fn count(&self) -> u64 {
        self.tensor.count()
    }

    /// Where it is, as far as the choice of an algorithm cares.
    pub const fn kind(&self) -> LocationKind {
        self.tensor.kind()
    }

    /// The tensor with its type as a value.
    pub const fn untyped(self) -> Tensor<'a> {
        self.tensor
    }
}

impl<'a, T: Element> From<TypedTensor<'a, T>> for Tensor<'a> {
    fn from(typed: TypedTensor<'a, T>) -> Self {
        typed.tensor
    }
}

/// How a collective is run. What torch takes as `async_op` is in what is done with the [`Work`](crate::Work).
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    stream: &'a Stream,
}

impl<'a> Options<'a> {
    /// In this stream's order: behind what was put on it, and before what comes after.
    pub const fn on(stream: &'a Stream) -> Self {
        Self { stream }
    }

    /// The stream.
    pub const fn stream(&self) -> &'a Stream {
        self.stream
    }
}
