"""Which modules ``deep_ep`` and ``mori`` are. Imports nothing else, so that plugins cost nothing where they are not asked for."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Mapping

# What can be installed, with the modules that engines import.
MODULES = {"deep_ep": ("", ".buffer", ".utils"), "mori": ("", ".ops", ".shmem")}
# Names of DeepEP 2.1 for parts of ours.
ALIASES = {"deep_ep": {".buffers": "", ".buffers.legacy": ".buffer", ".buffers.elastic": ".elastic", ".utils.event": ".utils"}, "mori": {}}


def _ours(name: str) -> str:
    return f"anabranch.compat.{name}"


def variable(name: str) -> str:
    """The variable by which plugins are asked to install a module."""
    return f"ANABRANCH_{name.upper()}"


def is_installed(name: str) -> bool:
    """Whether ``name`` is this package's in this process."""
    return name in sys.modules and sys.modules[name] is sys.modules.get(_ours(name))


def _other(name: str) -> str | None:
    """Where another module of that name is."""
    if is_installed(name):
        return None
    spec = importlib.util.find_spec(name)
    return None if spec is None else spec.origin or name


def install(name: str, *, replace: bool) -> bool:
    """Makes ``import name`` give this package's module; whether it does. Another one stays, unless ``replace``. Raises ``RuntimeError`` where
    that would replace one which is imported already."""
    if is_installed(name):
        return True
    other = _other(name)
    if other is not None and not replace:
        logging.getLogger(f"anabranch.{name}").warning("%s is %s; %s=force puts anabranch in its place", name, other, variable(name))
        return False
    if name in sys.modules:
        raise RuntimeError(f"{name} is imported already, from {other}; install anabranch's before")
    for part in MODULES[name]:
        sys.modules[name + part] = importlib.import_module(_ours(name) + part)
    for alias, part in ALIASES[name].items():
        sys.modules[name + alias] = importlib.import_module(_ours(name) + part)
    return True


def plugin() -> None:
    """The entry point of vLLM's and SGLang's plugins. ``ANABRANCH_DEEP_EP`` and ``ANABRANCH_MORI`` are ``1`` or ``force``; unset, empty or
    ``0`` nothing is installed."""
    for name in MODULES:
        asked = os.environ.get(variable(name), "")
        if asked in ("", "0"):
            continue
        if asked not in ("1", "force"):
            raise ValueError(f"{variable(name)} is {asked!r}; allowed are 0, 1 and force")
        install(name, replace=asked == "force")


def description(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Which module engines get, for ``doctor``."""
    other, asked = _other(name), environment.get(variable(name), "")
    if is_installed(name) or asked == "force" or (asked == "1" and other is None):
        return "anabranch's (in vLLM and SGLang by their plugins)"
    if other is None:
        return f"not installed; {variable(name)}=1 gives engines anabranch's"
    return f"{other}" + (f"; {variable(name)}=force puts anabranch's in its place" if asked == "1" else "")
