"""Low-latency mode: rows grouped by expert, sums with weights, each call also in two parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

import anabranch
from anabranch.torch._windows import Windows

from ._config import BLOCK
from ._normal import FP8, make_plan
from ._world import Joined

# Dispatches that can wait for their combine: one for each of two micro-batches.
SLOTS = 2


class Shape(NamedTuple):
    """What a plan of low-latency mode is made for."""

    hidden: int
    experts: int
    top_k: int
    max_tokens: int
    is_fp8: bool
    is_rounded: bool
    """Whether scales are powers of two."""
    is_packed: bool
    """Whether the exponents of four scales are packed into an int32."""


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """fp8 rows, and a scale for each 128 elements: the least power of two with which they fit."""
    blocks = x.float().unflatten(-1, (-1, BLOCK))
    most = blocks.abs().amax(-1).clamp(min=1e-4) * (1 / 448)
    bits = most.view(torch.int32)
    exponents = (bits >> 23) + (bits & 0x7FFFFF).ne(0)
    scales = (exponents << 23).to(torch.int32).view(torch.float32)
    return (blocks / scales[..., None]).to(FP8).flatten(-2), scales


def require(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuses a tensor of another shape or type."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise anabranch.UsageError(f"{name} is {tuple(tensor.shape)} of {tensor.dtype}; {shape} of {dtype} is needed")


class Handle:
    """A dispatch of low-latency mode, for one combine."""

    def __init__(self, plan: Plan, layout: anabranch.ExpertMajor, ids: Tensor, stats: Tensor | None) -> None:
        self.plan, self.layout, self.ids, self.stats = plan, layout, ids, stats
        self.sent: Any = None
        self.operation: Any = None
        self.buffer: Tensor | None = None
        """The input of a combine without a copy."""
        self.use_current_stream()

    def use_current_stream(self) -> None:
        """A call begins, whose stream may be another one than that of the call before."""
        self.stream = torch.cuda.current_stream() if self.ids.is_cuda else None

    def on_stream(self) -> Any:
        """Hooks launch on the stream of the call that made them."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


class Plan:
    """A slotted plan, and two expert-major layouts of it."""

    def __init__(self, joined: Joined, shape: Shape, mask_after: float | None) -> None:
        self._joined, self.shape = joined, shape
        if shape.is_fp8 and not shape.is_rounded:
            rows: dict[str, Any] = {"dispatch_cast": "fp8_block", "cast_from": torch.bfloat16}
        elif shape.is_fp8:
            rows = {"dispatch_dtype": FP8, "scale_bytes": shape.hidden // BLOCK * 4}
        else:
            rows = {"dispatch_dtype": torch.bfloat16}

        config = anabranch.EpConfig(
            hidden=shape.hidden,
            experts=shape.experts,
            top_k=shape.top_k,
            max_tokens=shape.max_tokens,
            mask_after=mask_after,
            slots=SLOTS,
            combine_dtype=torch.bfloat16,
            mode="slotted",
            combine_source="window",
            late_weights=True,
            id_dtype=torch.int64,
            **rows,
        )
        self.native = make_plan(joined, config)
        # The layout that was used last is the last one.
        scales = "packed_columns" if shape.is_packed else "columns"
        self._layouts = deque(self.native.expert_major(scale_layout=scales) for _ in range(SLOTS))
        self._window = Windows()
        # Handles that were not combined, oldest first.
        self._pending: list[Handle] = []
        # A rank that still compiles kernels is not masked for it.
        joined.world.barrier(ranks=joined.ranks)

    def drop_pending(self, most: int = 0) -> None:
        """Releases the oldest dispatches that were not combined, all but ``most``, on all ranks alike."""
        while len(self._pending) > most:
            handle = self._pending.pop(0)
            with handle.on_stream():
                if handle.operation is None:
                    handle.operation = self.native.dispatch_recv(handle.sent)
                handle.operation.release()
            handle.sent = handle.operation = None

    def dispatch(self, x: Tensor, ids: Tensor, stats: Tensor | None, in_parts: bool) -> Handle:
        """Sends tokens; without parts also receives them."""
        self.drop_pending(SLOTS - 1)
        layout = next(layout for layout in self._layouts if all(handle.layout is not layout for handle in self._pending))
        self._layouts.remove(layout)
        self._layouts.append(layout)
        handle = Handle(self, layout, ids.to(torch.int64).contiguous(), stats)
        x = x.detach().contiguous()
        sent: tuple[Any, ...] = (x, handle.ids)
        if self.shape.is_rounded:
            rows, scales = quantized(x)
            sent = (rows.view(torch.uint8), handle.ids, None, scales.view(torch.uint8))
        if in_parts:
            handle.sent = self.native.dispatch_send(*sent)
        else:
            handle.operation = layout.dispatch(*sent)
        self._pending.append(handle)
        if not in_parts:
            self._received(handle)
        return handle

    def _received(self, handle: Handle) -> None:
        """Adds to the caller's statistics."""
        self._joined.settle()
        if handle.stats is not None:
            handle.stats += self.counts(handle)

    def receive(self, handle: Handle) -> None:
        """The second part of a dispatch."""
        if handle.sent is None:
            raise anabranch.UsageError("this hook was called already, or two later dispatches have taken its place")
        sent, handle.sent = handle.sent, None
        with handle.on_stream():
            handle.operation = self.native.dispatch_recv(sent)
            handle.layout.expand(handle.operation)
            self._received(handle)

    def rows(self, handle: Handle) -> tuple[Tensor, Tensor] | Tensor:
        """The rows by expert, with scales in fp8: the layout itself, which the second next dispatch overwrites."""
        # Tensors of the caller's own: what it does to them stays out of the plan's.
        if not self.shape.is_fp8:
            return self._window(handle.layout, "rows").detach()
        return self._window(handle.layout, "rows", FP8).detach(), self._window(handle.layout, "scales").detach()

    def counts(self, handle: Handle) -> Tensor:
        """Rows of each local expert."""
        return self._window(handle.layout, "counts").detach()

    def combine_buffer(self, handle: Handle) -> Tensor:
        """Memory for the experts' output, for a combine without a copy."""
        if handle.buffer is None:
            shape = (len(handle.layout.experts), handle.layout.capacity, self.shape.hidden)
            handle.buffer = torch.empty(shape, dtype=torch.bfloat16, device=handle.ids.device)
        return handle.buffer

    def combine(self, handle: Handle, x: Tensor, weights: Tensor, out: Tensor | None, in_parts: bool) -> tuple[Tensor, Callable[[], None] | None]:
        """Sums weighted rows at their tokens; the second part is a hook, if in parts."""
        tokens = len(handle.ids)
        if handle.operation is None:
            state = "its hook was not called" if handle.sent is not None else "it was combined already, or two later dispatches have taken its place"
            raise anabranch.UsageError(f"this dispatch cannot be combined: {state}")
        if weights.shape != handle.ids.shape:
            raise anabranch.UsageError(f"topk_weights has shape {tuple(weights.shape)}; the dispatch had ids of shape {tuple(handle.ids.shape)}")
        # All before the weights are sent, which is a call of all ranks.
        places = (len(handle.layout.experts), handle.layout.capacity, self.shape.hidden)
        require("x", x, places, torch.bfloat16)
        require("topk_weights", weights, tuple(handle.ids.shape), torch.float32)
        if out is not None:
            require("out", out, (tokens, self.shape.hidden), torch.bfloat16)
            if not out.is_contiguous():
                raise anabranch.UsageError(f"out has strides {out.stride()}; it must be contiguous")
        else:
            out = torch.empty(tokens, self.shape.hidden, dtype=torch.bfloat16, device=x.device)
        handle.use_current_stream()
        operation = handle.operation
        x, weights = x.detach().contiguous(), weights.detach().contiguous()
        self.native.send_weights(operation, weights)
        handle.layout.contract(operation, x)
        self._pending.remove(handle)
        handle.operation = None
        if not in_parts:
            self.native.combine(operation, out=out)
            self._joined.settle()
            return out, None
        # On the stream of this call, as contract: without rows of the caller's the other stream is that of the dispatch.
        sent, on_stream = self.native.combine_send(operation, stream=handle.stream), handle.on_stream

        def receive() -> None:
            with on_stream():
                self.native.combine_recv(sent, out=out)
                self._joined.settle()

        return out, receive
