#!/usr/bin/env python3
"""Checks JAX's collectives on GPUs with NCCL and with anabranch's drop-in, and compares times.

    python3 scripts/nccl_jax_check.py LIBRARY [--ranks N] [--processes] [--sizes 4K,1M,64M]

LIBRARY is libanabranch_nccl.so. JAX is not changed: the program runs first with the NCCL of JAX's packages, then with LIBRARY preloaded. One
process has all GPUs; with `--processes` each GPU has a process of its own. Every result is compared with numpy's, and losses of a
data parallel step between both runs. Prints microseconds a call, and the first difference. Exits with 1 if a run failed, or if NCCL served the
run with LIBRARY: NCCL prints its version (`NCCL_DEBUG`).
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

SECONDS = 240
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1].upper()] if text[-1].isalpha() else int(text)


def program(ranks: int, sizes: list[int], rank: int | None, port: int) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    if rank is not None:
        jax.distributed.initialize(f"127.0.0.1:{port}", ranks, rank, local_device_ids=[rank])
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("x",))
    split = NamedSharding(mesh, PartitionSpec("x"))
    name = "NCCL" if not os.environ.get("LD_PRELOAD") else "anabranch"

    def put(array):
        return jax.make_array_from_callback(array.shape, split, lambda index: array[index])

    def mine(array):
        """The parts of this process, by their place."""
        return {shard.index[0].start or 0: np.asarray(shard.data) for shard in array.addressable_shards}

    ring = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    # Each takes the parts of all ranks, [ranks, count], and returns one part a rank.
    collectives = {
        "psum": (lambda part: jax.lax.psum(part, "x"), lambda parts: np.stack([parts.sum(0)] * ranks)),
        "pmax": (lambda part: jax.lax.pmax(part, "x"), lambda parts: np.stack([parts.max(0)] * ranks)),
        "all_gather": (lambda part: jax.lax.all_gather(part, "x", tiled=True), lambda parts: np.stack([parts.reshape(-1)] * ranks)),
        "psum_scatter": (
            lambda part: jax.lax.psum_scatter(part, "x", tiled=True),
            lambda parts: parts.sum(0).reshape(ranks, -1),
        ),
        "all_to_all": (
            lambda part: jax.lax.all_to_all(part.reshape(ranks, -1), "x", 0, 0).reshape(-1),
            lambda parts: parts.reshape(ranks, ranks, -1).transpose(1, 0, 2).reshape(ranks, -1),
        ),
        "ppermute": (lambda part: jax.lax.ppermute(part, "x", ring), lambda parts: np.roll(parts, 1, axis=0)),
    }
    for bytes_ in sizes:
        for label, (collective, expected) in collectives.items():
            for dtype in (jnp.float32, jnp.bfloat16):
                count = max(ranks, bytes_ // jnp.dtype(dtype).itemsize // ranks * ranks)
                # Small whole numbers: their sums are exact in bf16.
                parts = np.stack([(np.arange(count) * 7 + 3 * rank) % 5 for rank in range(ranks)])
                call = jax.jit(jax.shard_map(collective, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"), check_vma=False))
                given = put(parts.astype(np.float32).reshape(-1).astype(dtype))
                result = jax.block_until_ready(call(given))
                wanted = expected(parts).reshape(-1)
                for start, part in mine(result).items():
                    if not np.array_equal(part.astype(np.float32), wanted[start : start + part.size]):
                        sys.exit(f"{label} of {bytes_} bytes in {dtype.__name__}: the part at {start} differs from numpy's")
                if dtype is jnp.bfloat16:
                    continue
                runs = []
                for _ in range(5):
                    begun = time.perf_counter()
                    for _ in range(20):
                        result = call(given)
                    jax.block_until_ready(result)
                    runs.append((time.perf_counter() - begun) / 20 * 1e6)
                if not rank:
                    print(json.dumps({"library": name, "op": label, "bytes": bytes_, "us": round(sorted(runs)[2], 1)}), flush=True)

    # Data parallel training: the gradients are summed by an all_reduce that JAX puts in by itself.
    def loss(weights, inputs, targets):
        return jnp.mean((jnp.tanh(inputs @ weights["in"]) @ weights["out"] - targets) ** 2)

    @jax.jit
    def step(weights, inputs, targets):
        value, gradients = jax.value_and_grad(loss)(weights, inputs, targets)
        return jax.tree.map(lambda weight, gradient: weight - 0.05 * gradient, weights, gradients), value

    draw = np.random.default_rng(7)
    whole = NamedSharding(mesh, PartitionSpec())
    weights = {"in": draw.normal(size=(64, 256)) / 8, "out": draw.normal(size=(256, 16)) / 16}
    weights = jax.tree.map(
        lambda array: jax.make_array_from_callback(array.shape, whole, lambda index: array.astype(np.float32)[index]), weights
    )
    inputs, targets = put(draw.normal(size=(128, 64)).astype(np.float32)), put(draw.normal(size=(128, 16)).astype(np.float32))
    losses = []
    for _ in range(50):
        weights, value = step(weights, inputs, targets)
        losses.append(float(value))
    maps = open("/proc/self/maps").read()
    if not rank:
        libraries = sorted({line.split()[-1] for line in maps.splitlines() if "nccl" in line})
        print(json.dumps({"library": name, "losses": [losses[0], losses[-1]], "loaded": libraries}), flush=True)


def run(arguments, preload: str | None) -> tuple[int, list[dict]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if preload:
        environment["LD_PRELOAD"] = os.path.realpath(preload)
    environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    environment["NCCL_DEBUG"] = "VERSION"
    command = [sys.executable, os.path.abspath(__file__), arguments.library, "--ranks", str(arguments.ranks), "--sizes", arguments.sizes]
    command += ["--port", str(port)]
    ranks = range(arguments.ranks) if arguments.processes else [None]
    folder, processes = tempfile.mkdtemp(), []
    for rank in ranks:
        file = open(os.path.join(folder, f"{rank}.log"), "w+")
        run_rank = [*command, "--rank", "all" if rank is None else str(rank)]
        processes.append((subprocess.Popen(run_rank, env=environment, stdout=file, stderr=file), file))
    status, lines, has_nccl, deadline = 0, [], False, time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        codes = [process.poll() for process, _ in processes]
        # The others would wait for a rank that failed.
        if None not in codes or any(codes):
            break
        time.sleep(0.1)
    for process, file in processes:
        if process.poll() is None:
            process.kill()
        code = process.wait()
        file.seek(0)
        output = file.read()
        has_nccl |= "NCCL version" in output
        lines += [json.loads(line) for line in output.splitlines() if line.startswith('{"library"')]
        if code:
            status = 1
            print(f"{'anabranch' if preload else 'NCCL'}: exit status {code}\n{output[-3000:]}", flush=True)
    if status == 0 and has_nccl == bool(preload):
        status = 1
        print("NCCL served the run with LIBRARY" if preload else "NCCL did not print its version, so nothing shows which library serves JAX")
    return status, lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--sizes", default="4K,1M,64M")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        program(arguments.ranks, [size(text) for text in arguments.sizes.split(",")], None if arguments.rank == "all" else int(arguments.rank), arguments.port)
        return 0
    before, theirs = run(arguments, None)
    status, ours = run(arguments, arguments.library)
    losses = [line["losses"] for line in [*theirs, *ours] if "losses" in line]
    # Two exact libraries differ by rounding; a missing one has failed.
    if len(losses) != 2 or any(not abs(one - other) <= 1e-3 * abs(one) for one, other in zip(*losses)):
        print(f"first and last losses with NCCL and with LIBRARY differ: {losses}")
        status = 1
    status |= before
    times = {(line["op"], line["bytes"]): line["us"] for line in theirs if "op" in line}
    print(f"{'op':<14}{'bytes':>12}{'NCCL us':>12}{'anabranch us':>14}")
    for line in ours:
        if "op" in line:
            print(f"{line['op']:<14}{line['bytes']:>12}{times.get((line['op'], line['bytes']), '-'):>12}{line['us']:>14}")
    for line in [*theirs, *ours]:
        if "losses" in line:
            print(f"{line['library']}: first and last loss {line['losses']}, loaded {line['loaded']}")
    print("ok" if status == 0 else "failed")
    return status


if __name__ == "__main__":
    sys.exit(main())
