"""What an ElasticBuffer gives: rows as they came, or by expert, the rows of all experts one after the other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _normal as normal

# Elements of scales in 16 bytes: columns of scales start at a multiple.
_SCALES = 4


class Form(NamedTuple):
    """How a dispatch gives its rows."""

    alignment: int
    scale_type: torch.dtype | None
    by_columns: bool
    """Scales are column-major."""
    with_zeros: bool
    has_weights: bool


class Received(NamedTuple):
    """What a dispatch brought."""

    rows: Tensor
    scales: Tensor | None
    local: Tensor | None
    """Local ids ``[rows, top_k]``; ``None`` by expert."""
    weights: Tensor | None


class Layout(NamedTuple):
    """Where the rows of a dispatch are by expert."""

    slots: Tensor
    """``[window's rows, top_k]`` int32: the place of each pair of a row and one of its experts; negative where it has none."""
    counts: Tensor
    """``[local experts]`` int32: rows of each."""
    starts: Tensor
    """``[local experts + 1]`` int32: the first place of each, and the one after all of them."""


def unpack(route: normal.Handle, form: Form) -> Received:
    """The rows that came, one after the other."""
    local, weights = route.plan.receive(route)
    rows, scales = route.plan.rows(route, form.scale_type)
    if scales is not None and form.by_columns:
        scales = _column_major(scales)
    return Received(rows, scales, local, weights if form.has_weights else None)


def empty_layout(plan: normal.Plan) -> Layout:
    """A layout for :func:`expand`."""
    counts, starts = (torch.empty(n, dtype=torch.int32, device=plan.device) for n in (plan.experts, plan.experts + 1))
    # Entries of rows that do not come stay as they are.
    slots = torch.full((plan.native.rows_capacity, plan.shape.top_k), -1, dtype=torch.int32, device=plan.device)
    return Layout(slots, counts, starts)


def places_of(route: normal.Handle, layout: Layout, form: Form) -> list[int]:
    """The places of each local expert: its rows, rounded up. The host waits for the device."""
    # Without places, an expand only counts.
    expand(route, layout, 0, form._replace(has_weights=False))
    starts = layout.starts.tolist()
    return [end - start for start, end in zip(starts, starts[1:])]


def most_places(route: normal.Handle, form: Form) -> int:
    """Places for as many rows as the route may have. The experts of a token differ."""
    experts = route.plan.experts
    most = route.received * min(route.plan.shape.top_k, experts) + (form.alignment - 1) * experts
    return normal.aligned(most, form.alignment)


def expand(route: normal.Handle, layout: Layout, places: int, form: Form) -> Received:
    """The rows that came at their places, and the layout, which is written."""
    plan, scale_type = route.plan, form.scale_type
    rows = torch.empty(places, plan.shape.hidden, dtype=plan.shape.dtype, device=plan.device)
    weights = torch.empty(places, dtype=torch.float32, device=plan.device) if form.has_weights else None
    stored = scales = None
    if scale_type is not None:
        words = plan.shape.scale_bytes // scale_type.itemsize
        shape = (words, normal.aligned(places, _SCALES)) if form.by_columns else (places, words)
        stored = torch.empty(shape, dtype=scale_type, device=plan.device)
        scales = stored.t()[:places] if form.by_columns else stored
    plan.by_expert().expand(
        route.operation,
        # 8-bit floats travel as bytes.
        normal.as_sent(rows),
        layout,
        alignment=form.alignment,
        scale_layout="columns" if form.by_columns else "rows",
        zero_padding=form.with_zeros,
        scales=stored,
        weights=weights,
    )
    plan.settle()
    return Received(rows, scales, None, weights)


def combine(route: normal.Handle, layout: Layout, x: Tensor, weights: Tensor | None, count: int) -> tuple[Tensor, Tensor | None]:
    """Sums what is at the places of each row that came, in float32 and in the order of its experts, rounds, and combines the sums; weights
    ``[places]`` of ``count`` rows are brought back."""
    plan = route.plan
    plan.by_expert().contract(plan.operation(route), x.detach().contiguous(), layout.slots, weighted=False)
    if weights is not None:
        slots = layout.slots[:count].long()
        flat = torch.nn.functional.pad(weights.detach(), (0, 1))
        weights = flat[torch.where(slots < 0, len(weights), slots)]
    return plan.combine_window(route, weights)


def padded(rows: Tensor, count: int, value: int) -> Tensor:
    """``[count, ..]``: rows, and after them a value."""
    return torch.nn.functional.pad(rows, (0, 0, 0, count - len(rows)), value=value)


def _column_major(scales: Tensor) -> Tensor:
    """The same scales, the rows of a column next to each other, each column from a multiple of 16 bytes on."""
    rows, columns = scales.shape
    placed = torch.empty_strided((rows, columns), (1, normal.aligned(rows, _SCALES)), dtype=scales.dtype, device=scales.device)
    return placed.copy_(scales)
