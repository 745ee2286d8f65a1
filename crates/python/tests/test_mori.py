"""The module of mori's interface: configurations, and what ``import mori`` gives."""

import anabranch
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anabranch.compat.mori import ops, shmem
from test_deep_ep import PLUGIN, python

NEEDED = dict(
    data_type=torch.bfloat16,
    rank=1,
    world_size=2,
    hidden_dim=64,
    scale_dim=0,
    scale_type_size=0,
    max_token_type_size=2,
    max_num_inp_token_per_rank=8,
    num_experts_per_rank=2,
    num_experts_per_token=2,
)


def test_configurations_name_what_is_wrong():
    config = ops.EpDispatchCombineConfig(**NEEDED, max_total_recv_tokens=5, quant_type=ops.EpDispatchCombineQuantType.Fp8BlockwiseQuant)
    assert (config.most_from_each, config.codec) == (3, "fp8_block")
    for name, value, text in (
        ("rank", 2, "rank is 2; allowed are ranks below 2"),
        ("hidden_dim", 0, "hidden_dim is 0; allowed are numbers from 1 on"),
        ("scale_dim", -1, "scale_dim is -1; allowed are numbers from 0 on"),
        ("kernel_type", "AsyncLL", "kernel_type is 'AsyncLL'; allowed are IntraNode, "),
        ("quant_type", "fp3", "quant_type is 'fp3'; allowed are none, fp8_direct_cast, fp8_blockwise, fp4_blockwise"),
    ):
        with pytest.raises(anabranch.ConfigError, match=text):
            ops.EpDispatchCombineConfig(**{**NEEDED, name: value})
    with pytest.raises(anabranch.ConfigError, match="use_external_inp_buf is False; allowed are True, with quant_type fp4_blockwise"):
        ops.EpDispatchCombineConfig(**NEEDED, quant_type="fp4_blockwise", use_external_inp_buf=False)
    with pytest.raises(TypeError, match="no_such_field"):
        ops.EpDispatchCombineConfig(**NEEDED, no_such_field=1)


def test_sizes_of_the_heap():
    sizes = {"6G": 6 << 30, "512m": 512 << 20, "4KiB": 4096, "123": 123}
    assert {text: shmem._heap_bytes({"MORI_SHMEM_HEAP_SIZE": text}) for text in sizes} == sizes
    assert shmem._heap_bytes({}) == 4 << 30
    for text in ("", "0", "-1G", "much"):
        with pytest.raises(anabranch.ConfigError, match=f"MORI_SHMEM_HEAP_SIZE is '{text}'"):
            shmem._heap_bytes({"MORI_SHMEM_HEAP_SIZE": text})


IMPORTED = "import mori, mori.shmem; from mori.ops import EpDispatchCombineOp; print(mori.ops.EpDispatchCombineOp.__module__)"


def test_the_plugin_and_doctor_say_which_mori_is_in_force(tmp_path):
    package = tmp_path / "mori"
    package.mkdir()
    for name, text in {"__init__": "from . import ops", "shmem": "", "ops": "class EpDispatchCombineOp: ..."}.items():
        (package / f"{name}.py").write_text(text + "\n")
    found = "import importlib.util; print([importlib.util.find_spec(name) is not None for name in ('mori', 'deep_ep')])"
    assert python(PLUGIN + found, ANABRANCH_MORI="0") == "[False, False]"
    assert python(PLUGIN + found, ANABRANCH_MORI="1") == "[True, False]"
    assert python(PLUGIN + IMPORTED, ANABRANCH_MORI="1") == "anabranch.compat.mori.ops"
    assert python(PLUGIN + IMPORTED, tmp_path, ANABRANCH_MORI="1") == "mori.ops"
    assert python(PLUGIN + IMPORTED, tmp_path, ANABRANCH_MORI="force") == "anabranch.compat.mori.ops"
    program = "from anabranch import _doctor; print(next(found for _, name, found in _doctor.lines() if name == 'mori'))"
    assert python(program) == "not installed; ANABRANCH_MORI=1 gives engines anabranch's"
    assert python(program, ANABRANCH_MORI="1").startswith("anabranch's")
    assert str(tmp_path) in python(program, tmp_path)
