"""Dispatch and combine inside compiled programs of JAX, beside layers in plain JAX."""

import pytest
from jax_programs import LAYERS, run

pytest.importorskip("jax", reason="JAX is not installed")


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
        for call, words in ((too_large, "the plan's window has"), (wrong_output, "output has 0 bytes"), (wrong_weights, "a buffer has 12 bytes")):
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
            # Not a number at empty places.
            received = dataclasses.replace(received, weights=received.weights ** 2 + 0 / received.weights)
        out, order = ep.combine_experts(y, received, order)
        return jnp.tanh(out), order
    return layer

with anabranch.jax.Group(settings) as group:
    for slots, mode in ((1, "slotted"), (2, "slotted"), (2, "compact")):
        ep = plan(capacity=0, slots=slots, mode=mode)
        # One after the other: independent programs may run in different orders on two devices.
        late, early = (jax.block_until_ready(gradients(squared(ep, is_late), 2)(router, matrices, x)) for is_late in (True, False))
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
    (half_weights, "received.weights is bfloat16[2, 24]; float32[2, 24] is needed"),
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
