"""The fast path of `send()`: compiled where the kernel is, else the Python reference, which defines it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.wire.kernel import KERNEL_NAME

if TYPE_CHECKING or KERNEL_NAME == "python":
    from headrace.producer._send.reference import FastSend, RecordFuture, TopicAppender, run_callbacks
else:
    from headrace.producer._send.compiled import FastSend, RecordFuture, TopicAppender, run_callbacks

__all__ = ["FastSend", "RecordFuture", "TopicAppender", "run_callbacks"]
