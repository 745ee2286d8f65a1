"""The semantics that DeepEP documents, on ranks that are processes: every row beside a reference."""

import anabranch
import pytest
import torch
import torch.distributed as dist
from anabranch.compat import deep_ep
from deep_ep_reference import (
    EXPERTS,
    HIDDEN,
    MOST,
    TOP_K,
    check,
    destinations,
    everyone,
    inputs,
    local_experts,
    local_ids,
    main,
    picked,
    quantized,
    rows,
    rows_of_expert,
    same,
)

_buffer = None


def buffer() -> deep_ep.Buffer:
    """One for all checks."""
    global _buffer
    if _buffer is None:
        _buffer = deep_ep.Buffer(dist.group.WORLD, 32 << 20, explicitly_destroy=True)
    return _buffer


def dispatch(given, x=None, **options):
    layout = buffer().get_dispatch_layout(given.ids, EXPERTS)
    return buffer().dispatch(
        given.x if x is None else x,
        num_tokens_per_rank=layout[0],
        num_tokens_per_rdma_rank=layout[1],
        num_tokens_per_expert=layout[2],
        is_token_in_rank=layout[3],
        topk_idx=given.ids,
        topk_weights=given.weights,
        **options,
    )


@check
def layout_counts_tokens(rank, size):
    given = inputs(rank, MOST)
    per_rank, per_node, per_expert, in_rank, event = buffer().get_dispatch_layout(given.ids, EXPERTS)
    expected = destinations(given, size)
    same(in_rank, expected)
    same(per_rank, expected.sum(0, dtype=torch.int32))
    same(per_expert, torch.tensor([(given.ids == expert).sum() for expert in range(EXPERTS)], dtype=torch.int32))
    assert per_node is None and event.event is None
    with pytest.raises(ValueError, match="async_finish"):
        event.current_stream_wait()
    event = buffer().get_dispatch_layout(given.ids, EXPERTS, async_finish=True)[4]
    assert event.event is not None
    # A call that waits for an event calls its hook, once.
    called = []
    event.register_hook_after_wait(lambda: called.append(1))
    for _ in range(2):
        buffer().get_dispatch_layout(given.ids, EXPERTS, previous_event=event)
        assert called == [1]
    buffer().get_dispatch_layout(given.ids, EXPERTS, previous_event=deep_ep.EventOverlap())


@check
def rows_come_by_rank_then_token(rank, size):
    for seed, alignment in ((0, 1), (1, 4), (2, 128)):
        given = everyone(size, seed)
        chosen = rows(given, rank)
        ids, weights = local_ids(given, chosen, rank)
        x, recv_ids, recv_weights, counts, handle, event = dispatch(given[rank], expert_alignment=alignment, async_finish=True)
        event.current_stream_wait()
        same(x, picked(given, chosen))
        same(recv_ids, ids)
        same(recv_weights, weights)
        pairs = [int((ids == expert).sum()) for expert in range(EXPERTS // size)]
        assert counts == [-(-count // alignment) * alignment for count in pairs], (counts, pairs)
        out, out_weights, _ = buffer().combine(x, handle)
        same(out, given[rank].x * destinations(given[rank], size).sum(1, keepdim=True))
        assert out_weights is None


@check
def scales_come_with_their_rows(rank, size):
    given = everyone(size)
    sent = [quantized(each.x, False) for each in given]
    chosen = rows(given, rank)
    for kind in (torch.float32, torch.int32):
        # Column-major, as quantization kernels leave them.
        scales = sent[rank][1].view(kind).t().contiguous().t()
        (x, recv_scales), _, _, _, handle, _ = dispatch(given[rank], (sent[rank][0], scales))
        expected = [torch.stack([sent[row.rank][part][row.token].float() for row in chosen]) for part in (0, 1)]
        same(x, expected[0].to(torch.float8_e4m3fn))
        same(recv_scales.view(torch.float32), expected[1])
        assert recv_scales.dtype == kind
        (again, scales_again), *rest = buffer().dispatch((sent[rank][0], scales), handle=handle)
        same(again, x)
        same(scales_again, recv_scales)
        assert rest[:4] == [None] * 4
        out, _, _ = buffer().combine(torch.ones(len(chosen), HIDDEN, dtype=torch.bfloat16), handle)
        same(out, destinations(given[rank], size).sum(1, keepdim=True).expand(-1, HIDDEN).bfloat16())


@check
def combine_sums_weights_then_adds_bias(rank, size):
    given = everyone(size)
    x, _, weights, _, handle, _ = dispatch(given[rank])
    bias = (torch.full_like(given[rank].x, 2), torch.full_like(given[rank].x, 3))
    expected = given[rank].x * destinations(given[rank], size).sum(1, keepdim=True)
    for addend, total in ((bias, 5), (bias[0], 2), (None, 0)):
        # The same handle each time: its windows are the handle's in the first round only.
        out, out_weights, _ = buffer().combine(x, handle, topk_weights=weights, bias=addend)
        same(out, expected + total)
        same(out_weights, torch.where(given[rank].ids >= 0, given[rank].weights, 0))


@check
def handles_outlive_their_windows(rank, size):
    given = [everyone(size, seed) for seed in range(3)]
    results = [dispatch(each[rank]) for each in given]
    for index in (1, 2, 0):
        x, *_, handle, _ = results[index]
        same(x, picked(given[index], rows(given[index], rank)))
        along = [inputs(source, len(each.x), 7 + index).x for source, each in enumerate(given[index])]
        again = buffer().dispatch(along[rank], handle=handle)[0]
        same(again, picked([each._replace(x=other) for each, other in zip(given[index], along)], rows(given[index], rank)))
        same(buffer().combine(x, handle)[0], given[index][rank].x * destinations(given[index][rank], size).sum(1, keepdim=True))


@check
def worst_case_rows_are_padded(rank, size):
    given = everyone(size)
    chosen = rows(given, rank)
    ids, weights = local_ids(given, chosen, rank)
    for most in (size * MOST + 5, size * MOST, size * MOST - 1):
        x, recv_ids, recv_weights, counts, handle, _ = dispatch(given[rank], num_worst_tokens=most)
        assert x.shape == (most, HIDDEN) and counts == []
        same(x[: len(chosen)], picked(given, chosen))
        same(recv_ids, torch.cat([ids, ids.new_full((most - len(chosen), TOP_K), -1)]))
        same(recv_weights[: len(chosen)], weights)
        out, _, _ = buffer().combine(x, handle)
        same(out, given[rank].x * destinations(given[rank], size).sum(1, keepdim=True))


@check
def rows_beyond_the_worst_case_are_dropped(rank, size):
    given = everyone(size)
    most = size
    kept = [rows(given, destination)[:most] for destination in range(size)]
    x, recv_ids, _, _, handle, _ = dispatch(given[rank], num_worst_tokens=most)
    same(x[: len(kept[rank])], picked(given, kept[rank]))
    same(recv_ids[: len(kept[rank])], local_ids(given, kept[rank], rank)[0])
    out, _, _ = buffer().combine(x, handle)
    copies = torch.tensor([sum((rank, token) in of for of in kept) for token in range(len(given[rank].x))], dtype=torch.int64)
    same(out, given[rank].x * copies[:, None])


def low_latency(given, **options):
    return buffer().low_latency_dispatch(given.x, given.ids, MOST, EXPERTS, **options)


def rows_are(given, rank, recv, counts, expected):
    """Rows by expert, from tensors of each rank's tokens."""
    for local, expert in enumerate(local_experts(rank, len(given))):
        chosen = rows_of_expert(given, expert)
        assert counts[local] == len(chosen), (expert, counts, len(chosen))
        want = torch.stack([expected[row.rank][row.token] for row in chosen]) if chosen else recv[local, :0]
        same(recv[local, : len(chosen)], want)


def weighted(given):
    """Sums of identity experts."""
    return (given.x.float() * torch.where(given.ids >= 0, given.weights, 0).sum(1, keepdim=True)).bfloat16()


@check
def low_latency_rows_come_by_expert(rank, size):
    stats, totals = torch.zeros(EXPERTS // size, dtype=torch.int32), torch.zeros(EXPERTS // size, dtype=torch.int32)
    for seed, in_parts in ((0, False), (1, True), (2, True)):
        given = everyone(size, seed)
        recv, counts, handle, event, hook = low_latency(
            given[rank], use_fp8=False, cumulative_local_expert_recv_stats=stats, return_recv_hook=in_parts, async_finish=not in_parts
        )
        assert (hook is not None) == in_parts == (event.event is None)
        if in_parts:
            hook()
            with pytest.raises(anabranch.UsageError, match="called already"):
                hook()
        assert recv.shape == (EXPERTS // size, size * MOST, HIDDEN) and counts.dtype == torch.int32
        rows_are(given, rank, recv, counts, [each.x for each in given])
        totals += counts
        same(stats, totals)
        out = torch.empty_like(given[rank].x)
        combined, _, hook = buffer().low_latency_combine(recv, given[rank].ids, given[rank].weights, handle, return_recv_hook=in_parts, out=out)
        assert combined is out
        if in_parts:
            hook()
        same(out, weighted(given[rank]))
        with pytest.raises(anabranch.UsageError, match="combined already"):
            buffer().low_latency_combine(recv, given[rank].ids, given[rank].weights, handle)


@check
def low_latency_scales_in_each_form(rank, size):
    given = everyone(size)
    for options in ({}, {"round_scale": True}, {"round_scale": True, "use_ue8m0": True}):
        is_rounded, is_packed = options.get("round_scale", False), options.get("use_ue8m0", False)
        (recv, scales), counts, handle, _, _ = low_latency(given[rank], **options)
        sent = [quantized(each.x, is_rounded) for each in given]
        if is_rounded:
            rows_are(given, rank, recv, counts, [codes for codes, _ in sent])
        columns = HIDDEN // (512 if is_packed else 128)
        assert scales.shape == (EXPERTS // size, size * MOST, columns) and scales.dtype == (torch.int32 if is_packed else torch.float32)
        assert scales.stride()[1:] == (1, size * MOST), scales.stride()
        packed = [(each.view(torch.int32) >> 23).to(torch.uint8).view(torch.int32) if is_packed else each for _, each in sent]
        if is_rounded:
            rows_are(given, rank, scales, counts, packed)
        else:
            # The native cast multiplies by an inverse: a code may be the next one.
            values = recv.float().unflatten(-1, (-1, 128)) * scales[..., None]
            for local, expert in enumerate(local_experts(rank, size)):
                want = picked(given, rows_of_expert(given, expert)).float()
                torch.testing.assert_close(values[local, : len(want)].flatten(1), want, rtol=0.04, atol=0.01)
                torch.testing.assert_close(scales[local, : len(want)], want.unflatten(-1, (-1, 128)).abs().amax(-1) / 448, rtol=1e-6, atol=0)
        y = torch.ones(recv.shape, dtype=torch.bfloat16)
        out, _, _ = buffer().low_latency_combine(y, given[rank].ids, given[rank].weights, handle)
        same(out, weighted(given[rank]._replace(x=torch.ones_like(given[rank].x))))


@check
def hooks_of_two_batches_in_any_order(rank, size):
    given = [everyone(size, seed) for seed in (3, 4)]
    for first, second in ((0, 1), (1, 0)):
        # Ranks may call the hooks in different orders.
        order = (first, second) if rank % 2 else (second, first)
        sent = [low_latency(each[rank], use_fp8=False, return_recv_hook=True) for each in given]
        for index in order:
            sent[index][4]()
        for index in (0, 1):
            rows_are(given[index], rank, sent[index][0], sent[index][1], [each.x for each in given[index]])
        combined = [
            buffer().low_latency_combine(recv, each[rank].ids, each[rank].weights, handle, return_recv_hook=True)
            for each, (recv, _, handle, _, _) in zip(given, sent)
        ]
        for index in order:
            combined[index][2]()
        for index in (0, 1):
            same(combined[index][0], weighted(given[index][rank]))


@check
def two_later_dispatches_take_the_place_of_one(rank, size):
    given = everyone(size)
    sent = [low_latency(given[rank], use_fp8=False, return_recv_hook=True) for _ in range(3)]
    with pytest.raises(anabranch.UsageError, match="taken its place"):
        sent[0][4]()
    sent[2][4]()
    with pytest.raises(anabranch.UsageError, match="hook was not called"):
        buffer().low_latency_combine(sent[1][0], given[rank].ids, given[rank].weights, sent[1][2])
    sent[1][4]()
    for index in (2, 1):
        recv, counts, handle, _, _ = sent[index]
        rows_are(given, rank, recv, counts, [each.x for each in given])
        same(buffer().low_latency_combine(recv, given[rank].ids, given[rank].weights, handle)[0], weighted(given[rank]))


@check
def zero_copy_combines_from_its_buffer(rank, size):
    given = everyone(size)
    recv, _, handle, _, _ = low_latency(given[rank], use_fp8=False)
    with pytest.raises(anabranch.UsageError, match="get_next_low_latency_combine_buffer"):
        buffer().low_latency_combine(recv, given[rank].ids, given[rank].weights, handle, zero_copy=True)
    buffer().get_next_low_latency_combine_buffer(handle)[:] = 2 * recv
    out, _, _ = buffer().low_latency_combine(recv, given[rank].ids, given[rank].weights, handle, zero_copy=True)
    same(out, 2 * weighted(given[rank]))


@check
def plans_take_what_the_hints_say(rank, size):
    config = deep_ep.Buffer.get_dispatch_config(size)
    hint = config.get_nvl_buffer_size_hint(2 * HIDDEN, size)
    taken = [plan.native.heap_bytes for plan in buffer()._normal.values()]
    assert taken and max(taken) <= hint <= 2 * max(taken) + (1 << 20), (taken, hint)
    assert config.get_rdma_buffer_size_hint(2 * HIDDEN, size) == 0
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(MOST, HIDDEN, size, EXPERTS)
    taken = [plan.native.heap_bytes for plan in buffer()._low_latency.values()]
    assert taken and max(taken) <= hint <= 2 * max(taken) + (1 << 20), (taken, hint)


@check
def masks_leave_ranks_out(rank, size):
    if size == 1:
        return
    masking = deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True, enable_shrink=True)
    status = torch.full((size,), 7, dtype=torch.int32)
    masking.low_latency_query_mask_buffer(status)
    same(status, torch.zeros(size, dtype=torch.int32))
    last, given = size - 1, everyone(size)

    def round_trip():
        recv, counts, handle, _, _ = masking.low_latency_dispatch(given[rank].x, given[rank].ids, MOST, EXPERTS, use_fp8=False)
        return counts.clone(), masking.low_latency_combine(recv, given[rank].ids, given[rank].weights, handle)[0]

    def without_the_last():
        counts, out = round_trip()
        others = [each if source != last else each._replace(x=each.x[:0], ids=each.ids[:0]) for source, each in enumerate(given)]
        assert counts.tolist() == [len(rows_of_expert(others, expert)) for expert in local_experts(rank, size)]
        ids = torch.where(given[rank].ids < last * EXPERTS // size, given[rank].ids, -1)
        same(out, weighted(given[rank]._replace(ids=ids)))

    def all_take_part():
        masking.low_latency_query_mask_buffer(status)
        same(status, torch.zeros(size, dtype=torch.int32))
        same(round_trip()[1], weighted(given[rank]))

    all_take_part()
    # The rank that comes back had fewer operations than the others. It names itself.
    for come_back in (lambda: masking.low_latency_update_mask_buffer(last, False), masking.low_latency_clean_mask_buffer):
        if rank != last:
            masking.low_latency_update_mask_buffer(last, True)
            masking.low_latency_query_mask_buffer(status)
            same(status, torch.tensor([0] * last + [1], dtype=torch.int32))
            without_the_last()
        come_back()
        all_take_part()
    if size == 4:
        # Ranks 0 and 1 without the others, then with one of them.
        if rank < 2:
            for other in (2, 3):
                masking.low_latency_update_mask_buffer(other, True)
            round_trip()
        if rank == 2:
            masking.low_latency_update_mask_buffer(3, True)
        if rank != 3:
            masking.low_latency_update_mask_buffer(2, False)
            masking.low_latency_query_mask_buffer(status)
            same(status, torch.tensor([0, 0, 0, 1], dtype=torch.int32))
            without_the_last()
        masking.low_latency_clean_mask_buffer()
        all_take_part()
    # A rank that has masked all others does not come back by itself.
    for other in set(range(size)) - {rank}:
        masking.low_latency_update_mask_buffer(other, True)
    with pytest.raises(anabranch.UsageError, match=f"rank {rank} has masked all {size - 1} other ranks"):
        masking.low_latency_update_mask_buffer(rank, False)
    masking.low_latency_query_mask_buffer(status)
    same(status, torch.tensor([int(other != rank) for other in range(size)], dtype=torch.int32))
    masking.low_latency_clean_mask_buffer()
    all_take_part()
    for wrong, problem in ((rank, "cannot mask itself"), (size, f"rank {size} is none of the {size} ranks")):
        with pytest.raises(anabranch.UsageError, match=problem):
            masking.low_latency_update_mask_buffer(wrong, True)
    with pytest.raises(anabranch.UsageError, match="enable_shrink"):
        buffer().low_latency_query_mask_buffer(status)
    masking.destroy()


@check
def unknown_keywords_are_refused_by_name(rank, size):
    given = inputs(rank, 4)
    recv, _, handle, _, _ = low_latency(given, use_fp8=False, use_nvfp4=False, x_global_scale=None)
    signal = torch.zeros(4, dtype=torch.int32)
    for name, value in (("overlap", True), ("comp_signal", signal), ("block_m", 128), ("use_logfmt", True), ("combine_wait_recv_cost_stats", signal)):
        with pytest.raises(anabranch.UsageError, match=f"low_latency_combine: {name}="):
            buffer().low_latency_combine(recv, given.ids, given.weights, handle, **{name: value})
    overlap = {"overlap": False, "packed_recv_count": None, "comp_signal": None, "block_m": 64, "threshold": 0, "num_sms": 3}
    buffer().low_latency_combine(recv, given.ids, given.weights, handle, **overlap)
    for name, value in (("use_nvfp4", True), ("x_global_scale", signal), ("dispatch_wait_recv_cost_stats", signal)):
        with pytest.raises(anabranch.UsageError, match=f"low_latency_dispatch: {name}="):
            low_latency(given, **{name: value})
    with pytest.raises(anabranch.UsageError, match="Buffer: comm="):
        deep_ep.Buffer(dist.group.WORLD, comm=object())


@check
def wrong_calls_are_refused(rank, size):
    given = inputs(rank, 4)
    with pytest.raises(anabranch.UsageError, match=f"rank {rank} dispatches {MOST + 1} tokens; at most {MOST}"):
        dispatch(inputs(rank, MOST + 1))
    with pytest.raises(anabranch.UsageError, match="x is of torch.float32"):
        dispatch(given, given.x.float())
    with pytest.raises(anabranch.UsageError, match="needs topk_idx"):
        buffer().dispatch(given.x)
    with pytest.raises(anabranch.UsageError, match="use_ue8m0 needs"):
        low_latency(given, use_ue8m0=True)
    if size > 1:
        with pytest.raises(anabranch.UsageError, match=f"num_experts is {EXPERTS + 1}"):
            buffer().get_dispatch_layout(given.ids, EXPERTS + 1)
    # Refused before the weights travel: the other ranks are not one call ahead.
    recv, _, handle, _, _ = low_latency(given, use_fp8=False)
    if rank == 0:
        for x, weights, options, match in (
            (recv.float(), given.weights, {}, "x is .* of torch.float32"),
            (recv[:, 1:], given.weights, {}, "x is "),
            (recv, given.weights.double(), {}, "topk_weights is .* of torch.float64"),
            (recv, given.weights, {"out": torch.zeros(5, HIDDEN, dtype=torch.bfloat16)}, "out is \\(5, "),
            (recv, given.weights, {"out": torch.zeros(4, 2 * HIDDEN, dtype=torch.bfloat16)[:, ::2]}, "out has strides"),
        ):
            with pytest.raises(anabranch.UsageError, match=match):
                buffer().low_latency_combine(x, given.ids, weights, handle, **options)
    same(buffer().low_latency_combine(recv, given.ids, given.weights, handle)[0], weighted(given))
    x, _, _, _, handle, _ = dispatch(given)
    with pytest.raises(anabranch.UsageError, match=f"x has {len(x) + 1} rows; the handle's dispatch brought {len(x)}"):
        buffer().combine(torch.zeros(len(x) + 1, HIDDEN, dtype=torch.bfloat16), handle)
    with pytest.raises(anabranch.UsageError, match="x has 3 rows; the handle is of a dispatch of 4 tokens"):
        buffer().dispatch(given.x[:3], handle=handle)
    buffer().combine(x, handle)


@check
def buffers_end_with_their_world(rank, size):
    global _buffer
    buffer().destroy()
    _buffer = None
    given = everyone(size)
    for of in (deep_ep.Buffer, deep_ep.ElasticBuffer):
        # A buffer that is destroyed twice does not end the world of another one.
        x, _, _, _, handle, _ = dispatch(given[rank])
        other = of(dist.group.WORLD, 1 << 20)
        other.destroy()
        other.destroy()
        same(x, picked(given, rows(given, rank)))
        same(buffer().combine(x, handle)[0], given[rank].x * destinations(given[rank], size).sum(1, keepdim=True))
    buffer().destroy()


if __name__ == "__main__":
    main()
