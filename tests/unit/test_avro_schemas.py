"""Avro schemas: what is parsed and refused, Arrow types, limits; and evolution, compared with fastavro.

fastavro deviates from the specification in these points, which the comparisons leave out:

- A default of bytes, fixed or a logical type is returned as the text or number of the JSON, not as a value.
- The first branch of the reader's union that matches is taken, also by promotion; headrace prefers the writer's type.
- Writer's and reader's logical types are not compared: the writer's is used.
- A decimal like -1.28 is written in two bytes where one is enough (`tests/support/avro_types.py`).
"""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings

from headrace.errors import SchemaError
from headrace.schema.avro import AvroDecoder, ErrorCode, arrow_type, parse_schema
from headrace.schema.avro_resolution import NODES_MAX
from headrace.schema.avro_schema import DEPTH_MAX
from tests.support.avro_types import changed_records, fastavro_bytes, fastavro_value
from tests.support.examples import examples

both_kernels = pytest.mark.both_kernels


def record(*fields, name="R", **more):
    return {
        "type": "record",
        "name": name,
        "fields": [dict(zip(("name", "type", "default"), f, strict=False)) for f in fields],
    } | more


def decode(writer, reader, *values, columns=None):
    decoder = AvroDecoder(json.dumps(writer), json.dumps(reader), columns)
    array, errors = decoder.decode(pa.array(values, pa.binary()))
    array.validate(full=True)
    assert array.type == decoder.arrow_type
    return array.to_pylist(), errors


def test_types_become_arrow_types():
    decimal = {"type": "bytes", "logicalType": "decimal"}
    schema = record(
        ("a", "long"),
        ("b", ["null", "string"]),
        ("c", ["string", "null", "int"]),
        ("d", decimal | {"precision": 38, "scale": 4}),
        ("e", decimal | {"precision": 39}),
        ("f", {"type": "map", "values": ["null", "int"]}),
        ("g", {"type": "enum", "name": "E", "symbols": ["A"]}),
        ("h", {"type": "long", "logicalType": "timestamp-micros"}),
        ("i", {"type": "fixed", "name": "F", "size": 3}),
        ("j", record(("x", "F"), name="Inner")),
        ("k", {"type": "array", "items": "Inner"}),
        ("l", {"type": "string", "logicalType": "uuid"}),
    )
    inner = pa.struct([pa.field("x", pa.binary(3), nullable=False)])
    expected = pa.struct(
        [
            pa.field("a", pa.int64(), nullable=False),
            pa.field("b", pa.string()),
            pa.field("c", pa.struct([("member0", pa.string()), ("member1", pa.int32())])),
            pa.field("d", pa.decimal128(38, 4), nullable=False),
            pa.field("e", pa.decimal256(39, 0), nullable=False),
            pa.field("f", pa.map_(pa.string(), pa.int32()), nullable=False),
            pa.field("g", pa.string(), nullable=False),
            pa.field("h", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("i", pa.binary(3), nullable=False),
            pa.field("j", inner, nullable=False),
            pa.field("k", pa.list_(pa.field("item", inner, nullable=False)), nullable=False),
            pa.field("l", pa.string(), nullable=False),
        ]
    )
    assert arrow_type(parse_schema(json.dumps(schema))) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "int", "logicalType": "timestamp-millis"},
        {"type": "int", "logicalType": "unheard-of"},
        {"type": "int", "logicalType": 5},
        {"type": {"type": "int"}},
    ],
    ids=str,
)
def test_an_invalid_logical_type_is_ignored(schema):
    assert arrow_type(parse_schema(json.dumps(schema))) == pa.int32()
    wide = {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 3}
    assert arrow_type(parse_schema(json.dumps(wide))) == pa.binary(1)


def test_names_are_resolved_in_namespaces_and_references():
    address = json.dumps(record(("street", "string"), name="Address", namespace="shop"))
    schema = record(("home", "shop.Address"), ("work", ["null", "Address"]), name="shop.Customer")
    parsed = arrow_type(parse_schema(json.dumps(schema), [address]))
    assert parsed.field("home").type == parsed.field("work").type
    with pytest.raises(SchemaError, match=r"unknown Avro type 'shop.Address': define it .* or add .* as a reference"):
        parse_schema(json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("integer", "unknown Avro type 'integer'"),
        (5, "expected a name, an object or a list"),
        ({"name": "R"}, "an object without a type"),
        ([], "expected 1 to 1,000 branches, got 0"),
        ([record(name=f"R{i}") for i in range(1001)], "expected 1 to 1,000 branches, got 1,001"),
        (["int", "int"], "it has int twice"),
        (["int", ["null"]], "contains a union directly"),
        (record(("1a", "int")), "invalid field name '1a'"),
        (record(("a", "int"), ("a", "int")), "the field a twice"),
        (record(name="a b"), "invalid name 'a b'"),
        (record(name="int"), "the name of a primitive"),
        (record(namespace="a..b"), "invalid namespace 'a..b'"),
        (record(("a", record(name="R"))), "R is defined twice"),
        (record(("next", ["null", "R"])), "R contains itself: Arrow has no recursive type"),
        ({"type": "enum", "name": "E", "symbols": []}, "at least one"),
        ({"type": "enum", "name": "E", "symbols": ["a-b"]}, "invalid symbol 'a-b'"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "its default 'B'"),
        ({"type": "fixed", "name": "F", "size": -1}, "invalid size -1"),
        ({"type": "array"}, "array has no 'items'"),
    ],
    ids=lambda part: str(part)[:50],
)
def test_an_invalid_schema_is_a_named_error(schema, words):
    with pytest.raises(SchemaError, match=words):
        parse_schema(json.dumps(schema))


def test_text_that_is_not_json_is_a_named_error():
    with pytest.raises(SchemaError, match="not JSON"):
        parse_schema("string")


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 5_000, 100_000])
def test_a_schema_that_is_too_deep_is_a_named_error(depth):
    text = '{"type":"array","items":' * depth + '"int"' + "}" * depth
    with pytest.raises(SchemaError, match="nested deeper than 100 levels"):
        parse_schema(text)


def test_depth_is_counted_through_named_types():
    texts = [json.dumps(record(("a", "int"), name="T0"))]
    texts += [json.dumps(record(("a", f"T{i}"), name=f"T{i + 1}")) for i in range(DEPTH_MAX + 5)]
    with pytest.raises(SchemaError, match="nested deeper than 100 levels"):
        parse_schema('"int"', texts)


def test_a_schema_that_explodes_is_a_named_error():
    texts = [json.dumps(record(("a", "int"), name="T0"))]
    texts += [json.dumps(record(("a", f"T{i}"), ("b", f"T{i}"), name=f"T{i + 1}")) for i in range(60)]
    with pytest.raises(SchemaError, match="more than 20,000 types after expansion"):
        parse_schema('"int"', texts)


def test_a_plan_that_explodes_is_a_named_error():
    names = [f"A{i}" for i in range(200)]
    branches = [record(("x", "int"), name=name) for name in names]
    big = record(*[(f"f{i}", "int", 0) for i in range(1000)], name="Big")
    reader = record(("x", "int"), ("big", big, {}), name="A", aliases=names)
    with pytest.raises(SchemaError, match=f"more than {NODES_MAX:,} steps"):
        AvroDecoder(json.dumps(branches), json.dumps(reader))


@both_kernels
@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(changed_records())
def test_a_changed_record_is_read_as_fastavro_reads_it(changed):
    writer, reader, values = changed
    encoded = fastavro_bytes(writer, values)
    expected = fastavro_value(encoded, writer, reader)
    rows, errors = decode(writer, reader, encoded)
    assert not errors
    # fastavro promotes to a float of Python, which has the precision of a double.
    for field in reader["fields"]:
        if field["type"] == "float":
            rows[0][field["name"]] = pytest.approx(rows[0][field["name"]], rel=1e-7)
    assert rows == [expected]


@both_kernels
def test_defaults_of_all_types_fill_fields_that_the_writer_does_not_have():
    inner = record(("x", "int", 4), ("y", "string"), name="Inner")
    added = [
        ("n", "null", None),
        ("b", "bytes", "\u00ff\u0001"),
        ("f", {"type": "fixed", "name": "F", "size": 2}, "ab"),
        ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        ("d", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0001\u0000"),
        ("r", inner, {"y": "t"}),
        ("l", {"type": "array", "items": "int"}, [1, 2]),
        ("m", {"type": "map", "values": "long"}, {"k": 1}),
        ("u", ["null", "int"], None),
        ("v", ["int", "string"], 3),
    ]
    rows, errors = decode(record(("a", "int")), record(("a", "int"), *added), b"\x02", b"\x04")
    assert not errors
    values = {
        "n": None, "b": b"\xff\x01", "f": b"ab", "e": "B", "r": {"x": 4, "y": "t"}, "l": [1, 2], "m": [("k", 1)],
        "u": None, "v": {"member0": 3, "member1": None},
    }  # fmt: skip
    assert [row.pop("d") for row in rows] == [Decimal("2.56")] * 2
    assert rows == [{"a": 1} | values, {"a": 2} | values]


@both_kernels
def test_enums_unions_and_nulls_are_resolved_for_each_value():
    def enum(*symbols, **more):
        return {"type": "enum", "name": "E", "symbols": list(symbols)} | more

    assert decode(enum("A", "B"), enum("B", "A"), b"\0", b"\x02")[0] == ["A", "B"]
    assert decode(enum("A", "B"), enum("A", "Z", default="Z"), b"\0", b"\x02")[0] == ["A", "Z"]
    rows, errors = decode(enum("A", "B"), enum("A"), b"\0", b"\x02")
    assert (rows, errors[0].code) == (["A", None], ErrorCode.UNRESOLVED)
    rows, errors = decode(["null", "int"], "long", b"\x02\x0a", b"\x00")
    assert (rows, errors[0].code) == ([5, None], ErrorCode.UNRESOLVED)
    rows, _ = decode(["int", "string", "boolean"], ["null", "string", "long"], b"\0\x0a", b"\x02\x02a")
    assert rows == [{"member0": None, "member1": 5}, {"member0": "a", "member1": None}]
    # The writer's own type is preferred to one that comes first.
    assert decode("int", ["long", "int"], b"\x0a")[0] == [{"member0": None, "member1": 5}]
    # Branches with the same unqualified name are kept apart.
    union = [record(("a", "int"), name="x.R"), record(("a", "int"), name="y.R")]
    assert decode(union, union, b"\x02\x0a")[0] == [{"member0": None, "member1": {"a": 5}}]


@pytest.mark.parametrize(
    ("writer", "reader", "words"),
    [
        ("string", "int", "writer's string cannot be read as int"),
        ("long", "int", "these types do not match"),
        (record(("a", "int")), record(("b", "int")), "field b of the reader's schema is not in the writer's"),
        (record(("a", "int")), record(("a", "string")), "field a: the writer's int"),
        (record(name="A"), record(name="B"), "add the alias A to the reader's"),
        (["null", "int"], ["null", "string"], "no branch of the reader's matches"),
        ({"type": "fixed", "name": "F", "size": 1}, {"type": "fixed", "name": "F", "size": 2}, "sizes differ"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            {"type": "long", "logicalType": "timestamp-micros"},
            "the bytes would mean other times",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            "precision and scale must be equal",
        ),
        (record(), record(("a", "int", "text")), "invalid default 'text'"),
        (record(), record(("a", ["null", "int"], "text")), "invalid default 'text'"),
    ],
    ids=str,
)
def test_schemas_that_never_match_are_a_named_error(writer, reader, words):
    with pytest.raises(SchemaError, match=words):
        AvroDecoder(json.dumps(writer), json.dumps(reader))


@both_kernels
def test_only_chosen_fields_are_decoded():
    line = record(("sku", "string"), ("price", "double"), name="Line")
    schema = record(
        ("id", "long"),
        ("note", ["null", "string", "bytes"]),
        ("lines", {"type": "array", "items": line}),
        ("more", {"type": "map", "values": {"type": "fixed", "name": "F", "size": 2}}),
        ("address", ["null", record(("city", "string"), ("zip", "int"), name="Address")]),
    )
    value = {
        "id": 3, "note": "n", "lines": [{"sku": "a", "price": 1.0}, {"sku": "b", "price": 2.0}],
        "more": {"k": b"xy"}, "address": {"city": "Ulm", "zip": 7},
    }  # fmt: skip
    encoded = fastavro_bytes(schema, value)
    rows, errors = decode(schema, schema, encoded, encoded[:-1], columns=["address.zip", "lines.price"])
    assert rows == [{"lines": [{"price": 1.0}, {"price": 2.0}], "address": {"zip": 7}}, None]
    assert len(errors) == 1
    assert decode(schema, schema, encoded, columns=["id"])[0] == [{"id": 3}]
    assert decode(schema, schema, encoded, columns=[])[0] == [{}]
    with pytest.raises(SchemaError, match=r"no field lines.prize in Avro record Line; it has price, sku"):
        AvroDecoder(json.dumps(schema), columns=["lines.prize"])
    with pytest.raises(SchemaError, match=r"note is union .* choose note as a whole"):
        AvroDecoder(json.dumps(schema), columns=["note.a"])
