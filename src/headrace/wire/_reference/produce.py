"""Produce requests with one uncompressed batch for one partition, in plain Python."""

from __future__ import annotations

import struct

from headrace.errors import WireError
from headrace.wire._reference.checksums import crc32c
from headrace.wire._reference.records import check_records
from headrace.wire.layout import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    SingleBatch,
    header_layout,
)
from headrace.wire.primitives import Buffer, read_uvarint, write_uvarint

_FLEXIBLE_MIN, _TOPIC_IDS_MIN, _LOG_START_MIN, _RECORD_ERRORS_MIN = 9, 13, 5, 8
_FRAME_BYTES_MAX = 1024 * 1024
_SPECIAL = CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
_acks_and_timeout = struct.Struct(">hi")
_int16 = struct.Struct(">h")
_int32 = struct.Struct(">i")
_partition = struct.Struct(">ihqq")
_int64 = struct.Struct(">q")


def scan_produce(frame: Buffer, position: int, version: int) -> SingleBatch | None:
    """Return the only batch of a produce request (v3+) from the end of its header on; None if it needs more work.

    A batch that is returned is valid: uncompressed, not transactional, with its checksum and all records checked. For
    anything else, also for invalid requests, None is returned.
    """
    if len(frame) > _FRAME_BYTES_MAX or position < 0 or version < 3:
        return None
    try:
        return _scan(memoryview(frame), position, version)
    except (WireError, struct.error, IndexError, UnicodeDecodeError):
        return None


def _scan(frame: memoryview, pos: int, version: int) -> SingleBatch | None:
    flexible = version >= _FLEXIBLE_MIN
    # Header tags and transactional id; a null id is one zero byte, or -1.
    if bytes(frame[pos : pos + 2]) != (b"\0\0" if flexible else b"\xff\xff"):
        return None
    acks, timeout_ms = _acks_and_timeout.unpack_from(frame, pos + 2)
    pos = _single_item(frame, pos + 8, flexible)
    topic: str | bytes
    if version >= _TOPIC_IDS_MIN:
        topic, pos = bytes(frame[pos : pos + 16]), pos + 16
    else:
        size, pos = _length(frame, pos, flexible, _int16)
        topic, pos = str(frame[pos : pos + size], "utf-8"), pos + size
    pos = _single_item(frame, pos, flexible)
    (partition,) = _int32.unpack_from(frame, pos)
    size, start = _length(frame, pos + 4, flexible, _int32)
    stop = start + size
    if size < HEADER_BYTES or frame[stop:] != (bytes(3) if flexible else b""):
        return None
    header = BatchHeader._make(header_layout.unpack_from(frame, start))
    if (
        header.base_offset
        or header.size != size
        or header.magic != 2
        or header.attributes & _SPECIAL
        or header.record_count <= 0
        or header.last_offset_delta + 1 != header.record_count
        or (header.producer_id != NO_PRODUCER_ID and header.base_sequence < 0)
        or crc32c(frame[start + ATTRIBUTES_OFFSET : stop]) != header.crc
    ):
        return None
    keyless = check_records(frame[start + HEADER_BYTES : stop], header.record_count)
    return SingleBatch(acks, timeout_ms, topic, partition, header, start, stop, keyless)


def _single_item(frame: memoryview, pos: int, flexible: bool) -> int:
    """Return the position after the count of an array with one item; raise IndexError otherwise."""
    count = b"\2" if flexible else b"\0\0\0\1"
    if frame[pos : pos + len(count)] != count:
        raise IndexError
    return pos + len(count)


def _length(frame: memoryview, pos: int, flexible: bool, layout: struct.Struct) -> tuple[int, int]:
    """Return a length and the position after it; raise IndexError unless that many bytes are left."""
    if flexible:
        raw, pos = read_uvarint(frame, pos, len(frame))
        size = raw - 1
    else:
        (size,) = layout.unpack_from(frame, pos)
        pos += layout.size
    if not 0 <= size <= len(frame) - pos:
        raise IndexError
    return size, pos


def encode_produced(
    version: int, correlation_id: int, topic: str | bytes, partition: int, base_offset: int, start_offset: int
) -> bytes:
    """Return the frame of a produce response (v3+) for one batch that was appended with the producer's timestamps.

    `topic` is a name, from v13 on an id.
    """
    flexible = version >= _FLEXIBLE_MIN
    text = topic.encode() if isinstance(topic, str) else topic
    out = bytearray(_int32.pack(correlation_id))
    if flexible:
        out += b"\0\2"  # header tags, one topic
        if version < _TOPIC_IDS_MIN:
            write_uvarint(out, len(text) + 1)
    else:
        out += _int32.pack(1) + _int16.pack(len(text))
    out += text
    out += b"\2" if flexible else _int32.pack(1)
    out += _partition.pack(partition, 0, base_offset, -1)  # no error; the timestamps are the producer's
    if version >= _LOG_START_MIN:
        out += _int64.pack(start_offset)
    if flexible:
        out += b"\1\0\0\0"  # no record errors, no message; tags of partition and topic
    elif version >= _RECORD_ERRORS_MIN:
        out += _int32.pack(0) + _int16.pack(-1)
    out += _int32.pack(0)  # throttle time
    if flexible:
        out += b"\0"
    return _int32.pack(len(out)) + out
