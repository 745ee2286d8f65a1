#!/usr/bin/env python3
"""Checks `anabranch.jax` on the GPUs of this machine.

    python3 scripts/jax_gpu_check.py [--runtime nvidia]

1. Two processes with a GPU each: collectives, and layers of experts with their gradients. The program is that of the test of two processes
   (`crates/python/tests/test_jax.py`), which runs it on the CPU.
2. One process with all GPUs: collectives in XLA's command buffers give the sums that they give without, and the host makes no call for them
   once XLA has captured them. Prints the time of a program of 20 all_reduces with and without.

Ends with 1 if a check fails, with what it printed.
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


# A program of 20 collectives, which runs several times on the same and on other buffers. The count is of calls of the host in the last runs.
COMMAND_BUFFERS = """
import concurrent.futures, json, sys, tempfile, time
import anabranch.jax, jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

runtime, is_captured = sys.argv[1], sys.argv[2] == "captured"
mesh = jax.sharding.Mesh(jax.devices(), ("ranks",))
ranks, calls, runs = len(jax.devices()), 20, 50

with anabranch.jax.Group({"device.runtime": runtime, "heap.bytes": "256 MiB", "deadline.operation": "20 s"}) as group:
    def step(x):
        order = group.start("ranks")
        for _ in range(calls):
            x, order = group.all_reduce(x, order, "avg")
            x = x + 1
        return x

    program = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("ranks"), out_specs=P("ranks"), check_vma=False))
    count = 8192                                           # 32 KiB on each device
    x = jax.device_put(jnp.arange(ranks * count, dtype=jnp.float32) % 7, NamedSharding(mesh, P("ranks")))
    expected = (x.reshape(ranks, count).mean(0) + calls)
    kept = []
    for run in range(40):                                  # results that are kept move the next ones to other memory
        y = program(x)
        assert jnp.allclose(y.reshape(ranks, count), expected, rtol=1e-6), run
        kept = [*kept, y][-(run % 5 + 1):]
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(runs):
            y = program(x)
        y.block_until_ready()
        each = (time.perf_counter() - begin) / runs

    with tempfile.NamedTemporaryFile(suffix=".json") as file, concurrent.futures.ThreadPoolExecutor(ranks) as pool:
        profiles = [world.profile(file.name) for world in group.worlds]
        list(pool.map(lambda profile: profile.__enter__(), profiles))
        for _ in range(4):
            program(x).block_until_ready()
        list(pool.map(lambda profile: profile.__exit__(None, None, None), profiles))
        host_calls = sum(event.get("name") == "all_reduce" and event.get("ph") == "X" for event in json.load(open(file.name))["traceEvents"])
    if is_captured:
        assert host_calls == 0, f"{host_calls} calls of the host in four runs"
    else:
        assert host_calls >= 4 * calls * ranks, host_calls
print(json.dumps({"us": round(each * 1e6, 1), "host_calls": host_calls}))
"""


def check_command_buffers(runtime: str) -> None:
    for form, flags in (("captured", ""), ("eager", "--xla_gpu_enable_command_buffer=")):
        environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
        command = [sys.executable, "-c", COMMAND_BUFFERS, runtime, form]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
        if result.returncode != 0:
            sys.exit(f"command buffers, {form}: ended with {result.returncode}:\n{result.stdout}{result.stderr}")
        print(f"ok command buffers, {form}: {result.stdout.strip()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", choices=["nvidia", "amd"], default="nvidia", help="the runtime (default: nvidia)")
    runtime = parser.parse_args().runtime
    test_jax.run_processes = lambda program: run_processes(program, runtime)
    test_jax.test_two_processes()
    print("ok two processes", flush=True)
    check_command_buffers(runtime)


if __name__ == "__main__":
    main()
