"""The broker on a data folder, for a command that was not told of another one.

One that runs is used. Where none runs, one is started, and lives as long as any command uses it: its standard input is
a named pipe that every user holds open, and the end of that is the end of the broker, however its users ended. So both
ends of `headrace consume … | headrace produce …` share one broker, whichever of them came first and goes first.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from headrace.broker import control
from headrace.broker.control import Ready
from headrace.broker.runners import START_SECONDS_MAX, STOP_SECONDS_MAX, child_environment, read_line, ready_from
from headrace.cli.running import is_alive
from headrace.errors import ConnectionFailedError, IllegalStateError, TimedOutError

GUARD_NAME = ".users"
STARTING_NAME = ".starting"
SETTLE_SECONDS_MAX = 10.0
"""How long the broker of the command before may take to leave the folder."""
SHARED_SECONDS_MAX = 0.2
"""A broker without users begins to stop within this; one that does not has other users."""
KILL_SECONDS_MAX = 10.0
LOG_TAIL_BYTES = 2000
GUARD_BYTES_MAX = 64 * 1024
_POLL_SECONDS = 0.01


@dataclass(slots=True)
class BorrowedBroker:
    """A broker that runs, and our hold on it."""

    bootstrap: str
    pid: int
    folder: Path
    started: bool = False
    """By us, for this command."""
    guard_fd: int | None = None
    """Our end of the named pipe; None: it does not depend on its users."""
    process: subprocess.Popen[bytes] | None = None

    def release(self) -> None:
        """Let go of it. If nobody else holds it, it stops in good order, and is waited for."""
        if self.guard_fd is None:
            return
        os.close(self.guard_fd)
        self.guard_fd = None
        deadline = time.monotonic() + SHARED_SECONDS_MAX
        while control.read_run_file(self.folder) is not None:
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_SECONDS)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while is_alive(self.pid) and time.monotonic() < deadline:
            if self.process is not None:
                self.process.poll()
            time.sleep(_POLL_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


def find(folder: Path) -> BorrowedBroker | None:
    """The broker that runs on a folder, held; None if there is none."""
    facts = control.read_run_file(folder)
    if facts is None:
        return None
    found = BorrowedBroker(facts["bootstrap"], int(facts["pid"]), folder, guard_fd=_hold(folder))
    try:
        # Twice: the first answer may come from a broker whose last user has just left, the second one cannot.
        for _ in range(2):
            control.call(facts["control"], "ping")
    except ConnectionFailedError:
        found.release()
        return None
    return found


def _hold(folder: Path) -> int | None:
    try:
        return os.open(folder / GUARD_NAME, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no broker reads it: the one that runs was started for its own sake
        return None


def find_or_start(folder: Path) -> BorrowedBroker:
    """The broker of a folder, started if it does not run."""
    folder = folder.absolute()
    if (found := find(folder)) is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    with _alone(folder):
        while True:
            if (found := find(folder)) is not None:
                return found
            try:
                return _start(folder)
            except IllegalStateError:  # the folder is locked: the broker before is still on its way out
                if time.monotonic() > deadline:
                    raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One command at a time starts a broker; the others wait for it, and then find it."""
    fd = os.open(folder / STARTING_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + START_SECONDS_MAX
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise TimedOutError(f"another command has been starting a broker on {folder} for too long; try again")
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(fd)


def _start(folder: Path) -> BorrowedBroker:
    reading, writing = _make_guard(folder)
    options = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder), "group.initial.rebalance.delay.ms": "0"}
    os.write(writing, json.dumps({"options": options, "remove_data_dir": False}).encode() + b"\n")
    try:
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "headrace.broker.main"],
                stdin=reading,
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_environment(),
                start_new_session=True,  # Ctrl-C is for us
            )
            ready = _await_ready(process, log)
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return BorrowedBroker(ready.bootstrap, ready.pid, folder, started=True, guard_fd=writing, process=process)


def _make_guard(folder: Path) -> tuple[int, int]:
    """Both ends of the named pipe.

    Reading never blocks: the broker looks at it when its last user is gone, and a new one may have come by then.
    """
    path = folder / GUARD_NAME
    with suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    writing = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with suppress(BlockingIOError):  # what a start that failed has left, if somebody still holds the pipe
        os.read(reading, GUARD_BYTES_MAX)
    return reading, writing


def _await_ready(process: subprocess.Popen[bytes], log: IO[bytes]) -> Ready:
    assert process.stdout is not None
    try:
        line = read_line(process.stdout.fileno(), START_SECONDS_MAX)
        if line:
            return ready_from(line)
        size = os.fstat(log.fileno()).st_size
        said = os.pread(log.fileno(), LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES)).decode(errors="replace").strip()
        how = "ended at its start" if line == b"" else f"was not ready after {START_SECONDS_MAX:g} s"
        raise TimedOutError(f"the broker {how}; its log ends: {said or 'nowhere, it is empty'}")
    except BaseException:
        process.kill()
        process.wait(KILL_SECONDS_MAX)
        raise
    finally:
        process.stdout.close()
