"""Avro to Arrow and back, compared with fastavro on random schemas and values; errors of rows; damaged bytes."""

from __future__ import annotations

import datetime
import importlib
import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import SchemaError
from headrace.schema._avro import layout, reference
from headrace.schema._plan import layout as plan_layout
from headrace.schema.avro import AvroDecoder, AvroEncoder, ErrorCode, derive_schema, parse_schema
from headrace.schema.avro_resolution import project, resolve
from headrace.schema.avro_schema import RecordType
from headrace.wire.columns import bytes_column
from tests.support.avro_types import RandomType, fastavro_bytes, record_types
from tests.support.damage import mutated
from tests.support.examples import examples

both_kernels = pytest.mark.both_kernels
THOROUGH = settings(
    max_examples=examples(150),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "customer", "type": ["null", "string"]},
            {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
)
VALUE = {"id": 7, "customer": "Ann", "amount": Decimal("12.34"), "state": "PAID", "tags": ["a", "b"]}


def order(**changes) -> bytes:
    return fastavro_bytes(json.loads(ORDER), VALUE | changes)


def decode(schema, *values, **options):
    array, errors = AvroDecoder(json.dumps(schema), **options).decode(pa.array(values, pa.binary()))
    array.validate(full=True)
    return array.to_pylist(), errors


@both_kernels
@THOROUGH
@given(st.data())
def test_values_of_fastavro_are_decoded_and_encoded_to_the_same_bytes(data):
    random_type: RandomType = data.draw(record_types())
    pairs = data.draw(st.lists(random_type.values, max_size=4))
    encoded = [fastavro_bytes(random_type.schema, value) for value, _ in pairs]
    decoder = AvroDecoder(random_type.text)
    array, errors = decoder.decode(pa.array([b"\0" * 5 + value for value in encoded] + [None], pa.binary()), skip=5)
    array.validate(full=True)
    assert not errors
    assert array.type == decoder.arrow_type
    assert array.to_pylist() == [*(expected for _, expected in pairs), None]

    encoder = AvroEncoder(random_type.text, decoder.arrow_type)
    again, errors = encoder.encode(array, prefix=b"id")
    again.validate(full=True)
    assert not errors
    assert again.to_pylist() == [*(b"id" + value for value in encoded), None]
    assert encoder.encode(array.slice(1))[0].to_pylist() == [*encoded, None][1:]


@both_kernels
@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ("string", "text", "text"),
        ("long", -5, -5),
        (["null", "int"], None, None),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
        ({"type": "map", "values": "boolean"}, {"a": True}, [("a", True)]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ("null", None, None),
    ],
    ids=str,
)
def test_a_schema_that_is_not_a_record_gives_a_column_of_its_type(schema, value, expected):
    encoded = fastavro_bytes(schema, value)
    values, errors = decode(schema, encoded)
    assert (values, errors) == ([expected], [])
    text = json.dumps(schema)
    array = pa.array([expected], AvroDecoder(text).arrow_type)
    rows, _ = AvroEncoder(text, array.type).encode(array)
    # A row that is null stays null, as a tombstone.
    assert rows.to_pylist() == [encoded if expected is not None or schema == "null" else None]


@both_kernels
def test_nanoseconds_and_durations_are_decoded():
    nanos = {"type": "long", "logicalType": "timestamp-nanos"}
    local = {"type": "long", "logicalType": "local-timestamp-nanos"}
    duration = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    array, _ = AvroDecoder(json.dumps(nanos)).decode(pa.array([fastavro_bytes("long", 1_234_567_891)]))
    assert array.cast(pa.int64()).to_pylist() == [1_234_567_891]
    assert array.type == pa.timestamp("ns", tz="UTC")
    assert AvroDecoder(json.dumps(local)).arrow_type == pa.timestamp("ns")
    assert decode(duration, bytes(range(12))) == ([bytes(range(12))], [])


@both_kernels
def test_a_damaged_row_is_null_and_the_others_are_not_affected():
    good = order()
    rows, errors = decode(json.loads(ORDER), good, good[:-2], b"", good, None, good[:3] + b"\xff" + good[4:])
    assert [row is None for row in rows] == [False, True, True, False, True, True]
    assert rows[0] == rows[3] == VALUE
    assert [(e.row, e.code, e.path) for e in errors] == [
        (1, ErrorCode.TRUNCATED, "tags[]"),
        (2, ErrorCode.TRUNCATED, "id"),
        (5, ErrorCode.UTF8, "customer"),
    ]
    assert errors[0].position == len(good) - 3
    assert str(errors[0]) == f"row 1: field tags[] at byte {len(good) - 3}: the value ends too early"


@both_kernels
def test_threads_can_share_a_decoder():
    decoder = AvroDecoder(ORDER)
    batches = [pa.array([order(id=number), b"", order(tags=["x"] * number)]) for number in range(40)]
    expected = [decoder.decode(batch) for batch in batches]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(decoder.decode, batches)) == expected


@both_kernels
@pytest.mark.parametrize(
    ("schema", "data", "code"),
    [
        ("long", b"\xff" * 9 + b"\x02", ErrorCode.INTEGER),
        ("long", b"\x80", ErrorCode.TRUNCATED),
        ("int", b"\x80\x80\x80\x80\x20", ErrorCode.INTEGER),
        ("string", b"\x01", ErrorCode.LENGTH),
        ("string", b"\x08abc", ErrorCode.TRUNCATED),
        ("string", b"\x06\xed\xa0\x80", ErrorCode.UTF8),
        ("boolean", b"\x02", ErrorCode.BOOLEAN),
        (["null", "int"], b"\x04", ErrorCode.BRANCH),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", ErrorCode.SYMBOL),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f\x00", ErrorCode.COUNT),
        ({"type": "array", "items": "int"}, b"\xff" * 9 + b"\x01\x00", ErrorCode.COUNT),
        ({"type": "array", "items": "double"}, b"\x04" + bytes(9), ErrorCode.COUNT),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x0f\x00", ErrorCode.COUNT),
        ({"type": "array", "items": "int"}, b"\x01\x01\x00", ErrorCode.LENGTH),
        ({"type": "map", "values": "null"}, b"\xfe\xff\xff\xff\x0f\x00", ErrorCode.COUNT),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x02\x64", ErrorCode.DECIMAL),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x50\x01" + bytes(39), ErrorCode.DECIMAL),
    ],
    ids=str,
)
def test_damage_has_a_code(schema, data, code):
    rows, errors = decode(schema, data)
    assert rows == [None]
    assert [(e.row, e.code) for e in errors] == [(0, code)]
    assert 0 <= errors[0].position <= len(data)


@both_kernels
def test_items_without_bytes_are_limited_for_the_whole_value():
    nulls = {"type": "array", "items": {"type": "array", "items": "null"}}
    inner = fastavro_bytes("long", 3000) + b"\0"
    rows, errors = decode(nulls, b"\x02" + inner + b"\0", b"\x04" + inner + inner + b"\0")
    assert rows == [[[None] * 3000], None]
    assert errors[0].code == ErrorCode.COUNT


@both_kernels
def test_blocks_with_sizes_and_several_blocks_are_read_and_skipped():
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": {"type": "array", "items": "int"}},
            {"name": "m", "type": {"type": "map", "values": "int"}},
            {"name": "z", "type": "int"},
        ],
    }
    value = b"\x03\x04\x02\x04\x02\x06\x00" + b"\x01\x06\x02k\x02\x02\x02l\x04\x00" + b"\x0e"
    full = {"a": [1, 2, 3], "m": [("k", 1), ("l", 2)], "z": 7}
    assert decode(schema, value) == ([full], [])
    assert decode(schema, value, columns=["z"]) == ([{"z": 7}], [])


@both_kernels
def test_rows_that_cannot_be_encoded_are_null_with_an_error():
    source = pa.struct([("id", pa.uint64()), ("customer", pa.string()), ("amount", pa.decimal128(10, 2))])
    schema = json.loads(ORDER)
    schema["fields"] = [*schema["fields"][:3], {**schema["fields"][3], "default": "NEW"}]
    good = {"id": 1, "customer": None, "amount": Decimal("1.00")}
    rows = [good, None, good | {"id": None}, good | {"id": 2**63}, good | {"amount": Decimal("100.00")}, good]
    encoded, errors = AvroEncoder(json.dumps(schema), source).encode(pa.array(rows, source))
    encoded.validate(full=True)
    assert [value is None for value in encoded.to_pylist()] == [False, True, True, True, True, False]
    assert [(e.row, e.code, e.path) for e in errors] == [
        (2, ErrorCode.NULL, "id"),
        (3, ErrorCode.INTEGER, "id"),
        (4, ErrorCode.DECIMAL, "amount"),
    ]
    assert errors[0].text == "field id: null in a field that is not nullable"
    assert encoded[0].as_py() == fastavro_bytes(schema, good | {"state": "NEW"})


@both_kernels
@pytest.mark.parametrize(
    ("schema", "array", "code"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.array(["B"]), ErrorCode.SYMBOL),
        ("int", pa.array([2**31]), ErrorCode.INTEGER),
        ("string", pa.array([b"\xff"]), ErrorCode.UTF8),
        ({"type": "fixed", "name": "F", "size": 2}, pa.array([b"abc"]), ErrorCode.SIZE),
        (
            ["int", "string"],
            pa.array([{"member0": 1, "member1": "a"}], pa.struct([("member0", pa.int32()), ("member1", pa.string())])),
            ErrorCode.MEMBERS,
        ),
        (
            ["int", "string"],
            pa.array(
                [{"member0": None, "member1": None}], pa.struct([("member0", pa.int32()), ("member1", pa.string())])
            ),
            ErrorCode.NULL,
        ),
        (
            {"type": "long", "logicalType": "timestamp-nanos"},
            pa.array([2**60], pa.timestamp("s", tz="UTC")),
            ErrorCode.INTEGER,
        ),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_has_a_code(schema, array, code):
    encoded, errors = AvroEncoder(json.dumps(schema), array.type).encode(array)
    assert encoded.to_pylist() == [None]
    assert [(e.row, e.code) for e in errors] == [(0, code)]


@both_kernels
def test_other_arrow_types_and_units_are_converted():
    moment = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, datetime.UTC)
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    cases = [
        (millis, pa.array([moment], pa.timestamp("us", tz="UTC")), -1),
        (millis, pa.array([3], pa.timestamp("s", tz="Europe/Berlin")), 3000),
        ("long", pa.array([3], pa.int8()), 3),
        ("int", pa.array([200], pa.uint8()), 200),
        ("double", pa.array([1.5], pa.float32()), 1.5),
        ("string", pa.array(["a"], pa.large_string()), "a"),
        ("string", pa.array(["a"]).dictionary_encode(), "a"),
        ("bytes", pa.array([b"a"], pa.binary_view()), b"a"),
        ({"type": "array", "items": "int"}, pa.array([[1, 2]], pa.list_(pa.int32(), 2)), [1, 2]),
        (["null", "long", "string"], pa.array(["a"]), "a"),
        ({"type": "fixed", "name": "F", "size": 2}, pa.array([b"ab"]), b"ab"),
    ]
    for schema, array, value in cases:
        plain = "long" if schema == millis else schema
        encoded, errors = AvroEncoder(json.dumps(schema), array.type).encode(array)
        assert (encoded.to_pylist(), errors) == ([fastavro_bytes(plain, value)], []), schema


@pytest.mark.parametrize(
    ("schema", "arrow_type", "words"),
    [
        ("int", pa.string(), "cannot be written as Avro int"),
        ("float", pa.float64(), "cast the column"),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("ms"), "cannot be written"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, pa.decimal128(4, 1), "cannot be written"),
        (json.loads(ORDER), pa.struct([("other", pa.int32())]), "columns other are not fields"),
        (json.loads(ORDER), pa.struct([("id", pa.int64())]), "no column for field customer"),
    ],
    ids=str,
)
def test_a_type_that_never_fits_is_an_error_before_any_row(schema, arrow_type, words):
    with pytest.raises(SchemaError, match=words):
        AvroEncoder(json.dumps(schema), arrow_type)


@both_kernels
def test_a_derived_schema_takes_the_type_it_is_derived_from():
    arrow_type = pa.struct(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field(
                "lines", pa.list_(pa.struct([("sku", pa.string()), ("parts", pa.map_(pa.string(), pa.float32()))]))
            ),
        ]
    )
    text = derive_schema(arrow_type, "Order", "shop")
    rows = pa.array(
        [
            {"id": 1, "price": Decimal("1.50"), "at": None, "lines": [{"sku": "a", "parts": [("k", 0.5)]}, None]},
            {"id": 2, "price": None, "at": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "lines": None},
        ],
        arrow_type,
    )
    encoded, errors = AvroEncoder(text, arrow_type).encode(rows)
    assert not errors
    decoded, errors = AvroDecoder(text).decode(encoded)
    assert not errors
    assert decoded.to_pylist() == rows.to_pylist()
    assert json.loads(text)["namespace"] == "shop"


def compiled_kernel():
    try:
        return importlib.import_module("headrace.schema._avro.compiled")
    except ImportError:
        pytest.skip("the kernel is not compiled here")


@settings(THOROUGH, max_examples=examples(100))
@given(st.data())
def test_compiled_and_reference_agree_on_damaged_bytes(data):
    compiled = compiled_kernel()
    random_type = data.draw(record_types())
    pairs = data.draw(st.lists(random_type.values, min_size=1, max_size=3))
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    values = [mutated(fastavro_bytes(random_type.schema, pair[0]), chance) for pair in pairs for _ in range(8)]
    schema = parse_schema(random_type.text)
    assert isinstance(schema, RecordType)
    names = [field.name for field in schema.fields]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    plan = resolve(schema, project(schema, data.draw(st.sampled_from([names, chosen]))))
    column = bytes_column(pa.array(values, pa.binary()), "value")
    outcomes = []
    size = 0
    for kernel in (compiled, reference):
        columns, errors = kernel.PlanDecoder(plan.nodes, plan.columns, plan.constants).decode(column, len(values), 0)
        buffers = [tuple(None if part is None else bytes(part) for part in column[2:]) for column in columns]
        size = sum(len(part) for parts in buffers for part in parts if part is not None)
        outcomes.append(([column[:2] for column in columns], buffers, errors))
    assert outcomes[0] == outcomes[1]
    # Bounded memory: each byte of input can become a few values of a few columns.
    assert size <= 200 * len(plan.columns) * (sum(map(len, values)) + len(values) + 1)


def test_the_numbers_in_the_header_are_those_of_the_layout():
    folder = Path(headrace.__file__).parent / "schema"
    files = ("_avro/codec.h", "_plan/columns.h", "_plan/decimals.h")
    header = "".join((folder / file).read_text() for file in files)
    for prefix, numbers, first in (
        ("KIND", plan_layout.Kind, 0),
        ("OP", layout.Op, 0),
        ("ENCODE", layout.EncodeOp, 0),
        ("ERROR", layout.ErrorCode, 1),
    ):
        body = next(
            b for b in re.findall(r"enum \{(.*?)\};", header, re.DOTALL) if b.split()[0].startswith(f"{prefix}_")
        )
        names = re.findall(rf"\b{prefix}_(\w+)", body)
        assert [(number.name, number.value) for number in numbers] == [(n, first + i) for i, n in enumerate(names)]
    assert f"HR_ZERO_BYTE_ITEMS_MAX {layout.ZERO_BYTE_ITEMS_MAX}\n" in header
    assert f"HR_DECIMAL_BYTES {plan_layout.DECIMAL_BYTES}\n" in header
