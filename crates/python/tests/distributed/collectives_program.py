"""Every collective beside its definition, and beside gloo where gloo has it."""

import gc
import weakref

import common
import torch
import torch.distributed as dist
from common import check, same, values

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8]
MOVED = [*TYPES, torch.bool, torch.int16, torch.complex64, torch.complex128, torch.float8_e4m3fn]


def moved(rank, *shape, dtype):
    return values(rank, *shape, dtype=torch.float32 if dtype == torch.float8_e4m3fn else dtype).to(dtype)


def same_bytes(given, expected):
    same(given.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


@check
def all_reduce(rank, size, gloo):
    for dtype in TYPES:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            x = values(rank, 3, 5, dtype=dtype)
            # Debian's gloo reduces no 16-bit floats. These values are small and whole: the sums are the same in 32 bits.
            y = x.float() if dtype in (torch.float16, torch.bfloat16) else x.clone()
            dist.all_reduce(x, op)
            dist.all_reduce(y, op, group=gloo)
            same(x, y.to(dtype))
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        x = values(rank, 17, dtype=torch.int32)
        y = x.clone()
        dist.all_reduce(x, op)
        dist.all_reduce(y, op, group=gloo)
        same(x, y)


@check
def averages_and_scaled_sums(rank, size, gloo):
    total = sum(values(each, 40) for each in range(size))
    scaled = torch._C._distributed_c10d._make_nccl_premul_sum
    for op, expected in (
        (dist.ReduceOp.AVG, total / size),
        (scaled(0.5), total * 0.5),
        (scaled(torch.tensor(0.5)), total * 0.5),
    ):
        x = values(rank, 40)
        dist.all_reduce(x, op)
        same(x, expected)
    # Rounded towards zero, as in NCCL.
    for sign in (1, -1):
        x = torch.full((3,), sign * (rank + 1), dtype=torch.int64)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        same(x, torch.full((3,), sign * (size * (size + 1) // 2 // size), dtype=torch.int64))


def normed(total, residual, weight, epsilon):
    """The three steps that one op replaces: what is kept, and what is normed."""
    kept = total if residual is None else total + residual
    value = kept.float()
    factor = torch.rsqrt(value.square().mean(-1, keepdim=True) + epsilon)
    return kept, (value * factor * weight.float()).to(total.dtype)


@check
def rms_norm_after_a_sum(rank, size, gloo):
    from anabranch.torch import rms_norm

    torch.manual_seed(7)
    for dtype, rows, row in ((torch.bfloat16, (3,), 256), (torch.float16, (2, 2), 1024), (torch.float32, (1,), 64), (torch.bfloat16, (700,), 1024)):
        near = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2**-20}[dtype]
        parts = [torch.randn(*rows, row).to(dtype) for _ in range(size)]
        residual, weight = torch.randn(*rows, row).to(dtype), (torch.rand(row) + 0.5).to(dtype)
        total = parts[0].float().clone()
        for part in parts[1:]:
            total += part.float()
        total = total.to(dtype)
        for given in (residual, None):
            kept, expected = normed(total, given, weight, 1e-5)
            x, held = parts[rank].clone(), None if given is None else given.clone()
            out = rms_norm.all_reduce_rms_norm(x, held, weight, 1e-5)
            same(x if held is None else held, kept)
            torch.testing.assert_close(out, expected, rtol=near, atol=0)
        scale = torch.tensor([0.03])
        x, held = parts[rank].clone(), residual.clone()
        codes = rms_norm.all_reduce_rms_norm_fp8(x, held, weight, scale, 1e-5)
        kept, expected = normed(total, residual, weight, 1e-5)
        same(held, kept)
        assert codes.dtype == torch.float8_e4m3fn
        torch.testing.assert_close(codes.float() * scale, expected.float().clamp(-448 * 0.03, 448 * 0.03), rtol=2**-3, atol=0.03 * 2**-9)
        for is_column_major in (False, True):
            x, held = parts[rank].clone(), residual.clone()
            codes, scales = rms_norm.all_reduce_rms_norm_fp8_groups(x, held, weight, 1e-5, group_size=64, is_column_major=is_column_major)
            same(held, kept)
            groups = expected.float().reshape(-1, row // 64, 64)
            torch.testing.assert_close(scales, groups.abs().amax(-1) / 448, rtol=2 * near, atol=0)
            assert scales.stride() == ((1, -(-scales.shape[0] // 4) * 4) if is_column_major else (row // 64, 1)), scales.stride()
            again = codes.float().reshape(groups.shape) * scales.unsqueeze(-1)
            torch.testing.assert_close(again, groups, rtol=2**-3, atol=float(scales.max()) * 2**-8)
    for wrong, words in (
        (lambda x, w: rms_norm.all_reduce_rms_norm(x.t(), None, w), "different lengths"),
        (lambda x, w: rms_norm.all_reduce_rms_norm(x[:, ::2], None, w[::2].contiguous()), "not contiguous"),
        (lambda x, w: rms_norm.all_reduce_rms_norm(x.double(), None, w.double()), "allowed is"),
        (lambda x, w: rms_norm.all_reduce_rms_norm_fp8_groups(x, None, w, group_size=24), "a divisor"),
    ):
        try:
            wrong(torch.ones(2, 64), torch.ones(64))
        except Exception as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)


@check
def rms_norm_is_an_op_of_compiled_graphs(rank, size, gloo):
    from anabranch.torch import rms_norm

    weight = torch.ones(64)
    group = dist.group.WORLD.group_name
    samples = (torch.ones(4, 64), torch.ones(4, 64), weight, 1e-5, group)
    torch.library.opcheck(torch.ops.anabranch.all_reduce_rms_norm, samples, test_utils=("test_schema", "test_faketensor"))
    groups = (torch.ones(4, 64), None, weight, 1e-5, 32, True, 4, torch.float8_e4m3fn, group)
    torch.library.opcheck(torch.ops.anabranch.all_reduce_rms_norm_fp8_groups, groups, test_utils=("test_schema", "test_faketensor"))

    scaled = (torch.ones(4, 64), torch.ones(4, 64), weight, torch.ones(1), 1e-5, torch.float8_e4m3fn, group)
    torch.library.opcheck(torch.ops.anabranch.all_reduce_rms_norm_fp8, scaled, test_utils=("test_schema", "test_faketensor"))

    @torch.compile(backend="aot_eager", fullgraph=True)
    def layer(x, residual):
        return rms_norm.all_reduce_rms_norm(x * 2, residual, weight)

    torch.manual_seed(3)
    parts, residual = [torch.randn(4, 64) for _ in range(size)], torch.randn(4, 64)
    compiled, eager = residual.clone(), residual.clone()
    out = layer(parts[rank], compiled)
    same(out, rms_norm.all_reduce_rms_norm(parts[rank] * 2, eager, weight))
    same(compiled, eager)
    total = parts[0] * 2
    for part in parts[1:]:
        total = total + part * 2
    torch.testing.assert_close(out, normed(total, residual, weight, 1e-6)[1], rtol=2**-20, atol=0)


@check
def callbacks_of_futures_make_calls(rank, size, gloo):
    def second(future):
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()

    x = torch.ones(4)
    done = dist.all_reduce(x, async_op=True).get_future().then(second)
    done.wait()
    same(x, torch.full((4,), float(size * size)))


@check
def tensors_of_a_call_are_not_kept(rank, size, gloo):
    x = torch.ones(4)
    kept = weakref.ref(x)
    dist.all_reduce(x)
    del x
    gc.collect()
    assert kept() is None
    # The source of a broadcast is not written.
    x = torch.ones(1).expand(4) if rank == 0 else torch.zeros(4)
    dist.broadcast(x, 0)
    same(x.contiguous(), torch.ones(4))


@check
def large_and_random(rank, size, gloo):
    torch.manual_seed(rank)
    x = torch.randn(300_001)
    y = x.clone()
    dist.all_reduce(x)
    dist.all_reduce(y, group=gloo)
    torch.testing.assert_close(x, y)
    everything = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(everything, x)
    for each in everything:
        same(each, x)


@check
def complex_and_strided(rank, size, gloo):
    for dtype in (torch.complex64, torch.complex128):
        x = values(rank, 4, 3, dtype=dtype)
        dist.all_reduce(x)
        same(x, sum(values(each, 4, 3, dtype=dtype) for each in range(size)))
    base = values(rank, 6, 4)
    dist.all_reduce(base.t())
    same(base, sum(values(each, 6, 4) for each in range(size)))
    base = values(rank, 6, 4)
    dist.broadcast(base[:, 1], 1)
    expected = values(rank, 6, 4)
    expected[:, 1] = values(1, 6, 4)[:, 1]
    same(base, expected)
    parameter = torch.nn.Parameter(values(rank, 4))
    dist.all_reduce(parameter)
    same(parameter.detach(), sum(values(each, 4) for each in range(size)))
    with torch.inference_mode():
        x = values(rank, 4, 2).t()
        dist.all_reduce(x, async_op=True).wait()
        same(x, sum(values(each, 4, 2).t() for each in range(size)))


@check
def empty_tensors(rank, size, gloo):
    dist.all_reduce(torch.empty(0))
    dist.broadcast(torch.empty(0, 3), 0)
    dist.all_gather_into_tensor(torch.empty(0), torch.empty(0))
    output = torch.empty(3 * (rank == 1) * size)
    dist.all_to_all_single(output, torch.full((3,), float(rank)), [3 * (rank == 1)] * size, [0, 3] + [0] * (size - 2))
    if rank == 1:
        same(output, torch.arange(size).repeat_interleave(3).float())


@check
def broadcast_and_reduce(rank, size, gloo):
    for root in range(size):
        for dtype in MOVED:
            x = moved(rank, 7, dtype=dtype)
            dist.broadcast(x, root)
            same_bytes(x, moved(root, 7, dtype=dtype))
        x = values(rank, 3, 4).t()
        dist.reduce(x, root)
        same(x, sum(values(each, 3, 4).t() for each in range(size)) if rank == root else values(rank, 3, 4).t())


@check
def gathers(rank, size, gloo):
    for dtype in MOVED:
        everything = [moved(each, 2, 3, dtype=dtype) for each in range(size)]
        lists = [torch.empty(2, 3, dtype=dtype) for _ in range(size)]
        dist.all_gather(lists, everything[rank])
        flat = torch.empty(2 * size, 3, dtype=dtype)
        dist.all_gather_into_tensor(flat, everything[rank])
        same_bytes(flat, torch.cat(everything))
        stacked = torch.empty(size, 2, 3, dtype=dtype)
        dist.all_gather_into_tensor(stacked, everything[rank])
        same_bytes(stacked, torch.stack(everything))
        root = size - 1
        gathered = [torch.empty(2, 3, dtype=dtype) for _ in range(size)] if rank == root else None
        dist.gather(everything[rank], gathered, dst=root)
        for given, own in zip(lists, everything):
            same_bytes(given, own)
        for given, own in zip(gathered or [], everything):
            same_bytes(given, own)
    uneven = [torch.empty(each + 1) for each in range(size)]
    dist.all_gather(uneven, values(rank, rank + 1))
    for each, given in enumerate(uneven):
        same(given, values(each, each + 1))


@check
def scatters(rank, size, gloo):
    for root in (0, size - 1):
        x = torch.empty(2, 3)
        dist.scatter(x, [values(each + root, 2, 3) for each in range(size)] if rank == root else None, src=root)
        same(x, values(rank + root, 2, 3))
    for dtype in TYPES:
        expected = sum(values(each, size, 4, dtype=dtype)[rank] for each in range(size)).to(dtype)
        x = torch.empty(4, dtype=dtype)
        dist.reduce_scatter(x, list(values(rank, size, 4, dtype=dtype)))
        same(x, expected)
        x = torch.empty(4, dtype=dtype)
        dist.reduce_scatter_tensor(x, values(rank, size * 4, dtype=dtype))
        same(x, expected)
    x = torch.empty(rank + 1)
    dist.reduce_scatter(x, [values(rank + part, part + 1) for part in range(size)], op=dist.ReduceOp.MAX)
    same(x, torch.stack([values(each + rank, rank + 1) for each in range(size)]).amax(0))


@check
def all_to_all(rank, size, gloo):
    for dtype in MOVED:
        x = moved(rank, size * 2, 3, dtype=dtype)
        output = torch.empty_like(x)
        dist.all_to_all_single(output, x)
        same_bytes(output, torch.cat([moved(each, size * 2, 3, dtype=dtype)[2 * rank : 2 * rank + 2] for each in range(size)]))
    # Rank r sends r + p rows to rank p.
    inputs = [values(10 * rank + peer, rank + peer, 3) for peer in range(size)]
    sizes = [rank + peer for peer in range(size)]
    expected = [values(10 * each + rank, each + rank, 3) for each in range(size)]
    output = torch.empty(sum(sizes), 3)
    dist.all_to_all_single(output, torch.cat(inputs), sizes, sizes)
    same(output, torch.cat(expected))
    outputs = [torch.empty(rows, 3) for rows in sizes]
    dist.all_to_all(outputs, inputs)
    for given, own in zip(outputs, expected):
        same(given, own)


@check
def messages(rank, size, gloo):
    left, right = (rank - 1) % size, (rank + 1) % size
    if rank == 0:
        dist.send(values(5, 9), 1)
    elif rank == 1:
        x = torch.empty(9)
        dist.recv(x, 0)
        same(x, values(5, 9))
    # Too large to be buffered, and receives first: only a batch that is launched as a whole ends.
    for dtype in (torch.int64, torch.complex64):
        x, y = torch.empty(1 << 19, dtype=dtype), torch.empty(6, 2, dtype=dtype)
        operations = [
            dist.P2POp(dist.irecv, x, left),
            dist.P2POp(dist.irecv, y.t(), right),
            dist.P2POp(dist.isend, values(rank, 1 << 19, dtype=dtype), right),
            dist.P2POp(dist.isend, values(rank, 2, 6, dtype=dtype), left),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        same(x, values(left, 1 << 19, dtype=dtype))
        same(y.t(), values(right, 2, 6, dtype=dtype))
    works = [dist.isend(values(rank, 4), right), dist.irecv(received := torch.empty(4), left)]
    for work in works:
        work.wait()
    same(received, values(left, 4))


@check
def objects_and_barrier(rank, size, gloo):
    everything = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank})
    assert everything == [{"rank": each, "text": "x" * each} for each in range(size)]
    given = [("root", 1), None] if rank == 1 else [None, None]
    dist.broadcast_object_list(given, 1)
    assert given == [("root", 1), None]
    mine = [None]
    dist.scatter_object_list(mine, [each * each for each in range(size)] if rank == 0 else None, src=0)
    assert mine == [rank * rank]
    dist.barrier()
    dist.barrier(async_op=True).wait()


@check
def asynchronous(rank, size, gloo):
    tensors = [values(rank, 100) + each for each in range(5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    total = sum(values(each, 100) for each in range(size))
    for number, (work, tensor) in enumerate(zip(works, tensors)):
        assert work.wait() is not False
        same(tensor, total + number * size)
    x = values(rank, 2, 3).t()
    work = dist.all_reduce(x, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    same(doubled.wait(), sum(values(each, 2, 3).t() for each in range(size)) * 2)
    lists = [torch.empty(4) for _ in range(size)]
    future = dist.all_gather(lists, values(rank, 4), async_op=True).get_future()
    future.wait()
    for each, given in enumerate(lists):
        same(given, values(each, 4))
    # A collective in a callback.
    x, y = values(rank, 8), values(rank, 8)
    chained = dist.all_reduce(x, async_op=True).get_future().then(lambda _: dist.all_reduce(y, async_op=True).get_future())
    chained.wait().wait()
    same(y, sum(values(each, 8) for each in range(size)))


@check
def coalesced(rank, size, gloo):
    total = sum(values(each, 6) for each in range(size))
    tensors = [values(rank, 6), values(rank, 6) * 2]
    with dist.distributed_c10d._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    same(tensors[0], total)
    same(tensors[1], total * 2)
    outputs = [torch.empty(6 * size) for _ in range(2)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for factor, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, values(rank, 6) * (factor + 1))
    manager.wait()
    for factor, output in enumerate(outputs):
        same(output, torch.cat([values(each, 6) for each in range(size)]) * (factor + 1))
    parts = [torch.empty(6) for _ in range(2)]
    with dist.distributed_c10d._coalescing_manager():
        for factor, part in enumerate(parts):
            dist.reduce_scatter_tensor(part, values(rank, 6 * size) * (factor + 1))
    for factor, part in enumerate(parts):
        same(part, sum(values(each, 6 * size)[6 * rank : 6 * rank + 6] for each in range(size)) * (factor + 1))


@check
def subgroups(rank, size, gloo):
    evens = dist.new_group(list(range(0, size, 2)))
    pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    if rank % 2 == 0:
        x = values(rank, 5)
        dist.all_reduce(x, group=evens)
        same(x, sum(values(each, 5) for each in range(0, size, 2)))
    own, first = pairs[rank // 2], rank // 2 * 2
    x = values(rank, 5)
    dist.broadcast(x, first + 1, group=own)
    same(x, values(first + 1, 5))
    alone = dist.new_group([rank], use_local_synchronization=True)
    x = values(rank, 5)
    dist.all_reduce(x, group=alone)
    same(x, values(rank, 5))
    dist.destroy_process_group(own)
    dist.all_reduce(x)


@check
def refusals(rank, size, gloo):
    def refused(kind, text, call):
        try:
            call()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"nothing refused; expected {text}")

    refused((ValueError, RuntimeError), "avg", lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG))
    # The bytes of tensors of different types would be moved as they are.
    ints, floats = torch.ones(2 * size, dtype=torch.int32), torch.zeros(2 * size)
    refused((TypeError, RuntimeError), "must be the same", lambda: dist.all_gather_into_tensor(floats, ints[:2]))
    refused((TypeError, RuntimeError), "must be the same", lambda: dist.reduce_scatter_tensor(floats[:2].bfloat16(), floats))
    refused((TypeError, RuntimeError, ValueError), "", lambda: dist.all_gather(list(floats.split(2)), ints[:2]))
    refused((ValueError, RuntimeError), f"{2 * size + 1}, no multiple", lambda: dist.all_to_all_single(torch.zeros(2 * size + 1), torch.ones(2 * size + 1)))
    refused((ValueError, RuntimeError), "one place", lambda: dist.all_reduce(torch.ones(1).expand(4)))
    refused((ValueError, RuntimeError), "tag 7", lambda: dist.send(torch.ones(3), (rank + 1) % size, tag=7))
    refused((NotImplementedError, RuntimeError), "any rank", lambda: dist.recv(torch.ones(3)))
    refused((NotImplementedError, RuntimeError), "parse", lambda: dist.broadcast(torch.eye(3).to_sparse(), 0))
    refused(ValueError, "pg_options", lambda: dist.new_group(pg_options={"heap.bytes": "1 GiB"}, backend="anabranch"))


@check
def cpu_tensors_of_a_group_on_gpus_go_by_gloo(rank, size, gloo):
    group = dist.group.WORLD
    own = group if hasattr(group, "_shared") else group._get_backend(torch.device("cpu"))
    # As if the world were on GPUs.
    own._shared.is_gpu = True
    x, lists, everything = values(rank, 4), [torch.empty(4) for _ in range(size)], [None] * size
    dist.all_reduce(x)
    same(x, sum(values(each, 4) for each in range(size)))
    dist.all_gather(lists, values(rank, 4))
    same(lists[1], values(1, 4))
    dist.all_gather_object(everything, rank)
    assert everything == list(range(size))
    own._shared.is_gpu = False
    assert own._host_group is not None


if __name__ == "__main__":
    common.main()
