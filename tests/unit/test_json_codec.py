"""JSON to Arrow and back, compared with Python's json on random schemas and values; errors of rows; damaged bytes."""

from __future__ import annotations

import importlib
import json
import math
import random
import re
import struct
import sys
from decimal import Decimal, localcontext
from pathlib import Path

import jsonschema
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import SchemaError
from headrace.schema._json import layout, reference
from headrace.schema.json_decoding import plan_decoding
from headrace.schema.json_schema import ErrorCode, JsonDecoder, JsonEncoder, derive_schema, parse_schema
from headrace.wire.columns import bytes_column
from tests.support.examples import examples
from tests.support.json_types import ANY, CONNECT, RandomType, object_types

both_kernels = pytest.mark.both_kernels
THOROUGH = settings(
    max_examples=examples(150),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": ["string", "null"]},
        "amount": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "integer"}},
        "note": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        "extra": {},
    },
    "required": ["id", "amount"],
}
VALUE = b'{"id":7,"customer":"Ann","amount":1.5,"tags":["a","b"],"labels":{"x":1},"note":"n","extra":{"k":[1,null]}}'
DECIMAL = {
    "type": "number",
    "title": f"{CONNECT}Decimal",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "5"},
}
BASE64 = {"type": "string", "connect.type": "bytes"}
REPEATED = "{" + ",".join(f'"{i % 10}":{i}' for i in range(30)) + "}"
INT_MAP = {"type": "object", "additionalProperties": {"type": "integer"}}


def decode(schema, *values, **options):
    array, errors = JsonDecoder(json.dumps(schema), **options).decode(pa.array(values, pa.binary()))
    array.validate(full=True)
    return array.to_pylist(), errors


def encode(schema, array, **options):
    column, errors = JsonEncoder(json.dumps(schema), array.type, **options).encode(array)
    column.validate(full=True)
    return column.to_pylist(), errors


@both_kernels
@THOROUGH
@given(st.data())
def test_values_of_json_dumps_are_decoded_and_encoded_with_the_same_meaning(data):
    random_type: RandomType = data.draw(object_types())
    pairs = data.draw(st.lists(random_type.values, max_size=4))
    space = data.draw(st.sampled_from([None, 2]))
    texts = [json.dumps(value, ensure_ascii=bool(space), indent=space).encode() for value, _ in pairs]
    decoder = JsonDecoder(random_type.text)
    array, errors = decoder.decode(pa.array([b"\0" * 5 + text for text in texts] + [None], pa.binary()), skip=5)
    array.validate(full=True)
    assert not errors
    assert array.to_pylist() == [*(expected for _, expected in pairs), None]

    encoded, errors = JsonEncoder(random_type.text, decoder.arrow_type).encode(array, prefix=b"id")
    encoded.validate(full=True)
    assert not errors
    again = [text[2:] for text in encoded.to_pylist()[:-1]]
    # What is absent and may be null comes back as null; numbers keep their value.
    validator = jsonschema.Draft7Validator(random_type.schema)
    for text, (value, _) in zip(again, pairs, strict=True):
        parsed = json.loads(text)
        validator.validate(parsed)
        assert _without_nulls(parsed) == _without_nulls(json.loads(json.dumps(value)))
    assert decoder.decode(pa.array(again, pa.binary()))[0].equals(array.slice(0, len(pairs)))


def _without_nulls(value):
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


@both_kernels
@THOROUGH
@given(ANY)
def test_a_value_of_any_shape_is_kept_as_its_text(value):
    text = json.dumps(value)
    assert decode({}, f" {text}\n".encode()) == ([text], [])
    assert encode({}, pa.array([f"\t{text} "])) == ([text.encode()], [])


@both_kernels
@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "string"}, r'"a\"\\\/\b\f\n\r\t\u00e9\u20ac\ud83d\ude00"', 'a"\\/\b\f\n\r\té€😀'),
        ({"type": "string"}, '""', ""),
        ({"type": "integer"}, "1.0", 1),
        ({"type": "integer"}, "-12.50e1", -125),
        ({"type": "integer"}, "0e999999999999", 0),
        ({"type": "integer"}, "9223372036854775807.000", 2**63 - 1),
        ({"type": "integer"}, "-92233720368547758080e-1", -(2**63)),
        ({"type": "number"}, "-0", -0.0),
        ({"type": "number"}, "123456789012345678901234567890", 123456789012345678901234567890.0),
        ({"type": "number"}, "1e-400", 0.0),
        (DECIMAL, "123.45", Decimal("123.45")),
        (DECIMAL, "-1.2e2", Decimal("-120.00")),
        (DECIMAL, "0.010000", Decimal("0.01")),
        (BASE64, r'"AP\/+"', b"\x00\xff\xfe"),
        (BASE64, '"AA=="', b"\x00"),
        (INT_MAP, '{"a":1,"b":2,"a":3}', [("b", 2), ("a", 3)]),
        (INT_MAP, REPEATED, [(str(i % 10), i) for i in range(20, 30)]),
        ({"type": "null"}, " null ", None),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": "object"}, ' {"b": [1, 2]} ', '{"b": [1, 2]}'),
    ],
    ids=str,
)
def test_a_text_is_decoded_as(schema, text, expected):
    assert decode(schema, text.encode()) == ([expected], [])


@both_kernels
@pytest.mark.parametrize(
    ("schema", "text", "code"),
    [
        ({"type": "integer"}, b"", ErrorCode.TRUNCATED),
        ({"type": "integer"}, b"-", ErrorCode.TRUNCATED),
        ({"type": "integer"}, b"9223372036854775808", ErrorCode.INTEGER),
        ({"type": "integer"}, b"1.5", ErrorCode.INTEGER),
        ({"type": "integer"}, b"1e40", ErrorCode.INTEGER),
        ({"type": "integer", "connect.type": "int8"}, b"128", ErrorCode.INTEGER),
        ({"type": "integer"}, b"01", ErrorCode.TRAILING),
        ({"type": "integer"}, b"+1", ErrorCode.SYNTAX),
        ({"type": "integer"}, b'"1"', ErrorCode.TYPE),
        ({"type": "number"}, b"1.", ErrorCode.TRUNCATED),
        ({"type": "number"}, b"1.e5", ErrorCode.SYNTAX),
        ({"type": "number"}, b"1e400", ErrorCode.NUMBER),
        ({"type": "number"}, b"1" * 2001, ErrorCode.NUMBER),
        ({"type": "number"}, b"NaN", ErrorCode.SYNTAX),
        ({"type": "number", "connect.type": "float32"}, b"1e39", ErrorCode.NUMBER),
        ({"type": "boolean"}, b"truth", ErrorCode.SYNTAX),
        ({"type": "boolean"}, b"tru", ErrorCode.TRUNCATED),
        ({"type": "boolean"}, b"null", ErrorCode.NULL),
        ({"type": "string"}, b'"a', ErrorCode.TRUNCATED),
        ({"type": "string"}, b'"a\\', ErrorCode.TRUNCATED),
        ({"type": "string"}, b'"a\n"', ErrorCode.SYNTAX),
        ({"type": "string"}, b'"\xed\xa0\x80"', ErrorCode.UTF8),
        ({"type": "string"}, b'"\\x"', ErrorCode.ESCAPE),
        ({"type": "string"}, b'"\\u12"', ErrorCode.ESCAPE),
        ({"type": "string"}, b'"\\ud800"', ErrorCode.ESCAPE),
        ({"type": "string"}, b'"\\ud800\\u0041"', ErrorCode.ESCAPE),
        ({"type": "string"}, b'"\\u0041\\udc00"', ErrorCode.ESCAPE),
        (DECIMAL, b"1234.5", ErrorCode.DECIMAL),
        (DECIMAL, b"0.001", ErrorCode.DECIMAL),
        (DECIMAL, b"1e99999", ErrorCode.DECIMAL),
        (BASE64, b'"A==="', ErrorCode.BASE64),
        (BASE64, b'"AAA"', ErrorCode.BASE64),
        (BASE64, b'"A-AA"', ErrorCode.BASE64),
        ({"type": "array", "items": {"type": "integer"}}, b"[1,]", ErrorCode.SYNTAX),
        ({"type": "array", "items": {"type": "integer"}}, b"[1 2]", ErrorCode.SYNTAX),
        ({"type": "array", "items": {"type": "integer"}}, b"[1", ErrorCode.TRUNCATED),
        (INT_MAP, b'{"a"}', ErrorCode.SYNTAX),
        (INT_MAP, b"{a:1}", ErrorCode.SYNTAX),
        ({}, b"[" * 300, ErrorCode.DEPTH),
        ({}, b"[1]]", ErrorCode.TRAILING),
        ({}, b'{"\\q":1}', ErrorCode.ESCAPE),
        ({"type": "object"}, b"[]", ErrorCode.TYPE),
        ({"type": ["string", "integer"]}, b"true", ErrorCode.TYPE),
        ({"type": "string"}, b'\xef\xbb\xbf"a"', ErrorCode.SYNTAX),
    ],
    ids=lambda value: str(value)[:40],
)
def test_damage_has_a_code(schema, text, code):
    rows, errors = decode(schema, text)
    assert rows == [None]
    assert [(e.row, e.code) for e in errors] == [(0, code)]
    assert 0 <= errors[0].position <= len(text)


@both_kernels
def test_a_damaged_row_is_null_and_the_others_are_not_affected():
    rows, errors = decode(
        ORDER, VALUE, VALUE[:-2], b'{"id":1,"amount":2,"tags":["x",null]}', b'{"id":1,"labels":{"a":1}}', None, VALUE
    )
    assert [row is None for row in rows] == [False, True, True, True, True, False]
    assert rows[0] == rows[5]
    assert rows[0]["note"] == {"member0": "n", "member1": None}
    assert [(e.row, e.code, e.path) for e in errors] == [
        (1, ErrorCode.TRUNCATED, "extra"),
        (2, ErrorCode.NULL, "tags[]"),
        (3, ErrorCode.REQUIRED, "amount"),
    ]
    assert str(errors[1]) == "row 2: field tags[] at byte 31: null in a field that is not nullable"


@both_kernels
def test_unknown_properties_are_ignored_and_the_last_of_equal_names_counts():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "integer"}}},
        "additionalProperties": False,
    }
    rows, errors = decode(schema, b'{"z":[{"a":9}],"b":[1,2],"\\u0061":1,"b":[3],"a":2}', b'{"b":[1],"b":null}', b"{}")
    assert rows == [{"a": 2, "b": [3]}, None, {"a": None, "b": None}]
    assert [(e.row, e.code) for e in errors] == [(1, ErrorCode.NULL)]


@both_kernels
def test_a_missing_property_gets_its_default_and_null_stays_null():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "default": 5},
            "b": {"type": ["string", "null"], "default": "x"},
            "c": {"type": "object", "properties": {"d": {"type": "number"}}, "default": {"d": 0.5}},
            "e": {"type": "integer", "default": "not an integer"},
        },
        "required": ["a"],
    }
    rows, errors = decode(schema, b"{}", b'{"b":null}')
    assert rows == [{"a": 5, "b": "x", "c": {"d": 0.5}, "e": None}, {"a": 5, "b": None, "c": {"d": 0.5}, "e": None}]
    assert not errors


@both_kernels
def test_columns_are_chosen_by_path_and_the_rest_is_checked_for_syntax_only():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "array", "items": {"type": "object", "properties": {"c": {"type": "string"}, "d": {}}}},
        },
        "required": ["a"],
    }
    rows, errors = decode(schema, b'{"a":"?","b":[{"d":1,"c":"x"}]}', b'{"b":[],"a":1e}', columns=["b.c"])
    assert rows == [{"b": [{"c": "x"}]}, None]
    assert [(e.row, e.code) for e in errors] == [(1, ErrorCode.SYNTAX)]
    with pytest.raises(SchemaError, match=r"no property b\.x in the JSON schema; it has c, d"):
        JsonDecoder(json.dumps(schema), columns=["b.x"])


@both_kernels
def test_values_are_read_with_another_schema():
    reader = {
        "type": "object",
        "properties": {
            "amount": {"type": ["integer", "string"]},
            "currency": {"type": "string", "default": "EUR"},
            "id": {"type": "number"},
        },
        "required": ["currency", "id"],
    }
    rows, errors = decode(ORDER, b'{"id":7,"amount":2}', b'{"id":7,"amount":2.5}', reader_schema=json.dumps(reader))
    assert rows == [{"amount": {"member0": 2, "member1": None}, "currency": "EUR", "id": 7.0}, None]
    assert [(e.code, e.path) for e in errors] == [(ErrorCode.INTEGER, "amount")]


def test_schemas_that_never_match_are_refused():
    reader = {"type": "object", "properties": {"id": {"type": "string"}}}
    with pytest.raises(SchemaError, match=r"property id: the writer's integer \(int64\) cannot be read as string"):
        JsonDecoder(json.dumps(ORDER), json.dumps(reader))
    closed = json.dumps(ORDER | {"additionalProperties": False})
    reader = {"type": "object", "properties": {"new": {}}, "required": ["new"]}
    with pytest.raises(SchemaError, match="property new is required by the reader's schema"):
        JsonDecoder(closed, json.dumps(reader))
    JsonDecoder(json.dumps(ORDER), json.dumps(reader))  # an open writer may have it


@both_kernels
def test_null_is_left_out_unless_the_type_allows_it():
    schema = {
        "type": "object",
        "properties": {
            "required": {"type": ["integer", "null"]},
            "optional": {"type": "integer"},
            "either": {"type": ["integer", "null"]},
        },
        "required": ["required"],
    }
    rows = [{"required": None, "optional": None, "either": None}, {"required": 1, "optional": 2, "either": 3}]
    encoded, errors = encode(schema, pa.array(rows))
    assert encoded == [b'{"required":null,"either":null}', b'{"required":1,"optional":2,"either":3}']
    assert not errors
    assert encode(schema, pa.array([{}], pa.struct([])))[0] == [b'{"required":null}']


@both_kernels
@pytest.mark.parametrize(
    ("schema", "array", "code"),
    [
        ({"type": "number"}, pa.array([math.nan]), ErrorCode.NUMBER),
        ({"type": "number"}, pa.array([-math.inf], pa.float32()), ErrorCode.NUMBER),
        ({"type": "integer", "connect.type": "int8"}, pa.array([128]), ErrorCode.INTEGER),
        ({"type": "integer"}, pa.array([2**63], pa.uint64()), ErrorCode.INTEGER),
        ({"type": "string"}, pa.array([b"\xff"]), ErrorCode.UTF8),
        (DECIMAL, pa.array([Decimal("1000.00")], pa.decimal128(9, 2)), ErrorCode.DECIMAL),
        ({}, pa.array(["[1"]), ErrorCode.TRUNCATED),
        ({}, pa.array(["1 2"]), ErrorCode.TRAILING),
        ({"type": "object"}, pa.array(["[]"]), ErrorCode.TYPE),
        ({"type": "array", "items": {"type": "integer"}}, pa.array([[1, None]]), ErrorCode.NULL),
        ({"type": ["integer", "string"]}, pa.array([{"member0": 1, "member1": "a"}]), ErrorCode.MEMBERS),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_value_that_does_not_fit_has_a_code(schema, array, code):
    encoded, errors = encode(schema, array)
    assert encoded == [None]
    assert [(e.row, e.code, e.position) for e in errors] == [(0, code, -1)]


@both_kernels
def test_other_arrow_types_of_the_same_meaning_are_encoded():
    timestamp = {"type": "integer", "title": f"{CONNECT}Timestamp", "connect.type": "int64"}
    cases = [
        ({"type": "string"}, pa.array(["a"]).dictionary_encode(), b'"a"'),
        ({"type": "string"}, pa.array(["é\x01"], pa.large_string()), '"é\\u0001"'.encode()),
        ({"type": "number"}, pa.array([3], pa.int16()), b"3"),
        ({"type": "number"}, pa.array([Decimal("-0.05")]), b"-0.05"),
        ({"type": "number"}, pa.array([0.1], pa.float32()), b"0.1"),
        (timestamp, pa.array([1_234_567], pa.timestamp("us", tz="UTC")), b"1234"),
        (timestamp, pa.array([-1], pa.timestamp("us", tz="UTC")), b"-1"),
        ({"type": ["integer", "string"]}, pa.array(["x"]), b'"x"'),
        (BASE64, pa.array([b"\x00\xff\xfe\x01"]), b'"AP/+AQ=="'),
        (
            {"type": "array", "items": {"type": "boolean"}},
            pa.array([[True, False]], pa.list_(pa.bool_(), 2)),
            b"[true,false]",
        ),
    ]
    for schema, array, expected in cases:
        assert encode(schema, array) == ([expected], []), schema


@both_kernels
def test_doubles_are_read_and_written_as_python_does():
    chance = random.Random(19)
    numbers = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(3000)]
    numbers += [chance.random() * 10 ** chance.randrange(-8, 20) for _ in range(1000)]
    numbers += [2.0**e for e in range(-1074, 1024, 7)] + [float(f"1e{e}") for e in range(-323, 309)]
    numbers = [number for number in numbers if math.isfinite(number)]
    encoded, errors = encode({"type": "number"}, pa.array(numbers))
    assert not errors
    assert encoded == [repr(number).encode() for number in numbers]
    texts = [f"{number:.{digits}e}" for number in numbers for digits in (16, 20, 30)]
    with localcontext(prec=1200):
        for number in numbers[:200]:  # halfway between two doubles, and close to it
            half = (Decimal(number) + Decimal(math.nextafter(number, 0))) / 2
            texts += [str(half), str(half.next_plus()), str(half.next_minus())]
    rows, errors = decode({"type": "number"}, *(text.encode() for text in texts))
    assert not errors
    assert [struct.pack("<d", row) for row in rows] == [struct.pack("<d", float(text)) for text in texts]


@both_kernels
def test_a_short_value_cannot_fill_the_columns_of_a_large_schema():
    items = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(2000)}}
    schema = {"type": "array", "items": items}
    rows, errors = decode(schema, b"[{}]", b"[" + b"{}," * 60 + b"{}]")
    assert len(rows[0][0]) == 2000
    assert rows[1] is None
    assert [(e.row, e.code) for e in errors] == [(1, ErrorCode.MISSING)]


@both_kernels
def test_repeated_keys_of_maps_in_maps_are_not_read_exponentially_often():
    schema: dict = {"type": "integer"}
    value = b"1"
    for _ in range(30):
        schema = {"type": "object", "additionalProperties": schema}
        value = b'{"a":{},"a":' + value + b"}" if value != b"1" else b'{"a":1,"a":1}'
    rows, errors = decode(schema, value)
    assert rows == [None]
    assert errors[0].code == ErrorCode.REPEATED


@both_kernels
def test_a_derived_schema_gives_the_type_back():
    data_type = pa.struct(
        [
            pa.field("a", pa.int8(), nullable=False),
            pa.field("b", pa.int32()),
            pa.field("c", pa.float32()),
            pa.field("d", pa.decimal128(9, 2)),
            pa.field("e", pa.timestamp("ms", tz="UTC")),
            pa.field("f", pa.date32()),
            pa.field("g", pa.list_(pa.field("item", pa.binary(), nullable=False))),
            pa.field("h", pa.map_(pa.string(), pa.struct([pa.field("x", pa.time32("ms"))]))),
            pa.field("i", pa.bool_()),
        ]
    )
    text = derive_schema(data_type, "Order")
    jsonschema.Draft7Validator.check_schema(json.loads(text))
    assert JsonDecoder(text).arrow_type == data_type
    with pytest.raises(SchemaError, match=r"no JSON type for Arrow type duration\[s\] \(value\.x\)"):
        derive_schema(pa.struct([("x", pa.duration("s"))]))


@both_kernels
def test_validation_checks_constraints_row_by_row():
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 1}, "at": {"type": "string", "format": "date"}},
        "additionalProperties": False,
    }
    values = [b'{"id":1,"at":"2026-01-01"}', b'{"id":0}', b'{"id":', b'{"x":1}', None, b'{"at":"soon"}']
    rows, errors = decode(schema, *values, validate=True)
    assert rows == [{"id": 1, "at": "2026-01-01"}, None, None, None, None, None]
    assert [(e.row, e.code, e.path) for e in errors] == [
        (1, ErrorCode.VALIDATION, "id"),
        (2, ErrorCode.TRUNCATED, "id"),
        (3, ErrorCode.VALIDATION, ""),
        (5, ErrorCode.VALIDATION, "at"),
    ]
    assert errors[0].text == "field id: 0 is less than the minimum of 1"
    encoded, errors = encode(schema, pa.array([{"id": 1}, {"id": 0}]), validate=True)
    assert encoded == [b'{"id":1}', None]
    assert [e.code for e in errors] == [ErrorCode.VALIDATION]


def test_validation_finds_references_among_those_given_and_never_fetches():
    text = json.dumps({"type": "array", "items": {"$ref": "item.json"}})
    references = {"item.json": json.dumps({"type": "integer", "maximum": 5})}
    decoder = JsonDecoder(text, references=references, validate=True)
    array, errors = decoder.decode(pa.array([b"[1,2]", b"[1,6]"]))
    assert array.to_pylist() == [[1, 2], None]
    assert [(e.row, e.path) for e in errors] == [(1, "1")]
    with pytest.raises(SchemaError, match="unknown \\$ref"):
        JsonDecoder(text, validate=True)


def test_validation_without_its_library_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(SchemaError, match=r"pip install 'headrace\[json\]'"):
        JsonDecoder("{}", validate=True)


@both_kernels
def test_values_of_confluents_serializer_are_decoded_and_ours_are_accepted():
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    registry = SchemaRegistryClient.new_client({"url": "mock://"})  # Confluent's own, in memory
    context = SerializationContext("orders", MessageField.VALUE)
    text = json.dumps(ORDER | {"title": "Order", "$schema": "http://json-schema.org/draft-07/schema#"})
    orders = [json.loads(VALUE), {"id": -1, "amount": 1e-7, "customer": 'é"\n', "tags": [], "note": 5}]
    serialize = JSONSerializer(text, registry)
    values = [serialize(order, context) for order in orders]
    decoder = JsonDecoder(text)
    array, errors = decoder.decode(pa.array(values), skip=5)
    assert not errors
    assert [row["customer"] for row in array.to_pylist()] == ["Ann", 'é"\n']
    encoded, errors = JsonEncoder(text, decoder.arrow_type).encode(array, prefix=values[0][:5])
    assert not errors
    deserialize = JSONDeserializer(text, schema_registry_client=registry)
    accepted = [deserialize(value, context) for value in encoded.to_pylist()]
    assert [_without_nulls(order) for order in accepted] == [_without_nulls(order) for order in orders]


def import_compiled():
    try:
        return importlib.import_module("headrace.schema._json.compiled")
    except ImportError:
        pytest.skip("the kernel is not compiled here")


def both_results(schema, values):
    plan = plan_decoding(schema)
    column = pa.array(values, pa.binary())
    results = []
    for module in (import_compiled(), reference):
        decoder = module.PlanDecoder(plan.nodes, plan.columns, plan.constants)
        buffers, errors = decoder.decode(bytes_column(column, "value"), len(values), 0)
        parts = [[None if part is None else bytes(part) for part in buffer[2:]] for buffer in buffers]
        results.append(([tuple(buffer[:2]) for buffer in buffers], parts, errors))
    return results


@settings(THOROUGH, max_examples=examples(120))
@given(st.data())
def test_both_kernels_agree_on_damaged_values(data):
    random_type: RandomType = data.draw(object_types())
    values = [
        json.dumps(value).encode() for value, _ in data.draw(st.lists(random_type.values, min_size=1, max_size=3))
    ]
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    compiled, python = both_results(
        parse_schema(random_type.text), [damaged(v, chance) for v in values for _ in range(30)]
    )
    assert compiled == python


PIECES = [b"{", b"[", b'"', b"\\u", b"\\ud83d\\ude00", b"null", b"1e5", b"-0.5", b"true", b","]


def damaged(value: bytes, chance: random.Random) -> bytes:
    """Cut a value, or replace, insert or copy a few of its bytes."""
    data = bytearray(value)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(5)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at : at + 1] = bytes([chance.choice(b'{}[]",:\\0123456789.eE+-nulltrefas \n\x00\x80\xc3\xff')])
        elif kind == 2:
            data[at:at] = chance.choice(
                [b"{", b"[", b'"', b"\\u", b"\\ud83d\\ude00", b"null", b"1e5", b"-0.5", b"true", b","]
            )
        elif kind == 3:
            del data[at : at + chance.randrange(1, 4)]
        else:
            start = chance.randrange(len(data) + 1)
            data[at:at] = data[start : start + chance.randrange(1, 12)]
    return bytes(data)


def test_the_numbers_of_the_layout_are_those_of_the_header():
    header = (Path(headrace.__file__).parent / "schema" / "_json" / "codec.h").read_text()
    enums = {"TOKEN": layout.Token, "OP": layout.Op, "ENCODE": layout.EncodeOp, "ON_NULL": layout.OnNull}
    for prefix, members in {**enums, "ERROR": layout.ErrorCode}.items():
        block = next(
            block for block in re.findall(r"enum \{(.*?)\}", header, re.DOTALL) if f" {prefix}_" in f" {block}"
        )
        names = re.findall(rf"\b{prefix}_(\w+)", block)
        assert names == [member.name for member in members]
        assert [member.value for member in members] == list(range(min(members), min(members) + len(names)))
    for name in ("SKIP_DEPTH_MAX", "NUMBER_CHARS_MAX", "MISSING_PER_BYTE_MAX", "REPEATED_PER_BYTE_MAX", "NULLABLE"):
        assert f"#define HR_{name} {getattr(layout, name)}\n" in header
    assert layout.MISSING_MAX == 1 << 16
    assert "#define HR_MISSING_MAX (1 << 16)\n" in header
