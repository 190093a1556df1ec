"""Commits on their way from the processes that commit to the listener of the driver: one file for each run.

    QueryListener → CommitFeed(run) creates the file
    CommitReporter.end → append: one line for each batch → CommitFeed.read → QueryListener

Spark has no way for a Python sink to report figures, and runs each commit in any idle process. These processes are on
the driver's host, so a file in the temporary folder is enough: an append takes 0.06 ms, waits for nobody, and is left
out if no listener has created the file.
"""

from __future__ import annotations

import contextlib
import os
import re
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


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"


def _path(run: str) -> Path:
    return _folder() / f"{_PREFIX}{run}{_SUFFIX}"


def is_wanted(run: str) -> bool:
    """Whether a listener follows the commits of this run."""
    return _RUN.fullmatch(run) is not None and _path(run).exists()


def append(report: CommitReport) -> None:
    """Add a report to the feed of its run, if there is one."""
    try:
        descriptor = os.open(_path(report.run), os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        line = encode(report) + b"\n"
        if os.fstat(descriptor).st_size + len(line) <= FEED_BYTES_MAX:
            os.write(descriptor, line)
    finally:
        os.close(descriptor)


class CommitFeed:
    """A reader of the feed of one run, which others may read, too. Not thread-safe."""

    def __init__(self, run: str) -> None:
        self._path = _path(run)
        _prepare_folder(self._path.parent)
        self._file = self._open()
        self._replaced: BinaryIO | None = None  # read once more: a writer may have opened it before it was replaced

    def _open(self) -> BinaryIO:
        """Open the file, created if needed."""
        return os.fdopen(os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "rb")

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


def _prepare_folder(folder: Path) -> None:
    """Create the folder of this user, and remove the files of drivers that were killed."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or not folder.is_dir() or folder.is_symlink():
        raise PermissionError(f"{folder} is not a private folder of this user: remove it, or set TMPDIR")
    stale = time.time() - STALE_SECONDS
    for path in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < stale:
                path.unlink()
