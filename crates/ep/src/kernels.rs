//! The kernels of this crate: what plans launch, and the specs that they compile.

use anabranch_hip_jit::{Header, KernelSpec, KernelUnit, device_headers, kernel_unit};
use anabranch_shmem::device_api::DEVICE_HEADERS as HEAP;

use crate::args::{
    CombineArgs, CombineEngineArgs, CombineNodesArgs, CombinePushArgs, CountArgs, DispatchArgs,
    DispatchEngineArgs, DispatchExpertsArgs, DispatchNodesArgs, DispatchReplayArgs, ExpertContractArgs,
    ExpertCountArgs, ExpertExpandArgs, ExpertSumArgs, FillWeightsArgs, LateWeightsArgs, SaveRoutingArgs,
    UnpackArgs,
};
use crate::options::{CombineCodec, DispatchCast, Fp8Format};
use crate::plan::TILE;
use crate::tensor::COMBINED_TYPES;
use anabranch_elements::data_type::DataType;

/// The device headers of this crate: what its kernels include as `"ep/..."`.
pub const HEADERS: &[Header] = device_headers!();

kernel_unit! {
    /// The counts before a compact dispatch; parameter `EP_TILE`, and `EP_DEVICE_COUNT` and `EP_WIDE_IDS` as `DISPATCH_UNIT` has them.
    pub(crate) static COUNT_UNIT: "ep_count", include_str!("../kernels/count.hip"), &[HEADERS];
    pub(crate) const COUNT: Kernel<CountArgs> = "anabranch_ep_count";
}

kernel_unit! {
    /// Dispatch to ranks whose memory is mapped; parameter `EP_TILE`; `EP_CAST` and `EP_CAST_FROM` where it casts; `EP_DEVICE_COUNT`
    /// where the number of tokens may be in device memory; `EP_MASK` where ranks may be masked; `EP_WIDE_IDS` where expert ids have 64
    /// bits.
    pub(crate) static DISPATCH_UNIT: "ep_dispatch", include_str!("../kernels/dispatch.hip"), &[HEADERS];
    pub(crate) const DISPATCH: Kernel<DispatchArgs> = "anabranch_ep_dispatch";
    pub(crate) const DISPATCH_SEND: Kernel<DispatchArgs> = "anabranch_ep_dispatch_send";
    pub(crate) const DISPATCH_RECV: Kernel<DispatchArgs> = "anabranch_ep_dispatch_recv";
}

kernel_unit! {
    /// Saves the routing of a dispatch for later ones; parameter `EP_TILE`.
    pub(crate) static SAVE_ROUTING_UNIT: "ep_save_routing", include_str!("../kernels/save_routing.hip"), &[HEADERS];
    pub(crate) const SAVE_ROUTING: Kernel<SaveRoutingArgs> = "anabranch_ep_save_routing";
}

kernel_unit! {
    /// Dispatch with a saved routing; parameter `EP_TILE`.
    pub(crate) static DISPATCH_REPLAY_UNIT: "ep_dispatch_replay", include_str!("../kernels/dispatch_replay.hip"), &[HEADERS];
    pub(crate) const DISPATCH_REPLAY: Kernel<DispatchReplayArgs> = "anabranch_ep_dispatch_replay";
}

kernel_unit! {
    /// Dispatched weights to the weight window; parameter `EP_TILE`.
    pub(crate) static FILL_WEIGHTS_UNIT: "ep_fill_weights", include_str!("../kernels/fill_weights.hip"), &[HEADERS];
    pub(crate) const FILL_WEIGHTS: Kernel<FillWeightsArgs> = "anabranch_ep_fill_weights";
}

kernel_unit! {
    /// Weights after a dispatch; parameter `EP_TILE`, and `EP_DEVICE_COUNT` and `EP_MASK` as `DISPATCH_UNIT` has them.
    pub(crate) static LATE_WEIGHTS_UNIT: "ep_late_weights", include_str!("../kernels/late_weights.hip"), &[HEADERS];
    pub(crate) const LATE_WEIGHTS: Kernel<LateWeightsArgs> = "anabranch_ep_late_weights";
}

kernel_unit! {
    /// Combine that pulls; parameters `EP_TILE` and `EP_ELEMENT`, `EP_COMBINE_WEIGHTS` where weights are combined, and
    /// `EP_DEVICE_COUNT` and `EP_MASK` as `DISPATCH_UNIT` has them.
    pub(crate) static COMBINE_UNIT: "ep_combine", include_str!("../kernels/combine.hip"), &[HEADERS];
    pub(crate) const COMBINE: Kernel<CombineArgs> = "anabranch_ep_combine";
    pub(crate) const COMBINE_SEND: Kernel<CombineArgs> = "anabranch_ep_combine_send";
    pub(crate) const COMBINE_RECV: Kernel<CombineArgs> = "anabranch_ep_combine_recv";
}

kernel_unit! {
    /// Combine that pushes; parameters as `COMBINE_UNIT`, and `EP_CODEC`.
    pub(crate) static COMBINE_PUSH_UNIT: "ep_combine_push", include_str!("../kernels/combine_push.hip"), &[HEADERS];
    pub(crate) const COMBINE_PUSH: Kernel<CombinePushArgs> = "anabranch_ep_combine_push";
    pub(crate) const COMBINE_PUSH_SEND: Kernel<CombinePushArgs> = "anabranch_ep_combine_push_send";
    pub(crate) const COMBINE_PUSH_RECV: Kernel<CombinePushArgs> = "anabranch_ep_combine_push_recv";
}

kernel_unit! {
    /// Dispatch by copy engines; parameters `SHMEM_ENGINES`, and the parameters of `DISPATCH_UNIT` without `EP_MASK`.
    pub(crate) static DISPATCH_ENGINE_UNIT: "ep_dispatch_engine", include_str!("../kernels/dispatch_engine.hip"), &[HEADERS, HEAP];
    pub(crate) const DISPATCH_ENGINE_SEND: Kernel<DispatchEngineArgs> = "anabranch_ep_dispatch_engine_send";
    pub(crate) const DISPATCH_ENGINE_FLAG: Kernel<DispatchEngineArgs> = "anabranch_ep_dispatch_engine_flag";
    pub(crate) const DISPATCH_ENGINE_DRAIN: Kernel<DispatchEngineArgs> = "anabranch_ep_dispatch_engine_drain";
    pub(crate) const DISPATCH_ENGINE_RECV: Kernel<DispatchEngineArgs> = "anabranch_ep_dispatch_engine_recv";
}

kernel_unit! {
    /// Combine by copy engines; parameters `SHMEM_ENGINES`, and the parameters of `COMBINE_UNIT` without `EP_MASK` and `EP_COMBINE_WEIGHTS`.
    pub(crate) static COMBINE_ENGINE_UNIT: "ep_combine_engine", include_str!("../kernels/combine_engine.hip"), &[HEADERS, HEAP];
    pub(crate) const COMBINE_ENGINE_SEND: Kernel<CombineEngineArgs> = "anabranch_ep_combine_engine_send";
    pub(crate) const COMBINE_ENGINE_FLAG: Kernel<CombineEngineArgs> = "anabranch_ep_combine_engine_flag";
    pub(crate) const COMBINE_ENGINE_RECV: Kernel<CombineEngineArgs> = "anabranch_ep_combine_engine_recv";
}

kernel_unit! {
    /// Internode dispatch; parameters `EP_RELAY` where tokens go once to each node, and the parameters of `DISPATCH_UNIT` without `EP_MASK`. Uses
    /// the device functions of the heap: [`World::kernel`](anabranch_shmem::World::kernel) compiles them as that world needs them.
    pub static DISPATCH_NODES_UNIT: "ep_dispatch_nodes", include_str!("../kernels/dispatch_nodes.hip"), &[HEADERS, HEAP];
    pub(crate) const DISPATCH_NODES: Kernel<DispatchNodesArgs> = "anabranch_ep_dispatch_nodes";
    pub(crate) const DISPATCH_NODES_SEND: Kernel<DispatchNodesArgs> = "anabranch_ep_dispatch_nodes_send";
    pub(crate) const DISPATCH_NODES_RECV: Kernel<DispatchNodesArgs> = "anabranch_ep_dispatch_nodes_recv";
    pub(crate) const DISPATCH_NODES_DRAIN: Kernel<DispatchNodesArgs> = "anabranch_ep_dispatch_nodes_drain";
}

kernel_unit! {
    /// The receive of a dispatch by node; parameter `EP_TILE`.
    pub(crate) static DISPATCH_RELAY_UNIT: "ep_dispatch_relay", include_str!("../kernels/dispatch_relay.hip"), &[HEADERS];
    pub(crate) const DISPATCH_RELAY: Kernel<DispatchNodesArgs> = "anabranch_ep_dispatch_relay";
}

kernel_unit! {
    /// Internode combine; parameters as `COMBINE_UNIT`, but for `EP_MASK` and `EP_COMBINE_WEIGHTS`. As [`DISPATCH_NODES_UNIT`], it uses
    /// the heap's device functions.
    pub static COMBINE_NODES_UNIT: "ep_combine_nodes", include_str!("../kernels/combine_nodes.hip"), &[HEADERS, HEAP];
    pub(crate) const COMBINE_NODES: Kernel<CombineNodesArgs> = "anabranch_ep_combine_nodes";
    pub(crate) const COMBINE_NODES_SEND: Kernel<CombineNodesArgs> = "anabranch_ep_combine_nodes_send";
    pub(crate) const COMBINE_NODES_RECV: Kernel<CombineNodesArgs> = "anabranch_ep_combine_nodes_recv";
}

kernel_unit! {
    /// Pairs of each expert, by runs of rows and in all.
    pub(crate) static EXPERT_COUNT_UNIT: "ep_expert_count", include_str!("../kernels/expert_count.hip"), &[HEADERS];
    pub(crate) const EXPERT_COUNT: Kernel<ExpertCountArgs> = "anabranch_ep_expert_count";
    pub(crate) const EXPERT_SUM: Kernel<ExpertSumArgs> = "anabranch_ep_expert_sum";
}

kernel_unit! {
    /// Received rows to experts; `EP_CONTIGUOUS` where all share the places.
    pub(crate) static EXPERT_EXPAND_UNIT: "ep_expert_expand", include_str!("../kernels/expert_expand.hip"), &[HEADERS];
    pub(crate) const EXPERT_EXPAND: Kernel<ExpertExpandArgs> = "anabranch_ep_expert_expand";
}

kernel_unit! {
    /// Received rows to buffers of the caller.
    pub(crate) static UNPACK_UNIT: "ep_unpack", include_str!("../kernels/unpack.hip"), &[HEADERS];
    pub(crate) const UNPACK: Kernel<UnpackArgs> = "anabranch_ep_unpack";
}

kernel_unit! {
    /// Experts' output to the combine window; parameter `EP_ELEMENT`.
    pub(crate) static EXPERT_CONTRACT_UNIT: "ep_expert_contract", include_str!("../kernels/expert_contract.hip"), &[HEADERS];
    pub(crate) const EXPERT_CONTRACT: Kernel<ExpertContractArgs> = "anabranch_ep_expert_contract";
}

kernel_unit! {
    /// Dispatch and expand in one; parameters of `DISPATCH_UNIT` without `EP_MASK`, and `EP_CONTIGUOUS` as `EXPERT_EXPAND_UNIT` has it.
    pub(crate) static DISPATCH_EXPERTS_UNIT: "ep_dispatch_experts", include_str!("../kernels/dispatch_experts.hip"), &[HEADERS];
    pub(crate) const DISPATCH_EXPERTS: Kernel<DispatchExpertsArgs> = "anabranch_ep_dispatch_experts";
    pub(crate) const DISPATCH_NUMBERED: Kernel<DispatchExpertsArgs> = "anabranch_ep_dispatch_numbered";
}

/// The kernel that counts before a compact dispatch.
pub fn count() -> KernelSpec {
    tiled(&COUNT_UNIT)
}

/// The dispatch kernel: payload is bytes, so one object serves every type.
pub fn dispatch() -> KernelSpec {
    tiled(&DISPATCH_UNIT)
}

/// The kernel that saves a routing.
pub fn save_routing() -> KernelSpec {
    KernelSpec::new(&SAVE_ROUTING_UNIT).with("EP_TILE", TILE)
}

/// The dispatch with a saved routing: payload is bytes, so one object serves every type.
pub fn dispatch_replay() -> KernelSpec {
    KernelSpec::new(&DISPATCH_REPLAY_UNIT).with("EP_TILE", TILE)
}

/// The kernel that fills the weight window.
pub fn fill_weights() -> KernelSpec {
    KernelSpec::new(&FILL_WEIGHTS_UNIT).with("EP_TILE", TILE)
}

/// The kernel that sends weights after a dispatch.
pub fn late_weights() -> KernelSpec {
    tiled(&LATE_WEIGHTS_UNIT)
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
pub(crate) fn with_device_count(spec: KernelSpec) -> KernelSpec {
    spec.with("EP_DEVICE_COUNT", 1u32)
}

/// The variant of a count or dispatch kernel that reads expert ids of a type; other kernels read none of the caller's.
pub(crate) fn with_ids(spec: KernelSpec, ids: DataType) -> KernelSpec {
    let reads_ids =
        [&COUNT_UNIT, &DISPATCH_UNIT, &DISPATCH_EXPERTS_UNIT, &DISPATCH_ENGINE_UNIT, &DISPATCH_NODES_UNIT]
            .iter()
            .any(|unit| std::ptr::eq(*unit, spec.unit()));
    if reads_ids && ids == DataType::I64 { spec.with("EP_WIDE_IDS", 1u32) } else { spec }
}

/// The combine kernel that pulls rows of a type.
pub fn combine(element: DataType) -> KernelSpec {
    of_element(tiled(&COMBINE_UNIT), element)
}

/// The combine kernel that pushes rows of a type in the form of a codec.
pub fn combine_push(element: DataType, codec: CombineCodec) -> KernelSpec {
    encoded(tiled(&COMBINE_PUSH_UNIT), element, codec)
}

/// The dispatch by copy engines, of rows as they are or cast.
pub fn dispatch_engine(from: DataType, cast: DispatchCast) -> KernelSpec {
    cast_of(with_engines(&DISPATCH_ENGINE_UNIT), from, cast)
}

/// The combine by copy engines, of rows of a type.
pub fn combine_engine(element: DataType) -> KernelSpec {
    of_element(with_engines(&COMBINE_ENGINE_UNIT), element)
}

fn with_engines(unit: &'static KernelUnit) -> KernelSpec {
    tiled(unit).with("SHMEM_ENGINES", 1)
}

/// The internode dispatch, of rows as they are or cast; `spec` is of [`DISPATCH_NODES_UNIT`].
#[must_use]
pub fn dispatch_nodes(spec: KernelSpec, from: DataType, cast: DispatchCast, by_node: bool) -> KernelSpec {
    let spec = cast_of(spec.with("EP_TILE", TILE), from, cast);
    if by_node { spec.with("EP_RELAY", 1) } else { spec }
}

/// The kernel that forwards rows of other nodes.
pub fn dispatch_relay() -> KernelSpec {
    tiled(&DISPATCH_RELAY_UNIT)
}

/// The internode combine, of rows of a type; `spec` is of [`COMBINE_NODES_UNIT`].
#[must_use]
pub fn combine_nodes(spec: KernelSpec, element: DataType) -> KernelSpec {
    of_element(spec.with("EP_TILE", TILE), element)
}

/// A kernel of dispatch or combine for a plan that masks ranks.
#[must_use]
pub fn masking(spec: KernelSpec) -> KernelSpec {
    spec.with("EP_MASK", 1)
}

/// Counting pairs: ids are integers, so one object serves every type.
pub fn expert_count() -> KernelSpec {
    tiled(&EXPERT_COUNT_UNIT)
}

/// Expanding rows: payload is bytes, so one object serves every type.
pub fn expert_expand() -> KernelSpec {
    tiled(&EXPERT_EXPAND_UNIT)
}

/// A dispatch to experts, expand or contract with places that all experts share.
#[must_use]
pub fn contiguous(spec: KernelSpec) -> KernelSpec {
    spec.with("EP_CONTIGUOUS", 1)
}

/// Copying rows out: payload is bytes, so one object serves every type.
pub fn unpack() -> KernelSpec {
    tiled(&UNPACK_UNIT)
}

/// Contracting the output of experts of a type.
pub fn expert_contract(element: DataType) -> KernelSpec {
    of_element(tiled(&EXPERT_CONTRACT_UNIT), element)
}

/// Dispatch and expand in one, of rows as they are or cast.
pub fn dispatch_experts(from: DataType, cast: DispatchCast) -> KernelSpec {
    cast_of(tiled(&DISPATCH_EXPERTS_UNIT), from, cast)
}

/// The variants for what plans may have besides, each alone and all together, of bf16 rows.
fn optional() -> Vec<KernelSpec> {
    let bf16 = DataType::Bf16;
    let block = CombineCodec::Fp8Block(Fp8Format::E4m3fn);
    let combines = [combine(bf16), combine_push(bf16, CombineCodec::None), combine_push(bf16, block)];
    let fp8 = DispatchCast::Fp8Block(Fp8Format::E4m3fn);
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
    let late = [late_weights(), masking(late_weights())];
    let late = late.into_iter().flat_map(|spec| [with_device_count(spec.clone()), spec]);
    let counted = [with_device_count(count())].into_iter().chain(late).chain(dispatches);
    let dispatched =
        |by_node| dispatch_nodes(KernelSpec::new(&DISPATCH_NODES_UNIT), bf16, DispatchCast::None, by_node);
    let across = [
        dispatched(false),
        dispatched(true),
        dispatch_relay(),
        combine_nodes(KernelSpec::new(&COMBINE_NODES_UNIT), bf16),
    ];
    let plain = dispatch_experts(bf16, DispatchCast::None);
    let cast = dispatch_experts(bf16, fp8);
    let lined_up = contiguous(plain.clone());
    let lined_up = [with_device_count(lined_up.clone()), lined_up, contiguous(cast.clone())];
    let of_experts = [with_device_count(plain.clone()), plain, cast];
    let wide_ids = [
        count(),
        dispatch(),
        dispatch_cast(bf16, fp8),
        masking(dispatch()),
        dispatch_experts(bf16, DispatchCast::None),
        dispatch_experts(bf16, fp8),
        contiguous(dispatch_experts(bf16, DispatchCast::None)),
        contiguous(dispatch_experts(bf16, fp8)),
        dispatch_engine(bf16, DispatchCast::None),
        dispatched(false),
        dispatched(true),
    ]
    .map(|spec| with_ids(spec, DataType::I64));
    counted
        .chain(wide_ids)
        .chain(by_engine)
        .chain(across)
        .chain(of_experts)
        .chain(lined_up)
        .chain(combines.iter().flat_map(of_combine))
        .collect()
}

/// Every kernel of this crate that a plan without options launches, and of plans with options those for bf16 rows: what a
/// prebuild compiles. Others are compiled when a plan first wants them.
pub fn kernels() -> Vec<KernelSpec> {
    let mut all = vec![count(), dispatch()];
    for element in COMBINED_TYPES {
        let casts = DispatchCast::ALL.into_iter().filter(|cast| *cast != DispatchCast::None);
        all.extend(casts.map(|cast| dispatch_cast(element, cast)));
        all.push(combine(element));
        all.extend(CombineCodec::ALL.map(|codec| combine_push(element, codec)));
    }
    all.extend(optional());
    all.extend([
        expert_count(),
        expert_expand(),
        contiguous(expert_expand()),
        unpack(),
        save_routing(),
        dispatch_replay(),
        fill_weights(),
    ]);
    for output in COMBINED_TYPES {
        all.push(expert_contract(output));
        all.push(contiguous(expert_contract(output)));
    }
    all
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
