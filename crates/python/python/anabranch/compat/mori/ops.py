"""Dispatch and combine, with the calls of mori's operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import anabranch

from . import shmem
from ._config import EpDispatchCombineConfig, EpDispatchCombineKernelType, EpDispatchCombineQuantType
from ._plan import FP4, Plan, Shape, as_bytes

__all__ = ["EpDispatchCombineConfig", "EpDispatchCombineKernelType", "EpDispatchCombineOp", "EpDispatchCombineQuantType"]


class EpDispatchCombineOp:
    """Dispatch and combine of the ranks of ``mori.shmem``. They are on one node.

    Every call with tensors is collective: all ranks make the same calls, in the same order, also with 0 tokens. Calls run on the current
    stream, and the host does not wait in them. Plans are made, and take their memory, at the first dispatch of each type of rows and scales:
    make such a dispatch before a graph is captured. Results are memory of the operator, which the next call of the same name overwrites.

    The first rows of a dispatch's results, as many as the number on the device says, are those that came; what follows is undefined, but for
    ids, which are -1 there. Row i of each result belongs to the same token, and to row i of the input of combine. The rows are by rank, then
    token of their origin, in every run; in mori they have no order.

    Attributes:
        config: as given.
        local_expert_count: ``[experts of the rank]`` int32, of the last dispatch with ``call_local_expert_count``.
    """

    def __init__(self, config: EpDispatchCombineConfig) -> None:
        self._joined = shmem._joined()
        if (config.rank, config.world_size) != (shmem._rank, shmem._size):
            raise anabranch.ConfigError(
                f"EpDispatchCombineConfig: rank {config.rank} of {config.world_size}; mori.shmem has rank {shmem._rank} of {shmem._size}"
            )
        self.config = config
        self.local_expert_count = torch.zeros(config.num_experts_per_rank, dtype=torch.int32, device=self._joined.device)
        self._is_async = config.kernel_type is EpDispatchCombineKernelType.AsyncLL
        self._plans: dict[Shape, Plan] = {}
        shmem._operators[next(shmem._numbers)] = self
        # The last dispatch: its plan, its tokens, and the stage at which it is.
        self._plan: Plan | None = None
        self._tokens = 0
        self._sent: anabranch.DispatchSent | None = None
        self._received: anabranch.Dispatched | None = None
        self._combining: anabranch.CombineSent | None = None

    # --- dispatch ---

    def dispatch(
        self,
        input: Tensor,
        weights: Tensor | None,
        scales: Tensor | None,
        indices: Tensor,
        block_num: int = -1,
        rdma_block_num: int = -1,
        warp_per_block: int = -1,
        call_local_expert_count: bool = False,
        *,
        routing: None = None,
        return_routing: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
        """Sends each token once to every rank that has one of its experts. With ``AsyncLL`` only sends: results are there after
        :meth:`dispatch_recv`. A dispatch that was not combined is released, on all ranks alike.

        Args:
            input: ``[tokens, hidden_dim]`` bfloat16, float16, float32, float8_e4m3fn or float8_e4m3fnuz, or ``[tokens, hidden_dim / 2]``
                float4_e2m1fn_x2.
            weights: ``[tokens, experts per token]`` float32, or ``None``: the weights of the results are undefined.
            scales: ``[tokens, scale_dim]`` of ``scale_type_size`` bytes each, or ``None``.
            indices: ``[tokens, experts per token]`` integers: experts of all ranks; -1 is no expert.
            call_local_expert_count: also fills ``local_expert_count``; with ``AsyncLL`` :meth:`dispatch_recv` does.
            block_num, rdma_block_num, warp_per_block: no effect.
            routing, return_routing: not supported.

        Returns:
            rows ``[max_num_tokens_to_recv(), hidden_dim]`` of the input's type (half as wide for 4-bit floats), weights float32, scales of their
            type or ``None``, ids of experts of all ranks int32, and how many rows came ``[1]`` int32.
        """
        if routing is not None or return_routing:
            raise anabranch.UsageError("dispatch: routing and return_routing are not supported; combine the dispatch before the next one")
        if self._combining is not None:
            raise anabranch.UsageError("dispatch: the last combine was sent and not received; call combine_recv")
        scales = scales if self.config.scale_dim else None
        self._check_dispatch(input, scales, indices)
        self._release()
        plan = self._plan_for(Shape(input.dtype, None if scales is None else scales.dtype))
        ids = indices.detach().to(torch.int32).contiguous()
        given = None if weights is None else weights.detach().contiguous()
        sent = (as_bytes(input), ids, given, plan.sent_scales(scales))
        self._plan, self._tokens = plan, len(input)
        if self._is_async:
            self._sent = plan.native.dispatch_send(*sent)
            self._joined.settle()
        else:
            self._received = plan.native.dispatch(*sent)
            self._unpack(call_local_expert_count)
        return plan.rows, plan.weights, plan.scales, plan.ids, plan.total

    def dispatch_send(
        self,
        input: Tensor,
        weights: Tensor | None,
        scales: Tensor | None,
        indices: Tensor,
        block_num: int = -1,
        warp_per_block: int = -1,
        call_local_expert_count: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
        """:meth:`dispatch`, as in mori: with ``AsyncLL`` its first part."""
        return self.dispatch(input, weights, scales, indices, call_local_expert_count=call_local_expert_count)

    def dispatch_recv(self, block_num: int = -1, warp_per_block: int = -1, call_local_expert_count: bool = False) -> None:
        """The second part of a dispatch, with ``AsyncLL``: waits for the other ranks' rows on the stream."""
        if self._sent is None or self._plan is None:
            raise anabranch.UsageError(f"dispatch_recv: {self._parts('dispatch')}")
        self._received = self._plan.native.dispatch_recv(self._sent, stream=self._stream())
        self._sent = None
        self._unpack(call_local_expert_count)

    def _check_dispatch(self, input: Tensor, scales: Tensor | None, indices: Tensor) -> None:
        config = self.config
        width = config.hidden_dim // 2 if input.dtype == FP4 else config.hidden_dim
        if input.dim() != 2 or input.shape[1] != width:
            raise anabranch.UsageError(f"dispatch: input is {tuple(input.shape)} of {input.dtype}; [tokens, {width}] is needed")
        tokens = len(input)
        if tokens > config.max_num_inp_token_per_rank:
            raise anabranch.UsageError(
                f"rank {config.rank} dispatches {tokens} tokens; max_num_inp_token_per_rank is {config.max_num_inp_token_per_rank}"
            )
        if indices.shape != (tokens, config.num_experts_per_token):
            raise anabranch.UsageError(f"dispatch: indices is {tuple(indices.shape)}; {(tokens, config.num_experts_per_token)} is needed")
        if scales is not None and (scales.shape != (tokens, config.scale_dim) or scales.element_size() != config.scale_type_size):
            raise anabranch.UsageError(
                f"dispatch: scales is {tuple(scales.shape)} of {scales.dtype}; {(tokens, config.scale_dim)} with {config.scale_type_size} bytes each "
                "is needed"
            )

    def _plan_for(self, shape: Shape) -> Plan:
        if shape not in self._plans:
            self._plans[shape] = Plan(self._joined, self.config, shape)
        return self._plans[shape]

    def _unpack(self, counts_experts: bool) -> None:
        self._joined.settle()
        self._plan.unpack()
        if counts_experts:
            self._plan.count_experts(self.local_expert_count)

    # --- combine ---

    def combine(
        self,
        input: Tensor,
        weights: Tensor | None,
        indices: Tensor,
        block_num: int = -1,
        rdma_block_num: int = -1,
        warp_per_block: int = -1,
        use_external_inp_buf: int = -1,
        call_reset: bool = False,
        *,
        routing: None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Sums the rows of each token of the last dispatch, without weights, in float32 and the order of the ranks. With ``AsyncLL`` only sends:
        results are there after :meth:`combine_recv`.

        Args:
            input: ``[rows, hidden_dim]`` of the dispatch's type, bfloat16 after rows of 8 or 4 bits; as many rows as came, or more.
            weights: ``[rows, experts per token]`` float32, to be summed too, or ``None``.
            indices: those of the dispatch.
            use_external_inp_buf: 0 or 1 in place of the configuration's, equal on all ranks.
            call_reset: :meth:`reset` follows, not with ``AsyncLL``.
            block_num, rdma_block_num, warp_per_block: no effect.
            routing: not supported.

        Returns:
            ``[max_num_inp_token_per_rank, hidden_dim]``, of which the first rows are those of the dispatched tokens, and the sums of weights,
            ``[max_num_inp_token_per_rank, experts per token]`` float32, or ``None``.
        """
        if routing is not None:
            raise anabranch.UsageError("combine: routing is not supported; combine the last dispatch")
        plan, is_external = self._plan, bool(self.config.use_external_inp_buf if use_external_inp_buf < 0 else use_external_inp_buf)
        if self._received is None or plan is None:
            raise anabranch.UsageError(f"combine: {self._parts('dispatch')}")
        self._check_combine(plan, input, weights, indices, is_external)
        rows = plan.staged(input, is_external)
        if weights is not None and len(weights):
            plan.set_weights(weights)
        out, out_weights = plan.out, None if weights is None or not len(weights) else plan.out_weights
        if self._is_async:
            self._combining = plan.native.combine_send(self._received, rows, stream=self._stream())
        else:
            plan.native.combine(self._received, rows, out=out, out_weights=plan.out_weights)
        # A call that was refused leaves the dispatch as it was.
        self._received = None
        self._joined.settle()
        if call_reset and not self._is_async:
            self.reset()
        return out, out_weights

    def combine_send(
        self, input: Tensor, weights: Tensor | None, indices: Tensor, block_num: int = -1, warp_per_block: int = -1
    ) -> tuple[Tensor, Tensor | None]:
        """:meth:`combine`, as in mori: with ``AsyncLL`` its first part."""
        return self.combine(input, weights, indices)

    def combine_recv(self, block_num: int = -1, warp_per_block: int = -1) -> None:
        """The second part of a combine, with ``AsyncLL``: waits for the other ranks' rows on the stream, and sums."""
        if self._combining is None or self._plan is None:
            raise anabranch.UsageError(f"combine_recv: {self._parts('combine')}")
        self._plan.native.combine_recv(self._combining, out=self._plan.out, out_weights=self._plan.out_weights)
        self._combining = None
        self._joined.settle()

    def _check_combine(self, plan: Plan, input: Tensor, weights: Tensor | None, indices: Tensor, is_external: bool) -> None:
        needed = (plan.shape.summed, self.config.hidden_dim)
        if input.dim() != 2 or (input.dtype, input.shape[1]) != needed or len(input) > self.max_num_tokens_to_recv():
            raise anabranch.UsageError(
                f"combine: input is {tuple(input.shape)} of {input.dtype}; up to {self.max_num_tokens_to_recv()} rows of {needed[1]} elements of "
                f"{needed[0]} are needed"
            )
        top_k = self.config.num_experts_per_token
        if weights is not None and len(weights) and (weights.shape[1:] != (top_k,) or len(weights) > self.max_num_tokens_to_recv()):
            raise anabranch.UsageError(
                f"combine: weights is {tuple(weights.shape)}; up to {self.max_num_tokens_to_recv()} rows of {top_k} are needed"
            )
        if len(indices) != self._tokens:
            raise anabranch.UsageError(
                f"combine: indices has {len(indices)} rows, and rank {self.config.rank} dispatched {self._tokens} tokens; give the indices of the "
                "dispatch, not those that it returned"
            )
        if not is_external and plan.registered is None:
            raise anabranch.UsageError(f"combine: use_external_inp_buf is 0; quant_type {self.config.quant_type} needs 1")

    def get_registered_combine_input_buffer(self, dtype: torch.dtype, hidden_dim: int = -1) -> Tensor:
        """Memory for the input of combine that the other ranks read: ``[max_num_tokens_to_recv(), hidden_dim]``, of the last dispatch's type of
        rows. Not collective; after a first dispatch."""
        if self._plan is None:
            raise anabranch.UsageError("get_registered_combine_input_buffer: there was no dispatch yet, whose rows decide its type")
        if self._plan.registered is None:
            raise anabranch.UsageError(f"get_registered_combine_input_buffer: there is none with quant_type {self.config.quant_type}")
        given, needed = (dtype, hidden_dim), (self._plan.shape.summed, self.config.hidden_dim)
        if dtype != needed[0] or hidden_dim not in (-1, needed[1]):
            raise anabranch.UsageError(f"get_registered_combine_input_buffer: asked for {given}; the last dispatch is combined as {needed}")
        return self._plan.registered

    # --- state ---

    def reset(self) -> None:
        """Ends what is under way: receives what was sent, and releases a dispatch that was not combined. Collective."""
        if self._combining is not None:
            self.combine_recv()
        self._release()

    def _release(self) -> None:
        if self._sent is not None:
            self.dispatch_recv()
        if self._received is not None:
            self._received.release(stream=self._stream())
            self._received = None
            self._joined.settle()

    def _drop(self) -> None:
        """Gives the memory back, when the ranks leave."""
        self.reset()
        self._plans.clear()
        self._plan = None

    def _parts(self, of: str) -> str:
        """Why there is nothing to receive or combine."""
        if self._sent is not None:
            return "the dispatch was sent and not received; call dispatch_recv"
        return f"there is no {of} under way (kernel_type {self.config.kernel_type}; only AsyncLL has calls in two parts)"

    def _stream(self) -> Any:
        """The current stream, for calls without tensors."""
        return None if self._joined.device.type == "cpu" else torch.cuda.current_stream(self._joined.device)

    # --- sizes ---

    def max_num_tokens_to_recv(self) -> int:
        """Rows of a dispatch's results."""
        return self.config.world_size * self.config.most_from_each

    def max_num_tokens_to_recv_per_rank(self) -> int:
        """The same, divided by the ranks."""
        return self.config.most_from_each

    def max_num_tokens_to_send(self) -> int:
        """Most rows that a rank sends."""
        return self.config.world_size * self.config.max_num_inp_token_per_rank

    def max_num_tokens_to_send_per_rank(self) -> int:
        """Most tokens that a rank dispatches."""
        return self.config.max_num_inp_token_per_rank
