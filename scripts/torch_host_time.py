#!/usr/bin/env python3
"""Microseconds of the host that calls through torch take, layer by layer, as a table.

    python3 scripts/torch_host_time.py [--calls 200] [--ranks 1]

Each rank is a process; without a GPU on the host runtime. A call moves 1 KiB, and the host does not wait for it: the time is that until the
call returns, the smallest of `RUNS` runs of `--calls` calls on rank 0. `native` is the call of the module itself, `backend` the method of the process
group that torch calls, `torch` the function of `torch.distributed`. On the host runtime the kernels run on threads of the same processor, and
synchronous calls and custom ops wait for them: compare numbers of one machine.
"""

import argparse
import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist

import anabranch
import anabranch.torch
from anabranch.torch.expert_parallel import ExpertParallel

RUNS, COUNT = 7, 256
HIDDEN, EXPERTS, TOP_K, TOKENS = 256, 8, 2, 4


class Clock:
    def __init__(self, calls: int, device: torch.device) -> None:
        self.calls, self.device = calls, device

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        anabranch.torch.world().synchronize(stream=torch.cuda.current_stream() if self.device.type == "cuda" else None)

    def row(self, name: str, call) -> None:
        runs = []
        for _ in range(RUNS):
            self._wait()
            start = time.perf_counter()
            for _ in range(self.calls):
                call()
            runs.append(time.perf_counter() - start)
        self._wait()
        if dist.get_rank() == 0:
            print(f"{name:>44} {min(runs) / self.calls * 1e6:10.1f}", flush=True)


def collectives(clock: Clock) -> None:
    group = dist.group.WORLD._get_backend(clock.device)
    native, options = group._communicator, dist.AllreduceOptions()
    x = torch.zeros(COUNT, device=clock.device)
    clock.row("all_reduce, native, a tensor", lambda: native.all_reduce(x))
    clock.row("all_reduce, backend, asynchronous", lambda: group.allreduce([x], options))
    clock.row("all_reduce, torch, asynchronous", lambda: dist.all_reduce(x, async_op=True))
    clock.row("all_reduce, torch, synchronous", lambda: dist.all_reduce(x))
    heap = anabranch.torch.empty(COUNT, dtype=torch.float32)
    clock.row("all_reduce, torch, synchronous, in the heap", lambda: dist.all_reduce(heap))
    everything = torch.zeros(COUNT * dist.get_world_size(), device=clock.device)
    clock.row("all_gather_into_tensor, torch, synchronous", lambda: dist.all_gather_into_tensor(everything, x))


def experts(clock: Clock) -> None:
    plan = ExpertParallel(anabranch.torch.world(), hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, max_tokens=TOKENS, capacity=0)
    config = anabranch.EpConfig(hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, max_tokens=TOKENS)
    native = anabranch.torch.world().expert_parallel(config)
    x = torch.zeros(TOKENS, HIDDEN, device=clock.device, dtype=torch.bfloat16)
    ids = torch.arange(TOKENS * TOP_K, device=clock.device, dtype=torch.int32).reshape(TOKENS, TOP_K) % EXPERTS
    weights, out = torch.ones(TOKENS, TOP_K, device=clock.device), torch.empty_like(x)

    def by_row() -> None:
        received = plan.dispatch(x, ids, weights)
        plan.combine(received.rows, received)

    def by_expert() -> None:
        received = plan.dispatch_experts(x, ids, weights)
        plan.combine_experts(received.rows, received)

    with torch.no_grad():
        clock.row("dispatch and combine, native", lambda: native.combine(native.dispatch(x, ids, weights), out=out))
        clock.row("dispatch and combine, torch", by_row)
        clock.row("dispatch and combine by expert, torch", by_expert)
    x.requires_grad_()
    clock.row("dispatch and combine, torch, with gradients", by_row)


def run_rank(calls: int) -> None:
    is_gpu = torch.cuda.is_available()
    if is_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("anabranch")
    clock = Clock(calls, torch.device("cuda", torch.cuda.current_device()) if is_gpu else torch.device("cpu"))
    if dist.get_rank() == 0:
        where = torch.cuda.get_device_name() if is_gpu else "host runtime"
        print(f"torch {torch.__version__}, {dist.get_world_size()} ranks, {where}: us of the host for a call")
    collectives(clock)
    experts(clock)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200, help="calls of a run (default: 200)")
    parser.add_argument("--ranks", type=int, default=1, help="ranks on this machine (default: 1)")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(arguments.calls)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(arguments.ranks), "LOCAL_WORLD_SIZE": str(arguments.ranks)}
    ranks = [{**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(arguments.ranks)]
    processes = [subprocess.Popen([sys.executable, *sys.argv], env=environment) for environment in ranks]
    sys.exit(max(process.wait() for process in processes))


if __name__ == "__main__":
    main()
