"""The module of DeepEP's interface: sizes, settings, and what ``import deep_ep`` gives."""

import os
import pathlib
import subprocess
import sys

import anabranch
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from anabranch.compat.deep_ep import Config, _config, _normal


@pytest.mark.parametrize("tokens, columns", [(5, 3), (5, 1), (1, 1), (0, 8)])
def test_scales_are_bytes_whatever_their_strides(tokens, columns):
    # Column-major, with a stride that copies of TMA allow.
    scales = torch.arange(8.0 * columns).view(columns, 8).t()[:tokens]
    as_bytes = _normal.as_bytes(scales)
    assert as_bytes.shape == (tokens, 4 * columns)
    assert as_bytes.flatten().tolist() == list(scales.flatten().numpy().tobytes())


def test_config_takes_the_parameters_of_deep_ep():
    config = Config(num_sms=24, num_max_nvl_chunked_send_tokens=4, num_max_nvl_chunked_recv_tokens=512)
    assert config.num_sms == 24 and Config(8, 6, 256, 6, 128).num_sms == 8


def test_unknown_keywords_that_ask_for_nothing_are_taken():
    _config.refuse_unknown("call", {"a": None, "b": False, "c": 0, "d": "", "block_m": 64})
    with pytest.raises(anabranch.UsageError, match=r"call: b=True, block_m=32 is not supported"):
        _config.refuse_unknown("call", {"a": None, "b": True, "block_m": 32})


def test_settings_name_what_is_wrong():
    assert _config.Settings.read({}) == (4096, 1, 5.0)
    assert _config.Settings.read({"ANABRANCH_DEEP_EP_MAX_TOKENS": "64", "ANABRANCH_DEEP_EP_SLOTS": "2"}) == (64, 2, 5.0)
    for name, value in (("ANABRANCH_DEEP_EP_MAX_TOKENS", "0"), ("ANABRANCH_DEEP_EP_SLOTS", "two"), ("ANABRANCH_DEEP_EP_MASK_SECONDS", "-1")):
        with pytest.raises(anabranch.ConfigError, match=f"{name} is '{value}'"):
            _config.Settings.read({name: value})


def python(program: str, path: pathlib.Path | None = None, **variables: str) -> str:
    environment = {**os.environ, **variables}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH", "")]))
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


IMPORTED = "import deep_ep, deep_ep.utils; print(deep_ep.Buffer.__module__)"
OURS = "anabranch.compat.deep_ep.buffer"
PLUGIN = "from anabranch.compat._install import plugin; plugin(); "


@pytest.fixture
def other(tmp_path):
    """A directory with another ``deep_ep``."""
    package = tmp_path / "deep_ep"
    package.mkdir()
    (package / "__init__.py").write_text("class Buffer: ...\n")
    (package / "utils.py").write_text("")
    return tmp_path


def test_the_plugin_installs_where_it_is_asked_to(other):
    found = "import importlib.util; print(importlib.util.find_spec('deep_ep') is not None)"
    assert python(PLUGIN + found) == python(PLUGIN + found, ANABRANCH_DEEP_EP="0") == "False"
    assert python(PLUGIN + found, ANABRANCH_DEEP_EP="1") == "True"
    assert python(PLUGIN + IMPORTED, ANABRANCH_DEEP_EP="1") == OURS
    assert python(PLUGIN + IMPORTED, other, ANABRANCH_DEEP_EP="1") == "deep_ep"
    assert python(PLUGIN + IMPORTED, other, ANABRANCH_DEEP_EP="force") == OURS
    assert python("import sys; " + PLUGIN + "print('torch' in sys.modules)") == "False"


def test_importing_install_replaces_what_is_not_imported(other):
    assert python("import anabranch.compat.deep_ep.install; " + IMPORTED, other) == OURS
    late = "import deep_ep\ntry:\n    import anabranch.compat.deep_ep.install\nexcept RuntimeError as error:\n    print(error)"
    assert "imported already" in python(late, other)


def test_classes_are_the_same_under_both_names():
    both = "import anabranch.compat.deep_ep.install, anabranch.compat.deep_ep as ours, deep_ep.utils, deep_ep.buffer; "
    assert python(both + "print(deep_ep.utils.EventOverlap is ours.EventOverlap, deep_ep.buffer.Buffer is ours.Buffer)") == "True True"
    newer = "from deep_ep.buffers.legacy import Buffer; from deep_ep.buffers.elastic import ElasticBuffer; from deep_ep.utils.event import EventOverlap; "
    assert python(both + newer + "print(Buffer is ours.Buffer, ElasticBuffer is ours.ElasticBuffer, EventOverlap is ours.EventOverlap)") == "True True True"


def test_doctor_says_which_deep_ep_is_in_force(other):
    program = "from anabranch import _doctor; print(next(found for _, name, found in _doctor.lines() if name == 'deep_ep'))"
    assert python(program).startswith("not installed")
    assert python(program, ANABRANCH_DEEP_EP="1").startswith("anabranch's")
    assert str(other) in python(program, other) and "force" in python(program, other, ANABRANCH_DEEP_EP="1")
    assert python(program, other, ANABRANCH_DEEP_EP="force").startswith("anabranch's")
