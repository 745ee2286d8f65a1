"""Collectives inside compiled programs of JAX, beside jax.lax, and ranks that are processes."""

import os
import socket
import subprocess
import sys

import pytest
from jax_programs import LAYERS, PROGRAM, run

pytest.importorskip("jax", reason="JAX is not installed")


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
            assert (sharded(in_order(ours))(x) == sharded(theirs)(x)).all(), (dtype, ours)
    mean = functools.partial(group.all_reduce, op="avg")
    many = sharded(in_order(*[mean] * 20))
    assert jnp.allclose(many(values(jnp.float32)), sharded(lambda x: jax.lax.pmean(x, "ranks"))(values(jnp.float32)))
""")


def test_gradients():
    run("""
with anabranch.jax.Group(settings) as group:
    x = values(jnp.float32) / 7
    weights = jnp.arange(8 * 3, dtype=jnp.float32).reshape(8, 3) / 10

    def ours(x):
        order = group.start("ranks")
        y, order = group.all_reduce(jnp.sin(x), order)
        y = y * weights
        z, order = group.all_gather(jnp.tanh(y), order)
        z, order = group.reduce_scatter(z ** 2, order)
        z, order = group.all_to_all(z, order)
        return jnp.sum(z * x, keepdims=True)

    def theirs(x):
        y = jax.lax.psum(jnp.sin(x), "ranks") * weights
        z = jax.lax.psum_scatter(jax.lax.all_gather(jnp.tanh(y), "ranks", tiled=True) ** 2, "ranks", tiled=True)
        return jnp.sum(jax.lax.all_to_all(z, "ranks", 0, 0, tiled=True) * x, keepdims=True)

    gradients = [jax.grad(lambda x, function=function: sharded(function)(x).sum())(x) for function in (ours, theirs)]
    assert jnp.allclose(*gradients, rtol=1e-5), abs(gradients[0] - gradients[1]).max()
    second = [
        jax.grad(lambda x, function=function: (jax.grad(lambda x: sharded(function)(x).sum())(x) ** 2).sum())(x)
        for function in (ours, theirs)
    ]
    assert jnp.allclose(*second, rtol=1e-4), abs(second[0] - second[1]).max()
""")


def test_calls_that_depend_on_nothing_but_their_order():
    """Without it, they would block each other's threads, or meet in another order on another device."""
    run("""
with anabranch.jax.Group(settings) as group:
    def ours(x):
        order, sums = group.start("ranks"), []
        for number in range(8):
            total, order = group.all_reduce(jnp.sin(x + number), order)
            sums.append(total)
        return jnp.stack(sums)

    def theirs(x):
        return jnp.stack([jax.lax.psum(jnp.sin(x + number), "ranks") for number in range(8)])

    x = jax.random.normal(jax.random.PRNGKey(0), (RANKS * 50, 200))
    mine, expected = sharded(ours, P(None, "ranks")), sharded(theirs, P(None, "ranks"))(x)
    for _ in range(30):
        assert jnp.allclose(mine(x), expected, atol=1e-5)
    gradient = jax.jit(jax.grad(lambda x: (sharded(ours, P(None, "ranks"))(x) ** 2).sum()))
    wanted = jax.grad(lambda x: (sharded(theirs, P(None, "ranks"))(x) ** 2).sum())(x)
    for _ in range(10):
        assert jnp.allclose(gradient(x), wanted, rtol=1e-4, atol=1e-4)
""")


def test_a_group_is_left_after_its_programs():
    run("""
with anabranch.jax.Group(settings) as group:
    y = sharded(in_order(*[group.all_reduce] * 40))(values(jnp.float32) / 100)
assert jnp.isfinite(y).all()
""")


def test_errors_say_what_is_wrong():
    run("""
group = anabranch.jax.Group(settings)
for call, words in [
    (in_order(lambda x, order: group.reduce_scatter(x[:3], order)), "no multiple of the group's 4 ranks"),
    (in_order(functools.partial(group.all_reduce, op="median")), "unknown operator"),
    (lambda x: in_order(functools.partial(group.all_reduce, op="avg"))(x.astype(jnp.bool_)), "avg is not defined"),
    (lambda x: in_order(group.all_reduce)(x.astype(jnp.complex64)), "not supported"),
]:
    try:
        sharded(call)(values(jnp.float32)).block_until_ready()
    except Exception as error:
        assert words in str(error), (words, str(error))
    else:
        raise AssertionError(words)
compiled = sharded(in_order(group.all_reduce))
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
    sharded(in_order(group.all_reduce))(x).block_until_ready()
    only_start = lambda x: group.start("ranks")
    assert sharded(only_start)(x).tolist() == [0, 1, 2, 3]
    mesh = jax.sharding.Mesh(jax.local_devices()[::-1], ("ranks",))
    for call in (only_start, in_order(group.all_gather)):
        try:
            sharded(call)(x).block_until_ready()
        except Exception as error:
            assert "in their order" in str(error), error
        else:
            raise AssertionError("a mesh in another order")
""")


def test_a_mesh_in_another_order_fails_on_all_devices():
    """Also on those that are in their place, which do not wait for the others: the group is usable afterwards."""
    run("""
first, second, third, fourth = jax.local_devices()
swapped = jax.sharding.Mesh([first, second, fourth, third], ("ranks",))
with anabranch.jax.Group(settings) as group:
    call, x = in_order(group.all_reduce), values(jnp.float32)
    wrong = jax.jit(jax.shard_map(call, mesh=swapped, in_specs=P("ranks"), out_specs=P("ranks"), check_vma=False))
    for _ in range(2):
        for part in wrong(x).addressable_shards:
            try:
                part.data.block_until_ready()
            except Exception as error:
                assert "the device of rank 2 is at place 3" in str(error), error
            else:
                raise AssertionError(f"{part.device} has a result")
        assert (sharded(call)(x) == sharded(lambda x: jax.lax.psum(x, "ranks"))(x)).all()
""")


def test_equal_programs_are_compiled_once(tmp_path):
    """Equal layers of other traces are one entry of JAX's cache, and what is loaded from it runs."""
    run(LAYERS + f"""
import os
jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
entries = lambda: sorted(name for name in os.listdir({str(tmp_path)!r}) if name.startswith("jit_step") and name.endswith("-cache"))
with anabranch.jax.Group(settings) as group:
    ep = plan(capacity=0)
    first = gradients(by_expert(ep), 2)(router, matrices, x)
    assert len(entries()) == 1, entries()
    # One with another layer is another program.
    gradients(by_expert(ep), 1)(router, matrices, x)
    assert len(entries()) == 2, entries()
    for _ in range(2):
        again = gradients(by_expert(ep), 2)(router, matrices, x)
        assert all((mine == before).all() for mine, before in zip(again, first))
    assert len(entries()) == 2, entries()
""")


def run_processes(program, devices=1):
    """Runs it in two processes, which get the coordinator's address and their number."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, "-c", program, address]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [subprocess.Popen([*command, str(rank)], env=environment, **pipes) for rank in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs


START = "import sys, jax\njax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))\n"


def test_two_processes():
    """Collectives and a layer of experts, and a group after the first."""
    program = PROGRAM.replace("RANKS = 4", "RANKS = 2").replace("jax.local_devices()", "jax.devices()")
    run_processes(START + program + LAYERS + """
mine = lambda array: numpy.asarray(array.addressable_data(0))
rank = int(sys.argv[2])
router, matrices, x = (numpy.asarray(array) for array in (router, matrices, x))
for _ in range(2):
    with anabranch.jax.Group(settings) as group:
        assert group.size == 2 and [world.rank for world in group.worlds] == [rank]
        sums = sharded(in_order(group.all_reduce, group.all_gather), P("ranks"))(numpy.arange(4, dtype=numpy.float32))
        assert mine(sums).tolist() == [2, 4, 2, 4], sums
        for layer in (by_rows(plan()), by_expert(plan(capacity=0))):
            results = [mine(result) for result in gradients(layer, 2)(router, matrices, x)]
            y, of_router, of_matrices, of_x = plain_gradients(2)
            half = lambda array: array[rank * len(array) // 2 : (rank + 1) * len(array) // 2]
            same(results, (half(y), of_router, half(of_matrices), half(of_x)))
""")


def test_processes_with_several_devices_are_refused():
    run_processes(START + """
import anabranch.jax
try:
    anabranch.jax.Group({"device.runtime": "host"})
except NotImplementedError as error:
    assert f"process {sys.argv[2]} of 2 has 2 devices, and all have 4" in str(error), error
else:
    sys.exit("a group was made")
""", devices=2)
