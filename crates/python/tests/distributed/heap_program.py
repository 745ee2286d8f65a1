"""Tensors in the symmetric heap, and groups that are split."""

import anabranch.torch
import common
import pytest
import torch
import torch.distributed as dist
from common import check, same, values


@check
def tensors_in_the_heap(rank, size, gloo):
    x = anabranch.torch.empty(4, 3)
    assert x.shape == (4, 3) and x.dtype == torch.float32 and (x == 0).all()
    x.copy_(values(rank, 4, 3))
    dist.all_reduce(x)
    same(x, sum(values(each, 4, 3) for each in range(size)))
    # In place: the input is this rank's part of the output.
    everything = anabranch.torch.empty((size, 5), dtype=torch.bfloat16)
    everything[rank] = values(rank, 5, dtype=torch.bfloat16)
    dist.all_gather_into_tensor(everything, everything[rank])
    same(everything + 0, torch.stack([values(each, 5, dtype=torch.bfloat16) for each in range(size)]))
    pairs = anabranch.torch.empty(2 * size, dtype=torch.complex64)
    pairs.copy_(values(rank, 2 * size, dtype=torch.complex64))
    part = anabranch.torch.empty(2, dtype=torch.complex64)
    dist.reduce_scatter_tensor(part, pairs)
    same(part + 0, sum(values(each, 2 * size, dtype=torch.complex64) for each in range(size))[2 * rank : 2 * rank + 2])
    swapped = anabranch.torch.empty(size, dtype=torch.int64)
    source = anabranch.torch.empty(size, dtype=torch.int64).copy_(torch.arange(size) + 10 * rank)
    dist.all_to_all_single(swapped, source, async_op=True).wait()
    same(swapped + 0, torch.arange(size) * 10 + rank)
    # Of two ranks: symmetric among them, and local for a call of all.
    pair = dist.new_group([0, 1])
    if rank < 2:
        mine = anabranch.torch.empty(3, group=pair).fill_(rank + 1.0)
        dist.all_reduce(mine, group=pair)
        same(mine + 0, torch.full((3,), 3.0))
    else:
        mine = torch.full((3,), 3.0)
    dist.all_reduce(mine)
    same(mine + 0, torch.full((3,), 3.0 * size))


@check
def the_heap_gets_memory_back(rank, size, gloo):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for _ in range(40):
        # An eighth of the heap each.
        big = anabranch.torch.empty(8 << 20, dtype=torch.uint8)
        del big
    assert len(backend._shared.heap._entries) < 8
    small = anabranch.torch.empty(10)
    del small
    with pytest.raises(anabranch.ConfigError, match="heap"):
        anabranch.torch.empty(1 << 30)
    # Tensors at all addresses are found, or found not to be in the heap.
    for count in (4, 1 << 12, 1 << 22):
        x = torch.ones(count)
        dist.all_reduce(x)
        same(x, torch.full((count,), float(size)))
    assert anabranch.torch.empty(0, 4).shape == (0, 4)


@check
def buffers_are_used_in_turn(rank, size, gloo):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    take = lambda: backend.allocate_tensor(100, dtype=torch.float32, device=torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu")) and not backend.supports_tensor_alloc(torch.device("meta"))
    first, second = take(), take()
    addresses = [first.data_ptr(), second.data_ptr()]
    assert addresses[0] != addresses[1]
    del first
    third = take()
    assert third.data_ptr() == addresses[0]
    view = second[3:]
    del second
    fourth = take()
    assert fourth.data_ptr() not in addresses and view.data_ptr() == addresses[1] + 12
    third.fill_(rank + 1)
    dist.all_reduce(third)
    same(third + 0, torch.full((100,), size * (size + 1) / 2))


@check
def groups_are_split(rank, size, gloo):
    if torch.__version__.startswith("2.14.") and not torch.accelerator.is_available():
        print("skipped: split_group of torch 2.14 needs an accelerator")
        return
    whole = dist.group.WORLD
    whole.bound_device_id = torch.device("cpu", 0)
    halves = [list(range(size // 2)), list(range(size // 2, size))]
    half = dist.split_group(split_ranks=halves, group_desc="half")
    mine = halves[rank >= size // 2]
    x = values(rank, 4)
    dist.all_reduce(x, group=half)
    same(x, sum(values(each, 4) for each in mine))
    assert dist.get_process_group_ranks(half) == mine and half.group_desc == "half"
    # Of a group that is not the world, with ranks outside of all parts.
    is_outside = rank != mine[0]
    is_new = isinstance(whole._get_backend(torch.device("cpu")), torch._C._distributed_c10d.Backend)
    if is_outside and is_new:
        with pytest.raises(ValueError, match="is in no part of split_group"):
            dist.split_group(half, [[0]])
    else:
        part = dist.split_group(half, [[0]])
        assert (part is None) == is_outside
        if part is not None:
            dist.barrier(group=part)
            dist.destroy_process_group(part)
    # torch 2.14 and newer refuse a mapping themselves.
    error, message = (TypeError, "incompatible function arguments") if is_new else (ValueError, "settings of the world")
    with pytest.raises(error, match=message):
        dist.split_group(split_ranks=halves, pg_options={"heap.bytes": "1 MiB"})
    dist.barrier()


if __name__ == "__main__":
    common.main()
