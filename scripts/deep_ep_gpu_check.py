#!/usr/bin/env python3
"""Checks `anabranch.compat.deep_ep` on the GPUs of this machine, and measures its calls.

    torchrun --nproc-per-node 2 scripts/deep_ep_gpu_check.py [--only-times] [--tokens 128] [--hidden 7168] [--experts 256] [--top-k 8]

First the checks of the tests on ranks, with tensors of the GPU; then calls in CUDA graphs, whose results are compared after each replay; then
times, of the sizes that the options give: of a call's host part, and of a replayed graph. Ends with 1 at the first failure.
"""

import argparse
import os
import pathlib
import sys
import time
from datetime import timedelta

os.environ["ANABRANCH_DEEP_EP_MAX_TOKENS"] = os.environ.get("ANABRANCH_DEEP_EP_MAX_TOKENS", "12")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "crates/python/tests/distributed"))

# Each adds its checks to those of the reference.
import deep_ep_calls_program  # noqa: F401
import deep_ep_elastic_program  # noqa: F401
import deep_ep_program  # noqa: F401
import torch
import torch.distributed as dist
from anabranch.compat.deep_ep import Buffer, ElasticBuffer
from deep_ep_reference import CHECKS, EXPERTS, HIDDEN, MOST, destinations, inputs, same
from torch_gpu_check import captured


def graphs(rank, size):
    """Both modes in graphs, replayed with other inputs."""
    buffer = Buffer(dist.group.WORLD, 64 << 20, low_latency_mode=True, explicitly_destroy=True)
    given = inputs(rank, MOST)

    def normal():
        layout = buffer.get_dispatch_layout(given.ids, EXPERTS)
        rows, _, weights, _, handle, _ = buffer.dispatch(
            given.x,
            num_tokens_per_rank=layout[0],
            is_token_in_rank=layout[3],
            num_tokens_per_expert=layout[2],
            topk_idx=given.ids,
            topk_weights=given.weights,
            num_worst_tokens=size * MOST,
        )
        return buffer.combine(rows, handle, topk_weights=weights)[:2]

    def low_latency():
        rows, _, handle, _, hook = buffer.low_latency_dispatch(given.x, given.ids, MOST, EXPERTS, use_fp8=False, return_recv_hook=True)
        hook()
        return buffer.low_latency_combine(rows, given.ids, given.weights, handle)[0]

    def two_batches():
        """Rows in fp8 of two dispatches that are under way together, cast back to bfloat16."""
        both = []
        for x in (given.x, 2 * given.x):
            (rows, scales), _, handle, _, hook = buffer.low_latency_dispatch(x, given.ids, MOST, EXPERTS, return_recv_hook=True)
            both.append((rows, scales, handle, hook))
        outputs = []
        for _, _, _, hook in both:
            hook()
        for rows, scales, handle, _ in both:
            y = (rows.float() * scales.repeat_interleave(128, -1)).nan_to_num().bfloat16()
            outputs.append(buffer.low_latency_combine(y, given.ids, given.weights, handle)[0])
        return outputs

    graph, (out, out_weights) = captured(normal)
    decoding, decoded = captured(low_latency)
    in_fp8, batches = captured(two_batches)
    for seed in range(1, 6):
        for static, fresh in zip(given, inputs(rank, MOST, seed)):
            static.copy_(fresh)
        graph.replay()
        decoding.replay()
        in_fp8.replay()
        torch.cuda.synchronize()
        kept = torch.where(given.ids >= 0, given.weights, 0)
        same(out, given.x * destinations(given, size).sum(1, keepdim=True))
        same(out_weights, kept)
        expected = given.x.float() * kept.sum(1, keepdim=True)
        same(decoded, expected.bfloat16())
        # e4m3 has 3 bits of mantissa, and a block's scale maps its largest magnitude to 448.
        least = given.x.abs().amax() * kept.sum(1).max() * 2**-9
        for factor, batch in zip((1, 2), batches):
            assert torch.isfinite(batch).all() and ((batch.float() - factor * expected).abs() <= factor * (expected.abs() / 14 + least)).all()
    buffer.destroy()


def elastic_graphs(rank, size):
    """Both layouts of an elastic buffer in graphs, replayed with other inputs."""
    buffer = ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=MOST, hidden=HIDDEN, explicitly_destroy=True)
    given = inputs(rank, MOST)

    def layer(do_expand):
        rows, _, weights, handle, _ = buffer.dispatch(
            given.x,
            topk_idx=given.ids,
            topk_weights=given.weights,
            num_experts=EXPERTS,
            expert_alignment=16,
            do_handle_copy=False,
            do_cpu_sync=False,
            do_expand=do_expand,
        )
        return buffer.combine(rows, handle, topk_weights=weights)[:2]

    captures = [captured(lambda do_expand=do_expand: layer(do_expand)) for do_expand in (False, True)]
    for seed in range(1, 6):
        for static, fresh in zip(given, inputs(rank, MOST, seed)):
            static.copy_(fresh)
        kept = torch.where(given.ids >= 0, given.weights, 0)
        copies = destinations(given, size), given.ids >= 0
        for (graph, (out, out_weights)), of in zip(captures, copies):
            graph.replay()
            torch.cuda.synchronize()
            same(out, given.x * of.sum(1, keepdim=True))
            same(out_weights, kept)
    buffer.destroy()


def measured(rank, size, options):
    """Microseconds of the host's part of a call, and of one dispatch and combine in a graph of ten."""
    os.environ["ANABRANCH_DEEP_EP_MAX_TOKENS"] = str(options.tokens)
    hint = Buffer.get_low_latency_rdma_size_hint(options.tokens, options.hidden, size, options.experts)
    buffer = Buffer(dist.group.WORLD, 256 << 20, 2 * hint, low_latency_mode=True, explicitly_destroy=True)
    elastic = ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=options.tokens, hidden=options.hidden, explicitly_destroy=True)
    x = torch.randn(options.tokens, options.hidden, dtype=torch.bfloat16)
    ids = torch.rand(options.tokens, options.experts).topk(options.top_k).indices
    weights = torch.rand(options.tokens, options.top_k)
    out = torch.empty_like(x)
    y = torch.zeros(options.experts // size, size * options.tokens, options.hidden, dtype=torch.bfloat16)
    layout = buffer.get_dispatch_layout(ids, options.experts)

    def low_latency(use_fp8):
        _, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, options.tokens, options.experts, use_fp8=use_fp8)
        return lambda: buffer.low_latency_combine(y, ids, weights, handle, out=out)

    def normal():
        rows, _, _, _, handle, _ = buffer.dispatch(
            x,
            num_tokens_per_rank=layout[0],
            is_token_in_rank=layout[3],
            num_tokens_per_expert=layout[2],
            topk_idx=ids,
            topk_weights=weights,
            num_worst_tokens=size * options.tokens,
        )
        return lambda: buffer.combine(rows, handle)

    def of_elastic(do_expand):
        rows, _, _, handle, _ = elastic.dispatch(
            x,
            topk_idx=ids,
            topk_weights=weights,
            num_experts=options.experts,
            expert_alignment=128,
            do_handle_copy=False,
            do_cpu_sync=False,
            do_expand=do_expand,
        )
        return lambda: elastic.combine(rows, handle)

    def once(dispatch):
        start = time.perf_counter()
        combine = dispatch()
        middle = time.perf_counter()
        combine()
        return middle - start, time.perf_counter() - middle

    for kind, dispatch in {
        "low latency bf16": lambda: low_latency(False),
        "low latency fp8": lambda: low_latency(True),
        "normal": normal,
        "ElasticBuffer": lambda: of_elastic(False),
        "ElasticBuffer, expanded": lambda: of_elastic(True),
    }.items():
        hosts = [once(dispatch) for _ in range(40)][20:]
        torch.cuda.synchronize()
        graph, _ = captured(lambda dispatch=dispatch: [once(dispatch) for _ in range(10)])
        times = []
        for _ in range(20):
            dist.barrier()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 100)
        if rank == 0:
            host = [sorted(of_call)[10] * 1e6 for of_call in zip(*hosts)]
            print(
                f"{kind}, {options.tokens} tokens of {options.hidden}, {size} ranks: dispatch and combine {sorted(times)[10]:.1f} us in a "
                f"graph; host {host[0]:.0f} us and {host[1]:.0f} us",
                flush=True,
            )
    buffer.destroy()
    elastic.destroy()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only-times", action="store_true", help="measure without the checks before")
    for name, default in (("tokens", 128), ("hidden", 7168), ("experts", 256), ("top-k", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_default_device("cuda")
    for function in [] if options.only_times else [*CHECKS, graphs, elastic_graphs]:
        function(rank, size)
        if rank == 0:
            print(f"ok {function.__name__}", flush=True)
    measured(rank, size, options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
