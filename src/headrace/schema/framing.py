"""Confluent's framing: how a value names its schema.

    before the payload    0 · id (4 bytes, big-endian) · payload
    in a record header    1 · GUID (16 bytes)                       __key_schema_id, __value_schema_id

With Protobuf, the message indexes follow the id or GUID: where the message type is in its file, from the outermost
type inwards, as a count and indexes (zigzag varints). The most frequent list, [0], is the single byte 0.

Functions for columns work on Arrow buffers, without a Python object per row; only Protobuf columns with more than
`INDEX_LISTS_MAX` different message types in a batch are slower. A value that is invalid is not an error there: the
caller decides, because it knows topic, partition and offset.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaFramingError
from headrace.schema.types import RecordField
from headrace.wire.primitives import Buffer

MAGIC_ID = 0
MAGIC_GUID = 1
ID_BYTES = 5
"""The prefix with an id: magic byte and id."""
GUID_BYTES = 17
SCHEMA_ID_HEADERS: dict[RecordField, str] = {"key": "__key_schema_id", "value": "__value_schema_id"}

ID_MAX = 2**31 - 1
MESSAGE_DEPTH_MAX = 100
"""Message indexes of a value: the nesting of a message type."""
INDEX_LISTS_MAX = 16
_VARINT_BYTES_MAX = 5
_INDEXES_BYTES_MAX = _VARINT_BYTES_MAX * (1 + MESSAGE_DEPTH_MAX)
_END = 2**31 - 1  # binary_slice: pyarrow fails without an end
_FIRST_MESSAGE = b"\0"


class SchemaId(NamedTuple):
    """What a value says about its schema: an id or a GUID."""

    id: int | None = None
    guid: UUID | None = None
    message_indexes: tuple[int, ...] | None = None
    """Protobuf only."""


# -- single values ---------------------------------------------------------------------------------


def encode_id(schema_id: int, message_indexes: Sequence[int] | None = None) -> bytes:
    """Return the prefix of a payload; with message indexes for Protobuf."""
    if not 0 <= schema_id <= ID_MAX:
        raise ValueError(f"invalid schema id: expected 0 to {ID_MAX}, got {schema_id}")
    return bytes([MAGIC_ID]) + schema_id.to_bytes(4, "big") + _encoded(message_indexes)


def encode_guid(guid: UUID, message_indexes: Sequence[int] | None = None) -> bytes:
    """Return the value of a schema id header; with message indexes for Protobuf."""
    return bytes([MAGIC_GUID]) + guid.bytes + _encoded(message_indexes)


def decode(value: Buffer, *, with_message_indexes: bool = False) -> tuple[SchemaId, memoryview]:
    """Return the schema id at the start of a value or header, and what follows it."""
    view = memoryview(value).cast("B")
    magic = view[0] if len(view) else None
    if magic == MAGIC_ID and len(view) >= ID_BYTES:
        schema_id, view = SchemaId(id=int.from_bytes(view[1:ID_BYTES], "big", signed=True)), view[ID_BYTES:]
    elif magic == MAGIC_GUID and len(view) >= GUID_BYTES:
        schema_id, view = SchemaId(guid=UUID(bytes=bytes(view[1:GUID_BYTES]))), view[GUID_BYTES:]
    else:
        raise SchemaFramingError(f"no schema id: {prefix_problem(view)}")
    if with_message_indexes:
        indexes, size = decode_message_indexes(view)
        return schema_id._replace(message_indexes=indexes), view[size:]
    return schema_id, view


def prefix_problem(value: Buffer) -> str:
    """Return what is wrong with a value that has no valid prefix, for messages."""
    view = memoryview(value).cast("B")
    start = bytes(view[:ID_BYTES]).hex(" ") or "nothing"
    if len(view) and view[0] in (MAGIC_ID, MAGIC_GUID):
        expected = ID_BYTES if view[0] == MAGIC_ID else GUID_BYTES
        return f"expected at least {expected} bytes, got {len(view)} ({start})"
    return (
        f"expected the magic byte 0 and four bytes of id, got {start}: the value was probably not written with a "
        f"schema registry's serializer"
    )


def encode_message_indexes(indexes: Sequence[int]) -> bytes:
    """Return the message indexes of a Protobuf value."""
    if len(indexes) > MESSAGE_DEPTH_MAX or not all(0 <= index <= ID_MAX for index in indexes):
        raise ValueError(
            f"invalid message indexes: expected at most {MESSAGE_DEPTH_MAX} from 0 to {ID_MAX}, got {list(indexes)}"
        )
    if list(indexes) == [0]:
        return _FIRST_MESSAGE
    return b"".join(map(_encoded_varint, (len(indexes), *indexes)))


def decode_message_indexes(data: Buffer) -> tuple[tuple[int, ...], int]:
    """Return the message indexes at the start of `data`, and their size in bytes."""
    view = memoryview(data).cast("B")  # pyarrow's are signed
    count, position = _varint(view, 0)
    if not 0 <= count <= MESSAGE_DEPTH_MAX:
        raise SchemaFramingError(f"invalid message indexes: expected 0 to {MESSAGE_DEPTH_MAX} of them, got {count}")
    if count == 0:
        return (0,), position
    indexes: list[int] = []
    for _ in range(count):
        index, position = _varint(view, position)
        if index < 0:
            raise SchemaFramingError(f"invalid message index: expected 0 or more, got {index}")
        indexes.append(index)
    return tuple(indexes), position


def _encoded(indexes: Sequence[int] | None) -> bytes:
    return b"" if indexes is None else encode_message_indexes(indexes)


def _encoded_varint(number: int) -> bytes:
    zigzag, encoded = number << 1, bytearray()  # never negative
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    zigzag = 0
    for index in range(_VARINT_BYTES_MAX):
        if position >= len(view):
            raise SchemaFramingError(f"truncated message indexes: the value ends after {len(view)} bytes")
        byte = view[position]
        position += 1
        zigzag |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return (zigzag >> 1) ^ -(zigzag & 1), position
    raise SchemaFramingError(f"invalid message index: a varint of more than {_VARINT_BYTES_MAX} bytes")


# -- columns -----------------------------------------------------------------------------------------


class FramedColumn(NamedTuple):
    """A column of values with a prefix, taken apart."""

    ids: pa.Int32Array
    """Null where the value is null or invalid."""
    invalid: pa.BooleanArray
    """True where a value has no valid prefix; false for nulls."""
    payload: pa.Array
    """Null where the value is null or invalid. Binary, or large binary like the values."""


class MessageIndexesColumn(NamedTuple):
    """A column of Protobuf payloads, taken apart."""

    indexes: pa.DictionaryArray
    """The message indexes; few different ones. Null where the payload is null or invalid."""
    invalid: pa.BooleanArray
    payload: pa.Array


def split_column(values: pa.Array) -> FramedColumn:
    """Return ids and payloads of a column of values with a prefix."""
    values = binary_column(values)
    is_framed = pc.and_(
        pc.greater_equal(pc.binary_length(values), ID_BYTES), pc.starts_with(values, pattern=bytes([MAGIC_ID]))
    )
    values, invalid = _without_invalid(values, is_framed)
    return FramedColumn(_big_endian_int32(pc.binary_slice(values, 1, ID_BYTES)), invalid, _from(values, ID_BYTES))


def split_message_indexes(payload: pa.Array) -> MessageIndexesColumn:
    """Return message indexes and messages of a column of Protobuf payloads, as `split_column` returns them."""
    payload = binary_column(payload)
    sizes: pa.Array = pa.nulls(len(payload), pa.int32())  # of the message indexes, in bytes
    codes: pa.Array = pa.nulls(len(payload), pa.int32())
    lists: list[tuple[int, ...]] = []
    pending = pc.is_valid(payload)
    for _ in range(INDEX_LISTS_MAX):
        row = pc.index(pending, True).as_py()
        if row < 0:
            break
        try:
            indexes, size = decode_message_indexes(payload[row].as_buffer())
        except SchemaFramingError:
            break  # The others may be invalid, too: row by row.
        prefix = payload[row].as_buffer()[:size].to_pybytes()
        same = pc.and_(pending, pc.fill_null(pc.starts_with(payload, pattern=prefix), False))
        sizes = pc.if_else(same, pa.scalar(size, pa.int32()), sizes)
        codes = pc.if_else(same, pa.scalar(_code(lists, indexes), pa.int32()), codes)
        pending = pc.and_not(pending, same)
    if pc.any(pending).as_py():
        codes, sizes = _split_rows(payload, pending, lists, (codes, sizes))
    payload, invalid = _without_invalid(payload, pc.if_else(pc.is_valid(payload), pc.is_valid(codes), None))
    dictionary = pa.array(lists, pa.list_(pa.int32()))
    return MessageIndexesColumn(pa.DictionaryArray.from_arrays(codes, dictionary), invalid, _from_sizes(payload, sizes))


def join_column(prefix: bytes, payload: pa.Array) -> pa.Array:
    """Return a column with the same prefix before each payload; nulls stay null."""
    payload = binary_column(payload)
    if not pa.types.is_large_binary(payload.type):
        # Offsets of 32 bits: pyarrow would wrap them.
        size = payload.nbytes + len(prefix) * len(payload)
        if size > _END:
            payload = payload.cast(pa.large_binary())
    kind = payload.type
    return pc.binary_join_element_wise(pa.scalar(prefix, kind), payload, pa.scalar(b"", kind))


def _code(lists: list[tuple[int, ...]], indexes: tuple[int, ...]) -> int:
    if indexes not in lists:
        lists.append(indexes)
    return lists.index(indexes)


def _split_rows(
    payload: pa.Array, pending: pa.Array, lists: list[tuple[int, ...]], known: tuple[pa.Array, pa.Array]
) -> tuple[pa.Array, pa.Array]:
    """Return codes and sizes with those of the pending rows, found row by row."""
    codes, sizes = (column.to_pylist() for column in known)
    by_indexes = {indexes: code for code, indexes in enumerate(lists)}
    starts = pc.binary_slice(payload, 0, _INDEXES_BYTES_MAX)
    for row in pc.indices_nonzero(pending).to_pylist():
        try:
            indexes, sizes[row] = decode_message_indexes(starts[row].as_buffer())
        except SchemaFramingError:
            continue
        codes[row] = by_indexes.setdefault(indexes, len(by_indexes))
    lists[:] = by_indexes
    return pa.array(codes, pa.int32()), pa.array(sizes, pa.int32())


def _from_sizes(payload: pa.Array, sizes: pa.Array) -> pa.Array:
    """Return the payloads, each from its size on."""
    distinct = [size for size in pc.unique(sizes).to_pylist() if size is not None]
    result = _from(payload, distinct[0] if distinct else 0)
    for size in distinct[1:]:
        result = pc.if_else(pc.equal(sizes, size), _from(payload, size), result)
    return result


def binary_column(column: pa.Array) -> pa.Array:
    """Return the column as binary or large binary."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    if pa.types.is_dictionary(kind):
        return binary_column(column.dictionary_decode())
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_null(kind):
        return column.cast(pa.binary())
    raise TypeError(f"column has type {kind}; expected binary")


def _without_invalid(values: pa.Array, is_valid: pa.Array) -> tuple[pa.Array, pa.BooleanArray]:
    """Return the values with null for invalid ones, and where those are. `is_valid` is null for null."""
    invalid = pc.fill_null(pc.invert(is_valid), False)
    if pc.any(invalid, min_count=0).as_py():
        values = pc.if_else(is_valid, values, pa.scalar(None, values.type))
    return values, invalid


def _from(values: pa.Array, start: int) -> pa.Array:
    return pc.binary_slice(values, start, _END)


def _big_endian_int32(values: pa.Array) -> pa.Int32Array:
    """Return values of four bytes, or null, as numbers."""
    validity = None
    if values.null_count:
        validity = pc.is_valid(values)
        values = pc.fill_null(values, bytes(4))
    fixed = values.cast(pa.binary(4))
    numbers = array("i")
    numbers.frombytes(memoryview(fixed.buffers()[1] or b"")[4 * fixed.offset :][: 4 * len(fixed)])
    if sys.byteorder == "little":
        numbers.byteswap()
    ids = pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(numbers)])
    return ids if validity is None else pc.if_else(validity, ids, None)
