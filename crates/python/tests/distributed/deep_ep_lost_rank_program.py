"""A rank is killed while others decode with masks: they go on without it, and the query says who. With the argument ``hooks`` calls only send, and
their hooks receive."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from anabranch.compat import deep_ep
from deep_ep_reference import DEVICE, EXPERTS, HIDDEN, Inputs, local_experts, same

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
if DEVICE.type == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.set_default_device(DEVICE)
lost, tokens, in_parts = 1, 4, "hooks" in sys.argv
hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(tokens, HIDDEN, size, EXPERTS)
buffer = deep_ep.Buffer(dist.group.WORLD, 0, hint, low_latency_mode=True, enable_shrink=True)
ids = torch.arange(tokens)[:, None] + torch.tensor([0, EXPERTS // 2, EXPERTS - 4])
given = Inputs(torch.full((tokens, HIDDEN), rank + 1.0).bfloat16(), ids % EXPERTS, torch.ones(tokens, 3))
for step in range(6):
    if step == 3 and rank == lost:
        os.kill(os.getpid(), signal.SIGKILL)
    rows, counts, handle, _, hook = buffer.low_latency_dispatch(given.x, given.ids, tokens, EXPERTS, use_fp8=False, return_recv_hook=in_parts)
    if in_parts:
        hook()
    out, _, hook = buffer.low_latency_combine(rows, given.ids, given.weights, handle, return_recv_hook=in_parts)
    if in_parts:
        hook()
    gone = local_experts(lost, size) if step >= 3 else ()
    came = torch.tensor([[int(expert) not in gone for expert in chosen] for chosen in given.ids])
    same(out, given.x * came.sum(1, keepdim=True))
    status = torch.zeros(size, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    same(status, torch.tensor([int(step >= 3 and each == lost) for each in range(size)], dtype=torch.int32))
print("passed destroy_process_group", flush=True)
# Leaving waits for all ranks.
os._exit(0)
