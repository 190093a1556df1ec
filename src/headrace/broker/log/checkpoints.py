"""Small text files of Kafka's: offsets of partitions, epochs of a leader, the id of a topic.

A checkpoint is a version, a count and as many rows of words::

    0
    2
    orders 0 1234
    orders 1 1180

One that is missing or damaged is as good as empty: it saves work after a crash, and nothing is known from it alone.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.broker.log.files import replace_file

log = logging.getLogger("headrace.broker.log")

_VERSION = "0"
NO_TOPIC_ID = bytes(16)

Partition = tuple[str, int]


def write_rows(path: Path, rows: Iterable[str], *, sync: bool = True) -> None:
    """Replace a checkpoint."""
    lines = list(rows)
    replace_file(path, "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode(), sync=sync)


def read_rows(path: Path) -> list[list[str]]:
    """The rows of a checkpoint as words; none where it cannot be read."""
    try:
        version, count, *rows = path.read_text("utf-8").splitlines()
        if version != _VERSION or int(count) != len(rows):
            raise ValueError(f"version {version}, {count} rows announced, {len(rows)} there")
        return [row.split(" ") for row in rows]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        log.warning("%s is not used, for it is damaged: %s", path, error)
        return []


def write_offsets(path: Path, offsets: Mapping[Partition, int]) -> None:
    """Replace a checkpoint of an offset for each partition."""
    write_rows(path, (f"{topic} {index} {offset}" for (topic, index), offset in sorted(offsets.items())))


def read_offsets(path: Path) -> dict[Partition, int]:
    """The offset of each partition that has one."""
    try:
        return {(topic, int(index)): int(offset) for topic, index, offset in read_rows(path)}
    except ValueError as error:
        log.warning("%s is not used, for it is damaged: %s", path, error)
        return {}


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
