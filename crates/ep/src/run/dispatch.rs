//! Dispatch: checks, a slot, and the route.

use anabranch_hip::Stream;

use super::{Dispatched, ExpertParallel};
use crate::error::{Error, Result};
use crate::options::DispatchCast;
use crate::plan::EpConfig;
use crate::route::Steps as _;
use crate::slot::SlotTicket;
use crate::tensor::{DeviceSlice, Tokens};

impl ExpertParallel {
    /// Sends every token to the ranks that own its experts, and receives the rows for this rank's experts. Collective:
    /// every member calls it, also with 0 tokens. It launches one kernel on the stream, two in the compact mode, one more where the
    /// plan combines weights, and does not block the host.
    ///
    /// After it, in stream order, the handle's windows, counts and offsets are valid until its combine or release. Copies that do not fit
    /// at their destination ([`EpConfig::max_recv`](crate::EpConfig::max_recv)) are dropped, always the same ones for
    /// the same routing; the handle counts them, [`Self::dropped`] lists them, and combine leaves them out. Copies for masked ranks
    /// ([`OnTimeout::Mask`](crate::OnTimeout::Mask)) count as masked and are left out of the result. The handle has a separate count of
    /// them. Some may have been sent, if the rank was masked during the dispatch.
    ///
    /// May be captured into a graph, whose replays all use this slot: the caller orders the replays with other operations on the slot,
    /// because eager launches wait only for eager launches. Within a capture the caller puts successive operations on one slot on one
    /// stream, or orders their streams.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::Argument`], [`Error::Shape`], [`Error::Address`], [`Error::SlotsBusy`], or an earlier fault of
    /// the world.
    pub fn dispatch(&self, stream: &Stream, tokens: &Tokens) -> Result<Dispatched> {
        let _call = self.context.record("dispatch", self.context.plan.token_bytes(), tokens.count);
        let (mut slot, received) = self.send(stream, tokens, true)?;
        let tokens = tokens.count as u32;
        if !received {
            self.route.recv(&mut self.context.on(stream, &mut slot)?, tokens)?;
        }
        Ok(Dispatched::new(slot, tokens))
    }

    /// Checks the tokens, takes a slot and sends; with `whole` also receives, if the route has one kernel for both (then `true`).
    pub(super) fn send(&self, stream: &Stream, tokens: &Tokens, whole: bool) -> Result<(SlotTicket, bool)> {
        self.context.world.check()?;
        self.check_routed(tokens)?;
        let geometry = self.context.plan.dispatch_geometry(tokens.count as u32, &self.context.limits)?;
        let mut slot = self.context.pool.take()?;
        let received = self.route.send(&mut self.context.on(stream, &mut slot)?, tokens, &geometry, whole)?;
        Ok((slot, received))
    }

    /// Checks tokens with expert ids of the caller.
    pub(super) fn check_routed(&self, tokens: &Tokens) -> Result<()> {
        self.check_tokens(tokens)?;
        let EpConfig { id_type, top_k, .. } = self.context.plan.config();
        let bytes = id_type.bytes_of(1);
        let needed = tokens.count * *top_k as usize * bytes as usize;
        tokens.ids.check("the expert ids", needed, bytes, || {
            format!("[{} tokens][{top_k} top_k] {id_type}", tokens.count)
        })
    }

    /// Checks all but the ids.
    pub(super) fn check_tokens(&self, tokens: &Tokens) -> Result<()> {
        let config = self.context.plan.config();
        let (count, is_cast) = (tokens.count, config.dispatch_cast != DispatchCast::None);
        if count > config.max_tokens as usize {
            let planned = format_args!("max_tokens = {}", config.max_tokens);
            return Err(Error::argument("the number of tokens", count, planned));
        }
        let planned = config.token_type();
        if tokens.data_type != planned {
            return Err(Error::argument("the type of the token rows", tokens.data_type, planned));
        }
        match tokens.device_count {
            Some(_) if !config.device_token_count => {
                let planned = "one from the host; set device_token_count in its configuration";
                return Err(Error::argument("the number of tokens", "a device value", planned));
            }
            Some(word) => word.check("the device token count", 4, 4, || "one u32".to_owned())?,
            None => {}
        }
        let top_k = config.top_k;
        tokens.rows.check("the token rows", count * self.context.plan.token_bytes() as usize, 16, || {
            format!("[{count} tokens][{} hidden] {planned}", config.hidden)
        })?;
        if let Some(weights) = tokens.weights {
            weights.check("the weights", count * top_k as usize * 4, 4, || {
                format!("[{count} tokens][{top_k} top_k] f32")
            })?;
        }
        // Without tokens every length is valid.
        let given = |scales: Option<DeviceSlice>| {
            let bytes = scales.map_or(0, |scales| scales.len().checked_div(count).unwrap_or_default());
            format!("{bytes} bytes")
        };
        let wrong =
            |scales, planned| Err(Error::argument("the length of a token's scales", given(scales), planned));
        match (tokens.scales, config.scale_bytes) {
            (None, 0) => Ok(()),
            (None, _) if is_cast => Ok(()),
            (Some(scales), _) if is_cast => {
                wrong(Some(scales), format!("none: dispatch_cast {} makes them", config.dispatch_cast))
            }
            (Some(scales), planned) if planned > 0 => {
                scales.check("the scales", count * planned as usize, 4, || {
                    format!("[{count} tokens][{planned} bytes]")
                })
            }
            (scales, planned) => wrong(scales, format!("{planned} bytes (all tokens have scales, or none)")),
        }
    }
}
