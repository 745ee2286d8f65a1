#!/usr/bin/env python3
"""Checks torch's own backend `nccl` with NCCL and with anabranch's drop-in, and compares losses and times.

    python3 scripts/nccl_torch_check.py LIBRARY [--ranks N] [--only NAME ...] [--steps 200]

LIBRARY is libanabranch_nccl.so. Each check runs in processes of its own, one for each GPU (`--ranks`: fewer), first with the NCCL of the torch
package, then with LIBRARY preloaded. Prints `ok` or `failed` for each, the losses' largest difference, and microseconds a step or call.
`--only kill` shows what a killed rank does to each. Exits with 1 if a check with LIBRARY failed.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

CHECKS: dict = {}
SECONDS = 300
# Largest relative difference of losses: sums in another order, rounded to bf16 where a model has it.
TOLERANCE = 2e-3


def check(function):
    CHECKS[function.__name__] = function
    return function


def values(rank: int, count: int) -> torch.Tensor:
    """Small whole numbers, whose sums are exact."""
    return ((torch.arange(count, device="cuda") * 7 + 3 * rank) % 5).float()


def same(given: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(given, expected), f"{given} is not {expected}"


def total(count: int, ranks=None) -> torch.Tensor:
    return sum(values(rank, count) for rank in (ranks or range(dist.get_world_size())))


@check
def collectives(rank: int, size: int, _):
    for count in (1, 1000, 1 << 20):
        tensor = values(rank, count)
        dist.all_reduce(tensor)
        same(tensor, total(count))
        tensor = values(rank, count)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert torch.allclose(tensor, total(count) / size)
        tensor = values(rank, count)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        same(tensor, torch.stack([values(other, count) for other in range(size)]).max(0).values)
        gathered = torch.empty(size * count, device="cuda")
        dist.all_gather_into_tensor(gathered, values(rank, count))
        same(gathered, torch.cat([values(other, count) for other in range(size)]))
        part = torch.empty(count, device="cuda")
        dist.reduce_scatter_tensor(part, values(rank, size * count))
        same(part, total(size * count)[rank * count :][:count])
        tensor = values(rank, count)
        dist.broadcast(tensor, size - 1)
        same(tensor, values(size - 1, count))
        tensor = values(rank, count)
        dist.reduce(tensor, 0)
        if rank == 0:
            same(tensor, total(count))
        parts = [torch.empty(count, device="cuda") for _ in range(size)] if rank == 0 else None
        dist.gather(values(rank, count), parts, 0)
        if rank == 0:
            same(torch.cat(parts), torch.cat([values(other, count) for other in range(size)]))
        dist.scatter(part, [values(other, count) for other in range(size)] if rank == 0 else None, 0)
        same(part, values(rank, count))
    dist.barrier()


@check
def all_to_all_single(rank: int, size: int, _):
    for count in (1, 4096, 1 << 18):
        out = torch.empty(size * count, device="cuda")
        dist.all_to_all_single(out, values(rank, size * count))
        same(out, torch.cat([values(other, size * count)[rank * count :][:count] for other in range(size)]))
    # Rank r sends s + 1 elements to rank s.
    sent = [other + 1 for other in range(size)]
    out = torch.empty((rank + 1) * size, device="cuda")
    dist.all_to_all_single(out, values(rank, sum(sent)), [rank + 1] * size, sent)
    start = sum(sent[:rank])
    same(out, torch.cat([values(other, sum(sent))[start:][: rank + 1] for other in range(size)]))


@check
def batch_isend_irecv(rank: int, size: int, _):
    for count in (1, 5000, 1 << 22):
        out = torch.empty(count, device="cuda")
        messages = [dist.P2POp(dist.isend, values(rank, count), (rank + 1) % size), dist.P2POp(dist.irecv, out, (rank - 1) % size)]
        for work in dist.batch_isend_irecv(messages if rank % 2 else messages[::-1]):
            work.wait()
        same(out, values((rank - 1) % size, count))
    # Without a batch, in both directions.
    tensor = values(rank, 100)
    for first in (0, 1):
        if rank == first:
            dist.send(tensor, 1 - first)
        elif rank == 1 - first:
            dist.recv(tensor, first)
            same(tensor, values(0, 100))


@check
def new_group_and_split(rank: int, size: int, _):
    ranks = list(range(size))
    for members in (ranks[::-1], ranks[: max(1, size // 2)], [size - 1]):
        group = dist.new_group(members)
        if rank in members:
            tensor = values(rank, 77)
            dist.all_reduce(tensor, group=group)
            same(tensor, total(77, members))
    if hasattr(dist, "split_group"):
        group = dist.split_group(split_ranks=[ranks])
        tensor = values(rank, 77)
        dist.all_reduce(tensor, group=group)
        same(tensor, total(77))


@check
def graph(rank: int, size: int, _):
    source, out = values(rank, 1 << 16), torch.empty(1 << 16, device="cuda")
    gathered = torch.empty(size << 16, device="cuda")
    dist.all_reduce(source.clone())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream):
        out.copy_(source)
        dist.all_reduce(out)
        # Not called before: kernels are loaded while the capture is under way.
        dist.all_gather_into_tensor(gathered, source)
    for round in range(5):
        source.copy_(values(rank, 1 << 16) + round)
        captured.replay()
        torch.cuda.synchronize()
        same(out, total(1 << 16) + size * round)
        same(gathered, torch.cat([values(other, 1 << 16) + round for other in range(size)]))
    # The communicator orders launches of the graph and other calls, not their streams.
    beside, others = torch.cuda.Stream(), [values(rank, 1 << 16) for _ in range(5)]
    torch.cuda.synchronize()
    for other in others:
        captured.replay()
        with torch.cuda.stream(beside):
            dist.all_reduce(other)
    torch.cuda.synchronize()
    same(out, total(1 << 16) + size * 4)
    for other in others:
        same(other, total(1 << 16))


@check
def abort(rank: int, size: int, _):
    tensor = values(rank, 1000)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if rank == 0:
        # Waits for the others, which do not call.
        dist.all_reduce(tensor, async_op=True)
    time.sleep(1)
    start = time.monotonic()
    dist.distributed_c10d._abort_process_group()
    torch.cuda.synchronize()
    assert time.monotonic() - start < 30, "the kernel did not end with the abort"


def train(rank: int, steps: int, wrap) -> dict:
    torch.manual_seed(1)
    model = nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(1024, 1024), nn.GELU())], nn.Linear(1024, 16)).cuda()
    model = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(100 + rank)
    inputs, targets = torch.randn(8, 64, 1024, device="cuda"), torch.randn(8, 64, 16, device="cuda")
    losses = []
    for step in range(steps):
        if step == steps // 2:
            torch.cuda.synchronize()
            start = time.monotonic()
        loss = nn.functional.mse_loss(model(inputs[step % 8]), targets[step % 8])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    step_us = (time.monotonic() - start) / (steps - steps // 2) * 1e6
    return {"losses": torch.stack(losses).tolist(), "us": step_us}


@check
def ddp(rank: int, size: int, options):
    device = torch.cuda.current_device()
    return train(rank, options.steps, lambda model: nn.parallel.DistributedDataParallel(model, device_ids=[device]))


@check
def fsdp2(rank: int, size: int, options):
    from torch.distributed.fsdp import fully_shard

    def wrap(model):
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        return fully_shard(model)

    return train(rank, options.steps, wrap)


@check
def speed(rank: int, size: int, _):
    """Microseconds of an all_reduce of f32, the median of 20 calls."""
    times = {}
    for count in [1 << bits for bits in range(8, 27, 3)]:
        tensor = torch.zeros(count, device="cuda")
        spans = []
        for _ in range(30):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            dist.all_reduce(tensor)
            end.record()
            end.synchronize()
            spans.append(start.elapsed_time(end) * 1e3)
        times[4 * count] = sorted(spans[10:])[10]
    return {"times": times}


def kill(rank: int, size: int, _):
    """The last rank is killed; the others call all_reduce and wait."""
    tensor = values(rank, 1000)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        print(f"rank {rank}: the call returned after {time.monotonic() - start:.1f} s", flush=True)
        # torch's watchdog asks for the library's error, and ends the process.
        time.sleep(20)
        print(f"rank {rank}: still running 20 s later", flush=True)
    except Exception as error:  # noqa: BLE001 - shown as it is
        print(f"rank {rank}, after {time.monotonic() - start:.1f} s: {error}", flush=True)
    os._exit(1)


def run_rank(options) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    limit = timedelta(seconds=60)
    dist.init_process_group("nccl", timeout=limit, device_id=device if options.rank_check == "new_group_and_split" else None)
    result = {**CHECKS, "kill": kill}[options.rank_check](rank, size, options)
    if result and rank == 0:
        with open(os.environ["RESULT"], "w") as file:
            json.dump(result, file)
    if options.rank_check != "abort":
        torch.cuda.synchronize()
        dist.destroy_process_group()


def start(options, name: str, library: str | None, seconds: int):
    """Runs one check: whether it went well, its result, and the output of its ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tempfile.mkdtemp()
    result = os.path.join(folder, "result.json")
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(options.ranks), "RESULT": result}
    if library:
        environment["LD_PRELOAD"] = library
    command = [sys.executable, __file__, options.library, "--rank-check", name, "--steps", str(options.steps)]
    files = [open(os.path.join(folder, f"{rank}.log"), "w+") for rank in range(options.ranks)]
    ranks = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=file, stderr=file)
        for rank, file in enumerate(files)
    ]
    end = time.monotonic() + seconds
    codes = []
    for process in ranks:
        try:
            codes.append(process.wait(max(0.1, end - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            codes.append("still running, killed")
    output = ""
    for rank, file in enumerate(files):
        file.seek(0)
        output += "".join(f"  [{rank}] {line}" for line in file.readlines()[-30:])
    value = None
    if os.path.exists(result):
        with open(result) as file:
            value = json.load(file)
    return all(code == 0 for code in codes), value, f"  exit codes {codes}\n{output}"


def compare(name: str, theirs, ours) -> bool:
    if not theirs or not ours:
        return True
    if "losses" in ours:
        pairs = list(zip(theirs["losses"], ours["losses"]))
        worst = max(abs(one - other) / max(abs(one), 1e-6) for one, other in pairs)
        print(f"  {name}: last loss {pairs[-1][0]:.6f} and {pairs[-1][1]:.6f}, largest relative difference {worst:.1e}; "
              f"us a step: NCCL {theirs['us']:.0f}, anabranch {ours['us']:.0f}")
        return worst < TOLERANCE
    for count, time_us in ours["times"].items():
        print(f"  {int(count):>12} bytes: NCCL {theirs['times'][count]:9.1f} us, anabranch {time_us:9.1f} us")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rank-check", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_check:
        run_rank(options)
        return 0
    options.library = os.path.abspath(options.library)
    options.ranks = options.ranks or torch.cuda.device_count()
    failed = False
    for name in options.only or CHECKS:
        if name == "kill":
            for which, library in (("NCCL", None), ("anabranch", options.library)):
                print(f"a killed rank, {which}:\n{start(options, name, library, 120)[2]}", flush=True)
            continue
        good, theirs, text = start(options, name, None, SECONDS)
        print(f"{'ok' if good else 'failed'}  {name} with NCCL" + ("" if good else f"\n{text}"), flush=True)
        good, ours, text = start(options, name, options.library, SECONDS)
        good = good and compare(name, theirs, ours)
        print(f"{'ok' if good else 'failed'}  {name} with anabranch" + ("" if good else f"\n{text}"), flush=True)
        failed |= not good
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
