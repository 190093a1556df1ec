"""Deserializers with a schema registry: keys and values that name their schema.

    records of a poll → SchemaDecoder.decode_objects → dicts, or what else the schema describes
    a column of poll_arrow → SchemaDecoder.decode → a typed column, without a Python object for each row

They read the options of `headrace.config.serde_options` and `schema.registry.*` from the consumer's configuration.
Records have the fields they were written with, unless reader.schema is set; columns have one type, by default that of
the latest version of the topic's subject.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.client.registry import LATEST, SchemaRegistryClient
from headrace.client.schema_decoder import DecodedColumn, SchemaDecoder
from headrace.client.serde import plugin_settings, registry_from
from headrace.client.typed_records import headers_column
from headrace.consumer.deserializers import Deserializer, Objects
from headrace.errors import ConfigError
from headrace.schema.types import SchemaFormat
from headrace.wire.layout import Header


class SchemaDeserializer(Deserializer):
    """Base class of the deserializers with a schema registry."""

    format: SchemaFormat
    has_topic_types = True

    def __init__(self, registry: SchemaRegistryClient | None = None) -> None:
        self._registry = registry
        self._objects: SchemaDecoder | None = None
        self._columns: SchemaDecoder | None = None

    def configure(self, config: Mapping[str, object], is_key: bool) -> None:
        super().configure(config, is_key)
        settings, options = plugin_settings(config, "key" if is_key else "value", self.format, "deserializer")
        if self._registry is None:
            self._registry = registry_from(options)
        self._objects = SchemaDecoder(self._registry, settings)
        self._columns = SchemaDecoder(
            self._registry, settings if settings.reader is not None else replace(settings, reader=LATEST)
        )

    def _configured(self, decoder: SchemaDecoder | None) -> SchemaDecoder:
        if decoder is None:
            raise ConfigError(f"{type(self).__qualname__} is not configured: pass it to a consumer")
        return decoder

    def deserialize(self, topic: str, data: bytes, headers: Sequence[Header]) -> object:
        objects, errors = self.deserialize_all(topic, [data], [headers], stops=True)
        for error in errors.values():
            raise error
        return objects[0]

    def deserialize_all(
        self, topic: str, values: Sequence[bytes | None], headers: Sequence[Sequence[Header]], *, stops: bool
    ) -> Objects:
        decoder = self._configured(self._objects)
        named = headers_column([tuple(pairs) for pairs in headers], decoder.settings.field)
        objects, errors = decoder.decode_objects(topic, pa.array(values, pa.binary()), named)
        return Objects(objects, {error.row: ValueError(error.text) for error in errors})

    def column_type(self, topic: str) -> pa.DataType:
        return self._configured(self._columns).arrow_type(topic)

    def deserialize_column(self, topic: str, column: pa.Array, headers: pa.Array) -> DecodedColumn:
        return self._configured(self._columns).decode(topic, column, headers)


class AvroDeserializer(SchemaDeserializer):
    """Avro, with the id of its schema."""

    format = SchemaFormat.AVRO


class ProtobufDeserializer(SchemaDeserializer):
    """Protobuf, with the id of its schema and the position of the message type."""

    format = SchemaFormat.PROTOBUF


class JsonSchemaDeserializer(SchemaDeserializer):
    """JSON, with the id of its schema."""

    format = SchemaFormat.JSON
