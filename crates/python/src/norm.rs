//! Sums over ranks with a norm of their rows, from Python's tensors.

use anabranch::ccl::{self, Call, Quantised, RmsNorm};

use pyo3::PyResult;

use crate::array::Array;
use crate::communicator::Run;
use crate::errors::usage;

/// The scales of an output in 8 bits; the numbers are those of arrays.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scales {
    /// One scale.
    By(usize),
    /// One for each group of elements.
    Groups {
        /// The scales.
        scales: usize,
        /// Elements of a group.
        group: u32,
        /// Elements between two groups, if a row has a column.
        stride: Option<u64>,
    },
}

/// Checks that the rows of the input are as long as the weight.
///
/// # Errors
/// `UsageError`.
pub(crate) fn check_rows(input: &Array, weight: &Array) -> PyResult<()> {
    let shape = input.shape();
    // An input of one dimension holds its rows one after the other.
    if shape.len() < 2 || shape.last() == Some(&weight.count()) {
        return Ok(());
    }
    Err(usage(format!(
        "the last dimension of input, of shape {shape:?}, must be the weight's {} elements",
        weight.count()
    )))
}

/// Checks that a tensor has the shape of the input, where both have one.
///
/// # Errors
/// `UsageError`.
pub(crate) fn check_shape(name: &str, tensor: &Array, input: &[u64]) -> PyResult<()> {
    let shape = tensor.shape();
    if shape.len() < 2 || input.len() < 2 || shape == input {
        return Ok(());
    }
    Err(usage(format!("{name} has the shape {shape:?}; the input's {input:?} is needed")))
}

/// Checks the shape of scales of groups, where they and the input have one.
///
/// # Errors
/// `UsageError`.
pub(crate) fn check_scales(
    scales: Array,
    (input, group, stride): (&[u64], u32, Option<u64>),
) -> PyResult<Array> {
    if input.len() < 2 || scales.shape().len() < 2 {
        return Ok(scales);
    }
    let (rows, row) = (input.iter().rev().skip(1).product::<u64>(), input.last().copied().unwrap_or(0));
    let groups = row / u64::from(group.max(1));
    let needed = match stride {
        None => [rows, groups],
        Some(stride) => [groups, stride],
    };
    if scales.shape() == needed {
        return Ok(scales);
    }
    Err(usage(format!("scales have the shape {:?}; {needed:?} is needed", scales.shape())))
}

/// Launches a call on arrays 0, the input, 1, the weight, 2, the output, and those of these numbers.
///
/// # Safety
/// As of [`Array::tensor`].
pub(crate) unsafe fn run(
    arrays: &[Array],
    (residual, kept): (Option<usize>, Option<usize>),
    scales: Option<Scales>,
    epsilon: f32,
    run: Run<'_>,
) -> Result<ccl::Work, ccl::Error> {
    // SAFETY: the caller's promise.
    let tensor = |number: usize| unsafe { arrays[number].tensor() };
    let weight = tensor(1)?;
    let quantised = match scales {
        None => None,
        Some(Scales::By(scale)) => Some(Quantised::By(tensor(scale)?)),
        Some(Scales::Groups { scales, group, stride }) => {
            let groups = weight.count() / u64::from(group.max(1));
            let (row_stride, group_stride) = stride.map_or((groups, 1), |stride| (1, stride));
            Some(Quantised::Groups { group, scales: tensor(scales)?, row_stride, group_stride })
        }
    };
    let norm = RmsNorm {
        residual: residual.map(tensor).transpose()?,
        kept: kept.map(tensor).transpose()?,
        weight,
        epsilon,
        output: tensor(2)?,
        quantised,
    };
    run(&Call::AllReduceRmsNorm { input: tensor(0)?, norm })
}
