"""Deserializers: bytes of keys and values to Python values, or to typed Arrow columns.

    poll        bytes → deserializer.deserialize(topic, data, headers) → value
    poll_arrow  column of bytes → deserializer.deserialize_column(topic, column, headers) → typed column

None, the value of a tombstone, always stays None. What happens with bytes that do not fit is decided in
`deserialization.py`. Deserializers with a schema registry are in `schema_deserializers.py`.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from headrace.client.plugins import PluginKind, copy_methods, encoding_of
from headrace.client.schema_decoder import DecodedColumn
from headrace.consumer import column_deserializers
from headrace.wire.layout import Header


class Objects(NamedTuple):
    """Deserialized values, None for those that failed, and the errors by index."""

    values: list[object]
    errors: dict[int, Exception]


class Deserializer:
    """Base class of deserializers. Subclasses implement `deserialize` at least; what they raise is reported."""

    is_key: bool | None = None  # None until configured
    has_topic_types = False
    """Whether the type of columns depends on the topic. A batch of `poll_arrow` is of one topic, then."""

    def configure(self, config: Mapping[str, object], is_key: bool) -> None:
        """Called once, before anything else."""
        self.is_key = is_key

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        """Return the value of `data`, which is not None."""
        raise NotImplementedError(f"{type(self).__qualname__} must define deserialize")

    def deserialize_all(
        self, topic: str, values: Sequence[bytes | None], headers: Sequence[Sequence[Header]], *, stops: bool
    ) -> Objects:
        """Deserialize the values of records of a topic; with `stops`, only up to the first that fails."""
        objects: list[object] = []
        errors: dict[int, Exception] = {}
        for index, data in enumerate(values):
            try:
                objects.append(None if data is None else self.deserialize(topic, data, headers[index]))
            except Exception as error:
                errors[index] = error
                objects.append(None)
                if stops:
                    break
        return Objects(objects, errors)

    def column_type(self, topic: str) -> pa.DataType:
        """Return the type of the columns that `deserialize_column` returns for a topic."""
        return pa.binary()

    def deserialize_column(self, topic: str, column: pa.Array, headers: pa.Array) -> DecodedColumn:
        """Return a typed column and the errors of rows. By default, and for functions, columns stay bytes."""
        return DecodedColumn(column, [])

    def close(self) -> None:
        """Called once, with the consumer's `close`."""


class BytesDeserializer(Deserializer):
    """bytes, unchanged."""

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        return data


class StrDeserializer(Deserializer):
    """str, from UTF-8 or the encoding of `key.` or `value.deserializer.encoding` or `deserializer.encoding`."""

    encoding = "utf-8"

    def configure(self, config: Mapping[str, object], is_key: bool) -> None:
        super().configure(config, is_key)
        self.encoding = encoding_of(config, "deserializer", is_key) or self.encoding

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        return data.decode(self.encoding)

    def column_type(self, topic: str) -> pa.DataType:
        return pa.string()

    def deserialize_column(self, topic: str, column: pa.Array, headers: pa.Array) -> DecodedColumn:
        return column_deserializers.text(column, self.encoding)


class _Packed(Deserializer):
    """Numbers of a fixed size, big-endian."""

    layout: struct.Struct

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        if len(data) != self.layout.size:
            raise ValueError(f"expected {self.layout.size} bytes, got {len(data)}")
        return self.layout.unpack(data)[0]

    def column_type(self, topic: str) -> pa.DataType:
        return column_deserializers.NUMBER_TYPES[self.layout.format[-1]]

    def deserialize_column(self, topic: str, column: pa.Array, headers: pa.Array) -> DecodedColumn:
        return column_deserializers.numbers(column, self.layout)


class ShortDeserializer(_Packed):
    """A 16-bit integer."""

    layout = struct.Struct(">h")


class IntDeserializer(_Packed):
    """A 32-bit integer."""

    layout = struct.Struct(">i")


class LongDeserializer(_Packed):
    """A 64-bit integer."""

    layout = struct.Struct(">q")


class FloatDeserializer(_Packed):
    """A 32-bit floating-point number."""

    layout = struct.Struct(">f")


class DoubleDeserializer(_Packed):
    """A 64-bit floating-point number."""

    layout = struct.Struct(">d")


class BoolDeserializer(Deserializer):
    """bool: one byte, 0 or 1."""

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        if data not in (b"\0", b"\1"):
            raise ValueError(f"expected one byte, 0 or 1, got {data[:20]!r}")
        return data == b"\1"

    def column_type(self, topic: str) -> pa.DataType:
        return pa.bool_()

    def deserialize_column(self, topic: str, column: pa.Array, headers: pa.Array) -> DecodedColumn:
        return column_deserializers.booleans(column)


class _Utf8(Deserializer):
    """Values that are text in UTF-8, which columns contain as it is."""

    def column_type(self, topic: str) -> pa.DataType:
        return pa.string()

    def deserialize_column(self, topic: str, column: pa.Array, headers: pa.Array) -> DecodedColumn:
        return column_deserializers.text(column, "utf-8")


class UuidDeserializer(_Utf8):
    """uuid.UUID, from its text."""

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        return uuid.UUID(data.decode("utf-8"))


class JsonDeserializer(_Utf8):
    """A value of JSON, from UTF-8."""

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        return json.loads(data)


class NoneDeserializer(Deserializer):
    """None, for topics without keys or values."""

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        raise ValueError(f"expected no bytes, got {len(data)}")

    def column_type(self, topic: str) -> pa.DataType:
        return pa.null()

    def deserialize_column(self, topic: str, column: pa.Array, headers: pa.Array) -> DecodedColumn:
        return column_deserializers.nothing(column)


class FunctionDeserializer(Deserializer):
    """Wraps a function from bytes to a value. It is not called for None."""

    def __init__(self, function: Callable[[bytes], object]) -> None:
        self.function = function

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        return self.function(data)


class _AdaptedDeserializer(Deserializer):
    """Wraps an object with a `deserialize` method."""

    def __init__(self, target: object) -> None:
        copy_methods(target, self, "configure", "deserialize", "column_type", "deserialize_column", "close")


def _adapt(value: object) -> Deserializer | None:
    if hasattr(value, "deserialize"):
        return _AdaptedDeserializer(value)
    return FunctionDeserializer(value) if callable(value) else None


_JAVA = "org.apache.kafka.common.serialization."
_BY_NAME: dict[str, tuple[type[Deserializer], tuple[str, ...]]] = {
    "bytes": (BytesDeserializer, ("ByteArray", "ByteBuffer", "Bytes")),
    "str": (StrDeserializer, ("String",)),
    "short": (ShortDeserializer, ("Short",)),
    "int": (IntDeserializer, ("Integer",)),
    "long": (LongDeserializer, ("Long",)),
    "float": (FloatDeserializer, ("Float",)),
    "double": (DoubleDeserializer, ("Double",)),
    "bool": (BoolDeserializer, ("Boolean",)),
    "uuid": (UuidDeserializer, ("UUID",)),
    "json": (JsonDeserializer, ()),
    "none": (NoneDeserializer, ("Void",)),
}
_CONFLUENT = "io.confluent.kafka.serializers."
_WITH_SCHEMA = "headrace.consumer.schema_deserializers."  # imported on first use
_KNOWN: dict[str, type[Deserializer] | str] = {
    **{name: cls for name, (cls, _) in _BY_NAME.items()},
    **{f"{_JAVA}{java}Deserializer": cls for cls, names in _BY_NAME.values() for java in names},
    "org.apache.kafka.connect.json.JsonDeserializer": JsonDeserializer,
    "avro": _WITH_SCHEMA + "AvroDeserializer",
    "protobuf": _WITH_SCHEMA + "ProtobufDeserializer",
    "json-schema": _WITH_SCHEMA + "JsonSchemaDeserializer",
    _CONFLUENT + "KafkaAvroDeserializer": _WITH_SCHEMA + "AvroDeserializer",
    _CONFLUENT + "protobuf.KafkaProtobufDeserializer": _WITH_SCHEMA + "ProtobufDeserializer",
    _CONFLUENT + "json.KafkaJsonSchemaDeserializer": _WITH_SCHEMA + "JsonSchemaDeserializer",
}
KIND = PluginKind("deserializer", Deserializer, _KNOWN, _adapt)
