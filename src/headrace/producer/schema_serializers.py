"""Serializers with a schema registry: keys and values that name their schema.

    dict → SchemaEncoder.encode_value → schema id + payload
    Arrow column → SchemaEncoder.encode → the same for each row

They read the options of `headrace.config.serde_options` and `schema.registry.*` from the producer's configuration.
Imported only if a producer uses one: the plain serializers do not need pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headrace.client.registry import SchemaRegistryClient
from headrace.client.schema_encoder import SchemaEncoder
from headrace.client.serde import SerdeRowError, plugin_settings, registry_from
from headrace.errors import ConfigError, RegistryError, SchemaError, SerializationError
from headrace.producer.serializers import Serializer
from headrace.schema.types import SchemaFormat
from headrace.wire.layout import Header

ROW_ERRORS_SHOWN_MAX = 3


class SchemaSerializer(Serializer):
    """Base class of the serializers with a schema registry."""

    format: SchemaFormat
    has_columns = True

    def __init__(self, registry: SchemaRegistryClient | None = None) -> None:
        self._registry = registry
        self._encoder: SchemaEncoder | None = None

    def configure(self, config: Mapping[str, object], is_key: bool) -> None:
        super().configure(config, is_key)
        settings, options = plugin_settings(config, "key" if is_key else "value", self.format, "serializer")
        if self._registry is None:
            self._registry = registry_from(options)
        self._encoder = SchemaEncoder(self._registry, settings)

    @property
    def encoder(self) -> SchemaEncoder:
        if self._encoder is None:
            raise ConfigError(f"{type(self).__qualname__} is not configured: pass it to a producer")
        return self._encoder

    def serialize(self, topic: str, value: object, headers: list[Header]) -> bytes | None:
        if value is None:
            return None
        try:
            return self.encoder.encode_value(topic, value)
        except RegistryError:
            raise
        except SchemaError as error:
            raise self.error(topic, value, f"a value that fits the schema ({error})") from error

    def is_ready(self, topic: str) -> bool:
        return self.encoder.is_ready(topic)

    def prepare(self, topic: str) -> None:
        self.encoder.prepare_values(topic)

    def serialize_column(self, topic: str, column: pa.Array) -> pa.Array | None:
        """Return the encoded column; None if a row cannot be encoded: row by row, the error then names it."""
        encoded, errors = self.encoder.encode(topic, column)
        return None if errors else encoded

    def encode_column(self, topic: str, column: pa.Array) -> pa.Array:
        """Return the encoded column; raises SerializationError if a row cannot be encoded."""
        encoded, errors = self.encoder.encode(topic, column)
        if errors:
            raise self._rows_error(topic, column.type, errors)
        return encoded

    def _rows_error(self, topic: str, data_type: pa.DataType, errors: list[SerdeRowError]) -> SerializationError:
        shown = "; ".join(map(str, errors[:ROW_ERRORS_SHOWN_MAX]))
        name = type(self).__qualname__
        return SerializationError(
            f"{name} cannot encode {len(errors):,} rows for topic {topic!r}, none was sent: {shown}",
            topic=topic,
            serializer=name,
            value_type=str(data_type),
        )


class AvroSerializer(SchemaSerializer):
    """Avro, with the id of its schema."""

    format = SchemaFormat.AVRO


class ProtobufSerializer(SchemaSerializer):
    """Protobuf, with the id of its schema and the position of the message type."""

    format = SchemaFormat.PROTOBUF


class JsonSchemaSerializer(SchemaSerializer):
    """JSON, with the id of its schema."""

    format = SchemaFormat.JSON
