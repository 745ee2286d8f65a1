//! What a plan is made for.

use std::str::FromStr;

use anabranch::GroupRank;
use anabranch::ccl::DataType;
use anabranch::ep::{
    self, CombineCodec, CombineSource, DispatchCast, EpShape, Mode, OnTimeout, Payload, PlacementTable,
};
use pyo3::prelude::*;

use crate::array;
use crate::errors::config as wrong;
use crate::work::seconds;

/// What an expert-parallel plan is made for; equal on all ranks.
#[pyclass(frozen, module = "anabranch", name = "EpConfig")]
#[derive(Clone, Debug)]
pub(crate) struct EpConfig {
    pub(crate) plan: ep::EpConfig,
}

pub(super) fn word<T: FromStr>(text: &str) -> PyResult<T>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| wrong(error.to_string()))
}

#[pymethods]
impl EpConfig {
    /// `hidden` elements a token, `experts` of the group (rank r owns a run of them, unless `placement` lists the ranks of each), `top_k`
    /// experts a token, at most `max_tokens` tokens a call. `max_recv` bounds the rows that a rank takes in (0: the worst case); `slots`
    /// dispatches may be under way at once; `mask_after` seconds, operations go on without a rank that does not come. `id_dtype` is the type of
    /// expert ids, int32 or int64. The remaining keywords are those of `anabranch_ep::EpConfig`.
    #[new]
    #[pyo3(signature = (*, hidden, experts, top_k, max_tokens, dispatch_dtype = None, combine_dtype = None, scale_bytes = 0,
        max_recv = 0, mode = "auto", slots = None, placement = None, combine_source = "any", combine_codec = "none",
        combine_weights = false, late_weights = false, dispatch_cast = "none", cast_from = None, device_token_count = false, id_dtype = None, mask_after = None,
        payload = "kernels", blocks = 0, waves_per_block = 0))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        hidden: u32,
        experts: u32,
        top_k: u32,
        max_tokens: u32,
        dispatch_dtype: Option<&Bound<'_, PyAny>>,
        combine_dtype: Option<&Bound<'_, PyAny>>,
        scale_bytes: u32,
        max_recv: u32,
        mode: &str,
        slots: Option<u32>,
        placement: Option<Vec<Vec<u32>>>,
        combine_source: &str,
        combine_codec: &str,
        combine_weights: bool,
        late_weights: bool,
        dispatch_cast: &str,
        cast_from: Option<&Bound<'_, PyAny>>,
        device_token_count: bool,
        id_dtype: Option<&Bound<'_, PyAny>>,
        mask_after: Option<f64>,
        payload: &str,
        blocks: u32,
        waves_per_block: u32,
    ) -> PyResult<Self> {
        let of = |given: Option<&Bound<'_, PyAny>>| given.map_or(Ok(DataType::Bf16), array::data_type);
        let mut plan = ep::EpConfig::new(EpShape { hidden, experts, top_k, max_tokens })
            .dispatch_type(of(dispatch_dtype)?)
            .combine_type(of(combine_dtype)?)
            .scale_bytes(scale_bytes)
            .max_recv(max_recv)
            .mode(word::<Mode>(mode)?)
            .combine_source(word::<CombineSource>(combine_source)?)
            .combine_codec(word::<CombineCodec>(combine_codec)?)
            .combine_weights(combine_weights)
            .late_weights(late_weights)
            .device_token_count(device_token_count)
            .id_type(id_dtype.map_or(Ok(DataType::I32), array::data_type)?)
            .payload(word::<Payload>(payload)?)
            .launch(blocks, waves_per_block);
        let cast = word::<DispatchCast>(dispatch_cast)?;
        if let Some(sent) = cast.data_type() {
            if dispatch_dtype.is_some() && plan.dispatch_type != sent {
                return Err(wrong(format!(
                    "dispatch_cast {cast} sends rows of {sent}; leave dispatch_dtype out"
                )));
            }
            plan = plan.dispatch_type(sent).dispatch_cast(cast).cast_from(of(cast_from)?);
        } else if cast_from.is_some() {
            return Err(wrong("cast_from needs a dispatch_cast"));
        }
        if let Some(slots) = slots {
            plan = plan.slots(slots);
        }
        if let Some(experts) = placement {
            let ranks = |ranks: Vec<u32>| ranks.into_iter().map(GroupRank::new).collect();
            plan = plan.placement(PlacementTable::new(experts.into_iter().map(ranks)));
        }
        if let Some(patience) = mask_after {
            plan = plan.on_timeout(OnTimeout::Mask { patience: seconds(patience)? });
        }
        Ok(Self { plan })
    }

    /// The plan's settings: names and values as text.
    fn fields(&self) -> Vec<(String, String)> {
        self.plan.fields()
    }

    fn __repr__(&self) -> String {
        let ep::EpConfig { hidden, experts, top_k, max_tokens, .. } = self.plan;
        format!(
            "anabranch.EpConfig(hidden={hidden}, experts={experts}, top_k={top_k}, max_tokens={max_tokens})"
        )
    }
}
