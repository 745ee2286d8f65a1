"""Collectives, dispatch and combine inside compiled programs of JAX, beside jax.lax and layers in plain JAX."""

import os
import socket
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
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run([sys.executable, "-c", PROGRAM + body], capture_output=True, text=True, env=environment, timeout=300)
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
    (lambda x: in_order(functools.partial(group.all_reduce, op="avg"))(x.astype(jnp.int32)), "avg is not defined"),
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


@pytest.mark.parametrize("kind", ["by_rows", "by_expert"])
@pytest.mark.parametrize("mode", ["slotted", "compact"])
def test_a_layer_of_experts_and_its_gradients(kind, mode):
    run(LAYERS + f"""
with anabranch.jax.Group(settings) as group:
    layer = {kind}(plan(mode="{mode}", capacity=0))
    wanted = plain_gradients(1)
    call = gradients(layer, 1)
    first = call(router, matrices, x)
    same(first, wanted)
    # The same bits in every run.
    for _ in range(3):
        for mine, before in zip(call(router, matrices, x), first):
            assert (mine == before).all()
    same(gradients(layer, 3)(router, matrices, x), plain_gradients(3))
    same(gradients(layer, 3, scanned=True)(router, matrices, x), plain_gradients(3))
    # The comparison must see a wrong gradient.
    try:
        same(first, (*wanted[:3], wanted[3] * 1.01))
    except AssertionError:
        pass
    else:
        raise AssertionError("a wrong gradient passed")
""")


def test_a_combine_whose_slot_was_given_away():
    """Dispatches within a dispatch, in a plan with one slot: rows of zeros are sent again, forward and backward."""
    run(LAYERS + """
with anabranch.jax.Group(settings) as group:
    for slots, capacity in ((1, None), (1, 0), (2, 0)):
        ep = plan(slots=slots, capacity=capacity)
        dispatch, combine = (ep.dispatch, ep.combine) if capacity is None else (ep.dispatch_experts, ep.combine_experts)

        def layer(router, matrices, x, order):
            ids, weights = route(router, x)
            first, order = dispatch(x, ids, weights, order)
            second, order = dispatch(jnp.sin(x), ids, weights, order)
            _, order = dispatch(x, ids, weights, order)
            b, order = combine(second.rows * 2, second, order)
            a, order = combine(first.rows * 3, first, order)
            w = first.weights.sum() + (second.weights ** 2).sum()
            return a + b + w * 0.01, order

        def theirs(router, matrices, x):
            ids, weights = route(router, x)
            weights = jnp.where(ids >= 0, weights, 0)
            owner = jnp.where(ids >= 0, ids // OWN, -1)
            if capacity is None:
                # Each rank gets a token once, with all of its weights, those of no expert too.
                on = jnp.stack([(owner == rank).any(1) for rank in range(RANKS)])
                times = on.sum(0)
                sent = route(router, x)[1]
                each = (3 * x + 2 * jnp.sin(x)) * times[:, None]
                of_ranks = lambda values: (on * values.sum(1)).sum(1)
            else:
                sent = weights
                each = (3 * x + 2 * jnp.sin(x)) * weights.sum(1, keepdims=True)
                of_ranks = lambda values: jnp.stack([(values * (owner == rank)).sum() for rank in range(RANKS)])
            w = of_ranks(sent) + of_ranks(sent ** 2)
            return each + jnp.repeat(w, TOKENS)[:, None] * 0.01

        def total(router, matrices, x):
            y = theirs(router, matrices, x)
            return (y ** 2).sum(), y

        (_, y), wanted = jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)(router, matrices, x)
        call = gradients(layer, 1)
        for _ in range(2):
            same(call(router, matrices, x), (y, *wanted))
""")


def test_slots_of_failed_calls_come_back():
    """Calls that fail after their launch, on all ranks, more often than the plan has slots."""
    run(LAYERS + """
def fails(call, words):
    for _ in range(3):
        try:
            sharded(in_order(call))(x).block_until_ready()
        except Exception as error:
            assert words in str(error), (words, str(error))
        else:
            raise AssertionError(words)

with anabranch.jax.Group(settings) as group:
    for capacity in (None, 0):
        ep = plan(capacity=capacity, mode="compact")
        is_by_expert = capacity is not None
        layer, dispatch = (by_expert(ep), ep.dispatch_experts) if is_by_expert else (by_rows(ep), ep.dispatch)
        step = gradients(layer, 1)
        wanted = step(router, matrices, x)

        def too_large(x, order):
            # Results of another size than the windows'.
            ep.rows += 1
            received, order = dispatch(x, *route(router, x), order)
            ep.rows -= 1
            return received.rows, order

        def wrong_output(x, order):
            received, order = dispatch(x, *route(router, x), order)
            y, _, order = ep._combine_call(
                received.number, TOKENS, (received.rows[:0], *forward(received), order), False, is_by_expert
            )
            return y, order

        def wrong_weights(x, order):
            received, order = dispatch(x, *route(router, x), order)
            sent = (jnp.zeros((3,)), jnp.ones((TOKENS, TOP_K)))
            y, _, order = ep._combine_call(received.number, TOKENS, (received.rows, received.routing, *sent, order), True, is_by_expert)
            return y, order

        forward = lambda received: (received.routing, received.records) if is_by_expert else (received.routing,)
        for call, words in ((too_large, "the plan's window has"), (wrong_output, "y has" if is_by_expert else "output"), (wrong_weights, "a buffer has 12 bytes")):
            fails(call, words)
            same(step(router, matrices, x), wanted)
""")


def test_combine_multiplies_by_the_weights_that_it_is_given():
    """Weights that change between dispatch and combine, beside a dispatch of the changed ones."""
    run(LAYERS + """
import dataclasses

def squared(ep, is_late):
    def layer(router, matrices, x, order):
        ids, weights = route(router, x)
        received, order = ep.dispatch_experts(x, ids, weights if is_late else weights ** 2, order)
        y = received.rows @ matrices
        # Another dispatch takes the windows.
        _, order = ep.dispatch_experts(x, ids, weights, order)
        if is_late:
            received = dataclasses.replace(received, weights=received.weights ** 2)
        out, order = ep.combine_experts(y, received, order)
        return jnp.tanh(out), order
    return layer

with anabranch.jax.Group(settings) as group:
    for slots, mode in ((1, "slotted"), (2, "slotted"), (2, "compact")):
        ep = plan(capacity=0, slots=slots, mode=mode)
        late, early = (gradients(squared(ep, is_late), 2)(router, matrices, x) for is_late in (True, False))
        assert (late[0] == early[0]).all()
        same(late, early)
""")


def test_few_tokens_dropped_rows_and_half_precision():
    run(LAYERS + """
with anabranch.jax.Group(settings) as group:
    # No tokens at all: every expert gets zeros.
    ep = plan(capacity=0)
    for layer in (by_rows(ep), by_expert(ep)):
        y, of_router, of_matrices, of_x = gradients(layer, 1)(router, matrices, x[:0])
        assert y.shape == of_x.shape == (0, HIDDEN) and not of_router.any() and not of_matrices.any()
    # Every token to the same expert, which takes two.
    small = plan(capacity=2, top_k=1)

    def step(x, matrices):
        order = group.start("ranks")
        ids, weights = jnp.zeros((TOKENS, 1), jnp.int8), jnp.ones((TOKENS, 1))
        received, order = small.dispatch_experts(x, ids, weights, order)
        out, order = small.combine_experts(received.rows * 2, received, order)
        return out, received.counts

    out, counts = sharded(lambda x: step(x, matrices), (P("ranks"), P("ranks")))(x)
    assert counts.tolist() == [2] + [0] * (EXPERTS - 1), counts
    assert (out == jnp.where(jnp.arange(len(x))[:, None] < 2, x * 2, 0)).all()
    # bfloat16, and what is received is known.
    half = plan(dtype=jnp.bfloat16, top_k=1)

    def step(x):
        order = group.start("ranks")
        ids = jnp.full((TOKENS, 1), EXPERTS - 1)
        received, order = half.dispatch(x, ids, jnp.ones((TOKENS, 1)), order)
        # A pytree.
        received = jax.tree.map(lambda leaf: leaf, received)
        assert isinstance(received, Received)
        out, order = half.combine(received.rows, received, order)
        return out, received.counts, received.ids.max(keepdims=True)[0]

    out, counts, ids = sharded(step, (P("ranks"), P("ranks"), P("ranks")))(x.astype(jnp.bfloat16))
    assert (out == x.astype(jnp.bfloat16)).all()
    assert counts.reshape(RANKS, RANKS).tolist() == [[0] * RANKS] * (RANKS - 1) + [[TOKENS] * RANKS]
    assert ids.tolist() == [-1] * (RANKS - 1) + [EXPERTS - 1]
""")


def test_errors_of_dispatch_and_combine():
    run(LAYERS + """
import dataclasses

group = anabranch.jax.Group(settings)
ep, other = plan(), plan(capacity=0)
ids, weights = jnp.zeros((TOKENS, TOP_K), jnp.int32), jnp.zeros((TOKENS, TOP_K))

def combined(change, by=None):
    def call(x, order):
        received, order = ep.dispatch(x, ids, weights, order)
        return (by or ep.combine)(change(received.rows), received, order)
    return call

def half_weights(x, order):
    received, order = other.dispatch_experts(x, ids, weights, order)
    received = dataclasses.replace(received, weights=received.weights.astype(jnp.bfloat16))
    return other.combine_experts(received.rows, received, order)

def twice(x, order):
    received, order = ep.dispatch(x, ids, weights, order)
    return jax.grad(lambda x: jax.grad(lambda x: ep.combine(x, received, order)[0].sum())(x).sum())(received.rows), order

for call, words in [
    (lambda x, order: ep.dispatch(x[:, :8], ids, weights, order), "(tokens, 32) is needed"),
    (lambda x, order: ep.dispatch(x.astype(jnp.bfloat16), ids, weights, order), "the plan sends float32"),
    (lambda x, order: ep.dispatch(jnp.concatenate([x, x]), ids, weights, order), "at most 6 of a rank (max_tokens)"),
    (lambda x, order: ep.dispatch(x, ids[:, :1], weights, order), "topk_ids has shape (6, 1); (6, 3) is needed"),
    (lambda x, order: ep.dispatch(x, ids, weights[:3], order), "topk_weights has shape (3, 3)"),
    (lambda x, order: ep.dispatch(x, weights, weights, order), "integers are needed"),
    (lambda x, order: ep.dispatch(x, ids, weights.astype(jnp.bfloat16), order), "float32 is needed"),
    (lambda x, order: ep.dispatch(x, ids, weights, x), "group.start()"),
    (lambda x, order: ep.dispatch_experts(x, ids, weights, order), "give ExpertParallel a capacity"),
    (combined(lambda rows: rows[:1]), "a row for each received one"),
    (combined(lambda rows: rows.astype(jnp.bfloat16)), "the plan combines float32"),
    (combined(lambda rows: rows, other.combine), "another ExpertParallel"),
    (combined(lambda rows: rows, other.combine_experts), "ReceivedByExpert is needed"),
    (half_weights, "received.weights is bfloat16[2, 72]; float32[2, 72] is needed"),
    (twice, "cannot be differentiated"),
]:
    try:
        sharded(in_order(call))(x)
    except Exception as error:
        assert words in str(error), (words, str(error))
    else:
        raise AssertionError(words)
for options, words in [
    ({"hidden": 30}, "hidden"),
    ({"dtype": jnp.int32}, "dispatch_type is i32"),
    ({"capacity": 0, "experts": 6}, "experts"),
]:
    try:
        plan(**options)
    except Exception as error:
        assert words in str(error), (words, str(error))
    else:
        raise AssertionError(words)
compiled = gradients(by_rows(ep), 1)
compiled(router, matrices, x)[0].block_until_ready()
group.leave()
for call in (lambda: compiled(router, matrices, x)[0].block_until_ready(), lambda: plan(), lambda: gradients(by_rows(ep), 1)(router, matrices, x)):
    try:
        call()
    except Exception as error:
        assert "was left" in str(error), error
    else:
        raise AssertionError("a group that was left")
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
