//! NCCL's names for element types and operators. The numbers are those of `ncclDataType_t` and `ncclRedOp_t` in nccl.h of
//! NCCL 2.32.3 (`nvidia/nccl/include/nccl.h` of the wheel nvidia-nccl-cu13); they are part of NCCL's ABI and have
//! only been added to since 2.10. Always mapped by name: torch's numbers are others.

use core::ffi::c_int;

use super::error::NcclError;
use anabranch_ccl::{DataType, ReduceOp};

/// `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum NcclDataType {
    Int8 = 0,
    Uint8 = 1,
    Int32 = 2,
    Uint32 = 3,
    Int64 = 4,
    Uint64 = 5,
    Float16 = 6,
    Float32 = 7,
    Float64 = 8,
    Bfloat16 = 9,
    /// Since 2.24, as the next.
    Float8e4m3 = 10,
    Float8e5m2 = 11,
}

/// `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum NcclReduceOp {
    Sum = 0,
    Prod = 1,
    Max = 2,
    Min = 3,
    Avg = 4,
}

impl NcclDataType {
    pub(super) fn code(self) -> c_int {
        self as c_int
    }
}

impl NcclReduceOp {
    pub(super) fn code(self) -> c_int {
        self as c_int
    }
}

/// NCCL's type with the same values; `None` for types that NCCL does not know.
fn same_type(data_type: DataType) -> Option<NcclDataType> {
    Some(match data_type {
        DataType::F32 => NcclDataType::Float32,
        DataType::F64 => NcclDataType::Float64,
        DataType::F16 => NcclDataType::Float16,
        DataType::Bf16 => NcclDataType::Bfloat16,
        DataType::F8E4m3 => NcclDataType::Float8e4m3,
        DataType::F8E5m2 => NcclDataType::Float8e5m2,
        DataType::I8 => NcclDataType::Int8,
        DataType::U8 | DataType::Bool => NcclDataType::Uint8,
        DataType::I32 => NcclDataType::Int32,
        DataType::U32 => NcclDataType::Uint32,
        DataType::I64 => NcclDataType::Int64,
        DataType::U64 => NcclDataType::Uint64,
        // F8E4m3Fnuz, F8E5m2Fnuz, I16, U16, and whatever comes later: a test names them all.
        _ => return None,
    })
}

/// The type that elements are moved as, and how many of it make one element: types that NCCL does not know go as bytes.
pub(crate) fn moved_as(data_type: DataType) -> (NcclDataType, u64) {
    match same_type(data_type) {
        Some(same) => (same, 1),
        None => (NcclDataType::Uint8, u64::from(data_type.bytes())),
    }
}

/// The type and operator of a reduction. Sums and products of truth values are `or` and `and`, as in torch, which takes
/// the greatest and the least of 0 and 1 for them (`getNcclReduceOp` in torch's ProcessGroupNCCL.cpp).
///
/// # Errors
/// [`NcclError::Unsupported`].
pub(crate) fn reduced_as(
    data_type: DataType,
    operator: ReduceOp,
) -> Result<(NcclDataType, NcclReduceOp), NcclError> {
    let truth = data_type == DataType::Bool;
    let found = match operator {
        ReduceOp::Sum if truth => Some(NcclReduceOp::Max),
        ReduceOp::Product if truth => Some(NcclReduceOp::Min),
        ReduceOp::Sum => Some(NcclReduceOp::Sum),
        ReduceOp::Avg => Some(NcclReduceOp::Avg),
        ReduceOp::Product => Some(NcclReduceOp::Prod),
        ReduceOp::Min => Some(NcclReduceOp::Min),
        ReduceOp::Max => Some(NcclReduceOp::Max),
        // BitAnd, BitOr, BitXor, and PreMulSum: NCCL makes that one at run time, with its scalar
        // (ncclRedOpCreatePreMulSum), which no comparison has needed. And whatever comes later.
        _ => None,
    };
    same_type(data_type)
        .zip(found)
        .ok_or_else(|| NcclError::Unsupported { operator: operator.name(), data_type: data_type.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_ccl::DATA_TYPES;

    #[test]
    fn every_type_moves_with_all_its_bytes() {
        for data_type in DATA_TYPES {
            let (moved, times) = moved_as(data_type);
            let bytes = match moved {
                NcclDataType::Int8
                | NcclDataType::Uint8
                | NcclDataType::Float8e4m3
                | NcclDataType::Float8e5m2 => 1,
                NcclDataType::Float16 | NcclDataType::Bfloat16 => 2,
                NcclDataType::Int32 | NcclDataType::Uint32 | NcclDataType::Float32 => 4,
                NcclDataType::Int64 | NcclDataType::Uint64 | NcclDataType::Float64 => 8,
            };
            assert_eq!(bytes * times, u64::from(data_type.bytes()), "{data_type}");
        }
        assert_eq!(moved_as(DataType::I16), (NcclDataType::Uint8, 2));
        assert_eq!(moved_as(DataType::Bf16), (NcclDataType::Bfloat16, 1));
    }

    #[test]
    fn operators_are_mapped_by_name() {
        let number = |operator| reduced_as(DataType::Bf16, operator).unwrap().1.code();
        assert_eq!(number(ReduceOp::Sum), 0);
        assert_eq!(number(ReduceOp::Product), 1);
        assert_eq!(number(ReduceOp::Max), 2);
        assert_eq!(number(ReduceOp::Min), 3);
        assert_eq!(number(ReduceOp::Avg), 4);
        assert_eq!(
            reduced_as(DataType::Bool, ReduceOp::Sum).unwrap(),
            (NcclDataType::Uint8, NcclReduceOp::Max)
        );
        assert_eq!(reduced_as(DataType::Bool, ReduceOp::Product).unwrap().1, NcclReduceOp::Min);
    }

    #[test]
    fn every_type_and_operator_is_supported_or_refused() {
        let without: Vec<_> = DATA_TYPES.into_iter().filter(|one| same_type(*one).is_none()).collect();
        assert_eq!(without, [DataType::F8E4m3Fnuz, DataType::F8E5m2Fnuz, DataType::I16, DataType::U16]);
        let with: Vec<_> =
            ReduceOp::all(1.0).into_iter().filter(|op| reduced_as(DataType::F32, *op).is_ok()).collect();
        assert_eq!(with, [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max]);
    }

    #[test]
    fn types_without_nccl_support_are_refused() {
        for (data_type, operator) in [
            (DataType::F8E4m3Fnuz, ReduceOp::Sum),
            (DataType::I16, ReduceOp::Sum),
            (DataType::I32, ReduceOp::BitXor),
            (DataType::F32, ReduceOp::PreMulSum(0.5)),
        ] {
            let refused = reduced_as(data_type, operator).unwrap_err();
            let words = refused.to_string();
            assert!(words.contains(&data_type.to_string()) && words.contains(operator.name()), "{words}");
        }
    }
}
