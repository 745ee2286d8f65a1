"""A multilayer perceptron whose matrices are divided among the ranks, trained with torch.distributed's backend ``anabranch``.

    torchrun --nproc-per-node 2 examples/python/tp_mlp.py            # --backend gloo prints the same losses on the CPU

The first matrix is divided by columns and the second by rows: each rank computes its part of the hidden layer, and one all_reduce a layer
adds the parts, in the forward pass of the second matrix and in the backward pass of the first. Without a GPU it runs on the CPU.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce

FEATURES, HIDDEN, BATCH, STEPS = 32, 128, 64, 20


class AddGradients(torch.autograd.Function):
    """The identity; adds the ranks' gradients in the backward pass."""

    @staticmethod
    def forward(context, x):
        return x

    @staticmethod
    def backward(context, gradient):
        return all_reduce(gradient, "sum", dist.group.WORLD)


class AddParts(torch.autograd.Function):
    """Adds the ranks' parts; the identity in the backward pass."""

    @staticmethod
    def forward(context, x):
        return all_reduce(x, "sum", dist.group.WORLD)

    @staticmethod
    def backward(context, gradient):
        return gradient


class Layer(torch.nn.Module):
    """Two matrices, of which this rank has ``HIDDEN / ranks`` columns and rows."""

    def __init__(self) -> None:
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        part = slice(HIDDEN // size * rank, HIDDEN // size * (rank + 1))
        self.up = torch.nn.Parameter(torch.randn(FEATURES, HIDDEN)[:, part] / FEATURES**0.5)
        self.down = torch.nn.Parameter(torch.randn(HIDDEN, FEATURES)[part] / HIDDEN**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + AddParts.apply(torch.relu(AddGradients.apply(x) @ self.up) @ self.down)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="anabranch")
    backend = parser.parse_args().backend
    device = "cuda" if torch.cuda.is_available() and backend != "gloo" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    torch.manual_seed(0)  # The same matrices and data on all ranks; each keeps its part.
    model = torch.nn.Sequential(Layer(), Layer()).to(device)
    x, target = torch.randn(BATCH, FEATURES).to(device), torch.randn(BATCH, FEATURES).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        loss = torch.nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step:2}: loss {loss.item():.9f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
