"""The torch.distributed backend on ranks that are processes, on the host runtime."""

import pathlib
import re
import signal

import pytest

pytest.importorskip("torch", reason="torch is not installed")


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


def test_worlds_end_and_begin_again(start, finish, port):
    passed(finish(start("worlds_program.py", 2, *(port() for _ in range(4)))))


def test_example_prints_the_losses_of_gloo(start, finish):
    program = pathlib.Path(__file__).parents[4] / "examples/python/tp_mlp.py"
    ours, theirs = (finish(start(str(program), 2, "--backend", backend)) for backend in ("anabranch", "gloo"))
    assert all(code == 0 for code, _ in ours + theirs), ours + theirs
    losses = [re.findall(r"step .*: loss .*", output) for output in (ours[0][1], theirs[0][1])]
    assert len(losses[0]) == 20 and losses[0] == losses[1]


@pytest.mark.parametrize("ranks", [2, 4])
def test_dispatch_and_combine_are_custom_ops(start, finish, ranks):
    passed(finish(start("expert_parallel_program.py", ranks)))


def test_layer_of_experts_has_the_losses_of_one_rank(start, finish):
    program = pathlib.Path(__file__).parents[4] / "examples/python/moe_layer.py"
    losses = []
    for ranks in (1, 2, 4):
        results = finish(start(str(program), ranks))
        assert all(code == 0 for code, _ in results), results
        losses.append([float(loss) for loss in re.findall(r"step .*: loss (.*)", results[0][1])])
    assert len(losses[0]) == 20 and losses[0][-1] < losses[0][0]
    # Printed with six digits; the sums over tokens are divided among the ranks.
    assert losses[1] == pytest.approx(losses[0], abs=2e-6) and losses[2] == pytest.approx(losses[0], abs=2e-6)
