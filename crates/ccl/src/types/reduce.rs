//! Operators of reductions: as types, which exist only for the elements for which they are defined, and as values for bindings.

use std::fmt;

use anabranch_hip::DeviceAddress;
use half::{bf16, f16};

use crate::float8::{F8E4m3, F8E4m3Fnuz, F8E5m2, F8E5m2Fnuz};
use crate::types::element::sealed;
use crate::types::{DataType, Element, Error, Result};

/// An operator of reductions.
///
/// Contributions are reduced in the order of group ranks. f16, bf16, f32 and the 8-bit floats are accumulated in f32, f64 in f64, and
/// rounded once at the end, to nearest even. Integers wrap. Bool is a byte, true unless it is zero; results are 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReduceOp {
    /// The sum; for Bool the disjunction, as in torch.
    Sum,
    /// The sum divided by the number of ranks, in the accumulation type. Not for Bool. Of integers, the sum wraps, and the quotient is
    /// rounded towards zero, as in NCCL (`divide` in its `reduce_kernel.h`).
    Avg,
    /// The product; for Bool the conjunction.
    Product,
    /// The minimum. For floats: NaN if any contribution is NaN, and -0 is less than +0.
    Min,
    /// The maximum; otherwise as [`ReduceOp::Min`].
    Max,
    /// Bitwise and. Integers and Bool only.
    BitAnd,
    /// Bitwise or. Integers and Bool only.
    BitOr,
    /// Bitwise exclusive or. Integers and Bool only.
    BitXor,
    /// Each contribution times this scalar (both in the accumulation type, the product rounded to it), then the sum. Not for Bool. For
    /// integers a whole number of magnitude below 2^53, and products wrap.
    PreMulSum(f64),
    /// [`ReduceOp::PreMulSum`] with a scalar in device memory, which the kernel reads: NCCL's `ncclScalarDevice`. The same bits as with the
    /// same value on the host.
    PreMulSumAt(DeviceScalar),
}

/// Whole numbers of smaller magnitude are exact as f64, and no other number rounds to one of them.
const WHOLE: f64 = (1_u64 << 53) as f64;

/// A scalar in device memory of this rank, of the type of the tensors of a call. Earlier work of the call's stream may write it. All members
/// give equal values; they are not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceScalar {
    address: DeviceAddress,
    data_type: DataType,
}

impl DeviceScalar {
    /// The scalar at `address`, a multiple of the element size; calls check that, and the type.
    ///
    /// # Safety
    /// The element must be device memory of this rank, and must stay allocated and free of conflicting accesses until every launch of a call
    /// with the operator is complete.
    pub const unsafe fn at(address: DeviceAddress, data_type: DataType) -> Self {
        Self { address, data_type }
    }

    /// Its address.
    pub const fn address(self) -> DeviceAddress {
        self.address
    }

    /// Its type.
    pub const fn data_type(self) -> DataType {
        self.data_type
    }
}

/// The value or name is no operator, or the scalar does not match the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownReduceOp {
    /// No operator of torch has this number.
    #[error("{given} is no ReduceOp of torch.distributed; they are {}", torch_values())]
    Value {
        /// The number given.
        given: u32,
    },
    /// `PREMUL_SUM` needs a scalar.
    #[error("premul_sum (8) needs its scalar, and none was given")]
    NoScalar,
    /// The operator takes no scalar.
    #[error("{op} takes no scalar, but {scalar} was given")]
    Scalar {
        /// The operator's name.
        op: &'static str,
        /// The scalar, as text.
        scalar: String,
    },
}

fn torch_values() -> String {
    let words = ReduceOp::all(1.0).map(|op| format!("{} {}", op.torch_value(), op.name()));
    words.join(", ")
}

impl ReduceOp {
    /// Every operator, in the order of [`ReduceOp::torch_value`]; the last with this scalar.
    pub const fn all(scalar: f64) -> [Self; 9] {
        [
            Self::Sum,
            Self::Avg,
            Self::Product,
            Self::Min,
            Self::Max,
            Self::BitAnd,
            Self::BitOr,
            Self::BitXor,
            Self::PreMulSum(scalar),
        ]
    }

    /// The value in `c10d::ReduceOp::RedOpType` of torch (torch/csrc/distributed/c10d/Types.hpp). The kernels use it, too.
    pub const fn torch_value(self) -> u32 {
        match self {
            Self::Sum => 0,
            Self::Avg => 1,
            Self::Product => 2,
            Self::Min => 3,
            Self::Max => 4,
            Self::BitAnd => 5,
            Self::BitOr => 6,
            Self::BitXor => 7,
            Self::PreMulSum(_) | Self::PreMulSumAt(_) => 8,
        }
    }

    /// The operator with this value in torch. `scalar` is required with `PREMUL_SUM` (8) and refused with all others.
    ///
    /// # Errors
    /// [`UnknownReduceOp`].
    pub fn from_torch(value: u32, scalar: Option<f64>) -> Result<Self, UnknownReduceOp> {
        // Without a scalar, the value names the operator only.
        let all = Self::all(scalar.unwrap_or(0.0));
        let op = *all.get(value as usize).ok_or(UnknownReduceOp::Value { given: value })?;
        match (op, scalar) {
            (Self::PreMulSum(_), None) => Err(UnknownReduceOp::NoScalar),
            (Self::PreMulSum(_), Some(_)) | (_, None) => Ok(op),
            (_, Some(scalar)) => Err(UnknownReduceOp::Scalar { op: op.name(), scalar: scalar.to_string() }),
        }
    }

    /// Name as in torch, in lower case: `sum`, `avg`, `product`, `min`, `max`, `band`, `bor`, `bxor`, `premul_sum`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Product => "product",
            Self::Min => "min",
            Self::Max => "max",
            Self::BitAnd => "band",
            Self::BitOr => "bor",
            Self::BitXor => "bxor",
            Self::PreMulSum(_) | Self::PreMulSumAt(_) => "premul_sum",
        }
    }

    /// Whether the operator is defined for this type.
    pub const fn supports(self, data_type: DataType) -> bool {
        match self {
            Self::Sum | Self::Product | Self::Min | Self::Max => true,
            Self::PreMulSum(scalar) if !data_type.is_float() => {
                !matches!(data_type, DataType::Bool)
                    && scalar.abs() < WHOLE
                    && scalar as i64 as f64 - scalar == 0.0
            }
            Self::Avg | Self::PreMulSum(_) | Self::PreMulSumAt(_) => !matches!(data_type, DataType::Bool),
            Self::BitAnd | Self::BitOr | Self::BitXor => !data_type.is_float(),
        }
    }

    /// Returns an error if the operator is not defined for the type.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn check(self, data_type: DataType) -> Result<()> {
        if self.supports(data_type) {
            return Ok(());
        }
        let name = |op: &Self| match op {
            Self::PreMulSum(_) if !data_type.is_float() => {
                "premul_sum of a whole number of magnitude below 2^53"
            }
            op => op.name(),
        };
        let allowed = Self::all(0.0).iter().filter(|op| op.supports(data_type)).map(name).collect();
        Err(Error::Unsupported { op: self, data_type, allowed })
    }

    /// The scalar in device memory, if the operator has one.
    pub const fn device_scalar(self) -> Option<DeviceScalar> {
        match self {
            Self::PreMulSumAt(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// The bits of the scalar in the accumulation type of `data_type`, as in `Reduction::scalar`: an f32 is in the lower half, an integer
    /// has 64 bits. 0 for operators without a scalar on the host.
    pub fn scalar_bits(self, data_type: DataType) -> u64 {
        match (self, data_type) {
            (Self::PreMulSum(scalar), DataType::F64) => scalar.to_bits(),
            (Self::PreMulSum(scalar), _) if data_type.is_float() => u64::from((scalar as f32).to_bits()),
            (Self::PreMulSum(scalar), _) => (scalar as i64).cast_unsigned(),
            _ => 0,
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PreMulSum(scalar) => write!(f, "{}({scalar})", self.name()),
            Self::PreMulSumAt(scalar) => write!(f, "{}(at {})", self.name(), scalar.address),
            _ => f.pad(self.name()),
        }
    }
}

/// An operator of reductions that is defined for elements of type `T`.
///
/// Bitwise operators are not defined for floats:
///
/// ```compile_fail,E0277
/// use anabranch_ccl::{BitAnd, ReduceOperator};
/// fn operator<T: anabranch_ccl::Element>(_: impl ReduceOperator<T>) {}
/// operator::<f32>(BitAnd);
/// ```
///
/// Truth values have no average and are not scaled:
///
/// ```compile_fail,E0277
/// use anabranch_ccl::{Avg, ReduceOperator};
/// fn operator<T: anabranch_ccl::Element>(_: impl ReduceOperator<T>) {}
/// operator::<bool>(Avg);
/// ```
///
/// All other combinations are defined:
///
/// ```
/// use anabranch_ccl::{Avg, BitAnd, PreMulSum, ReduceOp, ReduceOperator, Sum};
/// fn operator<T: anabranch_ccl::Element>(operator: impl ReduceOperator<T>) -> ReduceOp {
///     operator.reduce_op()
/// }
/// assert_eq!(operator::<bool>(Sum), ReduceOp::Sum);
/// assert_eq!(operator::<f32>(Avg), ReduceOp::Avg);
/// assert_eq!(operator::<i32>(BitAnd), ReduceOp::BitAnd);
/// assert_eq!(operator(PreMulSum(0.5f64)), ReduceOp::PreMulSum(0.5));
/// ```
pub trait ReduceOperator<T: Element>: sealed::Sealed + Copy + fmt::Debug + Send + Sync + 'static {
    /// The operator as a value.
    fn reduce_op(&self) -> ReduceOp;
}

/// Each contribution times a scalar, then the sum: [`ReduceOp::PreMulSum`], or [`ReduceOp::PreMulSumAt`] of a [`DeviceScalar`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PreMulSum<T>(
    /// The scalar; converted to the accumulation type. Integers of magnitude 2^53 and above are refused by calls.
    pub T,
);

impl<T> sealed::Sealed for PreMulSum<T> {}

macro_rules! operators {
    ($($name:ident => [$($type:ty),* $(,)?];)*) => { $(
        #[doc = concat!("[`ReduceOp::", stringify!($name), "`].")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name;

        impl sealed::Sealed for $name {}
        $(
            impl ReduceOperator<$type> for $name {
                fn reduce_op(&self) -> ReduceOp {
                    ReduceOp::$name
                }
            }
        )*

        #[cfg(test)]
        impl $name {
            const TYPES: &[DataType] = &[$(<$type>::DATA_TYPE),*];
        }
    )* };
}

macro_rules! scaled {
    ($($type:ty: $convert:expr),* $(,)?) => {
        $(
            impl ReduceOperator<$type> for PreMulSum<$type> {
                fn reduce_op(&self) -> ReduceOp {
                    let convert: fn($type) -> f64 = $convert;
                    ReduceOp::PreMulSum(convert(self.0))
                }
            }

            impl ReduceOperator<$type> for PreMulSum<DeviceScalar> {
                fn reduce_op(&self) -> ReduceOp {
                    ReduceOp::PreMulSumAt(self.0)
                }
            }
        )*

        #[cfg(test)]
        const SCALED: &[DataType] = &[$(<$type>::DATA_TYPE),*];
    };
}

operators! {
    Sum => [f32, f64, f16, bf16, F8E4m3, F8E5m2, F8E4m3Fnuz, F8E5m2Fnuz, i8, u8, i16, u16, i32, u32, i64, u64, bool];
    Product => [f32, f64, f16, bf16, F8E4m3, F8E5m2, F8E4m3Fnuz, F8E5m2Fnuz, i8, u8, i16, u16, i32, u32, i64, u64, bool];
    Min => [f32, f64, f16, bf16, F8E4m3, F8E5m2, F8E4m3Fnuz, F8E5m2Fnuz, i8, u8, i16, u16, i32, u32, i64, u64, bool];
    Max => [f32, f64, f16, bf16, F8E4m3, F8E5m2, F8E4m3Fnuz, F8E5m2Fnuz, i8, u8, i16, u16, i32, u32, i64, u64, bool];
    Avg => [f32, f64, f16, bf16, F8E4m3, F8E5m2, F8E4m3Fnuz, F8E5m2Fnuz, i8, u8, i16, u16, i32, u32, i64, u64];
    BitAnd => [i8, u8, i16, u16, i32, u32, i64, u64, bool];
    BitOr => [i8, u8, i16, u16, i32, u32, i64, u64, bool];
    BitXor => [i8, u8, i16, u16, i32, u32, i64, u64, bool];
}

scaled! {
    f32: f64::from, f64: |scalar| scalar, f16: f64::from, bf16: f64::from,
    F8E4m3: |scalar| scalar.to_f32().into(), F8E5m2: |scalar| scalar.to_f32().into(),
    F8E4m3Fnuz: |scalar| scalar.to_f32().into(), F8E5m2Fnuz: |scalar| scalar.to_f32().into(),
    i8: f64::from, u8: f64::from, i16: f64::from, u16: f64::from, i32: f64::from, u32: f64::from,
    i64: |scalar| scalar as f64, u64: |scalar| scalar as f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DATA_TYPES;

    #[test]
    fn operator_types_exist_exactly_where_values_are_supported() {
        for (op, types) in [
            (ReduceOp::Sum, Sum::TYPES),
            (ReduceOp::Avg, Avg::TYPES),
            (ReduceOp::Product, Product::TYPES),
            (ReduceOp::Min, Min::TYPES),
            (ReduceOp::Max, Max::TYPES),
            (ReduceOp::BitAnd, BitAnd::TYPES),
            (ReduceOp::BitOr, BitOr::TYPES),
            (ReduceOp::BitXor, BitXor::TYPES),
            (ReduceOp::PreMulSum(2.0), SCALED),
        ] {
            for data_type in DATA_TYPES {
                assert_eq!(types.contains(&data_type), op.supports(data_type), "{op} of {data_type}");
                assert_eq!(op.check(data_type).is_ok(), op.supports(data_type), "{op} of {data_type}");
            }
        }
    }

    #[test]
    fn torch_values_map_to_their_operators() {
        for (number, op) in ReduceOp::all(0.5).into_iter().enumerate() {
            assert_eq!(op.torch_value(), number as u32);
            let scalar = matches!(op, ReduceOp::PreMulSum(_)).then_some(0.5);
            assert_eq!(ReduceOp::from_torch(number as u32, scalar), Ok(op));
        }
        assert_eq!(ReduceOp::from_torch(9, None), Err(UnknownReduceOp::Value { given: 9 }));
        assert_eq!(ReduceOp::from_torch(8, None), Err(UnknownReduceOp::NoScalar));
        let refused = ReduceOp::from_torch(1, Some(0.25)).unwrap_err();
        assert_eq!(refused.to_string(), "avg takes no scalar, but 0.25 was given");
        let unknown = UnknownReduceOp::Value { given: 9 }.to_string();
        assert!(unknown.contains("0 sum, 1 avg") && unknown.ends_with("8 premul_sum"), "{unknown}");
    }

    #[test]
    fn unsupported_operator_lists_the_allowed_ones() {
        let refused = ReduceOp::Avg.check(DataType::Bool).unwrap_err().to_string();
        assert_eq!(
            refused,
            "avg is not defined for bool; allowed are sum, product, min, max, band, bor, bxor"
        );
        let refused = ReduceOp::PreMulSum(0.5).check(DataType::I32).unwrap_err().to_string();
        assert_eq!(
            refused,
            "premul_sum(0.5) is not defined for i32; allowed are sum, avg, product, min, max, band, bor, bxor, premul_sum of a whole \
             number of magnitude below 2^53"
        );
        for inexact in [f64::NAN, f64::INFINITY, WHOLE, -WHOLE, 1e300] {
            assert!(!ReduceOp::PreMulSum(inexact).supports(DataType::U64), "{inexact}");
        }
        assert!(ReduceOp::PreMulSum(1.0 - WHOLE).supports(DataType::I64));
        let refused = ReduceOp::BitXor.check(DataType::Bf16).unwrap_err().to_string();
        assert_eq!(
            refused,
            "bxor is not defined for bf16; allowed are sum, avg, product, min, max, premul_sum"
        );
    }

    #[test]
    fn scalars_are_in_the_accumulation_type() {
        let third = ReduceOp::PreMulSum(1.0 / 3.0);
        assert_eq!(third.scalar_bits(DataType::F64), (1.0f64 / 3.0).to_bits());
        assert_eq!(third.scalar_bits(DataType::F16), u64::from((1.0f32 / 3.0).to_bits()));
        assert_eq!(ReduceOp::Sum.scalar_bits(DataType::F32), 0);
        assert_eq!(ReduceOp::PreMulSum(-3.0).scalar_bits(DataType::I8), u64::MAX - 2);
        assert_eq!(PreMulSum(F8E4m3::from_f32(1.5)).reduce_op(), ReduceOp::PreMulSum(1.5));
        assert_eq!(ReduceOp::PreMulSum(1.5).to_string(), "premul_sum(1.5)");
    }
}
