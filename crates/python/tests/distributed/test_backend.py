"""The torch.distributed backend on ranks that are processes, on the host runtime."""

import pathlib
import re
import signal
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


def passed(results: list[tuple[int, str]]) -> None:
    outputs = "\n".join(f"rank {rank} ended with {code}:\n{output}" for rank, (code, output) in enumerate(results))
    assert all(code == 0 for code, _ in results), outputs
    assert all("passed destroy_process_group" in output for _, output in results), outputs
    print(outputs)


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_collective(start, finish, ranks):
    passed(finish(start("collectives_program.py", ranks)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_tensors_in_the_heap(start, finish, ranks):
    passed(finish(start("heap_program.py", ranks)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_training_equals_that_with_gloo(start, finish, ranks):
    passed(finish(start("training_program.py", ranks)))


def test_killed_rank_is_named(start, finish):
    results = finish(start("lost_rank_program.py", 3))
    assert results.pop(1)[0] == -signal.SIGKILL
    passed(results)


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_rank_killed_in_a_training_step_is_named(start, finish, way):
    results = finish(start("lost_rank_training_program.py", 3, way))
    assert results.pop(1)[0] == -signal.SIGKILL
    passed(results)


def test_worlds_end_and_begin_again(start, finish, port):
    passed(finish(start("worlds_program.py", 2, *(port() for _ in range(6)))))


EXAMPLES = pathlib.Path(__file__).parents[4] / "examples/python"


def losses(torchrun, program: str, ranks: int, backend: str | None = None) -> list[str]:
    """What an example prints, as its own documentation starts it."""
    result = torchrun(EXAMPLES / program, ranks, *(["--backend", backend] if backend else []))
    # After the last step of functional collectives with gloo, processes of torch 2.11 sometimes abort while they end.
    assert result.returncode == 0 or backend == "gloo", result.stdout + result.stderr
    found = re.findall(r"step .*: loss (.*)", result.stdout)
    assert len(found) == 20, result.stdout + result.stderr
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_example_prints_the_losses_of_gloo(torchrun, ranks):
    ours, theirs = (losses(torchrun, "tp_mlp.py", ranks, backend) for backend in ("anabranch", "gloo"))
    if ranks == 2:
        assert ours == theirs
    # Sums of more terms depend on their order.
    assert [float(loss) for loss in ours] == pytest.approx([float(loss) for loss in theirs], abs=1e-5)


@pytest.mark.parametrize("ranks", [2, 4])
def test_dispatch_and_combine_are_custom_ops(start, finish, ranks):
    passed(finish(start("expert_parallel_program.py", ranks)))


class AllExperts:
    """In the place of dispatch and combine, in plain torch: every expert gets all tokens."""

    def __init__(self, experts):
        self.experts = experts

    def experts_on(self):
        return list(range(self.experts))

    def dispatch_experts(self, x, ids, weights):
        return SimpleNamespace(rows=x.expand(self.experts, *x.shape), ids=ids, weights=weights)

    def combine_experts(self, y, received):
        named = y[received.ids, torch.arange(y.shape[1])[:, None]]
        return (named * received.weights[..., None]).sum(1)


def losses_in_plain_torch():
    sys.path.insert(0, str(EXAMPLES))
    from moe_layer import EXPERTS, HIDDEN, STEPS, TOKENS, MoE

    layer = MoE(AllExperts(EXPERTS), "cpu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    data = torch.Generator().manual_seed(1)
    inputs, targets = (torch.randn(TOKENS, HIDDEN, generator=data) for _ in range(2))
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (layer(inputs) - targets).square().sum() / (TOKENS * HIDDEN)
        loss.backward()
        optimizer.step()
        yield loss.item()


def test_layer_of_experts_has_the_losses_of_plain_torch(torchrun):
    plain = list(losses_in_plain_torch())
    assert plain[-1] < plain[0]
    for ranks in (1, 2, 4):
        # Printed with six digits; the sums over tokens are divided among the ranks.
        printed = [float(loss) for loss in losses(torchrun, "moe_layer.py", ranks)]
        assert printed == pytest.approx(plain, abs=2e-6)
