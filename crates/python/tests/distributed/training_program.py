"""What torch builds on collectives: functional collectives, torch.compile, DDP, FSDP2, meshes, DTensor. Compared with gloo's runs."""

import common
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from common import check, same, values
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def train(network: nn.Module, rank: int) -> list[float]:
    """Two steps on data of the rank; returns the losses."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    torch.manual_seed(rank + 1)
    losses = []
    for _ in range(2):
        loss = nn.functional.mse_loss(network(torch.randn(6, 8)), torch.randn(6, 4))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def same_parameters(given: nn.Module, expected: nn.Module) -> None:
    """Sums of two ranks have one order; gloo adds those of more in another."""
    exact = dist.get_world_size() == 2
    for (name, one), (_, other) in zip(given.named_parameters(), expected.named_parameters(), strict=True):
        one = one.full_tensor() if isinstance(one, DTensor) else one
        torch.testing.assert_close(
            one, other, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@check
def functional_collectives(rank, size, gloo):
    group = dist.group.WORLD
    x = values(rank, size * 2, 3)
    total = sum(values(each, size * 2, 3) for each in range(size))
    same(functional.all_reduce(x, "sum", group) + 0, total)
    same(functional.all_gather_tensor(x, 0, group) + 0, torch.cat([values(each, size * 2, 3) for each in range(size)]))
    same(functional.reduce_scatter_tensor(x, "sum", 0, group) + 0, total[2 * rank : 2 * rank + 2])
    same(functional.broadcast(x, 1, group) + 0, values(1, size * 2, 3))
    parts = [values(each, size * 2, 3)[2 * rank : 2 * rank + 2] for each in range(size)]
    same(functional.all_to_all_single(x, [2] * size, [2] * size, group) + 0, torch.cat(parts))
    several = functional.all_reduce_coalesced([x, x * 2], "sum", group)
    same(several[1] + 0, total * 2)


@check
def compiled(rank, size, gloo):
    def function(x):
        y = x * 2
        dist.all_reduce(y)
        return functional.all_gather_tensor(y + 1, 0, dist.group.WORLD) - 1

    expected = torch.cat([sum(values(each, 4) for each in range(size)) * 2] * size)
    for backend in ("aot_eager", "inductor"):
        torch.compiler.reset()
        same(torch.compile(function, backend=backend, fullgraph=True)(values(rank, 4)), expected)


@check
def data_parallel(rank, size, gloo):
    ours, theirs = (nn.parallel.DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.001) for group in (None, gloo))
    assert train(ours, rank) == train(theirs, rank) or size > 2
    same_parameters(ours.module, theirs.module)


@check
def data_parallel_with_a_hook(rank, size, gloo):
    def hook(_, bucket):
        work = dist.all_reduce(bucket.buffer().div_(size), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    ours, theirs = (nn.parallel.DistributedDataParallel(model(), process_group=group) for group in (None, gloo))
    ours.register_comm_hook(None, hook)
    train(ours, rank)
    train(theirs, rank)
    same_parameters(ours.module, theirs.module)


@check
def fully_sharded(rank, size, gloo):
    mesh = init_device_mesh("cpu", (size,))
    ours, theirs = model(), nn.parallel.DistributedDataParallel(model(), process_group=gloo)
    for layer in ours:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(ours, mesh=mesh)
    train(ours, rank)
    train(theirs, rank)
    # FSDP2 scales gradients before it adds them, DDP likewise, in another order.
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.full_tensor(), other, rtol=1e-5, atol=1e-6)


@check
def fully_sharded_with_buffers_of_the_heap(rank, size, gloo):
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
        print("skipped: torch before 2.9 asks no backend for the buffers of FSDP2")
        return
    mesh = init_device_mesh("cpu", (size,))

    def sharded(in_heap: bool) -> nn.Module:
        network = model()
        for layer in [*(layer for layer in network if isinstance(layer, nn.Linear)), network]:
            fully_shard(layer, mesh=mesh)
            layer.set_allocate_memory_from_process_group_for_comm(in_heap)
        return network

    heap = mesh.get_group()._get_backend(torch.device("cpu"))._shared.heap
    theirs, ours = sharded(False), sharded(True)
    assert not heap._pools
    losses = train(theirs, rank), train(ours, rank)
    sizes = {key: len(pool) for key, pool in heap._pools.items()}
    assert sizes and losses[0] == losses[1]
    for _ in range(3):
        assert train(theirs, rank) == train(ours, rank)
    # Later steps use the buffers of the first.
    assert sizes == {key: len(pool) for key, pool in heap._pools.items()}
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        same(one.full_tensor(), other.full_tensor())


@check
def meshes_and_sharded_tensors(rank, size, gloo):
    rows = size // 2
    mesh = init_device_mesh("cpu", (rows, 2), mesh_dim_names=("data", "tensor"))
    x = values(rank, 4)
    dist.all_reduce(x, group=mesh.get_group("tensor"))
    first = rank // 2 * 2
    same(x, values(first, 4) + values(first + 1, 4))
    whole = values(0, 8, 6)
    sharded = distribute_tensor(whole, mesh, [Replicate(), Shard(0)])
    same(sharded.redistribute(mesh, [Replicate(), Shard(1)]).to_local(), whole[:, 3 * (rank % 2) : 3 * (rank % 2) + 3])
    same(sharded.full_tensor(), whole)
    product = sharded @ distribute_tensor(values(1, 6, 5), mesh, [Replicate(), Replicate()])
    same(product.full_tensor(), whole @ values(1, 6, 5))


if __name__ == "__main__":
    common.main()
