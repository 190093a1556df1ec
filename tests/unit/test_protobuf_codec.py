"""Protobuf values to and from Arrow columns, compared with Google's library (upb).

headrace deviates on purpose: strings of proto2 that are not UTF-8, absent required fields and times out of range are
errors of the row; a map's value that a later one replaces is not validated.
"""

from __future__ import annotations

import datetime
import importlib
import random
import re
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import SchemaError
from headrace.schema._plan import layout as plan_layout
from headrace.schema._protobuf import layout, reference
from headrace.schema._protobuf.reference import decoding
from headrace.schema.protobuf import (
    ErrorCode,
    ProtobufDecoder,
    ProtobufEncoder,
    arrow_type,
    derive_schema,
    parse_schema,
)
from headrace.schema.protobuf_decoding import plan_decoding
from headrace.wire.columns import bytes_column
from tests.support.damage import mutated
from tests.support.examples import examples
from tests.support.protobuf_types import RandomSchema, arrow_value, fill, message_class, random_schema

both_kernels = pytest.mark.both_kernels
SEEDS = st.integers(0, 2**32)
THOROUGH = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
ORDER = 'syntax = "proto3"; message Order { int64 id = 1; optional string customer = 2; repeated int32 lines = 3; }'


def proto3(fields: str, more: str = "") -> str:
    return f'syntax = "proto3"; message M {{ {fields} }} {more}'


def decode(schema, *values, **options):
    decoder = ProtobufDecoder(schema, **options)
    array, errors = decoder.decode(pa.array(values, pa.binary()))
    array.validate(full=True)
    assert array.type == decoder.arrow_type
    return array.to_pylist(maps_as_pydicts="strict"), errors


def root_name(random_type: RandomSchema) -> str:
    name: str = random_type.message_type.DESCRIPTOR.full_name
    return name


@both_kernels
@settings(THOROUGH, max_examples=examples(150))
@given(SEEDS)
def test_messages_of_google_are_decoded_and_encoded_to_the_same_bytes(seed):
    chance = random.Random(seed)
    random_type = random_schema(chance)
    messages = [fill(random_type.message_type(), chance) for _ in range(4)]
    values = [None, *(message.SerializeToString(deterministic=True) for message in messages)]
    rows, errors = decode(random_type.schema, *values, message=root_name(random_type))
    assert (rows, errors) == ([None, *map(arrow_value, messages)], [])
    decoder = ProtobufDecoder(random_type.schema, root_name(random_type))
    array, _ = decoder.decode(pa.array([b"\0\1", *values], pa.binary())[1:])
    encoder = ProtobufEncoder(random_type.schema, decoder.arrow_type, root_name(random_type))
    encoded, errors = encoder.encode(array, b"prefix")
    assert not errors
    assert encoded.to_pylist() == [None if value is None else b"prefix" + value for value in values]
    again, errors = decoder.decode(encoded, skip=6)
    assert again.equals(array)
    assert not errors


@both_kernels
@settings(THOROUGH, max_examples=examples(100))
@given(SEEDS)
def test_damaged_values_fail_exactly_where_googles_parser_fails(seed):
    chance = random.Random(seed)
    random_type = random_schema(chance, plain=True)
    message_type = random_type.message_type
    values = [mutated(fill(message_type(), chance).SerializeToString(), chance) for _ in range(24)] + [
        fill(message_type(), chance).SerializeToString() + fill(message_type(), chance).SerializeToString()
        for _ in range(4)
    ]  # of which the second is merged into the first
    rows, errors = decode(random_type.schema, *values, message=root_name(random_type))
    codes = {error.row: error.code for error in errors}
    for row, value in enumerate(values):
        message = message_type()
        try:
            message.ParseFromString(value)
        except DecodeError:
            assert row in codes, value
            continue
        if row in codes:
            assert codes[row] in (ErrorCode.REQUIRED, ErrorCode.UTF8), value
            assert random_type.schema.file.syntax == "proto2"
        else:
            assert repr(rows[row]) == repr(arrow_value(message)), value  # nan is not equal to itself


@settings(THOROUGH, max_examples=examples(150))
@given(SEEDS)
def test_compiled_and_reference_agree_on_damaged_bytes(seed):
    compiled = compiled_kernel()
    chance = random.Random(seed)
    random_type = random_schema(chance)
    message = random_type.schema.message(root_name(random_type))
    names = [field.name for field in message.fields]
    values = [mutated(fill(random_type.message_type(), chance).SerializeToString(), chance) for _ in range(24)]
    columns = chance.choice([None, chance.sample(names, chance.randint(0, len(names)))])
    plan = plan_decoding(random_type.schema, message, columns)
    column = bytes_column(pa.array(values, pa.binary()), "value")
    outcomes, size = [], 0
    for kernel in (compiled, reference):
        decoded, errors = kernel.PlanDecoder(plan.nodes, plan.columns, plan.constants).decode(column, len(values), 0)
        buffers = [tuple(None if part is None else bytes(part) for part in column[2:]) for column in decoded]
        size = sum(len(part) for parts in buffers for part in parts if part is not None)
        outcomes.append(([column[:2] for column in decoded], buffers, errors))
    assert outcomes[0] == outcomes[1]
    # Bounded memory: a byte of input can become an item with a value in each column.
    assert size <= 40 * len(plan.columns) * (sum(map(len, values)) + len(values) + 1)


def compiled_kernel():
    try:
        return importlib.import_module("headrace.schema._protobuf.compiled")
    except ImportError:
        pytest.skip("the kernel is not compiled here")


# -- the wire format -------------------------------------------------------------------------------


@both_kernels
def test_the_last_value_wins_and_messages_are_merged():
    schema = proto3("int32 a = 1; N n = 2; repeated N l = 3; oneof o { N p = 4; int32 q = 5; }", NESTED)
    value = bytes.fromhex("0801 0802 1202 0801 1202 1007 1a02 0801 1a02 1007 2202 0801 2805 2202 1009")
    n = {"x": 1, "y": 7}
    last = {"x": 0, "y": 9}  # q has cleared p in between
    rows, errors = decode(schema, value)
    assert (rows, errors) == ([{"a": 2, "n": n, "l": [{"x": 1, "y": 0}, {"x": 0, "y": 7}], "p": last, "q": None}], [])
    message = message_class(parse_schema(schema, name="m.proto")).FromString(value)
    assert rows == [arrow_value(message)]


NESTED = "message N { int32 x = 1; int32 y = 2; }"


@both_kernels
def test_a_oneof_is_cleared_by_a_member_that_is_not_chosen():
    schema = proto3("oneof o { int32 a = 1; int32 b = 2; }")
    assert decode(schema, b"\x08\x01\x10\x02", columns=["a"]) == ([{"a": None}], [])
    assert decode(schema, b"\x10\x02\x08\x01", columns=["a"]) == ([{"a": 1}], [])


@both_kernels
def test_packed_and_unpacked_numbers_are_both_read():
    for option in ("", " [packed = false]"):
        schema = proto3(f"repeated sint32 a = 1{option}; repeated fixed32 b = 2{option};")
        value = bytes.fromhex("0801 0a020304 0803 0a00 150100 0000 1208 02000000 03000000")
        assert decode(schema, value) == ([{"a": [-1, -2, 2, -2], "b": [1, 2, 3]}], [])


@both_kernels
def test_unknown_fields_groups_and_other_wire_types_are_skipped():
    schema = proto3("int32 a = 1; string s = 2;")
    unknown = bytes.fromhex("18ff01 2101020304 05060708 2a03616263 3501020304 3b 0807 43 44 3c")
    other_types = bytes.fromhex("0d01000000 1005")  # a as fixed32, s as a varint
    assert decode(schema, unknown + b"\x08\x01" + other_types) == ([{"a": 1, "s": ""}], [])
    groups = b"\x0b" * layout.GROUP_DEPTH_MAX + b"\x0c" * layout.GROUP_DEPTH_MAX
    assert decode(schema, groups) == ([{"a": 0, "s": ""}], [])


@both_kernels
def test_numbers_are_cut_to_their_type():
    schema = proto3("int32 a = 1; uint32 b = 2; bool c = 3; E e = 4;", "enum E { Z = 0; N = -1; }")
    long = b"\xff" * 9 + b"\x01"
    assert decode(schema, b"\x08" + long + b"\x10" + long + b"\x18\x80\x02" + b"\x20" + long) == (
        [{"a": -1, "b": 2**32 - 1, "c": True, "e": "N"}],
        [],
    )
    assert decode(schema, b"\x08\x80\x80\x80\x80\x10\x18" + b"\x80" * 9 + b"\x02") == (
        [{"a": 0, "b": 0, "c": False, "e": "Z"}],
        [],
    )


@both_kernels
def test_unknown_numbers_of_enums_are_digits_in_proto3_and_absent_in_proto2():
    fields = "{0} E a = 1; repeated E b = 2; map<int32, E> c = 3;"
    value = bytes.fromhex("0801 0809 1001 1009 1202 0109 1a04 08011001 1a04 08021009")
    three = 'syntax = "proto3"; enum E { Z = 0; ONE = 1; } message M {' + fields.format("") + "}"
    assert decode(three, value) == ([{"a": "9", "b": ["ONE", "9", "ONE", "9"], "c": {1: "ONE", 2: "9"}}], [])
    two = "enum E { Z = 0; ONE = 1; } message M {" + fields.format("optional") + "}"
    assert decode(two, value) == ([{"a": "ONE", "b": ["ONE", "ONE"], "c": {1: "ONE"}}], [])


@both_kernels
def test_the_first_name_of_a_number_is_decoded_and_all_are_encoded():
    schema = proto3("E e = 1;", "enum E { option allow_alias = true; Z = 0; A = 1; B = 1; BIG = 2000000000; }")
    assert decode(schema, b"\x08\x01", b"\x08\x80\xa8\xd6\xb9\x07")[0] == [{"e": "A"}, {"e": "BIG"}]
    column = pa.array([{"e": name} for name in ("B", "A", "BIG", "-7", "77", "C", "2147483648", "")])
    encoded, errors = ProtobufEncoder(schema, column.type).encode(column)
    assert encoded.to_pylist()[:3] == [b"\x08\x01", b"\x08\x01", b"\x08\x80\xa8\xd6\xb9\x07"]
    assert encoded.to_pylist()[3:5] == [b"\x08" + b"\xf9" + b"\xff" * 8 + b"\x01", b"\x08\x4d"]
    assert [(error.row, error.code) for error in errors] == [(row, ErrorCode.SYMBOL) for row in (5, 6, 7)]


@both_kernels
@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_the_last_value_of_a_key_of_a_map_wins(count):
    schema = proto3("map<string, int32> s = 1; map<bool, N> b = 2; map<sint32, int64> i = 3;", NESTED)
    message_type = message_class(parse_schema(schema, name="m.proto"))
    chance = random.Random(count)
    value = b""
    for _ in range(count):
        part = message_type()
        part.s[chance.choice(["", "a", "b", "long" * 40])] = chance.randrange(100)
        part.b[chance.random() < 0.5].y = chance.randrange(100)
        part.i[chance.randint(-3, 3)] = chance.randrange(100)
        value += part.SerializeToString()
    # An absent key or value is the default, a key may be encoded in several ways.
    value += bytes.fromhex("0a00 1200 1a021005 1203088002 1a06088480808010")
    rows, errors = decode(schema, value)
    assert (rows, errors) == ([arrow_value(message_type.FromString(value))], [])


@both_kernels
def test_bytes_of_a_struct_are_decoded_as_they_are_and_merged():
    schema = 'syntax = "proto3"; import "google/protobuf/struct.proto"; message M { google.protobuf.Struct s = 1; }'
    assert decode(schema, b"\x0a\x02\x0a\x00\x0a\x01\x61", b"") == ([{"s": b"\x0a\x00a"}, {"s": None}], [])


# -- damage ----------------------------------------------------------------------------------------


@both_kernels
def test_a_damaged_row_is_null_and_the_others_are_not_affected():
    good = b"\x08\x02\x12\x03Ann\x1a\x02\x05\x06"
    values = [good, good[:5], None, b"\x08\x01\x1a\x02\x05\x86", good]
    rows, errors = decode(ORDER, *values)
    assert rows == [{"id": 2, "customer": "Ann", "lines": [5, 6]}, None, None, None, rows[0]]
    assert [str(error) for error in errors] == [
        "row 1: field customer at byte 2: the value ends too early",
        "row 3: field lines at byte 5: the value ends too early",
    ]


@both_kernels
@pytest.mark.parametrize(
    ("fields", "value", "code", "position"),
    [
        ("int32 a = 1;", "08", ErrorCode.TRUNCATED, 0),
        ("int32 a = 1;", "0880", ErrorCode.TRUNCATED, 0),
        ("int32 a = 1;", "08" + "ff" * 10, ErrorCode.VARINT, 0),
        ("int32 a = 1;", "0801 80", ErrorCode.TRUNCATED, 2),
        ("int32 a = 1;", "8080808080 01", ErrorCode.TAG, 0),
        ("int32 a = 1;", "8880808010 01", ErrorCode.TAG, 0),
        ("int32 a = 1;", "0001", ErrorCode.TAG, 0),
        ("int32 a = 1;", "0e", ErrorCode.TAG, 0),
        ("int32 a = 1;", "0c", ErrorCode.GROUP, 0),
        ("int32 a = 1;", "0b14", ErrorCode.GROUP, 0),
        ("int32 a = 1;", "0b", ErrorCode.TRUNCATED, 0),
        ("int32 a = 1;", "13" * 101 + "14" * 101, ErrorCode.GROUP, 0),
        ("double a = 1;", "0901020304", ErrorCode.TRUNCATED, 0),
        ("fixed32 a = 1;", "0d010203", ErrorCode.TRUNCATED, 0),
        ("string a = 1;", "0a01ff", ErrorCode.UTF8, 2),
        ("string a = 1;", "0aff ffffff0f", ErrorCode.TRUNCATED, 0),
        ("string a = 1;", "0a ffffffffffffffffff01 61", ErrorCode.TRUNCATED, 0),
        ("repeated fixed64 a = 1;", "0a0901020304050607080a", ErrorCode.TRUNCATED, 10),
        ("N n = 1;", "0a020801 0a0108", ErrorCode.TRUNCATED, 6),
        ("map<string, int32> m = 1;", "0a030a01ff", ErrorCode.UTF8, 4),
        ("google.protobuf.Timestamp t = 1;", "0a0a08ffffffffffffffff7f", ErrorCode.TIME, 2),
        ("google.protobuf.StringValue t = 1;", "0a030a01ff", ErrorCode.UTF8, 4),
    ],
    ids=str,
)
def test_damage_has_a_code(fields, value, code, position):
    imports = 'import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto"; '
    schema = proto3(fields, NESTED).replace("message M", imports + "message M", 1)
    rows, errors = decode(schema, bytes.fromhex(value), b"")
    assert rows[0] is None
    assert [(error.row, error.code, error.position) for error in errors] == [(0, code, position)]


@both_kernels
def test_an_absent_required_field_is_an_error_with_its_name():
    schema = "message M { required int32 a = 1; optional N n = 2; } message N { required string s = 3; }"
    rows, errors = decode(schema, b"\x08\x01", b"", b"\x08\x01\x12\x00")
    assert rows == [{"a": 1, "n": None}, None, None]
    assert [str(error) for error in errors] == [
        "row 1: field a at byte 0: a required field is absent",
        "row 2: field n.s at byte 4: a required field is absent",
    ]


def test_items_that_fill_many_columns_are_limited():
    fields = "".join(f"int32 f{i} = {i + 1};" for i in range(2000))
    schema = f'syntax = "proto3"; message M {{ repeated Wide w = 1; }} message Wide {{ {fields} }}'
    bomb = b"\x0a\x00" * (layout.ITEM_CELLS_MAX // 2000 + 1)
    array, errors = ProtobufDecoder(schema).decode(pa.array([bomb, b""]))
    assert array.is_null().to_pylist() == [True, False]
    assert [(error.code, error.path) for error in errors] == [(ErrorCode.COUNT, "w")]
    assert decode(schema, bomb, columns=["w.f0"])[1] == []


def test_items_are_limited_in_the_reference_too(monkeypatch):
    monkeypatch.setattr(decoding, "ITEM_CELLS_MAX", 5)  # a million values take the reference seconds
    schema = parse_schema(proto3("repeated N l = 1; map<int32, N> m = 2;", NESTED))
    plan = plan_decoding(schema, schema.message())
    values = [b"\x0a\x00" * 2, b"\x0a\x00" * 3, b"\x12\x00", b"\x12\x00" * 2]
    column = bytes_column(pa.array(values, pa.binary()), "value")
    _, errors = decoding.PlanDecoder(plan.nodes, plan.columns, plan.constants).decode(column, len(values), 0)
    assert [(error.row, error.code, error.position) for error in errors] == [
        (1, ErrorCode.COUNT, 6),
        (3, ErrorCode.COUNT, 4),
    ]


@both_kernels
def test_a_value_shorter_than_its_prefix_is_an_error():
    array, errors = ProtobufDecoder(ORDER).decode(pa.array([b"\0\0\0\0\1\0\x08\x07", b"\0"]), skip=6)
    assert array.to_pylist() == [{"id": 7, "customer": None, "lines": []}, None]
    assert [(error.row, error.code) for error in errors] == [(1, ErrorCode.SKIP)]


@both_kernels
def test_threads_can_share_a_decoder_and_an_encoder():
    decoder = ProtobufDecoder(ORDER)
    encoder = ProtobufEncoder(ORDER, decoder.arrow_type)
    values = pa.array([b"\x08\x02\x12\x03Ann\x1a\x02\x05\x06", b"\x08"] * 500)
    expected, _ = decoder.decode(values)
    with ThreadPoolExecutor(4) as pool:
        for array, errors in pool.map(decoder.decode, [values] * 12):
            assert array.equals(expected)
            assert len(errors) == 500
        encoded = list(pool.map(encoder.encode, [expected] * 12))
    assert all(column.equals(encoded[0][0]) for column, _ in encoded)


# -- evolution and projection ----------------------------------------------------------------------


@both_kernels
def test_a_readers_schema_matches_fields_by_number():
    writer = proto3("int32 a = 1; string b = 2; N n = 3; int32 gone = 4;", NESTED)
    reader = proto3(
        "int64 renamed = 1; bytes b = 2; M.N n = 3; optional double new = 5; string text = 6; "
        "message N { repeated int32 y = 2; }"
    )
    message = message_class(parse_schema(writer, name="m.proto"))(a=-2, b="x", gone=1)
    message.n.y = 5
    expected = {"renamed": -2, "b": b"x", "n": {"y": [5]}, "new": None, "text": ""}
    assert decode(writer, message.SerializeToString(), reader_schema=reader) == ([expected], [])


@both_kernels
@pytest.mark.parametrize(
    ("theirs", "ours", "stored", "value"),
    [
        ("int64", "int32", 2**32 + 5, 5),
        ("uint64", "int64", 2**64 - 1, -1),
        ("int32", "bool", 3, True),
        ("E", "int32", 1, 1),
        ("int32", "E", 1, "ONE"),
        ("sint32", "sint64", -3, -3),
        ("fixed32", "sfixed32", 2**32 - 1, -1),
        ("fixed64", "sfixed64", 2**64 - 1, -1),
        ("string", "bytes", "a", b"a"),
        ("bytes", "string", b"a", "a"),
        ("int32", "repeated int32", 4, [4]),
        ("optional int32", "int32", 4, 4),
    ],
)
def test_types_with_the_same_encoding_are_read_as_each_other(theirs, ours, stored, value):
    enum = "enum E { Z = 0; ONE = 1; }"
    writer, reader = proto3(f"{theirs} x = 1;", enum), proto3(f"{ours} x = 1;", enum)
    message = message_class(parse_schema(writer, name="m.proto"))(x=stored)
    assert decode(writer, message.SerializeToString(), reader_schema=reader) == ([{"x": value}], [])


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        (
            "int32 x = 1;",
            "string x = 1;",
            r"field x = 1 .* written as int32, and is read as string; use",
        ),
        ("int32 x = 1;", "sint32 x = 1;", "written as int32"),
        ("fixed32 x = 1;", "float x = 1;", "written as fixed32"),
        ("N x = 1;", "string x = 1;", "written as message"),
        ("N x = 1;", "O x = 1;", r"field x\.y = 2 .* written as int32"),
        ("repeated int32 x = 1;", "int32 x = 1;", "written as a packed list"),
        ("map<int32, int32> x = 1;", "N x = 1;", "one of the schemas has a map"),
    ],
)
def test_types_that_cannot_be_read_are_an_error_before_any_row(theirs, ours, words):
    more = NESTED + "message O { string y = 2; }"
    with pytest.raises(SchemaError, match=words):
        ProtobufDecoder(proto3(theirs, more), reader_schema=proto3(ours, more))


@both_kernels
def test_columns_choose_fields_also_inside_messages_lists_and_maps():
    schema = proto3("N n = 1; repeated N l = 2; map<string, N> m = 3; int32 z = 4;", NESTED)
    value = bytes.fromhex("0a0408011002 120408031004 1a09 0a016b 120408051006".replace(" ", "")) + b"\x20\x09"
    rows, errors = decode(schema, value, columns=["m.y", "n.x", "l.y", "z"])
    assert (rows, errors) == ([{"n": {"x": 1}, "l": [{"y": 4}], "m": {"k": {"y": 6}}, "z": 9}], [])
    assert decode(schema, value, columns=[]) == ([{}], [])
    with pytest.raises(SchemaError, match=r"no field n\.q in Protobuf message N; it has x, y"):
        ProtobufDecoder(schema, columns=["n.q"])
    with pytest.raises(SchemaError, match="z is int32, without columns; choose z as a whole"):
        ProtobufDecoder(schema, columns=["z.a"])


@both_kernels
def test_each_message_type_of_a_file_has_a_decoder():
    schema = parse_schema(
        'syntax = "proto3"; package p; message A { int32 a = 1; } message B { message C { string c = 1; } }'
    )
    assert decode(schema, b"\x08\x01", message="p.A") == ([{"a": 1}], [])
    inner = schema.message_by_indexes([1, 0]).full_name
    assert decode(schema, b"\x0a\x01x", message=inner) == ([{"c": "x"}], [])
    reader = 'syntax = "proto3"; package p; message Z { int32 b = 9; } message A { int64 renamed = 1; }'
    assert decode(schema, b"\x08\x01", message="p.A", reader_schema=reader) == ([{"renamed": 1}], [])
    assert decode(schema, b"\x48\x01", message="p.A", reader_schema=reader, reader_message="Z") == ([{"b": 1}], [])
    with pytest.raises(SchemaError, match=r"the reader's Protobuf schema has no message p\.B\.C"):
        ProtobufDecoder(schema, inner, reader)


# -- encoding --------------------------------------------------------------------------------------


@both_kernels
@pytest.mark.parametrize(
    ("fields", "array", "code"),
    [
        ("int32 x = 1;", pa.array([2**31]), ErrorCode.RANGE),
        ("sint32 x = 1;", pa.array([-(2**31) - 1]), ErrorCode.RANGE),
        ("uint32 x = 1;", pa.array([-1]), ErrorCode.RANGE),
        ("fixed32 x = 1;", pa.array([2**32]), ErrorCode.RANGE),
        ("uint64 x = 1;", pa.array([-1]), ErrorCode.RANGE),
        ("uint64 x = 1;", pa.array([Decimal(2**64)], pa.decimal128(20)), ErrorCode.RANGE),
        ("uint64 x = 1;", pa.array([Decimal(-1)], pa.decimal128(20)), ErrorCode.RANGE),
        ("int64 x = 1;", pa.array([2**63], pa.uint64()), ErrorCode.RANGE),
        ("string x = 1;", pa.array([b"\xff"]), ErrorCode.UTF8),
        ("repeated int32 x = 1;", pa.array([[1, None]]), ErrorCode.NULL),
        ("repeated string x = 1;", pa.array([["a", None]]), ErrorCode.NULL),
        ("map<string, int32> x = 1;", pa.array([[("a", None)]], pa.map_(pa.string(), pa.int32())), ErrorCode.NULL),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_has_a_code(fields, array, code):
    column = pa.StructArray.from_arrays([array], ["x"])
    encoded, errors = ProtobufEncoder(proto3(fields), column.type).encode(column)
    assert encoded.to_pylist() == [None]
    assert [(error.row, error.code, error.path) for error in errors] == [(0, code, "x")]


@both_kernels
def test_several_values_of_a_oneof_are_an_error_of_the_row():
    schema = proto3("oneof choice { int32 a = 1; string b = 2; }")
    column = pa.array([{"a": 1, "b": None}, {"a": 1, "b": "x"}, {"a": None, "b": ""}, {"a": None, "b": None}])
    encoded, errors = ProtobufEncoder(schema, column.type).encode(column)
    assert encoded.to_pylist() == [b"\x08\x01", None, b"\x12\x00", b""]
    assert [str(error) for error in errors] == ["row 1: field choice: several fields of a oneof have a value"]


@both_kernels
def test_null_is_an_absent_field_unless_it_is_required():
    schema = proto3("int32 a = 1; optional int32 b = 2; repeated int32 c = 3; N n = 4;", NESTED)
    fields = [("a", pa.int32()), ("b", pa.int32()), ("c", pa.list_(pa.int32())), ("n", pa.struct([("x", pa.int32())]))]
    rows = [dict.fromkeys("abcn"), {"a": 0, "b": 0, "c": [], "n": {"x": None}}]
    column = pa.array(rows, pa.struct(fields))
    encoded, errors = ProtobufEncoder(schema, column.type).encode(column)
    assert (encoded.to_pylist(), errors) == ([b"", b"\x10\x00\x22\x00"], [])
    required = pa.array([{"a": None}], pa.struct([("a", pa.int32())]))
    encoded, errors = ProtobufEncoder("message M { required int32 a = 1; }", required.type).encode(required)
    assert [error.code for error in errors] == [ErrorCode.NULL]


@both_kernels
def test_other_arrow_types_and_units_are_converted():
    moment = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, datetime.UTC)
    duration = pa.array([-1500], pa.duration("ms"))
    cases = [
        ("google.protobuf.Timestamp", pa.array([moment], pa.timestamp("ms", tz="UTC")), None),
        ("google.protobuf.Timestamp", pa.array([3], pa.timestamp("s", tz="Europe/Berlin")), b"\x0a\x02\x08\x03"),
        ("google.protobuf.Timestamp", pa.array([1], pa.timestamp("ns", tz="UTC")), b"\x0a\x02\x10\x01"),
        ("google.protobuf.Duration", duration, None),
        ("int64", pa.array([3], pa.int8()), b"\x08\x03"),
        ("uint64", pa.array([2**64 - 1], pa.uint64()), b"\x08" + b"\xff" * 9 + b"\x01"),
        ("double", pa.array([1.5], pa.float32()), b"\x09\0\0\0\0\0\0\xf8\x3f"),
        ("string", pa.array(["a"], pa.large_string()), b"\x0a\x01a"),
        ("string", pa.array(["a"]).dictionary_encode(), b"\x0a\x01a"),
        ("bytes", pa.array([b"a"], pa.binary_view()), b"\x0a\x01a"),
        ("repeated int32", pa.array([[1, 2]], pa.list_(pa.int32(), 2)), b"\x0a\x02\x01\x02"),
        ("E", pa.array([1]), b"\x08\x01"),
        ("E", pa.nulls(1), b""),
        ("google.protobuf.Int64Value", pa.array([0], pa.int32()), b"\x0a\x00"),
    ]
    for kind, array, expected in cases:
        imports = "".join(f'import "google/protobuf/{name}.proto";' for name in ("timestamp", "duration", "wrappers"))
        text = f'syntax = "proto3"; {imports} message M {{ {kind} x = 1; }} enum E {{ Z = 0; }}'
        column = pa.StructArray.from_arrays([array], ["x"])
        encoded, errors = ProtobufEncoder(text, column.type).encode(column)
        assert not errors
        if expected is not None:
            assert encoded.to_pylist() == [expected], kind
        message = message_class(parse_schema(text, name="m.proto")).FromString(encoded[0].as_py())
        assert message.SerializeToString() == encoded[0].as_py()
        if array is duration:
            assert (message.x.seconds, message.x.nanos) == (-1, -500_000_000)
        elif pa.types.is_timestamp(array.type) and expected is None:
            assert (message.x.seconds, message.x.nanos) == (-1, 999_000_000)


@both_kernels
def test_decimals_have_the_bytes_of_confluents():
    from confluent_kafka.schema_registry.confluent.type.decimal_utils import to_proto_decimal

    option = '[(confluent.field_meta) = { params: [{ key: "precision", value: "40" }, { key: "scale", value: "2" }] }]'
    imports = 'import "confluent/meta.proto"; import "confluent/type/decimal.proto";'
    schema = f'syntax = "proto3"; {imports} message M {{ confluent.type.Decimal x = 1 {option}; }}'
    numbers = [0, 1, -1, 127, 128, -128, -129, 10**17, -(10**39), 10**40 - 1]
    values = [Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -2)) for n in numbers]
    payloads = [to_proto_decimal(value).SerializeToString() for value in values]
    expected = [b"\x0a" + bytes([len(payload)]) + payload for payload in payloads]
    column = pa.array([{"x": value} for value in values], arrow_type(parse_schema(schema)))
    encoded, errors = ProtobufEncoder(schema, column.type).encode(column)
    assert (encoded.to_pylist(), errors) == (expected, [])
    decoded, errors = ProtobufDecoder(schema).decode(encoded)
    assert decoded.equals(column)
    assert not errors
    damaged = [b"\x0a\x05\x0a\x01\x05\x18\x01", b"\x0a\x13\x0a\x11" + b"\x7f" * 17, b"\x0a\x00"]
    rows, errors = decode(schema, *damaged)
    assert rows == [None, None, {"x": Decimal("0.00")}]  # another scale, too many digits, no bytes
    assert [error.code for error in errors] == [ErrorCode.DECIMAL] * 2


@pytest.mark.parametrize(
    ("fields", "data_type", "words"),
    [
        ("int32 x = 1;", pa.string(), "column x: Arrow type string cannot be written as Protobuf int32; cast"),
        ("float x = 1;", pa.float64(), "cast the column"),
        ("repeated int32 x = 1;", pa.int32(), "cannot be written as Protobuf repeated int32"),
        ("repeated int32 x = 1;", pa.list_(pa.null()), "cast the column"),
        ("N x = 1;", pa.int32(), "cannot be written as Protobuf N"),
        ("map<string, int32> x = 1;", pa.list_(pa.int32()), "cannot be written"),
        ("google.protobuf.Timestamp x = 1;", pa.timestamp("us"), "cannot be written"),
        ("int32 y = 1;", pa.int32(), "columns x are not fields of Protobuf message M"),
    ],
    ids=str,
)
def test_a_type_that_never_fits_is_an_error_before_any_row(fields, data_type, words):
    schema = proto3(fields, NESTED).replace("message M", 'import "google/protobuf/timestamp.proto"; message M', 1)
    with pytest.raises(SchemaError, match=words):
        ProtobufEncoder(schema, pa.struct([("x", data_type)]))


def test_a_required_field_needs_a_column():
    with pytest.raises(SchemaError, match="no column for field a of the Protobuf schema, which is required"):
        ProtobufEncoder("message M { required int32 a = 1; optional int32 b = 2; }", pa.struct([("b", pa.int32())]))


@both_kernels
def test_a_derived_schema_takes_the_type_it_is_derived_from():
    line = pa.struct([("sku", pa.string()), ("parts", pa.map_(pa.string(), pa.float32()))])
    data_type = pa.struct(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("took", pa.duration("us")),
            pa.field("lines", pa.list_(line)),
        ]
    )
    text = derive_schema(data_type, "Order", "shop")
    lines = [{"sku": "a", "parts": [("k", 0.5)]}, {"sku": None, "parts": []}]
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    rows = [
        {"id": 1, "price": Decimal("1.50"), "at": None, "took": datetime.timedelta(seconds=-1), "lines": lines},
        {"id": 2, "price": None, "at": moment, "took": None, "lines": []},
    ]
    encoded, errors = ProtobufEncoder(text, data_type).encode(pa.array(rows, data_type))
    assert not errors
    decoded, errors = ProtobufDecoder(text, "shop.Order").decode(encoded)
    assert not errors
    assert decoded.to_pylist() == rows


def test_the_numbers_in_the_header_are_those_of_the_layout():
    folder = Path(headrace.__file__).parent / "schema"
    header = (folder / "_protobuf" / "codec.h").read_text()
    for prefix, numbers, first in (
        ("WIRE", layout.WireType, 0),
        ("PRESENCE", layout.Presence, 0),
        ("OP", layout.Op, 0),
        ("ENCODE", layout.EncodeOp, 0),
        ("ERROR", layout.ErrorCode, 1),
    ):
        body = next(
            b for b in re.findall(r"enum \{(.*?)\};", header, re.DOTALL) if b.split()[0].startswith(f"{prefix}_")
        )
        names = re.findall(rf"\b{prefix}_(\w+)", body)
        assert [(number.name, number.value) for number in numbers] == [(n, first + i) for i, n in enumerate(names)]
    for name in ("GROUP_DEPTH_MAX", "ITEM_CELLS_MAX", "BATCH_CELLS_MAX"):
        assert f"HR_{name} {getattr(layout, name)}\n" in header
    assert len(plan_layout.decimal_limit(1)) == plan_layout.DECIMAL_BYTES
