"""Dispatch and combine as custom ops of torch: functional, with fake kernels and gradients.

The backward pass of combine sends gradients along the routing of the forward pass (``*_with``); that of dispatch sums them (``*_weights``).
Outputs are tensors of their own: the windows of the library are copied out, because graphs keep what later calls overwrite. Every op is
collective over the ranks of the plan.

``link`` has no elements. Through it the backward pass of combine comes before that of dispatch on every rank, also where the experts' output
does not depend on the rows. Where the dispatch has no gradients, the plan's anchor is in its place. ``number``, on the CPU, is the dispatch's number; ``routing`` is its saved routing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from ._ep_plan import Plan, plan_named


def _named(number: int) -> Tensor:
    return torch.tensor([number], dtype=torch.int64)


def _scales(plan: Plan, operation: Any, mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    if plan.scale_bytes == 0:
        return torch.empty(*shape, 0, dtype=torch.uint8, device=mask.device)
    return plan.kept(operation, "scales", mask)


# --- rows in the order of their sources ---


@custom_op("anabranch::ep_dispatch", mutates_args=())
def ep_dispatch(
    x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, scales: torch.Tensor | None, plan: str, save: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sends each token once to every rank that owns one of its experts: rows ``[rows, hidden]``, scales, ids and weights of the rows, rows
    from each rank, link, routing, number. Rows that no token came to are zero, and their ids -1."""
    of = plan_named(plan)
    operation, routing, number = of.dispatch(x, topk_ids, topk_weights, scales, save)
    came = of.received(operation)
    return (
        of.kept(operation, "rows", came),
        _scales(of, operation, came, (of.rows,)),
        of.kept(operation, "ids", came, -1),
        of.kept(operation, "weights", came),
        of.window(operation, "counts").clone(),
        topk_weights.new_empty(0),
        routing,
        _named(number),
    )


@ep_dispatch.register_fake
def _(x, topk_ids, topk_weights, scales, plan, save):
    of = plan_named(plan)
    return (
        x.new_empty(of.rows, of.hidden, dtype=of.dtype),
        x.new_empty(of.rows, of.scale_bytes, dtype=torch.uint8),
        topk_ids.new_empty(of.rows, of.top_k, dtype=torch.int32),
        topk_weights.new_empty(of.rows, of.top_k),
        topk_ids.new_empty(of.ranks, dtype=torch.int32),
        topk_weights.new_empty(0),
        x.new_empty(of.native.routing_bytes if save else 0, dtype=torch.uint8),
        torch.empty(1, dtype=torch.int64, device="cpu"),
    )


@custom_op("anabranch::ep_dispatch_with", mutates_args=())
def ep_dispatch_with(
    x: torch.Tensor, routing: torch.Tensor, number: torch.Tensor, plan: str, is_last: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sends gradients along a saved routing: rows and link. ``ep_combine_weights`` of the same dispatch comes next, unless it is the last."""
    of = plan_named(plan)
    weights = x.new_zeros(len(x), of.top_k, dtype=torch.float32)
    operation = of.dispatch_with((int(number), True), routing, x, weights)
    rows = of.kept(operation, "rows", of.received(operation))
    if is_last:
        of.release((int(number), True))
    return rows, weights.new_empty(0)


@ep_dispatch_with.register_fake
def _(x, routing, number, plan, is_last=False):
    of = plan_named(plan)
    return x.new_empty(of.rows, of.hidden, dtype=of.dtype), x.new_empty(0, dtype=torch.float32)


@custom_op("anabranch::ep_combine", mutates_args=())
def ep_combine(y: torch.Tensor, link: torch.Tensor, routing: torch.Tensor, number: torch.Tensor, tokens: int, plan: str) -> torch.Tensor:
    """Sums the experts' output of each token of a dispatch, ``[tokens, hidden]``. ``y`` is ``[rows, hidden]``."""
    of = plan_named(plan)
    operation = of.take((int(number), False), routing, tokens)
    return of.combine(operation, y, tokens, y.device)[0]


@ep_combine.register_fake
def _(y, link, routing, number, tokens, plan):
    of = plan_named(plan)
    return y.new_empty(tokens, of.hidden, dtype=of.dtype)


@custom_op("anabranch::ep_combine_weights", mutates_args=())
def ep_combine_weights(
    y: torch.Tensor, weights: torch.Tensor, link: torch.Tensor, routing: torch.Tensor, number: torch.Tensor, tokens: int, plan: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums gradients of rows, ``[rows, hidden]``, and of their weights, ``[rows, top_k]``: those of the tokens and of their weights."""
    of = plan_named(plan)
    operation = of.take((int(number), True), routing, tokens, weights.new_zeros(tokens, of.top_k))
    of.window(operation, "combine_weights").copy_(weights)
    return of.combine(operation, y, tokens, y.device)


@ep_combine_weights.register_fake
def _(y, weights, link, routing, number, tokens, plan):
    of = plan_named(plan)
    return y.new_empty(tokens, of.hidden, dtype=of.dtype), weights.new_empty(tokens, of.top_k)


def _keep_dispatch(ctx, inputs, output) -> None:
    x, *_, plan, _ = inputs
    *_, routing, number = output
    ctx.save_for_backward(routing, number)
    ctx.tokens, ctx.plan, ctx.dtype = x.shape[0], plan, x.dtype


def _dispatch_backward(ctx, rows, _scales, _ids, weights, _counts, link, _routing, _number):
    x, topk_weights = torch.ops.anabranch.ep_combine_weights(rows, weights, link, *ctx.saved_tensors, ctx.tokens, ctx.plan)
    return x.to(ctx.dtype), None, topk_weights, None, None, None


def _keep_combine(ctx, inputs, output) -> None:
    y, link, routing, number, _, plan = inputs
    ctx.save_for_backward(routing, number)
    # The plan's anchor is a leaf: the dispatch then has no backward pass.
    ctx.plan, ctx.dtype, ctx.is_last = plan, y.dtype, link.is_leaf


def _combine_backward(ctx, gradient):
    rows, link = torch.ops.anabranch.ep_dispatch_with(gradient, *ctx.saved_tensors, ctx.plan, ctx.is_last)
    return rows.to(ctx.dtype), link, None, None, None, None


ep_dispatch.register_autograd(_dispatch_backward, setup_context=_keep_dispatch)
ep_combine.register_autograd(_combine_backward, setup_context=_keep_combine)


# --- rows grouped by expert ---


def _experts_fake(of: Plan, like: Tensor, dtype: torch.dtype, *rest: int) -> Tensor:
    return like.new_empty(*of.experts_shape, *rest, dtype=dtype)


@custom_op("anabranch::ep_dispatch_experts", mutates_args=())
def ep_dispatch_experts(
    x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, scales: torch.Tensor | None, plan: str, save: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sends tokens, and groups the received rows by expert: rows ``[local experts, capacity, hidden]``, their scales and weights, rows of
    each expert, link, routing, number. Rows beyond an expert's count are zero."""
    of = plan_named(plan)
    operation, routing, number = of.dispatch(x, topk_ids, topk_weights, scales, save, by_expert=True)
    is_pair = of.is_pair(of.window(of.layout, "counts"))
    return (
        of.kept(of.layout, "rows", is_pair[:, :, None]),
        _scales(of, of.layout, is_pair[:, :, None], of.experts_shape),
        of.kept(of.layout, "weights", is_pair),
        of.window(of.layout, "counts").clone(),
        topk_weights.new_empty(0),
        routing,
        _named(number),
    )


@ep_dispatch_experts.register_fake
def _(x, topk_ids, topk_weights, scales, plan, save):
    of = plan_named(plan)
    return (
        _experts_fake(of, x, of.dtype, of.hidden),
        _experts_fake(of, x, torch.uint8, of.scale_bytes),
        _experts_fake(of, x, torch.float32),
        topk_ids.new_empty(of.experts_shape[0], dtype=torch.int32),
        topk_weights.new_empty(0),
        x.new_empty(of.native.routing_bytes if save else 0, dtype=torch.uint8),
        torch.empty(1, dtype=torch.int64, device="cpu"),
    )


@custom_op("anabranch::ep_dispatch_experts_with", mutates_args=())
def ep_dispatch_experts_with(
    x: torch.Tensor, routing: torch.Tensor, number: torch.Tensor, plan: str, is_last: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sends gradients along a saved routing, grouped by expert: rows and link. ``ep_combine_experts_weights`` of the same dispatch comes
    next, unless it is the last."""
    of = plan_named(plan)
    # Weights of 1: the sum of the pairs' gradients in the backward pass of the dispatch has none.
    operation = of.dispatch_with((int(number), True), routing, x, x.new_ones(len(x), of.top_k, dtype=torch.float32))
    is_pair = of.expand(operation)
    rows = of.kept(of.layout, "rows", is_pair[:, :, None])
    if is_last:
        of.release((int(number), True))
    return rows, x.new_empty(0, dtype=torch.float32)


@ep_dispatch_experts_with.register_fake
def _(x, routing, number, plan, is_last=False):
    of = plan_named(plan)
    return _experts_fake(of, x, of.dtype, of.hidden), x.new_empty(0, dtype=torch.float32)


@custom_op("anabranch::ep_combine_experts", mutates_args=())
def ep_combine_experts(
    y: torch.Tensor, weights: torch.Tensor, link: torch.Tensor, routing: torch.Tensor, number: torch.Tensor, tokens: int, plan: str
) -> torch.Tensor:
    """Sums the experts' output of each token, times ``weights``, ``[local experts, capacity]``: ``[tokens, hidden]``."""
    of = plan_named(plan)
    operation = of.take((int(number), False), routing, tokens)
    return of.combine(operation, of.contract(operation, y, weights), tokens, y.device)[0]


@ep_combine_experts.register_fake
def _(y, weights, link, routing, number, tokens, plan):
    of = plan_named(plan)
    return y.new_empty(tokens, of.hidden, dtype=of.dtype)


@custom_op("anabranch::ep_combine_experts_weights", mutates_args=())
def ep_combine_experts_weights(
    y: torch.Tensor, weights: torch.Tensor, link: torch.Tensor, routing: torch.Tensor, number: torch.Tensor, tokens: int, plan: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums gradients of rows, ``[local experts, capacity, hidden]``, and of their weights: those of the tokens and of their weights."""
    of = plan_named(plan)
    operation = of.take((int(number), True), routing, tokens, weights.new_ones(tokens, of.top_k))
    sums = of.contract(operation, y)
    of.set_pair_weights(operation, "combine_weights", weights, of.window(of.layout, "slot_map"))
    return of.combine(operation, sums, tokens, y.device)


@ep_combine_experts_weights.register_fake
def _(y, weights, link, routing, number, tokens, plan):
    of = plan_named(plan)
    return y.new_empty(tokens, of.hidden, dtype=of.dtype), weights.new_empty(tokens, of.top_k)


def _dispatch_experts_backward(ctx, rows, _scales, weights, _counts, link, _routing, _number):
    x, topk_weights = torch.ops.anabranch.ep_combine_experts_weights(rows, weights, link, *ctx.saved_tensors, ctx.tokens, ctx.plan)
    return x.to(ctx.dtype), None, topk_weights, None, None, None


def _keep_combine_experts(ctx, inputs, output) -> None:
    y, weights, link, routing, number, _, plan = inputs
    ctx.save_for_backward(y, weights, routing, number)
    ctx.plan, ctx.is_last = plan, link.is_leaf


def _combine_experts_backward(ctx, gradient):
    y, weights, routing, number = ctx.saved_tensors
    rows, link = torch.ops.anabranch.ep_dispatch_experts_with(gradient, routing, number, ctx.plan, ctx.is_last)
    to_y, to_weights = rows * weights[:, :, None], (rows.float() * y.float()).sum(-1)
    return to_y.to(y.dtype), to_weights, link, None, None, None, None


ep_dispatch_experts.register_autograd(_dispatch_experts_backward, setup_context=_keep_dispatch)
ep_combine_experts.register_autograd(_combine_experts_backward, setup_context=_keep_combine_experts)
