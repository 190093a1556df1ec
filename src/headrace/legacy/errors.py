"""What only the 0.8 producer raises; the rest is in `headrace.errors`."""

from __future__ import annotations

from headrace.errors import HeadraceError


class QueueFullError(HeadraceError):
    """The queue had no room within `queue.enqueue.timeout.ms`; `dropped_count` messages were not taken."""

    _fields = ("dropped_count",)

    def __init__(self, message: str, *, dropped_count: int) -> None:
        super().__init__(message)
        self.dropped_count = dropped_count


class FailedToSendMessageError(HeadraceError):
    """The retries are spent, and `unsent_count` messages were not acknowledged. The rest of the call's were."""

    _fields = ("unsent_count",)

    def __init__(self, message: str, *, unsent_count: int) -> None:
        super().__init__(message)
        self.unsent_count = unsent_count
