#!/usr/bin/env python3
"""Checks Megatron-core's own calls of DeepEP (`fused_a2a`, `MoEFlexTokenDispatcher`) over `anabranch.compat.deep_ep`, on two ranks.

    python3 -m venv meg
    meg/bin/pip install torch numpy packaging ./crates/python
    meg/bin/pip install --no-deps megatron-core==0.16.1
    ANABRANCH__DEVICE__RUNTIME=host meg/bin/torchrun --nproc-per-node 2 scripts/megatron_check.py

Without the variable tensors are on GPUs, if torch sees as many as there are ranks; else on the CPU. First Megatron's autograd functions: outputs and
gradients are those of plain torch, bit for bit, as all numbers are small and exact in bfloat16. Then training of Megatron's MoELayer, with the
flex dispatcher (`deepep`) and with its all-to-all dispatcher over gloo (GPUs: NCCL): outputs, gradients, and trained weights are equal but for
roundings. Prints `ok` for each check; the first failure ends the program with 1.
"""

import os
import warnings
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace

# Equal on all ranks; the default is for 4096 tokens.
os.environ.setdefault("ANABRANCH_DEEP_EP_MAX_TOKENS", "64")
# Megatron compiles small functions of tensors, which takes a C++ compiler. Checks pass with 0 too.
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
warnings.simplefilter("ignore")

import anabranch.compat.deep_ep.install  # noqa: E402, F401 - before Megatron imports deep_ep
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear  # noqa: E402
from megatron.core.transformer.mlp import MLPSubmodules  # noqa: E402
from megatron.core.transformer.moe import fused_a2a, moe_utils, token_dispatcher  # noqa: E402
from megatron.core.transformer.moe.experts import SequentialMLP  # noqa: E402
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules  # noqa: E402
from megatron.core.transformer.spec_utils import ModuleSpec  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

HIDDEN, EXPERTS, TOP_K = 256, 8, 3
# Of even and odd ranks, in three passes.
TOKENS = ((12, 5), (0, 9), (7, 0))
# Of the largest value, for the dispatchers round to bfloat16 at other places. Measured on `host`: at most 0.007, of parameters' gradients 0.
TOLERANCE = 2**-6


def stub(device):
    """Replaces what Megatron needs Transformer Engine or a GPU for."""
    if not moe_utils.HAVE_TE:
        # The router's product is a kernel of Transformer Engine; with None Megatron takes torch's, but 0.16.1 leaves the name undefined.
        moe_utils.te_general_gemm = None
    if device.type == "cpu":
        # Megatron makes its tensors there.
        torch.cuda.current_device = lambda: device
        # The all-to-all dispatcher copies counts to the host on a stream of its own; on the CPU they are there, and there are no streams.
        event = SimpleNamespace(synchronize=lambda: None)
        stream = SimpleNamespace(wait_stream=lambda _: None, record_event=lambda: event)
        torch.cuda.Stream, torch.cuda.current_stream, torch.cuda.stream = lambda: stream, lambda: stream, lambda _: nullcontext()
        token_dispatcher.maybe_move_tensor_to_cpu = lambda counts, as_numpy=False, **_: counts.numpy() if as_numpy and counts is not None else counts


def draws(*seed):
    """Two functions: whole numbers of a range and a shape, and normally distributed ones of a shape."""
    generator = torch.Generator("cpu").manual_seed(hash(seed) % 2**31)
    return lambda low, high, *shape: torch.randint(low, high + 1, shape, generator=generator), lambda *shape: torch.randn(shape, generator=generator)


def equal(name, given, expected):
    assert given.shape == expected.shape, f"{name}: {tuple(given.shape)}, not {tuple(expected.shape)}"
    wrong = (given != expected).nonzero()
    assert len(wrong) == 0, f"{name}: {len(wrong)} of {given.numel()} differ, the first at {wrong[0].tolist()}:\n{given}\n is not\n{expected}"


def near(name, given, expected):
    assert expected.count_nonzero() > 0, f"{name}: nothing to compare"
    difference = ((given - expected).abs().max() / expected.abs().max()).item()
    assert difference <= TOLERANCE, f"{name}: differs by {difference:.2g} of the largest value"


def fused(x, ids, probs, group, options):
    """A layer by Megatron's functions: expert e multiplies by 1 or 2."""
    rows, row_ids, row_probs, counts, handle = fused_a2a.fused_dispatch(x, ids, probs, EXPERTS, group, **options)
    first = group.rank() * EXPERTS // group.size()
    everywhere = torch.bincount(ids[ids >= 0], minlength=EXPERTS)
    dist.all_reduce(everywhere, group=group)
    equal("rows of each expert", counts, everywhere[first:][: len(counts)].cpu())
    factors = torch.where(row_ids >= 0, row_probs * ((first + row_ids) % 2 + 1), 0).sum(1, keepdim=True)
    output, _ = fused_a2a.fused_combine((rows.float() * factors).bfloat16(), group, handle, **options)
    return output


def in_one_place(x, ids, probs, *_):
    """The same without communication."""
    return (x.float() * torch.where(ids >= 0, probs * (ids % 2 + 1), 0).sum(1, keepdim=True)).bfloat16()


def passes(layer, group, device, options):
    """Outputs and gradients of three forward passes, whose backward passes come after all of them, first the first one's."""
    results, held = {}, []
    for number, tokens in enumerate(TOKENS):
        (draw, normal), count = draws(group.rank(), number), tokens[group.rank() % 2]
        x = draw(-3, 3, count, HIDDEN).bfloat16().to(device).requires_grad_()
        probs = (draw(1, 2, count, TOP_K) / 2).to(device).requires_grad_()
        ids = normal(count, EXPERTS).topk(TOP_K).indices
        ids[1::4, 1], ids[2::7] = -1, -1
        held.append((x, probs, layer(x, ids.to(device), probs, group, options), draw(-2, 2, count, HIDDEN).bfloat16().to(device)))
    for number, (x, probs, output, grad) in enumerate(held):
        # Twice, as gradients accumulate.
        output.backward(grad, retain_graph=True)
        output.backward(grad)
        results |= {f"output {number}": output.detach(), f"gradient of tokens {number}": x.grad, f"gradient of probabilities {number}": probs.grad}
    return results


def fused_functions(group, device, **options):
    expected = passes(in_one_place, group, device, options)
    for name, given in passes(fused, group, device, options).items():
        equal(name, given, expected[name])


def moe_layer(group, device, **options):
    """Megatron's, with its router and experts."""
    config = TransformerConfig(
        **{"num_layers": 1, "hidden_size": HIDDEN, "ffn_hidden_size": HIDDEN, "num_attention_heads": 4, "num_moe_experts": EXPERTS},
        **{"moe_router_topk": TOP_K, "moe_router_dtype": "fp32", "expert_model_parallel_size": group.size(), "add_bias_linear": False},
        **{"bf16": True, "params_dtype": torch.bfloat16, "gated_linear_unit": True, "activation_func": torch.nn.functional.silu},
        **{"use_cpu_initialization": True, **options},
    )
    expert = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    layer, (_, normal) = MoELayer(config, MoESubmodules(ModuleSpec(SequentialMLP, submodules=expert))), draws(group.rank())
    with torch.no_grad():
        for parameter in layer.experts.parameters():
            parameter.copy_(normal(*parameter.shape) / HIDDEN**0.5)
        # It reads a token's first elements, which are 1/2 apart: roundings do not change a choice of experts.
        layer.router.weight.copy_(torch.eye(EXPERTS, HIDDEN))
    return layer.to(device)


def train(layer, group, device, recompute):
    """What two steps of two micro-batches each compute; both forward passes come before the first backward pass."""
    results, optimizer = {}, torch.optim.SGD(layer.parameters(), lr=1 / 256, momentum=0.5)
    before = {name: parameter.detach().float() for name, parameter in layer.named_parameters()}
    for step in range(2):
        held = []
        for batch in range(2):
            _, normal = draws(group.rank(), step, batch)
            x, grad = normal(12 - 5 * batch, 2, HIDDEN), normal(12 - 5 * batch, 2, HIDDEN)
            x[..., :EXPERTS] = x[..., :EXPERTS].argsort(-1) / 2
            x = x.bfloat16().to(device).requires_grad_()
            output, _ = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False) if recompute else layer(x)
            held.append((f"step {step}, micro-batch {batch}: ", x, output, grad.bfloat16().to(device)))
        for name, x, output, grad in held:
            output.backward(grad)
            results |= {name + "output": output.detach(), name + "gradient of tokens": x.grad}
        # The experts are each rank's own.
        dist.all_reduce(layer.router.weight.grad, group=group)
        results |= {f"step {step}: gradient of {name}": parameter.grad.clone() for name, parameter in layer.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    trained = {f"trained change of {name}": parameter.detach() - before[name] for name, parameter in layer.named_parameters()}
    return {name: tensor.float() for name, tensor in (results | trained).items()}


def training(group, device, recompute=False, **options):
    expected = train(moe_layer(group, device, moe_token_dispatcher_type="alltoall", **options), group, device, recompute)
    flex = moe_layer(group, device, moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="deepep", **options)
    for name, given in train(flex, group, device, recompute).items():
        near(name, given, expected[name])


CHECKS = {
    "fused functions": (fused_functions, {}),
    "fused functions, async_finish": (fused_functions, {"async_finish": True}),
    "fused functions, async_finish, allocate_on_comm_stream": (fused_functions, {"async_finish": True, "allocate_on_comm_stream": True}),
    "training": (training, {}),
    "training, dropped tokens": (training, {"moe_expert_capacity_factor": 0.75}),
    "training, recomputation": (training, {"recompute": True}),
}


def main():
    size, is_host = int(os.environ["WORLD_SIZE"]), os.environ.get("ANABRANCH__DEVICE__RUNTIME") == "host"
    device = torch.device("cpu" if is_host or torch.cuda.device_count() < size else f"cuda:{os.environ['LOCAL_RANK']}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        # Also where there are GPUs, but too few.
        os.environ["ANABRANCH__DEVICE__RUNTIME"] = "host"
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl", timeout=timedelta(seconds=120))
    stub(device)
    assert fused_a2a.Buffer.__module__.startswith("anabranch."), f"Megatron calls {fused_a2a.Buffer}"
    parallel_state.initialize_model_parallel(expert_model_parallel_size=size)
    group = parallel_state.get_expert_tensor_and_model_parallel_group()
    for name, (function, options) in CHECKS.items():
        function(group, device, **options)
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"ok {name}", flush=True)
    fused_a2a._buffer.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
