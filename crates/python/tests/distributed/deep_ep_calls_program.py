"""The calls of vLLM, SGLang and Megatron-LM as their sources make them: the same keywords, shapes and order.

Read in vLLM 055e47c28003, 001430048e81 and 02bd2a494f5c, SGLang 003a81bf2870 and 0134da0b075f, Megatron-LM 02ad939ba9d1. Experts are those of
a layer whose output is the row times a number of the expert.
"""

import anabranch.compat.deep_ep.install  # isort: skip
import torch
import torch.distributed as dist
from deep_ep import Buffer, Config, ElasticBuffer, EPHandle
from deep_ep.utils import EventHandle, EventOverlap
from deep_ep_reference import EXPERTS, HIDDEN, MOST, check, inputs, local_experts, main, quantized


def tokens(rank):
    return inputs(rank, (MOST, 5, 0, 7)[rank % 4])


def layer(given):
    """The layer in one place: each expert e gives (e + 1) / 4 times the row."""
    factors = torch.where(given.ids >= 0, given.weights * (given.ids + 1) / 4, 0).sum(1, keepdim=True)
    return given.x.float() * factors


def close(out, given):
    torch.testing.assert_close(out.float(), layer(given), rtol=0.02, atol=0.02)


def by_row(rows, ids, weights, first):
    """The experts' sum of each row of normal mode, with weights."""
    factors = torch.where(ids >= 0, weights * (ids + first + 1) / 4, 0).sum(1, keepdim=True)
    return (rows.float() * factors).bfloat16()


def by_expert(rows, own):
    return (rows.float() * (torch.tensor(own)[:, None, None] + 1) / 4).bfloat16()


@check
def vllm_high_throughput(rank, size):
    buffer = Buffer(
        group=dist.group.WORLD, num_nvl_bytes=64 << 20, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=1, explicitly_destroy=True
    )
    Buffer.set_num_sms(20)
    own = local_experts(rank, size)
    given = tokens(rank)
    handles = [None, None]
    for ubatch, is_quantized in ((0, False), (1, True)):
        previous = buffer.capture()
        per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(
            topk_idx=given.ids, num_experts=EXPERTS, previous_event=previous, async_finish=False, allocate_on_comm_stream=False
        )
        data = quantized(given.x, False) if is_quantized else given.x
        data, ids, weights, counts, handles[ubatch], event = buffer.dispatch(
            x=data,
            handle=None,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=given.ids,
            topk_weights=given.weights,
            expert_alignment=1,
            config=Buffer.get_dispatch_config(size),
            previous_event=previous,
            async_finish=True,
            allocate_on_comm_stream=False,
        )
        if event.event is not None:
            event.current_stream_wait()
        rows = data
        if is_quantized:
            rows = (data[0].float().unflatten(-1, (-1, 128)) * data[1][..., None]).flatten(-2)
        # Ids of other ranks become an expert of another rank.
        elsewhere = EXPERTS - 1 if own[0] == 0 else 0
        everywhere = torch.where(ids == -1, elsewhere, ids + own[0])
        is_own = (everywhere >= own[0]) & (everywhere <= own[-1])
        assert torch.tensor(counts).sum() == (ids >= 0).sum() == (is_own.sum() if size > 1 else (ids >= 0).sum())
        output = torch.empty_like(given.x)
        combined, _, event = buffer.combine(
            x=by_row(rows, ids, weights, own[0]),
            handle=handles[ubatch],
            topk_weights=None,
            config=Buffer.get_combine_config(size),
            previous_event=buffer.capture(),
            async_finish=True,
            allocate_on_comm_stream=False,
        )
        if event.event is not None:
            event.current_stream_wait()
        output.copy_(combined, non_blocking=True)
        torch.testing.assert_close(output.float(), layer(given), rtol=0.05, atol=0.2 if is_quantized else 0.02)
    buffer.destroy()


@check
def vllm_low_latency(rank, size):
    hint = Buffer.get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank=MOST, hidden=HIDDEN, num_ranks=size, num_experts=EXPERTS)
    buffer = Buffer(
        group=dist.group.WORLD,
        num_nvl_bytes=0,
        num_rdma_bytes=hint,
        low_latency_mode=True,
        num_qps_per_rank=EXPERTS // size,
        allow_nvlink_for_low_latency_mode=True,
        allow_mnnvl=False,
        explicitly_destroy=True,
        enable_shrink=True,
    )
    own, given = local_experts(rank, size), tokens(rank)
    mask = torch.zeros(size, dtype=torch.int32)
    for use_fp8, packed in ((False, False), (True, False), (True, True)):
        # Two micro-batches: the hook of each runs before its experts.
        micro = []
        for _ in range(2):
            micro.append(
                buffer.low_latency_dispatch(
                    given.x,
                    given.ids,
                    MOST,
                    EXPERTS,
                    use_fp8=use_fp8,
                    round_scale=packed,
                    use_ue8m0=packed,
                    async_finish=False,
                    return_recv_hook=True,
                )
            )
        outputs = [torch.empty_like(given.x) for _ in range(2)]
        hooks = []
        for (expert_x, counts, handle, _, hook), output in zip(micro, outputs):
            hook()
            if use_fp8:
                codes, scales = expert_x
                assert codes.is_contiguous()
                if packed:
                    scales = (scales.contiguous().view(torch.uint8).to(torch.int32) << 23).view(torch.float32)
                expert_x = (codes.float().unflatten(-1, (-1, 128)) * scales.contiguous()[..., None]).flatten(-2)
            # Rows behind the counts are undefined.
            expert_x = torch.where(torch.arange(expert_x.shape[1])[None, :, None] < counts[:, None, None], expert_x.float(), 0)
            _, _, recv_hook = buffer.low_latency_combine(
                by_expert(expert_x, own),
                given.ids,
                given.weights,
                handle,
                async_finish=False,
                zero_copy=False,
                return_recv_hook=True,
                out=output,
            )
            hooks.append(recv_hook)
        for recv_hook in hooks:
            recv_hook()
        for output in outputs:
            if use_fp8:
                torch.testing.assert_close(output.float(), layer(given), rtol=0.08, atol=0.5)
            else:
                close(output, given)
    buffer.low_latency_query_mask_buffer(mask)
    assert not mask.any()
    buffer.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True).zero_()
    buffer.low_latency_clean_mask_buffer()
    buffer.destroy()


def sglang_buffer(size):
    """One for both modes."""
    nvl, rdma = 0, 0
    for config in (Config(num_sms=20, num_max_nvl_chunked_send_tokens=6), Buffer.get_combine_config(size)):
        nvl = max(config.get_nvl_buffer_size_hint(HIDDEN * 2, size), nvl)
        rdma = max(config.get_rdma_buffer_size_hint(HIDDEN * 2, size), rdma)
    rdma = max(Buffer.get_low_latency_rdma_size_hint(MOST, HIDDEN, size, EXPERTS), rdma)
    qps = max(Buffer.num_sms, EXPERTS // size)
    return Buffer(dist.group.WORLD, nvl, rdma, low_latency_mode=True, num_qps_per_rank=qps, allow_mnnvl=True)


@check
def sglang_both_modes(rank, size):
    buffer = sglang_buffer(size)
    own, given = local_experts(rank, size), tokens(rank)
    for is_async in (True, False):
        previous = Buffer.capture() if is_async else None
        per_rank, per_node, per_expert, in_rank, previous = buffer.get_dispatch_layout(
            given.ids, EXPERTS, previous_event=previous, async_finish=is_async, allocate_on_comm_stream=previous is not None
        )
        rows, ids, weights, counts, handle, event = buffer.dispatch(
            given.x,
            topk_idx=given.ids,
            topk_weights=given.weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            previous_event=previous,
            async_finish=is_async,
            allocate_on_comm_stream=is_async,
            expert_alignment=128,
            config=None,
        )
        if is_async:
            event.current_stream_wait()
        assert all(count % 128 == 0 for count in counts) and sum(counts) >= (ids >= 0).sum()
        previous = Buffer.capture() if is_async else None
        combined, _, event = buffer.combine(
            by_row(rows, ids, weights, own[0]),
            handle,
            async_finish=is_async,
            previous_event=previous,
            allocate_on_comm_stream=previous is not None,
            config=None,
        )
        if is_async:
            event.current_stream_wait()
        close(combined, given)
        # The switch to decoding.
        buffer.clean_low_latency_buffer(MOST, HIDDEN, EXPERTS)
        for in_parts in (True, False):
            rows, masked_m, handle, event, hook = buffer.low_latency_dispatch(
                given.x, given.ids, MOST, EXPERTS, use_fp8=False, async_finish=not in_parts, return_recv_hook=in_parts
            )
            hook() if in_parts else event.current_stream_wait()
            rows = torch.where(torch.arange(rows.shape[1])[None, :, None] < masked_m[:, None, None], rows, 0)
            combined, event, hook = buffer.low_latency_combine(
                x=by_expert(rows, own),
                topk_idx=given.ids,
                topk_weights=given.weights,
                handle=handle,
                async_finish=not in_parts,
                return_recv_hook=in_parts,
            )
            hook() if in_parts else event.current_stream_wait()
            close(combined, given)
    buffer.destroy()


def row_by_row(x, counts, own):
    """The experts' output of rows that come by expert."""
    experts = torch.repeat_interleave(torch.tensor(own), torch.tensor(counts))
    return x.float() * (experts + 1)[:, None] / 4


@check
def vllm_elastic(rank, size):
    buffer = ElasticBuffer(
        group=dist.group.WORLD,
        num_max_tokens_per_rank=MOST,
        hidden=HIDDEN,
        num_topk=3,
        use_fp8_dispatch=True,
        allow_hybrid_mode=False,
        prefer_overlap_with_compute=True,
        allow_multiple_reduction=False,
        num_cpu_timeout_secs=1800,
        num_gpu_timeout_secs=1800,
        explicitly_destroy=True,
    )
    assert buffer.get_theoretical_num_sms(num_experts=EXPERTS, num_topk=3) > 0
    own, given = local_experts(rank, size), tokens(rank)
    for is_decode in (False, True):
        handles: list[EPHandle | None] = [None, None]
        for batch in (0, 1):
            data, ids, weights, handles[batch], event = buffer.dispatch(
                x=quantized(given.x, False),
                topk_idx=given.ids,
                topk_weights=given.weights,
                num_experts=EXPERTS,
                num_max_tokens_per_rank=1 << (MOST - 1).bit_length() if is_decode else None,
                do_expand=not is_decode,
                do_cpu_sync=not is_decode,
                async_with_compute_stream=False,
            )
            assert event.event is None
            x = (data[0].float().unflatten(-1, (-1, 128)) * data[1][..., None]).flatten(-2)
            counts = handles[batch].num_recv_tokens_per_expert_list
            if is_decode:
                assert counts == []
                psum = handles[batch].psum_num_recv_tokens_per_scaleup_rank
                # The ids become global, in place; rows that did not come may have any contents.
                is_valid = (ids >= 0) & (torch.arange(len(ids)) < psum[-1])[:, None]
                ids.copy_(torch.where(is_valid, ids + own[0], -1))
                x = torch.where(torch.arange(len(x))[:, None] < psum[-1], x, torch.nan)
                y = (x * torch.where(ids >= 0, weights * (ids + 1) / 4, 0).sum(1, keepdim=True)).bfloat16()
            else:
                assert ids is None and weights.ndim == 1 and len(x) == sum(counts)
                y = (row_by_row(x, counts, own) * weights[:, None]).bfloat16()
            output = torch.empty_like(given.x)
            combined, _, event = buffer.combine(
                x=y, handle=handles[batch], topk_weights=None, async_with_compute_stream=True, allocate_on_comm_stream=True
            )
            if event.event is not None:
                event.current_stream_wait()
            output.copy_(combined, non_blocking=True)
            torch.testing.assert_close(output.float(), layer(given), rtol=0.05, atol=0.2)
    buffer.destroy()


@check
def sglang_elastic(rank, size):
    buffer = ElasticBuffer(
        dist.group.WORLD,
        num_max_tokens_per_rank=MOST,
        hidden=HIDDEN,
        num_topk=3,
        use_fp8_dispatch=False,
        allow_hybrid_mode=True,
        sl_idx=0,
        prefer_overlap_with_compute=False,
    )
    assert buffer.num_bytes > 0
    own, given = local_experts(rank, size), tokens(rank)
    for is_decode in (False, True):
        sms = buffer.get_theoretical_num_sms(EXPERTS, 3)
        qps = buffer.get_theoretical_num_qps(sms)
        x, ids, weights, handle, event = buffer.dispatch(
            given.x,
            topk_idx=given.ids,
            topk_weights=given.weights,
            num_experts=EXPERTS,
            num_max_tokens_per_rank=MOST,
            expert_alignment=128,
            num_sms=sms,
            num_qps=qps,
            use_tma_aligned_col_major_sf=False,
            do_cpu_sync=not is_decode,
            do_expand=is_decode,
        )
        if event.event is not None:
            event.current_stream_wait()
        if is_decode:
            # Rows of each expert begin at multiples of the alignment, and end where the sums say.
            ends, start, y = handle.psum_num_recv_tokens_per_expert.tolist(), 0, torch.full(x.shape, torch.nan)
            for expert, end in zip(own, ends):
                y[start:end] = x[start:end].float() * weights[start:end, None] * (expert + 1) / 4
                start = -(-end // 128) * 128
            y = y.bfloat16()
        else:
            total = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1].item())
            x, ids, weights = x[:total], ids[:total], weights[:total]
            assert sum(handle.num_recv_tokens_per_expert_list) % 128 == 0
            y = by_row(x, ids, weights, own[0])
        combined, _, event = buffer.combine(y, handle=handle, topk_weights=None, num_sms=sms, num_qps=qps)
        assert event.event is None
        close(combined, given)
    buffer.destroy()


class Dispatch(torch.autograd.Function):
    """What Megatron-LM's fused dispatch calls."""

    @staticmethod
    def forward(ctx, buffer, x, ids, probs):
        layout = buffer.get_dispatch_layout(ids, EXPERTS, previous_event=EventOverlap(EventHandle()), async_finish=True, allocate_on_comm_stream=True)
        rows, row_ids, row_probs, counts, handle, after = buffer.dispatch(
            x,
            topk_idx=ids,
            topk_weights=probs,
            num_tokens_per_rank=layout[0],
            num_tokens_per_rdma_rank=layout[1],
            is_token_in_rank=layout[3],
            num_tokens_per_expert=layout[2],
            previous_event=layout[4],
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        after.current_stream_wait()
        ctx.buffer, ctx.handle = buffer, handle
        return rows, row_ids, row_probs, torch.tensor(counts), handle

    @staticmethod
    def backward(ctx, grad_rows, _ids, grad_probs, _counts, _handle):
        grad_x, grad_probs, after = ctx.buffer.combine(
            grad_rows.contiguous(),
            ctx.handle,
            topk_weights=grad_probs.float(),
            previous_event=EventOverlap(EventHandle()),
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        after.current_stream_wait()
        return None, grad_x, None, grad_probs


class Combine(torch.autograd.Function):
    """What its fused combine calls."""

    @staticmethod
    def forward(ctx, buffer, x, handle):
        combined, _, after = buffer.combine(
            x, handle=handle, async_finish=True, previous_event=EventOverlap(EventHandle()), allocate_on_comm_stream=True
        )
        after.current_stream_wait()
        ctx.buffer, ctx.handle = buffer, handle
        return combined

    @staticmethod
    def backward(ctx, grad):
        grad_x, _, _, _, _, after = ctx.buffer.dispatch(
            grad.contiguous(), handle=ctx.handle, previous_event=EventOverlap(EventHandle()), async_finish=True, allocate_on_comm_stream=True
        )
        after.current_stream_wait()
        return None, grad_x, None


@check
def megatron_forward_and_backward(rank, size):
    configs = (Buffer.get_dispatch_config(size), Buffer.get_combine_config(size))
    buffer = Buffer(
        dist.group.WORLD,
        max(config.get_nvl_buffer_size_hint(HIDDEN * 2, size) for config in configs),
        max(config.get_rdma_buffer_size_hint(HIDDEN * 2, size) for config in configs),
    )
    own = local_experts(rank, size)
    first, second = tokens(rank), inputs(rank, 4, seed=9)

    def fused(x, ids, probs):
        rows, row_ids, row_probs, counts, handle = Dispatch.apply(buffer, x, ids, probs)
        assert counts.sum() == (row_ids >= 0).sum()
        factors = torch.where(row_ids >= 0, row_probs * (row_ids + own[0] + 1) / 4, 0).sum(1, keepdim=True)
        return Combine.apply(buffer, (rows.float() * factors).bfloat16(), handle)

    def in_one_place(x, ids, probs):
        return (x.float() * torch.where(ids >= 0, probs * (ids + 1) / 4, 0).sum(1, keepdim=True)).bfloat16()

    # Two layers, whose backward passes come in the opposite order; twice, as in accumulation of gradients.
    results = []
    for step in (fused, in_one_place):
        x, probs, more = first.x.clone().requires_grad_(), first.weights.clone().requires_grad_(), second.weights.clone().requires_grad_()
        for _ in range(2):
            hidden = step(x, first.ids, probs)
            tail = step(second.x + hidden.sum(0, keepdim=True) / 64, second.ids, more)
            loss = (hidden.float() ** 2).sum() / 64 + (tail.float() * torch.arange(HIDDEN)).sum() / 512
            loss.backward()
        results.append((hidden.detach(), tail.detach(), x.grad, probs.grad, more.grad))
    for given, expected in zip(*results):
        assert expected.any() or not len(first.x)
        torch.testing.assert_close(
            given.float(), expected.float(), rtol=0.05, atol=0.05 * (expected.float().abs().max().item() if expected.numel() else 1)
        )
    buffer.destroy()


if __name__ == "__main__":
    main()
