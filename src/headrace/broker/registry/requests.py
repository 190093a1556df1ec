"""Bodies and parameters of requests: parsed and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

from headrace.broker.registry import rest_errors
from headrace.broker.registry.changes import SchemaContent, dump
from headrace.broker.registry.compatibility import CompatibilityLevel
from headrace.broker.registry.formats import load_json
from headrace.broker.registry.registry import LATEST, Registration, canonical_json
from headrace.broker.registry.rest_errors import VERSION_MAX, RestError
from headrace.schema.types import Schema, SchemaFormat, SchemaReference

QUERY_FIELDS_MAX = 50
ID_DIGITS_MAX = 10
DEPTH_MAX = 100
"""Levels of metadata and rules, which are kept as they are."""
_LEVELS = ", ".join(level.value for level in CompatibilityLevel)


class Query:
    """The query of a URL."""

    def __init__(self, text: str) -> None:
        try:
            self._values = parse_qs(text, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict")
        except ValueError:
            raise RestError(
                400, f"invalid query: expected at most {QUERY_FIELDS_MAX} fields in percent-encoded UTF-8"
            ) from None

    def flag(self, name: str) -> bool:
        """Return whether a parameter is `true`; False if it is missing."""
        return self.text(name).lower() == "true"

    def text(self, name: str) -> str:
        """Return a parameter; empty if it is missing."""
        return self._values.get(name, [""])[0]

    def texts(self, name: str) -> list[str]:
        """Return all values of a parameter."""
        return self._values.get(name, [])

    def number(self, name: str, default: int) -> int:
        """Return an integer parameter."""
        text = self.text(name)
        if not text:
            return default
        if not text.removeprefix("-").isdecimal() or len(text) > ID_DIGITS_MAX:
            raise RestError(400, f"invalid {name} {text[:30]!r}: expected an integer")
        return int(text)


def parse_version(text: str) -> int:
    """Return the version of a path; -1 for `latest`."""
    if text in ("latest", "-1"):
        return LATEST
    if text.isascii() and text.isdigit() and len(text) <= ID_DIGITS_MAX and 0 < int(text) <= VERSION_MAX:
        return int(text)
    raise rest_errors.invalid_version(text[:100])


def parse_id(text: str) -> int:
    """Return the schema id of a path."""
    if not (text.isascii() and text.isdigit()) or len(text) > ID_DIGITS_MAX:
        raise rest_errors.schema_not_found(text[:100])
    return int(text)


def parse_registration(body: bytes, *, normalize: bool) -> Registration:
    """Return the schema of a body: schema, schemaType, references, metadata, ruleSet, version, id."""
    fields = _load(body)
    text = fields.get("schema")
    if not isinstance(text, str) or not text.strip():
        raise rest_errors.invalid_schema("unknown", "the body has no text 'schema'")
    kind = fields.get("schemaType") or SchemaFormat.AVRO.value
    try:
        format = SchemaFormat(kind)
    except ValueError:
        names = ", ".join(each.value for each in SchemaFormat)
        raise RestError(42201, f"Invalid schema type {str(kind)[:100]!r}: expected {names}") from None
    references = fields.get("references") or []
    if not isinstance(references, list):
        raise rest_errors.invalid_schema(format, "references: expected a list")
    metadata, rule_set = fields.get("metadata"), fields.get("ruleSet")
    for name, value in (("metadata", metadata), ("ruleSet", rule_set)):
        if value is not None and (not isinstance(value, dict) or _depth(value) > DEPTH_MAX):
            raise rest_errors.invalid_schema(format, f"{name}: expected an object of at most {DEPTH_MAX} levels")
    content = SchemaContent(
        Schema(text, format, tuple(_reference(each, format) for each in references)),
        canonical_json(metadata),
        canonical_json(rule_set),
    )
    version, schema_id = _integer(fields, "version"), _integer(fields, "id")
    return Registration(content, normalize, version or None, None if schema_id in (None, -1) else schema_id)


def _reference(value: object, format: SchemaFormat) -> SchemaReference:
    if isinstance(value, dict):
        name, subject, version = value.get("name"), value.get("subject"), value.get("version")
        if isinstance(name, str) and isinstance(subject, str) and type(version) is int:
            return SchemaReference(name, subject, version)
    raise rest_errors.invalid_schema(
        format, f"invalid reference {str(value)[:100]}: expected an object with name, subject and version"
    )


def parse_config(body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the changes of a configuration, and the response: under the names of the request."""
    fields = _load(body)
    changes: dict[str, Any] = {}
    response: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        if name in ("compatibility", "compatibilityLevel"):
            changes["compatibilityLevel"] = response["compatibility"] = _level(value)
        elif name == "normalize" and isinstance(value, bool):
            changes[name] = response[name] = value
        else:
            raise RestError(
                422,
                f"configuration {name[:100]!r} is not supported, or its value: expected compatibility, normalize",
            )
    if not changes:
        raise rest_errors.invalid_level(None, _LEVELS)
    return changes, response


def _level(value: object) -> str:
    try:
        return CompatibilityLevel(str(value).upper()).value
    except ValueError:
        raise rest_errors.invalid_level(str(value)[:100], _LEVELS) from None


def parse_mode(body: bytes, modes: Sequence[str]) -> str:
    """Return the mode of a body."""
    mode = str(_load(body).get("mode")).upper()
    if mode not in modes:
        raise rest_errors.invalid_mode(mode[:100], ", ".join(modes))
    return mode


def _load(body: bytes) -> dict[str, Any]:
    try:
        value = load_json(body.decode())
        dump(value).encode()
    except RecursionError:
        raise RestError(400, "invalid body: its JSON is nested too deeply") from None
    except UnicodeError as error:
        raise RestError(
            400, f"invalid body: expected JSON in UTF-8, without half of a surrogate pair: {error}"
        ) from None
    except ValueError as error:
        raise RestError(400, f"invalid body: expected JSON: {error}") from None
    if not isinstance(value, dict):
        raise RestError(400, "invalid body: expected a JSON object")
    return value


def _integer(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and type(value) is not int:
        raise RestError(422, f"invalid {name} {str(value)[:30]!r}: expected an integer")
    return value


def _depth(value: object) -> int:
    """Return the levels of a JSON value; at most one more than the limit is looked at."""
    levels, nodes = 0, [value]
    while nodes and levels <= DEPTH_MAX:
        levels += 1
        nodes = [
            item
            for node in nodes
            for item in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
        ]
    return levels
