"""Serializers: keys and values to bytes.

    send(value) → serializer.serialize(topic, value, headers) → bytes, or None for a tombstone

None always becomes None. A value of the wrong type raises a SerializationError that names the serializer and the type.

The Spark sink serializes whole Arrow columns if a serializer has `serialize_column`: see column_serializers.py. That is
imported only then. Serializers with a schema registry are in schema_serializers.py.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headrace.client.plugins import PluginKind, check_encoding, copy_methods, encoding_of
from headrace.errors import SerializationError
from headrace.wire.layout import Header

if TYPE_CHECKING:
    import pyarrow as pa


class Serializer:
    """Base class of serializers. Subclasses implement `serialize` at least."""

    is_key: bool | None = None  # None until configured
    has_columns = False
    """Whether `send_arrow` passes columns to `encode_column`; else they are sent as they are."""

    def configure(self, config: Mapping[str, object], is_key: bool) -> None:
        """Called once, before anything else."""
        self.is_key = is_key

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        """Return the bytes of `value`. The serializer may add to `headers`, the record's headers."""
        raise NotImplementedError(f"{type(self).__qualname__} must define serialize")

    def is_ready(self, topic: str) -> bool:
        """Return whether `serialize` needs no request over the network for this topic."""
        return True

    def prepare(self, topic: str) -> None:
        """Make the requests that `serialize` needs for a topic: AsyncProducer calls it in a thread."""

    def encode_column(self, topic: str, column: pa.Array) -> pa.Array:
        """Return a column as bytes; raises SerializationError if a row cannot be serialized."""
        raise NotImplementedError(f"{type(self).__qualname__} sets has_columns, so it must define encode_column")

    def close(self) -> None:
        """Called once, with the producer's `close`."""

    def error(self, topic: str, value: object, expected: str) -> SerializationError:
        """Return the error for a value that cannot be serialized."""
        part = {None: "", True: " as key", False: " as value"}[self.is_key]
        name, value_type = type(self).__qualname__, type(value).__qualname__
        return SerializationError(
            f"{name} expected {expected}, got {value_type}{part} of a record to topic {topic!r}; "
            "convert it, or set another serializer",
            topic=topic,
            serializer=name,
            value_type=value_type,
        )


class BytesSerializer(Serializer):
    """bytes unchanged; bytearray and memoryview are copied, so that the caller may change them."""

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise self.error(topic, value, "bytes")

    def serialize_column(self, topic: str, column: pa.Array) -> pa.Array | None:
        from headrace.producer import column_serializers

        return column if column_serializers.is_text_or_bytes(column.type) else None


class StrSerializer(Serializer):
    """str, in UTF-8 or the encoding of `key.` or `value.serializer.encoding` or `serializer.encoding`."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding = check_encoding("encoding", encoding)

    def configure(self, config: Mapping[str, object], is_key: bool) -> None:
        super().configure(config, is_key)
        self.encoding = encoding_of(config, "serializer", is_key) or self.encoding

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.error(topic, value, "str")
        try:
            return value.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise self.error(topic, value, f"str that {self.encoding} can encode") from error

    def serialize_column(self, topic: str, column: pa.Array) -> pa.Array | None:
        from headrace.producer import column_serializers

        return column_serializers.encoded_text(column, self.encoding)


class _Packed(Serializer):
    """Numbers of a fixed size, big-endian."""

    layout: struct.Struct
    types: tuple[type, ...]
    expected: str

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None:
            return None
        # A bool is an int in Python; sending it as a number is most likely a mistake.
        if not isinstance(value, self.types) or isinstance(value, bool):
            raise self.error(topic, value, self.expected)
        try:
            return self.layout.pack(value)
        except (struct.error, OverflowError) as error:
            raise self.error(topic, value, f"{self.expected} (out of range)") from error

    def serialize_column(self, topic: str, column: pa.Array) -> pa.Array | None:
        from headrace.producer import column_serializers

        return column_serializers.packed_numbers(column, self.layout)


class ShortSerializer(_Packed):
    """Two bytes."""

    layout, types, expected = struct.Struct(">h"), (int,), "int of 16 bits"


class IntSerializer(_Packed):
    """Four bytes."""

    layout, types, expected = struct.Struct(">i"), (int,), "int of 32 bits"


class LongSerializer(_Packed):
    """Eight bytes."""

    layout, types, expected = struct.Struct(">q"), (int,), "int of 64 bits"


class FloatSerializer(_Packed):
    """Four bytes, IEEE 754."""

    layout, types, expected = struct.Struct(">f"), (float, int), "float of 32 bits"


class DoubleSerializer(_Packed):
    """Eight bytes, IEEE 754."""

    layout, types, expected = struct.Struct(">d"), (float, int), "float"


class BoolSerializer(Serializer):
    """One byte: 1 or 0."""

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, bool):
            raise self.error(topic, value, "bool")
        return b"\x01" if value else b"\x00"

    def serialize_column(self, topic: str, column: pa.Array) -> pa.Array | None:
        from headrace.producer import column_serializers

        return column_serializers.packed_booleans(column)


class UuidSerializer(Serializer):
    """The 36 characters of a UUID."""

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, uuid.UUID):
            raise self.error(topic, value, "uuid.UUID")
        return str(value).encode("ascii")


class JsonSerializer(Serializer):
    """JSON in UTF-8, without spaces. None is a tombstone, not `null`; NaN and infinities are errors."""

    _encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None:
            return None
        try:
            return self._encoder.encode(value).encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            raise self.error(topic, value, f"a value that JSON can represent ({error})") from error

    def serialize_column(self, topic: str, column: pa.Array) -> pa.Array | None:
        from headrace.producer import column_serializers

        return column_serializers.json_text(column)


class NoneSerializer(Serializer):
    """Accepts None only, for topics without keys or values."""

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is not None:
            raise self.error(topic, value, "None")
        return None

    def serialize_column(self, topic: str, column: pa.Array) -> pa.Array | None:
        from headrace.producer import column_serializers

        return column_serializers.only_nulls(column)


class FunctionSerializer(Serializer):
    """Wraps a function from value to bytes. It is not called for None."""

    def __init__(self, function: Callable[[object], object]) -> None:
        self.function = function

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None:
            return None
        name = getattr(self.function, "__qualname__", repr(self.function))
        try:
            data = self.function(value)
        except Exception as error:
            raise self.error(topic, value, f"a value that {name} accepts ({error})") from error
        if data is None or isinstance(data, bytes):
            return data
        raise self.error(topic, value, f"a value for which {name} returns bytes, not {type(data).__qualname__}")


class _AdaptedSerializer(Serializer):
    """Wraps an object with a `serialize` method."""

    def __init__(self, target: object) -> None:
        copy_methods(target, self, "configure", "serialize", "serialize_column", "close")


def _adapt(value: object) -> Serializer | None:
    if hasattr(value, "serialize"):
        return _AdaptedSerializer(value)
    return FunctionSerializer(value) if callable(value) else None


_JAVA = "org.apache.kafka.common.serialization."
_CONFLUENT = "io.confluent.kafka.serializers."
_WITH_SCHEMA = "headrace.producer.schema_serializers."  # imported on first use
_KNOWN: dict[str, type[Serializer] | str] = {
    "bytes": BytesSerializer,
    "str": StrSerializer,
    "short": ShortSerializer,
    "int": IntSerializer,
    "long": LongSerializer,
    "float": FloatSerializer,
    "double": DoubleSerializer,
    "bool": BoolSerializer,
    "uuid": UuidSerializer,
    "json": JsonSerializer,
    "none": NoneSerializer,
    "avro": _WITH_SCHEMA + "AvroSerializer",
    "protobuf": _WITH_SCHEMA + "ProtobufSerializer",
    "json-schema": _WITH_SCHEMA + "JsonSchemaSerializer",
    _JAVA + "ByteArraySerializer": BytesSerializer,
    _JAVA + "ByteBufferSerializer": BytesSerializer,
    _JAVA + "BytesSerializer": BytesSerializer,
    _JAVA + "StringSerializer": StrSerializer,
    _JAVA + "ShortSerializer": ShortSerializer,
    _JAVA + "IntegerSerializer": IntSerializer,
    _JAVA + "LongSerializer": LongSerializer,
    _JAVA + "FloatSerializer": FloatSerializer,
    _JAVA + "DoubleSerializer": DoubleSerializer,
    _JAVA + "BooleanSerializer": BoolSerializer,
    _JAVA + "UUIDSerializer": UuidSerializer,
    _JAVA + "VoidSerializer": NoneSerializer,
    "org.apache.kafka.connect.json.JsonSerializer": JsonSerializer,
    _CONFLUENT + "KafkaAvroSerializer": _WITH_SCHEMA + "AvroSerializer",
    _CONFLUENT + "protobuf.KafkaProtobufSerializer": _WITH_SCHEMA + "ProtobufSerializer",
    _CONFLUENT + "json.KafkaJsonSchemaSerializer": _WITH_SCHEMA + "JsonSchemaSerializer",
}
KIND = PluginKind("serializer", Serializer, _KNOWN, _adapt)
