//! The kernel units of this crate: the only way to obtain their kernels.

use anabranch_hip_jit::{DeviceStruct, Header, KernelSpec, KernelUnit, PRELUDE};
use anabranch_shmem::TeamView;

use crate::args::{
    CombineArgs, CombinePushArgs, ConformanceCodecArgs, DispatchArgs, ReferenceExpertArgs, SlotState,
};
use crate::codec::CombineCodec;
use crate::data_type::DataType;
use crate::plan::TILE;

const HEADERS: &[Header] = &[Header { name: "ep/routing.h", text: include_str!("../kernels/routing.h") }];
const DISPATCH_HEADERS: &[Header] =
    &[Header { name: "ep/dispatch_rows.h", text: include_str!("../kernels/dispatch_rows.h") }];
const COMBINE_HEADERS: &[Header] =
    &[Header { name: "ep/combine_flags.h", text: include_str!("../kernels/combine_flags.h") }];
const CODEC_HEADERS: &[Header] = &[Header { name: "ep/codec.h", text: include_str!("../kernels/codec.h") }];

/// Slotted dispatch; parameter `EP_TILE`.
pub static DISPATCH: KernelUnit = KernelUnit {
    name: "ep_dispatch",
    source: include_str!("../kernels/dispatch.hip"),
    headers: &[PRELUDE, HEADERS, DISPATCH_HEADERS],
    entries: &["anabranch_ep_dispatch"],
    layouts: &[TeamView::c_declaration, SlotState::c_declaration, DispatchArgs::c_declaration],
};

/// Slotted combine that pulls; parameters `EP_TILE` and `EP_ELEMENT`.
pub static COMBINE: KernelUnit = KernelUnit {
    name: "ep_combine",
    source: include_str!("../kernels/combine.hip"),
    headers: &[PRELUDE, HEADERS, COMBINE_HEADERS],
    entries: &["anabranch_ep_combine"],
    layouts: &[TeamView::c_declaration, SlotState::c_declaration, CombineArgs::c_declaration],
};

/// Combine that pushes; parameters `EP_TILE`, `EP_ELEMENT` and `EP_CODEC`.
pub static COMBINE_PUSH: KernelUnit = KernelUnit {
    name: "ep_combine_push",
    source: include_str!("../kernels/combine_push.hip"),
    headers: &[PRELUDE, HEADERS, COMBINE_HEADERS, CODEC_HEADERS],
    entries: &["anabranch_ep_combine_push"],
    layouts: &[TeamView::c_declaration, SlotState::c_declaration, CombinePushArgs::c_declaration],
};

/// The stand-in expert; parameters `EP_TILE`, `EP_INPUT` and `EP_ELEMENT`.
pub static REFERENCE_EXPERT: KernelUnit = KernelUnit {
    name: "ep_reference_expert",
    source: include_str!("../kernels/reference_expert.hip"),
    headers: &[PRELUDE, HEADERS],
    entries: &["anabranch_ep_reference_expert"],
    layouts: &[ReferenceExpertArgs::c_declaration],
};

/// A codec alone, for tests; parameters `EP_ELEMENT` and `EP_CODEC`.
pub static CONFORMANCE_CODEC: KernelUnit = KernelUnit {
    name: "ep_conformance_codec",
    source: include_str!("../kernels/conformance_codec.hip"),
    headers: &[PRELUDE, CODEC_HEADERS],
    entries: &["anabranch_ep_conformance_codec"],
    layouts: &[ConformanceCodecArgs::c_declaration],
};

/// The dispatch kernel: payload is bytes, so one object serves every type.
pub fn dispatch() -> KernelSpec {
    KernelSpec::new(&DISPATCH).with("EP_TILE", TILE)
}

/// The combine kernel that pulls rows of a type.
pub fn combine(element: DataType) -> KernelSpec {
    KernelSpec::new(&COMBINE).with("EP_TILE", TILE).with("EP_ELEMENT", element.device_name())
}

/// The combine kernel that pushes rows of a type in the form of a codec.
pub fn combine_push(element: DataType, codec: CombineCodec) -> KernelSpec {
    KernelSpec::new(&COMBINE_PUSH)
        .with("EP_TILE", TILE)
        .with("EP_ELEMENT", element.device_name())
        .with("EP_CODEC", codec.device_name())
}

/// The stand-in expert from one type to another.
pub fn reference_expert(input: DataType, output: DataType) -> KernelSpec {
    KernelSpec::new(&REFERENCE_EXPERT)
        .with("EP_TILE", TILE)
        .with("EP_INPUT", input.device_name())
        .with("EP_ELEMENT", output.device_name())
}

/// The test of a codec that is not [`CombineCodec::None`], for rows of a type. No operation launches it.
pub fn conformance_codec(element: DataType, codec: CombineCodec) -> KernelSpec {
    KernelSpec::new(&CONFORMANCE_CODEC)
        .with("EP_ELEMENT", element.device_name())
        .with("EP_CODEC", codec.device_name())
}

/// Every kernel of this crate in every variant that operations launch: what a prebuild compiles.
pub fn kernels() -> Vec<KernelSpec> {
    let mut all = vec![dispatch()];
    for output in DataType::COMBINED {
        all.push(combine(output));
        all.extend(CombineCodec::ALL.map(|codec| combine_push(output, codec)));
        all.extend(DataType::ALL.map(|input| reference_expert(input, output)));
    }
    all
}
