"""The class that engines call for DeepEP's second interface."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import anabranch

from . import _elastic as layouts
from . import _normal as normal
from ._config import Settings, normal_bytes, refuse_unknown
from ._world import User
from .utils import EventHandle, EventOverlap, recorded, used_on_current_stream, wait_for

# DeepEP's buffers are multiples of it.
_PAGE = 2 << 20
# Of the layout by expert.
_MOST_ALIGNMENT = 1 << 16


class _Request(NamedTuple):
    """What a dispatch is asked for, and a dispatch along its handle again."""

    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    do_expand: bool


class EPHandle:
    """A dispatch of an :class:`ElasticBuffer`: good for any number of combines, and of dispatches along it. A graph that has captured a call
    with it needs it as long as the graph lives.

    Attributes:
        do_expand, num_experts, expert_alignment, num_max_tokens_per_rank, num_sms, topk_idx: of the dispatch.
        num_recv_tokens: rows that came; without a wait of the host, the most that can come.
        num_expanded_tokens: places of the layout by expert; 0 without ``do_expand``.
        num_recv_tokens_per_expert_list: rows of each local expert, each rounded up to the alignment; empty without a wait of the host.
        psum_num_recv_tokens_per_scaleup_rank: running sum of the rows from each rank, ``[ranks]`` int32.
        psum_num_recv_tokens_per_expert: running sum of the rows of each local expert, int32, each rounded up; with ``do_expand`` the last
            one is not: the place behind the expert's rows.
        num_unaligned_recv_tokens_per_expert: rows of each local expert, int32.
        recv_src_metadata: ``[rows, 2 + top_k]`` int32: the source's rank times ``num_max_tokens_per_rank`` plus its token; rank times
            top_k plus the first k whose expert is here; the places of the layout by expert, -1 for none. Undefined behind the rows that
            came. A new tensor at each read, made on the current stream.
    """

    def __init__(self, request: _Request, route: normal.Handle, topk_idx: Tensor, num_sms: int) -> None:
        self.num_experts, self.expert_alignment, self.num_max_tokens_per_rank, self.do_expand = request
        self.topk_idx, self.num_sms = topk_idx, num_sms
        self._request, self._route = request, route
        self.num_recv_tokens = self.num_expanded_tokens = 0
        self.num_recv_tokens_per_expert_list: list[int] = []
        self._layout = layouts.empty_layout(route.plan) if self.do_expand else None

    def _receive(self, worst: int | None, form: layouts.Form) -> layouts.Received:
        """What the first dispatch brought. With ``worst`` rows nothing waits for the device."""
        route, plan = self._route, self._route.plan
        self.num_recv_tokens = plan.learn(route, worst)
        # Later dispatches overwrite the windows.
        self.psum_num_recv_tokens_per_scaleup_rank = torch.from_dlpack(route.operation.offsets)[1:].clone()
        self._tokens = torch.from_dlpack(route.operation.token_numbers)[: self.num_recv_tokens].clone()
        if self._layout is not None:
            if worst is None:
                self.num_recv_tokens_per_expert_list = layouts.places_of(route, self._layout, form)
                self.num_expanded_tokens = sum(self.num_recv_tokens_per_expert_list)
            else:
                self.num_expanded_tokens = layouts.most_places(route, form)
            received = self._take(form)
            # Each dispatch along the handle writes the layout.
            self.num_unaligned_recv_tokens_per_expert = self._layout.counts.clone()
            self.psum_num_recv_tokens_per_expert = self._layout.starts[:-1] + self._layout.counts
            return received
        received = self._take(form)
        counts = plan.counts(received.local)
        padded = normal.aligned(counts, form.alignment)
        if worst is None:
            self.num_recv_tokens_per_expert_list = padded.tolist()
        self.num_unaligned_recv_tokens_per_expert = counts.int()
        self.psum_num_recv_tokens_per_expert = padded.cumsum(0).int()
        self._is_own = received.local >= 0
        return received

    def _take(self, form: layouts.Form) -> layouts.Received:
        """What the last dispatch brought, as many rows as the first one."""
        self._route.plan.learn(self._route, self.num_recv_tokens)
        if self._layout is None:
            return layouts.unpack(self._route, form)
        return layouts.expand(self._route, self._layout, self.num_expanded_tokens, form)

    def _use(self) -> None:
        """A later call works with the handle, perhaps on another stream than its dispatch."""
        kept = (self._tokens, self.psum_num_recv_tokens_per_scaleup_rank, self.num_unaligned_recv_tokens_per_expert)
        used_on_current_stream(*kept, *((self._is_own,) if self._layout is None else self._layout))

    @property
    def recv_src_metadata(self) -> Tensor:
        self._use()
        count = self.num_recv_tokens
        if self._layout is None:
            is_own = self._is_own
            slots = is_own.new_full(is_own.shape, -1, dtype=torch.int64)
        else:
            slots = layouts.padded(self._layout.slots[:count].long(), count, -1).clamp(min=-1)
            is_own = slots >= 0
        rows = torch.arange(count, device=slots.device)
        ranks = torch.bucketize(rows, self.psum_num_recv_tokens_per_scaleup_rank, right=True)[:, None]
        first = is_own.int().argmax(1, keepdim=True)
        tokens = ranks * self.num_max_tokens_per_rank + layouts.padded(self._tokens, count, 0)
        return torch.cat([tokens, ranks * slots.shape[1] + first, slots], 1).int()


class ElasticBuffer(User):
    """Dispatch and combine of a group of ranks, with the interface of DeepEP's ``ElasticBuffer``.

    Calls with tensors are collective, and run on the current stream, as those of :class:`Buffer`. Rows come by rank and token of their
    origin, with ``do_expand`` by expert first: the same order in every run. The plan of each type of rows is made, and takes its memory, at
    its first dispatch, and what ``do_expand`` needs at the first such dispatch: make them before a graph is captured.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
        **unknown: Any,
    ) -> None:
        """Joins a world over the group's store, or takes that of the backend ``anabranch``. Collective.

        Args:
            group: any group of torch.distributed with these ranks.
            num_bytes: the heap of a world that is joined here, unless ``heap.bytes`` is configured. Without it: what
                :meth:`get_buffer_size_hint` says, of ``num_max_tokens_per_rank`` and ``hidden``.
            num_max_tokens_per_rank: most tokens that a rank dispatches in one call.
            num_cpu_bytes: 0; nothing is kept in memory of the host.
            num_topk, use_fp8_dispatch, deterministic, allow_hybrid_mode, allow_multiple_reduction, prefer_overlap_with_compute, sl_idx,
                num_allocated_qps, num_cpu_timeout_secs, num_gpu_timeout_secs, explicitly_destroy: no effect. Waits end at
                ``deadline.operation``.
        """
        refuse_unknown("ElasticBuffer", {"num_cpu_bytes": num_cpu_bytes, **unknown})
        if group is None:
            raise anabranch.UsageError("ElasticBuffer: group is None; give a group of torch.distributed")
        if num_bytes is None and not (num_max_tokens_per_rank > 0 and hidden > 0):
            raise anabranch.UsageError(
                f"ElasticBuffer: num_max_tokens_per_rank is {num_max_tokens_per_rank} and hidden is {hidden}; give both, or num_bytes"
            )
        self.group, self.rank_idx, self.num_ranks = group, group.rank(), group.size()
        self.num_bytes = self.get_buffer_size_hint(group, num_max_tokens_per_rank, hidden) if num_bytes is None else num_bytes
        self.num_max_tokens_per_rank, self.num_allocated_qps = num_max_tokens_per_rank, num_allocated_qps or 1
        self.deterministic, self.explicitly_destroy = deterministic, explicitly_destroy
        self.allow_hybrid_mode, self.allow_multiple_reduction = allow_hybrid_mode, allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx
        self._settings = Settings.read()
        self._plans: dict[tuple[normal.Shape, int], normal.Plan] = {}
        super().__init__(group, self.num_bytes, self._plans)

    @staticmethod
    def get_buffer_size_hint(
        group: dist.ProcessGroup,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Bytes of the heap that dispatch and combine take at most, with rows of one type: bfloat16, or fp8 with one number of scales."""
        settings = Settings.read()._replace(max_tokens=num_max_tokens_per_rank)
        return normal.aligned(normal_bytes(2 * hidden, group.size(), settings), _PAGE)

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Waits on the host for the current stream, and for all ranks."""
        stream = torch.cuda.current_stream(self._joined.device) if self._joined.device.type == "cuda" else None
        self._joined.world.synchronize(stream)
        self._joined.world.barrier(ranks=self._joined.ranks)

    @staticmethod
    def capture() -> EventHandle:
        """An event of the work that is on the current stream."""
        return EventHandle()

    def get_comm_stream(self) -> torch.cuda.Stream:
        """The stream of the communication: the current one."""
        return torch.cuda.current_stream(self._joined.device)

    def get_physical_domain_size(self) -> tuple[int, int]:
        """1, and the number of ranks."""
        return 1, self.num_ranks

    def get_logical_domain_size(self) -> tuple[int, int]:
        """1, and the number of ranks."""
        return 1, self.num_ranks

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """A number for ``num_sms``, which has no effect: launches are tuned by ``python -m anabranch tune ep``."""
        return 20

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """A number for ``num_qps``, which has no effect."""
        return 1

    def dispatch(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
        **unknown: Any,
    ) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor | None, Tensor | None, EPHandle, EventOverlap]:
        """Sends each token once to every rank that has one of its experts.

        Args:
            x: ``[tokens, hidden]`` bfloat16; or float8_e4m3fn and scales ``[tokens, n]`` of 4 bytes each.
            topk_idx: ``[tokens, top_k]`` int64; -1 is no expert.
            topk_weights: ``[tokens, top_k]`` float32, or ``None``.
            cumulative_local_expert_recv_stats: ``[local experts]`` int32, to which the rows of each expert are added.
            num_max_tokens_per_rank: equal on all ranks, and at least the tokens of each; that of the buffer if ``None``. Without a wait of
                the host the outputs have as many rows times the ranks. Where the buffer has no such number, its plans have this one.
            expert_alignment: with ``do_expand`` the rows of each expert start at a multiple; counts are rounded up to it. At most 65536.
            handle: of an earlier dispatch: the rows go where its rows went, ``topk_weights`` too if they are given.
            do_handle_copy: the handle has a copy of ``topk_idx``, which the caller may then change.
            do_cpu_sync: whether the host waits for the numbers of rows. The default is to wait, but not with a handle.
            do_expand: a row for each pair of a token and an expert of this rank, the rows of an expert next to each other.
            do_zero_padding: with ``do_expand``, the places between the rows of experts are zeros; otherwise they are undefined, and so are
                always those after the last expert's.
            use_tma_aligned_col_major_sf: scales are column-major, each column from a multiple of 16 bytes on.

        Returns:
            the rows; their expert ids as int64 numbers of local experts, -1 for those of other ranks and behind the rows that came
            (``None`` with ``do_expand``); their weights, 0 where there is no id, ``[rows]`` with ``do_expand``; the handle; the event.
        """
        refuse_unknown("dispatch", unknown)
        rows, scales = normal.split("dispatch", x)
        if do_zero_padding and not do_expand:
            raise anabranch.UsageError("dispatch: do_zero_padding goes with do_expand")
        if not 1 <= (expert_alignment or 1) <= _MOST_ALIGNMENT:
            raise anabranch.UsageError(f"dispatch: expert_alignment is {expert_alignment}; allowed are 1 to {_MOST_ALIGNMENT}")
        wait_for(previous_event)
        wait_for(previous_event_before_epilogue)
        scale_type = None if scales is None else scales.dtype
        form = layouts.Form(expert_alignment or 1, scale_type, use_tma_aligned_col_major_sf, do_zero_padding, topk_weights is not None)
        if handle is None:
            most = self.num_max_tokens_per_rank if num_max_tokens_per_rank is None else num_max_tokens_per_rank
            request = _Request(num_experts or 0, expert_alignment or 1, most, do_expand)
            route = self._send(rows, scales, topk_idx, topk_weights, request)
            handle = EPHandle(request, route, topk_idx.clone() if do_handle_copy else topk_idx, num_sms)
            worst = self.num_ranks * most if do_cpu_sync is False else None
            received = handle._receive(worst, form)
        else:
            if topk_idx is not None or do_cpu_sync:
                raise anabranch.UsageError("dispatch: topk_idx and do_cpu_sync go with a new dispatch, not with a handle")
            kept = handle._request
            given = (num_experts, expert_alignment, num_max_tokens_per_rank)
            asked = _Request(*(old if new is None else new for new, old in zip(given, kept)), do_expand)
            if asked != kept:
                raise anabranch.UsageError(f"dispatch: the call has {asked}, its handle {kept}")
            handle._use()
            handle._route.plan.dispatch_along(handle._route, rows, scales, topk_weights)
            received = handle._take(form._replace(alignment=kept.expert_alignment))
        if cumulative_local_expert_recv_stats is not None:
            cumulative_local_expert_recv_stats += handle.num_unaligned_recv_tokens_per_expert
        return (
            received.rows if received.scales is None else (received.rows, received.scales),
            received.local,
            received.weights,
            handle,
            recorded(async_with_compute_stream),
        )

    def _send(self, rows: Tensor, scales: Tensor | None, ids: Tensor | None, weights: Tensor | None, request: _Request) -> normal.Handle:
        if ids is None or request.num_experts <= 0 or request.num_experts % self.num_ranks:
            raise anabranch.UsageError(
                f"dispatch: num_experts is {request.num_experts}; a new dispatch needs topk_idx, and as num_experts a positive multiple of the "
                f"{self.num_ranks} ranks"
            )
        # Calls with other numbers share the plan of the buffer's; only the outputs have as many rows as they say.
        planned = self.num_max_tokens_per_rank or request.num_max_tokens_per_rank
        most = min(planned, request.num_max_tokens_per_rank)
        if most <= 0 or len(rows) > most:
            raise anabranch.UsageError(
                f"rank {self.rank_idx} dispatches {len(rows)} tokens; num_max_tokens_per_rank is {request.num_max_tokens_per_rank} in the call and "
                f"{self.num_max_tokens_per_rank} in the buffer: give both, or that of the call alone, the most of a rank"
            )
        shape = normal.Shape(rows.shape[1], request.num_experts, ids.shape[1], rows.dtype, 0 if scales is None else 4 * scales.shape[1], 0)
        key = shape, planned
        if key not in self._plans:
            self._plans[key] = normal.Plan(self._joined, shape, self._settings._replace(max_tokens=planned), 0)
        plan = self._plans[key]
        if request.do_expand:
            plan.by_expert()
        return plan.dispatch(rows, scales, ids, weights)

    def combine(
        self,
        x: Tensor,
        handle: EPHandle,
        topk_weights: Tensor | None = None,
        bias: Tensor | tuple[Tensor, Tensor] | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        **unknown: Any,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """Sums the rows of each token, without weights. With ``do_expand`` the rows of a token on one rank are summed in float32 there, and
        rounded; then the ranks' rows are summed in the order of the ranks.

        Args:
            x: ``[rows, hidden]`` bfloat16, as many rows as the handle's dispatch gave.
            handle: of the dispatch. It may be combined again.
            topk_weights: float32, ``[rows, top_k]`` or with ``do_expand`` ``[rows]``, to be brought back too; what belongs to experts of
                other ranks is not read.
            bias: one or two ``[tokens, hidden]`` bfloat16, added to the rounded sums.

        Returns:
            ``[tokens, hidden]`` bfloat16, the weights ``[tokens, top_k]`` float32 or ``None``, and the event.
        """
        refuse_unknown("combine", unknown)
        route, layout = handle._route, handle._layout
        wanted = handle.num_recv_tokens if layout is None else handle.num_expanded_tokens
        if x.dtype != torch.bfloat16 or x.shape != (wanted, route.plan.shape.hidden):
            raise anabranch.UsageError(
                f"combine: x is {tuple(x.shape)} of {x.dtype}; [{wanted}, {route.plan.shape.hidden}] of bfloat16 is needed, as the dispatch gave"
            )
        of_rows = (wanted,) if layout is not None else (wanted, route.plan.shape.top_k)
        if topk_weights is not None and topk_weights.shape != of_rows:
            raise anabranch.UsageError(f"combine: topk_weights has shape {tuple(topk_weights.shape)}; {of_rows} is needed")
        wait_for(previous_event)
        wait_for(previous_event_before_epilogue)
        handle._use()
        if layout is not None:
            out, weights = layouts.combine(route, layout, x, topk_weights, handle.num_recv_tokens)
        else:
            topk_weights = None if topk_weights is None else torch.where(handle._is_own, topk_weights, 0)
            out, weights = route.plan.combine(route, x, topk_weights)
        for addend in bias if isinstance(bias, tuple) else (bias,):
            if addend is not None:
                out += addend
        return out, weights, recorded(async_with_compute_stream)
