"""Messages of magic 0 and 1, in plain Python. `headrace.wire.message_sets` describes the format."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from headrace.errors import CorruptBatchError, MalformedError
from headrace.wire.layout import MAGIC_OFFSET, NO_TIMESTAMP, LegacyMessage
from headrace.wire.primitives import Buffer

_entry = struct.Struct(">qiI")  # offset, size, crc
_heads = (struct.Struct(">bb"), struct.Struct(">bbq"))  # magic, attributes and, in magic 1, the timestamp
_int32 = struct.Struct(">i")

_PREFIX_BYTES = 12  # offset and size, which the size does not include
_CRC_BYTES = 4
_SIZE_MIN = 14  # an empty message of magic 0; magic 1 has as many bytes before the key


def encode_message_set(
    offsets: Sequence[int],
    timestamps: Sequence[int],
    keys: Sequence[Buffer | None],
    values: Sequence[Buffer | None],
    *,
    magic: int,
    attributes: int,
) -> bytes:
    """Encode entries. Magic 0 has no timestamps."""
    out = bytearray()
    for offset, timestamp, key, value in zip(offsets, timestamps, keys, values, strict=True):
        head = _heads[0].pack(0, attributes) if magic == 0 else _heads[1].pack(1, attributes, timestamp)
        key_length = _int32.pack(-1 if key is None else len(key))
        value_length = _int32.pack(-1 if value is None else len(value))
        body = b"".join((head, key_length, key or b"", value_length, value or b""))
        out += _entry.pack(offset, _CRC_BYTES + len(body), zlib.crc32(body))
        out += body
    return bytes(out)


def decode_message_set(data: Buffer, partial_tail: bool) -> list[LegacyMessage]:
    """Decode and check all entries. With `partial_tail`, an incomplete last entry is ignored."""
    messages = []
    with memoryview(data) as view:
        pos, end = 0, len(view)
        while pos < end:
            left = end - pos - _PREFIX_BYTES
            size = _SIZE_MIN if left < 0 else _int32.unpack_from(view, pos + 8)[0]
            if size < _SIZE_MIN:
                raise MalformedError(f"expected a message of at least {_SIZE_MIN} bytes, got {size}", offset=pos)
            if size > left:
                if partial_tail:
                    break
                total = _PREFIX_BYTES + size
                raise MalformedError(f"expected an entry of {total} bytes or more, {end - pos} left", offset=pos)
            next_pos = pos + _PREFIX_BYTES + size
            messages.append(_message(view, pos, next_pos))
            pos = next_pos
    return messages


def _message(data: memoryview, pos: int, end: int) -> LegacyMessage:
    magic_pos = pos + MAGIC_OFFSET
    magic = data[magic_pos]
    if magic not in (0, 1):
        raise MalformedError(f"expected magic 0 or 1 in a message set, got {magic}", offset=magic_pos)
    offset, _, crc = _entry.unpack_from(data, pos)
    computed = zlib.crc32(data[magic_pos:end])
    if computed != crc:
        raise CorruptBatchError(f"message at {pos}: expected checksum {crc:#010x}, got {computed:#010x}")
    head = _heads[magic]
    _, attributes, *timestamp = head.unpack_from(data, magic_pos)
    key, key_end = _bytes(data, magic_pos + head.size, end, "key")
    value, value_end = _bytes(data, key_end, end, "value")
    if value_end != end:
        left = end - value_end
        raise MalformedError(f"expected the message to end with its value, {left} bytes left", offset=value_end)
    return LegacyMessage(pos, offset, magic, attributes, timestamp[0] if timestamp else NO_TIMESTAMP, key, value)


def _bytes(data: memoryview, pos: int, end: int, what: str) -> tuple[bytes | None, int]:
    start = pos + _int32.size
    left = end - start
    if left < 0:
        raise MalformedError(f"expected the length of a {what}, {end - pos} bytes left", offset=pos)
    (length,) = _int32.unpack_from(data, pos)
    if length == -1:
        return None, start
    if not 0 <= length <= left:
        raise MalformedError(f"expected a {what} of {length} bytes, {left} left", offset=pos)
    return bytes(data[start : start + length]), start + length
