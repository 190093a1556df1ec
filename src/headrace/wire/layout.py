"""Types and constants that the kernels and their callers share: batch headers, records, Arrow columns."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from headrace.wire.primitives import Buffer

# The header of a record batch, magic 2. The checksum does not cover base offset and leader epoch, so that a broker
# can set them without computing it again.
HEADER_BYTES = 61
LENGTH_OFFSET = 8
MAGIC_OFFSET = 16
CRC_OFFSET = 17
ATTRIBUTES_OFFSET = 21
PREFIX_BYTES = 12  # base offset and length, which the length does not include
header_layout = struct.Struct(">qiibIhiqqqhii")
assert header_layout.size == HEADER_BYTES

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1

# Problems of batches that callers of `scan_batches` handle specially.
CHECKSUM_PROBLEM = "a checksum is wrong"
OFFSET_PROBLEM = "an offset is lower than the one before"

RECORD_OVERHEAD_BYTES_MAX = 36
"""The maximum size of a record without key, value and headers: all varints at their longest."""

Header = tuple[str, bytes | None]


class BatchHeader(NamedTuple):
    """The header of a record batch: the 61 bytes before the records."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the batch in bytes, header included."""
        return self.length + PREFIX_BYTES

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def append_time(self) -> int:
        """The timestamp of all records if the broker set it, else -1."""
        return self.max_timestamp if self.attributes & LOG_APPEND_TIME else NO_TIMESTAMP


class SingleBatch(NamedTuple):
    """The only batch of a produce request."""

    acks: int
    timeout_ms: int
    topic: str | bytes  # a name, from v13 on an id
    partition: int
    header: BatchHeader
    start: int  # in the frame of the request
    stop: int
    keyless: int  # the index of the first record without a key; -1 if all have keys


class Record(NamedTuple):
    """A decoded record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class ConsumerRecord(NamedTuple):
    """A record that a consumer returns. Key and value are bytes or None, or what the deserializers make of them."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    timestamp_type: int
    """0: set by the producer (CreateTime), 1: by the broker (LogAppendTime), -1: none."""
    key: Any
    value: Any
    headers: tuple[Header, ...]
    leader_epoch: int
    """The epoch of the leader that appended the record; -1 if it is unknown."""


class LegacyMessage(NamedTuple):
    """A decoded message of magic 0 or 1."""

    position: int  # of its entry in the buffer
    offset: int
    magic: int
    attributes: int
    timestamp: int  # -1 in magic 0
    key: bytes | None
    value: bytes | None

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK


class BytesColumn(NamedTuple):
    """The buffers of an Arrow column of binary or string."""

    validity: Buffer | None
    offsets: Buffer  # int32, or int64 if large
    data: Buffer
    first: int  # the index of row 0 in the buffers
    large: bool


class HeadersColumn(NamedTuple):
    """The buffers of an Arrow column of list<struct<key, value>>."""

    validity: Buffer | None
    offsets: Buffer  # int32
    first: int
    keys: BytesColumn
    values: BytesColumn


class EncodedBatch(NamedTuple):
    """Encoded records of one partition, with space for the batch header before them."""

    partition: int
    buffer: bytearray
    record_count: int
    base_timestamp: int
    max_timestamp: int

    @property
    def size(self) -> int:
        return len(self.buffer)
