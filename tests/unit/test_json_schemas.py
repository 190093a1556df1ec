"""JSON schemas: the Arrow types that they become, references, limits and errors."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from headrace.errors import SchemaError
from headrace.schema.json_parsing import BRANCHES_MAX, TYPES_MAX
from headrace.schema.json_schema import JsonDecoder, JsonEncoder, arrow_type, parse_schema
from tests.support.json_types import CONNECT

TEXT = pa.string()


def type_of(schema, references=None):
    return arrow_type(parse_schema(json.dumps(schema), references))


def items(data_type, nullable=False):
    return pa.list_(pa.field("item", data_type, nullable=nullable))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, TEXT),
        ({}, TEXT),
        ({"description": "any", "pattern": "x"}, TEXT),
        ({"type": "null"}, pa.null()),
        ({"type": "integer"}, pa.int64()),
        ({"type": "integer", "connect.type": "int16"}, pa.int16()),
        ({"type": "integer", "connect.type": "unknown"}, pa.int64()),
        ({"type": "integer", "title": f"{CONNECT}Date", "connect.type": "int32"}, pa.date32()),
        ({"type": "integer", "title": f"{CONNECT}Time", "connect.type": "int32"}, pa.time32("ms")),
        ({"type": "integer", "title": f"{CONNECT}Timestamp"}, pa.timestamp("ms", tz="UTC")),
        ({"type": "number"}, pa.float64()),
        ({"type": "number", "connect.type": "float32"}, pa.float32()),
        ({"type": "number", "title": f"{CONNECT}Decimal", "connect.parameters": {"scale": "2"}}, pa.decimal128(38, 2)),
        ({"type": "string", "format": "date-time"}, TEXT),
        ({"type": "string", "connect.type": "bytes"}, pa.binary()),
        ({"const": "a"}, TEXT),
        ({"enum": ["a", "b", None]}, TEXT),
        ({"enum": [1, 2]}, pa.int64()),
        ({"enum": [1, 2.5]}, pa.float64()),
        ({"type": "array"}, items(TEXT, True)),
        ({"items": {"type": "integer"}}, items(pa.int64())),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, items(pa.int64(), True)),
        ({"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}, items(TEXT, True)),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, items(TEXT, True)),
        ({"type": "object"}, TEXT),
        ({"type": "object", "additionalProperties": True}, TEXT),
        ({"type": "object", "properties": {}, "additionalProperties": False}, TEXT),
        ({"additionalProperties": {"type": "integer"}}, pa.map_(TEXT, pa.field("value", pa.int64(), nullable=False))),
        ({"properties": {"a": {"type": "boolean"}, "b": False}}, pa.struct([("a", pa.bool_())])),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, TEXT),
        ({"anyOf": [{"type": "string", "format": "email"}, {"type": "string", "format": "uri"}]}, TEXT),
        ({"type": "string", "oneOf": [{"pattern": "a"}, {"pattern": "b"}]}, TEXT),
        ({"type": ["string", "null"], "anyOf": [{"type": "string"}, {"type": "null"}]}, TEXT),
        (
            {"oneOf": [{"type": "string"}, {"type": "null"}, {"type": ["integer", "boolean"]}]},
            pa.struct([("member0", TEXT), ("member1", pa.int64()), ("member2", pa.bool_())]),
        ),
        ({"oneOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {}}}]}, TEXT),
        ({"oneOf": [{"properties": {"a": {}}}, {"properties": {"a": {}}}]}, pa.struct([("a", TEXT)])),
        (
            {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}], "properties": {"b": {}}},
            pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", TEXT)]),
        ),
        (
            {"allOf": [{"properties": {"a": {"type": "number"}}}, {"properties": {"a": {"type": "integer"}}}]},
            pa.struct([("a", pa.int64())]),
        ),
        (
            {"properties": {"a": {"type": "integer"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            pa.struct([("a", pa.int64())]),
        ),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_a_schema_becomes_an_arrow_type(schema, expected):
    assert type_of(schema) == expected


@pytest.mark.parametrize(
    ("schema", "references"),
    [
        ({"$ref": "#/definitions/a", "definitions": {"a": {"type": "integer"}}}, None),
        ({"$ref": "#/$defs/x~1y%25", "$defs": {"x/y%": {"type": "integer"}}}, None),
        ({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "integer"}}}, None),
        ({"$ref": "#here", "definitions": {"a": {"$id": "#here", "type": "integer"}}}, None),
        ({"$id": "http://x/root.json", "$ref": "b.json", "$defs": {"b": {"$id": "b.json", "type": "integer"}}}, None),
        ({"$ref": "other.json"}, {"other.json": '{"type": "integer"}'}),
        ({"$id": "http://x/root.json", "$ref": "other.json"}, {"other.json": '{"type": "integer"}'}),
        ({"$ref": "http://x/a.json#/$defs/i"}, {"a": '{"$id":"http://x/a.json","$defs":{"i":{"type":"integer"}}}'}),
        ({"$ref": "a.json"}, {"a.json": '{"$ref": "b.json#/definitions/i"}',
                              "b.json": '{"definitions": {"i": {"type": "integer"}}}'}),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://x/r", "$ref": "s",
          "definitions": {"s": {"id": "s", "type": "integer"}}}, None),
        ({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "integer"}}}, None),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_references_are_resolved(schema, references):
    assert type_of(schema, references) == pa.int64()


def test_keywords_beside_a_reference_count_since_draft_2019():
    schema = {"$ref": "#/$defs/a", "type": "integer", "$defs": {"a": {"type": "number"}}}
    assert type_of(schema) == pa.float64()
    assert type_of({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}) == pa.int64()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "JSON schema is not JSON"),
        ("[]", "invalid JSON schema at the root: expected an object or a boolean, got []"),
        ("NaN", "NaN is not JSON"),
        ({"type": "text"}, "invalid JSON schema at the root: expected a type (object, array"),
        ({"type": []}, "expected a type (object"),
        ({"properties": {"a": {"type": 5}}}, "invalid JSON schema at a: expected a type"),
        ({"properties": []}, "expected an object of properties, got []"),
        ({"oneOf": {}}, "expected a list in oneOf, got {}"),
        ({"type": "array", "items": {"type": "integer", "enum": ["a"]}}, "allows no value at []; correct its types"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "allows no value at the root"),
        ({"$ref": "http://127.0.0.1:1/x.json"}, "unknown $ref 'http://127.0.0.1:1/x.json' at the root"),
        ({"properties": {"a": {"$ref": "#/definitions/x"}}}, "$ref '#/definitions/x' at a of the JSON schema names"),
        ({"$ref": "#"}, "JSON schema contains itself at the root"),
        ({"properties": {"a": {"items": {"$ref": "#"}}}}, "JSON schema contains itself at a[]: Arrow has no recursive"),
        ({"properties": {"\ud800": {}}}, "expected a property name in Unicode"),
        ({"type": "number", "title": f"{CONNECT}Decimal"}, "expected scale and precision of a Decimal, got None"),
        (
            {"type": "number", "title": f"{CONNECT}Decimal", "connect.parameters": {"scale": "77"}},
            "expected scale <= precision <= 76",
        ),
        ({"oneOf": [{"type": "null"}] * (BRANCHES_MAX + 1)}, "expected at most 1,000 alternatives, got 1,001"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_invalid_schema_is_refused(schema, message):
    with pytest.raises(SchemaError) as caught:
        parse_schema(schema if isinstance(schema, str) else json.dumps(schema))
    assert message in str(caught.value)


def test_a_schema_that_grows_exponentially_or_too_deep_is_refused():
    definitions: dict = {"d0": {"type": "integer"}}
    for i in range(1, 40):
        reference = {"$ref": f"#/definitions/d{i - 1}"}
        definitions[f"d{i}"] = {"properties": {"a": reference, "b": reference}}
    with pytest.raises(SchemaError, match=f"more than {TYPES_MAX:,} types after expansion of references"):
        type_of({"$ref": "#/definitions/d39", "definitions": definitions})
    nested: dict = {"type": "integer"}
    for _ in range(101):
        nested = {"items": nested}
    with pytest.raises(SchemaError, match="nested deeper than 100 levels"):
        type_of(nested)
    with pytest.raises(SchemaError, match="JSON schema is nested too deeply"):
        parse_schema('{"items":' * 100_000 + "{}" + "}" * 100_000)
    alternatives: dict = {"type": "integer"}
    for _ in range(14):
        alternatives = {"oneOf": [alternatives, {"allOf": [alternatives]}]}
    with pytest.raises(SchemaError, match=f"more than {TYPES_MAX:,} types"):
        type_of(alternatives)


def test_columns_that_never_fit_are_refused():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["b"]}
    text = json.dumps(schema)
    for fields, message in [
        (
            [("a", pa.string()), ("b", pa.string())],
            "column a: Arrow type string cannot be written as JSON integer (int64)",
        ),
        ([("b", pa.string()), ("c", pa.string())], "columns c are not properties of the JSON schema"),
        ([("a", pa.int64())], "no column for property b of the JSON schema, which is required and has no default"),
    ]:
        with pytest.raises(SchemaError) as caught:
            JsonEncoder(text, pa.struct(fields))
        assert message in str(caught.value)
    with pytest.raises(SchemaError, match="columns can be chosen of an object only, not of array of JSON text"):
        JsonDecoder('{"type": "array"}', columns=["a"])
