"""Helpers of the tests of the torch.distributed backend: they run programs on ranks that are processes, on the host runtime.

The directory is not named torch: pytest puts test directories on sys.path, where it would hide a missing torch.
"""

import os
import pathlib
import socket
import subprocess
import sys
from importlib import metadata

import pytest

HERE = pathlib.Path(__file__).parent
HOST = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ANABRANCH__DEVICE__RUNTIME": "host"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def entry_points(tmp_path_factory):
    """A directory with the package's entry points, where the package runs from a checkout and is not installed."""
    if any(entry.name == "anabranch" for entry in metadata.entry_points(group="torch.backends")):
        return ""
    tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11")
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    installed = tmp_path_factory.mktemp("site") / "anabranch-0.0.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: anabranch\nVersion: 0.0.0\n")
    (installed / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return str(installed.parent)


@pytest.fixture
def port():
    return lambda: str(free_port())


@pytest.fixture(scope="session")
def start(entry_points):
    """Starts a program of this directory on ranks; returns the processes."""

    def start(program: str, ranks: int, *arguments: str, **environment: str) -> list[subprocess.Popen]:
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [entry_points, os.environ.get("PYTHONPATH", "")])),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            **HOST,
            **environment,
        }
        command = [sys.executable, str(HERE / program), *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return [subprocess.Popen(command, env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes) for rank in range(ranks)]

    return start


@pytest.fixture
def torchrun(entry_points):
    """Runs a program with torchrun; returns the finished process."""

    def torchrun(program: pathlib.Path, ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(free_port())]
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, [entry_points, os.environ.get("PYTHONPATH", "")])), **HOST}
        return subprocess.run(
            [*command, str(program), *arguments], capture_output=True, text=True, timeout=100, env={**os.environ, **variables}
        )

    return torchrun


@pytest.fixture(scope="session")
def finish():
    """Waits for processes; returns their exit codes and outputs. Kills all after the time limit."""

    def finish(processes: list[subprocess.Popen], limit: float = 100) -> list[tuple[int, str]]:
        results = []
        try:
            for process in processes:
                output, _ = process.communicate(timeout=limit)
                results.append((process.returncode, output))
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
        return results

    return finish
