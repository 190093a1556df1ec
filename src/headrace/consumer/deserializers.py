"""Deserializers: bytes of keys and values to Python values.

    bytes → deserializer.deserialize(topic, data, headers) → value

None, the value of a tombstone, always stays None. Bytes that do not fit raise a DeserializationError with the partition
and offset of the record; the consumer's position stays there.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence

from headrace.client.plugins import PluginKind, copy_methods, encoding_of
from headrace.wire.layout import Header


class Deserializer:
    """Base class of deserializers. Subclasses implement `deserialize` at least; what they raise is reported."""

    is_key: bool | None = None  # None until configured

    def configure(self, config: Mapping[str, object], is_key: bool) -> None:
        """Called once, before anything else."""
        self.is_key = is_key

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        """Return the value of `data`, which is not None."""
        raise NotImplementedError(f"{type(self).__qualname__} must define deserialize")

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


class _Packed(Deserializer):
    """Numbers of a fixed size, big-endian."""

    layout: struct.Struct

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        if len(data) != self.layout.size:
            raise ValueError(f"expected {self.layout.size} bytes, got {len(data)}")
        return self.layout.unpack(data)[0]


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


class UuidDeserializer(Deserializer):
    """uuid.UUID, from its text."""

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        return uuid.UUID(data.decode("utf-8"))


class JsonDeserializer(Deserializer):
    """A value of JSON, from UTF-8."""

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        return json.loads(data)


class NoneDeserializer(Deserializer):
    """None, for topics without keys or values."""

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        raise ValueError(f"expected no bytes, got {len(data)}")


class FunctionDeserializer(Deserializer):
    """Wraps a function from bytes to a value. It is not called for None."""

    def __init__(self, function: Callable[[bytes], object]) -> None:
        self.function = function

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        return self.function(data)


class _AdaptedDeserializer(Deserializer):
    """Wraps an object with a `deserialize` method."""

    def __init__(self, target: object) -> None:
        copy_methods(target, self, "configure", "deserialize", "close")


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
_KNOWN: dict[str, type[Deserializer]] = {
    **{name: cls for name, (cls, _) in _BY_NAME.items()},
    **{f"{_JAVA}{java}Deserializer": cls for cls, names in _BY_NAME.values() for java in names},
    "org.apache.kafka.connect.json.JsonDeserializer": JsonDeserializer,
}
KIND = PluginKind("deserializer", Deserializer, _KNOWN, _adapt)
