"""Serializers: keys and values become bytes.

    send(value) → serializer.serialize(topic, value, headers) → bytes, or None for a tombstone

None always gives None. A value a serializer cannot take raises a SerializationError that names both.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Mapping

from headrace.errors import ConfigError, SerializationError
from headrace.producer.plugins import PluginKind
from headrace.wire.layout import Header


class Serializer:
    """To be subclassed: `serialize` at least."""

    is_key: bool | None = None  # None until configured

    def configure(self, config: Mapping[str, object], is_key: bool) -> None:
        """Called once, before anything else."""
        self.is_key = is_key

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        """The bytes of `value`. `headers` are those of the record, and may be added to."""
        raise NotImplementedError(f"{type(self).__qualname__} must define serialize")

    def close(self) -> None:
        """Called once, with the producer's `close`."""

    def refuse(self, topic: str, value: object, expected: str) -> SerializationError:
        """The error for a value that cannot be serialized."""
        part = {None: "", True: " as key", False: " as value"}[self.is_key]
        name, value_type = type(self).__qualname__, type(value).__qualname__
        return SerializationError(
            f"{name} takes {expected}, got {value_type}{part} of a record to topic {topic!r}; "
            "convert it, or set another serializer",
            topic=topic,
            serializer=name,
            value_type=value_type,
        )


class BytesSerializer(Serializer):
    """bytes as they are; bytearray and memoryview are copied, so that the caller may go on writing to them."""

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise self.refuse(topic, value, "bytes")


class StrSerializer(Serializer):
    """Text, in UTF-8 or in what `key.serializer.encoding`, `value.serializer.encoding` or `serializer.encoding` say."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding = _checked_encoding("encoding", encoding)

    def configure(self, config: Mapping[str, object], is_key: bool) -> None:
        super().configure(config, is_key)
        for option in (f"{'key' if is_key else 'value'}.serializer.encoding", "serializer.encoding"):
            encoding = config.get(option)
            if encoding is not None:
                self.encoding = _checked_encoding(option, encoding)
                return

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.refuse(topic, value, "str")
        try:
            return value.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise self.refuse(topic, value, f"str that {self.encoding} can hold") from error


def _checked_encoding(option: str, encoding: object) -> str:
    try:
        "".encode(str(encoding))
    except LookupError:
        raise ConfigError(f"{option} is {encoding!r}; it may be an encoding Python knows, such as utf-8") from None
    return str(encoding)


class _Packed(Serializer):
    """Numbers of a fixed size, big-endian."""

    layout: struct.Struct
    types: tuple[type, ...]
    expected: str

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None:
            return None
        # A bool is an int for Python; on the wire it would be a surprise.
        if not isinstance(value, self.types) or isinstance(value, bool):
            raise self.refuse(topic, value, self.expected)
        try:
            return self.layout.pack(value)
        except (struct.error, OverflowError) as error:
            raise self.refuse(topic, value, f"{self.expected}, and this one is larger") from error


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
            raise self.refuse(topic, value, "bool")
        return b"\x01" if value else b"\x00"


class UuidSerializer(Serializer):
    """The 36 characters of a UUID."""

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, uuid.UUID):
            raise self.refuse(topic, value, "uuid.UUID")
        return str(value).encode("ascii")


class JsonSerializer(Serializer):
    """JSON in UTF-8, without blanks. None is a tombstone, not `null`; NaN and infinities are refused: JSON has none."""

    _encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None:
            return None
        try:
            return self._encoder.encode(value).encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            raise self.refuse(topic, value, f"what JSON can hold ({error})") from error


class NoneSerializer(Serializer):
    """For keys or values that are never there: anything but None is refused."""

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is not None:
            raise self.refuse(topic, value, "None")
        return None


class FunctionSerializer(Serializer):
    """A function from value to bytes. It is not asked about None."""

    def __init__(self, function: Callable[[object], object]) -> None:
        self.function = function

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None:
            return None
        name = getattr(self.function, "__qualname__", repr(self.function))
        try:
            data = self.function(value)
        except Exception as error:
            raise self.refuse(topic, value, f"what {name} does not fail on ({error})") from error
        if data is None or isinstance(data, bytes):
            return data
        raise self.refuse(topic, value, f"what {name} makes bytes of, not {type(data).__qualname__}")


class _Adapted(Serializer):
    """An object with a `serialize` that owes nothing to the base class."""

    def __init__(self, target: object) -> None:
        for method in ("configure", "serialize", "close"):
            if hasattr(target, method):
                setattr(self, method, getattr(target, method))


def _adapt(value: object) -> Serializer | None:
    if hasattr(value, "serialize"):
        return _Adapted(value)
    return FunctionSerializer(value) if callable(value) else None


_JAVA = "org.apache.kafka.common.serialization."
_KNOWN: dict[str, type[Serializer]] = {
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
}
KIND = PluginKind("serializer", Serializer, _KNOWN, _adapt)
