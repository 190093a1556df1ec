"""The catalog's file: a line for each change, and how it survives a crash and damage.

    crc32 [{"kind": "snapshot", "offset": 40, "part": 1, "parts": 2}, event]     after the file was written anew
    crc32 [{"kind": "snapshot", "offset": 40, "part": 2, "parts": 2}, event]
    crc32 [{"kind": "change", "offset": 41, "after": 40}, event, event]          for each change since

A line is a checksum and a JSON array, so that events recorded together come back together or not at all. Its first
element is the line's position in the history of the catalog: a line that is lost, swapped or of another copy of the
file is noticed. Lines without it are those of earlier versions; each counts as one change.

What a start does about damage:

    the last line fails its checksum    A crash came while it was written: cut it off, log it, keep a copy of it.
    lines are missing at the end        Log it: the file beside it says up to which change it went at the last stop.
    anything else                       Refuse to start, and name the line. `headrace broker repair` shows the rest.
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
"""As many lines more than needed are kept before the journal is written anew, at a start."""
LINES_MAX = 100_000
"""With so many it is written anew at once: in-sync sets may change for months."""
_CHANGE, _SNAPSHOT = "change", "snapshot"
_CHECKSUM_BYTES = 9  # eight digits and a space


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


class DamagedJournalError(IllegalStateError):
    """A journal that has lost changes which were acknowledged."""


class Line(NamedTuple):
    """A line of the file."""

    number: int  # from 1
    position: int  # of its first byte in the file
    data: bytes
    events: list[Event]
    offset: int  # of the catalog after it
    parts_missing: int  # of the snapshot that it is a part of
    is_whole: bool  # the checksum is right
    problem: str  # empty: none


def parse(data: bytes) -> list[Line]:
    """Return all lines of a journal, each with what is wrong with it."""
    # Lines end with a line feed and nothing else: a carriage return is damage within one.
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
    """The position in the catalog's history that the lines so far have come to."""

    def __init__(self) -> None:
        self.offset = 0
        self.part = self.parts = 0  # of the snapshot

    def check(self, events: list[Event]) -> str:
        """Take the header off the next line, and say why that line cannot be the next one; empty if it can."""
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
    """An append-only file of lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._lines = 0
        self._failure = ""  # why nothing can be appended any more
        self.offset = 0  # of the last change: how many there have been
        self.has_lost_end = False  # when the file was opened, its last line was torn, or lines were missing

    def open(self) -> list[Line]:
        """Read the lines, cut off a torn last one, and be ready to append. DamagedJournalError if lines are lost."""
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
        """Add a line, and return when it is on disk. `offset`: the catalog's after it, if that is not the next one.

        OSError if it cannot be written or forced to disk. Then it is not in the file either.
        """
        if self._failure:
            raise OSError(self._failure)
        after, offset = self.offset, self.offset + 1 if offset is None else offset
        line = _format([{"kind": _CHANGE, "offset": offset, "after": after}, *events])
        size = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(f"{self._path}: only {written} of {len(line)} bytes could be written: is the disk full?")
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
        """Write the journal anew with just these events, which are the catalog at `offset` (None: as it is now)."""
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
        """Note, at a stop, how far the journal goes: an older copy of it is recognised by that."""
        path = end_path(self._path)
        fresh = path.with_suffix(".new")
        fresh.write_text(f"{self.offset}\n")
        os.replace(fresh, path)

    def _check_end(self) -> None:
        noted = noted_end(self._path)
        if self.offset < noted:
            self.has_lost_end = True
            log.error(
                "%s ends with change %d, but when the broker was stopped it had change %d: its last lines are lost, or "
                "it is an older copy. Topics that were made since are stray folders now: see `headrace broker status`",
                self._path,
                self.offset,
                noted,
            )

    def _sync_folder(self) -> None:
        """Force the file's name to disk: what is appended to a file without one would be lost with it."""
        try:
            sync_path(self._path.parent)
        except OSError as error:
            self._fail(f"its folder cannot be forced to disk ({error})")
            raise

    def _roll_back(self, size: int, error: OSError) -> None:
        """Take back a line that may or may not be on disk."""
        try:
            os.ftruncate(self._fd, size)
            os.fsync(self._fd)
        except OSError as again:
            self._fail(f"a change could neither be forced to disk ({error}) nor taken back ({again})")

    def _fail(self, why: str) -> None:
        self._failure = f"{self._path}: {why}; nothing can be changed until the broker is started again"
        log.error("%s", self._failure)

    def _cut_off(self, line: Line) -> None:
        kept = set_aside(self._path, "torn", line.data)
        os.ftruncate(self._fd, line.position)
        os.fsync(self._fd)
        self.has_lost_end = True
        log.warning(
            "%s: line %d (%d bytes from byte %d on) is cut off: %s. Its bytes are kept in %s. If the broker did not "
            "crash, a change that was acknowledged may be lost: see stray folders in `headrace broker status`",
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
            problem = f"{lines[-1].parts_missing} parts of the snapshot that it begins with are missing"
        else:
            where = f"in line {bad.number} (byte {bad.position})"
            problem = f"{bad.problem}; {len(lines) - bad.number} lines follow it"
        return DamagedJournalError(
            f"{self._path} is damaged {where}: {problem}. Nothing was changed. "
            f"`headrace broker repair --data-dir {self._path.parent}` shows what can be saved"
        )


def _is_torn(lines: list[Line]) -> bool:
    """Whether all is well but the last line; one of a snapshot is not torn: the file got its name when it was whole."""
    if not lines or lines[-1].is_whole:
        return False
    return not any(line.problem for line in lines[:-1]) and not lines[-1].parts_missing


def write_snapshot(path: Path, events: Sequence[Event], offset: int) -> int:
    """Write a journal anew, so that there is always the old one or the new one, whole; how many lines it has."""
    fresh = path.with_suffix(".new")
    parts: list[list[Event]] = [[event] for event in events] or [[]]
    fresh.unlink(missing_ok=True)
    with open(fresh, "wb", opener=private) as file:  # it has keys of users
        for part, of_part in enumerate(parts, 1):
            header = {"kind": _SNAPSHOT, "offset": offset, "part": part, "parts": len(parts)}
            file.write(_format([header, *of_part]))
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    return len(parts)


def end_path(journal: Path) -> Path:
    """The file that says how far a journal went when the broker was stopped."""
    return journal.with_name(f"{journal.name}.end")


def noted_end(journal: Path) -> int:
    """Return the offset that a journal had when the broker was stopped; 0: it is not known."""
    path = end_path(journal)
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read: %s. It is written again at the next stop", path, error)
        return 0


def set_aside(path: Path, why: str, data: bytes) -> Path:
    """Keep bytes of a journal in a file of their own beside it."""
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
