"""Works of the backend: what a collective returns, and what completes it."""

from __future__ import annotations

import queue
import threading
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Work
from torch.distributed import DistBackendError

from anabranch import _native

from ._world import Shared, reported


class Buffers:
    """Contiguous memory of a call's tensors. Copies those that are not contiguous, and keeps all until the call is over."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._kept: list[torch.Tensor] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _check(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided:
            raise NotImplementedError(f"the backend anabranch takes dense tensors; this one has the layout {tensor.layout}")
        if tensor.device != self.device:
            raise ValueError(
                f"a tensor is on {tensor.device}; the backend anabranch uses {self.device} on this rank (on GPUs the device of the local "
                "rank: call torch.cuda.set_device(local_rank))"
            )

    def input(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor's values in contiguous memory."""
        self._check(tensor)
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        self._kept.append(tensor)
        return tensor

    def output(self, tensor: torch.Tensor, *, is_input: bool = False) -> torch.Tensor:
        """Contiguous memory whose values the tensor has after :meth:`copy_back`; with its values now if ``is_input``."""
        self._check(tensor)
        self._kept.append(tensor)
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return tensor
        if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape)):
            raise ValueError(f"several elements of the output are one place: its shape is {tuple(tensor.shape)}, its strides {tensor.stride()}")
        tensor = tensor.detach()
        contiguous = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if is_input:
            contiguous.copy_(tensor)
        self._copies.append((tensor, contiguous))
        self._kept.append(contiguous)
        return contiguous

    def join(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The values of the tensors, one after the other."""
        return self.input(torch.cat([self.input(tensor).detach().view(-1) for tensor in tensors]))

    def split(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Memory for all of the tensors, one after the other, from which :meth:`copy_back` fills them."""
        for tensor in tensors:
            self._check(tensor)
        sizes = [tensor.numel() for tensor in tensors]
        flat = torch.empty(sum(sizes), dtype=tensors[0].dtype, device=self.device)
        for tensor, part in zip(tensors, flat.split(sizes)):
            self._copies.append((tensor.detach(), part.view(tensor.shape)))
        self._kept.append(flat)
        return flat

    @property
    def has_copies(self) -> bool:
        """Whether :meth:`copy_back` has something to do."""
        return bool(self._copies)

    def copy_back(self) -> None:
        """Fills the tensors that are not contiguous, on the current stream."""
        for target, source in self._copies:
            target.copy_(source)

    def release(self) -> None:
        """Lets go of the memory."""
        self._kept.clear()
        self._copies.clear()


class HostWork(Work):
    """A work on the CPU. Done when the results are in memory."""

    def __init__(self, native, buffers: Buffers, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._native = native
        self._buffers: Buffers = buffers
        self._result = result
        self._inference = torch.is_inference_mode_enabled()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._source: torch.futures.Future | None = None
        self._future: torch.futures.Future | None = None

    def complete(self) -> None:
        """Waits for the call, and completes the work and its future."""
        try:
            with reported(), torch.inference_mode(self._inference), torch.no_grad():
                if self._native is not None:
                    self._native.join()
                self._buffers.copy_back()
        except Exception as error:
            self._error = error
        self._native = None
        self._buffers.release()
        with self._lock:
            self._done.set()
            source = self._source
        if source is not None:
            source.set_result(None)

    def _outcome(self, _source) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until the results are there. Raises what made the work fail."""
        if not self._done.wait(timeout.total_seconds() or None):
            raise DistBackendError(f"the work is not done after {timeout.total_seconds()} s; it goes on")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Whether the work is done or has failed."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Whether the work is done and has not failed."""
        return self._done.is_set() and self._error is None

    def exception(self) -> Exception | None:
        """What made the work fail."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The output tensors."""
        return self._result

    def get_future(self) -> torch.futures.Future:
        """A future with the output tensors. It raises ``RuntimeError`` with the message of what made the work fail."""
        with self._lock:
            if self._future is not None:
                return self._future
            # `Future.set_exception` is known to that Python object alone: C++ code, DDP's too, would take the exception for the value. An
            # exception in `then` is an error of the future itself.
            self._source = torch.futures.Future()
            self._future = self._source.then(self._outcome)
            is_done = self._done.is_set()
        if is_done:
            self._source.set_result(None)
        return self._future


class StreamWork(Work):
    """A work on a GPU. Waiting orders the current stream after it; only a barrier's wait blocks the host.

    A work that ran on the current stream of its call, ``side`` being ``None``, has no event: the order of the stream is enough.
    """

    def __init__(self, shared: Shared, streams: tuple[int, int], side, native, buffers: Buffers, result: list[torch.Tensor], is_barrier: bool) -> None:
        super().__init__()
        self._shared = shared
        # The current stream of the call, and that of the work.
        self._caller, self._stream = streams
        self._side = side
        self._native = native
        # The event of the native work is before the copies.
        self._copied = side.record_event() if side is not None and buffers.has_copies else None
        self._buffers = buffers
        self._result = result
        self._is_barrier = is_barrier
        self._future: torch.futures.Future | None = None

    def _order(self, current: int) -> None:
        """Makes the current stream wait for the work."""
        if current == self._stream:
            return
        if self._copied is not None:
            self._copied.wait()
        elif self._native is not None:
            self._native.wait_on(current)
        else:
            _native.raw_order(self._shared.world, current, self._stream)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Makes the current stream wait for the work. Raises what made the world fail."""
        shared = self._shared
        current = shared.current_stream()
        with reported():
            self._order(current)
            # The allocator may now give the memory to later work of the stream that it is of.
            if self._side is None or current == self._caller:
                self._buffers.release()
            if self._is_barrier:
                shared.world.synchronize(current, timeout=timeout.total_seconds() or None)
            else:
                shared.world.check()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Whether the GPU has done the work, and for a work without an event all that its stream has now."""
        if self._copied is not None:
            return self._copied.query()
        return self._torch_stream().query() if self._native is None else self._native.poll()

    def _torch_stream(self):
        return self._side or torch.cuda.ExternalStream(self._stream, self._shared.device)

    def is_success(self) -> bool:
        """Whether the GPU has done the work and the world has not failed."""
        return self.exception() is None and self.is_completed()

    def exception(self) -> Exception | None:
        """What made the world fail."""
        try:
            with reported():
                self._shared.world.check()
        except Exception as error:
            return error
        return None

    def result(self) -> list[torch.Tensor]:
        """The output tensors."""
        return self._result

    def get_future(self) -> torch.futures.Future:
        """A future with the output tensors. Its callbacks run on streams that wait for the work."""
        if self._future is None:
            self._future = torch.futures.Future(devices=[self._shared.device])
            # The future records events of the current stream.
            with torch.cuda.stream(self._torch_stream()):
                self._future.set_result(self._result)
        return self._future


class BatchWork(Work):
    """The work of a message in a batch, which is launched as a whole after its last message."""

    def __init__(self, launch) -> None:
        super().__init__()
        self._launch = launch
        self.work: Work | None = None

    def _launched(self) -> Work:
        if self.work is None:
            self._launch()
        if self.work is None:
            raise RuntimeError("the batch of this message was not launched")
        return self.work

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return self._launched().wait(timeout)

    def synchronize(self) -> None:
        self._launched().wait()

    def is_completed(self) -> bool:
        return self._launched().is_completed()

    def is_success(self) -> bool:
        return self._launched().is_success()

    def exception(self) -> Exception | None:
        return self._launched().exception()

    def result(self) -> list[torch.Tensor]:
        return self._launched().result()

    def get_future(self) -> torch.futures.Future:
        return self._launched().get_future()


class Completer:
    """A thread that completes the asynchronous works of a group in order. It starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._works: queue.SimpleQueue[HostWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, work: HostWork) -> None:
        if self._thread is threading.current_thread():
            # A callback of a future made the call, and may wait for it.
            work.complete()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._works.put(work)

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            work.complete()
            del work

    def stop(self) -> None:
        """Ends the thread after its last work."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._works.put(None)
            if thread is not threading.current_thread():
                thread.join()
