"""Settings and sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import anabranch

# Defaults of keywords that this module does not know, of DeepEP's branch hybrid-ep and of SGLang's fork, where they are not false.
_DEFAULTS: dict[str, Any] = {"allow_nvlink_for_normal_mode": True, "block_m": 64, "num_sms": 3}
# Most experts a token names, for sizes that are asked for before it is known.
_MOST_TOP_K = 32
# Elements with one scale.
BLOCK = 128


def refuse_unknown(call: str, keywords: Mapping[str, Any]) -> None:
    """Raises for keywords of ``call`` that ask for something: others are ``None``, false, 0 or the default that DeepEP documents."""
    asked = [
        f"{name}={value!r}"
        for name, value in keywords.items()
        if not (value is None or (isinstance(value, (bool, int, float, str)) and (not value or value == _DEFAULTS.get(name))))
    ]
    if asked:
        raise anabranch.UsageError(f"{call}: {', '.join(asked)} is not supported; leave it out")


class Settings(NamedTuple):
    """What the interface of DeepEP has no place for, from the environment."""

    max_tokens: int
    """``ANABRANCH_DEEP_EP_MAX_TOKENS``: most tokens that a rank dispatches in one call of normal mode."""
    slots: int
    """``ANABRANCH_DEEP_EP_SLOTS``: dispatches of normal mode that keep their windows until their combine."""
    mask_after: float
    """``ANABRANCH_DEEP_EP_MASK_SECONDS``: with ``enable_shrink``, how long low-latency operations wait for a rank."""

    @staticmethod
    def read(environment: Mapping[str, str] = os.environ) -> Settings:
        """Those of the environment; ``anabranch.ConfigError`` for values that are no positive numbers."""

        def number(name: str, default: float, kind: type) -> Any:
            text = environment.get(name, str(default))
            try:
                value = kind(text)
            except ValueError:
                value = 0
            if value <= 0:
                raise anabranch.ConfigError(f"{name} is {text!r}; allowed are positive numbers")
            return value

        return Settings(
            number("ANABRANCH_DEEP_EP_MAX_TOKENS", 4096, int),
            number("ANABRANCH_DEEP_EP_SLOTS", 1, int),
            number("ANABRANCH_DEEP_EP_MASK_SECONDS", 5.0, float),
        )


def _flags(ranks: int) -> int:
    """Flags and counts of a slot."""
    return ranks * (2 * 128 + 8 * ranks + 128) + (64 << 10)


def normal_bytes(hidden_bytes: int, ranks: int, settings: Settings) -> int:
    """Bytes of the heap that plans of normal mode take at most, with rows of ``hidden_bytes`` bytes in bfloat16."""
    meta = 8 + 8 * _MOST_TOP_K + 4 * (hidden_bytes // 2 // BLOCK) + 16
    return settings.slots * (ranks * settings.max_tokens * (2 * hidden_bytes + meta + 4 * _MOST_TOP_K) + _flags(ranks))


def low_latency_bytes(max_tokens: int, hidden: int, ranks: int) -> int:
    """The same for low-latency mode, with two dispatches under way, and the weights of their combines."""
    meta = 8 + 8 * _MOST_TOP_K + 4 * (hidden // BLOCK) + 16
    rows = ranks * max_tokens * (4 * hidden + meta)
    weights = ranks * max_tokens * 4 * _MOST_TOP_K
    return 2 * (rows + weights + 2 * _flags(ranks))


class Config:
    """DeepEP's parameters of normal mode. ``num_sms`` and the sizes of chunks have no effect: launches are tuned by
    ``python -m anabranch tune ep``."""

    def __init__(
        self,
        num_sms: int = 20,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ) -> None:
        self.num_sms = num_sms

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of the heap that normal mode takes at most, of rows with ``hidden_bytes`` bytes in bfloat16."""
        return normal_bytes(hidden_bytes, num_ranks, Settings.read())

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0: all memory is in one heap."""
        return 0
