"""Worlds of two ranks, one after the other: beside gloo, aborted, with a late rank, with too small a heap. Arguments: a port for each."""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

rank, ports = int(os.environ["RANK"]), sys.argv[1:]


def join(backend="anabranch", **named):
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{ports.pop()}", rank=rank, world_size=2, **named)


def refused(call, *texts):
    try:
        call()
    except (dist.DistBackendError, RuntimeError) as error:
        assert all(text in str(error) for text in texts), error
        return error
    raise SystemExit(f"no error with {texts}")


join("cpu:gloo,cuda:anabranch")
x = torch.ones(3)
dist.all_reduce(x)
assert x.tolist() == [2, 2, 2]
dist.destroy_process_group()

join(pg_options={"heap.bytes": "64 MiB"})
# The backend needs no import; the world of its groups is there.
import anabranch.torch

assert anabranch.torch.world().rank == rank
dist.barrier()
if rank == 0:
    time.sleep(0.5)
    group = dist.group.WORLD
    (group if hasattr(group, "_shared") else group._get_backend(torch.device("cpu"))).abort()
refused(dist.barrier, "abort()")
dist.destroy_process_group()

# torch forgets the groups that it aborts.
join()
dist.barrier()
dist.distributed_c10d._abort_process_group()
join()
x = torch.ones(3)
dist.all_reduce(x)
assert x.tolist() == [2, 2, 2]
dist.destroy_process_group()

join(timeout=timedelta(seconds=1))
dist.barrier()
if rank == 1:
    time.sleep(3)
error = refused(lambda: dist.all_reduce(x), "rank 1")
assert rank == 1 or type(error.__cause__) is anabranch.PeerTimeout and error.__cause__.ranks == (1,), repr(error.__cause__)
dist.destroy_process_group()

refused(lambda: join(pg_options={"heap.bytes": "2 MiB"}), "heap.bytes", "ccl.staging_bytes")
print("passed destroy_process_group")
