"""The module of DeepEP's interface on ranks that are processes, on the host runtime."""

import signal

import pytest
from test_backend import passed

pytest.importorskip("torch", reason="torch is not installed")

# Small windows, so that tests reach their ends.
SETTINGS = {"ANABRANCH_DEEP_EP_MAX_TOKENS": "12", "ANABRANCH_DEEP_EP_MASK_SECONDS": "5"}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_semantics_of_deep_ep(start, finish, ranks):
    passed(finish(start("deep_ep_program.py", ranks, **SETTINGS)))


def test_semantics_in_the_world_of_the_backend(start, finish):
    passed(finish(start("deep_ep_program.py", 2, "backend", **SETTINGS)))


def test_two_slots_keep_the_windows_of_two_handles(start, finish):
    passed(finish(start("deep_ep_program.py", 2, **SETTINGS, ANABRANCH_DEEP_EP_SLOTS="2")))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_semantics_of_elastic_buffers(start, finish, ranks):
    passed(finish(start("deep_ep_elastic_program.py", ranks, **SETTINGS)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_calls_of_engines(start, finish, ranks):
    passed(finish(start("deep_ep_calls_program.py", ranks, **SETTINGS)))


@pytest.mark.parametrize(("ranks", "arguments"), [(4, ()), (2, ("hooks",))])
def test_killed_rank_is_masked(start, finish, ranks, arguments):
    results = finish(start("deep_ep_lost_rank_program.py", ranks, *arguments, **SETTINGS))
    code, output = results.pop(1)
    assert code == -signal.SIGKILL, output
    passed(results)
