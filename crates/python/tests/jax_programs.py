"""What programs of the tests of JAX share: a mesh of four devices, layers of experts, and what runs them."""

import os
import subprocess
import sys

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

def in_order(*calls):
    # A function that makes these calls one after the other.
    def run(x):
        order = group.start("ranks")
        for call in calls:
            x, order = call(x, order)
        return x
    return run

def values(dtype):
    return (jnp.arange(RANKS * 8 * 3) % 7).astype(dtype).reshape(RANKS * 8, 3)
"""


def run(body):
    """Runs the program with this body on four devices of the CPU."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run([sys.executable, "-c", PROGRAM + body], capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


LAYERS = """
from anabranch.jax.expert_parallel import ExpertParallel, Received

HIDDEN, EXPERTS, TOP_K, TOKENS = 32, 8, 3, 6
OWN = EXPERTS // RANKS
keys = jax.random.split(jax.random.PRNGKey(3), 3)
router = jax.random.normal(keys[0], (HIDDEN, EXPERTS)) / HIDDEN ** 0.5
matrices = jax.random.normal(keys[1], (EXPERTS, HIDDEN, HIDDEN)) / HIDDEN ** 0.5
x = jax.random.normal(keys[2], (RANKS * TOKENS, HIDDEN))
SHARES = (P(), P("ranks"), P("ranks"))

def plan(**options):
    sizes = {"hidden": HIDDEN, "experts": EXPERTS, "top_k": TOP_K, "max_tokens": TOKENS, "dtype": jnp.float32}
    return ExpertParallel(group, **(sizes | options))

def route(router, x):
    weights, ids = jax.lax.top_k(jax.nn.softmax(x @ router), TOP_K)
    # One token in six has no second expert.
    ids = ids.at[:, 1].set(jnp.where(jnp.arange(len(x)) % TOKENS == 2, -1, ids[:, 1]))
    return ids, weights

def plain(router, matrices, x):
    ids, weights = route(router, x)
    each = jnp.einsum("eij,ti->tej", matrices, x)
    chosen = jnp.take_along_axis(each, jnp.maximum(ids, 0)[:, :, None], 1)
    return jnp.tanh((chosen * jnp.where(ids >= 0, weights, 0)[:, :, None]).sum(1))

def by_rows(ep):
    def layer(router, matrices, x, order):
        received, order = ep.dispatch(x, *route(router, x), order)
        own = jax.lax.axis_index("ranks") * OWN + jnp.arange(OWN)
        chosen = ((received.ids[:, :, None] == own) * received.weights[:, :, None]).sum(1)
        y = jnp.einsum("eij,ri,re->rj", matrices, received.rows, chosen)
        out, order = ep.combine(y, received, order)
        return jnp.tanh(out), order
    return layer

def by_expert(ep):
    def layer(router, matrices, x, order):
        received, order = ep.dispatch_experts(x, *route(router, x), order)
        out, order = ep.combine_experts(received.rows @ matrices, received, order)
        return jnp.tanh(out), order
    return layer

def gradients(layer, layers, scanned=False):
    # Of the sum of squares, by the router, the experts and the tokens.
    def run(router, matrices, x, order):
        if scanned:
            body = lambda carry, _: (layer(router, matrices, *carry), None)
            (x, order), _ = jax.lax.scan(body, (x, order), None, length=layers)
        else:
            for _ in range(layers):
                x, order = layer(router, matrices, x, order)
        return (x ** 2).sum(), (x, order)

    def step(router, matrices, x):
        order = group.start("ranks")
        call = jax.value_and_grad(run, argnums=(0, 1, 2, 3), has_aux=True)
        (_, (y, _)), (of_router, of_matrices, of_x, order) = call(router, matrices, x, order)
        of_router, _ = group.all_reduce(of_router, order)
        return y, of_router, of_matrices, of_x

    outs = (P("ranks"), P(), P("ranks"), P("ranks"))
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=SHARES, out_specs=outs, check_vma=False))

def plain_gradients(layers):
    def run(router, matrices, x):
        for _ in range(layers):
            x = plain(router, matrices, x)
        return (x ** 2).sum(), x
    (_, y), wanted = jax.value_and_grad(run, argnums=(0, 1, 2), has_aux=True)(router, matrices, x)
    return (y, *wanted)

def same(results, wanted):
    for name, mine, theirs in zip(("y", "router", "experts", "x"), results, wanted, strict=True):
        # Sums in another order: relative to the largest element.
        error, largest = abs(mine - theirs).max(), abs(theirs).max()
        assert mine.shape == theirs.shape and error <= 2e-5 * largest, (name, error, largest)
"""
