"""Helpers of the tests. They run on the host runtime: no GPU is needed."""

import os
import subprocess
import sys

import pytest

# Ranks share a kernel cache: each kernel is compiled once for all tests.
SETTINGS = {"device.runtime": "host", "heap.bytes": "64 MiB", "deadline.operation": "20 s"}


@pytest.fixture
def run_ranks(tmp_path):
    """Runs a program on ranks that are processes; returns the finished process."""

    def run(program: str, ranks: int, *, timeout: float = 120, environment=None):
        path = tmp_path / "program.py"
        path.write_text(program)
        command = [sys.executable, "-m", "anabranch", "run", "--ranks", str(ranks), "--", sys.executable, str(path)]
        variables = {**os.environ, "ANABRANCH__DEVICE__RUNTIME": "host", **(environment or {})}
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=variables)

    return run


@pytest.fixture
def settings():
    return dict(SETTINGS)
