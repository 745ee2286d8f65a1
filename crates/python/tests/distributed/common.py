"""What the programs share: a list of checks, run in order on all ranks."""

import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

CHECKS = []


def check(function):
    """A part of the program, on all ranks."""
    CHECKS.append(function)
    return function


def values(rank: int, *shape: int, dtype=torch.float32) -> torch.Tensor:
    """Small integers that differ between ranks, so that sums are exact in every type."""
    count = torch.Size(shape).numel()
    whole = (torch.arange(count) * 7 + rank * 3) % 5
    return torch.complex(whole.float(), whole.float() + 1).reshape(shape) if dtype.is_complex else whole.to(dtype).reshape(shape)


def same(given: torch.Tensor, expected: torch.Tensor) -> None:
    assert given.dtype == expected.dtype and given.shape == expected.shape, (given, expected)
    assert torch.equal(given, expected), f"\n{given}\n is not\n{expected}"


def main() -> None:
    """Runs the checks with ``init_process_group("anabranch")``, which no import of this package precedes."""
    dist.init_process_group("anabranch", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    for function in CHECKS:
        try:
            function(rank, size, gloo)
        except BaseException:
            # The other ranks wait in the next collective: they learn it when this process ends.
            print(f"failed {function.__name__}\n{traceback.format_exc()}", flush=True)
            raise SystemExit(1)
        print(f"passed {function.__name__}", flush=True)
    dist.destroy_process_group()
    print("passed destroy_process_group", flush=True)
