"""The journal of the catalog: one line for each change, checked after a crash.

    crc32 [{"kind": "snapshot", "offset": 40, "part": 1, "parts": 2}, event]     after a rewrite
    crc32 [{"kind": "snapshot", "offset": 40, "part": 2, "parts": 2}, event]
    crc32 [{"kind": "change", "offset": 41, "after": 40}, event, event]          for each later change

A line is a checksum and a JSON array: events recorded together are read together or not at all. The first element is
the position of the line in the history of the catalog, so that lines that are lost, swapped or copied from another file
are detected. Lines of earlier versions do not have it; each of them counts as one change.

Damage found at start-up:

    the last line fails its checksum    A torn write: truncate it, log it, keep a copy.
    lines are missing at the end        Log it; the end file has the offset of the last clean stop.
    anything else                       Refuse to start and name the line; `headrace broker repair` lists the rest.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headrace.broker.disk import private, sync_path, unused
from headrace.errors import IllegalStateError

log = logging.getLogger("headrace.broker")

Event = dict[str, Any]

SPARE_LINES_MAX = 1000
"""Lines beyond the size of a snapshot that are kept before the journal is rewritten at start-up."""
LINES_MAX = 100_000
"""The number of lines at which the journal is rewritten at once: in-sync sets may change for months."""
_CHANGE, _SNAPSHOT = "change", "snapshot"
_CHECKSUM_BYTES = 9  # eight digits and a space


class Section(Protocol):
    """A part of the catalog."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of events of this section."""
        ...

    def apply(self, event: Event) -> None:
        """Apply an event. Events are validated before they are recorded, so this must not fail."""
        ...

    def snapshot(self) -> Iterator[Event]:
        """Yield events that create this section from an empty one."""
        ...

    def changes_to(self, target: Any) -> Iterator[Event]:
        """Yield events that turn this section into `target`."""
        ...


class DamagedJournalError(IllegalStateError):
    """A journal has lost acknowledged changes."""


class Line(NamedTuple):
    """A line of a journal."""

    number: int  # from 1
    position: int  # of the first byte in the file
    data: bytes
    events: list[Event]
    offset: int  # of the catalog after this line
    parts_missing: int  # of the snapshot that the line belongs to
    is_whole: bool  # the checksum matches
    problem: str  # empty if there is none


def parse(data: bytes) -> list[Line]:
    """Return all lines of a journal, each with its problem."""
    # Only a line feed ends a line: a carriage return is damage.
    *whole, rest = data.split(b"\n")
    texts = [text + b"\n" for text in whole] + ([rest] if rest else [])
    lines: list[Line] = []
    sequence = _Sequence()
    position = 0
    for number, text in enumerate(texts, 1):
        events = _parse(text)
        if events is None:
            problem = "its checksum does not match" if text.endswith(b"\n") else "it is incomplete"
        else:
            problem = sequence.check(events)
        missing = sequence.parts - sequence.part
        lines.append(Line(number, position, text, events or [], sequence.offset, missing, events is not None, problem))
        position += len(text)
    return lines


class _Sequence:
    """The position in the catalog's history after the lines so far."""

    def __init__(self) -> None:
        self.offset = 0
        self.part = self.parts = 0  # of the snapshot

    def check(self, events: list[Event]) -> str:
        """Remove the header of the next line; return why it does not continue the sequence, or an empty string."""
        if not events or events[0].get("kind") not in (_CHANGE, _SNAPSHOT):
            self.offset += 1  # a line of an earlier version
            return ""
        header = events.pop(0)
        before, self.offset = self.offset, header["offset"]
        if header["kind"] == _SNAPSHOT:
            last, self.part, self.parts = self.part, header["part"], header["parts"]
            if self.part == last + 1:
                return ""
            return f"it is part {self.part} of {self.parts} of a snapshot and comes after part {last}"
        if header["after"] == before and self.part == self.parts:
            return ""
        return f"it is change {self.offset}, made after change {header['after']}, and comes after change {before}"


class Journal:
    """The append-only file of the catalog."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._lines = 0
        self._failure = ""  # why the journal is read-only, empty if it is not
        self.offset = 0  # the number of changes so far
        self.has_lost_end = False  # at open the last line was torn, or lines were missing at the end

    def open(self) -> list[Line]:
        """Read all lines, truncate a torn last line and open for appending. Raises DamagedJournalError."""
        is_new = not self._path.exists()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if is_new:
            self._sync_folder()
        lines = parse(self._path.read_bytes())
        if _is_torn(lines):
            self._cut_off(lines.pop())
        bad = next((line for line in lines if line.problem), None)
        if bad is not None or (lines and lines[-1].parts_missing):
            raise self._damaged(lines, bad)
        self._lines = len(lines)
        self.offset = lines[-1].offset if lines else 0
        self._check_end()
        return lines

    def append(self, events: Sequence[Event], offset: int | None = None) -> None:
        """Append a line and sync it. `offset` is the catalog's offset after it; None: the next one.

        Raises OSError if the line could not be written or synced; it is then removed from the file again.
        """
        if self._failure:
            raise OSError(self._failure)
        after, offset = self.offset, self.offset + 1 if offset is None else offset
        line = _format([{"kind": _CHANGE, "offset": offset, "after": after}, *events])
        size = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(f"{self._path}: wrote only {written} of {len(line)} bytes; check free disk space")
            os.fsync(self._fd)
        except OSError as error:
            self._roll_back(size, error)
            raise
        self.offset = offset
        self._lines += 1

    def worth_compacting(self, live: int) -> bool:
        return self._lines > live + SPARE_LINES_MAX

    @property
    def is_overlong(self) -> bool:
        return self._lines > LINES_MAX

    def replace(self, events: Iterable[Event], offset: int | None = None) -> None:
        """Rewrite the journal with only these events, a snapshot at `offset` (None: the current offset)."""
        offset = self.offset if offset is None else offset
        lines = write_snapshot(self._path, list(events), offset)
        self.close()
        self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._lines = lines
        self.offset = offset
        self._sync_folder()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def note_end(self) -> None:
        """Write the current offset to the end file, at a clean stop: it identifies an older copy of the journal."""
        path = end_path(self._path)
        fresh = path.with_suffix(".new")
        fresh.write_text(f"{self.offset}\n")
        os.replace(fresh, path)

    def _check_end(self) -> None:
        noted = noted_end(self._path)
        if self.offset < noted:
            self.has_lost_end = True
            log.error(
                "%s ends at change %d, but had change %d at the last clean stop: its last lines are lost, or it is an "
                "older copy. Newer topics are stray folders now: see `headrace broker status`",
                self._path,
                self.offset,
                noted,
            )

    def _sync_folder(self) -> None:
        """Sync the folder, so that the file name is on disk."""
        try:
            sync_path(self._path.parent)
        except OSError as error:
            self._fail(f"syncing its folder failed ({error})")
            raise

    def _roll_back(self, size: int, error: OSError) -> None:
        """Remove a line that may or may not be on disk."""
        try:
            os.ftruncate(self._fd, size)
            os.fsync(self._fd)
        except OSError as again:
            self._fail(f"a change could neither be synced ({error}) nor removed ({again})")

    def _fail(self, why: str) -> None:
        self._failure = f"{self._path}: {why}; the catalog is read-only until the broker is restarted"
        log.error("%s", self._failure)

    def _cut_off(self, line: Line) -> None:
        kept = set_aside(self._path, "torn", line.data)
        os.ftruncate(self._fd, line.position)
        os.fsync(self._fd)
        self.has_lost_end = True
        log.warning(
            "%s: truncated line %d (%d bytes at byte %d): %s. Its bytes are kept in %s. If the broker did not crash, "
            "an acknowledged change may be lost: see the stray folders in `headrace broker status`",
            self._path,
            line.number,
            len(line.data),
            line.position,
            line.problem,
            kept.name,
        )

    def _damaged(self, lines: list[Line], bad: Line | None) -> DamagedJournalError:
        if bad is None:
            where = f"after line {len(lines)}"
            problem = f"{lines[-1].parts_missing} parts of its first snapshot are missing"
        else:
            where = f"in line {bad.number} (byte {bad.position})"
            problem = f"{bad.problem}; {len(lines) - bad.number} lines follow"
        return DamagedJournalError(
            f"{self._path} is damaged {where}: {problem}. Nothing was changed. "
            f"Run `headrace broker repair --data-dir {self._path.parent}` to see what can be recovered"
        )


def _is_torn(lines: list[Line]) -> bool:
    """Return whether only the last line is damaged. Snapshots are never torn: files are renamed when complete."""
    if not lines or lines[-1].is_whole:
        return False
    return not any(line.problem for line in lines[:-1]) and not lines[-1].parts_missing


def write_snapshot(path: Path, events: Sequence[Event], offset: int) -> int:
    """Replace a journal atomically with a snapshot; return its number of lines."""
    fresh = path.with_suffix(".new")
    parts: list[list[Event]] = [[event] for event in events] or [[]]
    fresh.unlink(missing_ok=True)
    with open(fresh, "wb", opener=private) as file:  # it contains credentials
        for number, part in enumerate(parts, 1):
            header = {"kind": _SNAPSHOT, "offset": offset, "part": number, "parts": len(parts)}
            file.write(_format([header, *part]))
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    return len(parts)


def end_path(journal: Path) -> Path:
    """Return the path of the end file, which has the offset of the last clean stop."""
    return journal.with_name(f"{journal.name}.end")


def noted_end(journal: Path) -> int:
    """Return the offset of a journal at the last clean stop; 0 if it is unknown."""
    path = end_path(journal)
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        log.warning("cannot read %s: %s; it is written again at the next stop", path, error)
        return 0


def set_aside(path: Path, why: str, data: bytes) -> Path:
    """Copy bytes of a journal to a new file in the same folder."""
    kept = unused(lambda number: path.with_name(f"{path.name}.{why}-{number + 1}"))
    with open(kept, "xb", opener=private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return kept


def _format(events: Sequence[Event]) -> bytes:
    body = json.dumps(events, separators=(",", ":"), sort_keys=True).encode()
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _parse(line: bytes) -> list[Event] | None:
    if len(line) <= _CHECKSUM_BYTES or not line.endswith(b"\n"):
        return None
    body = line[_CHECKSUM_BYTES:-1]
    if line[:_CHECKSUM_BYTES] != b"%08x " % zlib.crc32(body):
        return None
    events: list[Event] = json.loads(body)
    return events
