"""SIGINT and SIGTERM: stopping gracefully on the first one, at once on the second."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, Self

import click

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Signal handlers for the length of a `with` block.

    The first signal sets `stop_requested` and prints `message`; the second one ends the process.
    """

    def __init__(self, message: str, before_exit: Callable[[], None] = lambda: None) -> None:
        """`before_exit` is called before the second signal ends the process, to restore the terminal."""
        self.stop_requested = threading.Event()
        self._message = message
        self._before_exit = before_exit
        self._previous_handlers: dict[int, Any] = {}

    def install(self) -> None:
        """Install the handlers; call it again after a library has replaced them, as PySpark does."""
        for number in _SIGNALS:
            handler = signal.signal(number, self._on_signal)
            self._previous_handlers.setdefault(number, handler)

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.stop_requested.is_set():
            self._before_exit()
            os._exit(128 + number)
        self.stop_requested.set()
        os.write(2, f"{self._message}\n".encode())  # click.echo is not reentrant


def show_cursor() -> None:
    """Show the cursor again, which a live display has hidden."""
    click.echo("\x1b[?25h", nl=False)


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, so that transactions are aborted and brokers released as on Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handler = signal.signal(signal.SIGTERM, _raise_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


@contextmanager
def deferred_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` on the first SIGINT or SIGTERM, and raise it at the end of the block; the second one acts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    previous_handlers = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)

    def on_signal(number: int, _: FrameType | None) -> None:
        received.append(number)
        restore()
        stop()

    for number in _SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield
    except KeyboardInterrupt:
        if not received:
            raise
    finally:
        restore()
    if received:
        raise KeyboardInterrupt if received[0] == signal.SIGINT else SystemExit(128 + received[0])


def _raise_exit(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
