"""Records with schemas as typed columns: the source without Spark, then with Spark."""

from __future__ import annotations

import json
import logging
import threading
import time

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, StructType

pytest.importorskip("pyspark")

from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.client.schema_decoder import SchemaDecoder
from headrace.errors import ConfigError, RegistryUnavailableError
from headrace.schema import framing
from headrace.spark import format_options
from headrace.spark.errors import BadRecordError, PlanError
from headrace.spark.reading import FETCHERS
from tests.support.scripted_registry import SmallRegistry
from tests.support.topics import unique
from tests.support.typed_records import (
    NEW_ORDER,
    OLD_ORDER,
    ORDER,
    ORDER_TEXT,
    avro,
    batch_reader,
    options_of,
    order,
    planned,
    read,
    read_table,
    send,
    stream_reader,
)
from tests.support.waiting import eventually

ORDER_TYPE = "struct<id:bigint,customer:string,at:timestamp>"


@pytest.fixture
def registry():
    server = SmallRegistry()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _nothing_stays_open():
    yield
    FETCHERS.close_idle()
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-read-ahead"]


@pytest.fixture
def topic(headrace_broker, registry):
    """A topic with a schema for its values."""
    name = headrace_broker.create_topic(unique("orders"))
    registry.add(f"{name}-value", ORDER_TEXT)
    return name


@pytest.fixture
def query(headrace_broker, registry, topic):
    """A function that returns the options of a query of the topic."""
    return lambda **options: options_of(headrace_broker.bootstrap, registry.url, topic, **options)


def orders(numbers, schema_id=1, schema=ORDER):
    return [avro(schema, order(number), schema_id) for number in numbers]


def values_of(table):
    return table.column("value").to_pylist()


def ids_of(table):
    return [value and value["id"] for value in values_of(table)]


@pytest.mark.behaviour("R03")
def test_values_become_a_struct_column(headrace_broker, topic, query):
    send(headrace_broker.bootstrap, topic, [*orders(range(5)), None])

    _, schema = planned(query())
    table = read_table(query())

    assert schema["value"].dataType.simpleString() == ORDER_TYPE
    assert schema["value"].nullable
    assert isinstance(schema["value"].dataType, types.StructType)
    assert [field.nullable for field in schema["value"].dataType] == [False, True, False]
    assert schema["key"].dataType.simpleString() == "binary"
    assert ids_of(table) == [0, 1, 2, 3, 4, None]
    assert values_of(table)[1]["customer"] == "c1"
    assert values_of(table)[1]["at"].timestamp() == pytest.approx(1_700_000_000.001)
    assert table.schema.equals(to_arrow_schema(schema, timezone="UTC"))  # what Spark requires


def test_keys_have_a_format_of_their_own(headrace_broker, registry, topic, query):
    key_id = registry.add(f"{topic}-key", '"string"')
    send(headrace_broker.bootstrap, topic, [b"raw", b"raw"], keys=[avro("string", "a", key_id), None])

    table = read_table(query(value_format="none", key_format="avro"))

    assert table.schema.field("key").type == pa.string()
    assert table.column("key").to_pylist() == ["a", None]
    assert values_of(table) == [b"raw", b"raw"]


@pytest.mark.behaviour("R03")
def test_records_of_several_schemas_are_read_with_the_latest(headrace_broker, registry, topic, query):
    new_id = registry.add(f"{topic}-value", json.dumps(NEW_ORDER))
    new = [avro(NEW_ORDER, {**order(1), "currency": "USD"}, new_id)]
    send(headrace_broker.bootstrap, topic, [*orders([0]), *new, *orders([2])])

    rows = values_of(read_table(query()))

    assert [(row["id"], row["currency"]) for row in rows] == [(0, "EUR"), (1, "USD"), (2, "EUR")]


def test_the_reader_schema_can_be_a_version_or_a_text(headrace_broker, registry, topic, query):
    registry.add(f"{topic}-value", json.dumps(NEW_ORDER))
    send(headrace_broker.bootstrap, topic, orders([7]))

    assert list(values_of(read_table(query(reader_schema="1")))[0]) == ["id", "customer", "at"]
    assert values_of(read_table(query(reader_schema=json.dumps(OLD_ORDER)))) == [{"id": 7}]


def test_a_new_dataframe_has_the_latest_version_if_an_older_one_is_cached(registry, topic, query):
    _, before = planned(query())
    registry.add(f"{topic}-value", json.dumps(NEW_ORDER))
    _, after = planned(query())

    assert field_names(before["value"].dataType) == ["id", "customer", "at"]
    assert field_names(after["value"].dataType) == ["id", "customer", "at", "currency"]


def field_names(data_type: DataType) -> list[str]:
    assert isinstance(data_type, StructType)
    return data_type.fieldNames()


def test_the_schema_of_a_dataframe_stays_when_a_newer_one_is_registered(headrace_broker, registry, topic, query):
    send(headrace_broker.bootstrap, topic, orders([1]))
    reader = batch_reader(query(schema_registry_latest_cache_ttl_sec=0))
    new_id = registry.add(f"{topic}-value", json.dumps(NEW_ORDER))
    send(headrace_broker.bootstrap, topic, [avro(NEW_ORDER, {**order(2), "currency": "USD"}, new_id)])

    rows = values_of(read(reader))

    assert [list(row) for row in rows] == [["id", "customer", "at"]] * 2


def test_a_schema_id_in_a_header_is_found(headrace_broker, registry, topic, query):
    header = framing.encode_guid(registry.guid(1))
    bare = orders([3])[0][framing.ID_BYTES :]
    send(headrace_broker.bootstrap, topic, [bare], headers=[[("__value_schema_id", header)]])

    table = read_table(query(includeHeaders="true"))

    assert ids_of(table) == [3]
    assert table.column("headers").to_pylist()[0][0]["value"] == header


PROTO = """
syntax = "proto3";
package shop;
message Refund { int64 id = 1; }
message Order { int64 id = 1; string customer = 2; optional string note = 3; }
"""


def test_a_message_type_of_a_protobuf_schema_can_be_chosen(headrace_broker, registry, query):
    topic = headrace_broker.create_topic(unique("proto"))
    schema_id = registry.add(f"{topic}-value", PROTO, "PROTOBUF")
    order_value = framing.encode_id(schema_id, [1]) + b"\x08\x07\x12\x03Ann"
    send(headrace_broker.bootstrap, topic, [order_value])
    options = query(subscribe=topic, value_format="protobuf", value_record_name="shop.Order")

    (row,) = values_of(read_table(options))

    assert (row["id"], row["customer"], row["note"]) == (7, "Ann", None)


def test_json_values_have_the_types_of_their_schema(headrace_broker, registry, query):
    topic = headrace_broker.create_topic(unique("json"))
    schema = {
        "type": "object",
        "required": ["id"],
        "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
    }
    schema_id = registry.add(f"{topic}-value", json.dumps(schema), "JSON")
    bad, good = (framing.encode_id(schema_id) + text for text in (b'{"note": "x"}', b'{"id": 3, "more": 1}'))
    send(headrace_broker.bootstrap, topic, [good, bad])
    options = query(subscribe=topic, value_format="json", on_bad_record="null")

    assert planned(options)[1]["value"].dataType.simpleString() == "struct<id:bigint,note:string>"
    assert values_of(read_table(options)) == [{"id": 3, "note": None}, None]


def test_a_schema_of_another_format_is_an_error_with_the_remedy(query, topic):
    with pytest.raises(PlanError, match=f"{topic}-value.*format avro, value.format is json; change the option"):
        planned(query(value_format="json"))


# -- chosen fields ---------------------------------------------------------------------------------


def test_only_the_fields_of_the_users_schema_are_decoded(headrace_broker, topic, query):
    not_utf8 = orders([5])[0].replace(b"c5", b"\xff\xff")
    send(headrace_broker.bootstrap, topic, [not_utf8])
    schema = types.StructType().add("value", types.StructType().add("id", types.LongType())).add("offset", "long")

    assert read_table(query(), schema).to_pylist() == [{"value": {"id": 5}, "offset": 0}]
    with pytest.raises(BadRecordError, match="field customer"):
        read_table(query())


def test_a_query_without_the_value_column_does_not_decode_it(headrace_broker, topic, query):
    send(headrace_broker.bootstrap, topic, [b"not avro"])

    assert read_table(query(), types.StructType().add("offset", "long")).to_pylist() == [{"offset": 0}]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (types.StructField("name", types.StringType()), "value.name, which the reader's schema does not have"),
        (types.StructField("id", types.IntegerType()), "value.id as int, the reader's schema as bigint"),
        (types.StructField("customer", types.StringType(), False), "value.customer as NOT NULL"),
    ],
)
def test_a_users_schema_that_does_not_fit_is_an_error(field, message, query):
    with pytest.raises(ConfigError, match=message):
        batch_reader(query(), types.StructType().add("value", types.StructType([field])))


# -- several topics --------------------------------------------------------------------------------


def test_topics_of_one_type_are_read_together(headrace_broker, registry, topic, query):
    other = headrace_broker.create_topic(unique("more"))
    other_id = registry.add(f"{other}-value", json.dumps({**ORDER, "doc": "of another topic"}))
    send(headrace_broker.bootstrap, topic, orders([1]))
    send(headrace_broker.bootstrap, other, orders([2], other_id))

    assert sorted(ids_of(read_table(query(subscribe=f"{topic},{other}")))) == [1, 2]


def test_topics_of_different_types_are_an_error_that_names_them(headrace_broker, registry, topic, query):
    other = headrace_broker.create_topic(unique("more"))
    registry.add(f"{other}-value", json.dumps(OLD_ORDER))

    with pytest.raises(PlanError, match="several types") as caught:
        planned(query(subscribe=f"{topic},{other}"))

    for text in (topic, other, ORDER_TYPE, "struct<id:bigint>", "Set reader.schema"):
        assert text in str(caught.value)
    planned(query(subscribe=f"{topic},{other}", reader_schema=json.dumps(OLD_ORDER)))


def test_a_topic_that_appears_while_a_stream_runs_is_decoded(headrace_broker, registry, topic, query):
    options = query(subscribePattern=f"{topic}.*", startingOffsets="earliest")
    del options["subscribe"]
    reader = stream_reader(options)
    start = reader.initialOffset()
    other = headrace_broker.create_topic(f"{topic}-2")
    other_id = registry.add(f"{other}-value", json.dumps({**ORDER, "doc": "new"}))
    send(headrace_broker.bootstrap, other, orders([9], other_id))

    parts = reader.partitions(start, reader.latestOffset(start))
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    reader.stop()

    assert [row["value"]["id"] for row in rows] == [9]


# -- bad records -----------------------------------------------------------------------------------

WRONG_MAGIC = b"\x01\x00\x00\x00\x01abc"
TOO_SHORT = b"\x00\x00"


def bad_values():
    good = orders([1])[0]
    return {
        "wrong magic": WRONG_MAGIC,
        "too short": TOO_SHORT,
        "unknown id": framing.encode_id(999) + b"x",
        "truncated": good[:-2],
    }


@pytest.mark.behaviour("R03")
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("wrong magic", r"no schema id"),
        ("too short", r"no schema id"),
        ("unknown id", r"unknown schema\): schema id 999"),
        ("truncated", r"invalid data\): schema id 1"),
    ],
)
def test_a_bad_record_fails_the_query_with_its_position(name, cause, headrace_broker, topic, query):
    send(headrace_broker.bootstrap, topic, [*orders([0]), bad_values()[name]])

    with pytest.raises(BadRecordError, match=rf"{topic}-0, offset 1: its value cannot be decoded \({cause}") as caught:
        read_table(query())

    assert "on.bad.record" in str(caught.value)


@pytest.mark.behaviour("R03")
def test_bad_records_can_be_null(headrace_broker, topic, query, caplog):
    send(headrace_broker.bootstrap, topic, [*orders([0]), *bad_values().values(), *orders([2])])

    with caplog.at_level(logging.WARNING, "headrace"):
        table = read_table(query(on_bad_record="null"))

    assert ids_of(table) == [0, None, None, None, None, 2]
    assert "4 records could not be decoded" in caplog.text
    assert f"{topic}-0, offset 1" in caplog.text


@pytest.mark.behaviour("R03")
def test_bad_records_can_go_to_a_column(headrace_broker, topic, query):
    send(headrace_broker.bootstrap, topic, [*orders([0]), WRONG_MAGIC, None], keys=[b"a", b"b", None])

    table = read_table(query(on_bad_record="corrupt-column"))

    good, bad, empty = table.column("_corrupt").to_pylist()
    assert (good, empty) == (None, None)
    assert (bad["key"], bad["value"]) == (b"b", WRONG_MAGIC)
    assert bad["error"].startswith("value: ")
    assert table.schema.equals(to_arrow_schema(planned(query(on_bad_record="corrupt-column"))[1], timezone="UTC"))


def test_a_deleted_schema_is_a_bad_record(headrace_broker, registry, topic, query):
    deleted = registry.add("gone", json.dumps(NEW_ORDER))
    del registry.schemas[deleted]
    send(headrace_broker.bootstrap, topic, orders([1], deleted))

    with pytest.raises(BadRecordError, match=f"schema id {deleted}"):
        read_table(query())


def test_a_time_that_spark_cannot_hold_is_a_bad_record(headrace_broker, topic, query):
    late = avro(ORDER, {**order(1), "at": 2**62}, 1)
    send(headrace_broker.bootstrap, topic, [*orders([0]), late, *orders([2])])

    table = read_table(query(on_bad_record="corrupt-column"))

    assert ids_of(table) == [0, None, 2]
    assert "out of the range" in table.column("_corrupt").to_pylist()[1]["error"]


def test_an_array_that_claims_a_huge_size_is_a_bad_record(headrace_broker, registry, query):
    topic = headrace_broker.create_topic(unique("arrays"))
    schema_id = registry.add(f"{topic}-value", '{"type": "array", "items": "long"}')
    huge = framing.encode_id(schema_id) + b"\xfe\xff\xff\xff\xff\xff\x7f"
    send(headrace_broker.bootstrap, topic, [huge, avro({"type": "array", "items": "long"}, [1, 2], schema_id)])

    assert values_of(read_table(query(subscribe=topic, on_bad_record="null"))) == [None, [1, 2]]


def test_rows_that_are_too_large_together_come_in_smaller_batches(headrace_broker, topic, query, monkeypatch):
    decode = SchemaDecoder.decode

    def limited(decoder, topic, values, headers=None):
        if len(values) > 2 or any(b"c4" in value for value in values.to_pylist()):
            raise OverflowError("the decoded column is too large")
        return decode(decoder, topic, values, headers)

    monkeypatch.setattr(SchemaDecoder, "decode", limited)
    headers = [[("number", b"%d" % number)] if number % 2 else [] for number in range(8)]
    send(headrace_broker.bootstrap, topic, orders(range(8)), headers=headers)

    table = read_table(query(on_bad_record="corrupt-column", includeHeaders="true"))

    assert ids_of(table) == [0, 1, 2, 3, None, 5, 6, 7]
    assert "too large" in table.column("_corrupt").to_pylist()[4]["error"]
    assert [len(chunk) for chunk in table.column("value").chunks] == [2, 2, 1, 1, 2]
    numbers = [row and row[0]["value"] for row in table.column("headers").to_pylist()]
    assert numbers == [None, b"1", None, b"3", None, b"5", None, b"7"]


def test_a_schema_that_is_too_deep_is_a_named_error(headrace_broker, registry, query, topic):
    deep = '"long"'
    for _ in range(500):
        deep = '{"type": "array", "items": ' + deep + "}"
    registry.add(f"{topic}-value", deep)

    with pytest.raises(PlanError, match=f"column 'value' of topic '{topic}' is not known"):
        planned(query())


# -- the registry is unavailable -------------------------------------------------------------------


def test_a_registry_that_is_down_when_planning_is_named(registry, query):
    registry.is_down = True

    with pytest.raises(PlanError, match=r"column 'value' .* schema\.registry\.url"):
        planned(query())


def test_a_topic_without_a_schema_is_a_named_error(headrace_broker, query):
    other = headrace_broker.create_topic(unique("bare"))

    with pytest.raises(PlanError, match=f"topic '{other}'.*Register a schema, or set reader.schema"):
        planned(query(subscribe=other))


def test_known_schemas_need_no_registry(headrace_broker, registry, topic, query):
    send(headrace_broker.bootstrap, topic, orders(range(3)))
    reader = batch_reader(query())
    registry.is_down = True

    assert ids_of(read(reader)) == [0, 1, 2]


def test_an_unknown_schema_waits_for_the_registry_and_says_so(
    headrace_broker, registry, topic, query, caplog, monkeypatch
):
    monkeypatch.setattr(format_options, "WAIT_SECONDS", 0.05)
    new_id = registry.add("elsewhere", json.dumps(NEW_ORDER))
    send(headrace_broker.bootstrap, topic, [avro(NEW_ORDER, {**order(4), "currency": "USD"}, new_id)])
    reader = batch_reader(query())
    registry.is_down = True
    tables = []
    with caplog.at_level(logging.WARNING, "headrace"):
        reading = threading.Thread(target=lambda: tables.append(read(reader)))
        reading.start()
        eventually("the task waits", lambda: "waiting for the schema registry" in caplog.text)
        registry.is_down = False
        reading.join(30)

    assert ids_of(tables[0]) == [4]


def test_the_wait_for_a_schema_ends_with_a_named_error(headrace_broker, registry, topic, query, monkeypatch):
    monkeypatch.setattr(format_options, "WAIT_SECONDS", 0.05)
    send(headrace_broker.bootstrap, topic, orders([1], 77))
    reader = batch_reader(query(**{"kafkaConsumer_pollTimeoutMs": 300}))
    registry.is_down = True
    started_at = time.monotonic()

    with pytest.raises(
        RegistryUnavailableError, match=f"timed out after 300 ms waiting for .* {topic}-0, from offset 0"
    ):
        read(reader)

    assert time.monotonic() - started_at < 20
