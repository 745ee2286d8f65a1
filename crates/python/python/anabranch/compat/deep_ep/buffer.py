"""The class that engines call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import anabranch

from . import _low_latency as low_latency
from . import _normal as normal
from ._config import BLOCK, Config, Settings, low_latency_bytes, normal_bytes, refuse_unknown
from ._world import User
from .utils import EventHandle, EventOverlap, recorded, wait_for

# How long ranks wait for each other to unmask.
_UNMASK_SECONDS = 60

_LOG = logging.getLogger("anabranch.deep_ep")


class Buffer(User):
    """Dispatch and combine of a group of ranks, with the interface of DeepEP's ``Buffer``.

    Every call with tensors is collective, unless it says otherwise: all ranks of the group make the same calls, in the same order, also with 0
    tokens. Expert ``e`` of ``E`` is on rank ``e * R // E`` of ``R``; ``E`` is a multiple of ``R``. Calls run on the current stream, and so
    does what ``async_finish`` asks for: its event is that of the call's work. Calls of a group run one after the other on whatever streams,
    and so do graphs that hold some; no thread may launch one while another makes a call or launches one. Plans are made, and take their
    memory, at the first call of each shape: make such a call before a graph is captured.
    """

    num_sms: int = 20
    _blocks: int = 0

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: None = None,
        use_fabric: bool = False,
        **unknown: Any,
    ) -> None:
        """Joins a world over the group's store, or takes that of the backend ``anabranch``. Collective.

        Args:
            group: any group of torch.distributed with these ranks.
            num_nvl_bytes, num_rdma_bytes: together, the heap of a world that is joined here, unless ``heap.bytes`` is configured. The size
                hints of this module are what its plans take.
            enable_shrink: low-latency operations go on without ranks that do not come (``ANABRANCH_DEEP_EP_MASK_SECONDS``).
            low_latency_mode, num_qps_per_rank, allow_nvlink_for_low_latency_mode, allow_mnnvl, explicitly_destroy, use_fabric: no effect;
                ways between ranks are those of anabranch's configuration.
            comm: ``None``; groups of MPI are not supported.
        """
        refuse_unknown("Buffer", {"comm": comm, **unknown})
        if group is None:
            raise anabranch.UsageError("Buffer: group is None; give a group of torch.distributed")
        self.group, self.rank, self.group_size = group, group.rank(), group.size()
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.explicitly_destroy, self.enable_shrink = low_latency_mode, explicitly_destroy, enable_shrink
        self._settings = Settings.read()
        self._normal: dict[normal.Shape, normal.Plan] = {}
        self._low_latency: dict[low_latency.Shape, low_latency.Plan] = {}
        # Ranks that were masked by hand, for plans that are made later.
        self._masked: set[int] = set()
        super().__init__(group, num_nvl_bytes + num_rdma_bytes, self._normal, self._low_latency)

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether fp8 is there: always, kernels are compiled for the device."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Sets the most blocks of launches of plans of normal mode that are made later. Without it launches are as tuned."""
        Buffer.num_sms = Buffer._blocks = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event of the work that is on the current stream."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int) -> int:
        """Bytes of the heap that low-latency mode takes at most, of any type of rows. The layouts by expert are beside it: twice
        ``[local experts, ranks * tokens, hidden]``."""
        return low_latency_bytes(num_max_dispatch_tokens_per_rank, hidden, num_ranks)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """Parameters of dispatch, for any number of ranks."""
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """Parameters of combine, for any number of ranks."""
        return Config(Buffer.num_sms)

    def get_comm_stream(self) -> torch.cuda.Stream:
        """The stream of the communication: the current one."""
        return torch.cuda.current_stream(self._joined.device)

    def get_local_buffer_tensor(self, dtype: torch.dtype, size: torch.Size | None = None, offset: int = 0, use_rdma_buffer: bool = False) -> Tensor:
        """Memory that nothing reads, of ``size`` or of one element: there is no buffer to clean."""
        return torch.zeros(size or 1, dtype=dtype, device=self._joined.device)

    # --- normal mode ---

    def get_dispatch_layout(
        self,
        topk_idx: Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, None, Tensor, Tensor, EventOverlap]:
        """How many tokens go where. Not collective.

        Args:
            topk_idx: ``[tokens, top_k]`` int64; -1 is no expert.

        Returns:
            tokens for each rank ``[ranks]`` int32, ``None``, tokens for each expert ``[experts]`` int32, whether a token goes to a rank
            ``[tokens, ranks]`` bool, and the event.
        """
        each = self._experts_of_a_rank(num_experts)
        wait_for(previous_event)
        is_expert = (topk_idx >= 0) & (topk_idx < num_experts)
        # Entries without an expert count behind the last one.
        ranks = torch.where(is_expert, topk_idx // each, self.group_size).long()
        experts = torch.where(is_expert, topk_idx, num_experts).long().flatten()
        in_rank = torch.zeros(len(topk_idx), self.group_size + 1, dtype=torch.bool, device=topk_idx.device)
        in_rank.scatter_(1, ranks, True)
        in_rank = in_rank[:, :-1].contiguous()
        of_expert = torch.zeros(num_experts + 1, dtype=torch.int32, device=topk_idx.device)
        of_expert.scatter_add_(0, experts, torch.ones_like(experts, dtype=torch.int32))
        return in_rank.sum(0, dtype=torch.int32), None, of_expert[:-1], in_rank, recorded(async_finish)

    def _experts_of_a_rank(self, num_experts: int) -> int:
        if num_experts <= 0 or num_experts % self.group_size:
            raise anabranch.UsageError(f"num_experts is {num_experts}; a positive multiple of the {self.group_size} ranks is needed")
        return num_experts // self.group_size

    def dispatch(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        handle: normal.Handle | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        **unknown: Any,
    ) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor | None, Tensor | None, list[int] | None, normal.Handle | None, EventOverlap]:
        """Sends each token once to every rank that has one of its experts.

        Args:
            x: ``[tokens, hidden]`` bfloat16; or float8_e4m3fn and scales ``[tokens, n]`` of 4 bytes each.
            handle: of an earlier dispatch: the rows go where its rows went, and nothing else is returned with them.
            num_tokens_per_expert: ``[experts]``, of :meth:`get_dispatch_layout`; the other two are not used.
            topk_idx: ``[tokens, top_k]`` int64; -1 is no expert.
            topk_weights: ``[tokens, top_k]`` float32, or ``None``.
            expert_alignment: counts are rounded up to a multiple of it.
            num_worst_tokens: rows of the outputs. The host then does not wait for the device, and a graph may capture the call. Rows beyond
                it are dropped, the same ones in every run, and combine leaves them out.

        Returns:
            the rows that came, by rank and token of their origin; their expert ids as int64 numbers of local experts, -1 for those
            of other ranks and behind the rows that came; their weights, 0 where the id is -1; rows of each local expert (empty with
            ``num_worst_tokens``); the handle; the event.
        """
        refuse_unknown("dispatch", unknown)
        rows, scales = normal.split("dispatch", x)
        wait_for(previous_event)
        scale_type = None if scales is None else scales.dtype
        if handle is not None:
            if topk_idx is not None or topk_weights is not None:
                raise anabranch.UsageError("dispatch: topk_idx and topk_weights go with a new dispatch, not with a handle")
            plan = handle.plan
            plan.dispatch_along(handle, rows, scales)
            received = plan.rows(handle, scale_type)
            return received if scales is not None else received[0], None, None, None, None, recorded(async_finish)
        if topk_idx is None or num_tokens_per_expert is None:
            raise anabranch.UsageError("dispatch: a new dispatch needs topk_idx and num_tokens_per_expert, of get_dispatch_layout")
        plan = self._normal_plan(rows, scales, topk_idx.shape[1], num_tokens_per_expert.numel(), num_worst_tokens)
        handle = plan.dispatch(rows, scales, topk_idx, topk_weights)
        plan.learn(handle, num_worst_tokens or None)
        local_ids, local_weights = plan.receive(handle)
        counts = [] if num_worst_tokens else normal.aligned(plan.counts(local_ids), expert_alignment).tolist()
        received = plan.rows(handle, scale_type)
        weights = None if topk_weights is None else local_weights
        return received if scales is not None else received[0], local_ids, weights, counts, handle, recorded(async_finish)

    def _normal_plan(self, rows: Tensor, scales: Tensor | None, top_k: int, experts: int, worst: int) -> normal.Plan:
        self._experts_of_a_rank(experts)
        most = worst if worst < self.group_size * self._settings.max_tokens else 0
        shape = normal.Shape(rows.shape[1], experts, top_k, rows.dtype, 0 if scales is None else 4 * scales.shape[1], most)
        if shape not in self._normal:
            _LOG.info("%s: at most %d bytes of the heap", shape, normal_bytes(2 * shape.hidden, self.group_size, self._settings))
            self._normal[shape] = normal.Plan(self._joined, shape, self._settings, Buffer._blocks)
        return self._normal[shape]

    def combine(
        self,
        x: Tensor,
        handle: normal.Handle,
        topk_weights: Tensor | None = None,
        bias: Tensor | tuple[Tensor, Tensor] | None = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        **unknown: Any,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        """Sums the rows of each token in the order of their ranks, without weights.

        Args:
            x: ``[rows, hidden]`` bfloat16, a row for each that the handle's dispatch brought.
            handle: of the dispatch. It may be combined again; where another dispatch has taken its windows (``ANABRANCH_DEEP_EP_SLOTS``), its
                routing is sent once more first.
            topk_weights: ``[rows, top_k]`` float32, to be summed too.
            bias: one or two ``[tokens, hidden]`` bfloat16, added to the rounded sums.

        Returns:
            ``[tokens, hidden]`` bfloat16, the sums of the weights ``[tokens, top_k]`` float32 or ``None``, and the event.
        """
        refuse_unknown("combine", unknown)
        if x.dtype != torch.bfloat16 or x.shape[1:] != (handle.plan.shape.hidden,):
            raise anabranch.UsageError(f"combine: x is {tuple(x.shape)} of {x.dtype}; [rows, {handle.plan.shape.hidden}] of bfloat16 is needed")
        wait_for(previous_event)
        out, weights = handle.plan.combine(handle, x, topk_weights)
        for addend in bias if isinstance(bias, tuple) else (bias,):
            if addend is not None:
                out += addend
        return out, weights, recorded(async_finish)

    # --- low-latency mode ---

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Nothing: the modes share no memory."""

    def low_latency_dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        dispatch_wait_recv_cost_stats: Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        **unknown: Any,
    ) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor, low_latency.Handle, EventOverlap, Callable[[], None] | None]:
        """Sends each token to its experts; the rows come grouped by expert.

        Args:
            x: ``[tokens, hidden]`` bfloat16, at most ``num_max_dispatch_tokens_per_rank`` tokens.
            topk_idx: ``[tokens, top_k]`` int64; -1 is no expert.
            cumulative_local_expert_recv_stats: ``[local experts]`` int32, to which the counts are added.
            use_fp8: cast rows to float8_e4m3fn with a scale for each 128 elements.
            round_scale: scales are powers of two. The rows are cast by torch, before they are sent.
            use_ue8m0: exponents of four such scales in an int32.
            return_recv_hook: the call only sends. The hook, called once, receives, on the stream of the call; hooks of two dispatches
                may be called in any order. The same on all ranks in a step.

        Returns:
            rows ``[local experts, ranks * max tokens, hidden]``, in fp8 with scales ``[.., hidden / 128]`` float32 or ``[.., hidden / 512]``
            int32 whose last two dimensions are column-major; the number of rows of each expert, int32; the handle; the event; the
            hook. The rows of an expert are by rank and token of their origin. The second next dispatch overwrites rows and
            scales.
        """
        refuse_unknown("low_latency_dispatch", {"dispatch_wait_recv_cost_stats": dispatch_wait_recv_cost_stats, **unknown})
        self._experts_of_a_rank(num_experts)
        if use_ue8m0 and not (use_fp8 and round_scale):
            raise anabranch.UsageError("low_latency_dispatch: use_ue8m0 needs use_fp8 and round_scale")
        block = 4 * BLOCK if use_ue8m0 else BLOCK if use_fp8 else 8
        if x.dtype != torch.bfloat16 or x.shape[1] % block:
            raise anabranch.UsageError(
                f"low_latency_dispatch: x is {tuple(x.shape)} of {x.dtype}; [tokens, hidden] of bfloat16 is needed, hidden a multiple of {block}"
            )
        shape = low_latency.Shape(
            x.shape[1], num_experts, topk_idx.shape[1], num_max_dispatch_tokens_per_rank, use_fp8, use_fp8 and round_scale, use_ue8m0
        )
        plan = self._low_latency_plan(shape)
        handle = plan.dispatch(x, topk_idx, cumulative_local_expert_recv_stats, return_recv_hook)
        hook = (lambda: plan.receive(handle)) if return_recv_hook else None
        return plan.rows(handle), plan.counts(handle), handle, recorded(async_finish), hook

    def _low_latency_plan(self, shape: low_latency.Shape) -> low_latency.Plan:
        if shape not in self._low_latency:
            _LOG.info("%s: at most %d bytes of the heap", shape, low_latency_bytes(shape.max_tokens, shape.hidden, self.group_size))
            plan = low_latency.Plan(self._joined, shape, self._settings.mask_after if self.enable_shrink else None)
            for rank in self._masked:
                plan.native.mask_rank(rank)
            self._low_latency[shape] = plan
        return self._low_latency[shape]

    def low_latency_combine(
        self,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        handle: low_latency.Handle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Tensor | None = None,
        combine_wait_recv_cost_stats: Tensor | None = None,
        **unknown: Any,
    ) -> tuple[Tensor, EventOverlap, Callable[[], None] | None]:
        """Sums the rows of each token, times their weights. The rows of one rank are summed in float32 and rounded to bfloat16 there, then
        the ranks' sums in float32 in the order of the ranks, and rounded: the same bits in every run. DeepEP rounds once.

        Args:
            x: ``[local experts, ranks * max tokens, hidden]`` bfloat16. With ``zero_copy`` it is not read:
                :meth:`get_next_low_latency_combine_buffer` has the rows.
            topk_idx: that of the dispatch.
            topk_weights: ``[tokens, top_k]`` float32. They are sent before the rows are: the stream waits for those of the other ranks.
            handle: of the dispatch, for one combine.
            return_recv_hook: the call only sends; the hook, called once, receives.
            out: ``[tokens, hidden]`` bfloat16, contiguous.
        """
        refuse_unknown("low_latency_combine", {"use_logfmt": use_logfmt, "combine_wait_recv_cost_stats": combine_wait_recv_cost_stats, **unknown})
        plan = handle.plan
        if zero_copy:
            if handle.buffer is None:
                raise anabranch.UsageError("low_latency_combine: zero_copy needs the rows in get_next_low_latency_combine_buffer(handle)")
            x = handle.buffer
        combined, hook = plan.combine(handle, x, topk_weights, out, return_recv_hook)
        return combined, recorded(async_finish), hook

    def get_next_low_latency_combine_buffer(self, handle: low_latency.Handle) -> Tensor:
        """Memory for ``x`` of a combine with ``zero_copy``: ``[local experts, ranks * max tokens, hidden]`` bfloat16. Not collective."""
        return handle.plan.combine_buffer(handle)

    # --- ranks that do not come ---

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Leaves a rank out of low-latency operations from the next one on, or takes it in again. Needs ``enable_shrink``. The host waits for
        the stream.

        Masking is not collective: each rank that is to leave the other one out calls this. Unmasking is: every rank that is not masked calls
        it between the same two operations, and so does ``rank_to_mask``, for itself. It fails, and may be repeated, where one of them does
        not come within a minute. In DeepEP it is a local change, and for the calling rank itself it has no effect. A rank that has masked
        all others, because it was late, does not know who goes on, and gets an error: there :meth:`low_latency_clean_mask_buffer` is the
        way back.
        """
        self._need_masks("low_latency_update_mask_buffer")
        if not 0 <= rank_to_mask < self.group_size:
            raise anabranch.UsageError(f"low_latency_update_mask_buffer: rank {rank_to_mask} is none of the {self.group_size} ranks")
        if mask:
            if rank_to_mask == self.rank:
                raise anabranch.UsageError(f"low_latency_update_mask_buffer: rank {self.rank} cannot mask itself")
            for native in self._mask_plans():
                native.mask_rank(rank_to_mask)
            self._masked.add(rank_to_mask)
            return
        out = {rank for native in self._mask_plans() for rank, _ in native.masked()} | self._masked
        together = [rank for rank in range(self.group_size) if rank not in out or rank == rank_to_mask]
        if together == [self.rank] and self.group_size > 1:
            raise anabranch.UsageError(
                f"low_latency_update_mask_buffer: rank {self.rank} has masked all {self.group_size - 1} other ranks, and does not know which of "
                "them go on; call low_latency_clean_mask_buffer on all ranks"
            )
        self._unmask(together)
        self._masked.discard(rank_to_mask)

    def low_latency_query_mask_buffer(self, mask_status: Tensor) -> None:
        """Fills ``[ranks]`` int32 with 1 for ranks that are left out, else 0, in stream order: the host does not wait, and a graph may capture
        it. Not collective."""
        self._need_masks("low_latency_query_mask_buffer")
        self._joined.settle()
        plans = self._mask_plans()
        if plans:
            masks = [torch.from_dlpack(native.mask) for native in plans]
            mask_status.copy_(torch.stack(masks).amax(0))
            return
        mask_status.zero_()
        for rank in self._masked:
            mask_status[rank] = 1

    def low_latency_clean_mask_buffer(self) -> None:
        """All ranks take part in low-latency operations again. Collective over all ranks: it fails where one does not come."""
        self._need_masks("low_latency_clean_mask_buffer")
        self._unmask(list(range(self.group_size)))
        self._masked.clear()

    def _unmask(self, together: list[int]) -> None:
        for plan in self._low_latency.values():
            plan.drop_pending()
            plan.native.reset_mask(together, timeout=_UNMASK_SECONDS)

    def _need_masks(self, call: str) -> None:
        if not self.enable_shrink:
            raise anabranch.UsageError(f"{call}: this Buffer has no masks; make it with enable_shrink=True")

    def _mask_plans(self) -> list[anabranch.ExpertParallel]:
        return [plan.native for plan in self._low_latency.values()]
