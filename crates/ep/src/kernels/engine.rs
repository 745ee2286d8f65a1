//! The kernels of plans whose rows are moved by copy engines.

use anabranch_hip_jit::{DeviceStruct as _, Header, KernelSpec, KernelUnit, PRELUDE};
use anabranch_shmem::device_api::DEVICE_HEADERS;

use super::{
    CODEC_HEADERS, COMBINE_HEADERS, DISPATCH_HEADERS, FLAG_HEADERS, HEADERS, MASK_HEADERS, TOKEN_HEADERS,
    cast_of, of_element, tiled,
};
use crate::args::{CombineArgs, CombineEngineArgs, DispatchArgs, DispatchEngineArgs};
use crate::cast::DispatchCast;
use crate::data_type::DataType;

const ENGINE_HEADERS: &[Header] =
    &[Header { name: "ep/engine.h", text: include_str!("../../kernels/engine.h") }];

/// Dispatch by copy engines; parameters `EP_ENGINE` and `SHMEM_ENGINES`, and those of [`DISPATCH`](super::DISPATCH) but `EP_MASK`.
pub static DISPATCH_ENGINE: KernelUnit = KernelUnit {
    name: "ep_dispatch_engine",
    source: include_str!("../../kernels/dispatch_engine.hip"),
    headers: &[
        PRELUDE,
        HEADERS,
        TOKEN_HEADERS,
        MASK_HEADERS,
        DISPATCH_HEADERS,
        CODEC_HEADERS,
        ENGINE_HEADERS,
        DEVICE_HEADERS,
    ],
    entries: &[
        "anabranch_ep_dispatch_engine_send",
        "anabranch_ep_dispatch_engine_flag",
        "anabranch_ep_dispatch_engine_drain",
        "anabranch_ep_dispatch_engine_recv",
    ],
    layouts: waiting_layouts![DispatchArgs, DispatchEngineArgs],
};

/// Combine by copy engines; parameters `EP_ENGINE` and `SHMEM_ENGINES`, and those of [`COMBINE`](super::COMBINE) but `EP_MASK` and
/// `EP_COMBINE_WEIGHTS`.
pub static COMBINE_ENGINE: KernelUnit = KernelUnit {
    name: "ep_combine_engine",
    source: include_str!("../../kernels/combine_engine.hip"),
    headers: &[
        PRELUDE,
        HEADERS,
        TOKEN_HEADERS,
        MASK_HEADERS,
        FLAG_HEADERS,
        COMBINE_HEADERS,
        ENGINE_HEADERS,
        DEVICE_HEADERS,
    ],
    entries: &[
        "anabranch_ep_combine_engine_send",
        "anabranch_ep_combine_engine_flag",
        "anabranch_ep_combine_engine_recv",
    ],
    layouts: waiting_layouts![CombineArgs, CombineEngineArgs],
};

/// The dispatch by copy engines, of rows as they are or cast.
pub fn dispatch_engine(from: DataType, cast: DispatchCast) -> KernelSpec {
    cast_of(with_engines(&DISPATCH_ENGINE), from, cast)
}

/// The combine by copy engines, of rows of a type.
pub fn combine_engine(element: DataType) -> KernelSpec {
    of_element(with_engines(&COMBINE_ENGINE), element)
}

fn with_engines(unit: &'static KernelUnit) -> KernelSpec {
    tiled(unit).with("EP_ENGINE", 1).with("SHMEM_ENGINES", 1)
}
