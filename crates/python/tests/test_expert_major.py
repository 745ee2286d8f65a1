"""Rows grouped by expert, beside a computation of the whole batch in one place."""

import anabranch
import numpy
import pytest
from test_expert_parallel import EXPERTS, HIDDEN, RANKS, batch, expert, plan, reference, tokens_of


def pairs_of(number, seed=0):
    """What an expert gets: rank, token, place, weight and row, in the layout's order."""
    found = []
    for rank in range(RANKS):
        x, ids, weights = batch(rank, seed)
        for token, place in numpy.argwhere(ids == number):
            found.append((rank, token, place, weights[token, place], x[token]))
    return found


@pytest.mark.parametrize("mode", ["slotted", "compact"])
@pytest.mark.parametrize("window", [True, False])
@pytest.mark.parametrize("way", ["one call", "two calls", "halves"])
def test_rows_are_grouped_and_their_sums_combined(settings, mode, window, way):
    def work(world):
        ep = world.expert_parallel(plan(mode=mode))
        layout = ep.expert_major(alignment=4)
        assert layout.experts == ep.experts_on() and layout.capacity % 4 == 0 and layout.scales is None
        for seed in range(3):
            x, ids, weights = batch(world.rank, seed)
            if way == "one call":
                dispatched = layout.dispatch(x, ids, weights)
            else:
                dispatched = ep.dispatch_recv(ep.dispatch_send(x, ids, weights)) if way == "halves" else ep.dispatch(x, ids, weights)
                layout.expand(dispatched)
            world.synchronize()
            rows, counts = numpy.from_dlpack(layout.rows), numpy.from_dlpack(layout.counts)
            sources, of_rows = numpy.from_dlpack(layout.sources), numpy.from_dlpack(layout.weights)
            offsets, slots = numpy.from_dlpack(layout.source_offsets), numpy.from_dlpack(layout.slot_map)
            numbers = numpy.from_dlpack(dispatched.token_numbers)
            y = numpy.full(rows.shape, numpy.nan, numpy.float32)
            for local, number in enumerate(layout.experts):
                expected = pairs_of(number, seed)
                assert counts[local] == len(expected) == offsets[local, -1]
                for place, (rank, token, k, weight, row) in enumerate(expected):
                    received, *source = sources[local, place]
                    assert source == [rank, token, k] and numbers[received, 0] == token
                    assert slots[received, k] == local * layout.capacity + place
                    assert of_rows[local, place] == weight and (rows[local, place] == row).all()
                    assert offsets[local, rank] <= place < offsets[local, rank + 1]
                padded = -(-len(expected) // 4) * 4
                assert (rows[local, len(expected) : padded] == 0).all() and (sources[local, len(expected) : padded] == -1).all()
                y[local, : len(expected)] = expert(number, rows[local, : len(expected)])
            out = numpy.full_like(x, 7)
            sums = None if window else numpy.zeros((ep.rows_capacity, HIDDEN), numpy.float32)
            # The experts of the last batch have twice the weights: powers of two are exact.
            given = 2 * of_rows if seed == 2 else None
            layout.contract(dispatched, y, weights=given, out=sums)
            if way == "halves":
                ep.combine_recv(ep.combine_send(dispatched, sums), out=out)
            else:
                ep.combine(dispatched, sums, out=out)
            world.synchronize()
            assert (out == (1 if given is None else 2) * reference(x, ids, weights)).all()

    anabranch.spawn_threads(work, RANKS, settings)


def test_pairs_beyond_the_capacity_are_left_out(settings):
    def work(world):
        ep = world.expert_parallel(plan())
        layout = ep.expert_major(capacity=1)
        x, ids, weights = batch(world.rank)
        dispatched = ep.dispatch(x, ids, weights)
        layout.expand(dispatched)
        world.synchronize()
        rows, slots = numpy.from_dlpack(layout.rows), numpy.from_dlpack(layout.slot_map)
        y = numpy.stack([expert(number, rows[local]) for local, number in enumerate(layout.experts)])
        dropped = 0
        for local, number in enumerate(layout.experts):
            pairs = len(pairs_of(number))
            assert numpy.from_dlpack(layout.pairs)[local] == pairs and numpy.from_dlpack(layout.counts)[local] == min(pairs, 1)
            dropped += pairs - min(pairs, 1)
        stride, counts = ep.row_stride, numpy.from_dlpack(dispatched.counts)
        came = [row for source in range(RANKS) for row in range(stride * source, stride * source + counts[source])]
        assert (slots[came] == -2).sum() == dropped
        layout.contract(dispatched, y)
        out = numpy.empty_like(x)
        ep.combine(dispatched, out=out)
        world.synchronize()
        kept = {number: pairs_of(number)[0][:3] for number in range(EXPERTS) if pairs_of(number)}
        expected = numpy.zeros_like(x)
        for token, place in numpy.argwhere(ids >= 0):
            number = int(ids[token, place])
            if kept[number] == (world.rank, token, place):
                expected[token] += weights[token, place] * expert(number, x[token])
        assert (out == expected).all()
        return dropped

    assert sum(anabranch.spawn_threads(work, RANKS, settings)) > 0


def test_scales_by_column(settings):
    def work(world):
        rng = numpy.random.default_rng(world.rank)
        ep = world.expert_parallel(plan(scale_bytes=20))
        layouts = {name: ep.expert_major(alignment=4, scale_layout=name) for name in ("rows", "columns", "packed_columns")}
        x, ids, weights = batch(world.rank)
        scales = (2.0 ** rng.integers(-20, 20, (len(x), 5))).astype(numpy.float32)
        with ep.dispatch(x, ids, weights, scales.view(numpy.uint8)) as dispatched:
            for layout in layouts.values():
                layout.expand(dispatched)
            world.synchronize()
            rows, columns, packed = (numpy.from_dlpack(layout.scales) for layout in layouts.values())
        experts, capacity = len(layouts["rows"].experts), layouts["rows"].capacity
        assert columns.shape == (experts, capacity, 5) and columns.strides == (20 * capacity, 4, 4 * capacity) and columns.dtype == numpy.float32
        assert packed.shape == (experts, capacity, 2) and packed.strides == (8 * capacity, 4, 4 * capacity) and packed.dtype == numpy.int32
        for local, pairs in enumerate(numpy.from_dlpack(layouts["rows"].counts)):
            # With the padding.
            count = -(-pairs // 4) * 4
            expected = numpy.ascontiguousarray(rows[local, :count]).view(numpy.float32)
            assert (columns[local, :count] == expected).all()
            exponents = numpy.zeros((count, 8), numpy.uint8)
            exponents[:, :5] = expected.view(numpy.uint32) >> 23
            assert (packed[local, :count] == exponents.view(numpy.int32)).all()
        with pytest.raises(anabranch.ConfigError, match="rows, columns, packed_columns"):
            ep.expert_major(scale_layout="diagonal")

    anabranch.spawn_threads(work, RANKS, settings)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_rows_of_all_experts_one_after_the_other(settings, layout):
    def work(world):
        ep = world.expert_parallel(plan(scale_bytes=20))
        experts, form = ep.contiguous(), {"alignment": 4, "scale_layout": layout, "zero_padding": True}
        local = ep.experts_on()
        x, ids, weights = batch(world.rank)
        scales = numpy.repeat(x[:, :1].astype(numpy.float32), 5, 1)
        slots = numpy.zeros((ep.rows_capacity, ids.shape[1]), numpy.int32)
        counts, starts = numpy.zeros(len(local), numpy.int32), numpy.zeros(len(local) + 1, numpy.int32)
        for kind in ("dispatched", "given", "ones", "in one"):
            dispatched = ep.dispatch(x, ids, weights, scales.view(numpy.uint8))
            # Without places it only counts.
            for places in (0, None):
                places = int(starts[-1]) if places is None else places
                rows, of_rows = numpy.full((places, HIDDEN), numpy.nan, numpy.float32), numpy.full(places, numpy.nan, numpy.float32)
                kept = numpy.zeros((places, 5) if layout == "rows" else (5, -(-places // 4) * 4), numpy.float32)
                if kind == "in one":
                    dispatched.release()
                    outputs = {"rows": rows, "layout": (slots, counts, starts), "row_scales": kept, "row_weights": of_rows}
                    dispatched = experts.dispatch(x, ids, weights, scales.view(numpy.uint8), **outputs, **form)
                else:
                    experts.expand(dispatched, rows, (slots, counts, starts), scales=kept, weights=of_rows, **form)
                world.synchronize()
            assert places <= experts.most_places(alignment=4)
            by_row = kept if layout == "rows" else kept.T
            y = numpy.full(rows.shape, numpy.nan, numpy.float32)
            for n, number in enumerate(local):
                expected, first = pairs_of(number), starts[n]
                assert first % 4 == 0 and counts[n] == len(expected) and starts[n + 1] == first + -(-len(expected) // 4) * 4
                for place, (_, _, _, weight, row) in enumerate(expected, first):
                    assert (rows[place] == row).all() and of_rows[place] == weight and (by_row[place] == row[0]).all()
                assert not rows[first + counts[n] : starts[n + 1]].any() and not of_rows[first + counts[n] : starts[n + 1]].any()
                y[first : first + counts[n]] = expert(number, rows[first : first + counts[n]])
            out = numpy.full_like(x, 7)
            if kind == "ones":
                # The experts apply the weights.
                experts.contract(dispatched, y * of_rows[:, None], slots, weighted=False)
            elif kind == "given":
                # Powers of two are exact.
                experts.contract(dispatched, y / 4, slots, weights=4 * of_rows)
            else:
                experts.contract(dispatched, y, slots)
            ep.combine(dispatched, out=out)
            world.synchronize()
            assert (out == reference(x, ids, weights)).all()
        with ep.dispatch(x, ids, weights, scales.view(numpy.uint8)) as dispatched:
            with pytest.raises(anabranch.UsageError, match="weighted is False"):
                experts.contract(dispatched, y, slots, weights=of_rows, weighted=False)
            with pytest.raises(anabranch.UsageError, match=r"starts has shape"):
                experts.expand(dispatched, rows, (slots, counts, counts), scales=kept, **form)
            with pytest.raises(anabranch.UsageError, match="y has shape"):
                experts.contract(dispatched, y[:, :1].copy(), slots)
            with pytest.raises(anabranch.Error, match="the tensor of scales is missing"):
                experts.expand(dispatched, rows, (slots, counts, starts), **form)

    anabranch.spawn_threads(work, RANKS, settings)


def test_wrong_calls_are_refused(settings):
    def work(world):
        ep, other = world.expert_parallel(plan(slots=2)), world.expert_parallel(plan())
        for options, words in [({"alignment": 3}, "alignment"), ({"capacity": 5, "alignment": 4}, "multiple"), ({"capacity": 10**6}, "capacity")]:
            with pytest.raises(anabranch.ConfigError, match=words):
                ep.expert_major(**options)
        layout = ep.expert_major()
        first, second = ep.dispatch(*batch(0)), ep.dispatch(*batch(0))
        y = numpy.zeros(layout.rows.shape, numpy.float32)
        with pytest.raises(anabranch.UsageError, match="another plan"):
            other.expert_major().expand(first)
        layout.expand(second)
        with pytest.raises(anabranch.UsageError, match="do not hold this dispatch"):
            layout.contract(first, y)
        with pytest.raises(anabranch.UsageError, match="y has shape"):
            layout.contract(second, y[:, :1].copy())
        with pytest.raises(anabranch.UsageError, match="out has shape"):
            layout.contract(second, y, out=numpy.zeros((2, HIDDEN), numpy.float32))
        layout.contract(second, y)
        out = numpy.ones((tokens_of(0), HIDDEN), numpy.float32)
        ep.combine(second, out=out)
        first.release()
        with pytest.raises(anabranch.UsageError, match="used already"):
            layout.expand(first)
        world.synchronize()
        assert (out == 0).all()

    anabranch.spawn_threads(work, 2, settings)


def test_windows_outlive_the_layout(settings):
    def work(world):
        ep = world.expert_parallel(plan())
        layout = ep.expert_major()
        with ep.dispatch(*batch(world.rank)) as dispatched:
            layout.expand(dispatched)
            world.synchronize()
        rows, counts = numpy.from_dlpack(layout.rows), numpy.from_dlpack(layout.counts)
        before = rows[0, : counts[0]].copy()
        del layout
        assert len(before) > 0 and (rows[0, : counts[0]] == before).all()

    anabranch.spawn_threads(work, RANKS, settings)


def test_a_routing_in_the_callers_memory_sends_other_rows_the_same_way(settings):
    def work(world):
        ep = world.expert_parallel(plan())
        x, ids, weights = batch(world.rank)
        memory = numpy.zeros(ep.routing_bytes, numpy.uint8)
        with pytest.raises(anabranch.UsageError, match="routing"):
            ep.routing_in(memory[:-1].copy(), len(x))
        with ep.dispatch(x, ids, weights) as dispatched:
            ep.save_routing(dispatched, memory)
            world.synchronize()
            numbers = numpy.from_dlpack(dispatched.token_numbers).copy()
            counts = numpy.from_dlpack(dispatched.counts).copy()
        copy = memory.copy()
        memory[:] = 0xFF
        with ep.dispatch_with(ep.routing_in(copy, len(x)), x * 3, weights) as again:
            world.synchronize()
            assert (numpy.from_dlpack(again.counts) == counts).all()
            rows = numpy.from_dlpack(again.rows)
            for source, count in enumerate(counts):
                places = range(ep.row_stride * source, ep.row_stride * source + count)
                for place in places:
                    assert (rows[place] == 3 * batch(source)[0][numbers[place, 0]]).all()

    anabranch.spawn_threads(work, RANKS, settings)
