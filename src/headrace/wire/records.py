"""Record batches (magic 2): encoding and decoding.

    records      OpenBatch.append … → seal → bytes to send
    columns      columns.encode     → seal → bytes to send
    bytes of a log or of a fetch → read_batches → RecordBatch → records(), or columns.ArrowDecoder

A sealed batch is contiguous: in the buffer it was built in, or in a new one if it was compressed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.errors import CorruptBatchError, MalformedError
from headrace.wire.compression import DECOMPRESSED_BYTES_MAX, NONE, compress, decompress
from headrace.wire.kernel import kernel
from headrace.wire.layout import (
    ATTRIBUTES_OFFSET,
    CONTROL,
    HEADER_BYTES,
    LENGTH_OFFSET,
    LOG_APPEND_TIME,
    MAGIC_OFFSET,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    PREFIX_BYTES,
    RECORD_OVERHEAD_BYTES_MAX,
    TRANSACTIONAL,
    BatchHeader,
    ConsumerRecord,
    EncodedBatch,
    Header,
    Record,
    header_layout,
)
from headrace.wire.primitives import Buffer

OpenBatch = kernel.OpenBatch

_control_key = struct.Struct(">hh")
_control_value = struct.Struct(">hi")
_length = struct.Struct(">i")


class BatchProducer(NamedTuple):
    """The producer fields of a batch header: id, epoch, base sequence, and whether it is transactional."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    transactional: bool = False


NO_PRODUCER = BatchProducer()


def seal(
    batch: OpenBatch | EncodedBatch,
    *,
    codec: int = NONE,
    level: int | None = None,
    producer: BatchProducer = NO_PRODUCER,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    attributes: int = 0,
    max_timestamp: int | None = None,
) -> memoryview:
    """Compress the records and write the header before them. Nothing may be appended to the batch after this."""
    buffer, size = batch.buffer, batch.size
    if codec != NONE:
        with memoryview(buffer) as view:
            payload = compress(codec, view[HEADER_BYTES:size], level)
        buffer, size = bytearray(HEADER_BYTES) + payload, HEADER_BYTES + len(payload)
    kernel.write_header(
        buffer,
        size,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes | codec | (TRANSACTIONAL if producer.transactional else 0),
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp if max_timestamp is None else max_timestamp,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=producer.base_sequence,
        record_count=batch.record_count,
    )
    view = memoryview(buffer)
    return view if len(view) == size else view[:size]


def encode(
    records: Iterable[Record],
    *,
    codec: int = NONE,
    level: int | None = None,
    producer: BatchProducer = NO_PRODUCER,
    leader_epoch: int = NO_LEADER_EPOCH,
    append_time: int | None = None,
    control: bool = False,
) -> memoryview:
    """Encode records with consecutive offsets as a batch; `append_time` is a timestamp set by the broker."""
    rows = list(records)
    batch = OpenBatch(bytearray(HEADER_BYTES + sum(record_bytes_max(r.key, r.value, r.headers) for r in rows)))
    for record in rows:
        batch.append(record.timestamp, record.key, record.value, record.headers)
    return seal(
        batch,
        codec=codec,
        level=level,
        producer=producer,
        base_offset=rows[0].offset if rows else 0,
        leader_epoch=leader_epoch,
        attributes=(CONTROL if control else 0) | (0 if append_time is None else LOG_APPEND_TIME),
        max_timestamp=append_time,
    )


def record_bytes_max(key: Buffer | None, value: Buffer | None, headers: Iterable[Header] = ()) -> int:
    """Return the maximum size of a record in a batch."""
    size = RECORD_OVERHEAD_BYTES_MAX + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        # Two lengths of up to five bytes; a character has up to four bytes in UTF-8.
        size += 10 + (len(name) if name.isascii() else 4 * len(name)) + (len(content) if content else 0)
    return size


class RecordBatch:
    """A batch in a buffer: the header is decoded, the records are not."""

    __slots__ = ("header", "view")

    def __init__(self, header: BatchHeader, view: memoryview) -> None:
        self.header = header
        self.view = view

    def verify(self) -> None:
        """Raise CorruptBatchError if the checksum does not match."""
        computed = kernel.crc32c(self.view[ATTRIBUTES_OFFSET:])
        if computed != self.header.crc:
            raise CorruptBatchError(
                f"batch at offset {self.header.base_offset}: expected checksum {self.header.crc:#010x}, "
                f"got {computed:#010x}"
            )

    def payload(self, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
        """Return the encoded records, decompressed."""
        return decompress(self.header.codec, self.view[HEADER_BYTES:], bytes_max)

    def records(self, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
        """Verify the checksum and return the decoded records."""
        self.verify()
        header = self.header
        return kernel.decode_records(
            self.payload(bytes_max), header.record_count, header.base_offset, header.base_timestamp, header.append_time
        )

    def consumer_records(
        self, topic: str, partition: int, first_offset: int, records: list[ConsumerRecord], bytes_max: int
    ) -> None:
        """Verify the checksum and append the records from `first_offset` on to `records`."""
        self.verify()
        header = self.header
        kernel.decode_consumer_records(
            self.payload(bytes_max),
            header.record_count,
            records,
            topic=topic,
            partition=partition,
            base_offset=header.base_offset,
            base_timestamp=header.base_timestamp,
            append_time=header.append_time,
            leader_epoch=header.leader_epoch,
            first_offset=first_offset,
        )

    def __repr__(self) -> str:
        header = self.header
        return f"RecordBatch(offsets {header.base_offset}-{header.last_offset}, {header.size} bytes)"


def read_batches(data: Buffer, *, partial: bool = False) -> Iterator[RecordBatch]:
    """Yield the batches in `data`.

    A fetch may end with an incomplete batch, because brokers cut at a number of bytes: `partial` ignores that tail.
    """
    view = memoryview(data)
    pos, end = 0, len(view)
    while pos < end:
        batch = parse_batch(view, pos, partial=partial)
        if batch is None:
            return
        yield batch
        pos += batch.header.size


def parse_batch(view: memoryview, pos: int, *, partial: bool = False) -> RecordBatch | None:
    """Return the batch at `pos` after checking its header; None for an incomplete batch if `partial`."""
    left = len(view) - pos
    if left >= PREFIX_BYTES:
        (length,) = _length.unpack_from(view, pos + LENGTH_OFFSET)
        if left > MAGIC_OFFSET and view[pos + MAGIC_OFFSET] != 2:
            raise MalformedError(
                f"expected a record batch with magic 2, got magic {view[pos + MAGIC_OFFSET]}", offset=pos + MAGIC_OFFSET
            )
        if length < HEADER_BYTES - PREFIX_BYTES:
            raise MalformedError(
                f"expected a batch length of {HEADER_BYTES - PREFIX_BYTES} or more, got {length}",
                offset=pos + LENGTH_OFFSET,
            )
        if length <= left - PREFIX_BYTES:
            header = tuple.__new__(BatchHeader, header_layout.unpack_from(view, pos))  # the fastest constructor
            if header.record_count < 0 or header.last_offset_delta < 0:
                raise MalformedError(
                    f"expected counts of 0 or more, got {header.record_count} records and a last offset delta "
                    f"of {header.last_offset_delta}",
                    offset=pos,
                )
            return RecordBatch(header, view[pos : pos + header.size])
        if partial:
            return None
        raise MalformedError(f"expected a batch of {length + PREFIX_BYTES} bytes, {left} left", offset=pos)
    if partial:
        return None
    raise MalformedError(f"expected a batch of {HEADER_BYTES} bytes or more, {left} left", offset=pos)


class Marker(NamedTuple):
    """The control record that ends a transaction in a partition."""

    committed: bool
    coordinator_epoch: int


def encode_marker(marker: Marker, producer_id: int, epoch: int, timestamp: int, offset: int = 0) -> memoryview:
    """Encode the control batch that ends a transaction."""
    key = _control_key.pack(0, int(marker.committed))
    value = _control_value.pack(0, marker.coordinator_epoch)
    producer = BatchProducer(producer_id, epoch, NO_SEQUENCE, transactional=True)
    return encode([Record(offset, timestamp, key, value, ())], producer=producer, control=True)


def decode_marker(record: Record) -> Marker | None:
    """Decode the record of a control batch; None for types that do not end a transaction."""
    if record.key is None or len(record.key) < _control_key.size:
        raise MalformedError(f"expected the key of a control record, got {record.key!r}", offset=0)
    _, control_type = _control_key.unpack_from(record.key)
    if control_type not in (0, 1):
        return None
    if record.value is None or len(record.value) < _control_value.size:
        raise MalformedError(f"expected the value of a transaction marker, got {record.value!r}", offset=0)
    _, coordinator_epoch = _control_value.unpack_from(record.value)
    return Marker(control_type == 1, coordinator_epoch)
