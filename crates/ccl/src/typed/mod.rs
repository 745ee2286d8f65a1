//! Collectives as methods: torch.distributed's names and order of arguments, with element types and operators that the compiler
//! checks.
//!
//! [`Call`](crate::Call) has a constructor for each collective, and the method of [`Communicator`](crate::Communicator) with the same name
//! runs it. Prepare frequent calls once, and before captures: `communicator.prepare(&Call::all_reduce(tensor, Sum))`.
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
//!     // A synchronous call of torch: later work on the stream follows it.
//!     communicator.all_reduce(loss, Sum, Options::on(stream))?.wait_on(stream)?;
//!     let scaled = PreMulSum(1.0 / 1024.0);
//!     communicator.all_reduce(gradients, scaled, Options::on(stream))?.wait_on(stream)
//! }
//! ```
//!
//! # Names
//!
//! A method has torch's name where it has torch's arguments. Where torch has one name for a list of tensors and one for a single tensor,
//! methods here take the single tensor and have the short name. The other names of torch are rustdoc aliases.
//!
//! | torch.distributed | here |
//! |---|---|
//! | `all_reduce(tensor, op)` | `all_reduce`; out of place `all_reduce_into(output, input, op)` |
//! | `reduce_scatter_tensor(output, input, op)` | `reduce_scatter` |
//! | `reduce_scatter(output, input_list, op)` of unequal lengths | `reduce_scatter_uneven(output, input, op, counts)`, of the concatenated list |
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
//! The compiler checks the types within one call, but not those of two members: a member may receive as i32 what another sends as f32, if
//! the bytes are as many.
//!
//! Roots and peers are ranks of the group. `src` and `dst` of torch are ranks of the world even with a group;
//! [`Group::rank_of`](anabranch_ranks::Group::rank_of) converts them.
//!
//! Bindings, whose types and operators are values, make a [`Call`](crate::Call) from [`Tensor`]s and
//! [`ReduceOp::from_torch`](crate::types::ReduceOp::from_torch). An operator that is not defined for the type is
//! [`Error::Unsupported`](crate::types::Error::Unsupported) there.

mod messages;
mod methods;

use std::marker::PhantomData;

use anabranch_hip::{DeviceAddress, DeviceBuffer, Stream};
use anabranch_shmem::{Registration, SymmetricMemory};

use crate::call::tensor::Tensor;
use crate::types::{Element, LocationKind, Result};

/// A [`Tensor`] with an element type that the compiler knows. A view: copies name the same elements.
///
/// One call cannot mix element types:
///
/// ```compile_fail,E0308
/// use anabranch_ccl::{Call, Sum, TypedTensor};
/// fn call<'a>(output: TypedTensor<'a, f64>, input: TypedTensor<'a, f32>) -> Call<'a> {
///     Call::all_reduce_into(output, input, Sum)
/// }
/// ```
///
/// An operator must be defined for the elements:
///
/// ```compile_fail,E0277
/// use anabranch_ccl::{BitAnd, Call, TypedTensor};
/// fn call<'a>(tensor: TypedTensor<'a, f32>) -> Call<'a> {
///     Call::all_reduce(tensor, BitAnd)
/// }
/// ```
///
/// A scalar must have the element type:
///
/// ```compile_fail,E0277
/// use anabranch_ccl::{Call, PreMulSum, TypedTensor};
/// fn call<'a>(tensor: TypedTensor<'a, f64>) -> Call<'a> {
///     Call::all_reduce(tensor, PreMulSum(2.0f32))
/// }
/// ```
///
/// The tensors of an entry of a list must have one element type:
///
/// ```compile_fail,E0308
/// use anabranch_ccl::{Tensor, TypedTensor};
/// fn entry<'a>(output: TypedTensor<'a, f64>, input: TypedTensor<'a, f32>) -> (Tensor<'a>, Tensor<'a>) {
///     output.gathering(input)
/// }
/// ```
///
/// These compile:
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

    /// [`Tensor::local`]: `count` elements anywhere in device memory of this rank.
    ///
    /// # Safety
    /// As for [`Tensor::local`]. Any bits are valid floats and integers. A bool is true if its byte is not zero.
    pub const unsafe fn local(address: DeviceAddress, count: u64) -> Self {
        // SAFETY: the caller's promise.
        Self::of(unsafe { Tensor::local(address, T::DATA_TYPE, count) })
    }

    /// [`Tensor::of_buffer`]: `count` elements of a buffer of the device of this rank, from byte `byte_offset` on.
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

    /// [`Tensor::symmetric`]: `count` elements of an allocation of the symmetric heap, from byte `byte_offset` on.
    ///
    /// # Errors
    /// As [`Tensor::symmetric`].
    pub fn symmetric(memory: &'a SymmetricMemory, byte_offset: u64, count: u64) -> Result<Self> {
        Ok(Self::of(Tensor::symmetric(memory, byte_offset, T::DATA_TYPE, count)?))
    }

    /// [`Tensor::registered`]: `count` elements of registered memory, from byte `byte_offset` of the registration of every member on.
    ///
    /// # Errors
    /// As [`Tensor::registered`].
    pub fn registered(registration: &'a Registration, byte_offset: u64, count: u64) -> Result<Self> {
        Ok(Self::of(Tensor::registered(registration, byte_offset, T::DATA_TYPE, count)?))
    }

    /// The `count` elements from element `start` on, as `narrow(0, start, count)` of torch. In-place forms use it for the part of this
    /// rank.
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

    /// Kind of memory.
    pub const fn kind(&self) -> LocationKind {
        self.tensor.kind()
    }

    /// The tensor with its element type as a value.
    pub(crate) const fn untyped(self) -> Tensor<'a> {
        self.tensor
    }
}

impl<'a, T: Element> From<TypedTensor<'a, T>> for Tensor<'a> {
    fn from(typed: TypedTensor<'a, T>) -> Self {
        typed.tensor
    }
}

/// Options of a collective. There is no `async_op`: use the returned [`Work`](crate::Work) instead.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    stream: &'a Stream,
}

impl<'a> Options<'a> {
    /// Runs the collective in the order of `stream`.
    pub const fn on(stream: &'a Stream) -> Self {
        Self { stream }
    }

    /// The stream.
    pub const fn stream(&self) -> &'a Stream {
        self.stream
    }
}
