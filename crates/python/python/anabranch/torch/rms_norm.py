"""All-reduce with RMSNorm: what follows each tensor-parallel layer of a transformer, as custom ops of torch.

    hidden = anabranch.torch.rms_norm.all_reduce_rms_norm(partial, residual, weight, 1e-6)

in place of ``all_reduce(partial)``, ``residual += partial``, ``hidden = rms_norm(residual) * weight``. One kernel does it where the message
is short (one to some dozens of tokens), else the fastest all_reduce and a kernel. ``residual`` has the bits of the separate steps; the normed
values may differ from torch's in the last place, and are the same on every rank.

Every op is collective over the group, has a fake kernel (``torch.compile`` keeps it in its graph), and can be captured by CUDA graphs
once it has run with tensors of the same shape and type. The ops have no gradients. Tensors are contiguous, float32, float16 or bfloat16; a row is a multiple of 16 bytes. ``partial`` in
the symmetric heap (:func:`anabranch.torch.empty`) makes long messages faster.

**The ops use ``partial`` up.** With a residual its values are undefined afterwards and ``residual`` holds the sum and the residual; without
one it holds the sum, which is the next residual.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.library import custom_op

from ._collectives import _tensor
from ._world import _shared

_SYNCHRONOUS = SimpleNamespace(asyncOp=False)


def _group(name: str):
    for group in _shared().groups:
        if group.name_of_group == name:
            return group
    raise ValueError(f"no group with the backend anabranch has the name {name!r}")


def _name(group: ProcessGroup | None) -> str:
    return (torch.distributed.group.WORLD if group is None else group).group_name


def _run(name: str, partial: Tensor, residual: Tensor | None, weight: Tensor, epsilon: float, out: Tensor, **scales) -> None:
    group = _group(name)
    if not 1 <= partial.dim() or partial.shape[-1] != weight.numel():
        raise ValueError(f"the rows of partial, of shape {tuple(partial.shape)}, and the weight, of {weight.numel()} elements, have different lengths")
    for what, tensor in {"partial": partial, "residual": residual, "weight": weight, "scale": scales.get("scale")}.items():
        if tensor is not None and (not tensor.is_contiguous() or tensor.is_neg()):
            raise ValueError(f"{what} is not contiguous, or a negated view: shape {tuple(tensor.shape)}, strides {tensor.stride()}")
    buffers = group._begin_call()

    def at(tensor: Tensor):
        # Contiguous: the memory is the tensor's own. It is kept until the call is over.
        kept = buffers.output(tensor, is_input=True)
        return _tensor(((group._located(kept), kept.numel()), kept.dtype))

    named = {what: at(value) if isinstance(value, Tensor) else value for what, value in scales.items()}
    if residual is not None:
        named["residual"] = at(residual)
    given, by, to = at(partial), at(weight), at(out)
    named["kept"] = given if residual is None else named["residual"]

    def launch(stream, _):
        return group._communicator.all_reduce_rms_norm(given, by, to, epsilon=epsilon, stream=stream, **named)

    group._run([launch], buffers, [out], _SYNCHRONOUS)


@custom_op("anabranch::all_reduce_rms_norm", mutates_args=("partial", "residual"))
def _plain(partial: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float, group: str) -> torch.Tensor:
    out = torch.empty_like(partial)
    _run(group, partial, residual, weight, epsilon, out)
    return out


@_plain.register_fake
def _(partial, residual, weight, epsilon, group):
    return torch.empty_like(partial)


@custom_op("anabranch::all_reduce_rms_norm_fp8", mutates_args=("partial", "residual"))
def _fp8(
    partial: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, scale: torch.Tensor, epsilon: float, dtype: torch.dtype, group: str
) -> torch.Tensor:
    out = torch.empty_like(partial, dtype=dtype)
    _run(group, partial, residual, weight, epsilon, out, scale=scale)
    return out


@_fp8.register_fake
def _(partial, residual, weight, scale, epsilon, dtype, group):
    return torch.empty_like(partial, dtype=dtype)


def _scales(partial: Tensor, group_size: int, is_column_major: bool, alignment: int) -> tuple[Tensor, int | None]:
    """Memory of scales, and the elements between two columns."""
    if group_size < 1 or partial.shape[-1] % group_size:
        raise ValueError(f"group_size is {group_size}; a divisor of the row's {partial.shape[-1]} elements is needed")
    if alignment < 1:
        raise ValueError(f"alignment is {alignment}; a positive number of rows is needed")
    groups, rows = partial.shape[-1] // group_size, partial.numel() // partial.shape[-1]
    if not is_column_major:
        return partial.new_empty(rows, groups, dtype=torch.float32), None
    stride = (rows + alignment - 1) // alignment * alignment
    return partial.new_empty(groups, stride, dtype=torch.float32), stride


def _seen(scales: Tensor, partial: Tensor, stride: int | None) -> Tensor:
    """The scales as ``[rows, groups]``."""
    return scales if stride is None else scales.t()[: partial.numel() // partial.shape[-1]]


@custom_op("anabranch::all_reduce_rms_norm_fp8_groups", mutates_args=("partial", "residual"))
def _fp8_groups(
    partial: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: float,
    group_size: int,
    is_column_major: bool,
    alignment: int,
    dtype: torch.dtype,
    group: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty_like(partial, dtype=dtype)
    scales, stride = _scales(partial, group_size, is_column_major, alignment)
    _run(group, partial, residual, weight, epsilon, out, scales=scales, group_size=group_size, scale_stride=stride)
    return out, _seen(scales, partial, stride)


@_fp8_groups.register_fake
def _(partial, residual, weight, epsilon, group_size, is_column_major, alignment, dtype, group):
    scales, stride = _scales(partial, group_size, is_column_major, alignment)
    return torch.empty_like(partial, dtype=dtype), _seen(scales, partial, stride)


def all_reduce_rms_norm(
    partial: Tensor, residual: Tensor | None, weight: Tensor, epsilon: float = 1e-6, *, group: ProcessGroup | None = None
) -> Tensor:
    """The normed rows, ``[..., row]``, of the sum of ``partial`` over the ranks of the group (``None``: all) and ``residual``, which becomes
    what was normed. ``weight`` is ``[row]``."""
    return _plain(partial, residual, weight, epsilon, _name(group))


def all_reduce_rms_norm_fp8(
    partial: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    scale: Tensor,
    epsilon: float = 1e-6,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: ProcessGroup | None = None,
) -> Tensor:
    """:func:`all_reduce_rms_norm`, divided by ``scale``, float32 of one element, and rounded to 8 bits (``float8_e4m3fn`` or
    ``float8_e4m3fnuz``), saturating."""
    return _fp8(partial, residual, weight, scale, epsilon, dtype, _name(group))


def all_reduce_rms_norm_fp8_groups(
    partial: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    epsilon: float = 1e-6,
    *,
    group_size: int = 128,
    is_column_major: bool = False,
    alignment: int = 4,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`all_reduce_rms_norm` in 8 bits with a scale for each ``group_size`` elements, and the scales, float32 ``[rows, row / group_size]``:
    row-major, or column-major with columns of a multiple of ``alignment`` rows, as DeepGEMM reads them."""
    return _fp8_groups(partial, residual, weight, epsilon, group_size, is_column_major, alignment, dtype, _name(group))
