"""What an operator is made for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

import anabranch


class EpDispatchCombineKernelType(Enum):
    """mori's kernels. Here ``AsyncLL`` is in two parts, and the others are one."""

    IntraNode = 0
    InterNode = 1
    InterNodeV1 = 2
    InterNodeV1LL = 3
    AsyncLL = 4
    IntraNodeLL = 5

    def __str__(self) -> str:
        return self.name


class EpDispatchCombineQuantType(Enum):
    """Encodings of the rows of combine."""

    None_ = 0
    Fp8DirectCast = 1
    Fp8BlockwiseQuant = 2
    Fp4BlockwiseQuant = 3

    def __str__(self) -> str:
        return self.name


_QUANT_TYPES = {
    "none": EpDispatchCombineQuantType.None_,
    "fp8_direct_cast": EpDispatchCombineQuantType.Fp8DirectCast,
    "fp8_blockwise": EpDispatchCombineQuantType.Fp8BlockwiseQuant,
    "fp4_blockwise": EpDispatchCombineQuantType.Fp4BlockwiseQuant,
}
_CODECS = {
    EpDispatchCombineQuantType.None_: "none",
    EpDispatchCombineQuantType.Fp8DirectCast: "fp8_direct",
    EpDispatchCombineQuantType.Fp8BlockwiseQuant: "fp8_block",
    EpDispatchCombineQuantType.Fp4BlockwiseQuant: "fp4_block",
}
_POSITIVE = ("world_size", "hidden_dim", "max_token_type_size", "max_num_inp_token_per_rank", "num_experts_per_rank", "num_experts_per_token")
_NOT_NEGATIVE = ("rank", "scale_dim", "scale_type_size", "max_total_recv_tokens")


@dataclass
class EpDispatchCombineConfig:
    """mori's configuration of an operator; equal on all ranks but for ``rank``.

    Attributes:
        data_type: no effect, as in mori: the tensors of a call have their types.
        rank, world_size: those of the group of ``mori.shmem``.
        hidden_dim: elements of a token; of 4-bit floats two in each element of torch.
        scale_dim, scale_type_size: scales of a token, and bytes of each. With 0 scales are ignored.
        max_num_inp_token_per_rank: most tokens that a rank dispatches in a call.
        num_experts_per_rank: rank r has the experts from r times this on.
        num_experts_per_token: experts that a token names.
        max_total_recv_tokens: most rows that a rank receives, rounded as in mori; 0: all that can come. Rows beyond it are dropped, and
            combine leaves them out.
        use_external_inp_buf: whether combine's input is any tensor, or the memory of ``get_registered_combine_input_buffer``.
        kernel_type: ``AsyncLL`` for calls in two parts.
        quant_type: ``none``, or the encoding of combine's rows: ``fp8_direct_cast``, ``fp8_blockwise``, ``fp4_blockwise``.
        max_token_type_size, warp_num_per_block, block_num, gpu_per_node, rdma_block_num, num_qp_per_pe: no effect; launches are tuned by
            ``python -m anabranch tune ep``.
    """

    data_type: torch.dtype
    rank: int
    world_size: int
    hidden_dim: int
    scale_dim: int
    scale_type_size: int
    max_token_type_size: int
    max_num_inp_token_per_rank: int
    num_experts_per_rank: int
    num_experts_per_token: int
    warp_num_per_block: int = 8
    block_num: int = 80
    max_total_recv_tokens: int = 0
    use_external_inp_buf: bool = True
    kernel_type: EpDispatchCombineKernelType = EpDispatchCombineKernelType.IntraNode
    gpu_per_node: int = 8
    rdma_block_num: int = 0
    num_qp_per_pe: int = 1
    quant_type: str | EpDispatchCombineQuantType = "none"

    def __post_init__(self) -> None:
        for names, least in ((_POSITIVE, 1), (_NOT_NEGATIVE, 0)):
            for name in names:
                self._check(name, getattr(self, name) >= least, f"numbers from {least} on")
        self._check("rank", self.rank < self.world_size, f"ranks below {self.world_size}")
        self._check("kernel_type", isinstance(self.kernel_type, EpDispatchCombineKernelType), ", ".join(EpDispatchCombineKernelType.__members__))
        is_quant_type = isinstance(self.quant_type, EpDispatchCombineQuantType) or self.quant_type in _QUANT_TYPES
        self._check("quant_type", is_quant_type, ", ".join(_QUANT_TYPES))
        # Rows are encoded while they are sent; those in the registered buffer are read from there by the other ranks.
        may_be_registered = self.use_external_inp_buf or self.codec == "none"
        allowed = f"True, with quant_type {self.quant_type}: rows in the registered buffer are not encoded"
        self._check("use_external_inp_buf", may_be_registered, allowed)

    def _check(self, name: str, is_allowed: bool, allowed: str) -> None:
        if not is_allowed:
            raise anabranch.ConfigError(f"EpDispatchCombineConfig: {name} is {getattr(self, name)!r}; allowed are {allowed}")

    @property
    def codec(self) -> str:
        """The encoding of combine's rows under this library's name, in the format ``float8_e4m3fn`` where it is in fp8."""
        named = self.quant_type
        return _CODECS[named if isinstance(named, EpDispatchCombineQuantType) else _QUANT_TYPES[named]]

    @property
    def most_from_each(self) -> int:
        """Most rows that a rank receives, divided by the ranks."""
        each = -(-self.max_total_recv_tokens // self.world_size)
        return min(each, self.max_num_inp_token_per_rank) if each else self.max_num_inp_token_per_rank
