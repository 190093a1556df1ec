"""Checkpoints and metadata: Kafka's small text files with offsets, closed segments and topic ids.

A checkpoint is a version, the number of rows, the rows, and a checksum of all of these, which Kafka does not write::

    0
    2
    orders 0 1234
    orders 1 1180
    crc32c 5f0e77d1

A file without the last line (older versions, Kafka) is accepted. A missing or damaged file is treated as empty: a
checkpoint saves work after a crash, but nothing depends on it alone. Damage is logged together with its consequence.

`segment-checkpoint` of a partition has a row for each closed segment, and after a clean stop also for the last one::

    base offset, end of the records, size in bytes; checksums of first and last batch, .index, .timeindex and .txnindex
    ("-": there is no such file)

Its first row is the name of the folder, so that a file of another partition is not accepted. Kafka has no such file and
ignores it. Without it, a segment that is truncated at a batch boundary, a lost segment, and a lost or altered
transaction index would look like the result of compaction, retention or commits. A segment without a row is read once,
header by header, and gets one. Rows of lost segments stay until the log starts after them.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from headrace.broker.log.files import SEGMENT_CHECKPOINTS, replace_file
from headrace.types import TopicPartition
from headrace.wire.kernel import kernel

logger = logging.getLogger("headrace.broker.log")

_VERSION = "0"
_CHECKSUM = "crc32c"
NO_TOPIC_ID = bytes(16)
NO_FILE = -1
_NO_FILE_WORD = "-"

R = TypeVar("R")


def write_rows(path: Path, rows: Iterable[str], *, sync: bool = True) -> None:
    """Replace a checkpoint."""
    lines = list(rows)
    data = "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()
    replace_file(path, data + f"{_CHECKSUM} {kernel.crc32c(data):08x}\n".encode(), sync=sync)


def read_rows(path: Path, consequence: str, parse: Callable[[Sequence[str]], R]) -> list[R]:
    """Return the parsed rows of a checkpoint; none if it is missing or damaged.

    Damage is logged with its `consequence`. `parse` gets the words of a row and raises ValueError for an invalid one.
    """
    try:
        return [parse(line.split(" ")) for line in _lines(path)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        logger.warning("%s is damaged and not used: %s; %s", path, error, consequence)
        return []


def _lines(path: Path) -> list[str]:
    """Return the rows of an intact checkpoint. Raise ValueError if it is damaged."""
    data = path.read_bytes()
    body, mark, checksum = data.rpartition(f"{_CHECKSUM} ".encode())
    if mark and int(checksum, 16) != kernel.crc32c(body):
        raise ValueError(f"checksum {kernel.crc32c(body):08x}, expected {checksum.decode().strip()}")
    version, count, *rows = (body if mark else data).decode().splitlines()
    if version != _VERSION or int(count) != len(rows):
        raise ValueError(f"version {version}, expected {_VERSION}; {len(rows)} rows, expected {count}")
    return rows


# --- offsets ---


class OffsetCheckpoint:
    """A checkpoint of one offset for each partition. Threads may write it: newer offsets are never overwritten."""

    def __init__(self, path: Path, consequence: str) -> None:
        self.path = path
        self._consequence = consequence  # of a damaged file
        self._prepared = 0  # Event loop only: the number of the last prepared write.
        self._written = 0  # Guarded by _lock: the number of the write that is in the file.
        self._lock = threading.Lock()

    def read(self) -> dict[TopicPartition, int]:
        """Return the offset of each partition in the file."""
        return dict(read_rows(self.path, self._consequence, _parse_offset))

    def prepare(self, offsets: Mapping[TopicPartition, int]) -> Callable[[], None]:
        """Return a function that writes these offsets from any thread, unless newer ones have been written before."""
        self._prepared += 1
        number = self._prepared

        def write() -> None:
            with self._lock:
                if number > self._written:
                    rows = (f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))
                    write_rows(self.path, rows)
                    self._written = number

        return write


def _parse_offset(words: Sequence[str]) -> tuple[TopicPartition, int]:
    topic, partition, offset = words
    if int(offset) < 0:
        raise ValueError(f"offset {offset}, expected 0 or more")
    return TopicPartition(topic, int(partition)), int(offset)


# --- segments ---


class SegmentCheckpoint(NamedTuple):
    """A segment as it was when it was closed."""

    base_offset: int
    records_end: int  # offset after the last batch
    size_bytes: int
    first_crc: int  # of the first batch: with the last it distinguishes segments of different partitions
    last_crc: int
    index_crc: int
    times_crc: int
    aborted_crc: int


_SEGMENT_WORDS = len(SegmentCheckpoint.__annotations__)


def read_segment_checkpoints(folder: Path) -> dict[int, SegmentCheckpoint]:
    """Return the checkpoints by base offset; none if the file is missing or damaged."""

    def parse(words: Sequence[str]) -> SegmentCheckpoint | None:
        if len(words) == 1:
            if words[0] != folder.name:
                raise ValueError(f"it is of {words[0]}")
            return None
        if len(words) != _SEGMENT_WORDS:
            raise ValueError(f"{len(words)} words in a row, expected {_SEGMENT_WORDS}")
        return SegmentCheckpoint(*(NO_FILE if word == _NO_FILE_WORD else int(word) for word in words))

    rows = read_rows(folder / SEGMENT_CHECKPOINTS, "all segments of the partition are read again", parse)
    return {row.base_offset: row for row in rows if row is not None}


def write_segment_checkpoints(folder: Path, checkpoints: Iterable[SegmentCheckpoint]) -> None:
    """Replace the checkpoints of a log. `Log.flush` forces them to disk."""
    rows = (" ".join(_NO_FILE_WORD if value == NO_FILE else str(value) for value in row) for row in checkpoints)
    write_rows(folder / SEGMENT_CHECKPOINTS, [folder.name, *rows], sync=False)


def data_crc(data: bytes) -> int:
    """Return the checksum of an index that is about to be written. Without data there is no file."""
    return kernel.crc32c(data) if data else NO_FILE


def file_crc(path: Path) -> int:
    """Return the checksum of a file."""
    try:
        return kernel.crc32c(path.read_bytes())
    except FileNotFoundError:
        return NO_FILE


# --- topic ids ---


def write_metadata(path: Path, topic_id: bytes) -> None:
    """Write the topic id of a partition folder: a later topic of the same name has another id."""
    text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    replace_file(path, f"version: 0\ntopic_id: {text}".encode(), sync=False)


def read_metadata(path: Path) -> bytes | None:
    """Return the topic id; zeros if there is no file, None if the file is damaged."""
    try:
        lines = dict(line.split(": ", 1) for line in path.read_text("utf-8").splitlines() if line)
        topic_id = base64.urlsafe_b64decode(lines["topic_id"] + "==")
        if len(topic_id) != len(NO_TOPIC_ID):
            raise ValueError(f"a topic id of {len(topic_id)} bytes, expected {len(NO_TOPIC_ID)}")
        return topic_id
    except FileNotFoundError:
        return NO_TOPIC_ID
    except (OSError, ValueError, KeyError) as error:
        logger.error("%s is damaged: %s", path, error)
        return None
