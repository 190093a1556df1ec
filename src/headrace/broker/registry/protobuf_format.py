"""Protobuf schemas in the registry: kept as they were written, and equal if their normal form is.

A client may send a schema as base64 of a FileDescriptorProto, as Confluent's Python serializer does; it is kept as
text. The format `serialized` returns base64 for every schema.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from headrace.broker.registry.formats import Incompatibility
from headrace.broker.registry.protobuf_compatibility import find_incompatibilities
from headrace.schema.protobuf_descriptor import to_descriptor
from headrace.schema.protobuf_linking import parse_schema
from headrace.schema.protobuf_text import normal_form

SERIALIZED = "serialized"
"""The format for clients that have no parser: base64 of a FileDescriptorProto."""


class ParsedProtobuf:
    """A valid Protobuf schema."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        self.schema = parse_schema(text, references)
        self.identity = normal_form(self.schema)
        self.text = text if _is_text(text) else self.identity

    def normalized(self) -> str:
        return self.identity

    def rendered(self, format: str) -> str:
        if format != SERIALIZED:
            return self.text
        return base64.b64encode(to_descriptor(self.schema)).decode()

    def unreadable(self, writer: ParsedProtobuf) -> list[Incompatibility]:
        return find_incompatibilities(self.schema, writer.schema)


def _is_text(text: str) -> bool:
    """Return whether a valid schema is a text, not base64 of a descriptor."""
    return ";" in text or "{" in text
