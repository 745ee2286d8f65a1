"""The interfaces of DeepEP, ``Buffer`` and ``ElasticBuffer``, over this library: for engines that call it.

    ANABRANCH_DEEP_EP=1                              # plugins of vLLM and SGLang install it as deep_ep
    import anabranch.compat.deep_ep.install          # the same for other programs, before they import deep_ep

``docs/engines.md`` says what differs.
"""

import torch as _torch

from ._config import Config
from .buffer import Buffer
from .elastic import ElasticBuffer, EPHandle
from .utils import EventHandle, EventOverlap

# The version whose interface this is.
__version__ = "2.1.0"
topk_idx_t = _torch.int64
is_sm90_compiled = Buffer.is_sm90_compiled

__all__ = ["Buffer", "Config", "EPHandle", "ElasticBuffer", "EventHandle", "EventOverlap", "is_sm90_compiled", "topk_idx_t"]
