#!/usr/bin/env python3
"""`torch.distributed.all_reduce` through the backend anabranch beside NCCL's (gloo's on the CPU), all_reduce with RMSNorm beside its steps, and
dispatch and combine, as tables.

    torchrun --nproc-per-node 2 scripts/torch_bench.py [--only rms_norm] [--largest 1G] [--dtype bf16] [--calls 50] [--one-gpu]

Microseconds of a call, of the slowest rank; the median of five runs of `--calls` calls. `eager` is the time of calls one after the other,
`graph` that of as many calls in one CUDA graph, `host` the time until an eager call returns. `heap` has the tensor in the symmetric heap
(`anabranch.torch.empty`). `--one-gpu` runs all ranks on the first GPU, which NCCL cannot: start MPS before. Without a GPU the ranks use the host runtime, a call is waited for, and there is no `host` and no `graph`.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

import anabranch.torch
from anabranch.torch import rms_norm
from anabranch.torch.expert_parallel import ExpertParallel

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
RUNS, WARMUP = 5, 5


def size(text: str) -> int:
    unit = UNITS.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


class Clock:
    """Times calls; all ranks use it alike."""

    def __init__(self, device: torch.device, gloo, calls: int) -> None:
        self.device, self.gloo, self.calls = device, gloo, calls

    def _slowest(self, runs: list[float]) -> float:
        times = torch.tensor(runs, dtype=torch.float64)
        dist.all_reduce(times, dist.ReduceOp.MAX, group=self.gloo)
        return statistics.median(times.tolist()) / self.calls * 1e6

    def _run(self, work) -> tuple[float, float]:
        """Seconds until ``work`` returned, and until the device was done."""
        self._wait()
        dist.barrier(group=self.gloo)
        start = time.perf_counter()
        work()
        returned = time.perf_counter() - start
        self._wait()
        return returned, time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def eager(self, call) -> tuple[float, float]:
        """Microseconds of a call on the host, and until its end."""

        def work():
            for _ in range(self.calls):
                call()

        for _ in range(WARMUP):
            call()
        runs = [self._run(work) for _ in range(RUNS)]
        host, whole = zip(*runs)
        return self._slowest(list(host)), self._slowest(list(whole))

    def graph(self, call) -> float:
        """Microseconds of a call in a CUDA graph of as many calls as an eager run makes."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(self.calls):
                call()
        for _ in range(2):
            graph.replay()
        return self._slowest([self._run(graph.replay)[1] for _ in range(RUNS)])


def row(name: str, *cells: float | None) -> None:
    if dist.get_rank() == 0:
        print(f"{name:>32}" + "".join(f"{'-' if cell is None else f'{cell:.1f}':>12}" for cell in cells), flush=True)


def head(name: str, *columns: str) -> None:
    if dist.get_rank() == 0:
        print(f"\n{name:>32}" + "".join(f"{column:>12}" for column in columns), flush=True)


def all_reduces(clock: Clock, groups: dict, dtype: torch.dtype, largest: int) -> None:
    """A table for each library, a row for each size."""
    is_gpu = clock.device.type == "cuda"
    sizes = [16, *(size for size in (1 << exponent for exponent in range(10, 31, 2)) if size <= largest)]
    calls = clock.calls
    for name, (group, is_heap) in groups.items():
        head(f"all_reduce {name}, bytes", "host", "eager", "graph", "algbw GB/s")
        for nbytes in sizes:
            # The long ones say as much with fewer calls.
            clock.calls = max(2, min(calls, (4 << 30) // nbytes))
            count = nbytes // dtype.itemsize
            tensor = anabranch.torch.empty(count, dtype=dtype) if is_heap else torch.zeros(count, dtype=dtype, device=clock.device)
            tensor.zero_()
            call = lambda: dist.all_reduce(tensor, group=group)
            host, eager = clock.eager(call)
            graph = clock.graph(call) if is_gpu else None
            row(str(nbytes), host if is_gpu else None, eager, graph, nbytes / (graph or eager) / 1e3)
            del tensor, call
    clock.calls = calls


def rms_norms(clock: Clock, groups: dict, hidden: int) -> None:
    """All-reduce with residual and RMSNorm as one op; and (`+a+n`) an all_reduce of each library, then torch's two kernels: add, rms_norm."""
    is_gpu, dtype = clock.device.type == "cuda", torch.bfloat16
    head(f"bf16, hidden {hidden}, rows", "one op", "one op heap", *(f"{name.removeprefix('anabranch ')[:5]}+a+n" for name in groups), "op to fp8")
    weight = torch.ones(hidden, dtype=dtype, device=clock.device)
    ours = groups["anabranch"][0]
    for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        local = torch.zeros(rows, hidden, dtype=dtype, device=clock.device)
        heap = anabranch.torch.empty(rows, hidden, dtype=dtype).zero_()
        residual = torch.ones_like(local)

        def steps(x, group):
            dist.all_reduce(x, group=group)
            residual.add_(x)
            torch.nn.functional.rms_norm(residual, (hidden,), weight, 1e-6)

        def op(x):
            rms_norm.all_reduce_rms_norm(x, residual, weight, 1e-6, group=ours)

        def quantising():
            rms_norm.all_reduce_rms_norm_fp8_groups(local, residual, weight, 1e-6, group=ours)

        calls = [lambda: op(local), lambda: op(heap)]
        calls += [lambda group=group, x=heap if is_heap else local: steps(x, group) for group, is_heap in groups.values()]
        row(str(rows), *(clock.graph(call) if is_gpu else clock.eager(call)[1] for call in [*calls, quantising]))
        del calls, heap


def expert_parallel(clock: Clock, tokens: int, hidden: int, experts: int, top_k: int) -> None:
    """Dispatch and combine, without experts between them."""
    is_gpu = clock.device.type == "cuda"
    world = anabranch.torch.world()
    head(f"hidden {hidden}, top_k {top_k}", "host", "eager", "graph")
    for count in sorted({1, tokens}):
        # Four times what an expert gets on average.
        rows = count * world.size
        capacity = min(rows * top_k, max(16, 4 * rows * top_k // experts))
        plan = ExpertParallel(world, hidden=hidden, experts=experts, top_k=top_k, max_tokens=count, capacity=capacity, places=0)
        generator = torch.Generator().manual_seed(dist.get_rank())
        ids = torch.stack([torch.randperm(experts, generator=generator)[:top_k] for _ in range(count)]).int().to(clock.device)
        x = torch.randn(count, hidden, generator=generator).to(clock.device, torch.bfloat16)
        weights = torch.full((count, top_k), 1 / top_k, device=clock.device)
        out = torch.empty_like(x)
        native = world.expert_parallel(anabranch.EpConfig(hidden=hidden, experts=experts, top_k=top_k, max_tokens=count))
        layout = native.expert_major(capacity=capacity)

        def calls():
            sent = native.dispatch(x, ids, weights)
            native.combine(sent, out=out)
            if not is_gpu:
                world.synchronize()

        def calls_by_expert():
            sent = native.dispatch(x, ids, weights)
            layout.expand(sent)
            layout.contract(sent, layout.rows)
            native.combine(sent, out=out)
            if not is_gpu:
                world.synchronize()

        def ops():
            received = plan.dispatch(x, ids, weights)
            plan.combine(received.rows, received)

        def ops_by_expert():
            received = plan.dispatch_experts(x, ids, weights)
            plan.combine_experts(received.rows, received)

        def ops_grouped():
            received = plan.dispatch_grouped(x, ids, weights)
            plan.combine_grouped(received.rows, received)

        with torch.no_grad():
            for call in (calls, calls_by_expert, ops, ops_by_expert, ops_grouped):
                name = call.__name__.replace("_", " ")
                host, eager = clock.eager(call)
                row(f"{name}, {count} tokens", host if is_gpu else None, eager, clock.graph(call) if is_gpu else None)
        del native, layout, plan, calls, calls_by_expert, ops, ops_by_expert, ops_grouped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=size, help="the largest tensor, in bytes (default: 1G, on the CPU 1M)")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--calls", type=int, default=50, help="calls of a run (default: 50)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a rank for dispatch and combine, besides 1 (default: 128)")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--only", choices=("all_reduce", "rms_norm", "ep"), help="one table alone")
    parser.add_argument("--one-gpu", action="store_true", help="run all ranks on the first GPU, without NCCL")
    arguments = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        sys.exit("start it with torchrun --nproc-per-node N")
    is_gpu = torch.cuda.is_available()
    has_nccl = is_gpu and not arguments.one_gpu
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) if has_nccl else 0) if is_gpu else torch.device("cpu")
    if is_gpu and arguments.one_gpu:
        os.environ["ANABRANCH__DEVICE__DEVICES"] = str([0] * int(os.environ["LOCAL_WORLD_SIZE"]))
    if is_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_nccl else "gloo")
    gloo = dist.new_group(backend="gloo")
    # Staging in the heap, and the largest tensor.
    largest = arguments.largest or (1 << 30 if is_gpu else 1 << 20)
    settings = {"heap.bytes": str(max(4 << 30 if is_gpu else 256 << 20, 4 * largest))}
    ours = dist.new_group(backend="anabranch", pg_options=settings)
    if dist.get_rank() == 0:
        where = torch.cuda.get_device_name() if is_gpu else f"{os.cpu_count()} cores"
        print(f"torch {torch.__version__}, {dist.get_world_size()} ranks, {where}, {arguments.dtype}")
    groups = {"anabranch": (ours, False), "anabranch heap": (ours, True)}
    if has_nccl or not is_gpu:
        groups["nccl" if is_gpu else "gloo"] = (dist.group.WORLD, False)
    clock = Clock(device, gloo, arguments.calls)
    if arguments.only in (None, "all_reduce"):
        all_reduces(clock, groups, DTYPES[arguments.dtype], largest)
    if arguments.only in (None, "rms_norm"):
        rms_norms(clock, groups, arguments.hidden)
    if arguments.only in (None, "ep"):
        expert_parallel(clock, arguments.tokens, arguments.hidden, arguments.experts, arguments.top_k)
    dist.barrier(group=gloo)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
