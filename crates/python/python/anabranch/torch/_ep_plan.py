"""What the custom ops of dispatch and combine run: a native plan, and its operations between a dispatch and a combine."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

import anabranch

from ._windows import Windows

_PLANS: weakref.WeakValueDictionary[str, Plan] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def plan_named(name: str) -> Plan:
    """The plan that an op names."""
    plan = _PLANS.get(name)
    if plan is None:
        raise anabranch.UsageError(f"no plan of expert parallelism has the name {name!r} in this process; make its ExpertParallel first, and keep it")
    return plan


def _check_places(places: int, alignment: int, source: str) -> None:
    if not 0 <= places < 1 << 31:
        raise anabranch.UsageError(f"places is {places}; 0 to 2^31 - 1 are allowed")
    if not 1 <= alignment <= 1024 or alignment & (alignment - 1):
        raise anabranch.UsageError(f"alignment is {alignment}; a power of two up to 1024 is needed")
    if source == "buffer":
        raise anabranch.UsageError("places need a plan with a combine window; combine_source is buffer")


class Plan:
    """A native plan, its expert-major layout, and the operations that wait for a combine.

    A dispatch is known by its number, which its outputs carry in a tensor on the CPU: copies of that tensor, as compiled graphs make them, name
    the same dispatch. A dispatch can be under way twice: in the forward pass, and with gradients in the backward pass.
    """

    def __init__(
        self,
        world: anabranch.World,
        config: anabranch.EpConfig,
        ranks: list[int] | None,
        slots: int,
        dtype: torch.dtype,
        layout: tuple[int, int] | None,
        grouped: tuple[int, int] | None,
        name: str | None,
    ) -> None:
        self.name = f"ep{next(_NUMBERS)}" if name is None else name
        if self.name in _PLANS:
            raise anabranch.UsageError(f"a plan of expert parallelism has the name {self.name!r} already in this process")
        fields = dict(config.fields())
        if grouped is not None:
            _check_places(*grouped, fields["combine_source"])
        # A rank with other places would fail alone, after the dispatch.
        given = repr((layout, grouped)).encode()
        for rank, other in enumerate(world.exchange(given, ranks=ranks, tag="layouts of experts")):
            if other != given:
                raise anabranch.UsageError(f"(capacity, alignment) and (places, alignment) are {given.decode()} here and {other.decode()} on rank {rank} of the group")
        self.world, self._slots = world, slots
        self.dtype = dtype
        self.native = world.expert_parallel(config, ranks)
        self.layout = None if layout is None else self.native.expert_major(capacity=layout[0], alignment=layout[1])
        self._grouped = None if grouped is None else self.native.contiguous()
        self.places, self._alignment = (0, 1) if grouped is None else grouped
        if self._grouped is not None and self.places == 0:
            self.places = self._grouped.most_places(alignment=self._alignment)
        self._can_drop = self._grouped is not None and self.places < self._grouped.most_places(alignment=self._alignment)
        self.local_experts = len(self.native.experts_on())
        self.hidden, self.top_k, self.scale_bytes = (int(fields[field]) for field in ("hidden", "top_k", "scale_bytes"))
        self.rows, self.rank, self.ranks = self.native.rows_capacity, self.native.rank, self.native.size
        self._dispatches = itertools.count()
        # By number and whether it has gradients.
        self._pending: dict[tuple[int, bool], Any] = {}
        self._expanded: Any = None
        self._device = torch.device("cpu") if world.runtime == "host" else torch.device("cuda", world.device)
        # Windows of operations and of the layout. Each slot has windows of its own.
        self.window = Windows()
        # The stream that used the layout last.
        self._layout_stream: Any = None
        # Made here: a capture may be the first call, and what it makes has values in its replays alone.
        with torch.inference_mode(False):
            device, stride = self._device, self.native.row_stride
            self._places = torch.arange(stride or self.rows, device=device)
            self._in_expert = torch.arange(0 if self.layout is None else self.layout.capacity, device=device)
            fills = ((dtype, 0), (torch.int32, -1), (torch.float32, 0), (torch.uint8, 0))
            self._fills = {(of, fill): torch.full((), fill, dtype=of, device=device) for of, fill in fills}
            # No elements: the link of a combine whose rows have no gradient, so that its output has one on every rank.
            self.anchor = torch.empty(0, device=device, requires_grad=True)
        _PLANS[self.name] = self

    @property
    def experts_shape(self) -> tuple[int, int]:
        """Local experts, and rows of each in the expert-major layout."""
        self._check_layout()
        return len(self.layout.experts), self.layout.capacity

    def _check_layout(self) -> None:
        if self.layout is None:
            raise anabranch.UsageError(f"the plan {self.name!r} has no expert-major layout; give ExpertParallel a capacity")

    def _settle(self) -> None:
        """CPU tensors have no stream: results are there when an op returns."""
        if self.world.runtime == "host":
            self.world.synchronize()

    def _start(self, key: tuple[int, bool], call: Any) -> Any:
        """Starts an operation. The oldest that autograd never combined gives its slot back, on all ranks alike."""
        if key in self._pending:
            # An earlier backward pass of the same dispatch, which autograd did not follow to its combine.
            self._pending.pop(key).release()
        while len(self._pending) >= self._slots:
            self._pending.pop(next(iter(self._pending))).release()
        operation = self._pending[key] = call()
        return operation

    def dispatch(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, scales: torch.Tensor | None, save: bool, by_expert: bool = False
    ) -> tuple[Any, torch.Tensor, int]:
        """Starts the dispatch of a forward pass, which fills the layout ``by_expert``: the operation, its saved routing (no elements unless
        ``save``), and its number."""
        if not by_expert:
            return self._dispatch((x, ids, weights, scales), save, self.native.dispatch)
        self._check_layout()
        self._order_layout()
        self._expanded = None
        started = self._dispatch((x, ids, weights, scales), save, self.layout.dispatch)
        self._expanded = started[0]
        return started

    def _dispatch(
        self, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], save: bool, call: Any
    ) -> tuple[Any, torch.Tensor, int]:
        number = next(self._dispatches)
        # Before torch 2.10 tensors that require gradients are not shared.
        sent = [None if tensor is None else tensor.detach().contiguous() for tensor in tensors]
        operation = self._start((number, False), lambda: call(*sent))
        routing = tensors[0].new_empty(self.native.routing_bytes if save else 0, dtype=torch.uint8)
        if save:
            self.native.save_routing(operation, routing)
        self._settle()
        return operation, routing, number

    def dispatch_with(self, key: tuple[int, bool], routing: torch.Tensor, x: torch.Tensor, weights: torch.Tensor | None) -> Any:
        """Starts a dispatch along a saved routing."""
        if routing.numel() == 0:
            raise anabranch.UsageError("the routing of this dispatch was not saved (no gradients were enabled), and it was combined already")
        kept = self.native.routing_in(routing, len(x))
        operation = self._start(key, lambda: self.native.dispatch_with(kept, x.detach().to(self.dtype).contiguous(), weights))
        self._settle()
        return operation

    def release(self, key: tuple[int, bool]) -> None:
        """Gives the slot of an operation back that nothing combines, on all ranks alike."""
        self._pending.pop(key).release()
        self._settle()

    def take(self, key: tuple[int, bool], routing: torch.Tensor, tokens: int, weights: torch.Tensor | None = None) -> Any:
        """The operation to combine. Where there is none any more, empty rows are sent once more along the routing, with ``weights``."""
        if key not in self._pending:
            self.dispatch_with(key, routing, routing.new_zeros(tokens, self.hidden, dtype=self.dtype), weights)
        return self._pending.pop(key)

    def combine(self, operation: Any, y: torch.Tensor | None, tokens: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The sums of each token's rows, and of its weights in the window."""
        out = torch.empty(tokens, self.hidden, dtype=self.dtype, device=device)
        out_weights = torch.empty(tokens, self.top_k, dtype=torch.float32, device=device)
        rows = None if y is None else y.detach().to(self.dtype).contiguous()
        self.native.combine(operation, rows, out=out, out_weights=out_weights)
        self._settle()
        return out, out_weights

    def received(self, operation: Any) -> torch.Tensor:
        """Which rows of the windows came, ``[rows, 1]``."""
        if self.native.row_stride:
            return (self._places < self.window(operation, "counts")[:, None]).view(self.rows, 1)
        return (self._places < self.window(operation, "offsets")[-1])[:, None]

    def kept(self, of: Any, name: str, mask: torch.Tensor, fill: int = 0) -> torch.Tensor:
        """A copy of a window, ``fill`` where nothing came."""
        tensor = self.window(of, name)
        return torch.where(mask, tensor, self._fills[tensor.dtype, fill])

    def _order_layout(self) -> None:
        """Makes the current stream wait for the last use of the layout, where that was on another stream."""
        if self._device.type == "cpu":
            return
        stream, last = torch.cuda.current_stream(self._device), self._layout_stream
        self._layout_stream = stream
        if last is None or last == stream:
            return
        with torch.cuda.stream(last):
            was_capturing = torch.cuda.is_current_stream_capturing()
        # A capture cannot wait for work outside of it: torch waits for that when the capture begins.
        if was_capturing == torch.cuda.is_current_stream_capturing():
            stream.wait_stream(last)

    def expand(self, operation: Any) -> torch.Tensor:
        """Fills the expert-major layout; which of its rows are pairs, ``[local experts, capacity]``."""
        self._check_layout()
        self._order_layout()
        # The current stream, whatever the dispatch's was: what reads the layout next is on it.
        self.layout.expand(operation, stream=self._stream())
        self._settle()
        self._expanded = operation
        return self.is_pair(self.window(self.layout, "counts"))

    def is_pair(self, counts: torch.Tensor) -> torch.Tensor:
        """Which places of the expert-major layout have a row, ``[local experts, capacity]``."""
        return self._in_expert < counts[:, None]

    def contract(self, operation: Any, y: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor | None:
        """Sums the experts' output of each received row, for :meth:`combine`: in the window where the plan has one, else in a tensor. ``weights``
        of the expert-major layout take the place of those that the operation brought."""
        if self._expanded is operation:
            self._order_layout()
        else:
            self.expand(operation)
        if weights is not None:
            weights = weights.detach().to(torch.float32).contiguous()
        y = y.detach().to(self.dtype).contiguous()
        sums = None if operation.combine_rows is not None else y.new_empty(self.rows, self.hidden)
        self.layout.contract(operation, y, weights=weights, out=sums)
        self._settle()
        return sums

    def _grouped_form(self, with_weights: bool) -> dict[str, Any]:
        """New tensors for the rows of all experts one after the other. What will have no row is zero."""
        device = self._device
        shapes = (self.rows, self.top_k), (self.local_experts,), (self.local_experts + 1,)
        return {
            "rows": torch.zeros(self.places, self.hidden, dtype=self.dtype, device=device),
            "layout": tuple(torch.empty(shape, dtype=torch.int32, device=device) for shape in shapes),
            "scales": torch.zeros(self.places, self.scale_bytes, dtype=torch.uint8, device=device),
            "weights": torch.empty(self.places, dtype=torch.float32, device=device) if with_weights else None,
        }

    def dispatch_grouped(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, scales: torch.Tensor | None, save: bool
    ) -> tuple[dict[str, Any], torch.Tensor, int]:
        """Starts the dispatch of a forward pass: the rows of all experts one after the other, with the slot map, the counts and the starts, the
        scales and the weights; its saved routing (no elements unless ``save``), and its number."""
        form = self._grouped_form(with_weights=True)
        written = {
            "rows": form["rows"],
            "layout": form["layout"],
            "alignment": self._alignment,
            "row_scales": form["scales"] if self.scale_bytes else None,
            "row_weights": form["weights"],
        }
        _, routing, number = self._dispatch((x, ids, weights, scales), save, lambda *sent: self._grouped.dispatch(*sent, **written))
        self._clamp(form)
        return form, routing, number

    def group(self, operation: Any) -> torch.Tensor:
        """The rows of a dispatch, those of all experts one after the other. What has no row is zero."""
        form = self._grouped_form(with_weights=False)
        scales = form["scales"] if self.scale_bytes else None
        self._grouped.expand(operation, form["rows"], form["layout"], alignment=self._alignment, scales=scales, stream=self._stream())
        self._settle()
        return form["rows"]

    def _clamp(self, form: dict[str, Any]) -> None:
        if self._can_drop:
            # Grouped matrix products go as far as the last start says.
            form["layout"][2].clamp_(max=self.places)

    def check_grouped(self) -> None:
        """Before anything is sent."""
        if self._grouped is None:
            raise anabranch.UsageError("this ExpertParallel has no places for grouped rows; give places=... when you make it")

    def is_place_taken(self, counts: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Which places have a row, ``[places]``."""
        place = torch.arange(self.places, device=starts.device, dtype=starts.dtype)
        expert = torch.searchsorted(starts[1:], place, right=True)
        ends = torch.cat((starts[:-1] + counts, starts.new_zeros(1)))
        return place < ends[expert]

    def contract_group(self, operation: Any, y: torch.Tensor, slots: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """Sums the experts' output of each received row, times ``weights`` where they are given, into the window of :meth:`combine`."""
        if weights is not None:
            weights = weights.detach().to(torch.float32).contiguous()
        y = y.detach().to(self.dtype).contiguous()
        given = {"weighted": False} if weights is None else {"weights": weights}
        self._grouped.contract(operation, y, slots, stream=self._stream(), **given)
        self._settle()

    def _stream(self) -> Any:
        """The current stream."""
        return None if self._device.type == "cpu" else torch.cuda.current_stream(self._device)

    def set_pair_weights(self, operation: Any, name: str, weights: torch.Tensor, slots: torch.Tensor) -> None:
        """Fills a window of an operation's weights from those of its places by expert, ``slots`` by row."""
        slots = slots.long()
        # Entries of rows that did not come are undefined.
        is_pair = (slots >= 0) & (slots < weights.numel()) & self.received(operation)
        picked = weights.reshape(-1)[torch.where(is_pair, slots, 0)] if weights.numel() else weights.new_zeros(slots.shape)
        self.window(operation, name).copy_(torch.where(is_pair, picked, 0))
