"""The formats of schemas behind one interface: what a client needs of a schema, whatever language it is written in.

    CompleteSchema → parse → ParsedSchema → ColumnDecoder, ColumnEncoder, Arrow type, record name
    Arrow type → derive → Schema

This is the only module that knows all formats. It imports the modules of a format on first use, so that a program pays
for the formats that it uses.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeVar

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.schema.types import Schema, SchemaFormat

if TYPE_CHECKING:
    from headrace.schema.avro_schema import AvroSchema
    from headrace.schema.codec import ColumnDecoder, ColumnEncoder
    from headrace.schema.json_types import JsonSchema
    from headrace.schema.protobuf_schema import ProtobufSchema
    from headrace.schema.values import ValueEncoder


@dataclass(frozen=True, slots=True)
class CompleteSchema:
    """A schema with the schemas that it refers to, by name: each after those that it refers to itself.

    It can be pickled, and read without a registry.
    """

    schema: Schema
    references: Mapping[str, Schema] = field(default_factory=dict)


class ParsedSchema(ABC):
    """A parsed schema of one format.

    `message` is the full name of a message type of a Protobuf schema, by default the first one. The other formats have
    one type in a schema, and ignore it.
    """

    format: SchemaFormat
    has_message_indexes = False
    """Whether the position of the message type follows the schema id in a value."""

    @classmethod
    @abstractmethod
    def parse(cls, source: CompleteSchema) -> Self:
        """Return a schema of this format parsed; raises SchemaError if it is invalid."""

    @classmethod
    @abstractmethod
    def derive(cls, arrow_type: pa.DataType, record_name: str) -> Schema:
        """Return a schema of this format for an Arrow type."""

    @abstractmethod
    def record_name(self, message: str | None = None) -> str | None:
        """Return the full name of the type, such as `shop.Order`; None if it has none."""

    @abstractmethod
    def arrow_type(self, columns: Sequence[str] | None = None, message: str | None = None) -> pa.DataType:
        """Return the Arrow type of values; with `columns`, of these fields only."""

    @abstractmethod
    def decoder(
        self,
        reader: ParsedSchema | None = None,
        columns: Sequence[str] | None = None,
        *,
        message: str | None = None,
        reader_message: str | None = None,
    ) -> ColumnDecoder:
        """Return a decoder of values that were written with this schema, to the type of the reader's."""

    @abstractmethod
    def encoder(self, arrow_type: pa.DataType, message: str | None = None) -> ColumnEncoder:
        """Return an encoder of columns of an Arrow type."""

    @abstractmethod
    def value_encoder(self, message: str | None = None) -> ValueEncoder:
        """Return the function from a Python value to its bytes; it raises SchemaError if the value does not fit."""

    def message_indexes(self, message: str | None = None) -> tuple[int, ...] | None:
        """Return the position of a message type, which follows the schema id; None if the format has none."""
        return None

    def message_at(self, indexes: Sequence[int]) -> str | None:
        """Return the full name of the message type at a position; raises SchemaError if there is none."""
        return None


def parse(source: CompleteSchema) -> ParsedSchema:
    """Return a schema parsed; raises SchemaError if it is invalid."""
    return _CLASSES[source.schema.format].parse(source)


def derive(format: SchemaFormat, arrow_type: pa.DataType, record_name: str) -> Schema:
    """Return a schema for an Arrow type, under a full name such as `shop.Order`."""
    return _CLASSES[format].derive(arrow_type, record_name)


class _Avro(ParsedSchema):
    format = SchemaFormat.AVRO

    def __init__(self, model: AvroSchema) -> None:
        self._model = model

    @classmethod
    def parse(cls, source: CompleteSchema) -> Self:
        from headrace.schema.avro import parse_schema

        texts = [reference.text for reference in source.references.values()]
        return cls(parse_schema(source.schema.text, texts))

    @classmethod
    def derive(cls, arrow_type: pa.DataType, record_name: str) -> Schema:
        from headrace.schema.avro import derive_schema

        namespace, _, name = record_name.rpartition(".")
        return Schema(derive_schema(arrow_type, name, namespace), cls.format)

    def record_name(self, message: str | None = None) -> str | None:
        # A primitive type is named after itself, as in Java's Schema.getFullName.
        return str(getattr(self._model, "name", self._model.kind))

    def arrow_type(self, columns: Sequence[str] | None = None, message: str | None = None) -> pa.DataType:
        return self.decoder(columns=columns).arrow_type

    def decoder(
        self,
        reader: ParsedSchema | None = None,
        columns: Sequence[str] | None = None,
        *,
        message: str | None = None,
        reader_message: str | None = None,
    ) -> ColumnDecoder:
        from headrace.schema.avro import AvroDecoder

        return AvroDecoder(self._model, None if reader is None else _same_format(reader, _Avro)._model, columns)

    def encoder(self, arrow_type: pa.DataType, message: str | None = None) -> ColumnEncoder:
        from headrace.schema.avro import AvroEncoder

        return AvroEncoder(self._model, arrow_type)

    def value_encoder(self, message: str | None = None) -> ValueEncoder:
        from headrace.schema.avro_values import value_encoder

        return value_encoder(self._model)


class _Protobuf(ParsedSchema):
    format = SchemaFormat.PROTOBUF
    has_message_indexes = True

    def __init__(self, model: ProtobufSchema) -> None:
        self._model = model

    @classmethod
    def parse(cls, source: CompleteSchema) -> Self:
        from headrace.schema.protobuf import parse_schema

        return cls(parse_schema(source.schema.text, _texts(source)))

    @classmethod
    def derive(cls, arrow_type: pa.DataType, record_name: str) -> Schema:
        from headrace.schema.protobuf import derive_schema

        package, _, name = record_name.rpartition(".")
        return Schema(derive_schema(arrow_type, name, package), cls.format)

    def record_name(self, message: str | None = None) -> str | None:
        return self._model.message(message).full_name

    def arrow_type(self, columns: Sequence[str] | None = None, message: str | None = None) -> pa.DataType:
        return self.decoder(columns=columns, message=message).arrow_type

    def decoder(
        self,
        reader: ParsedSchema | None = None,
        columns: Sequence[str] | None = None,
        *,
        message: str | None = None,
        reader_message: str | None = None,
    ) -> ColumnDecoder:
        from headrace.schema.protobuf import ProtobufDecoder

        if reader is None:
            return ProtobufDecoder(self._model, message, columns=columns)
        model = _same_format(reader, _Protobuf)._model
        target = model.message(reader_message).full_name
        self._check_message(self._model.message(message).full_name, target, model)
        return ProtobufDecoder(self._model, message, model, columns, reader_message=target)

    def _check_message(self, name: str, target: str, reader: ProtobufSchema) -> None:
        """Raise if a message would be read as another one: the wire format does not tell them apart."""
        is_renamed = len(self._model.file.messages) == len(reader.file.messages) == 1
        if name.rpartition(".")[2] != target.rpartition(".")[2] and not is_renamed:
            raise SchemaError(f"the message type is {name}, the reader's is {target}; choose another one to read these")

    def encoder(self, arrow_type: pa.DataType, message: str | None = None) -> ColumnEncoder:
        from headrace.schema.protobuf import ProtobufEncoder

        return ProtobufEncoder(self._model, arrow_type, message)

    def value_encoder(self, message: str | None = None) -> ValueEncoder:
        from headrace.schema.protobuf_values import value_encoder

        return value_encoder(self._model, self._model.message(message))

    def message_indexes(self, message: str | None = None) -> tuple[int, ...] | None:
        return self._model.message_indexes(message)

    def message_at(self, indexes: Sequence[int]) -> str | None:
        return self._model.message_by_indexes(indexes).full_name


class _Json(ParsedSchema):
    format = SchemaFormat.JSON

    def __init__(self, model: JsonSchema, title: str | None) -> None:
        self._model = model
        self._title = title

    @classmethod
    def parse(cls, source: CompleteSchema) -> Self:
        from headrace.schema.json_schema import parse_schema

        model = parse_schema(source.schema.text, _texts(source))
        document = json.loads(source.schema.text)
        title = document.get("title") if isinstance(document, dict) else None
        return cls(model, title if isinstance(title, str) else None)

    @classmethod
    def derive(cls, arrow_type: pa.DataType, record_name: str) -> Schema:
        from headrace.schema.json_schema import derive_schema

        return Schema(derive_schema(arrow_type, record_name), cls.format)

    def record_name(self, message: str | None = None) -> str | None:
        return self._title  # as Confluent's serializers name it

    def arrow_type(self, columns: Sequence[str] | None = None, message: str | None = None) -> pa.DataType:
        return self.decoder(columns=columns).arrow_type

    def decoder(
        self,
        reader: ParsedSchema | None = None,
        columns: Sequence[str] | None = None,
        *,
        message: str | None = None,
        reader_message: str | None = None,
    ) -> ColumnDecoder:
        from headrace.schema.json_schema import JsonDecoder

        return JsonDecoder(self._model, None if reader is None else _same_format(reader, _Json)._model, columns)

    def encoder(self, arrow_type: pa.DataType, message: str | None = None) -> ColumnEncoder:
        from headrace.schema.json_schema import JsonEncoder

        return JsonEncoder(self._model, arrow_type)

    def value_encoder(self, message: str | None = None) -> ValueEncoder:
        from headrace.schema.json_values import value_encoder

        return value_encoder(self._model)


_CLASSES: dict[SchemaFormat, type[ParsedSchema]] = {each.format: each for each in (_Avro, _Protobuf, _Json)}

Format = TypeVar("Format", bound=ParsedSchema)


def _texts(source: CompleteSchema) -> dict[str, str]:
    return {name: reference.text for name, reference in source.references.items()}


def _same_format(schema: ParsedSchema, cls: type[Format]) -> Format:
    if not isinstance(schema, cls):
        raise SchemaError(
            f"values of {cls.format.value} schemas cannot be read as {schema.format.value}; use schemas of one format"
        )
    return schema
