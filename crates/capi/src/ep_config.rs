//! What a plan of dispatch and combine is made for.

use std::ffi::c_char;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use anabranch::ccl::DataType;
use anabranch::ep::{
    CombineCodec, CombineSource, DispatchCast, EpConfig, EpShape, Mode, OnTimeout, Payload, PlacementTable,
};

use crate::handle::text;
use crate::status::{Failure, Result};
use crate::types::{ANABRANCH_DEFAULT_TYPE, anabranch_data_type, data_type};
use crate::versioned::Versioned;

/// What a plan of dispatch and combine is made for; equal on all ranks. Zero in a field below `max_tokens` is its default.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct anabranch_ep_config {
    /// `sizeof(anabranch_ep_config)`.
    pub size: usize,
    /// Elements of a token's row; a row has a multiple of 16 bytes.
    pub hidden: u32,
    /// Experts of the group. Rank r of R owns those from `r * experts / R` up to, not including, `(r + 1) * experts / R`.
    pub experts: u32,
    /// Experts of a token, 1 to 32.
    pub top_k: u32,
    /// Most tokens that a rank dispatches in one call.
    pub max_tokens: u32,
    /// Type of the rows that dispatch sends. Default `ANABRANCH_BF16`, or that of `dispatch_cast`.
    pub dispatch_type: anabranch_data_type,
    /// Type of the rows that combine sums: `ANABRANCH_BF16` (default), `ANABRANCH_F16`, `ANABRANCH_F32`.
    pub combine_type: anabranch_data_type,
    /// Type of the caller's rows with `dispatch_cast`. Default `ANABRANCH_BF16`.
    pub cast_from: anabranch_data_type,
    /// Bytes of scales that dispatch sends with each row, a multiple of 4.
    pub scale_bytes: u32,
    /// Most rows that a rank receives in one dispatch. Default: the worst case.
    pub max_recv: u32,
    /// Dispatches that may be in flight without their combine. Default: the setting `ep.slots`.
    pub slots: u32,
    /// Most blocks of a launch. Default: chosen.
    pub max_blocks: u32,
    /// Waves of a block. Default: chosen.
    pub waves_per_block: u32,
    /// 1: combine also sums weights.
    pub combine_weights: u32,
    /// 1: the number of tokens may be in device memory.
    pub device_token_count: u32,
    /// Seconds after which operations go on without a rank that does not come. Default: they fail after the setting `deadline.operation`.
    pub mask_after_seconds: f64,
    /// `"auto"` (default), `"slotted"` or `"compact"`.
    pub mode: *const c_char,
    /// `"any"` (default), `"window"` or `"buffer"`: where the experts' output may be.
    pub combine_source: *const c_char,
    /// The encoding of rows that combine sends from a buffer; default `"none"`.
    pub combine_codec: *const c_char,
    /// The cast of rows before dispatch sends them; default `"none"`.
    pub dispatch_cast: *const c_char,
    /// `"kernels"` (default) or `"copy-engine"`: what moves rows.
    pub payload: *const c_char,
    /// The ranks of each expert, as `"ranks_of_experts = [[0], [1, 0], [1]]"`. Default: as `experts` says.
    pub placement: *const c_char,
    /// Type of the expert ids that this rank dispatches: `ANABRANCH_I32` (default) or `ANABRANCH_I64`.
    pub id_type: anabranch_data_type,
}

// SAFETY: pointers and numbers, the size first.
unsafe impl Versioned for anabranch_ep_config {
    const NAME: &'static str = "anabranch_ep_config";
    const LEAST: usize = std::mem::offset_of!(Self, dispatch_type);
}

fn word<T: FromStr<Err: Display> + Default>(given: *const c_char, name: &str) -> Result<T> {
    let word = text(given, name)?.map(str::parse::<T>);
    word.transpose()
        .map(Option::unwrap_or_default)
        .map_err(|error| Failure::config(format!("{name}: {error}")))
}

fn flag(given: u32, name: &str) -> Result<bool> {
    match given {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Failure::config(format!("{name} is {other}; allowed are 0 and 1"))),
    }
}

fn type_or(given: anabranch_data_type, otherwise: DataType) -> Result<DataType> {
    if given == ANABRANCH_DEFAULT_TYPE { Ok(otherwise) } else { data_type(given) }
}

impl anabranch_ep_config {
    /// The plan's configuration.
    pub(crate) fn plan(&self) -> Result<EpConfig> {
        let Self { hidden, experts, top_k, max_tokens, .. } = *self;
        let mut plan = EpConfig::new(EpShape { hidden, experts, top_k, max_tokens })
            .dispatch_type(type_or(self.dispatch_type, DataType::Bf16)?)
            .combine_type(type_or(self.combine_type, DataType::Bf16)?)
            .scale_bytes(self.scale_bytes)
            .max_recv(self.max_recv)
            .mode(word::<Mode>(self.mode, "mode")?)
            .combine_source(word::<CombineSource>(self.combine_source, "combine_source")?)
            .combine_codec(word::<CombineCodec>(self.combine_codec, "combine_codec")?)
            .combine_weights(flag(self.combine_weights, "combine_weights")?)
            .device_token_count(flag(self.device_token_count, "device_token_count")?)
            .id_type(type_or(self.id_type, DataType::I32)?)
            .payload(word::<Payload>(self.payload, "payload")?)
            .launch(self.max_blocks, self.waves_per_block);
        let cast = word::<DispatchCast>(self.dispatch_cast, "dispatch_cast")?;
        if let Some(sent) = cast.data_type() {
            if self.dispatch_type != ANABRANCH_DEFAULT_TYPE && plan.dispatch_type != sent {
                return Err(Failure::config(format!(
                    "dispatch_cast {cast} sends rows of {sent}; leave dispatch_type 0"
                )));
            }
            plan = plan
                .dispatch_type(sent)
                .dispatch_cast(cast)
                .cast_from(type_or(self.cast_from, DataType::Bf16)?);
        } else if self.cast_from != ANABRANCH_DEFAULT_TYPE {
            return Err(Failure::config("cast_from needs a dispatch_cast"));
        }
        if self.slots > 0 {
            plan = plan.slots(self.slots);
        }
        if let Some(placement) = text(self.placement, "placement")? {
            let table = PlacementTable::parse(placement);
            plan = plan.placement(table.map_err(|error| Failure::config(format!("placement: {error}")))?);
        }
        if self.mask_after_seconds != 0.0 {
            let patience = Duration::try_from_secs_f64(self.mask_after_seconds);
            let patience = patience.map_err(|error| {
                Failure::config(format!("mask_after_seconds is {}: {error}", self.mask_after_seconds))
            })?;
            plan = plan.on_timeout(OnTimeout::Mask { patience });
        }
        Ok(plan)
    }
}
