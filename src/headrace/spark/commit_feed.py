"""Commits on their way from the processes that commit to the listener of the driver: one file for each run.

    QueryListener → CommitFeed(run) creates the file
    CommitReporter.end → append: one line for each batch → CommitFeed.read → QueryListener

Spark has no way for a Python sink to report figures, and runs each commit in any idle process. These processes are on
the driver's host, so a file in the temporary folder is enough: an append takes 0.06 ms, waits for nobody, and is left
out if no listener has created the file. Others can write to the temporary folder: a file is used only if it is a
regular file of this user, in a folder that only this user can open.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

from headrace.telemetry.codec import ReportError, decode, encode
from headrace.telemetry.models import CommitReport

FEED_BYTES_MAX = 1024 * 1024
"""Beyond this, batches are dropped: the listener is gone, or does not keep up."""
REPLACE_BYTES = FEED_BYTES_MAX // 4
STALE_SECONDS = 7 * 24 * 3600.0
"""A file that was not written for this long belongs to a driver that was killed."""
_PREFIX, _SUFFIX = "commits-", ".jsonl"
_RUN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Run ids of Spark's streaming queries. Batch writes have no listener."""
_OPEN_FLAGS = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
"""Opening a FIFO would wait for its other end."""


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"


def _path(run: str) -> Path:
    return _folder() / f"{_PREFIX}{run}{_SUFFIX}"


def is_wanted(run: str) -> bool:
    """Whether a listener follows the commits of this run."""
    return _RUN.fullmatch(run) is not None and os.path.lexists(_path(run))


def append(report: CommitReport) -> None:
    """Add a report to the feed of its run, if there is one."""
    try:
        descriptor = _open_private(_path(report.run), os.O_WRONLY | os.O_APPEND)
    except OSError:  # there is none, or not of this user
        return
    try:
        line = encode(report) + b"\n"
        if os.fstat(descriptor).st_size + len(line) <= FEED_BYTES_MAX:
            os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _open_private(path: Path, flags: int) -> int:
    """Open a regular file of this user in its folder, without waiting; raise OSError if it is not one."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | _OPEN_FLAGS)
    try:
        status = os.fstat(folder)
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(f"{path.parent} is not a private folder of this user: remove it, or set TMPDIR")
        descriptor = os.open(path.name, flags | _OPEN_FLAGS, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
    status = os.fstat(descriptor)
    if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise PermissionError(f"{path} is not a regular file of this user: remove it, or set TMPDIR")
    return descriptor


class CommitFeed:
    """A reader of the feed of one run, which others may read, too. Not thread-safe."""

    def __init__(self, run: str) -> None:
        self._path = _path(run)
        with contextlib.suppress(FileExistsError):
            self._path.parent.mkdir(mode=0o700)
        self._file = self._open()
        _remove_stale(self._path.parent)
        self._replaced: BinaryIO | None = None  # read once more: a writer may have opened it before it was replaced

    def _open(self) -> BinaryIO:
        """Open the file, created if needed."""
        return os.fdopen(_open_private(self._path, os.O_RDONLY | os.O_CREAT), "rb")

    def read(self) -> list[CommitReport]:
        """Return the reports that are new."""
        lines = []
        if self._replaced is not None:
            with self._replaced as replaced:
                lines += _lines(replaced)
            self._replaced = None
        lines += _lines(self._file)
        if self._file.tell() > REPLACE_BYTES and self._is_current():
            descriptor, name = tempfile.mkstemp(dir=self._path.parent)  # mode 0600
            os.close(descriptor)
            os.replace(name, self._path)
        if not self._is_current():
            self._replaced, self._file = self._file, self._open()
            lines += _lines(self._file)
        return [report for line in lines if (report := _decoded(line)) is not None]

    def _is_current(self) -> bool:
        """Whether nobody has replaced or removed the file."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Remove the file: reports to come are dropped, unless another listener creates it again."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._file.close()
        if self._replaced is not None:
            self._replaced.close()


def _lines(file: BinaryIO) -> list[bytes]:
    """Read the lines that are complete."""
    begin = file.tell()
    lines = file.readlines()
    if lines and not lines[-1].endswith(b"\n"):  # being written
        del lines[-1]
        file.seek(begin + sum(map(len, lines)))
    return lines


def _decoded(line: bytes) -> CommitReport | None:
    try:
        report = decode(line)
    except ReportError:
        return None  # torn by a killed process
    return report if isinstance(report, CommitReport) else None


def _remove_stale(folder: Path) -> None:
    """Remove the files of drivers that were killed."""
    stale = time.time() - STALE_SECONDS
    for path in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < stale:
                path.unlink()
