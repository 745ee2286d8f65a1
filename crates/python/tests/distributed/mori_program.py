"""The semantics of mori's operator, and the calls of vLLM and SGLang as their sources make them, on ranks that are processes.

Read in vLLM 030ea52effcb and 001430048e81, SGLang 0202c2670711. Experts are those of a layer whose output is the row times a number of the
expert.
"""

import anabranch.compat.mori.install  # isort: skip
import dataclasses
import gc
import weakref

import anabranch
import mori
import pytest
import torch
import torch.distributed as dist
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
    main,
    picked,
    quantized,
    rows,
    same,
    without_waits,
)

Kernel = mori.ops.EpDispatchCombineKernelType


def operator(rank, size, **options):
    settings = dict(
        data_type=torch.bfloat16,
        rank=rank,
        world_size=size,
        hidden_dim=HIDDEN,
        scale_dim=0,
        scale_type_size=1,
        max_token_type_size=2,
        max_num_inp_token_per_rank=MOST,
        num_experts_per_rank=EXPERTS // size,
        num_experts_per_token=TOP_K,
    )
    return mori.ops.EpDispatchCombineOp(mori.ops.EpDispatchCombineConfig(**{**settings, **options}))


def received(results, given, chosen, size, most=None):
    """Compares the results of a dispatch with what was sent; returns the rows that came."""
    x, weights, _, ids, total = results
    most = size * MOST if most is None else most
    assert x.shape[0] == most and x.is_contiguous() and ids.is_contiguous() and weights.is_contiguous()
    same(total, torch.tensor([len(chosen)], dtype=torch.int32))
    same(weights[: len(chosen)], picked(given, chosen, "weights"))
    same(ids[: len(chosen)], picked(given, chosen, "ids").int())
    same(ids[len(chosen) :], torch.full((most - len(chosen), TOP_K), -1, dtype=torch.int32))
    return x[: len(chosen)]


def layer(given):
    """The layer in one place: each expert e gives (e + 1) / 4 times the row."""
    return given.x.float() * torch.where(given.ids >= 0, given.weights * (given.ids + 1) / 4, 0).sum(1, keepdim=True)


def experts(x, weights, ids, total, own):
    """The output of a rank's experts: garbage where no row came."""
    is_own = (ids >= own[0]) & (ids <= own[-1])
    y = x.float() * torch.where(is_own, weights * (ids + 1) / 4, 0).sum(1, keepdim=True)
    came = torch.arange(len(x))[:, None] < total
    return torch.where(came, y, torch.nan).bfloat16()


def close(out, given, rtol=0.02, atol=0.02):
    torch.testing.assert_close(out.float(), layer(given), rtol=rtol, atol=atol)


@check
def the_group_is_joined_once(rank, size):
    with pytest.raises(anabranch.UsageError, match="not initialized"):
        mori.shmem.shmem_mype()
    torch._C._distributed_c10d._register_process_group("mori", dist.group.WORLD)
    assert mori.shmem.shmem_torch_process_group_init("mori") == 0
    assert (mori.shmem.shmem_mype(), mori.shmem.shmem_npes()) == (rank, size)
    with pytest.raises(anabranch.UsageError, match=f"initialized already, with {size} ranks"):
        mori.shmem.shmem_torch_process_group_init("mori")
    with pytest.raises(anabranch.ConfigError, match=f"rank 0 of {size + 1}; mori.shmem has rank {rank} of {size}"):
        operator(0, size + 1)


@check
def rows_come_by_rank_then_token(rank, size):
    op, addresses = operator(rank, size), set()
    for seed in range(3):
        given = everyone(size, seed)
        own, chosen = given[rank], rows(given, rank)
        results = op.dispatch(own.x, own.weights, None, own.ids, call_local_expert_count=True)
        same(received(results, given, chosen, size), picked(given, chosen))
        assert results[2] is None
        addresses.add(tuple(tensor.data_ptr() for tensor in (*results[:2], *results[3:])))
        ids = picked(given, chosen, "ids")
        same(op.local_expert_count, torch.stack([(ids == expert).sum() for expert in local_experts(rank, size)]).int())
        copies = destinations(own, size).sum(1, keepdim=True)
        # Also the result of the dispatch itself, which is memory of the library.
        out, out_weights = op.combine(results[0], results[1], own.ids)
        same(out[: len(own.x)], own.x * copies)
        same(out_weights[: len(own.x)], own.weights * copies)
        assert out.shape == (MOST, HIDDEN) and out_weights.shape == (MOST, TOP_K)
    assert len(addresses) == 1
    assert (op.max_num_tokens_to_recv(), op.max_num_tokens_to_recv_per_rank()) == (size * MOST, MOST)
    assert (op.max_num_tokens_to_send(), op.max_num_tokens_to_send_per_rank()) == (size * MOST, MOST)


@check
def types_of_rows_and_scales(rank, size):
    given = everyone(size)
    own, chosen = given[rank], rows(given, rank)
    codes = [quantized(each.x, False) for each in given]
    e8m0 = [(each.x[:, : HIDDEN // 32].int() * 37 + torch.arange(HIDDEN // 32)).remainder(251).to(torch.uint8) for each in given]
    half = [each.x.view(torch.uint8)[:, : HIDDEN // 2].contiguous() for each in given]
    fnuz = [each[0].view(torch.uint8).view(torch.float8_e4m3fnuz) for each in codes]
    cases = [
        ([each.x.float() for each in given], [torch.empty(0)] * size),
        ([each[0] for each in codes], [each[1] for each in codes]),
        (fnuz, [each[1][:, :1] for each in codes]),
        ([each[0] for each in codes], [each.view(torch.float8_e8m0fnu) for each in e8m0]),
        # Not whole words.
        ([each[0] for each in codes], [each[:, :3].view(torch.float8_e8m0fnu) for each in e8m0]),
    ]
    if hasattr(torch, "float4_e2m1fn_x2"):
        cases.append(([each.view(torch.float4_e2m1fn_x2) for each in half], [each.view(torch.float8_e8m0fnu) for each in e8m0]))
    for sent, scales in cases:
        has_scales = scales[rank].dim() == 2
        # Column-major, as quantization kernels leave them.
        mine = scales[rank].t().contiguous().t() if has_scales else None
        op = operator(
            rank, size, scale_dim=scales[rank].shape[1] if has_scales else 0, scale_type_size=scales[rank].element_size() if has_scales else 0
        )
        results = op.dispatch(sent[rank], own.weights, mine, own.ids)
        x = received(results, given, chosen, size)
        assert x.dtype == sent[rank].dtype and x.shape[1] == sent[rank].shape[1]
        bits = [each.contiguous().view(torch.uint8) for each in sent]
        same(x.contiguous().view(torch.uint8), torch.stack([bits[row.rank][row.token] for row in chosen]))
        if has_scales:
            assert results[2].dtype == mine.dtype and results[2].shape == (size * MOST, mine.shape[1])
            bits = [each.contiguous().view(torch.uint8) for each in scales]
            same(results[2][: len(chosen)].contiguous().view(torch.uint8), torch.stack([bits[row.rank][row.token] for row in chosen]))
        y = torch.ones(op.max_num_tokens_to_recv(), HIDDEN, dtype=torch.float32 if not has_scales else torch.bfloat16)
        out, _ = op.combine(y, None, own.ids)
        same(out[: len(own.x)], destinations(own, size).sum(1, keepdim=True).expand(-1, HIDDEN).to(y.dtype))


@check
def registered_buffer_is_not_copied(rank, size):
    op = operator(rank, size, use_external_inp_buf=False)
    with pytest.raises(anabranch.UsageError, match="no dispatch yet"):
        op.get_registered_combine_input_buffer(torch.bfloat16)
    for seed in range(2):
        own = everyone(size, seed)[rank]
        x, weights, _, ids, total = op.dispatch(own.x, own.weights, None, own.ids)
        buffer = op.get_registered_combine_input_buffer(torch.bfloat16, hidden_dim=HIDDEN)
        buffer.copy_(experts(x, weights, ids, total, local_experts(rank, size)))
        close(op.combine(buffer, None, own.ids)[0][: len(own.x)], own)
        # Another buffer, by an argument of the call.
        x, weights, _, ids, total = op.dispatch(own.x, own.weights, None, own.ids)
        y = experts(x, weights, ids, total, local_experts(rank, size))
        close(op.combine(y, None, own.ids, use_external_inp_buf=seed)[0][: len(own.x)], own)
    with pytest.raises(anabranch.UsageError, match="combined as"):
        op.get_registered_combine_input_buffer(torch.float32)


@check
def combine_sends_rows_in_the_encodings_of_quant_type(rank, size):
    for quant_type, is_exact in (("fp8_direct_cast", True), ("fp8_blockwise", False), ("fp4_blockwise", True)):
        op = operator(rank, size, quant_type=quant_type)
        own = everyone(size)[rank]
        x, weights, *_ = op.dispatch(own.x, own.weights, None, own.ids)
        out, out_weights = op.combine(x.clone(), weights, own.ids)
        copies = destinations(own, size).sum(1, keepdim=True)
        if is_exact:
            same(out[: len(own.x)], own.x * copies)
        else:
            torch.testing.assert_close(out[: len(own.x)].float(), own.x.float() * copies, rtol=0.07, atol=0)
            assert not len(own.x) or not torch.equal(out[: len(own.x)], own.x * copies)
        same(out_weights[: len(own.x)], own.weights * copies)
        with pytest.raises(anabranch.UsageError, match=quant_type):
            op.get_registered_combine_input_buffer(torch.bfloat16)


@check
def rows_beyond_the_most_are_dropped(rank, size):
    # Rounded up to a multiple of the ranks.
    op = operator(rank, size, max_total_recv_tokens=3 * size - 1 if size > 1 else 3)
    assert op.max_num_tokens_to_recv() == 3 * size
    given = [inputs(each, MOST) for each in range(size)]
    own, chosen = given[rank], rows(given, rank)
    assert len(chosen) > 3 * size
    x, weights, _, ids, total = op.dispatch(own.x, own.weights, None, own.ids)
    came = int(total)
    assert 0 < came <= 3 * size == len(x)
    sent = {(tuple(row.tolist()), tuple(of.tolist())) for row, of in zip(picked(given, chosen)[:, :8], picked(given, chosen, "ids"))}
    assert all((tuple(row.tolist()), tuple(of.tolist())) in sent for row, of in zip(x[:came, :8], ids[:came]))
    out = op.combine(torch.ones(len(x), HIDDEN, dtype=torch.bfloat16), None, own.ids)[0][:MOST, 0]
    everywhere = [torch.empty(1, dtype=torch.int32) for _ in range(size)]
    dist.all_gather(everywhere, total.clone())
    combined = out.float().sum().reshape(1)
    dist.all_reduce(combined)
    assert int(combined) == sum(int(each) for each in everywhere)


@check
def dispatches_without_combine_are_released(rank, size):
    for kernel_type in (Kernel.IntraNode, Kernel.AsyncLL):
        op = operator(rank, size, kernel_type=kernel_type)
        for _ in range(3):
            own = inputs(rank, MOST)
            op.dispatch(own.x, own.weights, None, own.ids)
        op.reset()
        with pytest.raises(anabranch.UsageError, match="no dispatch under way"):
            op.combine(own.x, None, own.ids)
        op.reset()
    with pytest.raises(anabranch.UsageError, match="no combine under way"):
        op.combine_recv()


@check
def wrong_arguments_are_named(rank, size):
    op = operator(rank, size, scale_dim=8, scale_type_size=4)
    own = inputs(rank, 5)
    scales = torch.zeros(5, 8)
    wrong = [
        ((own.x[:, :-8], own.weights, scales, own.ids), rf"input is \(5, {HIDDEN - 8}\) of torch.bfloat16; \[tokens, {HIDDEN}\]"),
        ((own.x.double(), own.weights, scales, own.ids), "torch.float64; allowed are bfloat16"),
        ((own.x, own.weights, scales, own.ids[:, 1:]), r"indices is \(5, 2\); \(5, 3\)"),
        ((own.x, own.weights, scales[:, 1:], own.ids), r"scales is \(5, 7\) of torch.float32; \(5, 8\) with 4 bytes"),
        ((own.x, own.weights, scales.half(), own.ids), r"scales is \(5, 8\) of torch.float16"),
        ((own.x.repeat(3, 1), own.weights, None, own.ids), f"rank {rank} dispatches 15 tokens; max_num_inp_token_per_rank is {MOST}"),
    ]
    for arguments, text in wrong:
        with pytest.raises(anabranch.UsageError, match=text):
            op.dispatch(*arguments)
    with pytest.raises(anabranch.UsageError, match="routing"):
        op.dispatch(own.x, own.weights, None, own.ids, return_routing=True)
    x, weights, _, ids, _ = op.dispatch(own.x, own.weights, scales, own.ids)
    for y, indices, text in ((x.float(), own.ids, "torch.float32; up to"), (x, ids, f"indices has {size * MOST} rows, and rank {rank} dispatched 5")):
        with pytest.raises(anabranch.UsageError, match=text):
            op.combine(y, None, indices)
    with pytest.raises(anabranch.UsageError, match=r"weights is \(\d+, 2\); up to"):
        op.combine(x, weights[:, 1:], own.ids)
    unaligned = torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)
    with pytest.raises(anabranch.UsageError, match="16"):
        op.combine(unaligned, None, own.ids)
    # A refused call changes nothing.
    close(op.combine(experts(x, weights, ids, len(x), local_experts(rank, size)), None, own.ids)[0][:5], own)


@check
def calls_of_vllm(rank, size):
    cache = weakref.WeakValueDictionary()

    def handle(quant_dtype, scale_dim):
        kwargs = dict(
            rank=rank,
            world_size=size,
            data_type=quant_dtype,
            hidden_dim=HIDDEN,
            scale_dim=scale_dim,
            scale_type_size=torch.float32.itemsize,
            max_token_type_size=torch.bfloat16.itemsize,
            max_num_inp_token_per_rank=MOST,
            num_experts_per_rank=EXPERTS // size,
            num_experts_per_token=TOP_K,
            warp_num_per_block=16,
            block_num=80,
            kernel_type=Kernel.IntraNode,
            rdma_block_num=0,
            gpu_per_node=min(8, size),
        )
        key = tuple(sorted(kwargs.items()))
        if key not in cache:
            made = mori.ops.EpDispatchCombineOp(mori.ops.EpDispatchCombineConfig(**kwargs))
            cache[key] = made
        return cache[key]

    own = local_experts(rank, size)
    for blocks in (0, HIDDEN // 128, 1):
        op = handle(torch.float8_e4m3fn if blocks else torch.bfloat16, blocks or HIDDEN // 128)
        assert op is handle(torch.float8_e4m3fn if blocks else torch.bfloat16, blocks or HIDDEN // 128)
        # Two layers, the second without waits of the host.
        for seed in range(2):
            given = everyone(size, seed)[rank]
            topk_ids, output = given.ids.int(), torch.empty_like(given.x)
            a1, scale = given.x, None
            if blocks == 1:
                scale = given.x.float().abs().amax(1, keepdim=True).clamp(min=1e-4) / 448
                a1 = (given.x.float() / scale).to(torch.float8_e4m3fn)
            elif blocks:
                a1, scale = quantized(given.x, False)
            if seed:
                with without_waits():
                    a1, weights, scale, ids, count = op.dispatch(a1, given.weights, scale, topk_ids)
            else:
                a1, weights, scale, ids, count = op.dispatch(a1, given.weights, scale, topk_ids)
            if scale is not None:
                a1 = (a1.float().unflatten(1, (scale.shape[1], -1)) * scale[..., None]).flatten(1)
            y = experts(a1, weights, ids, count, own)
            if seed:
                with without_waits():
                    result = op.combine(y, None, topk_ids)[0]
            else:
                result = op.combine(y, None, topk_ids)[0]
            output.copy_(result[: output.shape[0]])
            close(output, given, 0.07, 0.5 if blocks else 0.02)
    del op
    gc.collect()
    assert not len(cache)


def sglang_operator(rank, size, **options):
    kwargs = dict(
        data_type=torch.bfloat16,
        rank=rank,
        world_size=size,
        hidden_dim=HIDDEN,
        scale_dim=0,
        scale_type_size=torch.float32.itemsize,
        max_token_type_size=torch.bfloat16.itemsize,
        max_num_inp_token_per_rank=MOST,
        num_experts_per_rank=EXPERTS // size,
        num_experts_per_token=TOP_K,
        warp_num_per_block=16,
        block_num=80,
        max_total_recv_tokens=0,
        use_external_inp_buf=True,
        kernel_type=Kernel.IntraNode,
        gpu_per_node=8 if size >= 8 else size,
        rdma_block_num=0,
        num_qp_per_pe=2,
        quant_type="none",
    )
    kwargs |= options
    assert set(kwargs) <= {field.name for field in dataclasses.fields(mori.ops.EpDispatchCombineConfig)}
    return mori.ops.EpDispatchCombineOp(mori.ops.EpDispatchCombineConfig(**kwargs))


@check
def calls_of_sglang_in_normal_mode(rank, size):
    own = local_experts(rank, size)
    fp8 = dict(data_type=torch.float8_e4m3fn, scale_dim=HIDDEN // 128, quant_type="fp8_blockwise")
    for options in ({}, fp8):
        # Two micro-batches have an operator each.
        ops = [sglang_operator(rank, size, **options) for _ in range(2)]
        given = [everyone(size, seed)[rank] for seed in range(2)]
        batches = []
        for op, batch in zip(ops, given):
            x, scale = quantized(batch.x, False) if options else (batch.x, None)
            batches.append(op.dispatch(x, batch.weights, scale, batch.ids.int(), call_local_expert_count=True))
        for op, batch, (x, weights, scales, ids, count) in zip(ops, given, batches):
            here = (ids >= own[0]) & (ids <= own[-1])
            assert int(op.local_expert_count.sum()) == int(here.sum())
            # Rows are cut off behind those that came.
            cut = max(int(count), 1)
            x = x[:cut] if scales is None else (x[:cut].float().unflatten(1, (-1, 128)) * scales[:cut, :, None]).flatten(1)
            y = experts(x, weights[:cut], ids[:cut], count, own)
            out = op.combine(y, None, batch.ids.int())[0]
            close(out[: len(batch.x)], batch, 0.15 if options else 0.02, 1.0 if options else 0.02)


@check
def calls_of_sglang_in_low_latency_mode(rank, size):
    own = local_experts(rank, size)
    op = sglang_operator(rank, size, kernel_type=Kernel.AsyncLL, warp_num_per_block=8, block_num=64, rdma_block_num=32)
    assert op.config.kernel_type is Kernel.AsyncLL and str(op.config.kernel_type) == "AsyncLL"
    for seed in range(3):
        given = everyone(size, seed)[rank]
        x, weights, scales, ids, count = op.dispatch_send(given.x, given.weights, None, given.ids.int())
        with pytest.raises(anabranch.UsageError, match="call dispatch_recv"):
            op.combine_send(x, None, given.ids.int())
        op.dispatch_recv(call_local_expert_count=seed == 1)
        if seed == 1:
            assert int(op.local_expert_count.sum()) == int(((ids >= own[0]) & (ids <= own[-1])).sum())
        results = op.combine_send(experts(x, weights, ids, count, own), None, given.ids.int())
        with pytest.raises(anabranch.UsageError, match="call combine_recv"):
            op.dispatch_send(given.x, given.weights, None, given.ids.int())
        op.combine_recv()
        close(results[0][: len(given.x)], given)
    # Copy engines, in one call after the other.
    x, weights, scales, ids, count = op.dispatch_send(given.x, given.weights, None, given.ids.int(), call_local_expert_count=True)
    op.dispatch_recv()
    combined = op.combine_send(experts(x, weights, ids, count, own), None, given.ids.int())[0]
    op.combine_recv()
    close(combined[: len(given.x)], given)


@check
def ranks_leave_and_join_again(rank, size):
    given = everyone(size)[rank]
    old = operator(rank, size)
    old.dispatch(given.x, given.weights, None, given.ids)
    assert mori.shmem.shmem_finalize() == 0
    with pytest.raises(anabranch.UsageError, match="not initialized"):
        operator(rank, size)
    mori.shmem.shmem_torch_process_group_init("mori")
    op = operator(rank, size)
    x, weights, _, ids, total = op.dispatch(given.x, given.weights, None, given.ids)
    close(op.combine(experts(x, weights, ids, total, local_experts(rank, size)), None, given.ids)[0][: len(given.x)], given)
    mori.shmem.shmem_finalize()


if __name__ == "__main__":
    main()
