"""Schemas of keys and values: no socket, thread or clock.

    types.py        schemas, registered schemas, the subjects under which a registry keeps them
    framing.py      the schema id before a payload, or in a header; single values and Arrow columns
    codec.py        what the codecs of all formats share; the loops over rows are in _plan/
    formats.py      all formats behind one interface
    avro.py         Avro values to and from Arrow columns; schemas and plans are in avro_*.py, the loops in _avro/
    protobuf.py     the same for Protobuf: protobuf_*.py, _protobuf/
    json_schema.py  the same for JSON values with a JSON schema: json_*.py, _json/

The client of a schema registry is `headrace.client.registry`.
"""

from headrace.schema.types import (
    Compatibility,
    RegisteredSchema,
    Schema,
    SchemaFormat,
    SchemaReference,
    SubjectNameStrategy,
)

__all__ = [
    "Compatibility",
    "RegisteredSchema",
    "Schema",
    "SchemaFormat",
    "SchemaReference",
    "SubjectNameStrategy",
]
