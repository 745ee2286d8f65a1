"""Messages of a group, and batches of them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch.distributed import Work

from ._work import BatchWork, Buffers, HostWork
from ._world import Shared


class Messages:
    """Sends and receives of a group. Those of a batch are launched together."""

    _shared: Shared
    _communicator: Any
    _last: Work | None
    _begin_call: Callable[[], Buffers]
    _run: Callable[..., Work]
    # Messages between the start and the end of a batch, and their work.
    _messages: list | None = None
    _batch: BatchWork | None = None
    _batch_of: list | None = None
    # Whether torch gives a batch message by message, or between `start_coalescing` and `end_coalescing`.
    _is_called_by_message = False
    # Between `start_coalescing` and `end_coalescing`, whose work is that of the last call.
    _is_coalescing = False

    def _noted(self, work):
        if self._is_coalescing:
            self._last = work
        return work

    def recv_anysource(self, tensors, tag=0) -> Work:
        raise NotImplementedError("recv from any rank is not supported by the backend anabranch; give src")

    def _message(self, direction: str, tensors, peer: int, tag: int) -> Work:
        if tag != 0:
            raise NotImplementedError(f"tag {tag}: messages of the backend anabranch have no tags; those of a pair arrive in order")
        messages = [(direction, tensor, peer) for tensor in tensors]
        batch = self._batch_of_caller()
        if batch is not None and batch is not self._batch_of:
            self._flush()
            self._begin()
            self._batch_of = batch
        if self._messages is None or self._batch is None:
            return self._exchange(messages)
        self._messages += messages
        work = self._batch
        if self._batch_of is not None and len(self._messages) == len(self._batch_of):
            self._flush()
        return work

    def _batch_of_caller(self):
        """The list of ``batch_isend_irecv`` above. torch before 2.14 calls a group that is a Python class once for each message, and does
        not say where the batch ends. Messages in both directions have to be launched together: each waits for its peer."""
        frame = sys._getframe(3) if self._is_called_by_message else None
        for _ in range(6):
            if frame is None:
                return None
            if frame.f_code.co_name == "batch_isend_irecv" and frame.f_globals.get("__name__", "").startswith("torch.distributed"):
                return frame.f_locals["p2p_op_list"]
            frame = frame.f_back
        return None

    def _exchange(self, messages) -> Work:
        buffers, moved = self._begin_call(), []
        for direction, tensor, peer in messages:
            memory = buffers.input(tensor) if direction == "send" else buffers.output(tensor)
            moved.append((direction, (memory.data_ptr(), (memory.nbytes,), "uint8"), peer))
        batch = functools.partial(self._communicator.batch, moved)
        return self._run([lambda stream, _: batch(stream=stream)], buffers, [tensor for _, tensor, _ in messages])

    def _begin(self) -> None:
        self._messages, self._batch = [], BatchWork(self._flush)

    def _flush(self) -> None:
        """Launches the messages of a batch."""
        batch, messages = self._batch, self._messages
        self._batch = self._messages = self._batch_of = None
        if batch is not None and messages:
            batch.work = self._exchange(messages)

    def start_coalescing(self, _device=None) -> None:
        """Begins a batch of messages. Collectives run in order."""
        self._flush()
        self._last, self._is_coalescing = None, True
        self._begin()

    def end_coalescing(self, _device=None) -> Work:
        """Launches the batch, and returns a work that is done when all calls since its start are done."""
        self._flush()
        last, self._last, self._is_coalescing = self._last, None, False
        if last is None:
            last = HostWork(None, Buffers(self._shared.device), [])
            last.complete()
        return last

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing
    startCoalescing, endCoalescing = start_coalescing, end_coalescing
