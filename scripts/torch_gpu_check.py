#!/usr/bin/env python3
"""Checks the torch package on the GPUs of this machine: prints `ok` or `failed` for each check, and exits with 1 if one failed.

    python3 scripts/torch_gpu_check.py [--ranks N] [--one-gpu] [--only NAME ...] [--cpu]

Each check runs in processes of its own, one for each GPU (`--ranks`: fewer). `--one-gpu` runs all ranks, 2 by default, on the first GPU: start
MPS before (`nvidia-cuda-mps-control -d`), or they share it in time slices. `--cpu` runs on the host runtime the checks that capture no graph.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

import anabranch.torch
from anabranch.torch import rms_norm

CHECKS: dict = {}
# Those that capture CUDA graphs.
GRAPHS: set = set()
SECONDS = 240


def check(function):
    CHECKS[function.__name__] = function
    return function


def graph_check(function):
    GRAPHS.add(function.__name__)
    return check(function)


class Rank:
    """This rank, its device, and numbers that differ between ranks."""

    def __init__(self, is_cpu: bool) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cpu") if is_cpu else torch.device("cuda", torch.cuda.current_device())

    def values(self, rank: int, *shape: int, round: int = 0) -> torch.Tensor:
        """Small whole numbers, whose sums are exact."""
        count = torch.Size(shape).numel()
        return ((torch.arange(count, device=self.device) * 7 + 3 * rank + round) % 5).float().reshape(shape)

    def total(self, *shape: int, round: int = 0) -> torch.Tensor:
        return sum(self.values(rank, *shape, round=round) for rank in range(self.size))


def same(given: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(given, expected), f"{given} is not {expected}"


def close(given: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(given, expected, rtol=1e-3, atol=1e-4)


@check
def collectives(of: Rank) -> None:
    for empty in (lambda *shape: torch.empty(*shape, device=of.device), anabranch.torch.empty):
        for is_async in (False, True):
            for count in (4, 1000, 1 << 20):
                results = run_collectives(of, empty, count, is_async)
                check_collectives(of, results, count)


def run_collectives(of: Rank, empty, count: int, is_async: bool, tensors=None, round: int = 0):
    """all_reduce, all_gather, reduce_scatter and all_to_all; ``tensors`` of a call before are used again."""
    if tensors is None:
        tensors = empty(count), empty(of.size * count), empty(count), empty(of.size * count), empty(of.size * count)
        fill(of, tensors, round)
    reduced, gathered, scattered, exchanged, source = tensors

    def wait(work):
        if is_async:
            work.wait()

    wait(dist.all_reduce(reduced, async_op=is_async))
    wait(dist.reduce_scatter_tensor(scattered, source, async_op=is_async))
    wait(dist.all_gather_into_tensor(gathered, reduced, async_op=is_async))
    wait(dist.all_to_all_single(exchanged, source, async_op=is_async))
    return tensors


def fill(of: Rank, tensors, round: int) -> None:
    reduced, *_, source = tensors
    reduced.copy_(of.values(of.rank, len(reduced), round=round))
    source.copy_(of.values(of.rank, len(source), round=round))


def check_collectives(of: Rank, tensors, count: int, round: int = 0) -> None:
    reduced, gathered, scattered, exchanged, _ = tensors
    mine = slice(of.rank * count, (of.rank + 1) * count)
    same(reduced, of.total(count, round=round))
    same(gathered, of.total(count, round=round).repeat(of.size))
    same(scattered, of.total(of.size * count, round=round)[mine])
    same(exchanged, torch.cat([of.values(rank, of.size * count, round=round)[mine] for rank in range(of.size)]))


def captured(call):
    """A CUDA graph of the call, which ran before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        result = call()
    return graph, result


def replayed_collectives(of: Rank, empty, is_async: bool) -> None:
    for count in (4, 1 << 18):
        tensors = run_collectives(of, empty, count, is_async)
        graph, _ = captured(lambda: run_collectives(of, empty, count, is_async, tensors))
        for round in range(1, 4):
            fill(of, tensors, round)
            graph.replay()
            torch.cuda.synchronize()
            check_collectives(of, tensors, count, round)
        # Eager calls between replays.
        check_collectives(of, run_collectives(of, empty, count, is_async, round=7), count, 7)


@check
def gloo_beside_anabranch(of: Rank) -> None:
    """A group whose tensors of the CPU go by gloo, and those of GPUs by this backend."""
    group = dist.new_group(backend="cpu:gloo,cuda:anabranch")
    for tensor in (of.values(of.rank, 1000).cpu(), of.values(of.rank, 1000)):
        dist.all_reduce(tensor, group=group)
        same(tensor, of.total(1000).to(tensor.device))
        gathered = [torch.empty_like(tensor) for _ in range(of.size)]
        dist.all_gather(gathered, tensor, group=group)
        for each in gathered:
            same(each, tensor)
    names: list = [None] * of.size
    dist.all_gather_object(names, f"rank {of.rank}", group=group)
    assert names == [f"rank {rank}" for rank in range(of.size)], names
    dist.destroy_process_group(group)


@graph_check
def graph_of_synchronous_collectives(of: Rank) -> None:
    replayed_collectives(of, lambda *shape: torch.empty(*shape, device=of.device), False)


@graph_check
def graph_of_asynchronous_collectives(of: Rank) -> None:
    replayed_collectives(of, lambda *shape: torch.empty(*shape, device=of.device), True)


@graph_check
def graph_of_collectives_in_the_heap(of: Rank) -> None:
    replayed_collectives(of, anabranch.torch.empty, False)


@graph_check
def graph_of_a_sum_with_a_factor_on_the_device(of: Rank) -> None:
    x = torch.empty(1 << 16, device=of.device)

    def call():
        # The factor is gone before the work is over: the call keeps it, and nothing of the graph is put in its place.
        factor = torch.full((), 0.5, device=of.device)
        work = dist.all_reduce(x, dist._make_nccl_premul_sum(factor), async_op=True)
        del factor
        torch.full((), 7.0, device=of.device)
        work.wait()

    x.zero_()
    graph, _ = captured(call)
    for round in range(3):
        x.copy_(of.values(of.rank, len(x), round=round))
        graph.replay()
        same(x, 0.5 * of.total(len(x), round=round))


@graph_check
def graph_of_sums_with_rms_norm(of: Rank) -> None:
    for rows, is_heap in ((1, False), (7, True), (64, False), (300, True), (300, False)):
        hidden, kind = 7168, torch.bfloat16
        x = anabranch.torch.empty(rows, hidden, dtype=kind) if is_heap else torch.empty(rows, hidden, dtype=kind, device=of.device)
        residual, weight = torch.empty(rows, hidden, dtype=kind, device=of.device), torch.rand(hidden, device=of.device).to(kind)

        def call():
            plain = rms_norm.all_reduce_rms_norm(x, residual, weight, 1e-6)
            # A second layer, on what the first one kept.
            codes, scales = rms_norm.all_reduce_rms_norm_fp8_groups(second, residual, weight, 1e-6, is_column_major=True)
            return plain, codes, scales

        second = torch.empty_like(x)
        x.zero_(), residual.zero_(), second.zero_()
        graph, results = captured(call)
        for replay in range(3):
            torch.manual_seed(2000 + 100 * replay + of.rank)
            x.copy_(torch.randn(rows, hidden, device=of.device)), second.copy_(torch.randn(rows, hidden, device=of.device))
            torch.manual_seed(1000 + replay)
            residual.copy_(torch.randn(rows, hidden, device=of.device))
            sums = [x.clone(), second.clone()]
            for sum in sums:
                dist.all_reduce(sum)
            first = residual + sums[0]
            both = first + sums[1]
            graph.replay()
            same(residual, both)
            norm = lambda kept: torch.nn.functional.rms_norm(kept.float(), (hidden,), weight.float(), 1e-6)
            plain, codes, scales = results
            torch.testing.assert_close(plain, norm(first).to(kind), rtol=2**-7, atol=0)
            groups = norm(both).to(kind).float().reshape(rows, -1, 128)
            torch.testing.assert_close(scales, groups.abs().amax(-1) / 448, rtol=2**-6, atol=0)
            again = codes.float().reshape(groups.shape) * scales.unsqueeze(-1)
            torch.testing.assert_close(again, groups, rtol=2**-3, atol=float(scales.max()) * 2**-8)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))


def trained(model: nn.Module, of: Rank, ranks: range) -> list[float]:
    """The mean losses of some steps on the data of these ranks, of which the model averages."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        generators = [torch.Generator().manual_seed(100 * step + rank) for rank in ranks]
        x = torch.cat([torch.randn(16, 64, generator=generator) for generator in generators]).to(of.device)
        y = torch.cat([torch.randn(16, 8, generator=generator) for generator in generators]).to(of.device)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def same_training(model: nn.Module, of: Rank) -> None:
    """Each rank trains on its data; the parameters are those of one process that trains on all data."""
    alone = network().to(of.device)
    trained(alone, of, range(of.size))
    trained(model, of, range(of.rank, of.rank + 1))
    for given, expected in zip(model.parameters(), alone.parameters(), strict=True):
        close(given.full_tensor() if hasattr(given, "full_tensor") else given, expected)


@check
def data_parallel(of: Rank) -> None:
    devices = None if of.device.type == "cpu" else [of.device.index]
    same_training(nn.parallel.DistributedDataParallel(network().to(of.device), device_ids=devices, bucket_cap_mb=0.02), of)


def fully_sharded_model(of: Rank, is_in_heap: bool) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(of.device.type, (of.size,))
    model = network().to(of.device)
    for layer in [*(layer for layer in model if isinstance(layer, nn.Linear)), model]:
        fully_shard(layer, mesh=mesh)
        layer.set_allocate_memory_from_process_group_for_comm(is_in_heap)
    return model


@check
def fully_sharded(of: Rank) -> None:
    same_training(fully_sharded_model(of, False), of)


@check
def fully_sharded_with_buffers_of_the_heap(of: Rank) -> None:
    heap = dist.group.WORLD._get_backend(of.device)._shared.heap
    model = fully_sharded_model(of, True)
    same_training(model, of)
    buffers = {key: len(pool) for key, pool in heap._pools.items()}
    assert buffers or of.size == 1, "FSDP2 took no buffer of the heap"
    for _ in range(5):
        trained(model, of, range(of.rank, of.rank + 1))
    assert buffers == {key: len(pool) for key, pool in heap._pools.items()}, "later steps took more buffers"


HIDDEN, EXPERTS, TOP_K, TOKENS = 128, 16, 4, 64


class Layers:
    """A layer of experts, by row, by expert and grouped, and the same in one place."""

    def __init__(self, of: Rank, mode: str) -> None:
        from anabranch.torch.expert_parallel import ExpertParallel

        sizes = {"hidden": HIDDEN, "experts": EXPERTS, "top_k": TOP_K, "max_tokens": TOKENS, "capacity": 0, "places": 0}
        self.ep = ExpertParallel(anabranch.torch.world(), dtype=torch.float32, mode=mode, alignment=4, **sizes)
        generator = torch.Generator().manual_seed(1)
        random = lambda *shape: torch.randn(*shape, generator=generator).to(of.device) / HIDDEN**0.5
        self.router, self.everyone = random(EXPERTS, HIDDEN).requires_grad_(), random(EXPERTS, HIDDEN, HIDDEN).requires_grad_()
        own = self.ep.experts_on()
        self.ids, self.experts = torch.tensor(own, device=of.device), self.everyone.detach()[own].clone().requires_grad_()

    def tokens(self, of: Rank, round: int = 0) -> torch.Tensor:
        return torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(10 + of.rank + 100 * round)).to(of.device)

    def route(self, x: torch.Tensor):
        weights, ids = torch.topk(torch.softmax(x @ self.router.t(), -1), TOP_K)
        return ids, weights

    def by_row(self, x: torch.Tensor) -> torch.Tensor:
        received = self.ep.dispatch(x, *self.route(x))
        chosen = ((received.ids[:, :, None] == self.ids) * received.weights[:, :, None]).sum(1)
        each = torch.einsum("eij,tj->tei", self.experts, received.rows)
        return self.ep.combine((each * chosen[:, :, None]).sum(1), received)

    def by_expert(self, x: torch.Tensor) -> torch.Tensor:
        received = self.ep.dispatch_experts(x, *self.route(x))
        return self.ep.combine_experts(torch.einsum("eij,ecj->eci", self.experts, received.rows), received)

    def grouped(self, x: torch.Tensor) -> torch.Tensor:
        received = self.ep.dispatch_grouped(x, *self.route(x))
        place = torch.arange(len(received.rows), device=x.device)
        of = (place[:, None] >= received.starts[None, 1:]).sum(1)
        mine = (of[:, None] == torch.arange(len(self.experts), device=x.device)).to(x.dtype)
        each = torch.einsum("eij,tj->tei", self.experts, received.rows)
        return self.ep.combine_grouped((each * mine[:, :, None]).sum(1), received)

    def in_one_place(self, x: torch.Tensor) -> torch.Tensor:
        ids, weights = self.route(x)
        each = torch.einsum("eij,tj->tei", self.everyone, x)
        return (torch.gather(each, 1, ids[:, :, None].expand(-1, -1, HIDDEN)) * weights[:, :, None]).sum(1)

    def gradients(self, layer, x: torch.Tensor) -> list[torch.Tensor]:
        """The output, and the gradients of the tokens and the router."""
        out = torch.tanh(layer(x))
        return [out.detach(), *torch.autograd.grad(out.square().sum(), [x, self.router])]


def each_layer(of: Rank):
    torch.backends.cuda.matmul.allow_tf32 = False
    for mode in ("slotted", "compact"):
        layers = Layers(of, mode)
        for layer in (layers.by_row, layers.by_expert, layers.grouped):
            yield layers, layer


@check
def experts(of: Rank) -> None:
    for layers, layer in each_layer(of):
        for round in range(3):
            x = layers.tokens(of, round).requires_grad_()
            for given, expected in zip(layers.gradients(layer, x), layers.gradients(layers.in_one_place, x)):
                close(given, expected)


@check
def grouped_matrix_products(of: Rank) -> None:
    """In bfloat16, which torch's grouped products take; their places without a row are undefined."""
    from anabranch.torch.expert_parallel import ExpertParallel

    if of.device.type != "cuda":
        return
    sizes = {"hidden": HIDDEN, "experts": EXPERTS, "top_k": TOP_K, "max_tokens": TOKENS}
    ep = ExpertParallel(anabranch.torch.world(), alignment=8, places=0, **sizes)
    generator = torch.Generator().manual_seed(1)
    everyone = (torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5).to(of.device, torch.bfloat16)
    own = everyone[ep.experts_on()].clone().requires_grad_()
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(10 + of.rank)).to(of.device, torch.bfloat16).requires_grad_()
    scores = torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(20 + of.rank)).to(of.device)
    weights, ids = torch.topk(torch.softmax(scores, -1), TOP_K)
    received = ep.dispatch_grouped(x, ids, weights)
    out = ep.combine_grouped(torch._grouped_mm(received.rows, own, offs=received.starts[1:]), received)
    given = torch.autograd.grad(out.float().square().sum(), [x, own])
    matrices = everyone.clone().requires_grad_()
    each = torch.einsum("eij,tj->tei", matrices.transpose(1, 2), x)
    expected = (torch.gather(each, 1, ids[:, :, None].expand(-1, -1, HIDDEN)) * weights[:, :, None]).sum(1)
    of_x, of_matrices = torch.autograd.grad(expected.float().square().sum(), [x, matrices])
    dist.all_reduce(of_matrices)
    for one, other in ((out, expected), (given[0], of_x), (given[1], of_matrices[ep.experts_on()])):
        torch.testing.assert_close(one.float(), other.float(), rtol=5e-2, atol=5e-2 * float(other.float().abs().max()))


@check
def experts_on_two_streams(of: Rank) -> None:
    from anabranch.torch.expert_parallel import ExpertParallel

    options = dict(hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, max_tokens=TOKENS, dtype=torch.float32, capacity=0, slots=2)
    ep = ExpertParallel(anabranch.torch.world(), **options)
    generator = torch.Generator().manual_seed(10 + of.rank)
    ids = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOP_K] for _ in range(TOKENS)]).to(of.device)
    weights = torch.full((TOKENS, TOP_K), 1 / TOP_K, device=of.device)
    is_gpu = of.device.type == "cuda"
    streams = [torch.cuda.Stream() for _ in range(2)] if is_gpu else [None, None]
    with torch.no_grad():
        for round in range(20):
            inputs = [of.values(of.rank, TOKENS, HIDDEN, round=round + half) for half in range(2)]
            if is_gpu:
                torch.cuda.synchronize()
            received, outputs = [], []
            # One layout for both: what the first stream expands is overwritten for the second.
            for stream, x in zip(streams, inputs):
                with torch.cuda.stream(stream):
                    received.append(ep.dispatch_experts(x, ids, weights))
            for stream, rows in zip(streams, received):
                with torch.cuda.stream(stream):
                    outputs.append(ep.combine_experts(rows.rows, rows))
            if is_gpu:
                torch.cuda.synchronize()
            for x, out in zip(inputs, outputs):
                close(out, x)


@check
def compiled_experts(of: Rank) -> None:
    for layers, layer in each_layer(of):
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        x = layers.tokens(of).requires_grad_()
        for given, expected in zip(layers.gradients(compiled, x), layers.gradients(layers.in_one_place, x)):
            close(given, expected)


@graph_check
def graph_of_a_forward_pass_of_experts(of: Rank) -> None:
    for layers, layer in each_layer(of):
        x = layers.tokens(of)
        with torch.no_grad():
            layer(x)
            graph, out = captured(lambda: layer(x))
            for round in range(1, 4):
                x.copy_(layers.tokens(of, round))
                graph.replay()
                close(out, layers.in_one_place(x))
                close(layer(x), layers.in_one_place(x))


@graph_check
def graph_of_a_training_step_of_experts(of: Rank) -> None:
    for layers, layer in each_layer(of):
        # Leaves that no backward pass on the default stream has used: autograd may still hold that stream for them, and a capture cannot wait
        # for it.
        x, layers.router = (leaf.detach().clone().requires_grad_() for leaf in (layers.tokens(of), layers.router))
        graph, results = captured(lambda: layers.gradients(layer, x))
        for round in range(1, 4):
            with torch.no_grad():
                x.copy_(layers.tokens(of, round))
            graph.replay()
            for given, expected in zip(results, layers.gradients(layers.in_one_place, x)):
                close(given, expected)


def run_rank(name: str, is_cpu: bool, is_one_gpu: bool) -> None:
    if not is_cpu:
        torch.cuda.set_device(0 if is_one_gpu else int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("anabranch", timeout=timedelta(seconds=60))
    of = Rank(is_cpu)
    CHECKS[name](of)
    if not is_cpu:
        torch.cuda.synchronize()
    dist.destroy_process_group()


def run_check(name: str, ranks: int, is_cpu: bool, is_one_gpu: bool) -> list[tuple[int, str]]:
    """Exit codes and outputs of the ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    if is_cpu:
        shared |= {"CUDA_VISIBLE_DEVICES": "", "ANABRANCH__DEVICE__RUNTIME": "host", "OMP_NUM_THREADS": "1"}
    if is_one_gpu:
        shared["ANABRANCH__DEVICE__DEVICES"] = str([0] * ranks)
    flags = [*(["--cpu"] if is_cpu else []), *(["--one-gpu"] if is_one_gpu else [])]
    command = [sys.executable, os.path.abspath(__file__), "--rank-of", name, *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    processes = [
        subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes) for rank in range(ranks)
    ]
    end, results = time.monotonic() + SECONDS, []
    for process in processes:
        try:
            output, _ = process.communicate(timeout=max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0] + f"\nnot done after {SECONDS} s"
        results.append((process.returncode, output))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="ranks (default: the GPUs; with --one-gpu or --cpu 2)")
    parser.add_argument("--only", nargs="*", help="names of checks")
    parser.add_argument("--cpu", action="store_true", help="run on the host runtime")
    parser.add_argument("--one-gpu", action="store_true", help="run all ranks on the first GPU")
    parser.add_argument("--rank-of", choices=CHECKS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_of:
        run_rank(arguments.rank_of, arguments.cpu, arguments.one_gpu)
        return
    if not arguments.cpu and not torch.cuda.is_available():
        sys.exit("torch sees no GPU; --cpu runs the checks that need none")
    unknown = set(arguments.only or ()) - set(CHECKS)
    if unknown:
        sys.exit(f"no checks {sorted(unknown)}; there are {', '.join(CHECKS)}")
    ranks = arguments.ranks or (2 if arguments.cpu or arguments.one_gpu else torch.cuda.device_count())
    if ranks < 2 and arguments.ranks is None:
        sys.exit("one GPU, so one rank, which exchanges nothing: give --one-gpu for two ranks on it, or --ranks 1")
    print(f"torch {torch.__version__}, {ranks} ranks, {'host runtime' if arguments.cpu else torch.cuda.get_device_name()}", flush=True)
    failed = 0
    for name in arguments.only or CHECKS:
        if arguments.cpu and name in GRAPHS:
            continue
        start = time.monotonic()
        results = run_check(name, ranks, arguments.cpu, arguments.one_gpu)
        is_ok = all(code == 0 for code, _ in results)
        print(f"{'ok' if is_ok else 'failed':>6}  {name} ({time.monotonic() - start:.0f} s)", flush=True)
        if not is_ok:
            failed += 1
            for rank, (code, output) in enumerate(results):
                lines = output.splitlines()
                # The first exception is the cause; torch prints those that follow it below.
                first = next((number for number, line in enumerate(lines) if "Traceback" in line), len(lines))
                tail = "\n".join(f"        {line}" for line in lines[min(first, max(0, len(lines) - 25)) :])
                print(f"        rank {rank} ended with {code}:\n{tail}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
