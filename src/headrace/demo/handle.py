"""Our end of the driver's process: started, listened to, killed.

start → events (by a thread of ours) → take → … → kill, or close: nothing of it is left
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.demo.processes import Process, descendants, find, spark_workers
from headrace.spark.commit_times import LEVEL, CommitTimes
from headrace.spark.local_session import package_root

KILL_SECONDS_MAX = 10.0
LOG_TAIL_BYTES = 3000
LINE_BYTES_MAX = 1024 * 1024
_POLL_SECONDS = 0.02

Event = dict[str, Any]


class DriverHandle:
    """One run of the driver."""

    def __init__(self, settings: Mapping[str, Any], folder: Path, log: Path) -> None:
        """`folder` is where all that Spark leaves is to be; `log` gets its standard error."""
        self.log = log
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._family: list[Process] = []
        self._read_bytes = 0
        self._rest = b""
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "headrace.demo.driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                cwd=folder,
                env=_environment(folder),
                start_new_session=True,  # a group of its own: Ctrl-C is for us, and it is killed as a whole
            )
        self._say(json.dumps(settings))
        self._reader = threading.Thread(target=self._listen, name="headrace-demo-events", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def take(self) -> Iterator[Event]:
        """The events that have come since it was last asked."""
        with suppress(queue.Empty):
            while True:
                yield self._events.get_nowait()

    def commits(self) -> Iterator[CommitTimes]:
        """The commits that the log has got since it was last asked."""
        with self.log.open("rb") as lines:
            lines.seek(self._read_bytes)
            data = lines.read()
        self._read_bytes += len(data)
        *whole, self._rest = (self._rest[-LINE_BYTES_MAX:] + data).split(b"\n")
        for line in whole:
            if (times := CommitTimes.of_line(line.decode(errors="replace"))) is not None:
                yield times

    def workers(self) -> list[Process]:
        """The Python processes that run its tasks."""
        return spark_workers(self.pid)

    def audit(self) -> None:
        """Ask for it; the answer is an event."""
        self._say("audit")

    def note_family(self) -> None:
        """Who belongs to it: nobody can tell any more when it is dead, and looking takes longer than a batch may."""
        self._family = descendants(self.pid)

    def kill(self) -> None:
        """kill -9 for the Python process and its Java. What they had started ends by itself, as it would anywhere."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(KILL_SECONDS_MAX)

    def close(self) -> None:
        """Leave nothing of it running."""
        if self._process.poll() is None:
            self.note_family()
            self.kill()
        deadline = time.monotonic() + KILL_SECONDS_MAX
        while left := [one for one in self._family if _is_same(one)]:
            for one in left:
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._reader.join(KILL_SECONDS_MAX)

    def log_tail(self) -> str:
        """The end of its log."""
        with suppress(OSError), self.log.open("rb") as text:
            text.seek(max(0, text.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return text.read().decode(errors="replace").strip()
        return ""

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: who waits for the answer will see that
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # closed meanwhile, or cut in the middle of a line
            for line in self._process.stdout:
                self._events.put(json.loads(line))


def _is_same(one: Process) -> bool:
    """Whether it still lives, and the number has not gone to somebody else."""
    found = find(one.pid)
    return found is not None and found.command == one.command


def _environment(folder: Path) -> dict[str, str]:
    environment = {**os.environ, LEVEL: "INFO", "TMPDIR": str(folder)}
    root = package_root()
    if root is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), environment.get("PYTHONPATH"))))
    return environment
