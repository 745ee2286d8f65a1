"""Dispatch and combine for layers of torch, with gradients.

Every call is a custom op (``torch.ops.anabranch.ep_dispatch`` and so on) with a fake kernel: ``torch.compile`` keeps it in its graph, and CUDA
graphs capture it. The plan of an op is named by a string.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

import anabranch

from . import _ep_grouped as _grouped
from . import _ep_ops as _ops
from ._ep_plan import Plan


class Received(NamedTuple):
    """What the experts of this rank got. Rows that no token came to are zero, and their ids -1."""

    rows: torch.Tensor
    """``[rows, hidden]``."""
    scales: torch.Tensor
    """``[rows, scale_bytes]`` uint8."""
    ids: torch.Tensor
    """``[rows, top_k]`` int32: the experts that the token of a row named, also those of other ranks."""
    weights: torch.Tensor
    """``[rows, top_k]`` float32, as dispatched."""
    counts: torch.Tensor
    """``[ranks]`` int32: rows from each rank."""
    link: torch.Tensor
    """No elements; orders the backward pass."""
    routing: torch.Tensor
    """The saved routing; no elements where gradients were disabled."""
    number: torch.Tensor
    """The dispatch's number, on the CPU."""
    tokens: int
    """Tokens that this rank dispatched."""
    plan: str
    """The plan's name."""


class ReceivedByExpert(NamedTuple):
    """What the experts of this rank got, grouped by expert. Rows beyond an expert's count are zero."""

    rows: torch.Tensor
    """``[local experts, capacity, hidden]``: the input of grouped matrix products."""
    scales: torch.Tensor
    """``[local experts, capacity, scale_bytes]`` uint8."""
    weights: torch.Tensor
    """``[local experts, capacity]`` float32, as dispatched. Combine multiplies by them; others may take their place."""
    counts: torch.Tensor
    """``[local experts]`` int32: rows of each expert."""
    link: torch.Tensor
    """No elements; orders the backward pass."""
    routing: torch.Tensor
    """The saved routing; no elements where gradients were disabled."""
    number: torch.Tensor
    """The dispatch's number, on the CPU."""
    tokens: int
    """Tokens that this rank dispatched."""
    plan: str
    """The plan's name."""


class ReceivedGrouped(NamedTuple):
    """What the experts of this rank got, the rows of each expert after those of the expert before. Places without a row are zero."""

    rows: torch.Tensor
    """``[places, hidden]``: the input of ``torch._grouped_mm(rows, matrices, offs=starts[1:])``, which needs an alignment of 16 bytes: 8 for
    bfloat16."""
    scales: torch.Tensor
    """``[places, scale_bytes]`` uint8."""
    weights: torch.Tensor
    """``[places]`` float32, as dispatched. Combine multiplies by them; others may take their place."""
    counts: torch.Tensor
    """``[local experts]`` int32: rows of each expert."""
    starts: torch.Tensor
    """``[local experts + 1]`` int32: the first place of each expert, a multiple of the alignment, and the end of the last; at most ``places``."""
    slots: torch.Tensor
    """``[received rows, top_k]`` int32: the place of each pair of a row and an expert; -1 for an expert of another rank, -2 for a pair without a
    place. Undefined for rows that did not come."""
    link: torch.Tensor
    """No elements; orders the backward pass."""
    routing: torch.Tensor
    """The saved routing; no elements where gradients were disabled."""
    number: torch.Tensor
    """The dispatch's number, on the CPU."""
    tokens: int
    """Tokens that this rank dispatched."""
    plan: str
    """The plan's name."""


class ExpertParallel:
    """Dispatch and combine among the ranks of a world, with gradients.

    Making one is collective, and so is every call: all ranks of the group make the same calls, in the same order, also with 0 tokens.

    Args:
        world: the joined world; ``anabranch.torch.world()`` is that of ``torch.distributed``.
        hidden: elements of a token.
        experts: experts of all ranks; ``experts_on()`` lists those of this rank.
        top_k: experts a token names.
        max_tokens: most tokens a rank dispatches in a call.
        dtype: of tokens, experts' output and gradients: bfloat16, float16 or float32.
        ranks: the group; ``None`` is the world.
        capacity: rows of each expert in ``dispatch_experts`` (0: as many as a rank can receive); ``None``: there is no such layout.
        places: of ``dispatch_grouped``, for the rows of all experts; ``None``: there are none. Each dispatch fills them with zeros. 0 is enough for
            every routing: about ``ranks * max_tokens * top_k``, and the alignment of each expert.
        alignment: ``capacity``, and the first place of each expert, are multiples of it, a power of two up to 1024.
        slots: dispatches that may wait for their combine at once.
        id_dtype: of expert ids, int32 or int64; ids of other types are converted by a kernel before each dispatch.
        name: of the plan, once in a process; ``None`` makes one up.
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
        capacity: int | None = None,
        places: int | None = None,
        alignment: int = 1,
        slots: int = 1,
        id_dtype: torch.dtype = torch.int32,
        name: str | None = None,
        **options: Any,
    ) -> None:
        if id_dtype not in (torch.int32, torch.int64):
            raise anabranch.UsageError(f"id_dtype is {id_dtype!r}; allowed are torch.int32 and torch.int64")
        config = anabranch.EpConfig(
            hidden=hidden,
            experts=experts,
            top_k=top_k,
            max_tokens=max_tokens,
            dispatch_dtype=dtype,
            combine_dtype=dtype,
            combine_weights=True,
            slots=slots,
            id_dtype=id_dtype,
            **options,
        )
        self._id_dtype = id_dtype
        layout = None if capacity is None else (capacity, alignment)
        grouped = None if places is None else (places, alignment)
        self._plan = Plan(world, config, ranks, slots, dtype, layout, grouped, name)
        self.world, self.native, self.name = world, self._plan.native, self._plan.name
        self._experts = [self.native.experts_on(rank) for rank in range(self.native.size)]

    def experts_on(self, rank: int | None = None) -> list[int]:
        """The experts of a rank, ascending; ``None`` is this rank."""
        return self._experts[self._plan.rank if rank is None else rank]

    def dispatch(
        self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, scales: torch.Tensor | None = None
    ) -> Received:
        """Sends each token once to every rank that owns one of its experts.

        Args:
            x: ``[tokens, hidden]`` of the layer's dtype.
            topk_ids: ``[tokens, top_k]``, any integer type; -1 is no expert. Other ids without an expert count as -1, and
                ``native.check_ids()`` raises for them.
            topk_weights: ``[tokens, top_k]`` float32.
            scales: ``scale_bytes`` bytes a token, in plans with them. They have no gradients.

        Gradients flow to ``x`` and ``topk_weights``.
        """
        sent = (x, topk_ids.to(self._id_dtype), topk_weights, scales, self.name, torch.is_grad_enabled())
        return Received(*_ops.ep_dispatch(*sent), x.shape[0], self.name)

    def combine(self, y: torch.Tensor, received: Received) -> torch.Tensor:
        """Sums the experts' output of each token: ``[tokens, hidden]``. Weights are not applied: the experts do that.

        Args:
            y: ``[rows, hidden]``, each row at the place of the row that it came from.
            received: of the dispatch.
        """
        self._check(y, received, Received)
        return _ops.ep_combine(y, self._link(received), received.routing, received.number, received.tokens, self.name)

    def dispatch_experts(
        self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, scales: torch.Tensor | None = None
    ) -> ReceivedByExpert:
        """As :meth:`dispatch`, with the rows grouped by expert. A token that names two experts of a rank has two rows there. Rows of an expert
        beyond ``capacity`` are dropped."""
        sent = (x, topk_ids.to(self._id_dtype), topk_weights, scales, self.name, torch.is_grad_enabled())
        return ReceivedByExpert(*_ops.ep_dispatch_experts(*sent), x.shape[0], self.name)

    def combine_experts(self, y: torch.Tensor, received: ReceivedByExpert) -> torch.Tensor:
        """Sums the experts' output of each token, times ``received.weights``: ``[tokens, hidden]``.

        Args:
            y: ``[local experts, capacity, hidden]``.
            received: of :meth:`dispatch_experts`.
        """
        self._check(y, received, ReceivedByExpert)
        self._check_weights(received.weights, y.shape[:2])
        # What others make of weights of 0 at empty places may be infinite, and would be in gradients.
        weights = torch.where(self._plan.is_pair(received.counts), received.weights, 0)
        of = (weights, self._link(received), received.routing, received.number, received.tokens)
        return _ops.ep_combine_experts(y, *of, self.name)

    def dispatch_grouped(
        self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, scales: torch.Tensor | None = None
    ) -> ReceivedGrouped:
        """As :meth:`dispatch_experts`, with the rows of all experts one after the other, in a tensor of ``places`` rows. Rows for which there is
        no place are dropped."""
        sent = (x, topk_ids.to(self._id_dtype), topk_weights, scales, self.name, torch.is_grad_enabled())
        return ReceivedGrouped(*_grouped.ep_dispatch_grouped(*sent), x.shape[0], self.name)

    def combine_grouped(self, y: torch.Tensor, received: ReceivedGrouped) -> torch.Tensor:
        """Sums the experts' output of each token, times ``received.weights``: ``[tokens, hidden]``.

        Args:
            y: ``[places, hidden]``.
            received: of :meth:`dispatch_grouped`.
        """
        self._check(y, received, ReceivedGrouped)
        self._check_weights(received.weights, y.shape[:1])
        weights = received.weights
        if torch.is_grad_enabled():
            # What grouped products leave in places without a row would be in gradients.
            weights = torch.where(self._plan.is_place_taken(received.counts, received.starts), weights, 0)
        of = (weights, received.slots, self._link(received), received.routing, received.number, received.tokens)
        return _grouped.ep_combine_grouped(y, *of, self.name)

    @staticmethod
    def _check_weights(weights: torch.Tensor, shape: torch.Size) -> None:
        if weights.shape != shape or weights.dtype != torch.float32:
            given = f"{weights.dtype} of shape {tuple(weights.shape)}"
            raise anabranch.UsageError(f"received.weights is {given}; torch.float32 of shape {tuple(shape)} is needed")

    def _link(self, received: Received | ReceivedByExpert | ReceivedGrouped) -> torch.Tensor:
        """What gives the combine's output a gradient on every rank, also where no expert got a row and only experts are trained."""
        return received.link if received.link.requires_grad else self._plan.anchor

    def _check(self, y: torch.Tensor, received: Any, kind: type) -> None:
        if not isinstance(received, kind):
            raise anabranch.UsageError(f"received is a {type(received).__name__}; a {kind.__name__} is needed")
        if received.plan != self.name:
            raise anabranch.UsageError("these rows were received by another ExpertParallel")
        if y.shape != received.rows.shape:
            raise anabranch.UsageError(f"y has shape {tuple(y.shape)}; {tuple(received.rows.shape)} is needed, a row for each received one")
