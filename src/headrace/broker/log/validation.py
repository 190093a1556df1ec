"""Validation of batches, and their conversion to what the log stores.

    bytes of a client ─ prepare ─► Prepared: the header, and the bytes from the 17th on

Offset, length and leader epoch are the first 16 bytes. The checksum does not cover them, so a batch that gets its
offsets is written as it came, behind 16 new bytes. The kernel walks through the records of clients without creating
objects: a batch that no reader can decode would block every reader of the topic.

Two kinds of batches are rebuilt, on a thread: message sets of old clients, and batches that the topic wants compressed
with another codec.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from itertools import islice
from typing import NamedTuple

from headrace.broker.log.config import LogConfig
from headrace.broker.log.decompression import Decompression
from headrace.errors import BrokerError, Code, CorruptBatchError, WireError
from headrace.wire import message_sets
from headrace.wire.compression import compress
from headrace.wire.kernel import kernel
from headrace.wire.layout import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC_OFFSET,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    BatchHeader,
    Record,
    header_layout,
)
from headrace.wire.primitives import Buffer
from headrace.wire.records import RecordBatch, encode

CODEC_MAX = 4
RECORD_ERRORS_MAX = 1_000
"""How many invalid records of a batch are reported."""
RECORD_ERRORS_SHOWN = 3
"""How many of them are in the message for the whole batch, as in Kafka."""
_OLD_ATTRIBUTES_OFFSET = MAGIC_OFFSET + 1  # in a message of magic 0 or 1


class Origin(Enum):
    """The source of records. It decides what is checked."""

    CLIENT = auto()
    COORDINATOR = auto()  # of this broker: no sequence numbers
    REPLICATION = auto()  # checked by the leader, with offsets


class Prepared(NamedTuple):
    """A valid batch, ready to be written."""

    header: BatchHeader  # with the offsets of the producer
    body: list[Buffer]  # from the 17th byte on
    size_bytes: int
    append_time_ms: int  # -1 if the timestamps are the producer's


def prepare(view: memoryview, config: LogConfig, origin: Origin, now_ms: int, decompression: Decompression) -> Prepared:
    """Check a batch without offsets, and convert it as the topic's options require. From any thread.

    Raise BrokerError, or OffLoopError if this is the event loop and the batch is large.
    """
    size = len(view)
    if size <= MAGIC_OFFSET:
        raise invalid(f"expected a record batch, got {size} bytes", Code.INVALID_RECORD)
    if view[MAGIC_OFFSET] < 2:
        raise invalid(
            f"expected magic 2, got {view[MAGIC_OFFSET]}: message sets came with Produce 0 to 2", Code.INVALID_RECORD
        )
    header = check_batch(view, config.max_message_bytes)
    if header.length + 12 != size:
        raise invalid(
            f"expected one batch of {header.size} bytes, got {size} bytes: a request has one batch per partition",
            Code.INVALID_RECORD,
        )
    if origin is Origin.CLIENT:
        _check_client(header)
        payload = _checked_payload(view, header, config, decompression)
        if config.codec is not None and config.codec != header.attributes & CODEC_MASK:
            decompression.leave_loop()
            view, header = rebuild(compress(config.codec, payload, config.codec_level), header, codec=config.codec)
            _check_size(view, config)
    if config.log_append_time:
        return _set_append_time(view, header, now_ms)
    _check_timestamps(view, header, config, now_ms)
    return Prepared(header, [view[MAGIC_OFFSET:]], len(view), NO_TIMESTAMP)


def check_batch(view: memoryview, bytes_max: int) -> BatchHeader:
    """Return the header of the batch at the beginning of `view`. Raise BrokerError if it is incomplete or damaged."""
    if len(view) < HEADER_BYTES:
        raise invalid(f"expected a batch of {HEADER_BYTES} bytes or more, got {len(view)}", Code.INVALID_RECORD)
    header = BatchHeader._make(header_layout.unpack_from(view))
    size = header.length + 12
    if size < HEADER_BYTES:
        raise invalid(f"expected a batch of {HEADER_BYTES} bytes or more, its length is {size}", Code.CORRUPT_MESSAGE)
    if header.magic != 2:
        raise invalid(f"expected magic 2, got {header.magic}", Code.INVALID_RECORD)
    if size > bytes_max:
        raise invalid(f"a batch of {size} bytes: max.message.bytes is {bytes_max}", Code.MESSAGE_TOO_LARGE)
    if size > len(view):
        raise invalid(f"expected a batch of {size} bytes, got {len(view)}", Code.INVALID_RECORD)
    computed = kernel.crc32c(view[ATTRIBUTES_OFFSET:size])
    if computed != header.crc:
        raise invalid(f"checksum {computed:#010x}, expected {header.crc:#010x}", Code.CORRUPT_MESSAGE)
    if header.attributes & CODEC_MASK > CODEC_MAX:
        raise invalid(
            f"expected a codec of 0 to {CODEC_MAX}, got {header.attributes & CODEC_MASK}",
            Code.UNSUPPORTED_COMPRESSION_TYPE,
        )
    return header


def split_replicated(view: memoryview, next_offset: int, name: str) -> list[RecordBatch]:
    """Return the batches that a leader sent, all of them checked. `next_offset` is the end of the log `name`."""
    batches = []
    while view:
        header = check_batch(view, len(view))
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            raise invalid(
                f"{name}: the leader sent offset {header.base_offset}, expected {next_offset} or more",
                Code.CORRUPT_MESSAGE,
            )
        batches.append(RecordBatch(header, view[: header.size]))
        next_offset = header.last_offset + 1
        view = view[header.size :]
    return batches


def _check_client(header: BatchHeader) -> None:
    if header.base_offset:
        raise invalid(f"expected a base offset of 0, got {header.base_offset}", Code.INVALID_RECORD)
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise invalid(
            f"{header.record_count} records, but a last offset delta of {header.last_offset_delta}", Code.INVALID_RECORD
        )
    if header.attributes & CONTROL:
        raise invalid("clients may not write control records", Code.INVALID_RECORD)
    if header.producer_id != NO_PRODUCER_ID and header.base_sequence < 0:
        raise invalid(
            f"producer {header.producer_id} sent sequence {header.base_sequence}: expected 0 or more",
            Code.INVALID_RECORD,
        )
    if header.attributes & LOG_APPEND_TIME:
        raise invalid("only the broker may mark timestamps as LogAppendTime", Code.INVALID_TIMESTAMP)


def _check_timestamps(view: memoryview, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """Check the highest timestamp and that of the first record; for the others all records would have to be read."""
    if header.max_timestamp == NO_TIMESTAMP:
        return
    oldest = header.max_timestamp
    if header.base_timestamp != NO_TIMESTAMP:
        oldest = min(oldest, header.base_timestamp)
    after_ms, before_ms = config.message_timestamp_after_max_ms, config.message_timestamp_before_max_ms
    if header.max_timestamp - now_ms <= after_ms and now_ms - oldest <= before_ms:
        return

    def fault(record: Record) -> str | None:
        ahead_ms = record.timestamp - now_ms
        if ahead_ms > after_ms:
            fact = f"timestamp {record.timestamp} is {ahead_ms} ms in the future"
            return f"{fact}: message.timestamp.after.max.ms is {after_ms}"
        if -ahead_ms > before_ms:
            fact = f"timestamp {record.timestamp} is {-ahead_ms} ms in the past"
            return f"{fact}: message.timestamp.before.max.ms is {before_ms}"
        return None

    raise _rejected(RecordBatch(header, view), fault, Code.INVALID_TIMESTAMP)


def _set_append_time(view: memoryview, header: BatchHeader, now_ms: int) -> Prepared:
    """Set the broker's time as the timestamp of all records, in the header, which changes the checksum."""
    header = header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=now_ms)
    head = memoryview(header_layout.pack(*header))
    records = view[HEADER_BYTES:]
    header = header._replace(crc=kernel.crc32c(records, kernel.crc32c(head[ATTRIBUTES_OFFSET:])))
    return Prepared(header, [header_layout.pack(*header)[MAGIC_OFFSET:], records], len(view), now_ms)


def _checked_payload(view: memoryview, header: BatchHeader, config: LogConfig, decompression: Decompression) -> Buffer:
    """Return the decompressed records. Raise BrokerError if they are damaged or not as many as the header says."""
    try:
        if header.attributes & CODEC_MASK:
            payload = decompression.payload(RecordBatch(header, view))
        else:
            decompression.count_plain(len(view))
            payload = view[HEADER_BYTES:]
        keyless = kernel.check_records(payload, header.record_count)
    except WireError as error:
        raise invalid(str(error), Code.INVALID_RECORD) from None
    if keyless >= 0 and config.compact:
        raise _rejected(
            RecordBatch(header, view),
            lambda record: "the record has no key: a compacted topic needs one" if record.key is None else None,
            Code.INVALID_RECORD,
        )
    return payload


def is_message_set(view: memoryview) -> bool:
    """Return whether records have the format of old clients (magic 0 or 1)."""
    return len(view) > MAGIC_OFFSET and view[MAGIC_OFFSET] < 2


def prepare_message_set(view: memoryview, config: LogConfig, now_ms: int, decompression: Decompression) -> Prepared:
    """Convert a message set to a batch, and check it. Raise as `prepare` does."""
    decompression.leave_loop()
    converted, header = _convert_up(view, config, decompression.old_bytes_max)
    decompression.count_old(len(converted))
    _check_size(converted, config)
    if config.compact:
        _checked_payload(converted, header, config, decompression)
    if config.log_append_time:
        return _set_append_time(converted, header, now_ms)
    _check_timestamps(converted, header, config, now_ms)
    return Prepared(header, [converted[MAGIC_OFFSET:]], len(converted), NO_TIMESTAMP)


def _convert_up(view: memoryview, config: LogConfig, bytes_max: int) -> tuple[memoryview, BatchHeader]:
    """Return a message set as one batch, with its codec unless the topic has another.

    Its messages may decompress to at most `bytes_max`.
    """
    try:
        rows = message_sets.decode(view, bytes_max=bytes_max)
    except CorruptBatchError as error:
        raise invalid(str(error), Code.CORRUPT_MESSAGE) from None
    except WireError as error:
        raise invalid(str(error), Code.INVALID_RECORD) from None
    if not rows:
        raise invalid("expected messages, got none", Code.INVALID_RECORD)
    codec = view[_OLD_ATTRIBUTES_OFFSET] & CODEC_MASK if config.codec is None else config.codec
    converted = encode(rows, codec=codec, level=config.codec_level)
    return converted, BatchHeader(*header_layout.unpack_from(converted))


def rebuild(compressed: Buffer, header: BatchHeader, *, codec: int) -> tuple[memoryview, BatchHeader]:
    """Return a batch with this header and these compressed records; length, codec and checksum are set."""
    header = header._replace(
        length=HEADER_BYTES - PREFIX_BYTES + len(compressed), attributes=header.attributes & ~CODEC_MASK | codec, crc=0
    )
    batch = bytearray(header_layout.pack(*header)) + compressed
    with memoryview(batch) as view:
        header = header._replace(crc=kernel.crc32c(view[ATTRIBUTES_OFFSET:]))
    header_layout.pack_into(batch, 0, *header)
    return memoryview(batch), header


def _check_size(view: memoryview, config: LogConfig) -> None:
    if len(view) > config.max_message_bytes:
        raise invalid(
            f"a batch of {len(view)} bytes after conversion: max.message.bytes is {config.max_message_bytes}",
            Code.MESSAGE_TOO_LARGE,
        )


def invalid(message: str, code: Code) -> BrokerError:
    return BrokerError(message, code=code)


class InvalidRecordsError(BrokerError):
    """Some records of a batch are invalid, so that the batch was rejected (KIP-467)."""

    record_errors: tuple[tuple[int, str], ...] = ()  # position in the batch, and message


def _rejected(batch: RecordBatch, fault: Callable[[Record], str | None], code: Code) -> InvalidRecordsError:
    """Return the error of a batch, with the fault of each of its first records."""
    faults = ((index, fault(record)) for index, record in enumerate(batch.records()))
    errors = list(islice(((index, text) for index, text in faults if text is not None), RECORD_ERRORS_MAX))
    shown = "; ".join(f"record {index}: {text}" for index, text in errors[:RECORD_ERRORS_SHOWN])
    more = f" and {len(errors) - RECORD_ERRORS_SHOWN} more" if len(errors) > RECORD_ERRORS_SHOWN else ""
    reason = f"{shown}{more}" or "the timestamps in its header"
    error = InvalidRecordsError(f"the batch was rejected because of {reason}", code=code)
    error.record_errors = tuple(errors)
    return error
