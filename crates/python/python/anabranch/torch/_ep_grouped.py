"""Custom ops of dispatch and combine with the rows of all experts one after the other, as grouped matrix products take them.

As in ``_ep_ops``, ``.._with`` sends gradients along the routing of a dispatch, ``.._weights`` sums gradients and those of weights, ``link`` orders
the backward pass, and ``number`` names the dispatch. ``slots`` says at which place each pair of a received row and an expert is.
"""

from __future__ import annotations

import torch
from torch.library import custom_op

from ._ep_ops import _named
from ._ep_plan import plan_named


@custom_op("anabranch::ep_dispatch_grouped", mutates_args=())
def ep_dispatch_grouped(
    x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, scales: torch.Tensor | None, plan: str, save: bool
) -> tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
]:
    """Sends tokens, and puts the received rows of each expert after those of the expert before: rows ``[places, hidden]``, their scales and
    weights, rows of each expert, first place of each, slots, link, routing, number. Places without a row are zero."""
    of = plan_named(plan)
    of.check_grouped()
    form, routing, number = of.dispatch_grouped(x, topk_ids, topk_weights, scales, save)
    slots, counts, starts = form["layout"]
    return form["rows"], form["scales"], form["weights"], counts, starts, slots, topk_weights.new_empty(0), routing, _named(number)


@ep_dispatch_grouped.register_fake
def _(x, topk_ids, topk_weights, scales, plan, save):
    of = plan_named(plan)
    of.check_grouped()
    places, local = of.places, of.local_experts
    return (
        x.new_empty(places, of.hidden, dtype=of.dtype),
        x.new_empty(places, of.scale_bytes, dtype=torch.uint8),
        topk_weights.new_empty(places),
        topk_ids.new_empty(local, dtype=torch.int32),
        topk_ids.new_empty(local + 1, dtype=torch.int32),
        topk_ids.new_empty(of.rows, of.top_k, dtype=torch.int32),
        topk_weights.new_empty(0),
        x.new_empty(of.native.routing_bytes if save else 0, dtype=torch.uint8),
        torch.empty(1, dtype=torch.int64, device="cpu"),
    )


@custom_op("anabranch::ep_dispatch_grouped_with", mutates_args=())
def ep_dispatch_grouped_with(
    x: torch.Tensor, routing: torch.Tensor, number: torch.Tensor, plan: str, is_last: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sends gradients along a saved routing, to the places of the dispatch: rows and link. ``ep_combine_grouped_weights`` of the same dispatch
    comes next, unless it is the last."""
    of = plan_named(plan)
    of.check_grouped()
    operation = of.dispatch_with((int(number), True), routing, x, x.new_zeros(len(x), of.top_k, dtype=torch.float32))
    rows = of.group(operation)
    if is_last:
        of.release((int(number), True))
    return rows, x.new_empty(0, dtype=torch.float32)


@ep_dispatch_grouped_with.register_fake
def _(x, routing, number, plan, is_last=False):
    of = plan_named(plan)
    return x.new_empty(of.places, of.hidden, dtype=of.dtype), x.new_empty(0, dtype=torch.float32)


@custom_op("anabranch::ep_combine_grouped", mutates_args=())
def ep_combine_grouped(
    y: torch.Tensor,
    weights: torch.Tensor,
    slots: torch.Tensor,
    link: torch.Tensor,
    routing: torch.Tensor,
    number: torch.Tensor,
    tokens: int,
    plan: str,
) -> torch.Tensor:
    """Sums the experts' output of each token, ``[places, hidden]``, times ``weights``, ``[places]``: ``[tokens, hidden]``."""
    of = plan_named(plan)
    operation = of.take((int(number), False), routing, tokens)
    of.contract_group(operation, y, slots, weights)
    return of.combine(operation, None, tokens, y.device)[0]


@ep_combine_grouped.register_fake
def _(y, weights, slots, link, routing, number, tokens, plan):
    of = plan_named(plan)
    return y.new_empty(tokens, of.hidden, dtype=of.dtype)


@custom_op("anabranch::ep_combine_grouped_weights", mutates_args=())
def ep_combine_grouped_weights(
    y: torch.Tensor,
    weights: torch.Tensor,
    slots: torch.Tensor,
    link: torch.Tensor,
    routing: torch.Tensor,
    number: torch.Tensor,
    tokens: int,
    plan: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums gradients of rows, ``[places, hidden]``, and of their weights, ``[places]``: those of the tokens and of their weights."""
    of = plan_named(plan)
    operation = of.take((int(number), True), routing, tokens, weights.new_zeros(tokens, of.top_k))
    of.contract_group(operation, y, slots)
    of.set_pair_weights(operation, "combine_weights", weights, slots)
    return of.combine(operation, None, tokens, y.device)


@ep_combine_grouped_weights.register_fake
def _(y, weights, slots, link, routing, number, tokens, plan):
    of = plan_named(plan)
    return y.new_empty(tokens, of.hidden, dtype=of.dtype), weights.new_empty(tokens, of.top_k)


def _keep_dispatch(ctx, inputs, output) -> None:
    x, *_, plan, _ = inputs
    *_, slots, _, routing, number = output
    ctx.save_for_backward(slots, routing, number)
    ctx.tokens, ctx.plan, ctx.dtype = x.shape[0], plan, x.dtype


def _dispatch_backward(ctx, rows, _scales, weights, _counts, _starts, _slots, link, _routing, _number):
    slots, routing, number = ctx.saved_tensors
    gradients = (rows, weights, slots, link, routing, number, ctx.tokens, ctx.plan)
    x, topk_weights = torch.ops.anabranch.ep_combine_grouped_weights(*gradients)
    return x.to(ctx.dtype), None, topk_weights, None, None, None


def _keep_combine(ctx, inputs, output) -> None:
    y, weights, _, link, routing, number, _, plan = inputs
    ctx.save_for_backward(y, weights, routing, number)
    # The plan's anchor is a leaf: the dispatch then has no backward pass.
    ctx.plan, ctx.is_last = plan, link.is_leaf


def _combine_backward(ctx, gradient):
    y, weights, routing, number = ctx.saved_tensors
    rows, link = torch.ops.anabranch.ep_dispatch_grouped_with(gradient, routing, number, ctx.plan, ctx.is_last)
    to_y, to_weights = rows * weights[:, None], (rows.float() * y.float()).sum(-1)
    return to_y.to(y.dtype), to_weights, None, link, None, None, None, None


ep_dispatch_grouped.register_autograd(_dispatch_backward, setup_context=_keep_dispatch)
ep_combine_grouped.register_autograd(_combine_backward, setup_context=_keep_combine)
