"""A mixture-of-experts layer that trains in JAX: the experts are divided among the devices, the tokens too.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 JAX_PLATFORMS=cpu python examples/python/jax_moe_layer.py

Needs jax. On 1, 2 or 4 devices the losses are those of the same layer in plain JAX, up to rounding: it trains beside, and the program
fails if they differ.
"""

import anabranch.jax
import jax
import jax.flatten_util
import jax.numpy as jnp
from anabranch.jax.expert_parallel import ExpertParallel
from jax.sharding import Mesh, PartitionSpec

HIDDEN, EXPERTS, TOP_K, TOKENS, STEPS, RATE = 64, 8, 2, 256, 20, 0.5


def route(router, x):
    """The TOP_K experts that the router likes most, and their weights."""
    weights, ids = jax.lax.top_k(jax.nn.softmax(x @ router.T), TOP_K)
    return ids, weights


def experts(parameters, rows):
    """[experts, rows, HIDDEN]: each expert's output for its rows."""
    _, up, down = parameters
    return jax.nn.relu(rows @ up) @ down


def plain_loss(parameters, x, y):
    """The layer on one device: every expert computes every token, and the router's weights pick."""
    ids, weights = route(parameters[0], x)
    each = experts(parameters, jnp.broadcast_to(x, (EXPERTS, *x.shape)))
    out = jnp.einsum("tk,tkh->th", weights, each[ids, jnp.arange(len(x))[:, None]])
    return jnp.sum((out - y) ** 2) / (TOKENS * HIDDEN)


def main() -> None:
    keys = jax.random.split(jax.random.PRNGKey(0), 5)
    initial = lambda key, *shape: jax.random.normal(key, shape) / HIDDEN**0.5
    start = (
        initial(keys[0], EXPERTS, HIDDEN),
        initial(keys[1], EXPERTS, HIDDEN, HIDDEN),
        initial(keys[2], EXPERTS, HIDDEN, HIDDEN),
    )
    x, y = jax.random.normal(keys[3], (TOKENS, HIDDEN)), jax.random.normal(keys[4], (TOKENS, HIDDEN))
    split, same = PartitionSpec("ranks"), PartitionSpec()
    # The router is the same on all devices; of the experts each has its own.
    shares = (same, split, split)

    with anabranch.jax.Group() as group:
        ep = ExpertParallel(
            group, hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, max_tokens=TOKENS // group.size, dtype=jnp.float32, capacity=0
        )

        def loss(parameters, order, x, y):
            ids, weights = route(parameters[0], x)
            received, order = ep.dispatch_experts(x, ids, weights, order)
            out, order = ep.combine_experts(experts(parameters, received.rows), received, order)
            return jnp.sum((out - y) ** 2) / (TOKENS * HIDDEN), order

        def step(parameters, x, y):
            order = group.start("ranks")
            backward = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
            # The gradient of the first order is the order after the backward pass.
            (value, _), (gradients, order) = backward(parameters, order, x, y)
            # The router's gradient is the sum of all devices'. Experts have theirs from all tokens.
            flat, restore = jax.flatten_util.ravel_pytree((value, gradients[0]))
            total, order = group.all_reduce(flat, order)
            value, router = restore(total)
            return jax.tree.map(lambda old, gradient: old - RATE * gradient, parameters, (router, *gradients[1:])), value

        mesh = Mesh(jax.devices(), ("ranks",))
        specs = {"in_specs": (shares, split, split), "out_specs": (shares, same), "check_vma": False}
        train = jax.jit(jax.shard_map(step, mesh=mesh, **specs))

        @jax.jit
        def plain_train(parameters, x, y):
            value, gradients = jax.value_and_grad(plain_loss)(parameters, x, y)
            return jax.tree.map(lambda old, gradient: old - RATE * gradient, parameters, gradients), value

        parameters = plain = start
        for number in range(STEPS):
            parameters, value = train(parameters, x, y)
            plain, expected = plain_train(plain, x, y)
            print(f"step {number}: loss {value:.6f} on {group.size} devices, {expected:.6f} in plain JAX", flush=True)
            if abs(value - expected) > 1e-5:
                raise SystemExit("the losses differ")


if __name__ == "__main__":
    main()
