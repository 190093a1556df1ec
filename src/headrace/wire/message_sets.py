"""Message sets, magic 0 and 1: the record format of Produce 0–2 and Fetch 0–3, before record batches.

A set is a sequence of entries, without a count::

    offset int64 | size int32 | crc uint32 | magic int8 | attributes int8 | [timestamp int64] | key | value
                              |<-- size ------------------------------------------------------------------>|
                                           |<-- covered by the crc --------------------------------------->|

Only magic 1 has a timestamp. Key and value have an int32 length before them, -1 for null. A compressed set is one
message, the wrapper, whose value is the inner set; wrappers are not nested.

    magic  inner offsets                     wrapper's offset      wrapper's timestamp
    0      absolute                          of the last message   none
    1      relative to the first message     of the last message   the maximum, or the log append time of all

The data flow, with record batches (magic 2) on the other side of a list of records::

    batches ─ RecordBatch.records ─► Records ─ encode ─► set   without headers; magic 0: without timestamps
    batches ◄─ records.encode ────── Records ◄─ decode ─ set   without headers; magic 0: without timestamps
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from headrace.errors import CorruptBatchError, MalformedError, UnsupportedVersionError, WireError
from headrace.wire import compression
from headrace.wire.compression import LZ4, NONE, ZSTD
from headrace.wire.kernel import kernel
from headrace.wire.layout import CODEC_MASK, LOG_APPEND_TIME, NO_TIMESTAMP, BatchHeader, LegacyMessage, Record
from headrace.wire.primitives import Buffer

_CODECS = range(ZSTD)  # zstd needs record batches


def encode(
    records: Sequence[Record],
    *,
    magic: int,
    codec: int = NONE,
    level: int | None = None,
    append_time: int = NO_TIMESTAMP,
) -> bytes:
    """Encode records with their offsets (in a produce request, they start at 0).

    Headers are dropped and, in magic 0, timestamps. `append_time`, if given, replaces all timestamps and marks them
    as set by the broker.
    """
    if magic not in (0, 1):
        raise UnsupportedVersionError(f"expected magic 0 or 1 for a message set, got {magic}")
    if codec not in _CODECS:
        raise UnsupportedVersionError(f"message sets support gzip, snappy and lz4, not {_codec_name(codec)}")
    if not records:
        return b""
    first_offset = records[0].offset if codec != NONE and magic == 1 else 0
    has_append_time = append_time != NO_TIMESTAMP
    timestamps = [append_time if has_append_time else record.timestamp for record in records]
    attributes = LOG_APPEND_TIME if has_append_time and magic == 1 else 0
    data = kernel.encode_message_set(
        [record.offset - first_offset for record in records],
        timestamps,
        [record.key for record in records],
        [record.value for record in records],
        magic=magic,
        attributes=attributes,
    )
    if codec == NONE:
        return data
    return _wrap(data, magic, attributes | codec, records[-1].offset, max(timestamps), level=level)


def encode_columns(
    keys: Sequence[Buffer | None], values: Sequence[Buffer | None], *, magic: int, codec: int, timestamp: int
) -> bytes:
    """Encode messages for a produce request: offsets from 0, all with the same timestamp."""
    timestamps = [timestamp] * len(values)
    data = kernel.encode_message_set(range(len(values)), timestamps, keys, values, magic=magic, attributes=0)
    return data if codec == NONE else _wrap(data, magic, codec, len(values) - 1, timestamp)


def _wrap(data: bytes, magic: int, attributes: int, offset: int, timestamp: int, *, level: int | None = None) -> bytes:
    """Compress a set and return the wrapper message."""
    codec = attributes & CODEC_MASK
    inner = compression.compress(codec, data, level)
    if codec == LZ4 and magic == 0:
        inner = _break_lz4_checksum(inner)
    return kernel.encode_message_set([offset], [timestamp], [None], [inner], magic=magic, attributes=attributes)


def decode(
    data: Buffer,
    *,
    partial_tail: bool = False,
    mixed_magic: bool = False,
    bytes_max: int = compression.DECOMPRESSED_BYTES_MAX,
) -> list[Record]:
    """Decode a message set; `bytes_max` limits the total size of decompressed data.

    In a produce request a set is complete and has one magic. In a fetch response it may end with an incomplete message
    (`partial_tail` drops it) and mix messages of older and newer clients (`mixed_magic`).
    """
    records: list[Record] = []
    bytes_left = bytes_max
    magic = -1
    for message in kernel.decode_message_set(data, partial_tail):
        if magic not in (-1, message.magic) and not mixed_magic:
            raise MalformedError(
                f"expected magic {magic} in the whole set, got {message.magic}", offset=message.position
            )
        magic = message.magic
        if message.codec == NONE:
            records.append(_record(message, message.offset, message.timestamp))
        else:
            bytes_left -= _unwrap(message, records, bytes_left)
    return records


def convert_down(batches: Iterable[tuple[BatchHeader, Sequence[Record]]], *, magic: int) -> bytes:
    """Encode the records of batches as a message set. Each batch keeps its codec; control batches are left out."""
    return b"".join(
        encode(records, magic=magic, codec=header.codec, append_time=header.append_time)
        for header, records in batches
        if not header.is_control
    )


def _record(message: LegacyMessage, offset: int, timestamp: int) -> Record:
    return Record(offset, timestamp, message.key, message.value, ())


def _unwrap(wrapper: LegacyMessage, records: list[Record], bytes_max: int) -> int:
    """Append the records of a wrapper and return the size of the decompressed set."""
    try:
        data = _decompress(wrapper, bytes_max)
        inner = kernel.decode_message_set(data, False)
        first_offset = _first_offset(wrapper, inner)
    except WireError as error:
        raise CorruptBatchError(f"in the compressed message at {wrapper.position}: {error}") from None
    has_append_time = wrapper.magic == 1 and wrapper.attributes & LOG_APPEND_TIME
    for message in inner:
        timestamp = wrapper.timestamp if has_append_time else message.timestamp
        records.append(_record(message, first_offset + message.offset, timestamp))
    return len(data)


def _decompress(wrapper: LegacyMessage, bytes_max: int) -> memoryview:
    data: Buffer | None = wrapper.value
    if wrapper.codec not in _CODECS:
        raise CorruptBatchError(f"expected gzip, snappy or lz4, got {_codec_name(wrapper.codec)}")
    if data is None:
        raise CorruptBatchError("expected a message set as the value, got null")
    if wrapper.codec == LZ4 and wrapper.magic == 0:
        data = _fix_lz4_checksum(data)
    return memoryview(compression.decompress(wrapper.codec, data, bytes_max))


def _first_offset(wrapper: LegacyMessage, inner: list[LegacyMessage]) -> int:
    """Check the inner messages and return the offset that their offsets are relative to."""
    if not inner:
        raise CorruptBatchError("expected messages, got none")
    last_offset = inner[-1].offset
    for position, offset, magic, attributes, *_ in inner:
        if attributes & CODEC_MASK:
            raise MalformedError("expected an uncompressed message inside a wrapper", offset=position)
        if magic != wrapper.magic:
            raise MalformedError(f"expected magic {wrapper.magic}, got {magic}", offset=position)
        if magic == 1 and not 0 <= offset <= last_offset:
            raise MalformedError(f"expected an offset from 0 to {last_offset}, got {offset}", offset=position)
    # Some producers (librdkafka, kafka-python) leave the wrapper's offset at 0.
    if wrapper.magic == 0 or wrapper.offset == 0:
        return 0
    if wrapper.offset < last_offset:
        raise CorruptBatchError(f"expected an offset of {last_offset} or more, got {wrapper.offset}")
    return wrapper.offset - last_offset


def _codec_name(codec: int) -> str:
    return compression.CODEC_NAMES[codec] if codec == ZSTD else f"codec {codec}"


# LZ4 in magic 0. Kafka's first LZ4 writer included the frame's magic number in the header checksum (KAFKA-3160);
# brokers of that time expect the wrong checksum, and no content size. KIP-57 fixed it for magic 1. In magic 0,
# Apache Kafka still writes the wrong checksum and accepts any.

_LZ4_MAGIC_BYTES = 4
_LZ4_CONTENT_SIZE = 0x08
_LZ4_DICTIONARY_ID = 0x01


def _lz4_checksum_offset(frame: Buffer) -> int:
    flags = frame[_LZ4_MAGIC_BYTES]
    optional = (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY_ID else 0)
    return _LZ4_MAGIC_BYTES + 2 + optional


def _break_lz4_checksum(frame: Buffer) -> bytes:
    blocks = frame[_lz4_checksum_offset(frame) + 1 :]
    head = bytearray(frame[: _LZ4_MAGIC_BYTES + 2])
    head[_LZ4_MAGIC_BYTES] &= ~_LZ4_CONTENT_SIZE
    head.append(_xxh32_short(head) >> 8 & 0xFF)
    return b"".join((head, blocks))


def _fix_lz4_checksum(frame: Buffer) -> Buffer:
    if len(frame) <= _LZ4_MAGIC_BYTES or len(frame) <= (pos := _lz4_checksum_offset(frame)):
        return frame  # too short: the decompressor raises the error
    fixed = bytearray(frame)
    fixed[pos] = _xxh32_short(fixed[_LZ4_MAGIC_BYTES:pos]) >> 8 & 0xFF
    return fixed


def _xxh32_short(data: Buffer) -> int:
    """Return the xxHash32, seed 0, of fewer than 16 bytes, which is enough for frame headers."""
    prime1, prime2, prime3, prime4, prime5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    mask = 0xFFFFFFFF
    words_end = len(data) & ~3
    acc = prime5 + len(data)
    for (word,) in struct.iter_unpack("<I", data[:words_end]):
        acc = acc + word * prime3 & mask
        acc = (acc << 17 | acc >> 15) * prime4 & mask
    for byte in data[words_end:]:
        acc = acc + byte * prime5 & mask
        acc = (acc << 11 | acc >> 21) * prime1 & mask
    acc = (acc ^ acc >> 15) * prime2 & mask
    acc = (acc ^ acc >> 13) * prime3 & mask
    return acc ^ acc >> 16
