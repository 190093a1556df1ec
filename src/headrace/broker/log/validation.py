"""What a batch must be to get into the log, and what has to be changed in it.

    bytes of a client ─ prepare ─► Prepared: its header, and the bytes from the 17th on

Offset, length and leader epoch are the first 16 bytes. They lie outside the checksum, so a batch whose offsets are
assigned goes to disk as it came, behind 16 new bytes. The records of clients are walked through by the kernel, which
makes no object of them: a batch that no reader could take apart would stop every reader of the topic.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from headrace.broker.log.config import LogConfig
from headrace.broker.log.decompression import Decompression
from headrace.errors import BrokerError, Code, WireError
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
    BatchHeader,
    header_layout,
)
from headrace.wire.primitives import Buffer
from headrace.wire.records import RecordBatch

CODEC_MAX = 4


class Origin(Enum):
    """Where records come from. The less we trust it, the more is checked."""

    CLIENT = auto()
    COORDINATOR = auto()  # one of ours: no sequence numbers
    REPLICATION = auto()  # the leader checked it and gave it its offsets


class Prepared(NamedTuple):
    """A batch that is fit to be written."""

    header: BatchHeader  # its offsets are still the producer's
    body: list[Buffer]  # from the 17th byte on
    size_bytes: int
    append_time_ms: int  # -1: the timestamps are the producer's


def prepare(
    view: memoryview, config: LogConfig, origin: Origin, now_ms: int, magic_allowed: int, decompression: Decompression
) -> Prepared:
    """Check a batch that wants offsets, and change what the topic's options want changed. From any thread.

    Raises BrokerError, or OffLoopError if this is the event loop and there is too much to do.
    """
    size = len(view)
    if size <= MAGIC_OFFSET:
        raise refusal(f"expected a record batch, got {size} bytes", Code.INVALID_RECORD)
    if view[MAGIC_OFFSET] < 2:
        return _prepare_old(view, config, now_ms, magic_allowed, decompression)
    header = check_batch(view, config.max_message_bytes)
    if header.length + 12 != size:
        raise refusal(
            f"expected one batch of {header.size} bytes, got {size} bytes in all: exactly one batch may be sent",
            Code.INVALID_RECORD,
        )
    if origin is Origin.CLIENT:
        _check_client(header)
        payload = _checked_payload(view, header, config, decompression)
        if config.codec is not None and config.codec != header.attributes & CODEC_MASK:
            decompression.leave_loop()
            from headrace.broker.log.conversion import recompress

            view, header = recompress(payload, header, config.codec, config.codec_level)
            _check_size(view, config)
    if config.log_append_time:
        return _stamp(view, header, now_ms)
    _check_timestamps(header, config, now_ms)
    return Prepared(header, [view[MAGIC_OFFSET:]], len(view), NO_TIMESTAMP)


def check_batch(view: memoryview, bytes_max: int) -> BatchHeader:
    """The header of the batch at the beginning of `view`, which must be whole and undamaged."""
    if len(view) < HEADER_BYTES:
        raise refusal(f"expected a batch of {HEADER_BYTES} bytes or more, got {len(view)}", Code.INVALID_RECORD)
    header = BatchHeader._make(header_layout.unpack_from(view))
    size = header.length + 12
    if size < HEADER_BYTES:
        raise refusal(f"expected a batch of {HEADER_BYTES} bytes or more, its length says {size}", Code.CORRUPT_MESSAGE)
    if header.magic != 2:
        raise refusal(f"expected magic 2, got {header.magic}", Code.INVALID_RECORD)
    if size > bytes_max:
        raise refusal(f"a batch of {size} bytes: max.message.bytes is {bytes_max}", Code.MESSAGE_TOO_LARGE)
    if size > len(view):
        raise refusal(f"expected a batch of {size} bytes, got {len(view)}", Code.INVALID_RECORD)
    computed = kernel.crc32c(view[ATTRIBUTES_OFFSET:size])
    if computed != header.crc:
        raise refusal(f"its checksum says {header.crc:#010x}, its bytes give {computed:#010x}", Code.CORRUPT_MESSAGE)
    if header.attributes & CODEC_MASK > CODEC_MAX:
        raise refusal(
            f"expected a codec of 0 to {CODEC_MAX}, got {header.attributes & CODEC_MASK}",
            Code.UNSUPPORTED_COMPRESSION_TYPE,
        )
    return header


def _check_client(header: BatchHeader) -> None:
    if header.base_offset:
        raise refusal(f"expected a base offset of 0, got {header.base_offset}", Code.INVALID_RECORD)
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise refusal(
            f"{header.record_count} records, but a last offset delta of {header.last_offset_delta}",
            Code.INVALID_RECORD,
        )
    if header.attributes & CONTROL:
        raise refusal("clients may not write control records", Code.INVALID_RECORD)
    if header.producer_id != NO_PRODUCER_ID and header.base_sequence < 0:
        raise refusal(
            f"producer {header.producer_id} sent sequence {header.base_sequence}: expected 0 or more",
            Code.INVALID_RECORD,
        )
    if header.attributes & LOG_APPEND_TIME:
        raise refusal("only the broker may mark timestamps as LogAppendTime", Code.INVALID_TIMESTAMP)


def _check_timestamps(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """The highest timestamp, and that of the first record; to see the others we would have to look at all records."""
    if header.max_timestamp == NO_TIMESTAMP:
        return
    oldest = header.max_timestamp
    if header.base_timestamp != NO_TIMESTAMP:
        oldest = min(oldest, header.base_timestamp)
    if header.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        raise refusal(
            f"timestamp {header.max_timestamp} is {header.max_timestamp - now_ms} ms in the future: "
            f"message.timestamp.after.max.ms is {config.message_timestamp_after_max_ms}",
            Code.INVALID_TIMESTAMP,
        )
    if now_ms - oldest > config.message_timestamp_before_max_ms:
        raise refusal(
            f"timestamp {oldest} is {now_ms - oldest} ms in the past: "
            f"message.timestamp.before.max.ms is {config.message_timestamp_before_max_ms}",
            Code.INVALID_TIMESTAMP,
        )


def _stamp(view: memoryview, header: BatchHeader, now_ms: int) -> Prepared:
    """All records get our time: that changes the header, and so the checksum."""
    header = header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=now_ms)
    fresh = bytearray(header_layout.pack(*header))
    records = view[HEADER_BYTES:]
    with memoryview(fresh) as head:
        crc = kernel.crc32c(records, kernel.crc32c(head[ATTRIBUTES_OFFSET:]))
    header = header._replace(crc=crc)
    return Prepared(header, [header_layout.pack(*header)[MAGIC_OFFSET:], records], len(view), now_ms)


def _checked_payload(view: memoryview, header: BatchHeader, config: LogConfig, decompression: Decompression) -> Buffer:
    """The records, decompressed: as many as the header says, and whole."""
    try:
        if header.attributes & CODEC_MASK:
            payload = decompression.payload(RecordBatch(header, view))
        else:
            decompression.count_plain(len(view))
            payload = view[HEADER_BYTES:]
        keyless = kernel.check_records(payload, header.record_count)
    except WireError as error:
        raise refusal(str(error), Code.INVALID_RECORD) from None
    if keyless >= 0 and config.compact:
        raise refusal(f"record {keyless} has no key: a compacted topic needs one", Code.INVALID_RECORD)
    return payload


def _prepare_old(
    view: memoryview, config: LogConfig, now_ms: int, magic_allowed: int, decompression: Decompression
) -> Prepared:
    if magic_allowed >= 2:
        raise refusal(
            f"expected magic 2, got {view[MAGIC_OFFSET]}: message sets came with Produce 0 to 2", Code.INVALID_RECORD
        )
    decompression.leave_loop()
    from headrace.broker.log.conversion import convert_up

    fresh, header = convert_up(view, config, decompression.old_bytes_max)
    decompression.count_old(len(fresh))
    _check_size(fresh, config)
    if config.compact:
        _checked_payload(fresh, header, config, decompression)
    if config.log_append_time:
        return _stamp(fresh, header, now_ms)
    _check_timestamps(header, config, now_ms)
    return Prepared(header, [fresh[MAGIC_OFFSET:]], len(fresh), NO_TIMESTAMP)


def _check_size(view: memoryview, config: LogConfig) -> None:
    if len(view) > config.max_message_bytes:
        raise refusal(
            f"a batch of {len(view)} bytes after conversion: max.message.bytes is {config.max_message_bytes}",
            Code.MESSAGE_TOO_LARGE,
        )


def refusal(message: str, code: Code) -> BrokerError:
    return BrokerError(message, code=code)
