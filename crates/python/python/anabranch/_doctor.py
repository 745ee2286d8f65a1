"""What ``doctor`` says of Python: frameworks, their versions, and settings that matter here."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator, Mapping

from .compat import _install

# Libraries of which two in one process do not share streams or memory, or which stand in for another.
_LIBRARIES = re.compile(r"/(libamdhip64|libcuda|libcudart|libnccl|librccl)(-\w+)?\.so[.\d]*$")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _loaded() -> list[str]:
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    return sorted(path for path in paths if _LIBRARIES.search(path))


def lines(environment: Mapping[str, str] = os.environ) -> Iterator[tuple[str, str, str]]:
    """A mark (``ok``, ``-`` or ``!``), a name and what was found, a line each."""
    yield "ok", "interpreter", f"{platform.python_implementation()} {platform.python_version()}"
    for package in ("numpy", "torch", "jax"):
        version = _version(package)
        yield ("ok", package, version) if version else ("-", package, "not installed")
    for name in _install.MODULES:
        yield "ok", name, _install.description(name, environment)
    for path in _loaded():
        yield "ok", "loaded", path
    allocator = environment.get("PYTORCH_CUDA_ALLOC_CONF", "") + environment.get("PYTORCH_ALLOC_CONF", "")
    if "expandable_segments:True" in allocator.replace(" ", ""):
        yield "!", "torch's allocator", "expandable segments cannot be mapped by peers; tensors are staged (use World.empty for the direct path)"
    if "nccl" in environment.get("LD_PRELOAD", ""):
        yield "!", "LD_PRELOAD", environment["LD_PRELOAD"]


def print_lines() -> None:
    """Prints them as a section, in the form of the command's own."""
    print("python")
    for mark, name, found in lines():
        print(f"  {mark:<5} {name}: {found}")
