#!/usr/bin/env python3
"""Runs the classes of vLLM and SGLang that call DeepEP over `anabranch.compat.deep_ep`, and compares every row and every output.

    python3.11 -m venv engines && . engines/bin/activate
    pip install ./crates/python torch numpy msgspec orjson pillow psutil pybase64 pydantic pyzmq regex requests starlette tqdm
    pip download --no-deps --dest wheels vllm==0.33.0 sglang==0.5.23
    unzip -q 'wheels/vllm-*.whl' '*.py' '*/METADATA' -d engines/vllm
    unzip -q 'wheels/sglang-*.whl' '*.py' '*/METADATA' -d engines/sglang
    ANABRANCH__DEVICE__RUNTIME=host torchrun --nproc-per-node 2 scripts/engine_classes_check.py --vllm engines/vllm --sglang engines/sglang

Leave the variable out on a machine with a GPU for each rank; this has never run on GPUs. The classes come from the unpacked wheels, without a server,
a model or a compiled extension; `STUBS`, `BARE` and `prepare` name what takes the place of what they import. Expert e gives a row times e + 1. All
values are exact in bfloat16 and fp8, so all comparisons with the reference in torch are for equality. Each check runs two micro-batches that are
under way together; in the second one the last rank has no tokens. Without `--vllm` or `--sglang` the checks of that engine are left out. Ends with 1
at the first failure.
"""

import argparse
import importlib.abc
import importlib.machinery
import itertools
import os
import pathlib
import sys
import traceback
import types
from datetime import timedelta
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "crates/python/tests/distributed"))
MOST = 12
os.environ |= {"ANABRANCH_DEEP_EP_MAX_TOKENS": str(MOST), "ANABRANCH_DEEP_EP_SLOTS": "2", "VLLM_DEEPEP_BUFFER_SIZE_MB": "64"}
os.environ |= dict.fromkeys((f"SGLANG_DEEPEP_{v2}NUM_MAX_DISPATCH_TOKENS_PER_RANK" for v2 in ("", "V2_")), str(MOST))
# All buffers share the heap of the first one, which has to be large enough for all.
os.environ.setdefault("ANABRANCH__HEAP__BYTES", "256 MiB")

import anabranch.compat.deep_ep.install  # noqa: F401 - gives deep_ep
import deep_ep
import deep_ep_reference as reference
import torch
import torch.distributed as dist
from deep_ep_reference import EXPERTS, TOP_K, Inputs, local_experts, local_ids, picked, rows, rows_of_expert, same

# The least that vLLM's low-latency class takes.
HIDDEN = reference.HIDDEN = 2048
HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    # Triton's interpreter runs vLLM's kernels on the CPU. Without a GPU vLLM uses Triton only where the second variable is empty.
    os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}

# Modules whose names all exist; a call of one raises.
STUBS = (
    "vllm._C",  # compiled kernels
    "vllm._C_stable_libtorch",  # compiled kernels
    "vllm.model_executor.layers.quantization.utils.w8a8_utils",  # asks the compiled kernels what they have
    "vllm.config",  # the server's configuration, types only
    "vllm._aiter_ops",  # compiled kernels of AMD, which import the attention layers
    "vllm.model_executor.models",  # models, of which one class is named
    "sglang.kernels.ops",  # compiled and Triton kernels; `prepare` gives the quantization of rows
    "sglang.srt.layers.moe.topk",  # the routing of a model, types only
    "sglang.srt.layers.deep_gemm_wrapper",  # DeepGEMM, the experts; `set_mode` gives its constants
    "sglang.srt.eplb",  # statistics for the scheduler; `prepare` gives a recorder that records nothing
)
# Packages whose `__init__` imports every layer or model: it does not run, their modules come from the wheel.
BARE = ("vllm.model_executor.layers.fused_moe", "vllm.model_executor.layers.quantization", "sglang", "sglang.srt.configs")
CHECKS = []


class Stub(type):
    """A module or class with every name. It is false, and a call raises."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(name, (), {})

    def __call__(cls, *_, **__):
        raise NotImplementedError(f"{cls.__name__} has no substitute in this script")

    def __bool__(cls):
        return False


class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives stubs and bare packages."""

    def __init__(self, folders):
        self.folders = folders

    def find_spec(self, name, path=None, target=None):
        is_stub = any(f"{name}.".startswith(f"{stub}.") for stub in STUBS)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_stub or name in BARE else None

    def create_module(self, spec):
        return types.ModuleType(spec.name) if spec.name in BARE else Stub(spec.name, (), {})

    def exec_module(self, module):
        module.__path__ = [os.path.join(folder, *module.__name__.split(".")) for folder in self.folders if module.__name__ in BARE]


def quantized(x, group_size, column_major_scales=False, scale_tma_aligned=False, scale_ue8m0=False):
    """fp8 rows and scales in the forms of SGLang's kernel: float32, or with `scale_ue8m0` four exponents of powers of two in an int32."""
    codes, scales = reference.quantized(x, scale_ue8m0)
    if scale_ue8m0:
        scales = exponents(scales).view(torch.int32)
    if column_major_scales:
        scales = scales.new_empty(scales.shape[1], -(-len(x) // 4) * 4).T[: len(x)].copy_(scales)
    return codes, scales


def mxfp8(x, is_swizzled, alignment):
    """vLLM's kernel for blocks of 32 elements: an exponent in a byte for each. Its own substitute for the kernel fails without tokens."""
    codes, scales = reference.quantized(x, True)
    return codes, exponents(scales).repeat_interleave(4, 1)


def exponents(scales):
    return (torch.log2(scales).round() + 127).to(torch.uint8)


def dequantized(x, scales):
    """Rows as bfloat16; scales of any block size, as numbers or as exponents of a byte each."""
    if scales is None:
        return x
    if scales.dtype != torch.float32:
        scales = torch.exp2(scales.contiguous().view(torch.uint8).float() - 127)
    return (x.float().unflatten(-1, (scales.shape[-1], -1)) * scales[..., None]).flatten(-2).bfloat16()


def prepare(engine):
    """Substitutes for what a stub cannot give, and on the CPU for what needs a driver."""
    if engine == "vllm":
        from vllm.model_executor.layers.fused_moe import modular_kernel, utils

        utils.mxfp8_e4m3_quantize = mxfp8
        if HAS_GPU:
            # A compiled kernel; on the CPU it is a Triton kernel of vLLM, which is used.
            utils.per_token_group_quant_fp8 = lambda x, size, **_: quantized(x, size)
        else:
            modular_kernel.PIN_MEMORY = False
        return
    import sglang.kernels.ops.quantization.fp8_kernel as kernel
    import sglang.srt.eplb.expert_distribution as statistics

    recorder = SimpleNamespace(on_deepep_dispatch_normal=lambda *_, **__: None, on_deepep_dispatch_low_latency=lambda *_: None)
    statistics.get_global_expert_distribution_recorder = lambda: recorder
    kernel.sglang_per_token_group_quant_fp8 = quantized
    from sglang.srt.layers.moe import utils
    from sglang.srt.layers.moe.token_dispatcher import deepep_v2

    # The server's configuration: none, so that `set_quant_config` chooses the type of rows; direct mode; data parallel attention.
    utils.get_server_args = lambda: None
    deepep_v2.get_exec = lambda: SimpleNamespace(moe=SimpleNamespace(deepep_v2_mode="direct"))
    deepep_v2.get_parallel = lambda: SimpleNamespace(attn_dp_size=dist.get_world_size())
    if not HAS_GPU:
        # For a warning about the blocks that DeepEP takes.
        torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=1)


def check(**axes):
    """A check for each combination of the values of the axes."""

    def add(function):
        CHECKS.extend((function, dict(zip(axes, values))) for values in itertools.product(*axes.values()))
        return function

    return add


def inputs(rank, tokens, seed):
    """Of a rank, as the tests' reference makes them, times powers of two that differ between blocks with a scale."""
    given = reference.inputs(rank, tokens, seed)
    powers = (torch.arange(tokens)[:, None] + 3 * torch.arange(HIDDEN // 128) + rank) % 4
    x = given.x.clamp(-2, 2).unflatten(-1, (-1, 128)) * torch.exp2(-powers.float())[..., None]
    return given._replace(x=x.flatten(-2).bfloat16())


def batches(size):
    """Inputs of all ranks, for two micro-batches."""
    return [[inputs(rank, 0 if seed and rank == size - 1 else (MOST, 5, 7, 1)[rank % 4], seed) for rank in range(size)] for seed in (0, 1)]


def layer(x, ids, weights, first=0):
    """The weighted sum of the outputs of a row's experts, whose ids count from `first` on."""
    return (x.float() * torch.where(ids >= 0, weights * (ids + first + 1), 0).sum(1, keepdim=True)).bfloat16()


def counts(everyone, own, alignment=1):
    """Rows of each expert, rounded up."""
    return [-(-len(rows_of_expert(everyone, expert)) // alignment) * alignment for expert in own]


def rows_once(everyone, rank, x, ids, weights, shown=lambda local: local):
    """Compares rows that come once to a rank; `shown` makes the ids of the class from local ones. Returns outputs, NaN after the rows that came."""
    chosen = rows(everyone, rank)
    local, expected_weights = local_ids(everyone, chosen, rank)
    expected, outputs = picked(everyone, chosen), torch.full(x.shape, torch.nan, dtype=torch.bfloat16)
    for given, wanted in ((x, expected), (ids, shown(local)), (weights, expected_weights)):
        same(given[: len(chosen)], wanted)
    outputs[: len(chosen)] = layer(expected, local, expected_weights, local_experts(rank, len(everyone))[0])
    return outputs


def rows_by_expert(everyone, own, x, starts, weights=None):
    """Compares rows that come for each expert, from `starts` on. Returns outputs, with the weights that came, and NaN elsewhere."""
    outputs = torch.full(x.shape, torch.nan, dtype=torch.bfloat16)
    for expert, start in zip(own, starts):
        chosen = rows_of_expert(everyone, expert)
        place = slice(start, start + len(chosen))
        same(x[place], picked(everyone, chosen))
        outputs[place] = x[place] * (expert + 1)
        if weights is not None:
            same(weights[place], picked(everyone, chosen, "weights")[picked(everyone, chosen, "ids") == expert])
            outputs[place] *= weights[place, None]
    return outputs


def vllm_buffer(kind, manager, *arguments):
    """A buffer with the arguments that a manager of vLLM gives it."""
    from vllm.distributed.device_communicators import all2all

    self = SimpleNamespace(cpu_group=dist.group.WORLD, _device_group=None, internode=False, num_sms=20, support_fault_tolerance=False)
    return kind(**getattr(all2all, manager)._make_all2all_kwargs(self, *arguments))


def vllm_layer(module, subject, quantization, is_async, compare):
    """Two micro-batches through a class of vLLM; `compare` gives the experts' outputs."""
    from vllm.model_executor.layers.fused_moe import topk_weight_and_reduce
    from vllm.model_executor.layers.fused_moe.config import FusedMoEQuantConfig

    fp8 = {"quant_dtype": torch.float8_e4m3fn, "block_shape": [128, 128]}
    options = {"bf16": {}, "mxfp8": {"quant_dtype": "mxfp8", "is_scale_swizzled": False}}
    config = FusedMoEQuantConfig.make(**options.get(quantization, fp8))

    def steps_of(number, name, *arguments):
        """The steps that end a call: with `is_async` a function that receives, or a hook and such a function."""
        with mock.patch.object(module, "dbo_current_ubatch_id", lambda: number):
            result = getattr(subject, f"{name}_async" if is_async else name)(*arguments)
        if not is_async:
            return (lambda: result,)
        return result if isinstance(result, tuple) else (result,)

    everyones = batches(dist.get_world_size())
    given = [everyone[dist.get_rank()] for everyone in everyones]
    begun = [steps_of(number, "prepare", x, weights, ids, EXPERTS, None, False, config) for number, (x, ids, weights) in enumerate(given)]
    outputs, ends = [torch.full_like(each.x, torch.nan) for each in given], []
    for number, everyone in enumerate(everyones):
        x, scales, meta, ids, weights = [step() for step in begun[number]][-1]
        assert (scales is None) == (quantization == "bf16")
        computed, reduction = compare(everyone, dequantized(x, scales), meta, ids, weights), topk_weight_and_reduce.TopKWeightAndReduceNoOP()
        if ids is None:
            # Low latency, where combine has the weights.
            (_, ids, weights), reduction = given[number], topk_weight_and_reduce.TopKWeightAndReduceDelegate()
        ends.append(steps_of(number, "finalize", outputs[number], computed, weights, ids, False, reduction))
    for each, output, end in zip(given, outputs, ends):
        for step in end:
            step()
        same(output, layer(*each))
    subject.buffer.destroy()


@check(quantization=("bf16", "fp8"), is_async=(False, True))
def vllm_high_throughput(rank, size, quantization, is_async):
    from vllm.model_executor.layers.fused_moe.prepare_finalize import deepep_ht

    own = local_experts(rank, size)

    def compare(everyone, x, meta, ids, weights):
        assert meta.expert_num_tokens.tolist() == counts(everyone, own) and len(x) == len(rows(everyone, rank))
        # The id of an expert of another rank becomes one that is not of this rank.
        return rows_once(everyone, rank, x, ids, weights, lambda local: torch.where(local < 0, 0 if rank else EXPERTS - 1, local + own[0]))

    buffer = vllm_buffer(deep_ep.Buffer, "DeepEPHTAll2AllManager")
    vllm_layer(deepep_ht, deepep_ht.DeepEPHTPrepareAndFinalize(buffer, size, size, own[0]), quantization, is_async, compare)


@check(quantization=("bf16", "fp8", "packed"), is_async=(False, True))
def vllm_low_latency(rank, size, quantization, is_async):
    from vllm.model_executor.layers.fused_moe.prepare_finalize import deepep_ll

    own = local_experts(rank, size)

    def compare(everyone, x, meta, _ids, _weights):
        assert meta.expert_num_tokens.tolist() == counts(everyone, own)
        return rows_by_expert(everyone, own, x.flatten(0, 1), range(0, len(own) * x.shape[1], x.shape[1])).view_as(x)

    buffer = vllm_buffer(deep_ep.Buffer, "DeepEPLLAll2AllManager", MOST, HIDDEN, size, EXPERTS, len(own))
    subject = deepep_ll.DeepEPLLPrepareAndFinalize(buffer, MOST, size, use_fp8_dispatch=quantization != "bf16")
    subject.post_init_setup(SimpleNamespace(supports_packed_ue8m0_act_scales=lambda: quantization == "packed"))
    vllm_layer(deepep_ll, subject, quantization, is_async, compare)


@check(quantization=("bf16", "fp8", "mxfp8"), is_decode=(False, True), is_async=(False, True))
def vllm_elastic(rank, size, quantization, is_decode, is_async):
    from vllm import forward_context
    from vllm.model_executor.layers.fused_moe.prepare_finalize import deepep_v2

    own = local_experts(rank, size)
    tokens = torch.tensor([MOST] * size, device="cpu")
    forward_context._forward_context = SimpleNamespace(dp_metadata=forward_context.DPMetadata(tokens))

    def compare(everyone, x, meta, ids, weights):
        if is_decode:
            count = len(rows(everyone, rank))
            assert meta.psum_recv_per_rank[-1] == count and (ids[count:] == -1).all()
            return rows_once(everyone, rank, x, ids, weights, lambda local: torch.where(local < 0, -1, local + own[0]))
        of_experts = counts(everyone, own)
        assert meta.expert_num_tokens.tolist() == of_experts and len(x) == sum(of_experts)
        same(ids[:, 0], torch.repeat_interleave(torch.tensor(own), torch.tensor(of_experts)))
        return rows_by_expert(everyone, own, x, itertools.accumulate(of_experts, initial=0), weights[:, 0])

    is_fp8 = quantization == "fp8"
    buffer = vllm_buffer(deep_ep.ElasticBuffer, "DeepEPV2All2AllManager", MOST, HIDDEN, TOP_K, is_fp8)
    subject = deepep_v2.DeepEPV2PrepareAndFinalize(buffer, size, size, own[0], EXPERTS, TOP_K, is_fp8, is_decode)
    vllm_layer(deepep_v2, subject, quantization, is_async, compare)


def set_mode(quantization, is_prefill):
    """What SGLang's classes ask of the server, and of DeepGEMM on a Blackwell GPU (exponents packed into an int32) or a Hopper."""
    from sglang.srt.layers import deep_gemm_wrapper
    from sglang.srt.layers.dp_attention import set_is_extend_in_batch

    set_is_extend_in_batch(is_prefill)
    is_packed = quantization == "packed"
    deep_gemm_wrapper.ENABLE_JIT_DEEPGEMM = True
    deep_gemm_wrapper.DEEPGEMM_BLACKWELL = deep_gemm_wrapper.DEEPGEMM_SCALE_UE8M0 = is_packed
    deep_gemm_wrapper.DEEPGEMM_NEED_TMA_ALIGNED_SCALES = not is_packed


def sglang_layer(subjects, compare):
    """Two micro-batches through dispatchers of SGLang, each call in two parts if it has them."""
    everyones = batches(dist.get_world_size())
    given = [everyone[dist.get_rank()] for everyone in everyones]
    routed = [(each.x, SimpleNamespace(topk_weights=each.weights, topk_ids=each.ids.int())) for each in given]
    if hasattr(subjects[0], "dispatch_a"):
        for subject, arguments in zip(subjects, routed):
            subject.dispatch_a(*arguments)
        for subject, everyone in zip(subjects, everyones):
            subject.combine_a(compare(everyone, subject.dispatch_b()))
        outputs = [subject.combine_b() for subject in subjects]
    else:
        received = [subject.dispatch(*arguments) for subject, arguments in zip(subjects, routed)]
        outputs = [subject.combine(compare(*each)) for subject, each in zip(subjects, zip(everyones, received))]
    for each, output in zip(given, outputs):
        same(output, layer(*each))


@check(is_normal=(True, False), quantization=("bf16", "fp8", "packed"), is_async=(False, True))
def sglang_dispatcher(rank, size, is_normal, quantization, is_async):
    from sglang.srt.layers.moe.token_dispatcher.deepep import DeepEPDispatcher, DeepEPLLCombineInput, DeepEPNormalCombineInput

    own = local_experts(rank, size)

    def compare(everyone, output):
        x, ids, weights = dequantized(*output[:2]), output.topk_ids, output.topk_weights
        assert (output.hidden_states_scale is None) == (quantization == "bf16")
        if is_normal:
            # Rounded up for DeepGEMM.
            assert output.num_recv_tokens_per_expert == counts(everyone, own, 128)
            return DeepEPNormalCombineInput(rows_once(everyone, rank, x, ids, weights), ids, weights)
        assert output.masked_m.tolist() == counts(everyone, own)
        outputs = rows_by_expert(everyone, own, x.flatten(0, 1), range(0, len(own) * x.shape[1], x.shape[1]))
        return DeepEPLLCombineInput(outputs.view_as(x), ids, weights)

    set_mode(quantization, is_normal)
    shape = {"num_experts": EXPERTS, "num_local_experts": len(own), "hidden_size": HIDDEN, "params_dtype": torch.bfloat16}
    subjects = [DeepEPDispatcher(dist.group.WORLD, TOP_K, **shape, async_finish=is_async, return_recv_hook=is_async) for _ in range(2)]
    for subject in subjects:
        subject.set_quant_config({"dispatcher_output_dtype": "bf16" if quantization == "bf16" else "fp8"})
    sglang_layer(subjects, compare)


@check(quantization=("bf16", "fp8", "packed"), layout=("rows", "expanded", "masked"))
def sglang_elastic(rank, size, quantization, layout):
    from sglang.srt.layers.moe.token_dispatcher.deepep_v2 import DeepEPv2CombineInput, DeepEPv2Dispatcher

    own = local_experts(rank, size)
    # In prefill the class sends a row of zeros, with weights of zero, for a rank without tokens.
    padding = Inputs(torch.zeros(1, HIDDEN, dtype=torch.bfloat16), torch.arange(TOP_K)[None], torch.zeros(1, TOP_K))

    def compare(everyone, output):
        everyone = [given if len(given.x) or layout == "masked" else padding for given in everyone]
        x, ids, weights = dequantized(*output[:2]), output.topk_ids, output.topk_weights
        assert (output.hidden_states_scale is None) == (quantization == "bf16")
        assert output.is_expanded == (layout != "rows") and output.use_masked_gemm == (layout == "masked")
        if layout == "rows":
            return DeepEPv2CombineInput(rows_once(everyone, rank, x, ids, weights), weights)
        ends = output.psum_num_recv_tokens_per_expert.tolist()
        starts = [0, *(-(-end // 128) * 128 for end in ends[:-1])]
        assert [end - start for start, end in zip(starts, ends)] == counts(everyone, own)
        return DeepEPv2CombineInput(rows_by_expert(everyone, own, x, starts, weights), None)

    set_mode(quantization, layout != "masked")
    os.environ["SGLANG_DEEPEP_V2_ENABLE_PREFILL_EXPAND"] = str(layout == "expanded")
    shape = (TOP_K, EXPERTS, len(own), HIDDEN, torch.bfloat16, quantization != "bf16")
    sglang_layer([DeepEPv2Dispatcher(dist.group.WORLD, *shape) for _ in range(2)], compare)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default=os.environ.get("VLLM_FOLDER"), help="folder of the unpacked wheel; default $VLLM_FOLDER")
    parser.add_argument("--sglang", default=os.environ.get("SGLANG_FOLDER"), help="folder of the unpacked wheel; default $SGLANG_FOLDER")
    parser.add_argument("--only", default="", help="run the checks whose name starts with this; default all")
    options = parser.parse_args()
    folders = {engine: folder for engine in ("vllm", "sglang") if (folder := getattr(options, engine))}
    named = [(" ".join([function.__name__, *(f"{key}={value}" for key, value in values.items())]), function, values) for function, values in CHECKS]
    chosen = [each for each in named if each[0].startswith(options.only) and each[0].split("_")[0] in folders]
    if not chosen:
        parser.error("no check is left: give --vllm, --sglang or both, and to --only the start of a name")
    sys.path.extend(folders.values())
    sys.meta_path.insert(0, Importer(folders.values()))
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank, size = dist.get_rank(), dist.get_world_size()
    if HAS_GPU:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_default_device(reference.DEVICE)
    for engine in folders:
        prepare(engine)
    for name, function, values in chosen:
        try:
            function(rank, size, **values)
        except BaseException:
            # The other ranks learn it when this process ends.
            print(f"failed {name}\n{traceback.format_exc()}", flush=True)
            os._exit(1)
        dist.barrier()
        if rank == 0:
            print(f"ok {name}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
