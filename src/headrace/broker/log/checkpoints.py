"""Small text files of Kafka's: offsets of partitions, epochs of a leader, the id of a topic.

A checkpoint is a version, a count, as many rows of words, and a checksum of all that, which Kafka does not have::

    0
    2
    orders 0 1234
    orders 1 1180
    crc32c 5f0e77d1

Without the last line (older versions, Kafka) it is taken as it is. One that is missing or damaged is as good as empty:
it saves work after a crash, and nothing is known from it alone. Damage is logged with what follows from it.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from headrace.broker.log.files import replace_file
from headrace.wire.kernel import kernel

log = logging.getLogger("headrace.broker.log")

_VERSION = "0"
_CHECKSUM = "crc32c"
NO_TOPIC_ID = bytes(16)

Partition = tuple[str, int]
R = TypeVar("R")


def write_rows(path: Path, rows: Iterable[str], *, sync: bool = True) -> None:
    """Replace a checkpoint."""
    lines = list(rows)
    data = "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()
    replace_file(path, data + f"{_CHECKSUM} {kernel.crc32c(data):08x}\n".encode(), sync=sync)


def read_rows(path: Path, otherwise: str, row: Callable[[Sequence[str]], R]) -> list[R]:
    """The rows of a checkpoint, each made from its words; none where it cannot be read.

    The log then says what happens `otherwise`.
    """
    try:
        return [row(line.split(" ")) for line in _lines(path)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        log.warning("%s is damaged and not used: %s; %s", path, error, otherwise)
        return []


def _lines(path: Path) -> list[str]:
    """The rows of a whole checkpoint. Raises ValueError."""
    data = path.read_bytes()
    body, mark, checksum = data.rpartition(f"{_CHECKSUM} ".encode())
    if mark and int(checksum, 16) != kernel.crc32c(body):
        raise ValueError(f"checksum {kernel.crc32c(body):08x}, expected {checksum.decode().strip()}")
    version, count, *rows = (body if mark else data).decode().splitlines()
    if version != _VERSION or int(count) != len(rows):
        raise ValueError(f"version {version}, expected {_VERSION}; {len(rows)} rows, expected {count}")
    return rows


class OffsetCheckpoint:
    """A checkpoint of an offset for each partition. Threads may write it: the newest offsets win, never older ones."""

    def __init__(self, path: Path, otherwise: str) -> None:
        self._path = path
        self._otherwise = otherwise  # what happens without it
        self._taken = 0  # Event loop only: how often there was something to write.
        self._written = 0  # Guarded by _lock: which of these is in the file.
        self._lock = threading.Lock()

    def read(self) -> dict[Partition, int]:
        """The offset of each partition that has one."""
        return dict(read_rows(self._path, self._otherwise, _offset))

    def prepare(self, offsets: Mapping[Partition, int]) -> Callable[[], None]:
        """What writes these offsets, in any thread, unless newer ones were written before it is called."""
        self._taken += 1
        number = self._taken

        def write() -> None:
            with self._lock:
                if number > self._written:
                    rows = (f"{topic} {index} {offset}" for (topic, index), offset in sorted(offsets.items()))
                    write_rows(self._path, rows)
                    self._written = number

        return write


def _offset(words: Sequence[str]) -> tuple[Partition, int]:
    topic, index, offset = words
    if int(offset) < 0:
        raise ValueError(f"offset {offset}, expected 0 or more")
    return (topic, int(index)), int(offset)


def write_metadata(path: Path, topic_id: bytes) -> None:
    """Say which topic a folder is of: one of the same name made later has another id."""
    text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    replace_file(path, f"version: 0\ntopic_id: {text}".encode(), sync=False)


def read_metadata(path: Path) -> bytes | None:
    """Return the id of the topic: zeros if there is no such file, None if the file is damaged."""
    try:
        lines = dict(line.split(": ", 1) for line in path.read_text("utf-8").splitlines() if line)
        topic_id = base64.urlsafe_b64decode(lines["topic_id"] + "==")
        if len(topic_id) != len(NO_TOPIC_ID):
            raise ValueError(f"a topic id of {len(topic_id)} bytes")
        return topic_id
    except FileNotFoundError:
        return NO_TOPIC_ID
    except (OSError, ValueError, KeyError) as error:
        log.error("%s is damaged: %s", path, error)
        return None
