"""Brokers on this machine: finding one by its data folder, calling it, and starting one for a command.

A command without -b uses the broker that runs on the default data folder. If none runs, it starts one, which lives as
long as any command uses it: the broker's stdin is a named pipe that every user holds open, and the broker stops when
the pipe is closed, however its users ended. Both sides of `headrace consume … | headrace produce …` share one broker,
whichever of them starts or ends first.
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
from typing import IO, Any, Self

import click

from headrace.broker import control
from headrace.broker.control import RunningBroker
from headrace.broker.runners import START_SECONDS_MAX, STOP_SECONDS_MAX, child_environment, read_line, ready_from
from headrace.cli.errors import BrokerNotRunningError
from headrace.errors import ConnectionFailedError, IllegalStateError, TimedOutError

GUARD_NAME = ".users"
START_LOCK_NAME = ".starting"
SETTLE_SECONDS_MAX = 10.0
"""How long the broker of the previous command may take to release the folder."""
SHARED_SECONDS_MAX = 0.2
"""A broker without users begins to stop within this time; one that does not has other users."""
KILL_SECONDS_MAX = 10.0
LOG_TAIL_BYTES = 2000
GUARD_BYTES_MAX = 64 * 1024
_POLL_SECONDS = 0.01

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data folder of the broker. [default: $XDG_STATE_HOME/headrace/broker]",
)


def default_data_dir() -> Path:
    """Return the default data folder of a broker, in the user's state folder (XDG)."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "headrace" / "broker"


def call(data_dir: Path | None, op: str, **arguments: Any) -> Any:
    """Call an operation of the broker that runs on a data folder."""
    folder = (data_dir or default_data_dir()).absolute()
    run_file = control.read_run_file(folder)
    if run_file is not None:
        try:
            return control.call(run_file["control"], op, **arguments)
        except ConnectionFailedError:
            if is_alive(int(run_file["pid"])):
                raise
    hint = "" if data_dir else ", or name another folder with --data-dir"
    raise BrokerNotRunningError(f"no broker runs on {folder}; start one with `headrace broker start`{hint}")


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user, or a system without /proc
        return True


@dataclass(slots=True)
class LocalBroker:
    """A running broker, and this process's hold on it."""

    bootstrap: str
    pid: int
    folder: Path
    started: bool = False
    """Whether it was started for this command."""
    guard_fd: int | None = None
    """The write end of the named pipe; None if the broker does not depend on its users."""
    process: subprocess.Popen[bytes] | None = None

    def release(self) -> None:
        """Release the broker. If nobody else uses it, wait until it has stopped."""
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


def find_broker(folder: Path) -> LocalBroker | None:
    """Return the broker that runs on a folder, held, or None."""
    run_file = control.read_run_file(folder)
    if run_file is None:
        return None
    broker = LocalBroker(run_file["bootstrap"], int(run_file["pid"]), folder, guard_fd=_open_guard(folder))
    try:
        # Twice: the first response may come from a broker whose last user has just left, the second one cannot.
        for _ in range(2):
            control.call(run_file["control"], "ping")
    except ConnectionFailedError:
        broker.release()
        return None
    return broker


def _open_guard(folder: Path) -> int | None:
    try:
        return os.open(folder / GUARD_NAME, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no reader: the broker was not started for a command
        return None


def find_or_start_broker(folder: Path) -> LocalBroker:
    """Return the broker of a folder; start it if it does not run."""
    folder = folder.absolute()
    if (broker := find_broker(folder)) is not None:
        return broker
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    with _start_lock(folder):
        while True:
            if (broker := find_broker(folder)) is not None:
                return broker
            try:
                return _start(folder)
            except IllegalStateError:  # the folder is locked: the previous broker is still stopping
                if time.monotonic() > deadline:
                    raise


@contextmanager
def _start_lock(folder: Path) -> Iterator[None]:
    """Allow one command at a time to start a broker; the others wait and then find it."""
    fd = os.open(folder / START_LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + START_SECONDS_MAX
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise TimedOutError(
                    f"timed out after {START_SECONDS_MAX:g} s waiting for another command that starts a broker on "
                    f"{folder}; try again"
                )
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(fd)


def _start(folder: Path) -> LocalBroker:
    read_fd, write_fd = _create_guard(folder)
    options = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder), "group.initial.rebalance.delay.ms": "0"}
    os.write(write_fd, json.dumps({"options": options, "remove_data_dir": False}).encode() + b"\n")
    try:
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "headrace.broker.main"],
                stdin=read_fd,
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_environment(),
                start_new_session=True,  # Ctrl-C is for this process only
            )
            ready = _wait_until_ready(process, log)
    except BaseException:
        os.close(write_fd)
        raise
    finally:
        os.close(read_fd)
    return LocalBroker(ready.bootstrap, ready.pid, folder, started=True, guard_fd=write_fd, process=process)


def _create_guard(folder: Path) -> tuple[int, int]:
    """Return both ends of the named pipe.

    Reading never blocks: the broker reads when its last user has left, and a new one may have come by then.
    """
    path = folder / GUARD_NAME
    with suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    read_fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    write_fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with suppress(BlockingIOError):  # discard the bytes of a failed start if somebody still holds the pipe
        os.read(read_fd, GUARD_BYTES_MAX)
    return read_fd, write_fd


def _wait_until_ready(process: subprocess.Popen[bytes], log: IO[bytes]) -> RunningBroker:
    assert process.stdout is not None
    try:
        line = read_line(process.stdout.fileno(), START_SECONDS_MAX)
        if line:
            return ready_from(line)
        size = os.fstat(log.fileno()).st_size
        tail = os.pread(log.fileno(), LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES)).decode(errors="replace").strip()
        failure = "exited during start-up" if line == b"" else f"was not ready after {START_SECONDS_MAX:g} s"
        raise TimedOutError(f"the broker {failure}; {f'end of its log: {tail}' if tail else 'its log is empty'}")
    except BaseException:
        process.kill()
        process.wait(KILL_SECONDS_MAX)
        raise
    finally:
        process.stdout.close()
