"""Events of streams, under DeepEP's names."""

from __future__ import annotations

from collections.abc import Callable

import torch


class EventHandle:
    """The work that was on the current stream when this was made. Tensors of the CPU have no stream: there it stands for no work."""

    def __init__(self) -> None:
        self._event = torch.cuda.current_stream().record_event() if torch.cuda.is_available() else None

    def current_stream_wait(self) -> None:
        """The current stream waits for the work; the host does not."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)


class EventOverlap:
    """An event to wait for, or none. As a context manager, the current stream waits for it at the end of the block.

    Attributes:
        event: the event, or ``None``.
        extra_tensors: tensors that live as long as this.
    """

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[torch.Tensor, ...] | None = None) -> None:
        self.event, self.extra_tensors = event, extra_tensors
        self._hook: Callable[[], None] | None = None
        self._is_released_after = False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """The current stream waits for the event, which ``release_handle`` then drops. Raises ``ValueError`` where there is none: the call
        had no ``async_finish``."""
        if self.event is None:
            raise ValueError("this call has no event to wait for; give it async_finish=True (ElasticBuffer: async_with_compute_stream=True)")
        self.event.current_stream_wait()
        hook, self._hook = self._hook, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], None]) -> None:
        """Calls ``hook_after_wait`` once, after the next wait."""
        if self._hook is not None:
            raise ValueError("this event has a hook that was not called yet")
        self._hook = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        """For ``with event(release_handle=True):``."""
        self._is_released_after = release_handle
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *error: object) -> None:
        if self.event is not None:
            self.current_stream_wait(self._is_released_after)
        self._is_released_after = False


def recorded(is_async: bool) -> EventOverlap:
    """What a call returns: an event of its work, or none."""
    return EventOverlap(EventHandle() if is_async else None)


def wait_for(event: EventHandle | EventOverlap | None) -> None:
    """The current stream waits for an event that a call was given; its hook is called then."""
    if event is not None and not (isinstance(event, EventOverlap) and event.event is None):
        event.current_stream_wait()


def used_on_current_stream(*tensors: torch.Tensor) -> None:
    """Memory of these tensors, of another stream perhaps, is not given away before the current stream's work until then is over."""
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
