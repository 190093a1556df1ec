"""The rules of compatibility of the schema registry, for each format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.broker.registry.compatibility import CompatibilityLevel, EarlierVersion, check
from headrace.broker.registry.formats import ParsedSchema, parse
from headrace.errors import SchemaError
from headrace.schema.types import Schema, SchemaFormat

AVRO, JSON, PROTOBUF = SchemaFormat.AVRO, SchemaFormat.JSON, SchemaFormat.PROTOBUF


def parsed(format: SchemaFormat, text: Any, references: dict[str, str] | None = None) -> ParsedSchema:
    return parse(Schema(text if isinstance(text, str) else json.dumps(text), format), references or {})


def reasons(format: SchemaFormat, writer: Any, reader: Any) -> list[str]:
    """Return the kinds of reasons why the reader's schema cannot read the writer's records."""
    return [reason.kind for reason in parsed(format, reader).unreadable(parsed(format, writer))]


def record(*fields: tuple[Any, ...], **attributes: Any) -> dict[str, Any]:
    entries = []
    for name, kind, *default in fields:
        entries.append({"name": name, "type": kind, **({"default": default[0]} if default else {})})
    return {"type": "record", "name": "R", "fields": entries, **attributes}


def enum(*symbols: str, **attributes: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **attributes}


def fixed(size: int, name: str = "F", **attributes: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **attributes}


AVRO_CASES = [
    # the writer's schema, the reader's, the reasons
    (record(("a", "int")), record(("a", "int"), ("b", "int", 0)), []),
    (record(("a", "int")), record(("a", "int"), ("b", "int")), ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    (record(("a", "int"), ("b", "int")), record(("a", "int")), []),
    (record(("a", "int")), record(("a", "long")), []),
    (record(("a", "long")), record(("a", "int")), ["TYPE_MISMATCH"]),
    (record(("a", "string")), record(("a", "bytes")), []),
    (record(("a", "int")), record(("a", ["null", "int"])), []),
    (record(("a", ["null", "int"])), record(("a", "int")), ["TYPE_MISMATCH"]),
    (record(("a", ["null", "int"])), record(("a", ["null", "int", "string"])), []),
    (record(("a", ["null", "int", "string"])), record(("a", ["null", "int"])), ["MISSING_UNION_BRANCH"]),
    (record(("a", "boolean")), record(("a", ["null", "int"])), ["MISSING_UNION_BRANCH"]),
    (record(("a", "int")), record(("a", "int"), name="Other"), ["NAME_MISMATCH"]),
    (record(("a", "int")), record(("a", "int"), name="Other", aliases=["R"]), []),
    (record(("a", "int")), record(("a", "int"), namespace="other"), []),
    (enum("A", "B"), enum("A", "B", "C"), []),
    (enum("A", "B"), enum("A"), ["MISSING_ENUM_SYMBOLS"]),
    (enum("A", "B"), enum("A", default="A"), []),
    (record(("a", "int")), record(("a", "int"), ("e", enum("A", default="A"))), ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    (fixed(4), fixed(4), []),
    (fixed(4), fixed(8), ["FIXED_SIZE_MISMATCH"]),
    (fixed(4), fixed(4, "G"), ["NAME_MISMATCH"]),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "double"}, []),
    ({"type": "array", "items": "double"}, {"type": "array", "items": "int"}, ["TYPE_MISMATCH"]),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, ["TYPE_MISMATCH"]),
    ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, ["TYPE_MISMATCH"]),
    (record(("next", ["null", "R"])), record(("next", ["null", "R"]), ("x", "int", 1)), []),
    (record(("next", ["null", "R"])), record(("next", ["null", "R"]), ("x", "int")), 1),
    (
        record(("a", [record(("x", "int"), name="A"), record(("x", "int"), name="B")])),
        record(("a", [record(("x", "int"), name="A"), record(("x", "string"), name="B")])),
        ["MISSING_UNION_BRANCH"],
    ),
]


@pytest.mark.parametrize(("writer", "reader", "expected"), AVRO_CASES, ids=range(len(AVRO_CASES)))
def test_avro_schemas_read_others_as_javas_rules_say(writer, reader, expected):
    kinds = reasons(AVRO, writer, reader)
    assert kinds == expected if isinstance(expected, list) else len(kinds) == expected


def test_an_avro_alias_of_a_field_finds_the_old_name():
    new = record(("b", "int"))
    new["fields"][0]["aliases"] = ["a"]
    assert reasons(AVRO, record(("a", "int")), new) == []


def obj(properties: dict[str, Any], **keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **keywords}


CLOSED = {"additionalProperties": False}
STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
JSON_CASES = [
    (STRING, STRING, []),
    (STRING, INTEGER, ["TYPE_CHANGED"]),
    (INTEGER, NUMBER, []),
    (NUMBER, INTEGER, ["TYPE_NARROWED"]),
    (STRING, {}, []),
    ({}, STRING, ["TYPE_CHANGED"]),
    (False, STRING, []),
    ({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 9}, []),
    ({"type": "string", "maxLength": 9}, {"type": "string", "maxLength": 5}, ["MAX_LENGTH_DECREASED"]),
    (STRING, {"type": "string", "minLength": 1}, ["MIN_LENGTH_ADDED"]),
    (STRING, {"type": "string", "pattern": "^a"}, ["PATTERN_ADDED"]),
    ({"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}, ["PATTERN_CHANGED"]),
    ({"type": "number", "maximum": 5}, {"type": "number", "maximum": 4}, ["MAXIMUM_DECREASED"]),
    ({"type": "number", "minimum": 5}, {"type": "number"}, []),
    ({"type": "number", "multipleOf": 4}, {"type": "number", "multipleOf": 2}, []),
    ({"type": "number", "multipleOf": 2}, {"type": "number", "multipleOf": 4}, ["MULTIPLE_OF_EXPANDED"]),
    (
        {"type": "number", "maximum": 5},
        {"type": "number", "maximum": 5, "exclusiveMaximum": True},
        ["EXCLUSIVE_MAXIMUM_ADDED"],
    ),
    ({"enum": ["a"]}, {"enum": ["a", "b"]}, []),
    ({"enum": ["a", "b"]}, {"enum": ["a"]}, ["ENUM_ARRAY_NARROWED"]),
    ({"enum": ["a", "b"]}, {"enum": ["b", "c"]}, ["ENUM_ARRAY_CHANGED"]),
    ({"const": 1}, {"const": 1.0}, []),
    ({"const": 1}, {"const": True}, ["ENUM_ARRAY_CHANGED"]),
    ({"type": "string", "enum": ["a"]}, STRING, []),
    (STRING, {"type": "string", "enum": ["a"]}, ["TYPE_CHANGED"]),
    (obj({"a": STRING}), obj({"a": STRING, "b": INTEGER}), ["OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
    (obj({"a": STRING}), obj({"a": STRING, "b": {}}), []),
    (obj({"a": STRING}, **CLOSED), obj({"a": STRING, "b": INTEGER}, **CLOSED), []),
    (
        obj({"a": STRING}, **CLOSED),
        obj({"a": STRING, "b": INTEGER}, required=["b"], **CLOSED),
        ["REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"],
    ),
    (
        obj({"a": STRING}, **CLOSED),
        obj({"a": STRING, "b": {"type": "integer", "default": 0}}, required=["b"], **CLOSED),
        [],
    ),
    (obj({"a": STRING, "b": INTEGER}), obj({"a": STRING}), []),
    (
        obj({"a": STRING, "b": INTEGER}, **CLOSED),
        obj({"a": STRING}, **CLOSED),
        ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"],
    ),
    (obj({"a": STRING}), obj({"a": STRING}, required=["a"]), ["REQUIRED_ATTRIBUTE_ADDED"]),
    (obj({"a": STRING}, required=["a"]), obj({"a": STRING}), []),
    (obj({"a": STRING}), obj({"a": STRING}, **CLOSED), ["ADDITIONAL_PROPERTIES_REMOVED"]),
    (obj({"a": STRING}, **CLOSED), obj({"a": STRING}), []),
    (obj({"a": STRING}), obj({"a": STRING}, additionalProperties=STRING), ["ADDITIONAL_PROPERTIES_NARROWED"]),
    (obj({}, additionalProperties=STRING), obj({"a": STRING}, additionalProperties=STRING), []),
    (
        obj({}, additionalProperties=STRING),
        obj({"a": INTEGER}, additionalProperties=STRING),
        ["PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
    ),
    (
        obj({}, patternProperties={"^x": STRING}, **CLOSED),
        obj({"x1": STRING}, patternProperties={"^x": STRING}, **CLOSED),
        [],
    ),
    (obj({"a": obj({"b": INTEGER})}), obj({"a": obj({"b": STRING})}), ["TYPE_CHANGED"]),
    ({"type": "array", "items": INTEGER}, {"type": "array", "items": NUMBER}, []),
    ({"type": "array"}, {"type": "array", "items": NUMBER}, ["SCHEMA_ADDED"]),
    ({"type": "array"}, {"type": "array", "maxItems": 3}, ["MAX_ITEMS_ADDED"]),
    ({"type": "array"}, {"type": "array", "uniqueItems": True}, ["UNIQUE_ITEMS_ADDED"]),
    (
        {"type": "array", "items": [STRING]},
        {"type": "array", "items": [STRING, STRING]},
        ["ITEM_ADDED_TO_OPEN_CONTENT_MODEL"],
    ),
    (
        {"type": "array", "prefixItems": [STRING], "items": False},
        {"type": "array", "prefixItems": [STRING, STRING], "items": False},
        [],
    ),
    ({"oneOf": [STRING, INTEGER]}, {"oneOf": [STRING, INTEGER, {"type": "null"}]}, []),
    ({"oneOf": [STRING, INTEGER]}, {"oneOf": [STRING]}, ["SUM_TYPE_NARROWED"]),
    (
        {"oneOf": [STRING, INTEGER]},
        {"oneOf": [STRING, {"type": "null"}]},
        ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"],
    ),
    (STRING, {"oneOf": [STRING, INTEGER]}, []),
    (STRING, {"type": ["string", "null"]}, []),
    ({"type": ["string", "null"]}, STRING, ["TYPE_CHANGED"]),
    ({"allOf": [STRING, {"type": "string", "maxLength": 3}]}, STRING, []),
    ({"oneOf": [STRING, INTEGER]}, {"allOf": [STRING, INTEGER]}, ["COMBINED_TYPE_CHANGED"]),
    ({"not": INTEGER}, {"not": INTEGER}, []),
    ({"not": INTEGER}, {"not": NUMBER}, ["NOT_TYPE_EXTENDED"]),
    ({"type": "string", "title": "a"}, {"type": "string", "title": "b", "description": "c", "default": "d"}, []),
]


@pytest.mark.parametrize(("writer", "reader", "expected"), JSON_CASES, ids=range(len(JSON_CASES)))
def test_json_schemas_accept_others_as_confluents_rules_say(writer, reader, expected):
    assert reasons(JSON, writer, reader) == expected


def test_json_references_are_followed_in_the_schema_and_outside():
    local = {"$ref": "#/definitions/a", "definitions": {"a": STRING}}
    assert reasons(JSON, local, STRING) == []
    assert reasons(JSON, local, INTEGER) == ["TYPE_CHANGED"]
    outside = parsed(
        JSON, {"$ref": "money.json#/$defs/cents"}, {"money.json": json.dumps({"$defs": {"cents": INTEGER}})}
    )
    assert outside.unreadable(parsed(JSON, INTEGER)) == []
    assert parsed(JSON, STRING).unreadable(outside) != []
    tree = obj({"children": {"type": "array", "items": {"$ref": "#"}}, "name": STRING})
    assert reasons(JSON, tree, tree) == []
    assert reasons(JSON, tree, {**tree, "properties": {**tree["properties"], "name": INTEGER}}) == ["TYPE_CHANGED"]


def test_a_pattern_of_json_schema_cannot_stop_the_registry():
    bomb = {"^(a+)+$": STRING, "(?=x)": STRING}
    old = obj({}, patternProperties=bomb, **CLOSED)
    assert reasons(JSON, old, obj({"a" * 5000 + "!": STRING}, **CLOSED)) == []


def proto(body: str, package: str = "") -> str:
    return f'syntax = "proto3"; {f"package {package};" if package else ""} {body}'


PROTOBUF_CASES = [
    (proto("message M { int32 a = 1; }"), proto("message M { int32 a = 1; string b = 2; }"), []),
    (proto("message M { int32 a = 1; string b = 2; }"), proto("message M { int32 a = 1; }"), []),
    (proto("message M { int32 a = 1; }"), proto("message M { int64 renamed = 1; }"), []),
    (proto("message M { int32 a = 1; }"), proto("message M { sint32 a = 1; }"), ["FIELD_SCALAR_KIND_CHANGED"]),
    (proto("message M { string a = 1; }"), proto("message M { bytes a = 1; }"), []),
    (proto("message M { string a = 1; }"), proto("message M { N a = 1; } message N {}"), ["FIELD_KIND_CHANGED"]),
    (proto("message M { N a = 1; } message N {}"), proto("message M { O a = 1; } message N {} message O {}"), 1),
    (proto("message M {}", "a"), proto("message M {}", "b"), ["PACKAGE_CHANGED"]),
    (proto("message M {} message N {}"), proto("message N {} message O {}"), ["MESSAGE_REMOVED"]),
    (proto("message M { message N {} }"), proto("message M {}"), ["MESSAGE_REMOVED"]),
    (
        proto("enum E { A = 0; B = 1; } message M { E e = 1; }"),
        proto("enum E { A = 0; } message M { int32 e = 1; }"),
        [],
    ),
    (
        proto("message M { optional int32 a = 1; }"),
        proto("message M { repeated int32 a = 1; }"),
        ["FIELD_NUMERIC_LABEL_CHANGED"],
    ),
    (proto("message M { optional string a = 1; }"), proto("message M { repeated string a = 1; }"), []),
    (proto("message M { map<string, int32> a = 1; }"), proto("message M { map<string, int64> a = 1; }"), []),
    (proto("message M { map<string, int32> a = 1; }"), proto("message M { map<string, string> a = 1; }"), 1),
    (proto("message M { map<string, int32> a = 1; }"), proto("message M { string a = 1; }"), ["FIELD_KIND_CHANGED"]),
    (
        proto("message M { oneof o { int32 a = 1; int32 b = 2; } }"),
        proto("message M { int32 a = 1; int32 b = 2; }"),
        [],
    ),
    (
        proto("message M { int32 a = 1; int32 b = 2; }"),
        proto("message M { oneof o { int32 a = 1; int32 b = 2; } }"),
        ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"],
    ),
    (proto("message M { int32 a = 1; }"), proto("message M { oneof o { int32 a = 1; int32 b = 2; } }"), []),
    (
        proto("message M { int32 a = 1; oneof o { int32 b = 2; } }"),
        proto("message M { oneof o { int32 b = 2; int32 a = 1; } }"),
        ["FIELD_MOVED_TO_EXISTING_ONEOF"],
    ),
    (
        proto("message M { oneof o { int32 a = 1; int32 b = 2; } }"),
        proto("message M { oneof o { int32 a = 1; } }"),
        ["ONEOF_FIELD_REMOVED"],
    ),
    (proto("message M { int32 c = 3; oneof o { int32 a = 1; } }"), proto("message M { int32 c = 3; }"), []),
    (
        'syntax = "proto2"; message M { optional int32 a = 1; }',
        'syntax = "proto2"; message M { optional int32 a = 1; required int32 b = 2; }',
        ["REQUIRED_FIELD_ADDED"],
    ),
    (proto("message M { M next = 1; int32 a = 2; }"), proto("message M { M next = 1; string a = 2; }"), 1),
]


@pytest.mark.parametrize(("writer", "reader", "expected"), PROTOBUF_CASES, ids=range(len(PROTOBUF_CASES)))
def test_protobuf_schemas_read_others_as_confluents_rules_say(writer, reader, expected):
    kinds = reasons(PROTOBUF, writer, reader)
    assert kinds == expected if isinstance(expected, list) else len(kinds) == expected


LEVEL_CASES = [
    # level, compatible with: a field added without default, a field removed without default
    ("NONE", True, True),
    ("BACKWARD", False, True),
    ("FORWARD", True, False),
    ("FULL", False, False),
    ("BACKWARD_TRANSITIVE", False, True),
    ("FORWARD_TRANSITIVE", True, False),
    ("FULL_TRANSITIVE", False, False),
]


@pytest.mark.parametrize(("level", "may_add", "may_remove"), LEVEL_CASES)
def test_a_level_says_which_schema_reads_the_others_records(level, may_add, may_remove):
    small, large = (parsed(AVRO, record(*fields)) for fields in ([("a", "int")], [("a", "int"), ("b", "int")]))
    chosen = CompatibilityLevel(level)
    assert (check(chosen, AVRO, large, [EarlierVersion(1, AVRO, small)]) == []) is may_add
    assert (check(chosen, AVRO, small, [EarlierVersion(1, AVRO, large)]) == []) is may_remove


def test_a_transitive_level_compares_with_all_versions_and_others_with_the_latest():
    first, second = parsed(AVRO, record(("a", "int"))), parsed(AVRO, record(("a", "int"), ("b", "int", 1)))
    third = parsed(AVRO, record(("a", "int"), ("b", "int")))
    earlier = [EarlierVersion(1, AVRO, first), EarlierVersion(2, AVRO, second)]
    assert check(CompatibilityLevel.BACKWARD, AVRO, third, earlier) == []
    (message,) = check(CompatibilityLevel.BACKWARD_TRANSITIVE, AVRO, third, earlier)
    assert message == (
        "READER_FIELD_MISSING_DEFAULT_VALUE at '/fields/1': field 'b' of the new schema has no default and is not in "
        "version 1; give it a default"
    )


def test_another_type_is_incompatible_unless_the_level_is_none():
    schema = parsed(JSON, STRING)
    earlier = [EarlierVersion(1, AVRO, None)]
    assert "AVRO" in check(CompatibilityLevel.FULL, JSON, schema, earlier)[0]
    assert check(CompatibilityLevel.NONE, JSON, schema, earlier) == []


INVALID = [
    (AVRO, "not JSON"),
    (AVRO, '{"type":"recordd"}'),
    (AVRO, record(("a", "int", "text"))),
    (AVRO, '["null",' * 200 + '"int"' + "]" * 200),
    (AVRO, '{"a":' * 100_000),
    (JSON, "[]"),
    (JSON, {"type": "strin"}),
    (JSON, {"properties": []}),
    (JSON, {"items": 5}),
    (JSON, {"$ref": "#/nowhere"}),
    (JSON, {"$ref": "http://elsewhere.example.com/x.json"}),
    (JSON, {"maximum": "5"}),
    (JSON, '{"maximum": NaN}'),
    (JSON, '{"maximum": 1e999}'),
    (JSON, '{"not":' * 500 + "{}" + "}" * 500),
    (JSON, '{"not":' * 100_000),
    (PROTOBUF, "message"),
    (PROTOBUF, 'syntax = "proto3"; message M { Unknown a = 1; }'),
    (PROTOBUF, "AAAA"),
]


@pytest.mark.parametrize(("format", "text"), INVALID, ids=range(len(INVALID)))
def test_an_invalid_schema_is_a_schema_error(format, text):
    with pytest.raises(SchemaError):
        parsed(format, text)


def test_schemas_that_take_too_long_to_compare_are_an_error():
    branches = [{"type": "object", "properties": {f"p{index}": {"type": "string"}}} for index in range(400)]
    with pytest.raises(SchemaError, match="pairs of types to compare"):
        reasons(JSON, {"anyOf": branches}, {"anyOf": branches[::-1]})


def test_the_text_of_an_avro_schema_is_javas():
    text = """{"name": "shop.Order", "fields": [
        {"default": null, "type": ["null", {"type": "string", "avro.java.string": "String"}], "name": "note"},
        {"name": "at", "type": {"logicalType": "date", "type": "int"}, "order": "ascending"},
        {"name": "kind", "type": {"symbols": ["A"], "type": "enum", "name": "Kind", "doc": "k"}},
        {"name": "again", "type": "shop.Kind"}
    ], "doc": "An order", "type": "record", "aliases": ["O"], "owner": "me"}"""
    assert parsed(AVRO, text).text == (
        '{"type":"record","name":"Order","namespace":"shop","doc":"An order","fields":['
        '{"name":"note","type":["null",{"type":"string","avro.java.string":"String"}],"default":null},'
        '{"name":"at","type":{"type":"int","logicalType":"date"}},'
        '{"name":"kind","type":{"type":"enum","name":"Kind","doc":"k","symbols":["A"]}},'
        '{"name":"again","type":"Kind"}],"owner":"me","aliases":["O"]}'
    )
