"""Rank 0 aborts while rank 1 waits. The world is left and another one joined; in a third one the heap is too small."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("anabranch", timeout=timedelta(seconds=60), pg_options={"heap.bytes": "64 MiB"})
import anabranch.torch  # noqa: E402 - init_process_group comes first: it needs no import

assert dict(anabranch.torch.world().config)["deadline.operation"].strip('"') == "60 s"
rank = dist.get_rank()
dist.barrier()
if rank == 0:
    time.sleep(0.5)
    group = dist.group.WORLD
    (group if hasattr(group, "_shared") else group._get_backend(torch.device("cpu"))).abort()
try:
    dist.barrier()
except (dist.DistBackendError, RuntimeError) as error:
    assert "abort()" in str(error), error
else:
    raise SystemExit("no error")
dist.destroy_process_group()

address = f"tcp://127.0.0.1:{os.environ['SECOND_PORT']}"
dist.init_process_group("cpu:gloo,cuda:anabranch", init_method=address, rank=rank, world_size=2)
x = torch.ones(3)
dist.all_reduce(x)
assert x.tolist() == [2, 2, 2]
dist.destroy_process_group()

try:
    address, settings = f"tcp://127.0.0.1:{os.environ['THIRD_PORT']}", {"heap.bytes": "2 MiB"}
    dist.init_process_group("anabranch", init_method=address, rank=rank, world_size=2, pg_options=settings)
except dist.DistBackendError as error:
    assert "heap.bytes" in str(error) and "ccl.staging_bytes" in str(error), error
else:
    raise SystemExit("no error")
print("passed destroy_process_group")
