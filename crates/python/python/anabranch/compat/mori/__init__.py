"""The interface of mori's dispatch and combine over this library: for engines that call it.

    ANABRANCH_MORI=1                              # plugins of vLLM and SGLang install it as mori
    import anabranch.compat.mori.install          # the same for other programs, before they import mori

``docs/engines.md`` says what differs.
"""

from . import ops, shmem

__all__ = ["ops", "shmem"]
