#!/usr/bin/env python3
"""torch's symmetric-memory all_reduce on this machine's GPUs, as JSON lines that stand beside those of `anabranch bench ccl`.

    torchrun --nproc-per-node 4 scripts/torch-symm-mem.py [--sizes 1K,32K,...] [--dtype bf16] [--samples 50]

One-shot and two-shot kernels; multimem is not used. A sample is several operations in one CUDA graph, between two events behind
a barrier of all ranks; its time is the interval by the number of operations, of the slowest rank. The interval holds the launch
of the graph once.
"""

import argparse
import json
import os
import sys

try:
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm_mem
except ImportError as error:
    sys.exit(f"torch with symmetric memory (2.6 or later) is needed: {error}")

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# As in `bench ccl`.
SAMPLE_BYTES, MOST_OPERATIONS, LEAST_OPERATIONS = 64 << 20, 20, 3


def size(text):
    unit = UNITS.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


def one_shot(tensor, output, group):
    torch.ops.symm_mem.one_shot_all_reduce_out(tensor, "sum", group, out=output)
    return output


def two_shot(tensor, _output, group):
    torch.ops.symm_mem.two_shot_all_reduce_(tensor, "sum", group)
    return tensor


def is_right(run, tensor, output, group, ranks):
    """Whether small whole numbers, whose sums are exact, come out right."""
    pattern = torch.arange(tensor.numel(), device=tensor.device) % 7
    tensor.copy_(pattern + dist.get_rank())
    output.fill_(-1)
    dist.barrier()
    result = run(tensor, output, group)
    torch.cuda.synchronize()
    expected = (pattern * ranks + ranks * (ranks - 1) // 2).to(tensor.dtype)
    right = torch.tensor([int(torch.equal(result, expected))], device=tensor.device)
    dist.all_reduce(right, op=dist.ReduceOp.MIN)
    return bool(right.item())


def slowest_times(run, tensor, output, group, handle, operations, samples):
    """Microseconds of an operation in each sample, of the slowest rank."""
    tensor.zero_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run(tensor, output, group)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(operations):
            run(tensor, output, group)
    events = []
    with torch.cuda.stream(stream):
        for _ in range(samples + 3):
            handle.barrier(channel=0)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            events.append((start, end))
    torch.cuda.synchronize()
    mine = [start.elapsed_time(end) * 1e3 / operations for start, end in events[3:]]
    times = torch.tensor(mine, dtype=torch.float64, device=tensor.device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return times.sort().values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = "1K,32K,512K,1M,4M,16M,256M,1G"
    parser.add_argument("--sizes", default=default, help=f"bytes a rank (default: {default})")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--samples", type=int, default=50)
    arguments = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        sys.exit("start it with torchrun --nproc-per-node N")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name
    dtype = DTYPES[arguments.dtype]
    sizes = [size(text) for text in arguments.sizes.split(",")]
    memory = symm_mem.empty(max(sizes) // dtype.itemsize, dtype=dtype, device=device)
    handle = symm_mem.rendezvous(memory, group)
    wrong = False
    for count in sizes:
        tensor = memory[: count // dtype.itemsize]
        output = torch.empty_like(tensor)
        operations = max(LEAST_OPERATIONS, min(SAMPLE_BYTES // count, MOST_OPERATIONS))
        for name, run in (("one_shot", one_shot), ("two_shot", two_shot)):
            right = is_right(run, tensor, output, group, ranks)
            times = slowest_times(run, tensor, output, group, handle, operations, arguments.samples)
            wrong |= not right
            median = times.median().item()
            bandwidth = count / median / 1e3
            row = {
                "op": "all_reduce",
                "runtime": "torch symm_mem",
                "ranks": ranks,
                "dtype": arguments.dtype,
                "bytes": count,
                "us_median": round(median, 3),
                "us_p99": round(times.quantile(0.99).item(), 3),
                "algbw": round(bandwidth, 2),
                "busbw": round(bandwidth * 2 * (ranks - 1) / ranks, 2),
                "verified": right,
                "algorithm": name,
                "mode": "graph",
                "operations": operations,
                "torch": torch.__version__,
            }
            if rank == 0:
                print(json.dumps(row), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit("results differ; see `verified`" if wrong else 0)


if __name__ == "__main__":
    main()
