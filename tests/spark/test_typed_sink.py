"""Struct columns as records with schemas: the sink without Spark, then with Spark."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import fastavro
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types

from headrace.broker import EmbeddedBroker
from headrace.client.registry import SchemaRegistryClient
from headrace.errors import ConfigError
from headrace.producer.interceptors import ProducerInterceptor
from headrace.schema import Schema, framing
from headrace.spark import format_options, sink
from headrace.spark.arrow_types import arrow_type
from headrace.spark.columns import ColumnPlan
from headrace.spark.errors import BadRowError, PlanError, SinkError
from headrace.spark.sink_options import SinkOptions
from tests.support.crashes import committed
from tests.support.scripted_registry import SmallRegistry
from tests.support.topics import unique
from tests.support.typed_records import ORDER

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
ORDERS = types.StructType().add("id", "long").add("state", "string").add("note", "string")
ROWS: list[Any] = [{"id": 1, "state": "NEW", "note": None}, {"id": 2, "state": "PAID", "note": "ü"}, None]


@pytest.fixture
def registry():
    server = SmallRegistry()
    yield server
    server.close()


@pytest.fixture
def topic(headrace_broker, registry):
    name = headrace_broker.create_topic(unique("orders"))
    registry.add(f"{name}-value", json.dumps(SCHEMA))
    return name


@pytest.fixture
def options(headrace_broker, registry, topic):
    """A function that returns the options of a sink; `value__format` sets value.format, and so on."""

    def parsed(**given):
        base = {
            "kafka.bootstrap.servers": headrace_broker.bootstrap,
            "kafka.max.block.ms": "2000",
            "topic": topic,
            "value.format": "avro",
            "schema.registry.url": registry.url,
            "schema.registry.max.retries": "0",
        }
        base |= {name.replace("__", "."): value for name, value in given.items()}
        return SinkOptions.parse({name: value for name, value in base.items() if value is not None}, is_stream=False)

    return parsed


def columns_of(value_type=ORDERS, **others):
    schema = types.StructType().add("value", value_type)
    for name, kind in others.items():
        schema = schema.add(name, kind)
    return schema


def prepare(options, rows, schema=None, **others):
    """Plan a write, and return what a task sends by topic, and its plan."""
    schema = schema or columns_of()
    limits = sink.plan(options, schema)
    batch = pa.RecordBatch.from_pydict(
        {
            name: pa.array(values, arrow_type(schema[name].dataType))
            for name, values in {"value": rows, **others}.items()
        }
    )
    plan = ColumnPlan(options, limits, "task 0", lambda topic, highest: 1)
    sent: dict[str, list[dict[str, Any]]] = {}
    for sending in plan.prepare(batch):
        sent.setdefault(sending.topic, []).extend(sending.columns.to_pylist())
    return sent, plan


def decoded(value, schema=SCHEMA):
    if value is None:
        return None
    schema_id, payload = framing.decode(value)
    return schema_id.id, fastavro.schemaless_reader(io.BytesIO(bytes(payload)), fastavro.parse_schema(schema), None)


def test_structs_are_encoded_with_the_schema_of_the_topic(options, topic):
    sent, plan = prepare(options(), ROWS)

    assert [decoded(row["value"]) for row in sent[topic]] == [(1, ROWS[0]), (1, ROWS[1]), None]
    assert plan.bad_count == 0


def test_keys_may_be_primitive(options, topic, registry):
    key_id = registry.add(f"{topic}-key", '"long"')

    sent, _ = prepare(options(key__format="avro"), ROWS[:1], columns_of(key="long"), key=[77])

    assert decoded(sent[topic][0]["key"], "long") == (key_id, 77)


def test_without_a_format_strings_are_sent_as_before(options, topic):
    sent, _ = prepare(
        options(value__format=None, schema__registry__url=None, **{"schema__registry__max__retries": None}),
        ["a"],
        columns_of("string"),
    )

    assert sent[topic][0]["value"] == "a"


# -- planning --------------------------------------------------------------------------------------


@pytest.mark.behaviour("R03")
def test_columns_that_never_fit_are_an_error_before_any_row(options, topic):
    wrong = types.StructType().add("id", "string").add("state", "string")

    with pytest.raises(PlanError, match="column 'value' of type struct<id:string,state:string> cannot be") as caught:
        sink.plan(options(), columns_of(wrong))

    for text in ("schema id 1", f"{topic}-value", "id", "writer.schema"):
        assert text in str(caught.value)


def test_a_missing_required_field_is_an_error_before_any_row(options):
    with pytest.raises(PlanError, match="state"):
        sink.plan(options(), columns_of(types.StructType().add("id", "long")))


def test_a_topic_without_a_schema_is_an_error_with_the_remedy(options, headrace_broker):
    bare = headrace_broker.create_topic(unique("bare"))

    with pytest.raises(PlanError, match=r"schema\.auto\.register=true"):
        sink.plan(options(topic=bare), columns_of())


def test_a_schema_is_derived_and_registered_if_that_is_allowed(options, headrace_broker, registry):
    bare = headrace_broker.create_topic(unique("bare"))

    sent, _ = prepare(options(topic=bare, schema__auto__register="true"), ROWS)

    (schema_id,) = registry.subjects[f"{bare}-value"]
    schema = json.loads(registry.schemas[schema_id]["schema"])
    assert [field["name"] for field in schema["fields"]] == ["id", "state", "note"]
    assert decoded(sent[bare][1]["value"], schema) == (schema_id, ROWS[1])


def test_a_derived_schema_that_is_incompatible_names_the_remedies(options, headrace_broker):
    bare = headrace_broker.create_topic(unique("bare"))
    with EmbeddedBroker(schema_registry=True) as box:
        other = Schema(json.dumps({**SCHEMA, "name": "Other"}))
        SchemaRegistryClient(box.schema_registry_url).register(f"{bare}-value", other)
        given = options(topic=bare, schema__auto__register="true", schema__registry__url=box.schema_registry_url)
        with pytest.raises(PlanError, match=r"(?s)NAME_MISMATCH.*writer\.schema=latest.*value\.record\.name"):
            prepare(given, ROWS)


def test_a_version_or_a_text_can_be_chosen(options, topic, registry):
    newer = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "extra", "type": "int", "default": 9}]}
    newer_id = registry.add(f"{topic}-value", json.dumps(newer))

    by_version, _ = prepare(options(writer__schema="1"), ROWS[:1])
    by_text, _ = prepare(options(writer__schema=json.dumps(newer)), ROWS[:1])

    assert decoded(by_version[topic][0]["value"])[0] == 1
    assert decoded(by_text[topic][0]["value"], newer) == (newer_id, {**ROWS[0], "extra": 9})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kafka__value__serializer": "json"}, "value.format and kafka.value.serializer are set"),
        ({"value__format": "parquet"}, "value.format"),
        ({"value__formt": "avro"}, "did you mean 'value.format'"),
        ({"value__format": "none"}, "schema.registry"),
        ({"schema__registry__url": None}, "schema.registry.url is not set"),
    ],
)
def test_options_that_contradict_each_other_are_errors(options, given, message):
    with pytest.raises(ConfigError, match=message):
        options(**given)


def test_a_format_for_a_key_that_is_not_there_is_an_error(options):
    with pytest.raises(PlanError, match="there is no column 'key'"):
        sink.plan(options(key__format="avro"), columns_of())


# -- bad rows --------------------------------------------------------------------------------------

BAD = [ROWS[0], {"id": 5, "state": "LOST", "note": None}, {"id": None, "state": "NEW", "note": "n"}, ROWS[1]]


def test_a_row_that_the_schema_does_not_allow_fails_the_batch(options, topic):
    with pytest.raises(BadRowError, match=f"row 1 to topic '{topic}': its value cannot be encoded: .*state"):
        prepare(options(), BAD)


def test_bad_rows_become_dead_letters_with_the_row_as_json(options, topic, headrace_broker):
    dead = headrace_broker.create_topic(unique("dead"))

    sent, plan = prepare(options(on__bad__row="dead-letter", dead__letter__topic=dead), BAD)

    assert [decoded(row["value"])[1]["id"] for row in sent[topic]] == [1, 2]
    assert plan.bad_count == 2
    letters = {json.loads(row["value"])["state"]: row for row in sent[dead]}
    assert json.loads(letters["LOST"]["value"]) == BAD[1]
    headers = {header["key"]: header["value"].decode() for header in letters["NEW"]["headers"]}
    assert "id" in headers["headrace.error"]
    assert headers["headrace.topic"] == topic
    assert headers["headrace.where"] == "task 0, row 2"


def test_a_bad_row_with_a_date_after_the_year_9999_becomes_a_dead_letter(options, registry, headrace_broker):
    dead = headrace_broker.create_topic(unique("dead"))
    topic = headrace_broker.create_topic(unique("dated"))
    day = {"name": "day", "type": {"type": "int", "logicalType": "date"}}
    registry.add(f"{topic}-value", json.dumps({**SCHEMA, "fields": [{"name": "id", "type": "int"}, day]}))
    rows = pa.StructArray.from_arrays(
        [pa.array([2**40]), pa.array([3_000_000], pa.int32()).cast(pa.date32())], ["id", "day"]
    )
    schema = columns_of(types.StructType().add("id", "long").add("day", "date"))
    given = options(topic=topic, on__bad__row="dead-letter", dead__letter__topic=dead)
    plan = ColumnPlan(given, sink.plan(given, schema), "task 0", lambda topic, highest: 1)

    (sending,) = plan.prepare(pa.RecordBatch.from_arrays([rows], ["value"]))

    assert json.loads(sending.columns["value"][0].as_py()) == {"id": 2**40, "day": "3000000 (date32[day])"}


# -- a topic in each row ---------------------------------------------------------------------------


def test_each_topic_has_its_own_schema(options, topic, registry, headrace_broker):
    other = headrace_broker.create_topic(unique("other"))
    other_schema = {**SCHEMA, "name": "Other", "fields": SCHEMA["fields"][:2]}
    other_id = registry.add(f"{other}-value", json.dumps(other_schema))
    dead = headrace_broker.create_topic(unique("dead"))
    bare = headrace_broker.create_topic(unique("bare"))
    schema = columns_of(types.StructType().add("id", "long").add("state", "string"), topic="string")
    rows = [{"id": number, "state": "NEW"} for number in range(3)]

    given = options(topic=None, on__bad__row="dead-letter", dead__letter__topic=dead)
    sent, _ = prepare(given, rows, schema, topic=[topic, other, bare])

    assert decoded(sent[topic][0]["value"])[0] == 1
    assert decoded(sent[other][0]["value"], other_schema) == (other_id, rows[1])
    assert bare not in sent
    assert json.loads(sent[dead][0]["value"]) == rows[2]
    with pytest.raises(BadRowError, match=f"topic '{bare}'.*no schema for values of topic"):
        prepare(options(topic=None), rows, schema, topic=[topic, other, bare])


def test_a_given_schema_is_checked_at_planning_without_a_topic(options):
    schema = columns_of(types.StructType().add("id", "string"), topic="string")

    with pytest.raises(PlanError, match="column 'value'"):
        sink.plan(options(topic=None, writer__schema=json.dumps(SCHEMA)), schema)


# -- replays ---------------------------------------------------------------------------------------


def test_the_fingerprint_does_not_depend_on_the_schema(options, topic, registry):
    _, before = prepare(options(), ROWS)
    newer = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "extra", "type": "int", "default": 9}]}
    registry.add(f"{topic}-value", json.dumps(newer))

    sent, after = prepare(options(schema__registry__latest__cache__ttl__sec="0"), ROWS)

    assert decoded(sent[topic][0]["value"], newer)[1]["extra"] == 9
    assert after.fingerprint == before.fingerprint


def test_the_fingerprint_does_not_depend_on_what_spark_knows_of_nulls(options):
    required = types.StructType([types.StructField(field.name, field.dataType, False) for field in ORDERS])
    rows = [ROWS[1], ROWS[1]]

    assert prepare(options(), rows)[1].fingerprint == prepare(options(), rows, columns_of(required))[1].fingerprint


def test_other_rows_have_another_fingerprint(options):
    _, first = prepare(options(), ROWS)
    _, other = prepare(options(), [ROWS[0], {**ROWS[1], "note": "u"}, None])

    assert first.fingerprint != other.fingerprint


class Marked(ProducerInterceptor):
    """Adds a header to every row."""

    def on_send_columns(self, topic, columns):
        headers = pa.array(
            [[{"key": "by", "value": b"test"}]] * columns.num_rows,
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        )
        return columns.append_column("headers", headers)


def test_interceptors_see_rows_before_they_are_encoded(options, topic):
    name = f"{Marked.__module__}.{Marked.__qualname__}"

    sent, _ = prepare(options(kafka__interceptor__classes=name), ROWS[:1])

    assert sent[topic][0]["headers"] == [{"key": "by", "value": b"test"}]
    assert decoded(sent[topic][0]["value"]) == (1, ROWS[0])


# -- the registry is unavailable -------------------------------------------------------------------


def test_a_planned_write_needs_no_registry(options, topic, registry):
    given, schema = options(), columns_of()
    limits = sink.plan(given, schema)
    registry.is_down = True

    plan = ColumnPlan(given, limits, "task 0", lambda topic, highest: 1)
    (sending,) = plan.prepare(pa.RecordBatch.from_pydict({"value": pa.array(ROWS[:1], arrow_type(ORDERS))}))

    assert decoded(sending.columns.to_pylist()[0]["value"])[0] == 1


def test_a_running_query_goes_on_with_the_schemas_that_it_knows(options, registry, caplog):
    given = options(kafka__metadata__max__age__ms="0", schema__registry__latest__cache__ttl__sec="0")
    known = sink.plan(given, columns_of())
    registry.is_down = True

    with caplog.at_level(logging.WARNING, "headrace"):
        assert sink.plan(given, columns_of()).schemas == known.schemas

    assert "continuing with" in caplog.text


def test_a_registry_that_is_down_when_planning_is_named(options, registry):
    registry.is_down = True

    with pytest.raises(PlanError, match=r"is not known: .*schema\.registry\.url"):
        sink.plan(options(), columns_of())


def test_the_wait_for_the_schema_of_a_row_ends_with_a_named_error(options, topic, registry, monkeypatch):
    monkeypatch.setattr(format_options, "WAIT_SECONDS", 0.05)
    registry.is_down = True

    with pytest.raises(SinkError, match=f"timed out after 100 ms .* topic '{topic}'"):
        prepare(options(topic=None, kafka__max__block__ms="100"), ROWS[:1], columns_of(topic="string"), topic=[topic])


# -- with Spark ------------------------------------------------------------------------------------

ALL_TYPES = """
    named_struct(
        'id', id, 'small', CAST(id AS INT), 'flag', id % 2 = 0, 'ratio', id / 8, 'single', CAST(id AS FLOAT),
        'text', IF(id % 3 = 0, NULL, CONCAT('ü', id)), 'bytes', CAST(CAST(id AS STRING) AS BINARY),
        'price', CAST(id AS DECIMAL(20, 3)), 'day', DATE_ADD(DATE'2026-01-01', CAST(id AS INT)),
        'at', TIMESTAMP'2026-01-01 00:00:00.123456 UTC' + MAKE_INTERVAL(0, 0, 0, 0, 0, 0, id),
        'local', TIMESTAMP_NTZ'2026-01-01 00:00:00.654321',
        'clock', TIME'01:02:03.000004',
        'tags', ARRAY('a', NULL, CAST(id AS STRING)), 'counts', MAP('x', id, 'y', NULL),
        'inner', named_struct('deep', ARRAY(named_struct('n', id)))
    )
"""


def write(frame, broker, registry, topic, **options):
    options = {"value__format": "avro", "schema__auto__register": "true", **options}
    frame.write.format("headrace").mode("append").option("kafka.bootstrap.servers", broker.bootstrap).option(
        "topic", topic
    ).option("schema.registry.url", registry.url).options(
        **{name.replace("__", "."): value for name, value in options.items()}
    ).save()


def load(spark, broker, registry, topic, schema=None, **options):
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", broker.bootstrap)
    reader = reader.option("subscribe", topic).option("schema.registry.url", registry.url)
    reader = reader.options(**{"value.format": "avro", **{k.replace("__", "."): v for k, v in options.items()}})
    return (reader if schema is None else reader.schema(schema)).load()


@pytest.mark.behaviour("R03")
@pytest.mark.every_run
def test_typed_columns_go_through_a_topic_unchanged(spark, headrace_broker, registry):
    topic = headrace_broker.create_topic(unique("types"), 2)
    frame = spark.range(0, 500, 1, 2).selectExpr(f"{ALL_TYPES} AS value")

    write(frame, headrace_broker, registry, topic)
    table = load(spark, headrace_broker, registry, topic)

    result, expected = (
        sorted((row.value for row in rows.collect()), key=lambda row: row.id) for rows in (table, frame)
    )
    assert result == expected
    assert table.select("value.inner.deep").schema.simpleString() == "struct<deep:array<struct<n:bigint>>>"
    some = load(spark, headrace_broker, registry, topic, "value STRUCT<price: DECIMAL(20,3)>, offset BIGINT")
    assert sorted(row.value.price for row in some.collect()) == sorted(row.price for row in expected)


@pytest.mark.every_run
@pytest.mark.parametrize("format", ["protobuf", "json"])
def test_other_formats_go_through_a_topic_unchanged(spark, headrace_broker, registry, format):
    topic = headrace_broker.create_topic(unique(format), 2)
    frame = spark.range(0, 300, 1, 2).selectExpr(
        "named_struct('id', id, 'name', CONCAT('ü', id), 'ratio', id / 8, 'flag', id % 2 = 0, "
        "'tags', ARRAY('a', CAST(id AS STRING)), 'inner', named_struct('n', id)) AS value"
    )

    write(frame, headrace_broker, registry, topic, value__format=format)
    table = load(spark, headrace_broker, registry, topic, value__format=format)

    by_id = "value.id", "to_json(value) AS value"
    assert sorted(table.selectExpr(*by_id).collect()) == sorted(frame.selectExpr(*by_id).collect())
    some = load(spark, headrace_broker, registry, topic, "value STRUCT<inner: STRUCT<n: BIGINT>>", value__format=format)
    assert sorted(row.value.inner.n for row in some.collect()) == list(range(300))


@pytest.mark.behaviour("R03")
@pytest.mark.every_run
def test_dead_letters_of_schemas_are_in_the_commit(spark, headrace_broker, registry, topic):
    dead = headrace_broker.create_topic(unique("dead"))
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "named_struct('id', id, 'state', IF(id % 10 = 0, 'LOST', 'NEW'), 'note', 'x') AS value"
    )

    write(
        frame,
        headrace_broker,
        registry,
        topic,
        schema__auto__register="false",
        on__bad__row="dead-letter",
        dead__letter__topic=dead,
        commit__mode="parallel",
    )

    good = [value for rows in committed(headrace_broker.bootstrap, topic).values() for _, value in rows]
    letters = [value for rows in committed(headrace_broker.bootstrap, dead).values() for _, value in rows]
    assert sorted(decoded(value)[1]["id"] for value in good) == [number for number in range(100) if number % 10]
    assert sorted(json.loads(value or b"")["id"] for value in letters) == list(range(0, 100, 10))


def test_planning_errors_reach_the_user_of_spark(spark, headrace_broker, registry, topic):
    frame = spark.range(3).selectExpr("named_struct('id', CAST(id AS STRING)) AS value")

    with pytest.raises(Exception, match="column 'value' of type struct<id:string> cannot be written"):
        write(frame, headrace_broker, registry, topic, schema__auto__register="false")
    with pytest.raises(Exception, match="type of column 'value' of topic 'missing' is not known"):
        load(spark, headrace_broker, registry, "missing")


def test_a_stream_goes_on_while_the_registry_is_down(spark, headrace_broker, registry, tmp_path):
    source = headrace_broker.create_topic(unique("in"))
    target = headrace_broker.create_topic(unique("out"))
    registry.add(f"{target}-value", json.dumps({**ORDER, "fields": ORDER["fields"][:1]}))

    def add(start):
        rows = spark.range(start, start + 50, 1, 1)
        write(rows.selectExpr("named_struct('id', id) AS value"), headrace_broker, registry, source)

    add(0)
    common = {"kafka.bootstrap.servers": headrace_broker.bootstrap, "schema.registry.url": registry.url}
    common |= {"value.format": "avro", "schema.registry.max.retries": "0"}
    stream = spark.readStream.format("headrace").options(**common, subscribe=source, startingOffsets="earliest").load()
    query = (
        stream.select("value")
        .writeStream.format("headrace")
        .options(**common, topic=target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        add(50)
        registry.is_down = True
        query.processAllAvailable()
    finally:
        registry.is_down = False
        query.stop()

    values = [value for rows in committed(headrace_broker.bootstrap, target).values() for _, value in rows]
    schema = {**ORDER, "fields": ORDER["fields"][:1]}
    assert sorted(decoded(value, schema)[1]["id"] for value in values) == list(range(100))
