//! The kernel units of this crate: the only way to obtain their kernels.

use anabranch_hip_jit::{DeviceStruct, Header, KernelSpec, KernelUnit, PRELUDE};
use anabranch_shmem::TeamView;

use crate::args::{
    CombineArgs, CombinePushArgs, ConformanceCodecArgs, CountArgs, DispatchAgainArgs, DispatchArgs,
    FillWeightsArgs, KeepRoutingArgs, KeptRouting, MaskView, PlacementView, RankMask, ReferenceExpertArgs,
    RoutingHead, SlotState,
};
use crate::cast::DispatchCast;
use crate::codec::{CombineCodec, Fp8Format};
use crate::data_type::DataType;
use crate::expert_major::args::{
    ExpertContractArgs, ExpertCountArgs, ExpertExpandArgs, ExpertRowSource, ExpertSumArgs, ReceivedView,
    ReferenceExpertMajorArgs,
};
use crate::plan::TILE;

/// Layouts of a unit whose kernels wait for peers: those that each of them has, then its own.
macro_rules! waiting_layouts {
    ($($own:ident),+) => {
        &[
            $crate::args::PlacementView::c_declaration,
            anabranch_shmem::TeamView::c_declaration,
            $crate::args::SlotState::c_declaration,
            $crate::args::RankMask::c_declaration,
            $crate::args::MaskView::c_declaration,
            $($own::c_declaration,)+
        ]
    };
}

mod engine;
mod nodes;

pub use engine::{COMBINE_ENGINE, DISPATCH_ENGINE, combine_engine, dispatch_engine};
pub use nodes::{
    COMBINE_NODES, DISPATCH_NODES, DISPATCH_RELAY, combine_nodes, dispatch_nodes, dispatch_relay,
};

const HEADERS: &[Header] = &[Header { name: "ep/routing.h", text: include_str!("../kernels/routing.h") }];
const TOKEN_HEADERS: &[Header] =
    &[Header { name: "ep/token_count.h", text: include_str!("../kernels/token_count.h") }];
const DISPATCH_HEADERS: &[Header] = &[
    Header { name: "ep/dispatch_grid.h", text: include_str!("../kernels/dispatch_grid.h") },
    Header { name: "ep/dispatch_local.h", text: include_str!("../kernels/dispatch_local.h") },
    Header { name: "ep/dispatch_rows.h", text: include_str!("../kernels/dispatch_rows.h") },
    Header { name: "ep/dispatch_cast.h", text: include_str!("../kernels/dispatch_cast.h") },
    Header { name: "ep/dispatch_nothing.h", text: include_str!("../kernels/dispatch_nothing.h") },
    Header { name: "ep/relay_rows.h", text: include_str!("../kernels/relay_rows.h") },
];
const MASK_HEADERS: &[Header] = &[Header { name: "ep/mask.h", text: include_str!("../kernels/mask.h") }];
const FLAG_HEADERS: &[Header] =
    &[Header { name: "ep/combine_flags.h", text: include_str!("../kernels/combine_flags.h") }];
const CODEC_HEADERS: &[Header] = &[Header { name: "ep/codec.h", text: include_str!("../kernels/codec.h") }];

const COMBINE_HEADERS: &[Header] =
    &[Header { name: "ep/combine_rows.h", text: include_str!("../kernels/combine_rows.h") }];

const WEIGHT_HEADERS: &[Header] =
    &[Header { name: "ep/combine_weights.h", text: include_str!("../kernels/combine_weights.h") }];

/// The counts before a compact dispatch; parameter `EP_TILE`, and `EP_DEVICE_COUNT` as [`DISPATCH`] has it.
pub static COUNT: KernelUnit = KernelUnit {
    name: "ep_count",
    source: include_str!("../kernels/count.hip"),
    headers: &[PRELUDE, HEADERS, TOKEN_HEADERS],
    entries: &["anabranch_ep_count"],
    layouts: &[
        PlacementView::c_declaration,
        TeamView::c_declaration,
        SlotState::c_declaration,
        CountArgs::c_declaration,
    ],
};

const ELEMENT_HEADERS: &[Header] =
    &[Header { name: "ep/element_rows.h", text: include_str!("../kernels/element_rows.h") }];
const RECEIVED_HEADERS: &[Header] =
    &[Header { name: "ep/received_rows.h", text: include_str!("../kernels/received_rows.h") }];
const EXPAND_HEADERS: &[Header] =
    &[Header { name: "ep/expand_rows.h", text: include_str!("../kernels/expand_rows.h") }];

/// Dispatch; parameter `EP_TILE`; `EP_CAST` and `EP_CAST_FROM` where it casts; `EP_DEVICE_COUNT` where the number of tokens may be in
/// device memory; `EP_MASK` where ranks may be masked.
pub static DISPATCH: KernelUnit = KernelUnit {
    name: "ep_dispatch",
    source: include_str!("../kernels/dispatch.hip"),
    headers: &[PRELUDE, HEADERS, TOKEN_HEADERS, MASK_HEADERS, DISPATCH_HEADERS, CODEC_HEADERS],
    entries: &["anabranch_ep_dispatch", "anabranch_ep_dispatch_send", "anabranch_ep_dispatch_recv"],
    layouts: waiting_layouts![DispatchArgs],
};

/// What a dispatch leaves, kept for later ones; parameter `EP_TILE`.
pub static KEEP_ROUTING: KernelUnit = KernelUnit {
    name: "ep_keep_routing",
    source: include_str!("../kernels/keep_routing.hip"),
    headers: &[PRELUDE, HEADERS],
    entries: &["anabranch_ep_keep_routing"],
    layouts: &[
        PlacementView::c_declaration,
        TeamView::c_declaration,
        SlotState::c_declaration,
        RoutingHead::c_declaration,
        KeptRouting::c_declaration,
        KeepRoutingArgs::c_declaration,
    ],
};

/// Dispatch with a kept routing; parameter `EP_TILE`.
pub static DISPATCH_AGAIN: KernelUnit = KernelUnit {
    name: "ep_dispatch_again",
    source: include_str!("../kernels/dispatch_again.hip"),
    headers: &[PRELUDE, HEADERS, TOKEN_HEADERS, MASK_HEADERS, CODEC_HEADERS, DISPATCH_HEADERS],
    entries: &["anabranch_ep_dispatch_again"],
    layouts: &[
        PlacementView::c_declaration,
        TeamView::c_declaration,
        SlotState::c_declaration,
        RoutingHead::c_declaration,
        KeptRouting::c_declaration,
        RankMask::c_declaration,
        MaskView::c_declaration,
        DispatchArgs::c_declaration,
        DispatchAgainArgs::c_declaration,
    ],
};

/// Dispatched weights to the weight window; parameter `EP_TILE`.
pub static FILL_WEIGHTS: KernelUnit = KernelUnit {
    name: "ep_fill_weights",
    source: include_str!("../kernels/fill_weights.hip"),
    headers: &[PRELUDE, HEADERS, RECEIVED_HEADERS],
    entries: &["anabranch_ep_fill_weights"],
    layouts: &[PlacementView::c_declaration, ReceivedView::c_declaration, FillWeightsArgs::c_declaration],
};

/// Combine that pulls; parameters `EP_TILE` and `EP_ELEMENT`, `EP_COMBINE_WEIGHTS` where weights are combined, and
/// `EP_DEVICE_COUNT` and `EP_MASK` as [`DISPATCH`] has them.
pub static COMBINE: KernelUnit = KernelUnit {
    name: "ep_combine",
    source: include_str!("../kernels/combine.hip"),
    headers: &[PRELUDE, HEADERS, TOKEN_HEADERS, MASK_HEADERS, FLAG_HEADERS, COMBINE_HEADERS, WEIGHT_HEADERS],
    entries: &["anabranch_ep_combine", "anabranch_ep_combine_send", "anabranch_ep_combine_recv"],
    layouts: waiting_layouts![CombineArgs],
};

/// Combine that pushes; parameters `EP_TILE`, `EP_ELEMENT` and `EP_CODEC`, `EP_COMBINE_WEIGHTS` where weights are combined, and
/// `EP_DEVICE_COUNT` and `EP_MASK` as [`DISPATCH`] has them.
pub static COMBINE_PUSH: KernelUnit = KernelUnit {
    name: "ep_combine_push",
    source: include_str!("../kernels/combine_push.hip"),
    headers: &[PRELUDE, HEADERS, TOKEN_HEADERS, MASK_HEADERS, FLAG_HEADERS, CODEC_HEADERS, WEIGHT_HEADERS],
    entries: &[
        "anabranch_ep_combine_push",
        "anabranch_ep_combine_push_send",
        "anabranch_ep_combine_push_recv",
    ],
    layouts: waiting_layouts![CombinePushArgs],
};

/// The stand-in expert; parameters `EP_TILE`, `EP_INPUT` and `EP_ELEMENT`.
pub static REFERENCE_EXPERT: KernelUnit = KernelUnit {
    name: "ep_reference_expert",
    source: include_str!("../kernels/reference_expert.hip"),
    headers: &[PRELUDE, HEADERS, ELEMENT_HEADERS],
    entries: &["anabranch_ep_reference_expert"],
    layouts: &[PlacementView::c_declaration, ReferenceExpertArgs::c_declaration],
};

/// A codec alone, for tests; parameters `EP_ELEMENT` and `EP_CODEC`.
pub static CONFORMANCE_CODEC: KernelUnit = KernelUnit {
    name: "ep_conformance_codec",
    source: include_str!("../kernels/conformance_codec.hip"),
    headers: &[PRELUDE, CODEC_HEADERS],
    entries: &["anabranch_ep_conformance_codec"],
    layouts: &[ConformanceCodecArgs::c_declaration],
};

/// Pairs of each expert, by runs of rows and in all.
pub static EXPERT_COUNT: KernelUnit = KernelUnit {
    name: "ep_expert_count",
    source: include_str!("../kernels/expert_count.hip"),
    headers: &[PRELUDE, HEADERS, RECEIVED_HEADERS],
    entries: &["anabranch_ep_expert_count", "anabranch_ep_expert_sum"],
    layouts: &[
        PlacementView::c_declaration,
        ReceivedView::c_declaration,
        ExpertCountArgs::c_declaration,
        ExpertSumArgs::c_declaration,
    ],
};

/// Received rows to experts.
pub static EXPERT_EXPAND: KernelUnit = KernelUnit {
    name: "ep_expert_expand",
    source: include_str!("../kernels/expert_expand.hip"),
    headers: &[PRELUDE, HEADERS, RECEIVED_HEADERS, EXPAND_HEADERS],
    entries: &["anabranch_ep_expert_expand"],
    layouts: &[
        PlacementView::c_declaration,
        ReceivedView::c_declaration,
        ExpertRowSource::c_declaration,
        ExpertExpandArgs::c_declaration,
    ],
};

/// Experts' output to the combine window; parameter `EP_ELEMENT`.
pub static EXPERT_CONTRACT: KernelUnit = KernelUnit {
    name: "ep_expert_contract",
    source: include_str!("../kernels/expert_contract.hip"),
    headers: &[PRELUDE, HEADERS, RECEIVED_HEADERS],
    entries: &["anabranch_ep_expert_contract"],
    layouts: &[PlacementView::c_declaration, ReceivedView::c_declaration, ExpertContractArgs::c_declaration],
};

/// The stand-in for experts that work on expert-major rows; parameters `EP_INPUT` and `EP_ELEMENT`.
pub static REFERENCE_EXPERT_MAJOR: KernelUnit = KernelUnit {
    name: "ep_reference_expert_major",
    source: include_str!("../kernels/reference_expert_major.hip"),
    headers: &[PRELUDE, ELEMENT_HEADERS],
    entries: &["anabranch_ep_reference_expert_major"],
    layouts: &[ReferenceExpertMajorArgs::c_declaration],
};

/// The kernel that counts before a compact dispatch.
pub fn count() -> KernelSpec {
    tiled(&COUNT)
}

/// The dispatch kernel: payload is bytes, so one object serves every type.
pub fn dispatch() -> KernelSpec {
    tiled(&DISPATCH)
}

/// The kernel that keeps a routing.
pub fn keep_routing() -> KernelSpec {
    KernelSpec::new(&KEEP_ROUTING).with("EP_TILE", TILE)
}

/// The dispatch with a kept routing: payload is bytes, so one object serves every type.
pub fn dispatch_again() -> KernelSpec {
    KernelSpec::new(&DISPATCH_AGAIN).with("EP_TILE", TILE)
}

/// The kernel that fills the weight window.
pub fn fill_weights() -> KernelSpec {
    KernelSpec::new(&FILL_WEIGHTS).with("EP_TILE", TILE)
}

/// A combine kernel, of either kind, for plans that combine weights too.
#[must_use]
pub fn with_weights(combine: KernelSpec) -> KernelSpec {
    combine.with("EP_COMBINE_WEIGHTS", 1)
}

/// The dispatch kernel that casts rows of a type; the plain one where there is nothing to cast.
pub fn dispatch_cast(from: DataType, cast: DispatchCast) -> KernelSpec {
    cast_of(dispatch(), from, cast)
}

/// A kernel that dispatches, as it casts.
fn cast_of(spec: KernelSpec, from: DataType, cast: DispatchCast) -> KernelSpec {
    match cast.data_type() {
        None => spec,
        Some(to) => spec.with("EP_CAST", to.device_name()).with("EP_CAST_FROM", from.device_name()),
    }
}

/// The variant of a count, dispatch or combine kernel for plans whose number of tokens may be in device memory.
pub fn with_device_count(spec: KernelSpec) -> KernelSpec {
    spec.with("EP_DEVICE_COUNT", 1u32)
}

/// The combine kernel that pulls rows of a type.
pub fn combine(element: DataType) -> KernelSpec {
    of_element(tiled(&COMBINE), element)
}

/// The combine kernel that pushes rows of a type in the form of a codec.
pub fn combine_push(element: DataType, codec: CombineCodec) -> KernelSpec {
    encoded(tiled(&COMBINE_PUSH), element, codec)
}

/// A kernel of dispatch or combine for a plan that masks ranks.
#[must_use]
pub fn masking(spec: KernelSpec) -> KernelSpec {
    spec.with("EP_MASK", 1)
}

/// The stand-in expert from one type to another.
pub fn reference_expert(input: DataType, output: DataType) -> KernelSpec {
    between(tiled(&REFERENCE_EXPERT), input, output)
}

/// The test of a codec that is not [`CombineCodec::None`], for rows of a type. No operation launches it.
pub fn conformance_codec(element: DataType, codec: CombineCodec) -> KernelSpec {
    encoded(KernelSpec::new(&CONFORMANCE_CODEC), element, codec)
}

/// Counting pairs: ids are integers, so one object serves every type.
pub fn expert_count() -> KernelSpec {
    tiled(&EXPERT_COUNT)
}

/// Expanding rows: payload is bytes, so one object serves every type.
pub fn expert_expand() -> KernelSpec {
    tiled(&EXPERT_EXPAND)
}

/// Contracting the output of experts of a type.
pub fn expert_contract(element: DataType) -> KernelSpec {
    of_element(tiled(&EXPERT_CONTRACT), element)
}

/// The stand-in for experts that work on expert-major rows, from one type to another.
pub fn reference_expert_major(input: DataType, output: DataType) -> KernelSpec {
    between(KernelSpec::new(&REFERENCE_EXPERT_MAJOR), input, output)
}

/// The variants for what plans may have besides, each alone and all together, of bf16 rows.
fn optional() -> Vec<KernelSpec> {
    let bf16 = DataType::Bf16;
    let block = CombineCodec::Fp8Block(Fp8Format::E4m3fn);
    let combines = [combine(bf16), combine_push(bf16, CombineCodec::None), combine_push(bf16, block)];
    let of_combine = |spec: &KernelSpec| {
        let [weighted, masked] = [with_weights, masking].map(|option| option(spec.clone()));
        let all = with_device_count(masking(weighted.clone()));
        [weighted, masked, with_device_count(spec.clone()), all]
    };
    let dispatches =
        [masking(dispatch()), with_device_count(dispatch()), with_device_count(masking(dispatch()))];
    let plain = dispatch_engine(bf16, DispatchCast::None);
    let by_engine = [
        with_device_count(plain.clone()),
        plain,
        with_device_count(combine_engine(bf16)),
        combine_engine(bf16),
    ];
    let counted = [with_device_count(count())].into_iter().chain(dispatches);
    let dispatched =
        |by_node| dispatch_nodes(KernelSpec::new(&DISPATCH_NODES), bf16, DispatchCast::None, by_node);
    let across = [
        dispatched(false),
        dispatched(true),
        dispatch_relay(KernelSpec::new(&DISPATCH_RELAY)),
        combine_nodes(KernelSpec::new(&COMBINE_NODES), bf16),
    ];
    counted.chain(by_engine).chain(across).chain(combines.iter().flat_map(of_combine)).collect()
}

/// Every kernel of this crate that a plan without options launches, and of plans with options those for bf16 rows: what a
/// prebuild compiles. Others are compiled when a plan first wants them.
pub fn kernels() -> Vec<KernelSpec> {
    let mut all = vec![count(), dispatch()];
    for element in DataType::COMBINED {
        let casts = DispatchCast::ALL.into_iter().filter(|cast| *cast != DispatchCast::None);
        all.extend(casts.map(|cast| dispatch_cast(element, cast)));
        all.push(combine(element));
        all.extend(CombineCodec::ALL.map(|codec| combine_push(element, codec)));
    }
    all.extend(optional());
    all.extend([expert_count(), expert_expand(), keep_routing(), dispatch_again(), fill_weights()]);
    for output in DataType::COMBINED {
        all.push(expert_contract(output));
        all.extend(DataType::ALL.map(|input| reference_expert(input, output)));
        all.extend(DataType::ALL.map(|input| reference_expert_major(input, output)));
    }
    all
}

/// The kernels of tests alone, in every variant.
pub fn conformance() -> Vec<KernelSpec> {
    let codecs = || CombineCodec::ALL.into_iter().filter(|codec| *codec != CombineCodec::None);
    let of = |element| codecs().map(move |codec| conformance_codec(element, codec));
    DataType::COMBINED.into_iter().flat_map(of).collect()
}

/// A unit with the tokens that a block of dispatch routes at a time.
fn tiled(unit: &'static KernelUnit) -> KernelSpec {
    KernelSpec::new(unit).with("EP_TILE", TILE)
}

/// For rows of a type.
fn of_element(spec: KernelSpec, element: DataType) -> KernelSpec {
    spec.with("EP_ELEMENT", element.device_name())
}

/// For rows of a type, and a codec.
fn encoded(spec: KernelSpec, element: DataType, codec: CombineCodec) -> KernelSpec {
    of_element(spec, element).with("EP_CODEC", codec.device_name())
}

/// From rows of one type to rows of another.
fn between(spec: KernelSpec, input: DataType, output: DataType) -> KernelSpec {
    of_element(spec.with("EP_INPUT", input.device_name()), output)
}
