"""The driver's process as the demo sees it: starting it, its events, killing it and its descendants."""

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
from typing import Any, NamedTuple

from headrace.spark.commit_times import CommitTimes
from headrace.spark.local_session import package_root
from headrace.spark.log_setup import LEVEL

KILL_SECONDS_MAX = 10.0
LOG_TAIL_BYTES = 3000
LINE_BYTES_MAX = 1024 * 1024
PS_SECONDS_MAX = 10.0
PROCESSES_MAX = 100_000
_POLL_SECONDS = 0.02
_PROC = Path("/proc")

Event = dict[str, Any]


class Process(NamedTuple):
    """A process of this machine, from /proc or, if there is none, from `ps`."""

    pid: int
    parent: int
    state: str
    """R: running or runnable. Z: zombie."""
    command: str


def all_processes() -> list[Process]:
    """Return all processes that are visible to this user."""
    if (_PROC / "self" / "stat").exists():
        pids = [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdecimal()]
        processes = (_read_proc(pid) for pid in pids[:PROCESSES_MAX])
        return [process for process in processes if process is not None]
    done = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,state=,args="],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PS_SECONDS_MAX,
    )
    return [parse_ps_line(line) for line in done.stdout.splitlines()[:PROCESSES_MAX] if line.strip()]


def find_process(pid: int) -> Process | None:
    """Return a process, or None if it does not exist or is a zombie."""
    if (_PROC / "self" / "stat").exists():
        process = _read_proc(pid)
    else:
        process = next((process for process in all_processes() if process.pid == pid), None)
    return None if process is None or process.state == "Z" else process


def descendants(pid: int) -> list[Process]:
    """Return the children, their children, and so on, parents first."""
    by_parent: dict[int, list[Process]] = {}
    for process in all_processes():
        by_parent.setdefault(process.parent, []).append(process)
    processes, parents = [], [pid]
    while parents:
        children = by_parent.pop(parents.pop(), [])
        processes += children
        parents += [child.pid for child in children]
    return processes


def parse_ps_line(line: str) -> Process:
    """Parse a line of `ps -o pid=,ppid=,state=,args=`."""
    pid, parent, state, *command = line.split(None, 3)
    return Process(int(pid), int(parent), state[:1], command[0] if command else "")


def _read_proc(pid: int) -> Process | None:
    try:
        # The name in parentheses may contain spaces and parentheses.
        state, parent = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        command = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (OSError, ValueError):
        return None  # the process has ended
    return Process(pid, int(parent), state, command)


class DemoDriver:
    """One process of the driver."""

    def __init__(self, settings: Mapping[str, Any], folder: Path, log: Path) -> None:
        """Start it. `folder` is the directory for all files of Spark; `log` gets stderr."""
        self.log = log
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._descendants: list[Process] = []
        self._log_read_bytes = 0
        self._incomplete_line = b""
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "headrace.demo.driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                cwd=folder,
                env=_environment(folder),
                start_new_session=True,  # a process group, which is killed as a whole and does not get Ctrl-C
            )
        self._write_line(json.dumps(settings))
        self._reader = threading.Thread(target=self._read_events, name="headrace-demo-events", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while the process runs."""
        return self._process.poll()

    def events(self) -> Iterator[Event]:
        """Yield the events since the last call."""
        with suppress(queue.Empty):
            while True:
                yield self._events.get_nowait()

    def commits(self) -> Iterator[CommitTimes]:
        """Yield the commits logged since the last call."""
        with self.log.open("rb") as lines:
            lines.seek(self._log_read_bytes)
            data = lines.read()
        self._log_read_bytes += len(data)
        *complete, self._incomplete_line = (self._incomplete_line[-LINE_BYTES_MAX:] + data).split(b"\n")
        for line in complete:
            if (times := CommitTimes.of_line(line.decode(errors="replace"))) is not None:
                yield times

    def workers(self) -> list[Process]:
        """Return the Python processes that run the tasks: forks of Spark's worker daemons."""
        processes = descendants(self.pid)
        daemons = {process.pid for process in processes if "pyspark.daemon pyspark.worker" in process.command}
        return [process for process in processes if process.parent in daemons]

    def request_audit(self) -> None:
        """Request the audit; its result is an event."""
        self._write_line("audit")

    def record_descendants(self) -> None:
        """Remember the descendants, which cannot be found any more once the process is dead."""
        self._descendants = descendants(self.pid)

    def kill(self) -> None:
        """Kill the Python process and its JVM with SIGKILL; their child processes end by themselves."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(KILL_SECONDS_MAX)

    def close(self) -> None:
        """Kill the process and all its descendants."""
        if self._process.poll() is None:
            self.record_descendants()
            self.kill()
        deadline = time.monotonic() + KILL_SECONDS_MAX
        while alive := [process for process in self._descendants if _is_same(process)]:
            for process in alive:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._reader.join(KILL_SECONDS_MAX)

    def log_tail(self) -> str:
        """Return the end of the log."""
        with suppress(OSError), self.log.open("rb") as text:
            text.seek(max(0, text.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return text.read().decode(errors="replace").strip()
        return ""

    def _write_line(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended; the caller waits for an event and notices that
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # the pipe was closed, or the last line is incomplete
            for line in self._process.stdout:
                self._events.put(json.loads(line))


def _is_same(process: Process) -> bool:
    """Return whether a process still runs, and its pid has not been reused."""
    current = find_process(process.pid)
    return current is not None and current.command == process.command


def _environment(folder: Path) -> dict[str, str]:
    environment = {**os.environ, LEVEL: "INFO", "TMPDIR": str(folder)}
    root = package_root()
    if root is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), environment.get("PYTHONPATH"))))
    return environment
