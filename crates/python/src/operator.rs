//! Operators of reductions, from Python's words.

use anabranch::ccl::ReduceOp;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::array::{Array, Home};
use crate::errors::usage;

/// An operator, and the tensor that its scalar is in.
#[derive(Debug)]
pub(crate) struct Operator {
    pub(crate) op: ReduceOp,
    pub(crate) scalar: Option<Array>,
}

/// An operator: a name, or `("premul_sum", scalar)` with a number or a tensor of one element.
pub(crate) fn operator(given: Option<&Bound<'_, PyAny>>, home: Home) -> PyResult<Operator> {
    let Some(given) = given else { return Ok(Operator { op: ReduceOp::Sum, scalar: None }) };
    let (name, scalar) = match given.extract::<(String, Bound<'_, PyAny>)>() {
        Ok((name, scalar)) => (name, Some(scalar)),
        Err(_) => (given.extract::<String>()?, None),
    };
    let name = if name == "prod" { "product" } else { &name };
    let all = ReduceOp::all(1.0);
    let found = all.into_iter().find(|op| op.name() == name);
    match (found, scalar) {
        (Some(ReduceOp::PreMulSum(_)), None) => {
            Err(usage("premul_sum needs its scalar: op=(\"premul_sum\", scalar)"))
        }
        (Some(ReduceOp::PreMulSum(_)), Some(scalar)) => premul_sum(&scalar, home),
        (Some(op), None) => Ok(Operator { op, scalar: None }),
        (Some(op), Some(_)) => Err(usage(format!("the operator {} takes no scalar", op.name()))),
        (None, _) => {
            let names = all.map(ReduceOp::name).join(", ");
            Err(usage(format!("unknown operator {name:?}; there are {names}")))
        }
    }
}

fn premul_sum(scalar: &Bound<'_, PyAny>, home: Home) -> PyResult<Operator> {
    // Tensors convert to numbers too, but that waits for the device. NumPy's scalars have no `__dlpack__`.
    let is_tensor = scalar.is_instance_of::<PyTuple>() || scalar.hasattr("__dlpack__")?;
    if !is_tensor {
        return Ok(Operator { op: ReduceOp::PreMulSum(scalar.extract()?), scalar: None });
    }
    let scalar = Array::new("the scalar of premul_sum", scalar, home)?;
    if scalar.count() != 1 {
        return Err(usage(format!("the scalar of premul_sum has {} elements; 1 is allowed", scalar.count())));
    }
    // SAFETY: `Communicator::launch` keeps the tensor until the work is over.
    let op = ReduceOp::PreMulSumAt(unsafe { scalar.scalar() });
    Ok(Operator { op, scalar: Some(scalar) })
}
