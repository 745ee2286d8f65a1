"""A model that trains on all devices of a process, in JAX: each device has its part of the batch, gradients are summed.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 JAX_PLATFORMS=cpu python examples/python/jax_training.py

Needs jax. The numbers are those of one device, whatever the number of devices is, up to rounding.
"""

import anabranch.jax
import jax
import jax.flatten_util
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

BATCH, FEATURES, HIDDEN, STEPS = 64, 16, 32, 20


def loss(parameters, x, y):
    up, down = parameters
    return jnp.sum((jax.nn.relu(x @ up) @ down - y) ** 2) / BATCH


def main() -> None:
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    x, y = jax.random.normal(keys[0], (BATCH, FEATURES)), jax.random.normal(keys[1], (BATCH, 1))
    parameters = (
        jax.random.normal(keys[2], (FEATURES, HIDDEN)) / FEATURES**0.5,
        jax.random.normal(keys[3], (HIDDEN, 1)) / HIDDEN**0.5,
    )
    devices = jax.local_devices()
    mesh, split, same = Mesh(devices, ("ranks",)), PartitionSpec("ranks"), PartitionSpec()

    with anabranch.jax.Group() as group:

        def step(parameters, x, y):
            value, gradients = jax.value_and_grad(loss)(parameters, x, y)
            flat, restore = jax.flatten_util.ravel_pytree((value, gradients))
            total, _ = group.all_reduce(flat, group.start("ranks"))
            value, gradients = restore(total)
            return jax.tree.map(lambda old, gradient: old - 0.05 * gradient, parameters, gradients), value

        train = jax.jit(
            jax.shard_map(step, mesh=mesh, in_specs=(same, split, split), out_specs=(same, same), check_vma=False)
        )
        for number in range(STEPS):
            parameters, value = train(parameters, x, y)
            print(f"step {number}: loss {value:.6f} on {len(devices)} devices", flush=True)


if __name__ == "__main__":
    main()
