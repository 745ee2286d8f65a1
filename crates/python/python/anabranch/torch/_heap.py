"""Tensors of torch in the symmetric heap."""

from __future__ import annotations

import bisect
import math
from collections import deque

import torch

import anabranch


class Heap:
    """The allocations of a world that torch has tensors of. Ranks are those of torch."""

    def __init__(self, world: anabranch.World, ranks: tuple[int, ...]) -> None:
        self._world, self._numbers = world, {rank: number for number, rank in enumerate(ranks)}
        self._device = torch.device("cpu") if world.runtime == "host" else torch.device("cuda", world.device)
        # By address, which `_starts` has in order: the memory, its ranks, and whether a pool keeps it.
        self._entries: dict[int, tuple[anabranch.Memory, frozenset[int], bool]] = {}
        self._starts: list[int] = []
        self._pools: dict[tuple[tuple[int, ...], int, int], deque[anabranch.Memory]] = {}

    def purge(self) -> None:
        """Gives back the memory of tensors that the program has dropped."""
        dropped = [start for start, (memory, _, of_pool) in self._entries.items() if not of_pool and not memory.is_exported]
        if dropped and self._device.type == "cuda":
            # Kernels of torch may still use what the program has dropped.
            torch.cuda.synchronize(self._device)
        for start in dropped:
            del self._entries[start]
        self._starts = sorted(self._entries)

    def _allocate(self, size: int, ranks: tuple[int, ...], is_pooled: bool) -> anabranch.Memory:
        self.purge()
        memory = self._world.empty(size, "uint8", ranks=[self._numbers[rank] for rank in ranks], tag="torch")
        self._entries[memory.data_ptr] = (memory, frozenset(ranks), is_pooled)
        self._starts = sorted(self._entries)
        return memory

    def drop(self) -> None:
        """Lets go of all memory: tensors keep theirs."""
        self._entries.clear()
        self._starts.clear()
        self._pools.clear()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, ranks: tuple[int, ...]) -> torch.Tensor:
        """A tensor at the same offset of the heap on all of these ranks, which all call this."""
        if math.prod(shape) == 0:
            return torch.empty(shape, dtype=dtype, device=self._device)
        memory = self._allocate(math.prod(shape) * dtype.itemsize, ranks, False)
        return torch.from_dlpack(memory).view(dtype).view(shape)

    def pooled(self, size: int, dtype: torch.dtype, ranks: tuple[int, ...]) -> torch.Tensor:
        """``size`` elements in memory that is used again after its tensors were dropped."""
        nbytes = size * dtype.itemsize
        if nbytes == 0:
            return torch.empty(0, dtype=dtype, device=self._device)
        # A pool for each stream, as torch's allocator has: what one stream still uses is given to no other.
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        pool = self._pools.setdefault((ranks, nbytes, stream), deque())
        # In turn, and not any that is free: all ranks then take the same one, or one of them waits for the others to allocate.
        if pool and not pool[0].is_exported:
            memory = pool.popleft()
        else:
            memory = self._allocate(nbytes, ranks, True)
        pool.append(memory)
        return torch.from_dlpack(memory).view(dtype)

    def located(self, tensor: torch.Tensor, ranks: tuple[int, ...]) -> anabranch.Memory | None:
        """The bytes of a contiguous tensor as memory of the heap, where it is of an allocation of all of these ranks."""
        if not self._starts:
            return None
        address = tensor.data_ptr()
        index = bisect.bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        memory, members, _ = self._entries[self._starts[index]]
        offset = address - memory.data_ptr
        if offset + tensor.nbytes > memory.nbytes or not members.issuperset(ranks):
            return None
        return memory.part(offset, offset + tensor.nbytes)
