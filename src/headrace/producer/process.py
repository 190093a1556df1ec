"""Open producers at the end of the process and after fork()."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class ProcessListener(Protocol):
    """Implemented by the engine of each kind of producer."""

    def warn_of_undelivered(self) -> None:
        """Called at exit, if the producer was not closed."""

    def after_fork_in_child(self) -> None:
        """Called in the child of a fork(): the I/O thread is in the parent only."""


_open: weakref.WeakSet[ProcessListener] = weakref.WeakSet()

register = _open.add
unregister = _open.discard


@atexit.register
def _at_exit() -> None:
    for producer in list(_open):
        producer.warn_of_undelivered()


def _after_fork_in_child() -> None:
    for producer in list(_open):
        producer.after_fork_in_child()
    _open.clear()  # undelivered records are the parent's to deliver


os.register_at_fork(after_in_child=_after_fork_in_child)
