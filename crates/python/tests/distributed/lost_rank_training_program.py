"""Rank 1 is killed in a backward pass. The others raise soon after, name it, and their processes end."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

# The death of a rank is seen at once; the deadline is also that of joining, and of first calls, which compile.
DEADLINE = 60

dist.init_process_group("anabranch", timeout=timedelta(seconds=DEADLINE))
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
if sys.argv[1] == "ddp":
    model = DistributedDataParallel(model)
else:
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    for step in range(6):
        start = time.monotonic()
        optimizer.zero_grad()
        loss = model(torch.randn(8, 32)).square().mean()
        if step == 3 and rank == 1:
            loss.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        loss.backward()
        optimizer.step()
except RuntimeError as error:
    took = time.monotonic() - start
    assert "rank 1" in str(error), error
    assert took < 11, f"after {took:.1f} s"
    print(f"after {took:.1f} s, step {step}: {error}")
else:
    raise SystemExit("no error")
dist.destroy_process_group()
print("passed destroy_process_group")
