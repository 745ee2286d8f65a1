//! Types that all modules share: names of collectives, algorithms, types and operators, and errors.

mod algorithm;
mod collective;
pub(crate) mod element;
mod error;
mod mismatch;
mod reduce;

pub use algorithm::Algorithm;
pub use anabranch_elements::data_type::{DataType, UnsupportedDataType};
pub use collective::{Collective, LocationKind, Shape};
pub use element::{DATA_TYPES, Element};
pub use error::{Error, Result};
pub use mismatch::{Difference, ListMismatch, Mismatch, SplitMismatch};
pub use reduce::{
    Avg, BitAnd, BitOr, BitXor, DeviceScalar, Max, Min, PreMulSum, Product, ReduceOp, ReduceOperator, Sum,
    UnknownReduceOp,
};
