"""Collectives inside compiled programs of JAX, beside jax.lax."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax", reason="JAX is not installed")

PROGRAM = """
import functools
import anabranch.jax, jax, numpy
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

RANKS = 4
settings = {"device.runtime": "host", "heap.bytes": "64 MiB", "deadline.operation": "20 s"}
mesh = jax.sharding.Mesh(jax.local_devices(), ("ranks",))

def sharded(function, out=P("ranks")):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("ranks"), out_specs=out, check_vma=False))

def values(dtype):
    return (jnp.arange(RANKS * 8 * 3) % 7).astype(dtype).reshape(RANKS * 8, 3)
"""


def run(body):
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run([sys.executable, "-c", PROGRAM + body], capture_output=True, text=True, env=environment, timeout=180)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_collective_and_type():
    run("""
with anabranch.jax.Group(settings) as group:
    for dtype in (jnp.float32, jnp.bfloat16, jnp.int32):
        x = values(dtype)
        pairs = [
            (group.all_reduce, lambda x: jax.lax.psum(x, "ranks")),
            (functools.partial(group.all_reduce, op="max"), lambda x: jax.lax.pmax(x, "ranks")),
            (group.all_gather, lambda x: jax.lax.all_gather(x, "ranks", tiled=True)),
            (group.reduce_scatter, lambda x: jax.lax.psum_scatter(x, "ranks", tiled=True)),
            (group.all_to_all, lambda x: jax.lax.all_to_all(x, "ranks", 0, 0, tiled=True)),
        ]
        for ours, theirs in pairs:
            assert (sharded(ours)(x) == sharded(theirs)(x)).all(), (dtype, ours)
    many = sharded(lambda x: functools.reduce(lambda x, _: group.all_reduce(x) / RANKS, range(20), x))
    assert jnp.allclose(many(values(jnp.float32)), sharded(lambda x: jax.lax.pmean(x, "ranks"))(values(jnp.float32)))
""")


def test_gradients():
    run("""
with anabranch.jax.Group(settings) as group:
    x = values(jnp.float32) / 7
    weights = jnp.arange(8 * 3, dtype=jnp.float32).reshape(8, 3) / 10

    def ours(x):
        y = group.all_reduce(jnp.sin(x)) * weights
        z = group.reduce_scatter(group.all_gather(jnp.tanh(y)) ** 2)
        return jnp.sum(group.all_to_all(z) * x, keepdims=True)

    def theirs(x):
        y = jax.lax.psum(jnp.sin(x), "ranks") * weights
        z = jax.lax.psum_scatter(jax.lax.all_gather(jnp.tanh(y), "ranks", tiled=True) ** 2, "ranks", tiled=True)
        return jnp.sum(jax.lax.all_to_all(z, "ranks", 0, 0, tiled=True) * x, keepdims=True)

    gradients = [jax.grad(lambda x, function=function: sharded(function)(x).sum())(x) for function in (ours, theirs)]
    assert jnp.allclose(*gradients, rtol=1e-5), abs(gradients[0] - gradients[1]).max()
""")


def test_errors_say_what_is_wrong():
    run("""
group = anabranch.jax.Group(settings)
for call, words in [
    (lambda x: group.reduce_scatter(x[:3]), "no multiple of the group's 4 ranks"),
    (lambda x: group.all_reduce(x, "median"), "unknown operator"),
    (lambda x: group.all_reduce(x.astype(jnp.complex64)), "element type"),
]:
    try:
        sharded(call)(values(jnp.float32)).block_until_ready()
    except Exception as error:
        assert words in str(error), (words, str(error))
    else:
        raise AssertionError(words)
compiled = sharded(group.all_reduce)
x = values(jnp.float32)
compiled(x).block_until_ready()
group.leave()
group.leave()
try:
    compiled(x).block_until_ready()
except Exception as error:
    assert "was left" in str(error), error
else:
    raise AssertionError("a group that was left")
# Another group takes its place.
with anabranch.jax.Group(settings) as group:
    sharded(group.all_reduce)(x).block_until_ready()
""")
