"""Protobuf schemas: texts and descriptors compared with protoc's, names, normal forms, Arrow types, limits.

protoc also translates options that others define, and features of editions. Those are left out of the comparisons.
"""

from __future__ import annotations

import base64
from pathlib import Path

import grpc_tools
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from headrace.errors import SchemaError
from headrace.schema.protobuf import (
    ProtobufDecoder,
    ProtobufEncoder,
    arrow_type,
    derive_schema,
    normal_form,
    parse_schema,
    to_descriptor,
)
from headrace.schema.protobuf_builtin import BUILTIN_FILES
from headrace.schema.protobuf_schema import DEFINITIONS_MAX, DEPTH_MAX, TEXT_CHARS_MAX

GOOGLE = Path(grpc_tools.__file__).parent / "_proto"
COMMON = Path(descriptor_pb2.__file__).parents[2]  # with google/api, google/rpc and google/type

PROTO2 = r"""
/* Everything that proto2 has. */ syntax = 'proto2';
package shop.v1;
import public "google/protobuf/any.proto";
option java_package = "com." "shop";  // two literals
option optimize_for = CODE_SIZE;
message Outer {
  option deprecated = true;
  reserved 100 to 110, 200; reserved "old", 'older';
  extensions 1000 to 1999, 5000 to max;
  required int32 a = 1 [default = -0x10];
  optional uint64 b = 2 [default = 0777, jstype = JS_STRING];
  optional float c = 3 [default = 1e10];
  optional double d = 4 [default = -inf, json_name = "D!"];
  optional string e = 5 [default = "q\"\n\x41\101\u00e9", deprecated = true];
  optional bytes f = 6 [default = "\001\377'\\"];
  optional Color g = 7 [default = RED];
  optional bool h = 8 [default = true];
  repeated sint32 i = 9 [packed = true];
  map<string, .shop.v1.Outer.Inner> map_of_inner = 10;
  optional group Result = 11 { optional string url = 1; optional Inner inner = 2; }
  oneof choice { string j = 12; Inner k = 13; group Other = 14 { optional int32 x = 1; } }
  message Inner {
    optional Color color = 1; repeated Inner inner = 2; enum Color { NONE = 0; }
    extend Outer { optional int32 ext2 = 1001; }
  }
  optional google.protobuf.Any any = 15;
  optional float nan = 16 [default = nan];
  optional double third = 17 [default = 0.333333333333333333333];
  optional float tenth = 18 [default = 0.1];
}
enum Color {
  option allow_alias = true; reserved -5 to -3, 40 to max; reserved "PINK";
  RED = -1; ROT = -1; BLUE = 2 [deprecated = true];
}
extend Outer { optional Color ext = 1000; }
service Orders {
  rpc Get (Outer) returns (stream Outer.Inner) { option idempotency_level = NO_SIDE_EFFECTS; }
  rpc Put (stream .shop.v1.Outer) returns (google.protobuf.Any);
}
"""
PROTO3 = """
syntax = "proto3";
package a.b;
import "google/protobuf/timestamp.proto";
import weak "google/protobuf/wrappers.proto";
message M {
  message optional_ { }
  optional int32 x = 1; string _y = 2; optional string y = 3;
  oneof real { int64 r = 4; }
  repeated E many = 5; repeated double unpacked = 6 [packed = false];
  map<int32, google.protobuf.Timestamp> times = 7;
  b.N n = 8; M.optional_ o = 9; optional_ p = 10; .a.b.N q = 11;
  string message = 12; bool enum = 13; int32 map = 14; N group = 15;
}
message N { google.protobuf.Int32Value foo_bar_2baz = 536870911; };
enum E { E_ZERO = 0; E_ONE = 0x1; }
"""


def protoc_descriptor(text: str, folder: Path, *include: Path) -> descriptor_pb2.FileDescriptorProto:
    (folder / "test.proto").write_text(text)
    output = folder / "out"
    paths = [f"-I{path}" for path in (folder, *include, GOOGLE)]
    assert protoc.main(["protoc", *paths, f"--descriptor_set_out={output}", str(folder / "test.proto")]) == 0
    return descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file[0]


def without_other_options(message):
    """Remove options that are not Google's own, and those of editions."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in value if field.is_repeated else [value]:
            without_other_options(part)
            if field.name == "options":
                part.DiscardUnknownFields()
                for option, _ in part.ListFields():
                    if option.is_extension or option.name in ("edition_defaults", "feature_support", "features"):
                        part.ClearField(option.name) if not option.is_extension else part.ClearExtension(option)
        if field.name == "options" and not value.ListFields():
            message.ClearField("options")
    return message


@pytest.mark.parametrize("text", [PROTO2, PROTO3], ids=["proto2", "proto3"])
def test_a_descriptor_has_the_bytes_of_protocs(text, tmp_path):
    schema = parse_schema(text, name="test.proto")
    assert to_descriptor(schema) == protoc_descriptor(text, tmp_path).SerializeToString(deterministic=True)


def test_real_schemas_have_the_descriptors_of_protoc(tmp_path):
    folders = (GOOGLE, COMMON)
    texts = {str(path.relative_to(f)): path.read_text() for f in folders for path in (f / "google").rglob("*.proto")}
    assert len(texts) > 50
    output = tmp_path / "out"
    paths = [f"-I{folder}" for folder in folders]
    assert protoc.main(["protoc", *paths, f"--descriptor_set_out={output}", *sorted(texts)]) == 0
    for expected in descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file:
        schema = parse_schema(texts[expected.name], texts, expected.name)
        descriptor = to_descriptor(schema)
        parsed = descriptor_pb2.FileDescriptorProto.FromString(descriptor)
        assert without_other_options(parsed) == without_other_options(expected), expected.name
        assert to_descriptor(parse_schema(descriptor, texts)) == descriptor
        normal = normal_form(schema)
        assert normal_form(parse_schema(normal, texts, expected.name)) == normal


def test_built_in_files_define_the_fields_of_the_real_ones(tmp_path):
    texts = {name: text for name, text in BUILTIN_FILES.items() if not name.startswith("confluent/")}
    output = tmp_path / "out"
    arguments = ["protoc", f"-I{GOOGLE}", f"-I{COMMON}", f"--descriptor_set_out={output}", *texts]
    assert protoc.main(arguments) == 0
    real = {f.name: f for f in descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file}
    from confluent_kafka.schema_registry.confluent import meta_pb2
    from confluent_kafka.schema_registry.confluent.type import decimal_pb2, variant_pb2
    from confluent_kafka.schema_registry.confluent.types import decimal_pb2 as renamed_pb2

    for module in (meta_pb2, decimal_pb2, variant_pb2, renamed_pb2):
        real[module.DESCRIPTOR.name] = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    assert set(real) == set(BUILTIN_FILES)
    for name, text in BUILTIN_FILES.items():
        if name == "google/protobuf/descriptor.proto":
            continue  # what is extended only
        ours = descriptor_pb2.FileDescriptorProto.FromString(to_descriptor(parse_schema(text, name=name)))
        for file in (ours, real[name]):
            for owner in (file, *file.message_type, *(m for message in file.message_type for m in message.nested_type)):
                for field in (*getattr(owner, "field", ()), *owner.extension):
                    field.ClearField("json_name")
                    field.ClearField("options")
                owner.ClearField("options") if owner is file else None
        assert ours == real[name]


def test_a_schema_is_read_from_base64_of_a_descriptor():
    descriptor = to_descriptor(parse_schema(PROTO3, name="test.proto"))
    schema = parse_schema(base64.b64encode(descriptor).decode())
    assert (schema.file.name, schema.message().full_name) == ("test.proto", "a.b.M")
    assert to_descriptor(schema) == descriptor
    damaged = 0
    for size in range(1, len(descriptor)):  # some are valid: the file ends after a field
        try:
            parse_schema(descriptor[:size])
        except SchemaError:
            damaged += 1
    assert damaged > len(descriptor) // 2


def test_messages_are_found_by_name_and_by_indexes():
    text = """syntax = "proto3"; package p;
        message A { map<string, B> m = 1; message B { message C {} } message D {} }
        message E {}"""
    schema = parse_schema(text)
    # As in the descriptor, the entry of a map has an index too.
    for name, indexes in (("A", (0,)), ("A.B", (0, 1)), ("A.B.C", (0, 1, 0)), ("A.D", (0, 2)), ("E", (1,))):
        assert schema.message_indexes(f"p.{name}") == schema.message_indexes(name) == indexes
        assert schema.message_by_indexes(indexes).full_name == f"p.{name}"
    assert schema.message().full_name == "p.A"
    with pytest.raises(SchemaError, match=r"no message p\.X in the Protobuf schema; it has p\.A, p\.A\.B"):
        schema.message("p.X")
    with pytest.raises(SchemaError, match=r"no message at the indexes \[0, 3\] .* p\.A has 3 messages"):
        schema.message_by_indexes([0, 3])


def test_the_normal_form_is_the_same_for_other_ways_to_write_a_schema():
    one = 'syntax = "proto3"; package p; import "b.proto"; import "a.proto"; message M { X x = 2; int32 y = 0x1; }'
    other = """
        syntax = 'proto3';
        import "a.proto"; import "b.proto"; /* note */ package p;
        message M { int32 y = 1; .p.X x = 2; }  // end"""
    files = {"a.proto": 'syntax = "proto3"; package p; message X {}', "b.proto": 'syntax = "proto3";'}
    assert normal_form(parse_schema(one, files)) == normal_form(parse_schema(other, files))
    changed = other.replace("int32", "int64")
    assert normal_form(parse_schema(changed, files)) != normal_form(parse_schema(one, files))


def test_the_normal_form_keeps_the_indexes_of_messages():
    text = """syntax = "proto2"; message A {
        message B {} map<string, B> m = 9; message C {} optional group G = 3 {} message D {} optional int32 x = 1; }"""
    schema = parse_schema(text)
    again = parse_schema(normal_form(schema))
    for name in ("A.B", "A.C", "A.G", "A.D"):
        assert again.message_indexes(name) == schema.message_indexes(name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("message A { int32 x = 1; }", "line 1, column 13: a field of proto2 begins with optional"),
        ('syntax = "proto3"; message A { int32 x = 0; }', "a field number is 0; expected 1 to 536870911"),
        ('syntax = "proto3"; message A { int32 x = 19000; }', "reserved by Protobuf"),
        ('syntax = "proto3"; message A { int32 x = 1; int64 y = 1; }', "fields x and y of .* have the number 1"),
        ('syntax = "proto3"; message A { int32 x = 1; int64 x = 2; }', "two fields x"),
        ('syntax = "proto3"; message A { required int32 x = 1; }', "proto3 has no required fields"),
        ('syntax = "proto3"; message A { int32 x = 1 [default = 1]; }', "proto3 has no explicit defaults"),
        ('syntax = "proto3"; message A { reserved 1; int32 x = 1; }', "is reserved in its message"),
        ('syntax = "proto3"; message A { B b = 1; }', "type B in A is not defined"),
        ('syntax = "proto3"; message A {} message A {}', "defines A twice"),
        ('syntax = "proto3"; message A { map<bytes, int32> m = 1; }', "keys of map A.m"),
        ('syntax = "proto3"; message A { repeated string x = 1 [packed = true]; }', "cannot be packed"),
        ('syntax = "proto3"; message A { oneof o { } }', "oneof o has no field"),
        ('syntax = "proto3"; enum E { A = 1; }', "first value of enum E must be 0"),
        ('syntax = "proto3"; enum E { A = 0; B = 0; }', "allow_alias"),
        ('syntax = "proto3"; import "other.proto";', "import 'other.proto' is not known; pass its text"),
        (
            'syntax = "proto3"; message A { int32 x = 1;',
            "line 1, column 44: expected a type, got 'the end of the text'",
        ),
        ('syntax = "proto4";', "unknown syntax 'proto4'"),
        ('edition = "2023";', "editions of Protobuf are not supported; use syntax proto3"),
        ('syntax = "proto3"; message A { int32 é = 1; }', "unexpected 'é"),
        ("CgA", "neither a .proto text nor base64"),
        ("/////w==", "damaged or ends too early"),
        ("message A { optional int32 x = 1 [default = 1.5]; }", "invalid default 1.5 of int32 x"),
        ("enum E { A = 1; } message M { map<int32, E> m = 1; }", "must have 0 as its first value"),
        ("message A { optional group g = 1 {} }", "begins with a capital letter"),
    ],
)
def test_an_invalid_schema_is_an_error_with_the_reason(text, words):
    with pytest.raises(SchemaError, match=words):
        parse_schema(text)


def test_schemas_are_limited():
    deep = "".join(f"message M{i} {{ " for i in range(DEPTH_MAX + 1)) + "}" * (DEPTH_MAX + 1)
    with pytest.raises(SchemaError, match="nested deeper than 100 levels"):
        parse_schema(f'syntax = "proto3"; {deep}')
    with pytest.raises(SchemaError, match=r"at most 4,194,304 are read"):
        parse_schema(" " * (TEXT_CHARS_MAX + 1))
    many = "".join(f"message M{i} {{}}" for i in range(DEFINITIONS_MAX + 1))
    with pytest.raises(SchemaError, match=r"more than 20,000 messages and enums"):
        parse_schema(f'syntax = "proto3"; {many}')
    nested = b"\x0a\x01M"
    for _ in range(DEPTH_MAX + 1):
        size = len(nested)
        nested = b"\x0a\x01M\x1a" + (bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])) + nested
    size = len(nested)
    with pytest.raises(SchemaError, match="nested deeper than 100 levels"):
        parse_schema(b"\x22" + bytes([size & 0x7F | 0x80, size >> 7]) + nested)
    cycle = {"a.proto": 'import "b.proto";', "b.proto": 'import "a.proto";'}
    with pytest.raises(SchemaError, match=r"imports form a cycle: a\.proto → b\.proto → a\.proto"):
        parse_schema('import "a.proto";', cycle)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "option java_package = " + '"a"' * 200_000 + ";",
        "message M {" + "".join(f"optional int32 f{i} = {i + 30_000} [default = {i}];" for i in range(20_000)) + "}",
        "message M {"
        + "".join(f"reserved {2 * i + 100_000};" for i in range(20_000))
        + "".join(f"optional int32 f{i} = {2 * i + 100_001};" for i in range(20_000))
        + "}",
    ],
    ids=["strings", "defaults", "reserved"],
)
def test_a_large_text_takes_time_in_proportion_to_its_size(text):
    assert parse_schema(text).file.syntax == "proto2"


def test_a_message_that_expands_without_end_is_an_error():
    with pytest.raises(SchemaError, match=r"message A contains itself \(field b\.a\), .* choose columns"):
        arrow_type(
            parse_schema('syntax = "proto3"; message A { B b = 1; } message B { repeated A a = 1; int32 c = 2; }')
        )
    doubling = "".join(f"message M{i} {{ M{i + 1} a = 1; M{i + 1} b = 2; }}" for i in range(20))
    with pytest.raises(SchemaError, match=r"more than 20,000 fields after expansion"):
        arrow_type(parse_schema(f'syntax = "proto3"; {doubling} message M20 {{ int32 x = 1; }}'))


def test_recursive_fields_can_be_left_out_with_columns():
    text = 'syntax = "proto3"; message Tree { string name = 1; Tree left = 2; repeated Tree items = 3; }'
    assert ProtobufDecoder(text, columns=["name"]).arrow_type == pa.struct([pa.field("name", pa.string(), False)])
    inner = pa.struct([pa.field("name", pa.string(), False)])
    with pytest.raises(SchemaError, match="contains itself"):
        ProtobufDecoder(text, columns=["left.name"])
    assert ProtobufEncoder(text, pa.struct([("name", pa.string()), ("left", inner)])).arrow_type.num_fields == 2


def test_fields_become_arrow_fields():
    text = """syntax = "proto3"; package p;
        import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
        import "google/protobuf/wrappers.proto"; import "google/protobuf/struct.proto";
        import "google/protobuf/any.proto"; import "google/type/date.proto";
        import "confluent/meta.proto"; import "confluent/type/decimal.proto";
        message M {
          int32 a = 1; optional int32 b = 2; uint32 c = 3; uint64 d = 4; E e = 5; repeated string f = 6;
          map<string, int64> g = 7; oneof o { bool h = 8; } google.protobuf.Timestamp i = 9;
          google.protobuf.Duration j = 10; google.protobuf.UInt32Value k = 11; google.protobuf.Struct l = 12;
          google.protobuf.Any m = 13; google.type.Date n = 14; confluent.type.Decimal q = 15;
          confluent.type.Decimal r = 16 [(confluent.field_meta) = {
            params: [{ key: "precision", value: "9" }, { key: "scale", value: "2" }] }];
          confluent.type.Decimal s = 17 [(confluent.field_meta).params = { key: "precision" value: "40" }];
          repeated google.protobuf.Timestamp t = 18; bytes u = 19; float v = 20; double w = 21;
        }
        enum E { ZERO = 0; }"""
    decimal = pa.struct(
        [pa.field(n, t, False) for n, t in (("value", pa.binary()), ("precision", pa.int64()), ("scale", pa.int32()))]
    )
    moment = pa.timestamp("us", tz="UTC")
    expected = [
        *(("a", pa.int32(), False), ("b", pa.int32(), True), ("c", pa.int64(), False), ("d", pa.decimal128(20), False)),
        *(("e", pa.string(), False), ("f", pa.list_(pa.field("item", pa.string(), False)), False)),
        ("g", pa.map_(pa.string(), pa.field("value", pa.int64(), False)), False),
        *(("h", pa.bool_(), True), ("i", moment, True), ("j", pa.duration("us"), True), ("k", pa.int64(), True)),
        ("l", pa.binary(), True),
        ("m", pa.struct([pa.field("type_url", pa.string(), False), pa.field("value", pa.binary(), False)]), True),
        ("n", pa.struct([pa.field(name, pa.int32(), False) for name in ("year", "month", "day")]), True),
        *(("q", decimal, True), ("r", pa.decimal128(9, 2), True), ("s", pa.decimal256(40, 0), True)),
        ("t", pa.list_(pa.field("item", moment, False)), False),
        *(("u", pa.binary(), False), ("v", pa.float32(), False), ("w", pa.float64(), False)),
    ]
    schema = parse_schema(text)
    assert arrow_type(schema) == pa.struct([pa.field(*field) for field in expected])
    # Precision and scale survive the descriptor, in which registries return schemas.
    assert arrow_type(parse_schema(to_descriptor(schema))) == arrow_type(schema)
    assert arrow_type(parse_schema(normal_form(schema))) == arrow_type(schema)


def test_fields_of_proto2_are_nullable_unless_they_are_required():
    text = "message M { required int32 a = 1; optional int32 b = 2 [default = 5]; repeated group C = 3 {} }"
    items = pa.list_(pa.field("item", pa.struct([]), False))
    fields = [pa.field("a", pa.int32(), False), pa.field("b", pa.int32()), pa.field("c", items, False)]
    assert arrow_type(parse_schema(text)) == pa.struct(fields)


@pytest.mark.parametrize(
    ("data_type", "words"),
    [
        (pa.int64(), "needs an Arrow struct"),
        (pa.struct([("a", pa.list_(pa.list_(pa.int32())))]), "no Protobuf type for Arrow type list"),
        (pa.struct([("a", pa.timestamp("us"))]), r"no Protobuf type .* \(a\): cast the column"),
        (pa.struct([("a b", pa.int32())]), "column a b has no name that Protobuf allows"),
    ],
)
def test_a_type_without_a_schema_is_an_error(data_type, words):
    with pytest.raises(SchemaError, match=words):
        derive_schema(data_type)
