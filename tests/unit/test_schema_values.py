"""Single Python values with schemas: the same bytes as in a column of one row, and as other libraries write."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import json
import random
import types
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import SchemaError
from headrace.schema._protobuf.layout import varint
from headrace.schema.codec import ParsedSchema
from headrace.schema.formats import parse
from headrace.schema.types import CompleteSchema, Schema, SchemaFormat
from headrace.schema.values import encode_varint
from tests.support.avro_types import RandomType, fastavro_bytes, record_types
from tests.support.examples import examples
from tests.support.json_types import object_types
from tests.support.protobuf_types import arrow_value, fill, random_schema

both_kernels = pytest.mark.both_kernels
RANDOM = settings(
    max_examples=examples(40),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
UTC = datetime.UTC
MOMENT = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
EARLY = datetime.datetime(1960, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def parsed(text: object, format: SchemaFormat = SchemaFormat.AVRO) -> ParsedSchema:
    return parse(CompleteSchema(Schema(text if isinstance(text, str) else json.dumps(text), format)))


def avro(schema):
    return parsed(json.dumps(schema)).value_encoder()


def json_schema(schema):
    return parsed(schema, SchemaFormat.JSON).value_encoder()


def proto(fields, syntax="proto3", more=""):
    names = ("timestamp", "duration", "wrappers")
    imports = "".join(f'import "google/protobuf/{name}.proto";' for name in names)
    text = f'syntax = "{syntax}"; {imports} message M {{ {fields} }} {more}'
    return parsed(text, SchemaFormat.PROTOBUF).value_encoder()


def in_a_column(schema: ParsedSchema, value: object, message: str | None = None) -> bytes:
    """Return the bytes that the encoder of columns gives a value in a column of one row."""
    column = pa.array([value], schema.arrow_type(message=message))
    encoded, errors = schema.encoder(column.type, message).encode(column)
    assert not errors
    data: bytes = encoded[0].as_py()
    return data


# -- random schemas --------------------------------------------------------------------------------


@both_kernels
@RANDOM
@given(st.data())
def test_avro_bytes_equal_those_of_columns_and_of_fastavro(data):
    random_type: RandomType = data.draw(record_types())
    schema = parsed(random_type.text)
    encode = schema.value_encoder()
    for value, arrow in data.draw(st.lists(random_type.values, max_size=3)):
        expected = fastavro_bytes(random_type.schema, value)
        assert encode(value) == expected
        assert encode(arrow) == expected == in_a_column(schema, arrow)


@both_kernels
@pytest.mark.parametrize("seed", range(30))
def test_protobuf_bytes_equal_those_of_columns_and_of_google(seed):
    chance = random.Random(seed)
    random_type = random_schema(chance)
    name = random_type.message_type.DESCRIPTOR.full_name
    schema = parsed(random_type.text, SchemaFormat.PROTOBUF)
    encode = schema.value_encoder(name)
    for _ in range(4):
        message = fill(random_type.message_type(), chance)
        value = arrow_value(message)
        encoded = encode(value)
        assert encoded == in_a_column(schema, value, name)
        assert random_type.message_type.FromString(encoded) == message


@both_kernels
@RANDOM
@given(st.data())
def test_json_bytes_equal_those_of_columns_with_the_meaning_of_json(data):
    random_type = data.draw(object_types())
    schema = parsed(random_type.text, SchemaFormat.JSON)
    encode = schema.value_encoder()
    for value, arrow in data.draw(st.lists(random_type.values, max_size=3)):
        encoded = encode(arrow)
        assert encoded == in_a_column(schema, arrow)
        assert without_nulls(json.loads(encoded)) == without_nulls(json.loads(json.dumps(value)))


def without_nulls(value: object) -> object:
    """Return a JSON value without properties that are null: for a missing one, a column has null."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def test_varints_of_all_lengths_equal_those_of_the_kernels():
    numbers = [number for shift in range(64) for number in ((1 << shift) - 1, 1 << shift, (1 << shift) + 1)]
    assert [encode_varint(number) for number in numbers] == [varint(number) for number in numbers]
    assert encode_varint(2**64 - 1) == varint(2**64 - 1)


# -- Avro ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "value", "as_fastavro"),
    [
        ("int", np.int16(-7), -7),
        ("long", 5.0, 5),
        ("long", Decimal(12), 12),
        ("double", 3, 3.0),
        ("float", np.float32(0.5), 0.5),
        ("boolean", np.bool_(True), True),
        ("string", b"text", "text"),
        ("string", uuid.UUID(int=7), str(uuid.UUID(int=7))),
        ("bytes", "text", b"text"),
        ("bytes", bytearray(b"\xff"), b"\xff"),
        ({"type": "fixed", "name": "F", "size": 16}, uuid.UUID(int=7), uuid.UUID(int=7).bytes),
        ({"type": "array", "items": "int"}, np.array([1, 2]), [1, 2]),
        ({"type": "array", "items": "int"}, (1, 2), [1, 2]),
        ({"type": "map", "values": "int"}, [("a", 1), ("b", 2)], {"a": 1, "b": 2}),
        ({"type": "long", "logicalType": "timestamp-millis"}, EARLY, EARLY.replace(microsecond=678000)),
        ({"type": "long", "logicalType": "timestamp-millis"}, MOMENT.replace(tzinfo=None), MOMENT),
        ({"type": "long", "logicalType": "timestamp-micros"}, 1234, 1234),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            MOMENT.astimezone(datetime.timezone(datetime.timedelta(hours=5))),
            MOMENT,
        ),
        ({"type": "int", "logicalType": "date"}, MOMENT, MOMENT.date()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, 5, Decimal("5.00")),
        ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, Decimal("1E+3"), Decimal("1000.00")),
        ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, Decimal("1.500"), Decimal("1.50")),
    ],
    ids=str,
)
def test_avro_takes_values_that_lose_nothing(schema, value, as_fastavro):
    assert avro(schema)(value) == fastavro_bytes(schema, as_fastavro)


def test_avro_keeps_the_nanoseconds_of_pandas():
    pd = pytest.importorskip("pandas")
    encode = avro({"type": "long", "logicalType": "timestamp-nanos"})
    assert encode(pd.Timestamp(1_234_567_891, tz="UTC")) == fastavro_bytes("long", 1_234_567_891)


UNION = [
    "null",
    "boolean",
    "int",
    "long",
    "double",
    "string",
    "bytes",
    {"type": "array", "items": "int"},
    {"type": "record", "name": "shop.A", "fields": [{"name": "a", "type": "int"}]},
    {"type": "record", "name": "shop.B", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]},
]


@pytest.mark.parametrize(
    "value",
    [None, True, 1, 2**40, 1.5, "x", b"x", [1], {"a": 1}, {"a": 1, "b": "x"}, ("shop.B", {"a": 1, "b": "x"})],
    ids=str,
)
def test_an_avro_union_takes_the_branch_of_fastavro_by_the_type_of_the_value(value):
    assert avro(UNION)(value) == fastavro_bytes(UNION, value)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"member3": 1.0}, ("double", 1.0)),
        ({"member0": None, "member4": "x"}, ("string", "x")),
        (("B", {"a": 1, "b": "x"}), ("shop.B", {"a": 1, "b": "x"})),
        (("long", 1), ("long", 1)),
    ],
    ids=str,
)
def test_an_avro_union_takes_a_chosen_branch(value, named):
    assert avro(UNION)(value) == fastavro_bytes(UNION, named)


def test_a_logical_branch_of_a_union_takes_its_own_type_first():
    schema = ["string", {"type": "int", "logicalType": "date"}, {"type": "long", "logicalType": "timestamp-millis"}]
    for value in (MOMENT.date(), MOMENT.replace(microsecond=0), "x"):
        assert avro(schema)(value) == fastavro_bytes(schema, value)


NESTED = {
    "type": "record",
    "name": "Outer",
    "fields": [
        {"name": "id", "type": "int"},
        {
            "name": "inner",
            "type": {
                "type": "record",
                "name": "Inner",
                "fields": [
                    {"name": "currency", "type": "string", "default": "EUR"},
                    {"name": "note", "type": ["null", "string"]},
                    {"name": "count", "type": "int"},
                ],
            },
        },
        {"name": "rate", "type": ["double", "null"], "default": 1.5},
    ],
}


def test_avro_fields_that_are_left_out_get_defaults_at_every_level():
    full = {"id": 1, "inner": {"currency": "EUR", "note": None, "count": 2}, "rate": 1.5}
    assert avro(NESTED)({"id": 1, "inner": {"count": 2}}) == fastavro_bytes(NESTED, full)


Inner = collections.namedtuple("Inner", ["currency", "note", "count"])


@dataclasses.dataclass
class Outer:
    id: int
    inner: object
    rate: float | None


def test_records_may_be_mappings_dataclasses_and_named_tuples():
    full = {"id": 1, "inner": {"currency": "USD", "note": "n", "count": 2}, "rate": None}
    encode = avro(NESTED)
    assert encode(Outer(1, Inner("USD", "n", 2), None)) == fastavro_bytes(NESTED, full)
    assert encode(types.MappingProxyType(full)) == fastavro_bytes(NESTED, full)


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (NESTED, {"id": 1, "inner": {"count": "x"}}, r"^field inner\.count: expected an integer, got str$"),
        (NESTED, {"id": 1, "inner": {}}, r"^field inner\.count: no value, and the Avro schema has no default; add"),
        (NESTED, {"id": None, "inner": {"count": 1}}, r"^field id: null in a field that is not nullable$"),
        (
            NESTED,
            {"id": 1, "inner": {"cuont": 1, "count": 1}},
            r"^field inner: no field 'cuont' in the schema, only cu",
        ),
        (NESTED, {"id": 2**31, "inner": {"count": 1}}, r"^field id: an integer is out of range$"),
        (NESTED, {"id": 1, "inner": None}, r"^field inner: null in a field"),
        (NESTED, "text", r"^value: expected record Outer as a dict, a mapping or a dataclass, got str$"),
        ("int", True, "expected an integer, got bool"),
        ("int", 1.5, "expected an integer, got float"),
        ("int", Decimal("1E+999999"), "expected an integer, got Decimal"),
        ("long", 2**63, "an integer is out of range"),
        ("double", 2**53 + 1, "is not exact as a floating-point number"),
        ("double", True, "expected a number, got bool"),
        ("float", 1e300, "out of the range of a float"),
        ("boolean", 1, "expected a bool, got int"),
        ("string", 1, "expected a str, got int"),
        ("string", b"\xff", "a string is not UTF-8"),
        ("string", "\ud800", "a string is not UTF-8"),
        ("null", 1, "expected None, got int"),
        ({"type": "array", "items": "int"}, "ab", "expected a list, got str"),
        ({"type": "array", "items": "int"}, [1, None], r"field \[\]: null"),
        ({"type": "map", "values": "int"}, [1], "invalid entry of a map: expected a pair"),
        ({"type": "map", "values": "int"}, {1: 2}, r"field \{\}: expected a str, got int"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "C", "has no such symbol, only A, B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"abc", r"not as many as the fixed type has \(2\)"),
        (DECIMAL, Decimal("1.234"), r"more digits than decimal\(4, 2\) holds; round it"),
        (DECIMAL, Decimal("100"), "more digits"),
        (DECIMAL, 100, "more digits"),
        (DECIMAL, Decimal("1E+999999"), "more digits"),
        (DECIMAL, Decimal("1E-999999"), "more digits"),
        (DECIMAL, Decimal("NaN"), "more digits"),
        (DECIMAL, 1.5, "expected a Decimal, got float"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "2024", "expected a datetime, got str"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, MOMENT.replace(year=2500), "an integer is out of range"),
        ({"type": "int", "logicalType": "time-millis"}, MOMENT, "expected a time, got datetime"),
        (["int", "string"], 1.5, "expected a value of a branch of the union of int, string, or"),
        (["int", "string"], None, "null in a field that is not nullable"),
        (["int", "string"], {"member0": 1, "member1": "x"}, "several members of a union have a value"),
    ],
    ids=str,
)
def test_avro_values_that_do_not_fit_are_named(schema, value, message):
    with pytest.raises(SchemaError, match=message):
        avro(schema)(value)


# -- Protobuf --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "value", "expected"),
    [
        ("int32 a = 1;", {}, b""),
        ("int32 a = 1;", {"a": 0}, b""),
        ("optional int32 a = 1;", {"a": 0}, b"\x08\x00"),
        ("uint64 a = 1;", {"a": 2**64 - 1}, b"\x08" + b"\xff" * 9 + b"\x01"),
        ("E a = 1;", {"a": 1}, b"\x08\x01"),
        ("E a = 1;", {"a": "ONE"}, b"\x08\x01"),
        ("E a = 1;", {"a": "7"}, b"\x08\x07"),
        ("repeated int32 a = 1;", {"a": range(3)}, b"\x0a\x03\x00\x01\x02"),
        ("map<string, int32> a = 1;", {"a": [("k", 0)]}, b"\x0a\x05\x0a\x01k\x10\x00"),
        ("google.protobuf.Int32Value a = 1;", {"a": 0}, b"\x0a\x00"),
        ("google.protobuf.Duration a = 1;", {"a": datetime.timedelta(0)}, b"\x0a\x00"),
    ],
    ids=str,
)
def test_protobuf_takes_values_as_google_writes_them(fields, value, expected):
    assert proto(fields, more="enum E { ZERO = 0; ONE = 1; }")(value) == expected


@pytest.mark.parametrize(
    ("fields", "value", "message"),
    [
        ("int32 a = 1;", {"a": "x"}, r"^field a: expected an integer, got str$"),
        ("int32 a = 1;", {"b": 1}, r"^value: no field 'b' in the schema, only a; remove it"),
        ("uint32 a = 1;", {"a": -1}, r"^field a: an integer is out of range$"),
        ("repeated int32 a = 1;", {"a": [None]}, r"^field a: null in a required field, or in a list or map$"),
        ("repeated string a = 1;", {"a": [None]}, r"^field a: null in a required field"),
        ("map<string, int32> a = 1;", {"a": {"k": None}}, r"^field a: null in a required field"),
        ("oneof o { int32 a = 1; string b = 2; }", {"a": 1, "b": "x"}, r"^field o: several fields of a oneof"),
        ("E a = 1;", {"a": "THREE"}, r"^field a: the enum has no such value, only ZERO, ONE$"),
        ("float a = 1;", {"a": 1e300}, "out of the range of a float"),
        ("google.protobuf.Timestamp a = 1;", {"a": "now"}, "expected a datetime, got str"),
        ("google.protobuf.Timestamp a = 1;", {"a": 2**63}, "a time is out of the range of microseconds"),
        ("I a = 1;", {"a": {"x": "y"}}, r"^field a\.x: expected an integer, got str$"),
        ("I a = 1;", {"a": 5}, r"^field a: expected message I as a dict"),
    ],
    ids=str,
)
def test_protobuf_values_that_do_not_fit_are_named(fields, value, message):
    with pytest.raises(SchemaError, match=message):
        proto(fields, more="enum E { ZERO = 0; ONE = 1; } message I { int32 x = 1; }")(value)


@pytest.mark.parametrize("value", [{}, {"a": None}])
def test_a_required_field_of_protobuf_needs_a_value(value):
    with pytest.raises(SchemaError, match=r"^field a: (no value, and the field is required|null in a required field)"):
        proto("required int32 a = 1;", "proto2")(value)


def test_a_protobuf_message_that_contains_itself_is_refused():
    with pytest.raises(SchemaError, match="contains itself"):
        proto("M m = 1;")


# -- JSON ------------------------------------------------------------------------------------------

ANY_OBJECT = {"type": "object", "properties": {"any": {}, "note": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}}
DEFAULTS = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "in": {
            "type": "object",
            "properties": {
                "a": {"type": "string", "default": "x"},
                "b": {"type": ["string", "null"]},
                "c": {"type": "string"},
            },
            "required": ["a", "b"],
        },
    },
    "required": ["id"],
}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (DEFAULTS, {"id": 1}, b'{"id":1}'),
        (DEFAULTS, {"in": {}, "id": 1}, b'{"id":1,"in":{"a":"x","b":null}}'),
        (DEFAULTS, {"id": 1, "in": {"c": None}}, b'{"id":1,"in":{"a":"x","b":null}}'),
        (ANY_OBJECT, {"any": {"k": [1, None, "é"]}}, '{"any":{"k":[1,null,"é"]}}'.encode()),
        (ANY_OBJECT, {"any": ' {"k": 1} '}, b'{"any":{"k": 1}}'),
        (ANY_OBJECT, {"note": "n"}, b'{"note":"n"}'),
        (ANY_OBJECT, {"note": np.int64(3)}, b'{"note":3}'),
        (ANY_OBJECT, {"note": {"member1": 3}}, b'{"note":3}'),
        ({"type": "number"}, 2, b"2.0"),
        ({"type": "number", "connect.type": "float32"}, 0.1, b"0.1"),
    ],
    ids=str,
)
def test_json_is_written_by_the_schema(schema, value, expected):
    assert json_schema(schema)(value) == expected


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (DEFAULTS, {"id": "x"}, r"^field id: expected an integer, got str$"),
        (DEFAULTS, {}, r"^field id: no value, the property is required and has no default; add it$"),
        (DEFAULTS, {"id": None}, r"^field id: null in a field that is not nullable$"),
        (DEFAULTS, {"id": 2**63}, r"^field id: not an integer, or out of range$"),
        (DEFAULTS, {"id": 1, "x": 2}, r"^value: no field 'x' in the schema, only id, in; remove it"),
        (DEFAULTS, {"id": 1, "in": {"a": "\ud800"}}, r"^field in\.a: a string is not UTF-8$"),
        (ANY_OBJECT, {"any": {1, 2}}, r"^field any: not JSON: Object of type set"),
        (ANY_OBJECT, {"any": {"x": float("nan")}}, r"^field any: not JSON: "),
        (ANY_OBJECT, {"any": "text"}, r"^field any: not JSON$"),
        (ANY_OBJECT, {"note": 1.5}, r"^field note: expected an integer, got float$"),
        (ANY_OBJECT, {"note": [1]}, r"^field note: expected union of string, integer \(int64\), got list$"),
        ({"type": "number"}, float("inf"), "out of range, or not finite"),
        ({"type": "number"}, "1", "expected a number, got str"),
    ],
    ids=str,
)
def test_json_values_that_do_not_fit_are_named(schema, value, message):
    with pytest.raises(SchemaError, match=message):
        json_schema(schema)(value)


def test_a_deep_value_without_a_shape_is_refused():
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(SchemaError, match=r"^field any: (not JSON|nested deeper)"):
        json_schema(ANY_OBJECT)({"any": value})
