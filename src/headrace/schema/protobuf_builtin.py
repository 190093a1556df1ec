"""Files that schemas import without passing them: Google's well-known and common types, Confluent's decimal.

`google/protobuf/descriptor.proto` has the messages only that others extend; extensions are never decoded.
"""

from __future__ import annotations


def _file(package: str, content: str, *imports: str, syntax: str = "proto3") -> str:
    lines = "".join(f'import "{name}";\n' for name in imports)
    return f'syntax = "{syntax}";\n{lines}package {package};\n{content}'


def _google(content: str, *imports: str) -> str:
    return _file("google.protobuf", content, *(f"google/protobuf/{name}.proto" for name in imports))


def _type(content: str, *imports: str) -> str:
    return _file("google.type", content, *(f"google/protobuf/{name}.proto" for name in imports))


_EXTENDED = ("File", "Message", "Field", "Oneof", "ExtensionRange", "Enum", "EnumValue", "Service", "Method")
_WRAPPED = ("double", "float", "int64", "uint64", "int32", "uint32", "bool", "string", "bytes")
_WRAPPER_NAMES = {"int64": "Int64", "uint64": "UInt64", "int32": "Int32", "uint32": "UInt32"}

WRAPPER_TYPES = {f"google.protobuf.{_WRAPPER_NAMES.get(kind, kind.capitalize())}Value": kind for kind in _WRAPPED}
"""The scalar type of each message of google/protobuf/wrappers.proto, by full name."""

_DESCRIPTOR = "".join(f"message {name}Options {{ extensions 1000 to max; }}\n" for name in _EXTENDED)
_META = """
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; repeated Rule rules = 4; }
message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
"""
_META += "".join(
    f"extend google.protobuf.{kind}Options {{ Meta {name}_meta = 1088; }}\n"
    for kind, name in (
        ("File", "file"),
        ("Message", "message"),
        ("Field", "field"),
        ("Enum", "enum"),
        ("EnumValue", "enum_value"),
    )
)
_TYPE_PROTO = """
message Type {
  string name = 1; repeated Field fields = 2; repeated string oneofs = 3; repeated Option options = 4;
  SourceContext source_context = 5; Syntax syntax = 6; string edition = 7;
}
message Field {
  enum Kind {
    TYPE_UNKNOWN = 0; TYPE_DOUBLE = 1; TYPE_FLOAT = 2; TYPE_INT64 = 3; TYPE_UINT64 = 4; TYPE_INT32 = 5;
    TYPE_FIXED64 = 6; TYPE_FIXED32 = 7; TYPE_BOOL = 8; TYPE_STRING = 9; TYPE_GROUP = 10; TYPE_MESSAGE = 11;
    TYPE_BYTES = 12; TYPE_UINT32 = 13; TYPE_ENUM = 14; TYPE_SFIXED32 = 15; TYPE_SFIXED64 = 16; TYPE_SINT32 = 17;
    TYPE_SINT64 = 18;
  }
  enum Cardinality {
    CARDINALITY_UNKNOWN = 0; CARDINALITY_OPTIONAL = 1; CARDINALITY_REQUIRED = 2; CARDINALITY_REPEATED = 3;
  }
  Kind kind = 1; Cardinality cardinality = 2; int32 number = 3; string name = 4; string type_url = 6;
  int32 oneof_index = 7; bool packed = 8; repeated Option options = 9; string json_name = 10;
  string default_value = 11;
}
message Enum {
  string name = 1; repeated EnumValue enumvalue = 2; repeated Option options = 3; SourceContext source_context = 4;
  Syntax syntax = 5; string edition = 6;
}
message EnumValue { string name = 1; int32 number = 2; repeated Option options = 3; }
message Option { string name = 1; Any value = 2; }
enum Syntax { SYNTAX_PROTO2 = 0; SYNTAX_PROTO3 = 1; SYNTAX_EDITIONS = 2; }
"""
_API_PROTO = """
message Api {
  string name = 1; repeated Method methods = 2; repeated Option options = 3; string version = 4;
  SourceContext source_context = 5; repeated Mixin mixins = 6; Syntax syntax = 7; string edition = 8;
}
message Method {
  string name = 1; string request_type_url = 2; bool request_streaming = 3; string response_type_url = 4;
  bool response_streaming = 5; repeated Option options = 6; Syntax syntax = 7 [deprecated = true];
  string edition = 8 [deprecated = true];
}
message Mixin { string name = 1; string root = 2; }
"""
_STRUCT = """
message Struct { map<string, Value> fields = 1; }
message Value {
  oneof kind {
    NullValue null_value = 1; double number_value = 2; string string_value = 3; bool bool_value = 4;
    Struct struct_value = 5; ListValue list_value = 6;
  }
}
enum NullValue { NULL_VALUE = 0; }
message ListValue { repeated Value values = 1; }
"""
_POSTAL_ADDRESS = """
message PostalAddress {
  int32 revision = 1; string region_code = 2; string language_code = 3; string postal_code = 4;
  string sorting_code = 5; string administrative_area = 6; string locality = 7; string sublocality = 8;
  repeated string address_lines = 9; repeated string recipients = 10; string organization = 11;
}
"""
_DATE_TIME = """
message DateTime {
  int32 year = 1; int32 month = 2; int32 day = 3; int32 hours = 4; int32 minutes = 5; int32 seconds = 6;
  int32 nanos = 7;
  oneof time_offset { google.protobuf.Duration utc_offset = 8; TimeZone time_zone = 9; }
}
message TimeZone { string id = 1; string version = 2; }
"""
_PHONE_NUMBER = """
message PhoneNumber {
  message ShortCode { string region_code = 1; string number = 2; }
  oneof kind { string e164_number = 1; ShortCode short_code = 2; }
  string extension = 3;
}
"""
_MONTHS = "January February March April May June July August September October November December".upper().split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".upper().split()
_PERIODS = ["DAY", "WEEK", "FORTNIGHT", "MONTH", "QUARTER", "HALF", "YEAR"]


def _enum(name: str, first: str, others: list[str]) -> str:
    values = " ".join(f"{value} = {number};" for number, value in enumerate([first, *others]))
    return f"enum {name} {{ {values} }}"


BUILTIN_FILES: dict[str, str] = {
    "google/protobuf/any.proto": _google("message Any { string type_url = 1; bytes value = 2; }"),
    "google/protobuf/api.proto": _google(_API_PROTO, "source_context", "type"),
    "google/protobuf/descriptor.proto": _file("google.protobuf", _DESCRIPTOR, syntax="proto2"),
    "google/protobuf/duration.proto": _google("message Duration { int64 seconds = 1; int32 nanos = 2; }"),
    "google/protobuf/empty.proto": _google("message Empty {}"),
    "google/protobuf/field_mask.proto": _google("message FieldMask { repeated string paths = 1; }"),
    "google/protobuf/source_context.proto": _google("message SourceContext { string file_name = 1; }"),
    "google/protobuf/struct.proto": _google(_STRUCT),
    "google/protobuf/timestamp.proto": _google("message Timestamp { int64 seconds = 1; int32 nanos = 2; }"),
    "google/protobuf/type.proto": _google(_TYPE_PROTO, "any", "source_context"),
    "google/protobuf/wrappers.proto": _google(
        "".join(f"message {name.rpartition('.')[2]} {{ {kind} value = 1; }}\n" for name, kind in WRAPPER_TYPES.items())
    ),
    "google/type/calendar_period.proto": _type(_enum("CalendarPeriod", "CALENDAR_PERIOD_UNSPECIFIED", _PERIODS)),
    "google/type/color.proto": _type(
        "message Color { float red = 1; float green = 2; float blue = 3; google.protobuf.FloatValue alpha = 4; }",
        "wrappers",
    ),
    "google/type/date.proto": _type("message Date { int32 year = 1; int32 month = 2; int32 day = 3; }"),
    "google/type/datetime.proto": _type(_DATE_TIME, "duration"),
    "google/type/dayofweek.proto": _type(_enum("DayOfWeek", "DAY_OF_WEEK_UNSPECIFIED", _DAYS)),
    "google/type/decimal.proto": _type("message Decimal { string value = 1; }"),
    "google/type/expr.proto": _type(
        "message Expr { string expression = 1; string title = 2; string description = 3; string location = 4; }"
    ),
    "google/type/fraction.proto": _type("message Fraction { int64 numerator = 1; int64 denominator = 2; }"),
    "google/type/interval.proto": _type(
        "message Interval { google.protobuf.Timestamp start_time = 1; google.protobuf.Timestamp end_time = 2; }",
        "timestamp",
    ),
    "google/type/latlng.proto": _type("message LatLng { double latitude = 1; double longitude = 2; }"),
    "google/type/localized_text.proto": _type("message LocalizedText { string text = 1; string language_code = 2; }"),
    "google/type/money.proto": _type("message Money { string currency_code = 1; int64 units = 2; int32 nanos = 3; }"),
    "google/type/month.proto": _type(_enum("Month", "MONTH_UNSPECIFIED", _MONTHS)),
    "google/type/phone_number.proto": _type(_PHONE_NUMBER),
    "google/type/postal_address.proto": _type(_POSTAL_ADDRESS),
    "google/type/quaternion.proto": _type(
        "message Quaternion { double x = 1; double y = 2; double z = 3; double w = 4; }"
    ),
    "google/type/timeofday.proto": _type(
        "message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }"
    ),
    "confluent/meta.proto": _file(
        "confluent",
        _META,
        "google/protobuf/descriptor.proto",
    ),
    "confluent/type/variant.proto": _file("confluent.type", "message Variant { bytes metadata = 1; bytes value = 2; }"),
    "confluent/types/decimal.proto": 'syntax = "proto3"; import public "confluent/type/decimal.proto";',
    "confluent/type/decimal.proto": _file(
        "confluent.type", "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }"
    ),
}
