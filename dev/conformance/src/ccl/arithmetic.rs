//! Kernels that put the device functions to the test; used by the tests of this crate and by diagnoses of a machine.

use anabranch_hip_jit::{DevicePointer, KernelSpec, PRELUDE, device_struct, kernel_unit};

use anabranch_ccl::DataType;
use anabranch_ccl::device_api::DEVICE_HEADERS;
use anabranch_ccl::lowered::internode::Reduction;

device_struct! {
    /// Arguments of `anabranch_ccl_conformance_reduce`. Any grid; all of it this rank's own memory.
    pub struct ConformanceReduceArgs {
        /// `[size][stride]`: each rank's contribution, 16-byte aligned.
        pub inputs: DevicePointer<u8>,
        /// `[bytes]`, 16-byte aligned; written.
        pub output: DevicePointer<u8>,
        /// Bytes of a contribution; a multiple of `unit_bytes`.
        pub bytes: u64,
        /// Bytes from one contribution to the next; a multiple of 16.
        pub stride: u64,
        /// [`ReduceOp::scalar_bits`](anabranch_ccl::ReduceOp::scalar_bits).
        pub scalar: u64,
        /// [`ReduceOp::torch_value`](anabranch_ccl::ReduceOp::torch_value).
        pub op: u32,
        /// How many contributions, at least one.
        pub size: u32,
        /// Bytes that a thread handles at once: 1, 2, 4, 8 or 16, and not less than an element. Nothing is done for less.
        pub unit_bytes: u32,
        /// 1: the form that is compiled for plain sums; `op` is not looked at.
        pub sum_only: u32,
    }
}

device_struct! {
    /// Arguments of `anabranch_ccl_conformance_convert`, which does something for floats only. Any grid.
    pub struct ConformanceConvertArgs {
        /// `[count]` values of the accumulation type: f64 for F64, f32 for all others.
        pub values: DevicePointer<u8>,
        /// `[count]` elements: the values, rounded; written.
        pub elements: DevicePointer<u8>,
        /// `[count]` values of the accumulation type: the elements' values; written.
        pub widened: DevicePointer<u8>,
        /// How many values.
        pub count: u64,
    }
}

kernel_unit! {
    /// Reductions and conversions of one element type; parameter `CCL_ELEMENT`.
    pub static REDUCE_UNIT: "conformance_reduce", include_str!("../../kernels/ccl_reduce.hip"), &[PRELUDE, DEVICE_HEADERS], layouts [Reduction];
    /// Reduces the contributions of all ranks element by element.
    pub const REDUCE: Kernel<ConformanceReduceArgs> = "anabranch_ccl_conformance_reduce";
    /// Rounds values to elements, and widens these again.
    pub const CONVERT: Kernel<ConformanceConvertArgs> = "anabranch_ccl_conformance_convert";
}

/// The unit for an element type.
pub fn reduce(data_type: DataType) -> KernelSpec {
    KernelSpec::new(&REDUCE_UNIT).with("CCL_ELEMENT", data_type.device_name())
}

/// The conformance kernels that a prebuild compiles: one of each kind of arithmetic. The tests compile all types.
pub fn kernels() -> Vec<KernelSpec> {
    [DataType::F32, DataType::Bf16, DataType::F8E4m3, DataType::I32, DataType::Bool].map(reduce).into()
}
