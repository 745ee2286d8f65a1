"""Events of streams, under DeepEP's names."""

from __future__ import annotations

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

    def current_stream_wait(self) -> None:
        """The current stream waits for the event. Raises ``ValueError`` where there is none: the call had no ``async_finish``."""
        if self.event is None:
            raise ValueError("this call has no event to wait for; give it async_finish=True")
        self.event.current_stream_wait()

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *error: object) -> None:
        if self.event is not None:
            self.current_stream_wait()
