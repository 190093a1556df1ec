"""Messages of one partition as a message set, offsets counted from 0."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import repeat
from typing import TypeVar, cast

from headrace.legacy.messages import SerializedMessages
from headrace.wire import legacy
from headrace.wire.compression import NONE
from headrace.wire.layout import Record

_entry = struct.Struct(">qiI")  # offset, size, crc
_heads = (struct.Struct(">bbi"), struct.Struct(">bbqi"))  # magic, attributes, (timestamp,) length of the key
_int32 = struct.Struct(">i")
_CRC_BYTES = 4
_NULL = -1

T = TypeVar("T")


def encode(messages: SerializedMessages, *, magic: int, codec: int, timestamp_ms: int) -> bytes:
    """The set, compressed if the codec says so. All messages get the same timestamp, which magic 0 leaves out."""
    values, keys = messages.values, messages.keys
    if codec == NONE and keys.count(None) == len(keys) and None not in values:
        head = _heads[0].pack(0, 0, _NULL) if magic == 0 else _heads[1].pack(1, 0, timestamp_ms, _NULL)
        plain = cast(list[bytes], values)
        return _encode_value(plain[0], head) if len(plain) == 1 else _encode_values(plain, head)
    records = [
        Record(offset, timestamp_ms, key, value, ())
        for offset, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    return legacy.encode(records, magic=magic, codec=codec)


def _encode_value(value: bytes, head: bytes) -> bytes:
    """What a sync producer sends, most of the time: one message."""
    body = b"".join((head, _int32.pack(len(value)), value))
    return _entry.pack(0, _CRC_BYTES + len(body), zlib.crc32(body)) + body


def _encode_values(values: list[bytes], head: bytes) -> bytes:
    """What `legacy.encode` gives for messages without keys, column by column, at a fraction of its cost.

    But for offset and checksum, what stands before a value follows from the length of it. The checksum of that much
    is where the value's begins.
    """
    lengths = list(map(len, values))
    prefixes = {length: head + _int32.pack(length) for length in set(lengths)}
    prefix_crcs = {length: zlib.crc32(prefix) for length, prefix in prefixes.items()}
    sizes = {length: _CRC_BYTES + len(prefix) + length for length, prefix in prefixes.items()}
    crcs = map(zlib.crc32, values, _looked_up(prefix_crcs, lengths))
    parts = [b""] * (3 * len(values))
    parts[0::3] = map(_entry.pack, range(len(values)), _looked_up(sizes, lengths), crcs)
    parts[1::3] = _looked_up(prefixes, lengths)
    parts[2::3] = values
    return b"".join(parts)


def _looked_up(by_length: dict[int, T], lengths: list[int]) -> Iterator[T]:
    if len(by_length) == 1:
        return repeat(by_length[lengths[0]], len(lengths))
    return map(by_length.__getitem__, lengths)
