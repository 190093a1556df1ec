"""Consumers that were not closed, and are collected as garbage: their I/O thread ends, and the group is left."""

from __future__ import annotations

import os
import warnings
import weakref
from typing import Protocol


class Engine(Protocol):
    """The engine of a consumer, which its I/O thread keeps alive."""

    @property
    def is_closed(self) -> bool: ...
    def stop(self) -> None:
        """Leave the group and end the I/O thread, without waiting. Any thread."""


def watch(consumer: object, engine: Engine) -> None:
    """Stop the engine when its consumer is gone."""
    weakref.finalize(consumer, _on_gone, engine, repr(consumer), os.getpid()).atexit = False


def _on_gone(engine: Engine, description: str, pid: int) -> None:
    if engine.is_closed or os.getpid() != pid:
        return
    engine.stop()
    text = f"{description} was not closed: call close(), or use it in a with block"
    warnings.warn(text, ResourceWarning, stacklevel=2)
