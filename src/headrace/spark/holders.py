"""Which run of a query holds a sink, and which runs held it before.

    decision topic, key [sink, "holders", 1] → the runs that have held the sink, in order; the last one holds it

The transactional id of a sink is only a lock: every process that opens the ledger bumps its epoch, and Spark may run
each commit of a run in another process. Which run may decide is in the holder record. A run that is not in it takes the
sink over by appending itself; a run that is in it, but not last, stays fenced.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from headrace.config.clock import SYSTEM_CLOCK
from headrace.spark.errors import SinkError

VERSION = 1
HOLDERS_MAX = 64
"""Runs in the record. A run that is older than all of them would take the sink over again if it came back."""
WRITE_RUN_PREFIX = "write-"
"""Prefix of the run of a batch write: each write is a new run. The run of a stream is Spark's run id, a UUID."""
ANCESTORS_MAX = 32
_KEY_NAME = "holders"


@dataclass(frozen=True, slots=True)
class DriverProcess:
    """The driver of a run: host, process id and start time."""

    host: str
    pid: int
    started_ms: int

    def __str__(self) -> str:
        return f"host {self.host}, process {self.pid}, started {utc_text(self.started_ms)}"

    def to_json(self) -> list[Any]:
        return [self.host, self.pid, self.started_ms]

    @classmethod
    def from_json(cls, fields: list[Any]) -> DriverProcess:
        host, pid, started_ms = fields
        return cls(str(host), int(pid), int(started_ms))


@dataclass(frozen=True, slots=True)
class Holder:
    """A run that holds a sink, or has held it."""

    run: str
    process: DriverProcess
    since_ms: int

    @property
    def is_write(self) -> bool:
        return self.run.startswith(WRITE_RUN_PREFIX)

    def __str__(self) -> str:
        return f"run {self.run} ({self.process}), since {utc_text(self.since_ms)}"


@dataclass(frozen=True, slots=True)
class Holders:
    """The runs that have held a sink, oldest first."""

    history: tuple[Holder, ...] = ()

    @property
    def last(self) -> Holder | None:
        return self.history[-1] if self.history else None

    def is_held_by(self, run: str) -> bool:
        return self.last is not None and self.last.run == run

    def is_fenced(self, run: str) -> bool:
        """Whether another run has taken the sink over from this one."""
        return not self.is_held_by(run) and any(holder.run == run for holder in self.history)

    def runs_before(self, run: str) -> list[str]:
        """Return the runs that held the sink before this one: all of them if it is new."""
        runs = [holder.run for holder in self.history]
        return runs[: runs.index(run)] if run in runs else runs

    def followed_by(self, holder: Holder) -> Holders:
        """Add a run that takes the sink over.

        A batch write replaces earlier writes of the same driver. Most of them have ended, and foreachBatch would fill
        the record with them. One that is still running counts as new at its next commit, and reads the decisions.
        """
        history = [
            earlier
            for earlier in self.history
            if not (holder.is_write and earlier.is_write and earlier.process == holder.process)
        ]
        return Holders((*history, holder)[-HOLDERS_MAX:])

    def encode(self) -> bytes:
        rows = [[holder.run, *holder.process.to_json(), holder.since_ms] for holder in self.history]
        return json.dumps({"v": VERSION, "holders": rows}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Holders:
        try:
            record = json.loads(data)
            version = record["v"]
            if version != VERSION:
                raise SinkError(
                    f"unsupported holder record: expected version {VERSION}, got {version}; use the headrace that "
                    "wrote it, or a newer one"
                )
            return cls(
                tuple(
                    Holder(str(run), DriverProcess.from_json(process), int(since_ms))
                    for run, *process, since_ms in record["holders"]
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(f"invalid holder record: {data[:100]!r} ({error!r})") from error


def holders_key(sink: str) -> bytes:
    """Return the key of a sink's holder record. It has three parts: readers of decisions skip it."""
    return json.dumps([sink, _KEY_NAME, VERSION], separators=(",", ":")).encode()


@lru_cache(maxsize=1)
def this_driver() -> DriverProcess:
    """Return the driver of this process: the nearest JVM among its ancestors, or the process itself."""
    own = os.getpid()
    pid = nearest_jvm() or own
    return DriverProcess(socket.gethostname(), pid, _start_ms(pid))


def nearest_jvm() -> int | None:
    """Return the process id of the nearest Java process among the ancestors of this one."""
    pid = os.getpid()
    try:
        for _ in range(ANCESTORS_MAX):
            pid = _parent(pid)
            if pid <= 1:
                return None
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                return pid
    except OSError:
        pass  # no /proc here, or an ancestor that has just ended
    return None


def _parent(pid: int) -> int:
    return int(_stat_fields(pid)[1])


def _start_ms(pid: int) -> int:
    """Return when a process was started, in milliseconds since 1970; now if the system has no /proc."""
    try:
        ticks = int(_stat_fields(pid)[19])
        lines = Path("/proc/stat").read_text().splitlines()
        boot_s = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        return boot_s * 1000 + ticks * 1000 // os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration):
        return SYSTEM_CLOCK.time_ms()


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on: the second, a name, may have spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def utc_text(time_ms: int) -> str:
    """Format a time for messages."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
