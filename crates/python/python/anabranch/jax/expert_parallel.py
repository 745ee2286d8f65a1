"""Dispatch and combine inside compiled programs of JAX, with gradients.

    from anabranch.jax.expert_parallel import ExpertParallel

    ep = ExpertParallel(group, hidden=512, experts=16, top_k=2, max_tokens=256, capacity=0)

    def layer(parameters, x, order):                  # inside jax.shard_map: the tokens and the experts of one rank
        ids, weights = route(parameters, x)
        received, order = ep.dispatch_experts(x, ids, weights, order)
        y = experts(parameters, received.rows)        # [experts of this rank, capacity, hidden]
        return ep.combine_experts(y, received, order)

The functions are calls of XLA's FFI, as the collectives of ``anabranch.jax.Group`` are, and take their ``order``. They are collective: all
ranks run the same calls in the same order, also with 0 tokens. A branch (``jax.lax.cond``) that only some ranks take must not have one.

The backward pass of combine sends gradients along the saved routing of the dispatch; that of dispatch sums them. Results are arrays of their
own, of the size that a rank can receive at most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy

from .. import _native
from . import Group, _register

_DISPATCH = "anabranch_ep_dispatch"
_COMBINE = "anabranch_ep_combine"
_STATIC = {"static": True}


@dataclasses.dataclass(frozen=True)
class _Dispatched:
    """The dispatch by which rows came."""

    routing: jax.Array
    """The saved routing."""
    tokens: int = dataclasses.field(metadata=_STATIC)
    """Tokens that this rank dispatched."""
    number: int = dataclasses.field(metadata=_STATIC)
    """The dispatch's number in its program."""
    plan: int = dataclasses.field(metadata=_STATIC)
    """The plan's number."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Received(_Dispatched):
    """What the experts of this rank got. Rows that no token came to are zero, and their ids -1."""

    rows: jax.Array
    """``[rows, hidden]``."""
    ids: jax.Array
    """``[rows, top_k]`` int32: the experts that the token of a row named, also those of other ranks."""
    weights: jax.Array
    """``[rows, top_k]`` float32, as dispatched."""
    counts: jax.Array
    """``[ranks]`` int32: rows from each rank."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReceivedByExpert(_Dispatched):
    """What the experts of this rank got, grouped by expert. Rows beyond an expert's count are zero."""

    rows: jax.Array
    """``[local experts, capacity, hidden]``: the input of grouped matrix products."""
    weights: jax.Array
    """``[local experts, capacity]`` float32, as dispatched. Combine multiplies by them; others may take their place."""
    counts: jax.Array
    """``[local experts]`` int32: rows of each expert."""
    slots: jax.Array
    """``[rows, top_k]`` int32: the place of each received row for each of its ids, expert times capacity plus row; -1 for none."""
    records: jax.Array
    """``[rows, bytes]`` uint8: the records that came with the rows."""


class ExpertParallel:
    """Dispatch and combine among the ranks of a group, with gradients.

    Making one is collective: all processes of the group do. It is gone when the group is left.

    Args:
        group: the ranks.
        hidden: elements of a token.
        experts: experts of all ranks; ``experts_on()`` lists those of a rank.
        top_k: experts a token names.
        max_tokens: most tokens a rank dispatches in a call.
        dtype: of tokens, experts' output and gradients: bfloat16, float16 or float32.
        capacity: rows of each expert in ``dispatch_experts`` (0: as many as a rank can receive); ``None``: there is no such layout.
        alignment: ``capacity`` is a multiple of it, a power of two up to 1024.
        slots: dispatches that may wait for their combine at once.
        max_recv: most rows a rank receives; 0 is the worst case. What does not fit is dropped.
        mode: ``slotted``, ``compact`` or ``auto``.
        placement: the ranks of each expert; ``None`` gives each rank an equal run of them.
    """

    def __init__(
        self,
        group: Group,
        *,
        hidden: int,
        experts: int,
        top_k: int,
        max_tokens: int,
        dtype: Any = jnp.bfloat16,
        capacity: int | None = None,
        alignment: int = 1,
        slots: int = 1,
        max_recv: int = 0,
        mode: str = "auto",
        placement: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.dtype = jnp.dtype(dtype)
        config = _native.EpConfig(
            hidden=hidden,
            experts=experts,
            top_k=top_k,
            max_tokens=max_tokens,
            dispatch_dtype=str(self.dtype),
            combine_dtype=str(self.dtype),
            combine_weights=True,
            slots=slots,
            max_recv=max_recv,
            mode=mode,
            placement=placement,
        )
        self.group, self.hidden, self.top_k, self.max_tokens = group, hidden, top_k, max_tokens
        plans = group._on_all(lambda world: world.expert_parallel(config))
        self._experts = [plans[0].experts_on(rank) for rank in range(plans[0].size)]
        layouts = None
        if capacity is not None:
            if len({len(owned) for owned in self._experts}) != 1:
                raise ValueError(
                    f"ranks own {[len(owned) for owned in self._experts]} experts; a layout by expert has one shape on all ranks, and needs as "
                    "many experts on each"
                )
            layouts = [plan.expert_major(capacity=capacity, alignment=alignment) for plan in plans]
        self.layout_shape = None if layouts is None else (len(layouts[0].experts), layouts[0].capacity)
        self.rows, self.ranks, self._stride = plans[0].rows_capacity, plans[0].size, plans[0].row_stride
        self._routing = jax.ShapeDtypeStruct((plans[0].routing_bytes,), numpy.uint8)
        _register(_DISPATCH, _native.xla_dispatch_handler(), group.runtime)
        _register(_COMBINE, _native.xla_combine_handler(), group.runtime)
        self._plan, self._record_bytes = _native.xla_register_plans(plans, layouts)
        group._plans.append(self._plan)

    def experts_on(self, rank: int) -> list[int]:
        """The experts of a rank, ascending."""
        return self._experts[rank]

    # --- rows in the order of their sources ---

    def dispatch(
        self, x: jax.Array, topk_ids: jax.Array, topk_weights: jax.Array, order: jax.Array
    ) -> tuple[Received, jax.Array]:
        """Sends each token once to every rank that owns one of its experts. Collective.

        Args:
            x: ``[tokens, hidden]`` of the plan's dtype, at most ``max_tokens``.
            topk_ids: ``[tokens, top_k]``, any integer type; -1 is no expert.
            topk_weights: ``[tokens, top_k]`` float32.
            order: of the call before, or of ``group.start``.

        Returns what came, and the next ``order``. Gradients flow to ``x`` and ``topk_weights``.
        """
        tokens = self._check_dispatch("dispatch", x, topk_ids, topk_weights, order)
        number, width = next(self.group._dispatches), 4 * self.top_k
        shapes = [
            (self.rows, self.hidden, self.dtype),
            (self.rows, self._record_bytes, numpy.uint8),
            (self.ranks, numpy.int32),
        ]

        def start(x: jax.Array, ids: jax.Array, weights: jax.Array, order: jax.Array) -> Any:
            rows, records, counts, routing, after = self._call(_DISPATCH, number, shapes, (x, ids, weights, order), saves=True)
            came = self._came(counts)[:, None]

            def field(at: int, dtype: Any) -> jax.Array:
                return jax.lax.bitcast_convert_type(records[:, at : at + width].reshape(self.rows, self.top_k, 4), dtype)

            ids, weights = field(8, numpy.int32), field(8 + width, numpy.float32)
            return jnp.where(came, rows, 0), jnp.where(came, ids, -1), jnp.where(came, weights, 0), counts, routing, after

        def forward(*given: jax.Array) -> Any:
            results = start(*given)
            return results, results[-2:]

        def backward(kept: Any, gradients: Any) -> Any:
            (routing, after), (rows, _, weights, _, _, later) = kept, gradients
            sent = jnp.zeros((tokens, self.top_k), numpy.float32)
            # After the backward pass of later calls, and after this call.
            x, topk_weights, order = self._combine_call(number, tokens, (rows, routing, weights, sent, after + 0 * later), True, False)
            return x, None, topk_weights, order

        call = jax.custom_vjp(start)
        call.defvjp(forward, backward)
        rows, ids, weights, counts, routing, after = call(x, topk_ids.astype(numpy.int32), topk_weights, order)
        return Received(routing, tokens, number, self._plan, rows, ids, weights, counts), after

    def combine(self, y: jax.Array, received: Received, order: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sums the experts' output of each token: ``[tokens, hidden]``, and the next ``order``. Weights are not applied: the experts do that.
        Collective.

        Args:
            y: ``[rows, hidden]``, each row at the place of the row that it came from.
            received: of the dispatch.
            order: of the call before.
        """
        self._check_combine("combine", y, received, order)
        number, tokens = received.number, received.tokens

        def start(y: jax.Array, counts: jax.Array, routing: jax.Array, order: jax.Array) -> Any:
            out, _, after = self._combine_call(number, tokens, (y, routing, order), False, False)
            return out, after

        def forward(y: jax.Array, counts: jax.Array, routing: jax.Array, order: jax.Array) -> Any:
            out, after = start(y, counts, routing, order)
            return (out, after), (counts, routing, after)

        def backward(kept: Any, gradients: Any) -> Any:
            (counts, routing, after), (out, later) = kept, gradients
            sent = jnp.zeros((tokens, self.top_k), numpy.float32)
            given = (out, routing, sent, after + 0 * later)
            rows, order = self._call(_DISPATCH, number, [(self.rows, self.hidden, self.dtype)], given, is_gradient=True)
            return jnp.where(self._came(counts)[:, None], rows, 0), None, None, order

        call = jax.custom_vjp(start)
        call.defvjp(forward, backward)
        out, after = call(y, received.counts, received.routing, order)
        return out, after

    # --- rows grouped by expert ---

    def dispatch_experts(
        self, x: jax.Array, topk_ids: jax.Array, topk_weights: jax.Array, order: jax.Array
    ) -> tuple[ReceivedByExpert, jax.Array]:
        """As :meth:`dispatch`, with the rows grouped by expert. A token that names two experts of a rank has two rows there. Rows of an expert
        beyond ``capacity`` are dropped."""
        tokens = self._check_dispatch("dispatch_experts", x, topk_ids, topk_weights, order)
        local, capacity = self._layout("dispatch_experts")
        number = next(self.group._dispatches)
        shapes = [
            (local, capacity, self.hidden, self.dtype),
            # The row, the rank, its token, the place in the token's ids, and the weight.
            (local, capacity, 5, numpy.int32),
            (local, numpy.int32),
            (self.rows, self.top_k, numpy.int32),
            (self.ranks, numpy.int32),
            (self.rows, self._record_bytes, numpy.uint8),
        ]

        def run(x: jax.Array, ids: jax.Array, weights: jax.Array, order: jax.Array) -> Any:
            given = (x, ids, weights, order)
            rows, sources, pairs, slot_map, counts, records, routing, after = self._call(
                _DISPATCH, number, shapes, given, saves=True, is_by_expert=True
            )
            is_pair = self._is_pair(pairs)
            weights = jax.lax.bitcast_convert_type(sources[:, :, 4], numpy.float32)
            # Entries of rows that did not come are undefined.
            has_place = (slot_map >= 0) & (slot_map < weights.size) & self._came(counts)[:, None]
            slots = jnp.where(has_place, slot_map, -1)
            rows, weights = jnp.where(is_pair[:, :, None], rows, 0), jnp.where(is_pair, weights, 0)
            return (rows, weights, pairs, slots, records, routing, after), (slots, routing, after)

        def start(*given: jax.Array) -> Any:
            return run(*given)[0]

        def backward(kept: Any, gradients: Any) -> Any:
            (slots, routing, after), (rows, weights, *_, later) = kept, gradients
            # Weights of 1: combine multiplies by what was dispatched, and gradients are summed as they are.
            sent = jnp.ones((tokens, self.top_k), numpy.float32)
            given = (rows, routing, self._of_rows(weights, slots), sent, after + 0 * later)
            x, topk_weights, order = self._combine_call(number, tokens, given, True, True)
            return x, None, topk_weights, order

        call = jax.custom_vjp(start)
        call.defvjp(run, backward)
        rows, weights, pairs, slots, records, routing, after = call(x, topk_ids.astype(numpy.int32), topk_weights, order)
        return ReceivedByExpert(routing, tokens, number, self._plan, rows, weights, pairs, slots, records), after

    def combine_experts(self, y: jax.Array, received: ReceivedByExpert, order: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sums the experts' output of each token, times ``received.weights``: ``[tokens, hidden]``, and the next ``order``. Collective.

        Args:
            y: ``[local experts, capacity, hidden]``.
            received: of :meth:`dispatch_experts`.
            order: of the call before.
        """
        self._check_combine("combine_experts", y, received, order)
        number, tokens = received.number, received.tokens

        def start(y: jax.Array, weights: jax.Array, of_dispatch: tuple[jax.Array, ...], order: jax.Array) -> Any:
            _, slots, records, routing = of_dispatch
            of_rows = jax.lax.bitcast_convert_type(self._of_rows(weights, slots), numpy.uint8).reshape(self.rows, -1)
            # A record has 8 bytes, the ids, and the weights.
            records = records.at[:, 8 + 4 * self.top_k : 8 + 8 * self.top_k].set(of_rows)
            out, _, after = self._combine_call(number, tokens, (y, routing, records, order), False, True)
            return out, after

        def forward(y: jax.Array, weights: jax.Array, of_dispatch: tuple[jax.Array, ...], order: jax.Array) -> Any:
            out, after = start(y, weights, of_dispatch, order)
            pairs, *_, routing = of_dispatch
            return (out, after), (y, weights, pairs, routing, after)

        def backward(kept: Any, gradients: Any) -> Any:
            (y, weights, pairs, routing, after), (out, later) = kept, gradients
            sent = jnp.ones((tokens, self.top_k), numpy.float32)
            given, shapes = (out, routing, sent, after + 0 * later), [(*y.shape, self.dtype)]
            rows, order = self._call(_DISPATCH, number, shapes, given, is_gradient=True, is_by_expert=True)
            # What others make of weights of 0 at empty places may be infinite, and what experts make of their rows.
            is_pair = self._is_pair(pairs)
            rows, y = (jnp.where(is_pair[:, :, None], of, 0) for of in (rows, y))
            to_weights = (rows.astype(numpy.float32) * y.astype(numpy.float32)).sum(-1)
            return (rows * jnp.where(is_pair, weights, 0)[:, :, None]).astype(y.dtype), to_weights, None, order

        call = jax.custom_vjp(start)
        call.defvjp(forward, backward)
        of_dispatch = (received.counts, received.slots, received.records, received.routing)
        out, after = call(y, received.weights, of_dispatch, order)
        return out, after

    # --- calls ---

    def _call(
        self,
        target: str,
        number: int,
        shapes: Sequence[tuple[Any, ...]],
        given: tuple[jax.Array, ...],
        saves: bool = False,
        is_gradient: bool = False,
        is_by_expert: bool = False,
    ) -> Any:
        """A call of a handler: results of these shapes and types, the routing where it ``saves`` one, and the next ``order``."""
        results = [jax.ShapeDtypeStruct(shape[:-1], shape[-1]) for shape in shapes] + [self._routing] * saves
        results.append(jax.ShapeDtypeStruct((1,), numpy.float32))
        attributes = {"group": self._plan, "number": number, "is_gradient": is_gradient, "is_by_expert": is_by_expert}
        # `order` is handed on as it is, in the same memory.
        aliases = {len(given) - 1: len(results) - 1}
        call = jax.ffi.ffi_call(target, results, has_side_effect=True, input_output_aliases=aliases)
        return call(*given, **{key: numpy.int64(value) for key, value in attributes.items()})

    def _combine_call(
        self, number: int, tokens: int, given: tuple[jax.Array, ...], is_gradient: bool, is_by_expert: bool
    ) -> Any:
        shapes = [(tokens, self.hidden, self.dtype), (tokens, self.top_k, numpy.float32)]
        return self._call(_COMBINE, number, shapes, given, is_gradient=is_gradient, is_by_expert=is_by_expert)

    def _came(self, counts: jax.Array) -> jax.Array:
        """Which rows came, ``[rows]``."""
        if self._stride:
            return (jnp.arange(self._stride) < counts[:, None]).reshape(self.rows)
        return jnp.arange(self.rows) < counts.sum()

    def _is_pair(self, pairs: jax.Array) -> jax.Array:
        """Which places of the layout by expert have a row, ``[local experts, capacity]``."""
        return jnp.arange(self._layout("dispatch_experts")[1]) < pairs[:, None]

    def _of_rows(self, weights: jax.Array, slots: jax.Array) -> jax.Array:
        """Weights ``[local experts, capacity]`` at their rows, ``[rows, top_k]``; 0 where there is no place."""
        return jnp.where(slots >= 0, weights.reshape(-1)[jnp.maximum(slots, 0)], 0)

    # --- checks ---

    def _layout(self, name: str) -> tuple[int, int]:
        if self.layout_shape is None:
            raise ValueError(f"{name}: the plan has no layout by expert; give ExpertParallel a capacity")
        return self.layout_shape

    def _check_order(self, name: str, order: jax.Array) -> None:
        self.group._live()
        if order.shape != (1,) or order.dtype != numpy.float32:
            raise ValueError(f"{name}: order is {order.dtype}{list(order.shape)}; that of the call before, or of group.start(), is needed")

    def _check_dispatch(self, name: str, x: jax.Array, ids: jax.Array, weights: jax.Array, order: jax.Array) -> int:
        self._check_order(name, order)
        if x.ndim != 2 or x.shape[1] != self.hidden:
            raise ValueError(f"{name}: x has shape {x.shape}; (tokens, {self.hidden}) is needed")
        if x.dtype != self.dtype:
            raise ValueError(f"{name}: x has elements of {x.dtype}; the plan sends {self.dtype}")
        if x.shape[0] > self.max_tokens:
            raise ValueError(f"{name}: x has {x.shape[0]} tokens; the plan is made for at most {self.max_tokens} of a rank (max_tokens)")
        wanted = (x.shape[0], self.top_k)
        for argument, given in (("topk_ids", ids), ("topk_weights", weights)):
            if given.shape != wanted:
                raise ValueError(f"{name}: {argument} has shape {given.shape}; {wanted} is needed")
        if not jnp.issubdtype(ids.dtype, jnp.integer):
            raise ValueError(f"{name}: topk_ids has elements of {ids.dtype}; integers are needed")
        if weights.dtype != numpy.float32:
            raise ValueError(f"{name}: topk_weights has elements of {weights.dtype}; float32 is needed")
        return x.shape[0]

    def _check_combine(self, name: str, y: jax.Array, received: Received | ReceivedByExpert, order: jax.Array) -> None:
        self._check_order(name, order)
        kind = Received if name == "combine" else ReceivedByExpert
        if not isinstance(received, kind):
            raise TypeError(f"{name}: received is of type {type(received).__name__}; {kind.__name__} is needed")
        if received.plan != self._plan:
            raise ValueError(f"{name}: these rows were received by another ExpertParallel")
        if y.shape != received.rows.shape:
            raise ValueError(f"{name}: y has shape {y.shape}; {received.rows.shape} is needed, a row for each received one")
        if y.dtype != self.dtype:
            raise ValueError(f"{name}: y has elements of {y.dtype}; the plan combines {self.dtype}")
        if kind is ReceivedByExpert and (received.weights.dtype != numpy.float32 or received.weights.shape != y.shape[:2]):
            given = f"{received.weights.dtype}{list(received.weights.shape)}"
            raise ValueError(f"{name}: received.weights is {given}; float32{list(y.shape[:2])} is needed")
