"""Normal mode: compact dispatch, and combine along a handle any number of times."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import anabranch

from ._config import Settings
from ._world import Joined

FP8 = torch.float8_e4m3fn


def aligned(counts: Any, alignment: int) -> Any:
    """Numbers, rounded up to multiples."""
    return -(-counts // alignment) * alignment


def as_sent(x: Tensor) -> Tensor:
    """Rows as the library takes them."""
    x = x.detach().contiguous()
    return x.view(torch.uint8) if x.dtype == FP8 else x


def split(call: str, x: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Rows, and their scales if they are in fp8."""
    rows, scales = x if isinstance(x, tuple) else (x, None)
    if rows.dtype != (torch.bfloat16 if scales is None else FP8):
        raise anabranch.UsageError(f"{call}: x is of {rows.dtype}; allowed are bfloat16, and float8_e4m3fn with scales in a tuple")
    if scales is not None and (scales.element_size() != 4 or scales.dim() != 2 or len(scales) != len(rows)):
        raise anabranch.UsageError(
            f"{call}: scales of shape {tuple(scales.shape)} and {scales.dtype} for {len(rows)} tokens; [tokens, n] of 4-byte elements is needed"
        )
    return rows, scales


def as_bytes(scales: Tensor | None) -> Tensor | None:
    """Scales of each token as bytes. Contiguous tensors may have any stride along a dimension of one element, which keeps them from being
    viewed as bytes."""
    if scales is None:
        return None
    scales = scales.detach().contiguous()
    return scales.as_strided(scales.shape, (scales.shape[1], 1)).view(torch.uint8)


_LESS_MEMORY = (
    "Raise heap.bytes (ANABRANCH__HEAP__BYTES), or lower the most tokens of a call: ANABRANCH_DEEP_EP_MAX_TOKENS in normal mode, "
    "num_max_dispatch_tokens_per_rank in low-latency mode"
)


def make_plan(joined: Joined, config: anabranch.EpConfig, hint: str = _LESS_MEMORY) -> anabranch.ExpertParallel:
    """A plan of the group, in one order with the group's others. Collective. Its memory is of the heap; the hint says what to do where that is
    too small."""
    try:
        return joined.world.expert_parallel(config, joined.ranks, order=joined.order)
    except anabranch.ConfigError as error:
        if "heap" not in str(error):
            raise
        raise anabranch.ConfigError(f"{error}. {hint}") from error


class Shape(NamedTuple):
    """What a plan of normal mode is made for."""

    hidden: int
    experts: int
    top_k: int
    dtype: torch.dtype
    scale_bytes: int
    most_rows: int
    """Most rows that a rank receives; 0: the worst case."""


class Handle:
    """A dispatch of normal mode: where its rows went. Good for any number of combines, and of dispatches along it."""

    def __init__(self, plan: Plan, operation: Any, routing: Tensor, tokens: int) -> None:
        self.plan, self.operation, self.routing, self.tokens = plan, operation, routing, tokens
        self.received = 0
        """Rows that this rank gets from a dispatch along it."""


class Plan:
    """A compact plan with the windows of ``Settings.slots`` dispatches."""

    def __init__(self, joined: Joined, shape: Shape, settings: Settings, blocks: int) -> None:
        self._joined, self.device, self.shape, self._slots = joined, joined.device, shape, settings.slots
        config = anabranch.EpConfig(
            hidden=shape.hidden,
            experts=shape.experts,
            top_k=shape.top_k,
            max_tokens=settings.max_tokens,
            dispatch_dtype=shape.dtype,
            combine_dtype=torch.bfloat16,
            scale_bytes=shape.scale_bytes,
            max_recv=shape.most_rows,
            mode="compact",
            slots=settings.slots,
            combine_source="window",
            combine_weights=True,
            id_dtype=torch.int64,
            blocks=blocks,
        )
        self.native = make_plan(joined, config)
        # Raises where routings cannot be saved: with ranks of several nodes.
        self.native.routing_in(torch.empty(self.native.routing_bytes, dtype=torch.uint8, device=joined.device), 0)
        own = self.native.experts_on()
        self.experts = len(own)
        self._max_tokens, self._unpacker = settings.max_tokens, self.native.unpacker()
        self._by_expert: anabranch.ContiguousExperts | None = None
        # Handles whose dispatch has a slot, oldest first.
        self._pending: list[Handle] = []

    def settle(self) -> None:
        """Tensors of the CPU have no stream: what was launched is over."""
        self._joined.settle()

    def by_expert(self) -> anabranch.ContiguousExperts:
        """What copies rows to their experts, and sums them. The first call loads it: before a dispatch, since that may wait for running
        kernels."""
        if self._by_expert is None:
            self._by_expert = self.native.contiguous()
        return self._by_expert

    def _free_slot(self) -> None:
        """The oldest dispatch that was not combined gives its slot back, on all ranks alike; a combine then sends empty rows along its handle
        once more."""
        while len(self._pending) >= self._slots:
            self._release(self._pending[0])

    def _release(self, handle: Handle) -> None:
        self._pending.remove(handle)
        operation, handle.operation = handle.operation, None
        operation.release()

    def dispatch(self, x: Tensor, scales: Tensor | None, ids: Tensor, weights: Tensor | None) -> Handle:
        """Sends tokens, and saves where they went."""
        if len(x) > self._max_tokens:
            raise anabranch.UsageError(
                f"rank {self.native.rank} dispatches {len(x)} tokens; at most {self._max_tokens} are planned (ANABRANCH_DEEP_EP_MAX_TOKENS, equal "
                "on all ranks)"
            )
        self._free_slot()
        weights = None if weights is None else weights.detach().contiguous()
        operation = self.native.dispatch(as_sent(x), ids.to(torch.int64).contiguous(), weights, as_bytes(scales))
        routing = torch.empty(self.native.routing_bytes, dtype=torch.uint8, device=x.device)
        self.native.save_routing(operation, routing)
        handle = Handle(self, operation, routing, len(x))
        self._pending.append(handle)
        self.settle()
        return handle

    def dispatch_along(self, handle: Handle, x: Tensor, scales: Tensor | None, weights: Tensor | None = None) -> None:
        """Sends other rows, and weights if there are any, to where those of the handle went."""
        if (x.dtype, x.shape[1]) != (self.shape.dtype, self.shape.hidden):
            raise anabranch.UsageError(
                f"dispatch: x is [.., {x.shape[1]}] of {x.dtype}; the handle is of [.., {self.shape.hidden}] of {self.shape.dtype}"
            )
        if len(x) != handle.tokens:
            raise anabranch.UsageError(f"x has {len(x)} rows; the handle is of a dispatch of {handle.tokens} tokens")
        if handle.operation is not None:
            self._release(handle)
        self._free_slot()
        kept = self.native.routing_in(handle.routing, handle.tokens)
        weights = None if weights is None else weights.detach().contiguous()
        handle.operation = self.native.dispatch_with(kept, as_sent(x), weights, as_bytes(scales))
        self._pending.append(handle)
        self.settle()

    def learn(self, handle: Handle, worst: int | None) -> int:
        """The number of rows that came. With a number of rows, also 0, it is that, and nothing waits for the device."""
        handle.received = int(torch.from_dlpack(handle.operation.offsets)[-1]) if worst is None else worst
        return handle.received

    def receive(self, handle: Handle) -> tuple[Tensor, Tensor]:
        """The local ids and weights of the rows that came; ids after them are -1."""
        local = torch.empty(handle.received, self.shape.top_k, dtype=torch.int64, device=self.device)
        weights = torch.empty(handle.received, self.shape.top_k, dtype=torch.float32, device=self.device)
        self._unpacker.unpack(handle.operation, ids=local, weights=weights)
        self.settle()
        return local, weights

    def counts(self, local: Tensor) -> Tensor:
        """Rows of each local expert, of local ids."""
        counts = local.new_zeros(self.experts + 1)
        counts.scatter_add_(0, local.flatten() + 1, torch.ones_like(local).flatten())
        return counts[1:]

    def rows(self, handle: Handle, scale_type: torch.dtype | None) -> tuple[Tensor, Tensor | None]:
        """Copies of the rows that came, and of their scales."""
        device = self.device
        rows = torch.empty(handle.received, self.shape.hidden, dtype=self.shape.dtype, device=device)
        # Elements of scales have 4 bytes.
        scales = None if scale_type is None else torch.empty(handle.received, self.shape.scale_bytes // 4, dtype=scale_type, device=device)
        # 8-bit floats travel as bytes.
        self._unpacker.unpack(handle.operation, rows=as_sent(rows), scales=scales)
        self.settle()
        return rows, scales

    def combine(self, handle: Handle, x: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Sums rows, and weights, at their tokens."""
        if len(x) != handle.received:
            raise anabranch.UsageError(f"x has {len(x)} rows; the handle's dispatch brought {handle.received}")
        operation, filled = self.operation(handle), min(len(x), self.native.rows_capacity)
        torch.from_dlpack(operation.combine_rows)[:filled] = x.detach()[:filled]
        return self.combine_window(handle, None if weights is None else weights.detach()[:filled])

    def operation(self, handle: Handle) -> Any:
        """The windows of a combine along the handle: those of its last dispatch, or of one with empty rows."""
        if handle.operation is None:
            empty = torch.zeros(handle.tokens, self.shape.hidden, dtype=self.shape.dtype, device=self.device)
            scales = torch.zeros(handle.tokens, self.shape.scale_bytes, dtype=torch.uint8, device=self.device)
            self.dispatch_along(handle, empty, scales if self.shape.scale_bytes else None)
        return handle.operation

    def combine_window(self, handle: Handle, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Sums the rows that are in the combine window, and weights ``[rows, top_k]``, at their tokens."""
        operation, device = handle.operation, self.device
        if weights is not None:
            torch.from_dlpack(operation.combine_weights)[: len(weights)] = weights
        out = torch.empty(handle.tokens, self.shape.hidden, dtype=torch.bfloat16, device=device)
        out_weights = torch.empty(handle.tokens, self.shape.top_k, dtype=torch.float32, device=device)
        self._pending.remove(handle)
        handle.operation = None
        self.native.combine(operation, out=out, out_weights=out_weights)
        self.settle()
        return out, None if weights is None else out_weights
