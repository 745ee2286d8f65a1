"""Dispatch and combine beside a computation of the whole batch in one place."""

import anabranch
import numpy
import pytest

RANKS, HIDDEN, EXPERTS, TOP_K, MOST = 4, 64, 8, 2, 16


def tokens_of(rank):
    return [5, 0, MOST, 7][rank]


def batch(rank, seed=0):
    """The tokens of a rank: rows of small integers, expert ids, weights that are powers of two."""
    random = numpy.random.default_rng(100 * seed + rank)
    count = tokens_of(rank)
    x = random.integers(-8, 8, (count, HIDDEN)).astype(numpy.float32)
    ids = numpy.stack([random.permutation(EXPERTS)[:TOP_K] for _ in range(count)]) if count else numpy.zeros((0, TOP_K))
    ids = ids.astype(numpy.int32)
    if count > 3:
        ids[3] = -1  # a token for no expert
        ids[2, 1] = -1
    weights = (2.0 ** -random.integers(0, 3, (count, TOP_K))).astype(numpy.float32)
    return x, ids, weights


def expert(number, rows):
    return rows * (number + 1)


def reference(x, ids, weights):
    """What combine gives: for each token the weighted sum of its experts' output."""
    out = numpy.zeros_like(x)
    for token, (row, experts) in enumerate(zip(x, ids)):
        for number, weight in zip(experts, weights[token]):
            if number >= 0:
                out[token] += weight * expert(number, row)
    return out


def received(ep, dispatched):
    """The places of the received rows, by source."""
    counts = numpy.from_dlpack(dispatched.counts)
    offsets = numpy.from_dlpack(dispatched.offsets)
    stride = ep.row_stride
    starts = [stride * source if stride else int(offsets[source]) for source in range(ep.size)]
    return [range(start, start + int(count)) for start, count in zip(starts, counts)]


def run_experts(ep, dispatched, y):
    """Every expert of this rank over its rows, weighted and summed per row: what combine takes."""
    own = ep.experts_on()
    rows, ids = numpy.from_dlpack(dispatched.rows), numpy.from_dlpack(dispatched.ids)
    weights = numpy.from_dlpack(dispatched.weights)
    for places in received(ep, dispatched):
        for place in places:
            y[place] = 0
            for number, weight in zip(ids[place], weights[place]):
                if number in own:
                    y[place] += weight * expert(number, rows[place].astype(numpy.float32))


def plan(**options):
    return anabranch.EpConfig(
        hidden=HIDDEN,
        experts=EXPERTS,
        top_k=TOP_K,
        max_tokens=MOST,
        dispatch_dtype="float32",
        combine_dtype="float32",
        **options,
    )


@pytest.mark.parametrize("mode", ["slotted", "compact"])
@pytest.mark.parametrize("window", [True, False])
def test_dispatch_and_combine(settings, mode, window):
    id_dtype = "int32" if window else "int64"

    def work(world):
        ep = world.expert_parallel(plan(mode=mode, id_dtype=id_dtype))
        for seed in range(3):
            x, ids, weights = batch(world.rank, seed)
            dispatched = ep.dispatch(x, ids.astype(id_dtype), weights)
            world.synchronize()
            arrived = [len(places) for places in received(ep, dispatched)]
            assert dispatched.tokens == tokens_of(world.rank)
            own = numpy.zeros((ep.rows_capacity, HIDDEN), numpy.float32)
            run_experts(ep, dispatched, numpy.from_dlpack(dispatched.combine_rows) if window else own)
            out = numpy.full((tokens_of(world.rank), HIDDEN), 7, numpy.float32)
            ep.combine(dispatched, None if window else own, out=out)
            world.synchronize()
            assert (out == reference(x, ids, weights)).all()
            # Every token came once to each rank that owns one of its experts.
            for source, count in enumerate(arrived):
                owners = [{number * RANKS // EXPERTS for number in row if number >= 0} for row in batch(source, seed)[1]]
                assert count == sum(world.rank in each for each in owners)
        ep.check_ids()

    anabranch.spawn_threads(work, RANKS, settings)


def test_halves_and_two_operations_under_way(settings):
    def work(world):
        ep = world.expert_parallel(plan(slots=2))
        first, second = batch(world.rank, 1), batch(world.rank, 2)
        sent = [ep.dispatch_send(*first), ep.dispatch_send(*second)]
        outs = []
        for half, (x, ids, weights) in zip(sent, (first, second)):
            dispatched = ep.dispatch_recv(half)
            world.synchronize()
            y = numpy.zeros((ep.rows_capacity, HIDDEN), numpy.float32)
            run_experts(ep, dispatched, y)
            out = numpy.zeros_like(x)
            outs.append((ep.combine_send(dispatched, y), out, reference(x, ids, weights)))
        for half, out, expected in outs:
            ep.combine_recv(half, out=out)
            world.synchronize()
            assert (out == expected).all()

    anabranch.spawn_threads(work, RANKS, settings)


def test_a_kept_routing_sends_other_rows_the_same_way(settings):
    """The backward pass: gradients go along the routing of the forward pass."""

    def work(world):
        ep = world.expert_parallel(plan(mode="compact", combine_source="buffer"))
        x, ids, weights = batch(world.rank)
        with ep.dispatch(x, ids, weights) as dispatched:
            routing = ep.routing(dispatched)
            world.synchronize()
            places = received(ep, dispatched)
        gradients = x * 3
        again = ep.dispatch_with(routing, gradients, weights)
        world.synchronize()
        assert received(ep, again) == places
        rows, numbers = numpy.from_dlpack(again.rows), numpy.from_dlpack(again.token_numbers)
        for source, own in enumerate(places):
            for place in own:
                assert (rows[place] == 3 * batch(source)[0][numbers[place, 0]]).all()
        again.release()

    anabranch.spawn_threads(work, RANKS, settings)


def test_rows_are_cast_on_their_way(settings):
    def work(world):
        config = anabranch.EpConfig(
            hidden=128, experts=EXPERTS, top_k=TOP_K, max_tokens=MOST, dispatch_cast="fp8_block", cast_from="float32"
        )
        ep = world.expert_parallel(config)
        x = numpy.full((3, 128), world.rank + 1, numpy.float32)
        ids = numpy.array([[0, 4]] * 3, numpy.int32)
        with ep.dispatch(x, ids) as dispatched:
            world.synchronize()
            assert dispatched.rows.dtype == "float8_e4m3fn" and dispatched.scales.shape[1] == 4
            scales = numpy.from_dlpack(dispatched.scales)
            for source, places in enumerate(received(ep, dispatched)):
                for place in places:
                    scale = scales[place].copy().view(numpy.float32)[0]
                    # 448 is the largest value of the format.
                    assert abs(scale * 448 - (source + 1)) < 1e-5

    anabranch.spawn_threads(work, 2, settings)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ep, x, ids, w: ep.dispatch(x.astype("float64"), ids, w), "x has elements of f64; f32 is needed"),
        (lambda ep, x, ids, w: ep.dispatch(x[:, :32].copy(), ids, w), r"x has shape \[5, 32\]; \[tokens, 64\]"),
        (lambda ep, x, ids, w: ep.dispatch(x, ids.astype("int64"), w), "topk_ids has elements of i64; i32 is needed"),
        (lambda ep, x, ids, w: ep.dispatch(x, ids[:2].copy(), w), r"topk_ids has shape \[2, 2\]; \[5, 2\]"),
        (lambda ep, x, ids, w: ep.dispatch(x, ids, w, x), "scales have shape"),
        (lambda ep, x, ids, w: ep.dispatch(numpy.zeros((99, 64), "float32"), numpy.zeros((99, 2), "int32")), "16"),
    ],
)
def test_wrong_tensors_are_refused(settings, call, words):
    def work(world):
        ep = world.expert_parallel(plan())
        x, ids, weights = batch(0)
        with pytest.raises(anabranch.UsageError, match=words):
            call(ep, x, ids, weights)
        with ep.dispatch(x, ids, weights) as dispatched:
            world.synchronize()
            assert dispatched.tokens == 5
        with pytest.raises(anabranch.UsageError, match="used already"):
            dispatched.rows

    anabranch.spawn_threads(work, 2, settings)


def test_wrong_plans_are_refused(settings):
    with pytest.raises(anabranch.ConfigError, match="mode"):
        plan(mode="wide")
    with pytest.raises(anabranch.ConfigError, match="leave dispatch_dtype out"):
        plan(dispatch_cast="fp8_block")

    def work(world):
        with pytest.raises(anabranch.ConfigError, match="top_k"):
            world.expert_parallel(anabranch.EpConfig(hidden=64, experts=8, top_k=99, max_tokens=16))

    anabranch.spawn_threads(work, 1, settings)


def test_a_refused_combine_keeps_the_dispatch(settings):
    def work(world):
        ep = world.expert_parallel(plan(combine_source="buffer"))
        x, ids, weights = batch(0)
        for _ in range(2):
            dispatched = ep.dispatch(x, ids, weights)
            out = numpy.zeros_like(x)
            with pytest.raises(anabranch.UsageError, match="combine_source"):
                ep.combine(dispatched, out=out)
            y = numpy.zeros((ep.rows_capacity, HIDDEN), numpy.float32)
            with pytest.raises(anabranch.UsageError, match="combine output"):
                ep.combine(dispatched, y, out=out[:2].copy())
            world.synchronize()
            run_experts(ep, dispatched, y)
            sent = ep.combine_send(dispatched, y)
            with pytest.raises(anabranch.UsageError, match="combine output"):
                ep.combine_recv(sent, out=out[:2].copy())
            ep.combine_recv(sent, out=out)
            world.synchronize()
            assert (out == reference(x, ids, weights)).all()

    anabranch.spawn_threads(work, 2, settings)


def test_rows_of_another_type_are_refused(settings):
    def work(world):
        config = anabranch.EpConfig(hidden=64, experts=8, top_k=2, max_tokens=16, dispatch_dtype="fp4")
        ep = world.expert_parallel(config)
        ids = numpy.zeros((8, 2), numpy.int32)
        with pytest.raises(anabranch.UsageError, match="x has elements of f32; u8 is needed"):
            ep.dispatch(numpy.zeros((8, 32), numpy.float32), ids)
        with ep.dispatch(numpy.zeros((8, 32), numpy.uint8), ids) as dispatched:
            world.synchronize()
            assert dispatched.rows.shape[1] == 32 and dispatched.rows.dtype == "u8"
        with pytest.raises(anabranch.UsageError, match="allocate uint8"):
            world.empty(8, "fp4")

    anabranch.spawn_threads(work, 1, settings)
