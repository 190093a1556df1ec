"""The runners of an `EmbeddedBroker`: a separate process, or a thread of this process."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import headrace
from headrace.broker.control import RunningBroker
from headrace.config import Secret
from headrace.errors import ConfigError, IllegalStateError, TimedOutError

if TYPE_CHECKING:
    from headrace.broker.service import Service

START_SECONDS_MAX = 60.0  # for the recovery of a large log; an empty broker takes less than half a second
STOP_SECONDS_MAX = 35.0  # a little more than the broker's limit
KILL_SECONDS_MAX = 10.0
LOG_TAIL_BYTES = 8000
READY_BYTES_MAX = 64 * 1024


class Runner(Protocol):
    """Runs a broker once."""

    @property
    def is_alive(self) -> bool: ...

    @property
    def log_text(self) -> str: ...

    def start(self) -> RunningBroker: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self, seconds_max: float) -> int: ...


class ProcessRunner:
    """A process that stops when its standard input is closed, also because this process has ended."""

    def __init__(self, options: dict[str, object], *, remove_data: bool) -> None:
        self._settings = json.dumps({"options": _as_json(options), "remove_data_dir": remove_data}).encode() + b"\n"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_text(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES)).decode(errors="replace")

    def start(self) -> RunningBroker:
        self._process = subprocess.Popen(
            # -P: do not import modules from the working directory.
            [sys.executable, "-P", "-m", "headrace.broker.main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C is for this process, which then stops the broker
        )
        try:
            return self._await_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def _await_ready(self, process: subprocess.Popen[bytes]) -> RunningBroker:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended; its log has the reason
            process.stdin.write(self._settings)
            process.stdin.flush()
        line = read_line(process.stdout.fileno(), START_SECONDS_MAX)
        if line is None:
            raise TimedOutError(
                f"timed out after {START_SECONDS_MAX:g} s waiting for the broker to start; {self._log_tail()}"
            )
        if not line:
            code = process.wait(KILL_SECONDS_MAX)
            raise IllegalStateError(f"the broker exited with code {code} at start-up; {self._log_tail()}")
        return ready_from(line)

    def stop(self) -> None:
        process = self._process
        assert process is not None
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            tail = self._log_tail()
            self.kill()
            raise TimedOutError(
                f"timed out after {STOP_SECONDS_MAX:g} s waiting for the broker to stop; {tail}"
            ) from None
        self._close_pipes(process)

    def kill(self) -> None:
        process = self._process
        assert process is not None
        process.kill()
        process.wait(KILL_SECONDS_MAX)
        self._close_pipes(process)

    def wait(self, seconds_max: float) -> int:
        assert self._process is not None
        try:
            return self._process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            raise TimedOutError(f"timed out after {seconds_max:g} s waiting for the broker to exit") from None

    def _log_tail(self) -> str:
        text = self.log_text.strip()
        return f"its log ends:\n{text}" if text else "it logged nothing"

    @staticmethod
    def _close_pipes(process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def ready_from(line: bytes) -> RunningBroker:
    """Parse the first line of a broker process; raise its error if it could not start."""
    message = json.loads(line)
    if "ready" in message:
        return RunningBroker(**message["ready"])
    kind = ConfigError if message["error"]["kind"] == "ConfigError" else IllegalStateError
    raise kind(message["error"]["message"])


def _as_json(options: dict[str, object]) -> dict[str, object]:
    """Return options in a form that can be sent to another process."""
    values: dict[str, object] = {}
    for name, value in options.items():
        plain = value.reveal() if isinstance(value, Secret) else value
        if not isinstance(plain, str | int | float | list | tuple | None):
            raise ConfigError(
                f"{name} is an object of type {type(value).__name__}, which cannot be sent to another process: pass "
                "the path of its class, or use in_process=True"
            )
        values[name] = plain
    return values


def child_environment() -> dict[str, str]:
    """Return the environment of a child process, with the path of this package if it is not installed."""
    environment = dict(os.environ)
    assert headrace.__file__ is not None
    root = Path(headrace.__file__).parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        paths = [path for path in (environment.get("PYTHONPATH"), str(root)) if path]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def read_line(fd: int, seconds_max: float) -> bytes | None:
    """Read a line from a pipe; empty if the pipe ends before, None at the timeout."""
    deadline = time.monotonic() + seconds_max
    line = b""
    while not line.endswith(b"\n") and len(line) < READY_BYTES_MAX:
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        if not (more := os.read(fd, READY_BYTES_MAX)):
            return b""
        line += more
    return line


class ThreadRunner:
    """A thread with an event loop."""

    log_text = ""  # it uses the logging of this process

    def __init__(self, options: dict[str, object]) -> None:
        self._options = options
        self._ready: Future[RunningBroker] = Future()
        self._thread = threading.Thread(target=self._run, name="headrace-broker", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: Service | None = None
        self._error: BaseException | None = None  # from stopping

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> RunningBroker:
        self._thread.start()
        try:
            return self._ready.result(START_SECONDS_MAX)
        except TimeoutError:
            raise TimedOutError(f"timed out after {START_SECONDS_MAX:g} s waiting for the broker to start") from None

    def stop(self) -> None:
        if self._thread.is_alive() and self._loop is not None and self._service is not None:
            with suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(self._service.stopping.set)
        self._thread.join(STOP_SECONDS_MAX)
        if self._thread.is_alive():
            raise TimedOutError(f"timed out after {STOP_SECONDS_MAX:g} s waiting for the broker to stop")
        if self._error is not None:
            raise self._error

    def kill(self) -> None:
        raise IllegalStateError("a broker in a thread cannot be killed: leave out in_process=True")

    def wait(self, seconds_max: float) -> int:
        self._thread.join(seconds_max)
        if self._thread.is_alive():
            raise TimedOutError(f"timed out after {seconds_max:g} s waiting for the broker to exit")
        return 0

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            if not self._ready.done():
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        # A broker in a process needs neither in this one.
        from headrace.broker.broker_options import resolve
        from headrace.broker.service import Service

        self._loop = asyncio.get_running_loop()
        self._service = Service(resolve(("argument", self._options)), may_crash=False)
        self._ready.set_result(await self._service.start())
        await self._service.stopping.wait()
        await self._service.stop()
