"""What dispatch and combine of DeepEP's interface give, computed in one place from the inputs of all ranks, and the runner of its programs."""

import contextlib
import os
import sys
import traceback
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

HIDDEN, EXPERTS, TOP_K = 1024, 8, 3
MOST = 12
# Tokens of rank 0, 1, ..: also none, and the most.
COUNTS = (MOST, 0, 5, 7)
CHECKS = []
# Tests hide GPUs; scripts/deep_ep_gpu_check.py does not.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check(function):
    """A part of the program, on all ranks."""
    CHECKS.append(function)
    return function


class Inputs(NamedTuple):
    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


def inputs(rank: int, tokens: int, seed: int = 0) -> Inputs:
    """Of a rank. Small numbers, whose sums are exact in bfloat16; tokens with fewer experts, and one without any."""
    draw = torch.Generator("cpu").manual_seed(1000 * seed + rank)
    x = torch.randint(-3, 4, (tokens, HIDDEN), generator=draw, device="cpu").bfloat16()
    ids = torch.rand(tokens, EXPERTS, generator=draw, device="cpu").topk(TOP_K).indices
    weights = torch.randint(1, 5, (tokens, TOP_K), generator=draw, device="cpu").float() / 4
    ids[1::4, 1] = -1
    ids[2::7] = -1
    return Inputs(x.to(DEVICE), ids.to(DEVICE), weights.to(DEVICE))


def everyone(size: int, seed: int = 0) -> list[Inputs]:
    """Of all ranks."""
    return [inputs(rank, COUNTS[(rank + seed) % len(COUNTS)], seed) for rank in range(size)]


def local_experts(rank: int, size: int) -> range:
    return range(rank * EXPERTS // size, (rank + 1) * EXPERTS // size)


class Row(NamedTuple):
    rank: int
    token: int


def rows(everyone: list[Inputs], rank: int) -> list[Row]:
    """The rows that a rank gets in normal mode, in order."""
    own = local_experts(rank, len(everyone))
    return [Row(source, token) for source, given in enumerate(everyone) for token, ids in enumerate(given.ids.tolist()) if any(e in own for e in ids)]


def rows_of_expert(everyone: list[Inputs], expert: int) -> list[Row]:
    """The rows of an expert in low-latency mode, in order."""
    return [Row(source, token) for source, given in enumerate(everyone) for token, ids in enumerate(given.ids.tolist()) if expert in ids]


def picked(everyone: list[Inputs], chosen: list[Row], field: str = "x") -> torch.Tensor:
    like = getattr(everyone[0], field)
    return torch.stack([getattr(everyone[row.rank], field)[row.token] for row in chosen]) if chosen else like.new_empty(0, *like.shape[1:])


def local_ids(everyone: list[Inputs], chosen: list[Row], rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and weights of rows as a rank gets them."""
    own = local_experts(rank, len(everyone))
    ids, weights = picked(everyone, chosen, "ids"), picked(everyone, chosen, "weights")
    is_own = (ids >= own[0]) & (ids <= own[-1])
    return torch.where(is_own, ids - own[0], -1), torch.where(is_own, weights, 0)


def destinations(given: Inputs, size: int) -> torch.Tensor:
    """``[tokens, ranks]``: whether a token goes to a rank."""
    each = EXPERTS // size
    goes = [[any(e >= 0 and e // each == rank for e in ids) for rank in range(size)] for ids in given.ids.tolist()]
    return torch.tensor(goes, dtype=torch.bool).reshape(-1, size)


def same(given: torch.Tensor, expected: torch.Tensor) -> None:
    assert given.dtype == expected.dtype and given.shape == expected.shape, (given.dtype, given.shape, expected.dtype, expected.shape)
    assert torch.equal(given.float(), expected.float()), f"\n{given}\n is not\n{expected}"


def quantized(x: torch.Tensor, is_rounded: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 rows and scales, value by value."""
    blocks = x.float().reshape(len(x), HIDDEN // 128, 128)
    scales = blocks.abs().amax(-1) / 448
    if is_rounded:
        scales = torch.exp2(torch.ceil(torch.log2(scales.clamp(min=1e-4 / 448))))
    codes = torch.where(scales[..., None] == 0, 0, blocks / scales[..., None])
    return codes.to(torch.float8_e4m3fn).reshape(len(x), HIDDEN), scales


@contextlib.contextmanager
def without_waits():
    """Fails where torch waits on the host for a value of a tensor."""

    def fail(tensor, *_):
        raise AssertionError("the host waits for the device")

    names = ("__int__", "__bool__", "item", "tolist")
    methods = {name: getattr(torch.Tensor, name) for name in names}
    try:
        for name in names:
            setattr(torch.Tensor, name, fail)
        yield
    finally:
        for name, method in methods.items():
            setattr(torch.Tensor, name, method)


def main() -> None:
    """Runs the checks on a group of gloo, or with the argument ``backend`` on one of the backend ``anabranch``."""
    dist.init_process_group("anabranch" if "backend" in sys.argv else "gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    if DEVICE.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_default_device(DEVICE)
    for function in CHECKS:
        try:
            function(rank, size)
        except BaseException:
            # The other ranks learn it when this process ends, which does not wait for them.
            print(f"failed {function.__name__}\n{traceback.format_exc()}", flush=True)
            os._exit(1)
        print(f"passed {function.__name__}", flush=True)
    dist.destroy_process_group()
    print("passed destroy_process_group", flush=True)
