"""The catalog's file: a line for each change, and how it survives a crash.

A line is a checksum and a JSON array of events, so that events recorded together come back together or not at all. A
line that is torn or does not match its checksum ends the journal: nobody was told that it happened.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

Event = dict[str, Any]

SPARE_LINES_MAX = 1000
"""As many lines more than needed are kept before the journal is written anew, at a start."""
LINES_MAX = 100_000
"""With so many it is written anew at once: in-sync sets may change for months."""


class Section(Protocol):
    """A part of the catalog."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of the events that belong here."""
        ...

    def apply(self, event: Event) -> None:
        """Take over an event. It has been checked before it was recorded: this must not fail."""
        ...

    def snapshot(self) -> Iterator[Event]:
        """Events that make the section what it is, from nothing."""
        ...

    def changes_to(self, target: Any) -> Iterator[Event]:
        """Events that make this section what another one of its kind is."""
        ...


class Journal:
    """An append-only file of lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._lines = 0

    def open(self) -> Iterator[Event]:
        """Read what is there, cut off a torn end, and stand ready for more."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        data = self._path.read_bytes()
        good = 0
        batches: list[list[Event]] = []
        for line in data.splitlines(keepends=True):
            events = _parse(line)
            if events is None:
                break
            batches.append(events)
            good += len(line)
        if good < len(data):
            os.ftruncate(self._fd, good)
            os.fsync(self._fd)
        self._lines = len(batches)
        for events in batches:
            yield from events

    def append(self, events: Sequence[Event]) -> None:
        """Add a line, and return when it is on disk."""
        line = _format(events)
        written = os.write(self._fd, line)
        if written != len(line):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise OSError(f"{self._path}: only {written} of {len(line)} bytes could be written: is the disk full?")
        os.fsync(self._fd)
        self._lines += 1

    def worth_compacting(self, live: int) -> bool:
        return self._lines > live + SPARE_LINES_MAX

    @property
    def is_overlong(self) -> bool:
        return self._lines > LINES_MAX

    def replace(self, events: Iterable[Event]) -> None:
        """Write the journal anew with just these events."""
        fresh = self._path.with_suffix(".new")
        lines = [_format([event]) for event in events]
        with open(fresh, "wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)
        self.close()
        self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._lines = len(lines)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _format(events: Sequence[Event]) -> bytes:
    body = json.dumps(events, separators=(",", ":"), sort_keys=True).encode()
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _parse(line: bytes) -> list[Event] | None:
    if len(line) < 10 or not line.endswith(b"\n"):
        return None
    checksum, body = line[:8], line[9:-1]
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    events: list[Event] = json.loads(body)
    return events
