"""Dispatch and combine as differentiable functions of torch's tensors.

The backward pass of combine sends gradients along the routing of the forward pass (``dispatch_with``); that of dispatch sums them (``combine``).
Outputs are tensors of their own: the windows of the library are copied out, because autograd keeps what it needs while later calls reuse them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

import anabranch


class Received(NamedTuple):
    """What the experts of this rank got. Rows that no token came to are zero, and their ids -1."""

    rows: torch.Tensor
    """``[rows, hidden]``."""
    ids: torch.Tensor
    """``[rows, top_k]`` int32: the experts that the token of a row named, also those of other ranks."""
    weights: torch.Tensor
    """``[rows, top_k]`` float32, as dispatched."""
    routing: "_Routing"
    """What combine needs; of this call alone."""
    link: torch.Tensor
    """No elements. Through it the backward pass of combine comes before that of dispatch, on every rank: also where no row came, or where the
    experts' output does not depend on the rows."""


class _Routing:
    """The routing of a forward pass, and the operation that waits for its combine."""

    def __init__(self, layer: "ExpertParallel", kept: Any, pending: Any, tokens: int) -> None:
        self.layer, self.kept, self.pending, self.tokens = layer, kept, pending, tokens

    def take(self, like: torch.Tensor) -> Any:
        """The operation to combine. Where there is none any more, rows are sent once more along the routing."""
        pending, self.pending = self.pending, None
        if pending is None:
            layer = self.layer
            zeros = like.new_zeros(self.tokens, layer.hidden, dtype=layer.dtype)
            weights = zeros.new_zeros(self.tokens, layer.top_k, dtype=torch.float32)
            pending = layer._begin(lambda: layer.native.dispatch_with(self.kept, zeros, weights))
        self.layer._pending = None
        return pending


class ExpertParallel:
    """Dispatch and combine among the ranks of a world, with gradients.

    Making one is collective, and so is every call: all ranks of the group make the same calls, in the same order, also with 0 tokens.

    Args:
        world: the joined world.
        hidden: elements of a token.
        experts: experts of all ranks; ``experts_on()`` lists those of this rank.
        top_k: experts a token names.
        max_tokens: most tokens a rank dispatches in a call.
        dtype: of tokens, experts' output and gradients: bfloat16, float16 or float32.
        ranks: the group; ``None`` is the world.
        options: further keywords of ``anabranch.EpConfig``.
    """

    def __init__(
        self,
        world: anabranch.World,
        *,
        hidden: int,
        experts: int,
        top_k: int,
        max_tokens: int,
        dtype: torch.dtype = torch.bfloat16,
        ranks: list[int] | None = None,
        **options: Any,
    ) -> None:
        config = anabranch.EpConfig(
            hidden=hidden,
            experts=experts,
            top_k=top_k,
            max_tokens=max_tokens,
            dispatch_dtype=dtype,
            combine_dtype=dtype,
            combine_weights=True,
            **options,
        )
        self.world, self.hidden, self.top_k, self.dtype = world, hidden, top_k, dtype
        self.native = world.expert_parallel(config, ranks)
        self._pending: _Routing | None = None

    def experts_on(self, rank: int | None = None) -> list[int]:
        """The experts of a rank, ascending; ``None`` is this rank."""
        return self.native.experts_on(rank)

    def dispatch(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> Received:
        """Sends each token once to every rank that owns one of its experts.

        Args:
            x: ``[tokens, hidden]`` of the layer's dtype.
            topk_ids: ``[tokens, top_k]``, any integer type; -1 is no expert. Other ids without an expert count as -1, and
                ``native.check_ids()`` raises for them.
            topk_weights: ``[tokens, top_k]`` float32.

        Gradients flow to ``x`` and ``topk_weights``.
        """
        ids = topk_ids.to(torch.int32).contiguous()
        holder: list[Any] = []
        rows, weights, row_ids, link = _Dispatch.apply(x, topk_weights, ids, self, holder)
        return Received(rows, row_ids, weights, holder[0], link)

    def combine(self, y: torch.Tensor, received: Received) -> torch.Tensor:
        """Sums the experts' output of each token: ``[tokens, hidden]``. Weights are not applied: the experts do that.

        Args:
            y: ``[rows, hidden]``, each row at the place of the row that it came from.
            received: of the dispatch.
        """
        if received.routing.layer is not self:
            raise anabranch.UsageError("these rows were received by another ExpertParallel")
        if tuple(y.shape) != tuple(received.rows.shape):
            raise anabranch.UsageError(f"y has shape {tuple(y.shape)}; {tuple(received.rows.shape)} is needed, a row for each received one")
        return _Combine.apply(y, received.link, received.routing, self)

    def _begin(self, call: Any) -> Any:
        """Starts an operation. A slot that still waits for a combine that autograd did not ask for is given back, on all ranks alike."""
        if self._pending is not None and self._pending.pending is not None:
            self._pending.pending.release()
            self._pending.pending = None
        self._pending = None
        operation = call()
        self._settle()
        return operation

    def _settle(self) -> None:
        """CPU tensors have no stream: results are there when the call returns."""
        if self.world.runtime == "host":
            self.world.synchronize()

    def _received(self, operation: Any) -> torch.Tensor:
        """Which rows of the windows came, ``[rows, 1]``."""
        counts = torch.from_dlpack(operation.counts)
        places = torch.arange(self.native.rows_capacity, device=counts.device)
        stride = self.native.row_stride
        if stride:
            return (places % stride < counts[places // stride])[:, None]
        return (places < torch.from_dlpack(operation.offsets)[-1])[:, None]

    def _rows(self, operation: Any) -> torch.Tensor:
        rows = torch.from_dlpack(operation.rows)
        return torch.where(self._received(operation), rows, rows.new_zeros(()))

    def _sum(self, operation: Any, y: torch.Tensor, weights: torch.Tensor | None, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        if weights is not None:
            torch.from_dlpack(operation.combine_weights).copy_(weights)
        out = y.new_empty(tokens, self.hidden, dtype=self.dtype)
        out_weights = y.new_empty(tokens, self.top_k, dtype=torch.float32)
        self.native.combine(operation, y.to(self.dtype).contiguous(), out=out, out_weights=out_weights)
        self._settle()
        return out, out_weights


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, layer: ExpertParallel, holder: list[Any]) -> Any:
        sent = weights.detach().contiguous()
        operation = layer._begin(lambda: layer.native.dispatch(x.detach().contiguous(), ids, sent))
        routing = _Routing(layer, layer.native.routing(operation), operation, len(x))
        layer._settle()
        layer._pending = routing
        holder.append(routing)
        ctx.routing, ctx.layer = routing, layer
        came = layer._received(operation)
        row_weights, row_ids = torch.from_dlpack(operation.weights), torch.from_dlpack(operation.ids)
        row_ids = torch.where(came, row_ids, row_ids.new_full((), -1))
        ctx.mark_non_differentiable(row_ids)
        return layer._rows(operation), torch.where(came, row_weights, row_weights.new_zeros(())), row_ids, x.new_zeros(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, rows: torch.Tensor, weights: torch.Tensor, _ids: Any, _link: Any) -> Any:
        operation = ctx.routing.take(rows)
        x, sums = ctx.layer._sum(operation, rows, weights, ctx.routing.tokens)
        return x, sums, None, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, link: torch.Tensor, routing: _Routing, layer: ExpertParallel) -> torch.Tensor:
        ctx.routing, ctx.layer = routing, layer
        out, _ = layer._sum(routing.take(y), y.detach(), None, routing.tokens)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        layer, routing = ctx.layer, ctx.routing
        weights = gradient.new_zeros(routing.tokens, layer.top_k, dtype=torch.float32)
        rows = gradient.to(layer.dtype).contiguous()
        operation = layer._begin(lambda: layer.native.dispatch_with(routing.kept, rows, weights))
        # The backward pass of the dispatch combines it.
        routing.pending, layer._pending = operation, routing
        return layer._rows(operation), gradient.new_zeros(0), None, None
