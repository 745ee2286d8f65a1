#!/usr/bin/env python3
"""all_reduce of torch.distributed's Gloo among processes of one machine, as JSON lines; started by host-peers.sh.

    scripts/host-peers.py RANKS SAMPLES BYTES...
"""

import json
import socket
import sys
import time

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as processes
except ImportError as error:
    sys.exit(f"torch is needed: {error}")


def work(rank, ranks, port, samples, sizes):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    wrong = False
    for count in sizes:
        pattern = torch.arange(count // 4) % 7
        mine = []
        operations = 10 if count < 1 << 20 else 3
        for sample in range(samples + 3):
            # In place: each of the operations has a tensor of its own, or values would grow.
            tensors = [(pattern + rank).to(torch.float32) for _ in range(operations)]
            dist.barrier()
            start = time.perf_counter()
            for tensor in tensors:
                dist.all_reduce(tensor)
            mine.append((time.perf_counter() - start) * 1e6 / operations)
        expected = (pattern * ranks + ranks * (ranks - 1) // 2).to(torch.float32)
        right = torch.tensor([int(torch.equal(tensor, expected))])
        dist.all_reduce(right, op=dist.ReduceOp.MIN)
        slowest = torch.tensor(mine[3:], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        wrong |= not right.item()
        row = {
            "op": "all_reduce",
            "runtime": f"Gloo of torch {torch.__version__}",
            "ranks": ranks,
            "dtype": "f32",
            "bytes": tensor.numel() * 4,
            "us_median": round(slowest.median().item(), 2),
            "us_p99": round(slowest.quantile(0.99).item(), 2),
            "operations": operations,
            "verified": bool(right.item()),
        }
        if rank == 0:
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()
    if wrong:
        raise SystemExit("results differ; see `verified`")


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    ranks, samples, *sizes = (int(text) for text in sys.argv[1:])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes.spawn(work, (ranks, port, samples, sizes), nprocs=ranks)


if __name__ == "__main__":
    main()
