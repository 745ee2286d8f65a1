"""A mixture-of-experts layer that trains: the experts are divided among the ranks, the tokens too.

    torchrun --nproc-per-node 2 examples/python/moe_layer.py       # or 1, 4: the same losses

On GPUs: ANABRANCH__DEVICE__RUNTIME=nvidia (or amd). Else the ranks are on the CPU.
"""

import anabranch
import torch
from anabranch.torch.expert_parallel import ExpertParallel
from torch import nn

HIDDEN, EXPERTS, TOP_K, TOKENS, STEPS = 64, 8, 2, 256, 20


class MoE(nn.Module):
    """Each token goes to the TOP_K experts that the router likes most; their outputs are summed by its weights."""

    def __init__(self, ep: ExpertParallel, device: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        initial = lambda *shape: torch.randn(*shape, generator=generator).to(device) / HIDDEN**0.5
        self.ep, own = ep, ep.experts_on()
        self.router = nn.Parameter(initial(EXPERTS, HIDDEN))
        self.up = nn.Parameter(initial(EXPERTS, HIDDEN, HIDDEN)[own])
        self.down = nn.Parameter(initial(EXPERTS, HIDDEN, HIDDEN)[own])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, ids = torch.topk(torch.softmax(x @ self.router.t(), -1), TOP_K)
        received = self.ep.dispatch_experts(x, ids, weights)  # rows: [experts of this rank, capacity, HIDDEN]
        hidden = torch.relu(torch.bmm(received.rows, self.up))
        return self.ep.combine_experts(torch.bmm(hidden, self.down), received)


def main() -> None:
    with anabranch.init() as world:
        device = "cpu" if world.runtime == "host" else f"cuda:{world.device}"
        share = TOKENS // world.size
        ep = ExpertParallel(
            world, hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, max_tokens=share, dtype=torch.float32, capacity=0
        )
        layer, comm = MoE(ep, device), world.communicator()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        data = torch.Generator().manual_seed(1)
        inputs, targets = (torch.randn(TOKENS, HIDDEN, generator=data).to(device) for _ in range(2))
        own = slice(world.rank * share, (world.rank + 1) * share)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = (layer(inputs[own]) - targets[own]).square().sum() / (TOKENS * HIDDEN)
            loss.backward()
            # The router is the same on all ranks, and so is the sum of its gradients. Experts have theirs from all tokens.
            comm.all_reduce(layer.router.grad).join()
            total = loss.detach().clone()
            comm.all_reduce(total).join()
            optimizer.step()
            if world.rank == 0:
                print(f"step {step}: loss {total.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
