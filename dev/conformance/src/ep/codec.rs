//! A codec alone, on the device.

use anabranch_ep::kernels::HEADERS;
use anabranch_ep::{CombineCodec, DataType};
use anabranch_hip_jit::{DevicePointer, KernelSpec, device_struct, kernel_unit};

device_struct! {
    /// Arguments of `anabranch_ep_conformance_codec`.
    pub struct ConformanceCodecArgs {
        /// `[row_count][hidden]` elements.
        pub rows: DevicePointer<u8>,
        /// `[row_count][wire_bytes]`, written.
        pub wire: DevicePointer<u8>,
        /// Rows.
        pub row_count: u32,
        /// Elements of a row.
        pub hidden: u32,
        /// Bytes between two encoded rows.
        pub wire_bytes: u32,
        /// Zero.
        pub reserved: u32,
    }
}

kernel_unit! {
    /// Encodes rows; parameters `EP_ELEMENT` and `EP_CODEC`.
    static CODEC_UNIT: "ep_conformance_codec", include_str!("../../kernels/ep_codec.hip"), &[HEADERS];
    /// Encodes rows of one type with a codec.
    pub const CODEC: Kernel<ConformanceCodecArgs> = "anabranch_ep_conformance_codec";
}

/// The kernel for rows of a type and a codec that is not [`CombineCodec::None`].
pub fn codec(element: DataType, codec: CombineCodec) -> KernelSpec {
    KernelSpec::new(&CODEC_UNIT)
        .with("EP_ELEMENT", element.device_name())
        .with("EP_CODEC", codec.device_name())
}
