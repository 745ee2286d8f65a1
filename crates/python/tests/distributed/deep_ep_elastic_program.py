"""``ElasticBuffer`` on ranks that are processes: every row, place, count and sum beside a reference."""

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
    without_waits,
)

_buffer = None


def buffer() -> deep_ep.ElasticBuffer:
    """One for all checks, with room for plans of both types of rows."""
    global _buffer
    if _buffer is None:
        size = 3 * deep_ep.ElasticBuffer.get_buffer_size_hint(dist.group.WORLD, MOST, HIDDEN)
        _buffer = deep_ep.ElasticBuffer(dist.group.WORLD, size, num_max_tokens_per_rank=MOST, explicitly_destroy=True)
    return _buffer


def dispatch(given, x=None, **options):
    return buffer().dispatch(given.x if x is None else x, topk_idx=given.ids, topk_weights=given.weights, num_experts=EXPERTS, **options)


def up(number, alignment):
    return -(-number // alignment) * alignment


def counts_of(given, rank):
    return [len(rows_of_expert(given, expert)) for expert in local_experts(rank, len(given))]


def places(given, rank, alignment):
    """Where the expanded rows are: of each place its row and k, or ``None``."""
    found = []
    for expert in local_experts(rank, len(given)):
        chosen = rows_of_expert(given, expert)
        found += [(row, given[row.rank].ids[row.token].tolist().index(expert)) for row in chosen]
        found += [None] * (up(len(chosen), alignment) - len(chosen))
    return found


def kept(given):
    """Weights of the experts that exist."""
    return torch.where(given.ids >= 0, given.weights, 0)


def handle_says(handle, given, rank, alignment, waits, most=MOST):
    """The numbers that a handle gives."""
    counts = counts_of(given, rank)
    padded = [up(count, alignment) for count in counts]
    assert handle.num_recv_tokens_per_expert_list == (padded if waits else [])
    assert (handle.num_experts, handle.expert_alignment, handle.num_max_tokens_per_rank) == (EXPERTS, alignment, most)
    same(handle.num_unaligned_recv_tokens_per_expert, torch.tensor(counts, dtype=torch.int32))
    ends = torch.tensor(padded).cumsum(0)
    if handle.do_expand:
        ends = ends - torch.tensor(padded) + torch.tensor(counts)
    same(handle.psum_num_recv_tokens_per_expert, ends.int())
    chosen = rows(given, rank)
    from_ranks = torch.tensor([sum(row.rank == source for row in chosen) for source in range(len(given))])
    same(handle.psum_num_recv_tokens_per_scaleup_rank, from_ranks.cumsum(0).int())
    local, _ = local_ids(given, chosen, rank)
    for row, (source, first, *slots), ids in zip(chosen, handle.recv_src_metadata.tolist(), local.tolist()):
        assert source == row.rank * most + row.token
        assert first == row.rank * TOP_K + next(k for k, expert in enumerate(ids) if expert >= 0)
        at = places(given, rank, alignment) if handle.do_expand else []
        assert slots == [at.index((row, k)) if (row, k) in at else -1 for k in range(TOP_K)]
    same(handle.topk_idx, given[rank].ids)


@check
def rows_come_by_rank_then_token(rank, size):
    for seed, alignment, waits in ((0, 1, True), (1, 128, None), (2, 4, False), (0, 1, False)):
        given = everyone(size, seed)
        chosen = rows(given, rank)
        ids, weights = local_ids(given, chosen, rank)
        x, recv_ids, recv_weights, handle, event = dispatch(
            given[rank], expert_alignment=alignment, do_cpu_sync=waits, async_with_compute_stream=True
        )
        event.current_stream_wait()
        waits = waits is not False
        behind = (0 if waits else size * MOST - len(chosen), TOP_K)
        same(x[: len(chosen)], picked(given, chosen))
        same(recv_ids, torch.cat([ids, ids.new_full(behind, -1)]))
        same(recv_weights, torch.cat([weights, weights.new_zeros(behind)]))
        assert len(x) == len(recv_ids) == handle.num_recv_tokens == len(handle.recv_src_metadata)
        handle_says(handle, given, rank, alignment, waits)
        # What is not of this rank's experts is not summed.
        grads = torch.where(recv_ids >= 0, recv_weights, 7)
        out, out_weights, event = buffer().combine(x, handle, topk_weights=grads)
        assert event.event is None
        same(out, given[rank].x * destinations(given[rank], size).sum(1, keepdim=True))
        same(out_weights, kept(given[rank]))
        bias = (torch.full_like(given[rank].x, 2), torch.full_like(given[rank].x, 3))
        for addend, total in ((bias, 5), (bias[0], 2)):
            again, none, _ = buffer().combine(x, handle, bias=addend)
            same(again, out + total)
            assert none is None


@check
def expanded_rows_come_by_expert(rank, size):
    for seed, alignment, waits in ((0, 1, True), (1, 128, None), (2, 48, False), (3, 16, False)):
        given = everyone(size, seed)
        expected = places(given, rank, alignment)
        x, recv_ids, recv_weights, handle, _ = dispatch(
            given[rank], expert_alignment=alignment, do_cpu_sync=waits, do_expand=True, do_zero_padding=True
        )
        assert recv_ids is None
        handle_says(handle, given, rank, alignment, waits is not False)
        if waits is not False:
            assert len(x) == len(expected)
        else:
            each = EXPERTS // size
            assert len(x) == up(size * MOST * min(TOP_K, each) + (alignment - 1) * each, alignment)
            # Places after those of the experts.
            assert not recv_weights[len(expected) :].any()
        assert len(x) == handle.num_expanded_tokens
        own = list(local_experts(rank, size))
        factors = torch.zeros(len(x), 1)
        for place, source in enumerate(expected):
            if source is None:
                assert not x[place].any() and recv_weights[place] == 0
                continue
            row, k = source
            same(x[place], given[row.rank].x[row.token])
            assert recv_weights[place] == given[row.rank].weights[row.token, k]
            factors[place] = 1 + own.index(int(given[row.rank].ids[row.token, k]))
        # Experts whose output is the row times a number; the padding is not read.
        y = torch.where(factors > 0, x.float() * factors, torch.nan).bfloat16()
        out, out_weights, _ = buffer().combine(y, handle, topk_weights=recv_weights)
        each = EXPERTS // size
        share = torch.where(given[rank].ids >= 0, given[rank].ids % each + 1, 0).sum(1, keepdim=True)
        same(out, (given[rank].x.float() * share).bfloat16())
        same(out_weights, kept(given[rank]))


@check
def without_zeros_the_rows_are_the_same(rank, size):
    given = everyone(size)
    with_zeros, without = (dispatch(given[rank], expert_alignment=16, do_expand=True, do_zero_padding=zeros) for zeros in (True, False))
    for place, source in enumerate(places(given, rank, 16)):
        if source is not None:
            same(without[0][place], with_zeros[0][place])
    same(without[2], with_zeros[2])


@check
def scales_come_with_their_rows(rank, size):
    given = everyone(size)
    sent = [quantized(each.x, False) for each in given]
    chosen = rows(given, rank)
    at = places(given, rank, 4)
    for kind, is_column_major in ((torch.float32, False), (torch.int32, True)):
        scales = sent[rank][1].view(kind).t().contiguous().t()
        (x, recv_scales), _, _, handle, _ = dispatch(given[rank], (sent[rank][0], scales), use_tma_aligned_col_major_sf=is_column_major)
        same(x.float(), torch.stack([sent[row.rank][0][row.token].float() for row in chosen]))
        same(recv_scales.contiguous().view(torch.float32), torch.stack([sent[row.rank][1][row.token] for row in chosen]))
        assert recv_scales.dtype == kind
        assert not is_column_major or recv_scales.stride() == (1, up(len(x), 4)), recv_scales.stride()
        out, _, _ = buffer().combine(torch.ones(len(chosen), HIDDEN, dtype=torch.bfloat16), handle)
        same(out, destinations(given[rank], size).sum(1, keepdim=True).expand(-1, HIDDEN).bfloat16())
        (x, recv_scales), _, _, handle, _ = dispatch(
            given[rank],
            (sent[rank][0], scales),
            use_tma_aligned_col_major_sf=is_column_major,
            expert_alignment=4,
            do_expand=True,
            do_zero_padding=True,
        )
        assert x.dtype == torch.float8_e4m3fn and recv_scales.dtype == kind
        assert not is_column_major or recv_scales.stride() == (1, up(len(x), 4)), recv_scales.stride()
        values = recv_scales.contiguous().view(torch.float32)
        for place, source in enumerate(at):
            if source is None:
                assert not x[place].float().any() and not values[place].any()
                continue
            row, _ = source
            same(x[place], sent[row.rank][0][row.token])
            same(values[place], sent[row.rank][1][row.token])


@check
def handles_send_other_rows_the_same_way(rank, size):
    for do_expand in (False, True):
        for waits in (True, False):
            given = everyone(size)
            first = dispatch(given[rank], do_expand=do_expand, do_cpu_sync=waits, expert_alignment=4)
            handle = first[3]
            # Another dispatch takes the windows.
            other = everyone(size, 5)
            dispatch(other[rank])
            along = [given[source]._replace(x=inputs(source, len(each.x), 7).x, weights=each.weights + 1) for source, each in enumerate(given)]
            x, ids, weights, again, _ = buffer().dispatch(along[rank].x, topk_weights=along[rank].weights, handle=handle, do_expand=do_expand)
            assert again is handle
            chosen = rows(given, rank)
            if do_expand:
                assert ids is None
                for place, source in enumerate(places(given, rank, 4)):
                    if source is not None:
                        row, k = source
                        same(x[place], along[row.rank].x[row.token])
                        assert weights[place] == along[row.rank].weights[row.token, k]
            else:
                same(x[: len(chosen)], picked(along, chosen))
                same(ids, first[1])
                same(weights[: len(chosen)], local_ids(along, chosen, rank)[1])
            assert len(x) == len(first[0])
            _, _, none, _, _ = buffer().dispatch(along[rank].x, handle=handle, do_expand=do_expand)
            assert none is None
            dispatch(other[rank])
            out, out_weights, _ = buffer().combine(x, handle, topk_weights=weights)
            copies = (given[rank].ids >= 0) if do_expand else destinations(given[rank], size)
            same(out, along[rank].x * copies.sum(1, keepdim=True))
            same(out_weights, kept(along[rank]))


@check
def dispatch_with_a_handle_does_not_wait_on_the_host(rank, size):
    given = inputs(rank, MOST)
    # Every token goes to rank 0 alone: the others get no rows.
    given = given._replace(ids=torch.where(given.ids < EXPERTS // size, given.ids, -1))
    for do_expand in (False, True):
        with pytest.raises(AssertionError, match="host waits"), without_waits():
            dispatch(given, do_expand=do_expand)
        x, _, _, handle, _ = dispatch(given, do_expand=do_expand)
        assert bool(len(x)) == (rank == 0)
        with without_waits():
            again, _, weights, _, _ = buffer().dispatch(given.x, topk_weights=given.weights, handle=handle, do_expand=do_expand)
            out, _, _ = buffer().combine(again, handle)
        same(again, x)
        assert len(weights) == len(x)
        copies = given.ids >= 0 if do_expand else destinations(given, size)
        same(out, given.x * copies.sum(1, keepdim=True))


@check
def statistics_and_copies(rank, size):
    given = everyone(size)
    stats = torch.ones(EXPERTS // size, dtype=torch.int32)
    _, _, _, handle, _ = dispatch(given[rank], cumulative_local_expert_recv_stats=stats, expert_alignment=128)
    expected = torch.tensor(counts_of(given, rank), dtype=torch.int32)
    same(stats, expected + 1)
    buffer().dispatch(given[rank].x, handle=handle, cumulative_local_expert_recv_stats=stats)
    same(stats, 2 * expected + 1)
    assert handle.topk_idx.data_ptr() != given[rank].ids.data_ptr() or not len(given[rank].ids)
    _, _, _, handle, _ = dispatch(given[rank], do_handle_copy=False)
    assert handle.topk_idx is given[rank].ids


@check
def other_numbers_of_tokens_take_the_same_plan(rank, size):
    given = [inputs(source, 3, 1) for source in range(size)]
    plans = dict(buffer()._plans)
    for most in (4, 2 * MOST):
        for do_expand in (False, True):
            x, ids, _, handle, _ = dispatch(given[rank], num_max_tokens_per_rank=most, do_cpu_sync=False, do_expand=do_expand)
            assert buffer()._plans == plans
            if not do_expand:
                assert len(x) == most * size
                same(ids[len(rows(given, rank)) :], torch.full((len(x) - len(rows(given, rank)), TOP_K), -1))
            handle_says(handle, given, rank, 1, False, most=most)
            copies = (given[rank].ids >= 0) if do_expand else destinations(given[rank], size)
            same(buffer().combine(x, handle)[0], given[rank].x * copies.sum(1, keepdim=True))
    with pytest.raises(anabranch.UsageError, match=f"rank {rank} dispatches 3 tokens; num_max_tokens_per_rank is 2 in the call and {MOST} in the buffer"):
        dispatch(given[rank], num_max_tokens_per_rank=2)
    with pytest.raises(anabranch.UsageError, match=f"rank {rank} dispatches {MOST + 1} tokens"):
        dispatch(inputs(rank, MOST + 1), num_max_tokens_per_rank=2 * MOST)


@check
def sizes_and_attributes(rank, size):
    one = buffer()
    assert (one.rank_idx, one.num_ranks, one.group, one.num_max_tokens_per_rank) == (rank, size, dist.group.WORLD, MOST)
    assert (one.num_scaleout_ranks, one.num_scaleup_ranks, one.scaleout_rank_idx, one.scaleup_rank_idx) == (1, size, 0, rank)
    hint = deep_ep.ElasticBuffer.get_buffer_size_hint(dist.group.WORLD, MOST, HIDDEN, num_topk=TOP_K, use_fp8_dispatch=True)
    taken = [plan.native.heap_bytes for plan in one._plans.values()]
    assert len(taken) >= 2 and max(taken) <= hint <= 2 * max(taken) + (4 << 20), (taken, hint)
    assert one.num_bytes == 3 * hint and hint % (2 << 20) == 0
    sms = one.get_theoretical_num_sms(num_experts=EXPERTS, num_topk=TOP_K)
    assert sms >= 4 and 0 < one.get_theoretical_num_qps(sms) <= one.num_allocated_qps
    one.barrier()
    event = one.capture()
    given = inputs(rank, 4)
    *_, handle, none = dispatch(given, previous_event=event, num_sms=sms, num_qps=1)
    assert none.event is None and handle.num_sms == sms
    x = torch.zeros(handle.num_recv_tokens, HIDDEN, dtype=torch.bfloat16)
    *_, event = one.combine(x, handle, previous_event=event, async_with_compute_stream=True, allocate_on_comm_stream=True)
    called = []
    event.register_hook_after_wait(lambda: called.append(1))
    with event(release_handle=True):
        assert not called
    assert called == [1] and event.event is None


@check
def wrong_calls_are_refused(rank, size):
    given = inputs(rank, 4)
    for name, value in (("num_cpu_bytes", 4096), ("comm", object())):
        with pytest.raises(anabranch.UsageError, match=f"ElasticBuffer: {name}="):
            deep_ep.ElasticBuffer(dist.group.WORLD, 1 << 20, **{name: value})
    with pytest.raises(anabranch.UsageError, match="hidden is 0; give both, or num_bytes"):
        deep_ep.ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=4)
    with pytest.raises(anabranch.UsageError, match="dispatch: use_nvfp4=True"):
        dispatch(given, use_nvfp4=True, x_global_scale=None)
    with pytest.raises(anabranch.UsageError, match="num_experts is 0; a new dispatch needs"):
        buffer().dispatch(given.x, topk_idx=given.ids)
    with pytest.raises(anabranch.UsageError, match="do_zero_padding goes with do_expand"):
        dispatch(given, do_zero_padding=True)
    with pytest.raises(anabranch.UsageError, match="x is of torch.float32"):
        dispatch(given, given.x.float())
    x, _, weights, handle, _ = dispatch(given)
    for options in ({"topk_idx": given.ids}, {"do_cpu_sync": True}):
        with pytest.raises(anabranch.UsageError, match="not with a handle"):
            buffer().dispatch(given.x, handle=handle, **options)
    for options in ({"do_expand": True}, {"num_experts": 2 * EXPERTS}, {"expert_alignment": 8}, {"num_max_tokens_per_rank": 5}):
        with pytest.raises(anabranch.UsageError, match=f"{next(iter(options))}=.*, its handle"):
            buffer().dispatch(given.x, handle=handle, **options)
    with pytest.raises(anabranch.UsageError, match="the handle is of a dispatch of 4 tokens"):
        buffer().dispatch(given.x[:3], handle=handle)
    with pytest.raises(anabranch.UsageError, match="combine: x is .* as the dispatch gave"):
        buffer().combine(torch.zeros(len(x) + 1, HIDDEN, dtype=torch.bfloat16), handle)
    with pytest.raises(anabranch.UsageError, match="topk_weights has shape"):
        buffer().combine(x, handle, topk_weights=weights[:, 0])
    same(buffer().combine(x, handle)[0], given.x * destinations(given, size).sum(1, keepdim=True))


@check
def buffers_end_with_their_world(rank, size):
    global _buffer
    buffer().destroy()
    _buffer = None
    # The heap has the size that the hint says, which is enough.
    _buffer = deep_ep.ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=MOST, hidden=HIDDEN, num_topk=TOP_K, explicitly_destroy=True)
    given = everyone(size)
    x, *_, handle, _ = dispatch(given[rank])
    same(x, picked(given, rows(given, rank)))
    same(buffer().combine(x, handle)[0], given[rank].x * destinations(given[rank], size).sum(1, keepdim=True))
    buffer().destroy()
    _buffer = None


if __name__ == "__main__":
    main()
