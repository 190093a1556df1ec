"""What the end of the process, and fork(), mean for producers that are open."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class OpenProducer(Protocol):
    """What is asked of a producer here."""

    def _warn_of_undelivered(self) -> None: ...
    def _after_fork_in_child(self) -> None: ...


_open: weakref.WeakSet[OpenProducer] = weakref.WeakSet()

opened = _open.add
closed = _open.discard


@atexit.register
def _at_exit() -> None:
    """A process that ends with records still queued loses them."""
    for producer in list(_open):
        producer._warn_of_undelivered()


def _after_fork_in_child() -> None:
    for producer in list(_open):
        producer._after_fork_in_child()
    _open.clear()  # what is undelivered is the parent's to deliver


os.register_at_fork(after_in_child=_after_fork_in_child)
