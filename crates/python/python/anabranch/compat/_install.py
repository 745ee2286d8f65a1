"""Which module ``deep_ep`` is. Imports nothing else, so that plugins cost nothing where they are not asked for."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Mapping

_OURS = "anabranch.compat.deep_ep"
_MODULES = ("", ".buffer", ".utils")
_LOG = logging.getLogger("anabranch.deep_ep")


def is_installed() -> bool:
    """Whether ``deep_ep`` is this package in this process."""
    return "deep_ep" in sys.modules and sys.modules["deep_ep"] is sys.modules.get(_OURS)


def _other() -> str | None:
    """Where another ``deep_ep`` is."""
    if is_installed():
        return None
    spec = importlib.util.find_spec("deep_ep")
    return None if spec is None else spec.origin or "deep_ep"


def install(*, replace: bool) -> bool:
    """Makes ``import deep_ep`` give this package; whether it does. Another ``deep_ep`` stays, unless ``replace``. Raises ``RuntimeError`` where
    that would replace one which is imported already."""
    if is_installed():
        return True
    other = _other()
    if other is not None and not replace:
        _LOG.warning("deep_ep is %s; ANABRANCH_DEEP_EP=force puts anabranch in its place", other)
        return False
    if "deep_ep" in sys.modules:
        raise RuntimeError(f"deep_ep is imported already, from {other}; install anabranch's before")
    for name in _MODULES:
        sys.modules["deep_ep" + name] = importlib.import_module(_OURS + name)
    return True


def plugin() -> None:
    """The entry point of vLLM's and SGLang's plugins: ``ANABRANCH_DEEP_EP`` is ``1`` or ``force``; unset, empty or ``0`` it does nothing."""
    asked = os.environ.get("ANABRANCH_DEEP_EP", "")
    if asked in ("", "0"):
        return
    if asked not in ("1", "force"):
        raise ValueError(f"ANABRANCH_DEEP_EP is {asked!r}; allowed are 0, 1 and force")
    install(replace=asked == "force")


def description(environment: Mapping[str, str] = os.environ) -> str:
    """Which ``deep_ep`` engines get, for ``doctor``."""
    other, asked = _other(), environment.get("ANABRANCH_DEEP_EP", "")
    if is_installed() or asked == "force" or (asked == "1" and other is None):
        return "anabranch's (in vLLM and SGLang by their plugins)"
    if other is None:
        return "not installed; ANABRANCH_DEEP_EP=1 gives engines anabranch's"
    return f"{other}" + ("; ANABRANCH_DEEP_EP=force puts anabranch's in its place" if asked == "1" else "")
