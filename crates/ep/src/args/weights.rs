//! The struct of the kernel that fills the weight window.

use anabranch_hip_jit::{DevicePointer, device_struct};

use super::ReceivedView;

device_struct! {
    /// Arguments of `anabranch_ep_fill_weights`.
    pub struct FillWeightsArgs {
        /// The dispatch; of it the meta window, offsets and stride are read.
        pub received: ReceivedView,
        /// `[rows][top_k]`; written.
        pub window: DevicePointer<f32>,
    }
}
