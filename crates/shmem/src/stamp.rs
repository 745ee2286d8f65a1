//! The device's time in stream order, by the clock that kernels read.

use anabranch_hip_jit::{DevicePointer, PRELUDE, device_struct, kernel_unit};

device_struct! {
    /// Arguments of `anabranch_shmem_stamp`.
    pub struct StampArgs {
        /// Nanoseconds; the oldest is overwritten.
        pub stamps: DevicePointer<u64>,
        /// How many were taken so far.
        pub count: DevicePointer<u64>,
        /// The stamps that fit.
        pub capacity: u64,
    }
}

kernel_unit! {
    /// Time stamps.
    pub static STAMP_UNIT: "stamp", include_str!("../kernels/stamp.hip"), &[PRELUDE];
    /// Takes one, by one wave.
    pub const STAMP: Kernel<StampArgs> = "anabranch_shmem_stamp";
}
