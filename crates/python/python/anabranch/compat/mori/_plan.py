"""A plan of an operator for one type of rows, and the memory of its results."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import anabranch

from ..deep_ep import _normal
from ..deep_ep._world import Joined
from ._config import EpDispatchCombineConfig

FP4 = getattr(torch, "float4_e2m1fn_x2", None)
SUMMED = (torch.bfloat16, torch.float16, torch.float32)
_NAMES = {
    **{each: str(each).removeprefix("torch.") for each in (*SUMMED, torch.float8_e4m3fn, torch.float8_e4m3fnuz)},
    **({} if FP4 is None else {FP4: "float4_e2m1fn_x2"}),
}


class Shape(NamedTuple):
    """What a plan is made for."""

    dtype: torch.dtype
    """Type of the rows of dispatch."""
    scale_type: torch.dtype | None
    """Type of their scales, if they have some."""

    @property
    def summed(self) -> torch.dtype:
        """Type of the rows of combine."""
        return self.dtype if self.dtype in SUMMED else torch.bfloat16


def as_bytes(x: Tensor) -> Tensor:
    """A contiguous tensor, of types that not all versions of the exchange protocol know as bytes."""
    x = x.detach().contiguous()
    return x.view(torch.uint8) if x.element_size() == 1 else x


def fp8_format(device: torch.device) -> str:
    """What the names of codecs in fp8 end with: gfx94x has the format without infinities and negative zeros."""
    if device.type == "cpu" or not torch.version.hip:
        return ""
    return "_fnuz" if torch.cuda.get_device_properties(device).gcnArchName.startswith("gfx94") else ""


def _rows(window: Any) -> Tensor:
    """Rows of a window; those of types of 8 bits, and pairs of 4, as bytes."""
    is_wide = window.nbytes > window.shape[0] * window.shape[1]
    return torch.from_dlpack(window if is_wide else window.view("uint8")).view(window.shape)


class Plan:
    """A compact plan with one slot: its windows are at the same addresses in all dispatches, as a graph and calls in two parts need it."""

    def __init__(self, joined: Joined, config: EpDispatchCombineConfig, shape: Shape) -> None:
        if shape.dtype not in _NAMES:
            raise anabranch.UsageError(f"dispatch: input is of {shape.dtype}; allowed are {', '.join(_NAMES.values())}")
        self.shape, self.config = shape, config
        self.width = config.hidden_dim // 2 if shape.dtype == FP4 else config.hidden_dim
        codec = config.codec + (fp8_format(joined.device) if config.codec.startswith("fp8") else "")
        most = config.most_from_each * config.world_size
        self._scale_bytes = config.scale_dim * config.scale_type_size if shape.scale_type else 0
        # Plans have scales of whole words.
        self._sent_bytes = -(-self._scale_bytes // 4) * 4
        plan = anabranch.EpConfig(
            hidden=config.hidden_dim,
            experts=config.num_experts_per_rank * config.world_size,
            top_k=config.num_experts_per_token,
            max_tokens=config.max_num_inp_token_per_rank,
            dispatch_dtype=_NAMES[shape.dtype],
            combine_dtype=shape.summed,
            scale_bytes=self._sent_bytes,
            max_recv=most if config.most_from_each < config.max_num_inp_token_per_rank else 0,
            mode="compact",
            combine_source="any" if codec == "none" else "buffer",
            combine_codec=codec,
            combine_weights=True,
        )
        hint = (
            "Raise MORI_SHMEM_HEAP_SIZE (or heap.bytes, ANABRANCH__HEAP__BYTES), or lower max_num_inp_token_per_rank or max_total_recv_tokens"
        )
        self.native = _normal.make_plan(joined, plan, hint)
        # Memory that calls write, also where the first of them is in inference mode.
        with torch.inference_mode(False):
            self._make_results(joined.device, most)

    def _make_results(self, device: torch.device, most: int) -> None:
        top_k, tokens = self.config.num_experts_per_token, self.config.max_num_inp_token_per_rank
        empty = self._dispatch_nothing(device)
        self._rows_at = empty.rows.data_ptr
        rows = _rows(empty.rows)[:most]
        self.rows = rows.view(self.shape.dtype) if rows.element_size() == 1 else rows
        self.total = torch.from_dlpack(empty.offsets)[-1:]
        self._sent = {"ids": torch.from_dlpack(empty.ids)[:most], "weights": torch.from_dlpack(empty.weights)[:most]}
        self.ids = torch.full((most, top_k), -1, dtype=torch.int32, device=device)
        self.weights = torch.zeros(most, top_k, dtype=torch.float32, device=device)
        self.scales: Tensor | None = None
        self._scales: Tensor | None = None
        if self.shape.scale_type is not None:
            self._scales = torch.zeros(most, self._scale_bytes, dtype=torch.uint8, device=device)
            self._sent["scales"] = torch.from_dlpack(empty.scales)[:most, : self._scale_bytes]
            self.scales = self._scales.view(self.shape.scale_type)
        self.registered = None if empty.combine_rows is None else _rows(empty.combine_rows)[:most]
        self._summed_weights = torch.from_dlpack(empty.combine_weights)
        empty.release()
        again = self._dispatch_nothing(device)
        if again.rows.data_ptr != self._rows_at:
            raise anabranch.ConfigError("ep.slots is configured; anabranch.compat.mori needs 1, the default")
        again.release()
        self.out = torch.zeros(tokens, self.config.hidden_dim, dtype=self.shape.summed, device=device)
        self.out_weights = torch.zeros(tokens, top_k, dtype=torch.float32, device=device)
        self._places = torch.arange(most, dtype=torch.int32, device=device)[:, None]
        self._no_expert = torch.tensor(-1, dtype=torch.int32, device=device)
        self._staged: Tensor | None = None

    def _dispatch_nothing(self, device: torch.device) -> anabranch.Dispatched:
        """A dispatch of no tokens, for the addresses of windows; kernels are compiled, too, before a graph captures them."""
        x = as_bytes(torch.empty(0, self.width, dtype=self.shape.dtype, device=device))
        ids = torch.empty(0, self.config.num_experts_per_token, dtype=torch.int32, device=device)
        scales = None if self.shape.scale_type is None else torch.zeros(0, self._sent_bytes, dtype=torch.uint8, device=device)
        return self.native.dispatch(x, ids, None, scales)

    def sent_scales(self, scales: Tensor | None) -> Tensor | None:
        """Scales as bytes of each token, as many as the plan has."""
        as_bytes = _normal.as_bytes(scales)
        return None if as_bytes is None else torch.nn.functional.pad(as_bytes, (0, self._sent_bytes - self._scale_bytes))

    def unpack(self) -> None:
        """Fills the results from the windows of a dispatch that was received. The host does not wait."""
        torch.where(self._places < self.total, self._sent["ids"], self._no_expert, out=self.ids)
        self.weights.copy_(self._sent["weights"])
        if self._scales is not None:
            self._scales.copy_(self._sent["scales"])

    def count_experts(self, counts: Tensor) -> None:
        """Rows of each local expert, of the results."""
        local = self.ids - self.native.experts_on()[0]
        elsewhere = len(counts)
        local = torch.where((self.ids >= 0) & (local >= 0) & (local < elsewhere), local, elsewhere).flatten().long()
        of_each = counts.new_zeros(elsewhere + 1)
        of_each.scatter_add_(0, local, torch.ones_like(local, dtype=counts.dtype))
        counts.copy_(of_each[:-1])

    def staged(self, x: Tensor, is_external: bool) -> Tensor | None:
        """The experts' rows where combine takes them: ``None`` stands for the registered buffer."""
        if not is_external:
            if x.data_ptr() != self.registered.data_ptr():
                self.registered[: len(x)].copy_(x)
            return None
        x = x.detach().contiguous()
        is_window = self._rows_at == x.data_ptr() or (self.registered is not None and x.data_ptr() == self.registered.data_ptr())
        if len(x) == self.native.rows_capacity and not is_window:
            return x
        if self._staged is None:
            with torch.inference_mode(False):
                self._staged = torch.zeros(self.native.rows_capacity, self.config.hidden_dim, dtype=self.shape.summed, device=x.device)
        self._staged[: len(x)].copy_(x)
        return self._staged

    def set_weights(self, weights: Tensor) -> None:
        """Gives combine the weights that it sums."""
        self._summed_weights[: len(weights)].copy_(weights.detach())
