"""Rows by expert: where the rows of a dispatch go, and their way back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _normal as normal

# Elements of scales in 16 bytes: columns of scales start at a multiple.
_SCALES = 4


class Expanded(NamedTuple):
    """A layout with a place for each pair of a row and one of its experts, the places of an expert next to each other."""

    slots: Tensor
    """``[rows, top_k]``: the place of each pair; -1 where the expert is not of this rank."""
    pairs: Tensor
    """``[places]``: row times top_k plus k; negative in the padding."""


def expanded(local: Tensor, counts: Tensor, alignment: int, places: int) -> Expanded:
    """Places of pairs with local ids ``[rows, top_k]``, in the order of the experts, then of the rows. Each expert starts at a multiple of the
    alignment. Nothing waits for the device."""
    padded = normal.aligned(counts, alignment)
    # What lies between a pair's number, without padding, and its place. Pairs without an expert of this rank come last.
    shift = torch.nn.functional.pad((padded - counts).cumsum(0) - (padded - counts), (0, 1))
    experts = torch.where(local < 0, len(counts), local).flatten()
    order = experts.sort(stable=True)
    place = torch.arange(len(experts), device=local.device) + shift[order.values]
    is_own = order.values < len(counts)
    pairs = local.new_full((places + 1,), -1).scatter_(0, torch.where(is_own, place, places), order.indices)
    slots = torch.empty_like(experts).scatter_(0, order.indices, torch.where(is_own, place, -1))
    return Expanded(slots.view_as(local), pairs[:-1])


def spread(rows: Tensor, layout: Expanded, with_zeros: bool) -> Tensor:
    """Rows at their places. What is in the padding is undefined without zeros."""
    source = layout.pairs.div(layout.slots.shape[1], rounding_mode="floor")
    placed = rows.index_select(0, source.clamp(min=0))
    return placed.masked_fill_((source < 0)[:, None], 0) if with_zeros else placed


def spread_weights(weights: Tensor, layout: Expanded) -> Tensor:
    """Weights ``[rows, top_k]`` at their places; 0 in the padding."""
    flat = torch.nn.functional.pad(weights.flatten(), (0, 1))
    return flat[torch.where(layout.pairs < 0, weights.numel(), layout.pairs)]


def summed(x: Tensor, slots: Tensor) -> Tensor:
    """For each row the sum of what is at its places, in float32 and in the order of its experts, rounded."""
    sums = torch.zeros(len(slots), x.shape[1], dtype=torch.float32, device=x.device)
    if len(x):
        for slot in slots.T:
            sums += torch.where((slot >= 0)[:, None], x.index_select(0, slot.clamp(min=0)).float(), 0)
    return sums.to(x.dtype)


def gathered_weights(weights: Tensor, slots: Tensor) -> Tensor:
    """``[rows, top_k]`` of weights at places; 0 where there is no place."""
    flat = torch.nn.functional.pad(weights, (0, 1))
    return flat[torch.where(slots < 0, len(weights), slots)]


def column_major(scales: Tensor) -> Tensor:
    """The same scales, the rows of a column next to each other, each column from a multiple of 16 bytes on."""
    rows, columns = scales.shape
    placed = torch.empty_strided((rows, columns), (1, normal.aligned(rows, _SCALES)), dtype=scales.dtype, device=scales.device)
    return placed.copy_(scales)
