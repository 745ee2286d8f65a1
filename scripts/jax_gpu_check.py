#!/usr/bin/env python3
"""Checks `anabranch.jax` on two GPUs of this machine with a process for each: collectives, and layers of experts with their gradients.

    python3 scripts/jax_gpu_check.py [--runtime nvidia]

The program is that of the test of two processes (`crates/python/tests/test_jax.py`), which runs it on the CPU; each process has one GPU here.
Ends with 1 if a process fails, with what it printed.
"""

import argparse
import os
import pathlib
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "crates/python/tests"))

import test_jax

SECONDS = 240


def run_processes(program: str, runtime: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    for of_cpu, of_gpu in (
        ('"device.runtime": "host"', f'"device.runtime": "{runtime}"'),
        ("int(sys.argv[2]))\n", "int(sys.argv[2]), local_device_ids=[int(sys.argv[2])])\n"),
    ):
        assert of_cpu in program, of_cpu
        program = program.replace(of_cpu, of_gpu, 1)
    # Sums of float32 as the reference makes them.
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    command = [sys.executable, "-c", program, address]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [subprocess.Popen([*command, str(rank)], env=environment, **pipes) for rank in range(2)]
    for rank, process in enumerate(processes):
        try:
            output = process.communicate(timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            for each in processes:
                each.kill()
            sys.exit(f"process {rank} is not done after {SECONDS} s:\n{process.communicate()[0]}")
        if process.returncode != 0:
            sys.exit(f"process {rank} ended with {process.returncode}:\n{output}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", choices=["nvidia", "amd"], default="nvidia", help="the runtime (default: nvidia)")
    runtime = parser.parse_args().runtime
    test_jax.run_processes = lambda program: run_processes(program, runtime)
    test_jax.test_two_processes()
    print("ok two processes")


if __name__ == "__main__":
    main()
