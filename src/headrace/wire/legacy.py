"""Message sets, magic 0 and 1: what Produce 0–2 and Fetch 0–3 carry, from before there were record batches.

A set is entries one after another, without a count::

    offset int64 | size int32 | crc uint32 | magic int8 | attributes int8 | [timestamp int64] | key | value
                              |<-- size ------------------------------------------------------------------>|
                                           |<-- what the crc counts -------------------------------------->|

The timestamp came with magic 1. Key and value have an int32 length before them, -1 for null. A compressed
set is one message, the wrapper, whose value is the set inside: one level, never more.

    magic  offsets inside                 wrapper's offset    wrapper's timestamp
    0      absolute                       the last message's  none
    1      counted from the first one's   the last message's  the highest, or the log append time of all

The data flow, with record batches (magic 2) on the other side of a list of records::

    batches ─ records.decode ─► Records ─ encode ─► set      headers go; to magic 0, timestamps too
    batches ◄─ records.encode ─ Records ◄─ decode ─ set      no headers; from magic 0, no timestamps
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from headrace.errors import CorruptBatchError, MalformedError, UnsupportedVersionError, WireError
from headrace.wire import compression
from headrace.wire.compression import LZ4, NONE, ZSTD
from headrace.wire.layout import CODEC_MASK, LOG_APPEND_TIME, MAGIC_OFFSET, NO_TIMESTAMP, BatchHeader, Record
from headrace.wire.primitives import Buffer

_entry = struct.Struct(">qiI")  # offset, size, crc
_heads = (struct.Struct(">bb"), struct.Struct(">bbq"))  # magic, attributes and, in magic 1, the timestamp
_int32 = struct.Struct(">i")

_PREFIX_BYTES = 12  # offset and size: what the size does not count
_CRC_BYTES = 4
_SIZE_MIN = 14  # an empty message of magic 0; as much as magic 1 has before the key
_CODECS = range(ZSTD)  # zstd is younger than message sets


class _Message(NamedTuple):
    """An entry, to be written, or read and found to hold."""

    position: int  # of the entry in its buffer
    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: Buffer | None
    value: Buffer | None

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK


def encode(
    records: Sequence[Record],
    *,
    magic: int,
    codec: int = NONE,
    level: int | None = None,
    append_time: int = NO_TIMESTAMP,
) -> bytes:
    """A message set of `records` at the offsets they have; a producer counts them from 0.

    Headers are dropped and, in magic 0, timestamps. `append_time`, if given, stands in for all timestamps
    and marks them as the broker's.
    """
    if magic not in (0, 1):
        raise UnsupportedVersionError(f"expected magic 0 or 1 for a message set, got {magic}")
    if codec not in _CODECS:
        raise UnsupportedVersionError(f"message sets know gzip, snappy and lz4, not {_codec_name(codec)}")
    if not records:
        return b""
    first_offset = records[0].offset if codec != NONE and magic == 1 else 0
    stamped = append_time != NO_TIMESTAMP
    attributes = LOG_APPEND_TIME if stamped and magic == 1 else 0
    out = bytearray()
    for offset, timestamp, key, value, _ in records:
        time = append_time if stamped else timestamp
        _write(out, _Message(0, offset - first_offset, magic, attributes, time, key, value))
    if codec == NONE:
        return bytes(out)
    inner = compression.compress(codec, out, level)
    if codec == LZ4 and magic == 0:
        inner = _break_lz4_checksum(inner)
    time = append_time if stamped else max(record.timestamp for record in records)
    out = bytearray()
    _write(out, _Message(0, records[-1].offset, magic, attributes | codec, time, None, inner))
    return bytes(out)


def decode(
    data: Buffer,
    *,
    partial_tail: bool = False,
    mixed_magic: bool = False,
    bytes_max: int = compression.DECOMPRESSED_BYTES_MAX,
) -> list[Record]:
    """The records of a message set. What is compressed in it may come to `bytes_max` in all.

    What a broker is sent is whole and of one magic. What it answers to a fetch may end in the middle of a
    message (`partial_tail` drops that one) and mix what older and newer clients wrote (`mixed_magic`).
    """
    records: list[Record] = []
    bytes_left = bytes_max
    magic = -1
    for message in _read_all(memoryview(data), partial_tail):
        if magic not in (-1, message.magic) and not mixed_magic:
            raise MalformedError(f"expected magic {magic} again, got {message.magic}", offset=message.position)
        magic = message.magic
        if message.codec == NONE:
            records.append(_record(message, message.offset, message.timestamp))
        else:
            bytes_left -= _unwrap(message, records, bytes_left)
    return records


def convert_down(batches: Iterable[tuple[BatchHeader, Sequence[Record]]], *, magic: int) -> bytes:
    """Decoded record batches as a message set. Each keeps its codec; control batches are left out."""
    return b"".join(
        encode(records, magic=magic, codec=header.codec, append_time=header.append_time)
        for header, records in batches
        if not header.is_control
    )


def _write(out: bytearray, message: _Message) -> None:
    _, offset, magic, attributes, timestamp, key, value = message
    head = _heads[0].pack(0, attributes) if magic == 0 else _heads[1].pack(1, attributes, timestamp)
    key_length = _int32.pack(-1 if key is None else len(key))
    value_length = _int32.pack(-1 if value is None else len(value))
    body = b"".join((head, key_length, key or b"", value_length, value or b""))
    out += _entry.pack(offset, _CRC_BYTES + len(body), zlib.crc32(body))
    out += body


def _read_all(data: memoryview, partial_tail: bool = False) -> Iterator[_Message]:
    pos, end = 0, len(data)
    while pos < end:
        left = end - pos - _PREFIX_BYTES
        size = _SIZE_MIN if left < 0 else _int32.unpack_from(data, pos + 8)[0]
        if size < _SIZE_MIN:
            raise MalformedError(f"expected a message of at least {_SIZE_MIN} bytes, got {size}", offset=pos)
        if size > left:
            if partial_tail:
                return
            total = _PREFIX_BYTES + size
            raise MalformedError(f"expected an entry of {total} bytes or more, {end - pos} left", offset=pos)
        next_pos = pos + _PREFIX_BYTES + size
        yield _read(data[:next_pos], pos)
        pos = next_pos


def _read(data: memoryview, pos: int) -> _Message:
    """The message from `pos` to the end of `data`."""
    magic_pos = pos + MAGIC_OFFSET
    magic = data[magic_pos]
    if magic not in (0, 1):
        raise MalformedError(f"expected magic 0 or 1 in a message set, got {magic}", offset=magic_pos)
    offset, _, crc = _entry.unpack_from(data, pos)
    computed = zlib.crc32(data[magic_pos:])
    if computed != crc:
        raise CorruptBatchError(f"expected checksum {crc:#x} of the message at {pos}, its bytes give {computed:#x}")
    head = _heads[magic]
    _, attributes, *timestamp = head.unpack_from(data, magic_pos)
    key, key_end = _read_bytes(data, magic_pos + head.size, "key")
    value, value_end = _read_bytes(data, key_end, "value")
    if value_end != len(data):
        left = len(data) - value_end
        raise MalformedError(f"expected the message to end with its value, {left} bytes left", offset=value_end)
    return _Message(pos, offset, magic, attributes, timestamp[0] if timestamp else NO_TIMESTAMP, key, value)


def _read_bytes(data: memoryview, pos: int, what: str) -> tuple[memoryview | None, int]:
    start = pos + _int32.size
    left = len(data) - start
    if left < 0:
        raise MalformedError(f"expected the length of a {what}, {len(data) - pos} bytes left", offset=pos)
    (length,) = _int32.unpack_from(data, pos)
    if length == -1:
        return None, start
    if not 0 <= length <= left:
        raise MalformedError(f"expected a {what} of {length} bytes, {left} left", offset=pos)
    return data[start : start + length], start + length


def _record(message: _Message, offset: int, timestamp: int) -> Record:
    key, value = message.key, message.value
    return Record(offset, timestamp, key if key is None else bytes(key), value if value is None else bytes(value), ())


def _unwrap(wrapper: _Message, records: list[Record], bytes_max: int) -> int:
    """Append the records of a compressed set; the bytes it came to."""
    try:
        data = _decompress(wrapper, bytes_max)
        inner = list(_read_all(data))
        first_offset = _first_offset(wrapper, inner)
    except WireError as error:
        raise CorruptBatchError(f"in the compressed message at {wrapper.position}: {error}") from None
    stamped = wrapper.magic == 1 and wrapper.attributes & LOG_APPEND_TIME
    for message in inner:
        time = wrapper.timestamp if stamped else message.timestamp
        records.append(_record(message, first_offset + message.offset, time))
    return len(data)


def _decompress(wrapper: _Message, bytes_max: int) -> memoryview:
    data = wrapper.value
    if wrapper.codec not in _CODECS:
        raise CorruptBatchError(f"expected gzip, snappy or lz4, got {_codec_name(wrapper.codec)}")
    if data is None:
        raise CorruptBatchError("expected a message set for a value, got null")
    if wrapper.codec == LZ4 and wrapper.magic == 0:
        data = _mend_lz4_checksum(data)
    return memoryview(compression.decompress(wrapper.codec, data, bytes_max))


def _first_offset(wrapper: _Message, inner: list[_Message]) -> int:
    """What the offsets inside count from, if they are as they should be."""
    if not inner:
        raise CorruptBatchError("expected messages, got none")
    last_offset = inner[-1].offset
    for position, offset, magic, attributes, *_ in inner:
        if attributes & CODEC_MASK:
            raise MalformedError("expected no compression inside compression", offset=position)
        if magic != wrapper.magic:
            raise MalformedError(f"expected magic {wrapper.magic}, got {magic}", offset=position)
        if magic == 1 and not 0 <= offset <= last_offset:
            raise MalformedError(f"expected an offset from 0 to {last_offset}, got {offset}", offset=position)
    # Some producers number the messages, but not the wrapper (librdkafka, kafka-python).
    if wrapper.magic == 0 or wrapper.offset == 0:
        return 0
    if wrapper.offset < last_offset:
        raise CorruptBatchError(f"expected an offset of {last_offset} or more, got {wrapper.offset}")
    return wrapper.offset - last_offset


def _codec_name(codec: int) -> str:
    return compression.CODEC_NAMES[codec] if codec == ZSTD else f"codec {codec}"


# LZ4 in magic 0. Kafka's first LZ4 writer hashed the frame's magic number along with the frame header
# (KAFKA-3160); brokers of that time expect the wrong checksum, and no content size. KIP-57 mended it for
# magic 1. In magic 0 Apache Kafka writes the wrong checksum to this day, and takes any.

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


def _mend_lz4_checksum(frame: Buffer) -> Buffer:
    if len(frame) <= _LZ4_MAGIC_BYTES or len(frame) <= (at := _lz4_checksum_offset(frame)):
        return frame  # no frame at all: the decompressor will say so
    mended = bytearray(frame)
    mended[at] = _xxh32_short(mended[_LZ4_MAGIC_BYTES:at]) >> 8 & 0xFF
    return mended


def _xxh32_short(data: Buffer) -> int:
    """xxHash32, seed 0, of fewer than 16 bytes: the part of it that frame headers need."""
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
