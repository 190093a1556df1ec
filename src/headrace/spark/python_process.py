"""Python processes of Spark: prepared for small batches, and with notes that those of an application share.

Spark's daemon calls `gc.collect()` after every task, plan and commit, in each of its processes. With the modules of
PySpark, pyarrow and headrace that is 15 ms of CPU time each, while Spark needs the cores for the next step of the
batch. `gc.freeze()` exempts from it what exists by now, which is almost everything.

Without `spark.python.unix.domain.socket.enabled`, Spark talks to its processes by TCP, and sends several small packets:
each waits for the acknowledgement of the one before it, which Linux delays by 40 ms.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

REUSED = "SPARK_REUSE_WORKER"
"""Spark sets this variable for processes that it uses again; only those run `gc.collect()`."""
_TO_SPARK = "outfile"
"""How the functions of PySpark name the connection with Spark."""
LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""Set by Spark for its Python processes."""
_own_notes: set[str] = set()
_prepared_pid = 0  # not a flag: Spark's daemon forks its processes


def prepare_process() -> None:
    """Prepare this process, if it is one that Spark uses again. To be called in every plan, task and commit."""
    global _prepared_pid
    if REUSED not in os.environ:
        return
    if _prepared_pid != os.getpid():
        _prepared_pid = os.getpid()
        gc.collect()
        gc.freeze()
    with contextlib.suppress(OSError, ValueError, AttributeError):  # not a socket, or closed
        _send_at_once(sys._getframe(1))


def _send_at_once(frame: FrameType | None) -> None:
    """Turn delays off on the TCP connection with Spark, which is an argument of one of the calling functions."""
    while frame is not None:
        file = frame.f_locals.get(_TO_SPARK)
        if file is not None:
            _turn_delays_off(file.fileno())
            return
        frame = frame.f_back


def _turn_delays_off(descriptor: int) -> None:
    is_blocking, copy = os.get_blocking(descriptor), os.dup(descriptor)
    try:
        connection = socket.socket(fileno=copy)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if sys.platform == "linux":  # it acknowledges at once what has arrived, and for a while
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        connection.detach()
    finally:
        os.close(copy)
        os.set_blocking(descriptor, is_blocking)  # the constructor changes it after socket.setdefaulttimeout()


def note(fact: str) -> bool:
    """Note a fact for all Python processes of the Spark application; return False if it was noted before.

    A note is an empty file in a folder of the application, which Spark deletes when it ends. Without such a folder, a
    process has its own notes.
    """
    path = _note_path(fact)
    if path is None:
        is_new = fact not in _own_notes
        _own_notes.add(fact)
        return is_new
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # the folder is gone, or full
        return True
    return True


def is_noted(fact: str) -> bool:
    path = _note_path(fact)
    return fact in _own_notes if path is None else path.exists()


def _note_path(fact: str) -> Path | None:
    folder = os.environ.get(LOCAL_DIRS, "").partition(",")[0]
    return Path(folder, f"headrace-{hashlib.sha256(fact.encode()).hexdigest()[:16]}") if folder else None
