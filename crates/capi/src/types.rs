//! Element types and operators.

use anabranch::ccl::DataType;

use crate::status::{Failure, Result};

/// An element type.
pub type anabranch_data_type = u32;

/// Not given: only where a function names its default.
pub const ANABRANCH_DEFAULT_TYPE: anabranch_data_type = 0;
/// IEEE single.
pub const ANABRANCH_F32: anabranch_data_type = 1;
/// IEEE double.
pub const ANABRANCH_F64: anabranch_data_type = 2;
/// IEEE half.
pub const ANABRANCH_F16: anabranch_data_type = 3;
/// 16 bits, 8 of exponent.
pub const ANABRANCH_BF16: anabranch_data_type = 4;
/// torch's `float8_e4m3fn`.
pub const ANABRANCH_F8_E4M3: anabranch_data_type = 5;
/// torch's `float8_e5m2`.
pub const ANABRANCH_F8_E5M2: anabranch_data_type = 6;
/// torch's `float8_e4m3fnuz`.
pub const ANABRANCH_F8_E4M3_FNUZ: anabranch_data_type = 7;
/// torch's `float8_e5m2fnuz`.
pub const ANABRANCH_F8_E5M2_FNUZ: anabranch_data_type = 8;
/// Signed, 8 bits.
pub const ANABRANCH_I8: anabranch_data_type = 9;
/// Unsigned, 8 bits.
pub const ANABRANCH_U8: anabranch_data_type = 10;
/// Signed, 16 bits.
pub const ANABRANCH_I16: anabranch_data_type = 11;
/// Unsigned, 16 bits.
pub const ANABRANCH_U16: anabranch_data_type = 12;
/// Signed, 32 bits.
pub const ANABRANCH_I32: anabranch_data_type = 13;
/// Unsigned, 32 bits.
pub const ANABRANCH_U32: anabranch_data_type = 14;
/// Signed, 64 bits.
pub const ANABRANCH_I64: anabranch_data_type = 15;
/// Unsigned, 64 bits.
pub const ANABRANCH_U64: anabranch_data_type = 16;
/// A byte; any value but zero is true.
pub const ANABRANCH_BOOL: anabranch_data_type = 17;
/// 4 bits, two elements in a byte, the first in its low half: rows of dispatch only.
pub const ANABRANCH_F4_E2M1: anabranch_data_type = 18;

const TYPES: [(anabranch_data_type, DataType); 18] = [
    (ANABRANCH_F32, DataType::F32),
    (ANABRANCH_F64, DataType::F64),
    (ANABRANCH_F16, DataType::F16),
    (ANABRANCH_BF16, DataType::Bf16),
    (ANABRANCH_F8_E4M3, DataType::F8E4m3),
    (ANABRANCH_F8_E5M2, DataType::F8E5m2),
    (ANABRANCH_F8_E4M3_FNUZ, DataType::F8E4m3Fnuz),
    (ANABRANCH_F8_E5M2_FNUZ, DataType::F8E5m2Fnuz),
    (ANABRANCH_I8, DataType::I8),
    (ANABRANCH_U8, DataType::U8),
    (ANABRANCH_I16, DataType::I16),
    (ANABRANCH_U16, DataType::U16),
    (ANABRANCH_I32, DataType::I32),
    (ANABRANCH_U32, DataType::U32),
    (ANABRANCH_I64, DataType::I64),
    (ANABRANCH_U64, DataType::U64),
    (ANABRANCH_BOOL, DataType::Bool),
    (ANABRANCH_F4_E2M1, DataType::F4E2m1),
];

/// The element type of a code.
pub(crate) fn data_type(given: anabranch_data_type) -> Result<DataType> {
    let found = TYPES.iter().find(|(code, _)| *code == given);
    found.map(|(_, data_type)| *data_type).ok_or_else(|| {
        let text = format!(
            "data_type is {given}; the codes are {ANABRANCH_F32} (ANABRANCH_F32) to {ANABRANCH_F4_E2M1}"
        );
        Failure::usage(text)
    })
}

/// An operator of reductions: one of the constants, or what `anabranch_premul_sum` made.
pub type anabranch_op = u32;

/// The sum; for `ANABRANCH_BOOL` the disjunction.
pub const ANABRANCH_SUM: anabranch_op = 0;
/// The sum divided by the number of ranks. Of integers rounded towards zero, as in NCCL. Not for `ANABRANCH_BOOL`.
pub const ANABRANCH_AVG: anabranch_op = 1;
/// The product; for `ANABRANCH_BOOL` the conjunction.
pub const ANABRANCH_PRODUCT: anabranch_op = 2;
/// The minimum; NaN where a contribution is NaN.
pub const ANABRANCH_MIN: anabranch_op = 3;
/// The maximum; NaN where a contribution is NaN.
pub const ANABRANCH_MAX: anabranch_op = 4;
/// Bitwise and. Integers and `ANABRANCH_BOOL` only.
pub const ANABRANCH_BIT_AND: anabranch_op = 5;
/// Bitwise or. Integers and `ANABRANCH_BOOL` only.
pub const ANABRANCH_BIT_OR: anabranch_op = 6;
/// Bitwise exclusive or. Integers and `ANABRANCH_BOOL` only.
pub const ANABRANCH_BIT_XOR: anabranch_op = 7;

#[cfg(test)]
mod tests {
    use anabranch::ccl::ReduceOp;

    use super::*;

    #[test]
    fn every_type_has_a_code() {
        assert_eq!(TYPES.map(|(_, data_type)| data_type), DataType::ALL);
        assert!((1..).zip(TYPES).all(|(code, row)| code == row.0));
        assert!(data_type(0).is_err() && data_type(19).unwrap_err().text.contains("19"));
    }

    #[test]
    fn operators_have_the_values_of_torch() {
        let all = [
            ANABRANCH_SUM,
            ANABRANCH_AVG,
            ANABRANCH_PRODUCT,
            ANABRANCH_MIN,
            ANABRANCH_MAX,
            ANABRANCH_BIT_AND,
            ANABRANCH_BIT_OR,
            ANABRANCH_BIT_XOR,
        ];
        for (code, op) in all.into_iter().zip(ReduceOp::all(1.0)) {
            assert_eq!(ReduceOp::from_torch(code, None), Ok(op));
        }
    }
}
