//! Element types of collectives as Rust types.

use half::{bf16, f16};

use crate::float8::{F8E4m3, F8E4m3Fnuz, F8E5m2, F8E5m2Fnuz};
use crate::types::DataType;

pub(crate) mod sealed {
    /// Seals [`Element`](super::Element): the kernels know a fixed set of types.
    #[expect(unnameable_types, reason = "that is what seals a trait")]
    pub trait Sealed {}
}

/// A Rust type with the memory layout of a [`DataType`]. Implemented for f32, f64, [`half::f16`], [`half::bf16`], the types of
/// [`float8`](crate::float8), the integers of 8 to 64 bits, and bool. Sealed.
///
/// ```compile_fail,E0277
/// fn element<T: anabranch_ccl::Element>() {}
/// element::<u128>();
/// ```
pub trait Element: sealed::Sealed + Copy + std::fmt::Debug + PartialEq + Send + Sync + 'static {
    /// The data type as a value.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($type:ty = $name:ident),* $(,)?) => {
        $(
            impl sealed::Sealed for $type {}
            impl Element for $type {
                const DATA_TYPE: DataType = DataType::$name;
            }
            const _: () = assert!(size_of::<$type>() == DataType::$name.bytes() as usize);
        )*

        /// The element types of collectives.
        pub const DATA_TYPES: [DataType; 17] = [$(<$type>::DATA_TYPE),*];
    };
}

elements! {
    f32 = F32, f64 = F64, f16 = F16, bf16 = Bf16,
    F8E4m3 = F8E4m3, F8E5m2 = F8E5m2, F8E4m3Fnuz = F8E4m3Fnuz, F8E5m2Fnuz = F8E5m2Fnuz,
    i8 = I8, u8 = U8, i16 = I16, u16 = U16, i32 = I32, u32 = U32, i64 = I64, u64 = U64, bool = Bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_data_type_of_whole_bytes_has_one_rust_type() {
        let whole: Vec<_> = DataType::ALL.into_iter().filter(|data_type| data_type.bits() >= 8).collect();
        assert_eq!(whole, DATA_TYPES);
    }
}
