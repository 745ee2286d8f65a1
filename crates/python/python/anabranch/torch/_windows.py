"""Tensors of a plan's windows."""

from __future__ import annotations

from typing import Any

import torch


def as_tensor(memory: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Memory as a tensor; ``dtype`` where it is one that travels as bytes."""
    return torch.from_dlpack(memory) if dtype is None else torch.from_dlpack(memory.view("uint8")).view(memory.shape).view(dtype)


class Windows:
    """Tensors of windows by address: making one costs the host more than a launch. They live as long as the plan, whose windows stay."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[type, str, int], torch.Tensor] = {}

    def __call__(self, of: Any, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The window ``name`` of an operation or a layout, as :func:`as_tensor`."""
        memory = getattr(of, name)
        key = (type(of), name, memory.data_ptr)
        tensor = self._tensors.get(key)
        if tensor is None:
            with torch.inference_mode(False):
                tensor = self._tensors[key] = as_tensor(memory, dtype)
        return tensor
