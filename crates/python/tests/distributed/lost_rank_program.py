"""Rank 1 is killed; rank 0 reports it from a synchronous collective, rank 2 from the future of an asynchronous one."""

import os
import signal
import time
from datetime import timedelta

import anabranch
import torch
import torch.distributed as dist

dist.init_process_group("anabranch", timeout=timedelta(seconds=60))
x = torch.ones(1000)
dist.all_reduce(x)
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
start = time.monotonic()
try:
    if dist.get_rank() == 0:
        dist.all_reduce(x)
    else:
        dist.all_reduce(x, async_op=True).get_future().wait()
except (dist.DistBackendError, RuntimeError) as error:
    cause = error.__cause__
    if dist.get_rank() == 0:
        assert isinstance(error, dist.DistBackendError) and isinstance(cause, anabranch.PeerError), repr(error)
        assert cause.ranks == (1,), cause.ranks
    assert "rank 1" in str(error), error
    print(f"after {time.monotonic() - start:.1f} s: {error}")
else:
    raise SystemExit("no error")
try:
    dist.all_reduce(x)
except dist.DistBackendError as error:
    assert "rank 1" in str(error), error
dist.destroy_process_group()
print("passed destroy_process_group")
