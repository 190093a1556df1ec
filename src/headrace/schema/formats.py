"""The formats of schemas behind one interface: what a client needs of a schema, whatever language it is written in.

    CompleteSchema → parse → ParsedSchema → ColumnDecoder, ColumnEncoder, Arrow type, record name
    Arrow type → derive → Schema

This is the only module that knows all formats. It imports the modules of a format on first use, so that a program pays
for the formats that it uses.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.schema.codec import ParsedSchema
from headrace.schema.types import CompleteSchema, Schema, SchemaFormat


def parse(source: CompleteSchema) -> ParsedSchema:
    """Return a schema parsed; raises SchemaError if it is invalid."""
    return _class_of(source.schema.format).parse(source)


def derive(format: SchemaFormat, arrow_type: pa.DataType, record_name: str) -> Schema:
    """Return a schema for an Arrow type, under a full name such as `shop.Order`."""
    return _class_of(format).derive(arrow_type, record_name)


def _class_of(format: SchemaFormat) -> type[ParsedSchema]:
    match format:
        case SchemaFormat.AVRO:
            from headrace.schema.avro import ParsedAvroSchema

            return ParsedAvroSchema
        case SchemaFormat.PROTOBUF:
            from headrace.schema.protobuf import ParsedProtobufSchema

            return ParsedProtobufSchema
        case SchemaFormat.JSON:
            from headrace.schema.json_schema import ParsedJsonSchema

            return ParsedJsonSchema
