//! Collectives over a group, with torch.distributed's semantics.

mod data_type;
pub mod device_api;
mod element;
mod error;
pub mod float8;
pub mod oracle;
mod reduce;

pub use data_type::{DataType, UnknownDataType};
pub use element::Element;
pub use error::{Error, Result};
pub use reduce::{
    Avg, BitAnd, BitOr, BitXor, Max, Min, PreMulSum, Product, ReduceOp, ReduceOperator, Sum, UnknownReduceOp,
};
