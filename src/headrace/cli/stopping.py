"""Ctrl-C and SIGTERM: the first asks to stop in good order, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import click

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """From `with` on, the first signal sets `asked` and says `first`, and the second one ends the process."""

    def __init__(self, first: str, abandon: Callable[[], None] = lambda: None) -> None:
        """`abandon` is called before the process is ended, to put a terminal in order."""
        self.asked = threading.Event()
        self._first = first
        self._abandon = abandon
        self._before: dict[int, Any] = {}

    def arm(self) -> None:
        """Take the signals; again, after somebody else has done so (PySpark does when it makes a context)."""
        for number in _SIGNALS:
            handler = signal.signal(number, self._on_signal)
            self._before.setdefault(number, handler)

    def __enter__(self) -> Self:
        self.arm()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.asked.is_set():
            self._abandon()
            os._exit(128 + number)
        self.asked.set()
        os.write(2, f"{self._first}\n".encode())  # not click.echo: the signal may have come in the middle of one


def show_cursor() -> None:
    """A live display hides it."""
    click.echo("\x1b[?25h", nl=False)
