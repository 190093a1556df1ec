"""Rows of a DataFrame become columns to send; rows that can never be sent are separated."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.producer.interceptors import ProducerInterceptor
from headrace.producer.partitioners import Partitioner
from headrace.producer.records import ProducerRecord
from headrace.producer.serializers import Serializer
from headrace.spark.columns import ColumnPlan, Limits, check_schema
from headrace.spark.decisions import Fingerprint
from headrace.spark.errors import BadRowError, PlanError
from headrace.spark.sink_options import SinkOptions
from headrace.wire.columns import HEADERS_TYPE

pytestmark = pytest.mark.both_kernels

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def options(**given: str) -> SinkOptions:
    return SinkOptions.parse({**SERVERS, **{k.replace("__", "."): v for k, v in given.items()}}, is_stream=False)


def schema(**columns: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])  # type: ignore[arg-type]


def unexpected(topic: str, highest: int | None) -> int:
    raise AssertionError(f"the partitions of {topic} are of no interest")


def prepare(
    given: SinkOptions,
    *,
    limit: int = 1_048_576,
    counts: dict[str, int] | None = None,
    count_partitions: Callable[[str, int | None], int] = unexpected,
    **columns: object,
):
    plan = ColumnPlan(given, Limits(limit, counts or {}), "batch 3, task 1", count_partitions)
    batch = pa.RecordBatch.from_pydict(columns)
    return [(sending.topic, sending.columns.to_pydict()) for sending in plan.prepare(batch)]


# -- the schema ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [StringType(), BinaryType()])
def test_columns_that_can_be_written(kind):
    whole = schema(
        key=kind,
        VALUE=kind,
        topic=kind,
        headers=HEADERS,
        partition=IntegerType(),
        timestamp=TimestampType(),
        other=LongType(),
    )
    check_schema(whole, options())
    check_schema(schema(value=kind), options(topic="t"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": StringType()}, "there is no column 'value'.*the columns are: key string"),
        ({"value": IntegerType()}, "column 'value' is int; it may be string or binary: cast it"),
        ({"value": StringType(), "key": LongType()}, "column 'key' is bigint"),
        ({"value": StringType(), "headers": StringType()}, "column 'headers' is string; it may be array<struct"),
        ({"value": StringType(), "headers": MapType(StringType(), BinaryType())}, "column 'headers' is map"),
        ({"value": StringType(), "partition": StringType()}, "column 'partition' is string; it may be int"),
        ({"value": StringType(), "timestamp": StringType()}, "it may be timestamp or bigint"),
        ({"value": StringType(), "topic": IntegerType()}, "column 'topic' is int"),
        ({"value": StringType(), "Value": StringType()}, "two columns 'value'"),
    ],
)
def test_columns_that_cannot(columns, message):
    with pytest.raises(PlanError, match=message):
        check_schema(schema(**columns), options(topic="t"))


def test_rows_must_go_somewhere():
    with pytest.raises(PlanError, match="set the option 'topic', or add a column 'topic'"):
        check_schema(schema(value=StringType()), options())


def test_a_serializer_takes_what_it_takes():
    check_schema(schema(value=IntegerType()), options(topic="t", kafka__value__serializer="int"))


# -- rows ---------------------------------------------------------------------------------------


def test_the_option_wins_over_the_column():
    assert prepare(options(topic="t"), value=["a"], topic=["other"]) == [("t", {"value": ["a"]})]


def test_rows_are_sorted_by_topic_and_keep_their_order():
    sendings = prepare(options(), value=["a", "b", "c"], topic=["x", "y", "x"], key=[b"1", b"2", b"3"])
    assert sendings == [("x", {"value": ["a", "c"], "key": [b"1", b"3"]}), ("y", {"value": ["b"], "key": [b"2"]})]


def test_names_of_columns_in_any_case_and_others_are_left_out():
    assert prepare(options(topic="t"), Value=["a"], KEY=["k"], other=[1]) == [("t", {"value": ["a"], "key": ["k"]})]


def test_headers_can_be_left_out():
    headers = pa.array([[{"key": "h", "value": b"1"}]], HEADERS_TYPE)
    assert "headers" in prepare(options(topic="t"), value=["a"], headers=headers)[0][1]
    assert "headers" not in prepare(options(topic="t", includeHeaders="false"), value=["a"], headers=headers)[0][1]


# -- bad rows -----------------------------------------------------------------------------------


@pytest.mark.behaviour("S07")
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": ["a", "b"], "topic": ["x", None]}, "batch 3, task 1, row 1: its topic is null"),
        ({"value": ["a", "b"], "topic": ["x", ""]}, "its topic is empty"),
        ({"value": ["a", "b" * 3000], "topic": ["x", "x"]}, "row 1 to topic 'x': it has 3000 bytes"),
        (
            {"value": ["a"], "topic": ["x"], "partition": [-1]},
            "its partition is -1, but the topic has partitions 0 to 2",
        ),
        ({"value": ["a"], "topic": ["x"], "partition": [3]}, "its partition is 3, but the topic has partitions 0 to 2"),
    ],
)
def test_a_bad_row_fails_the_batch_and_is_named(columns, message):
    with pytest.raises(BadRowError, match=message):
        prepare(options(), limit=2000, counts={"x": 3}, count_partitions=lambda *_: 3, **columns)


@pytest.mark.behaviour("S07")
def test_bad_rows_become_dead_letters():
    given = options(on__bad__row="dead-letter", dead__letter__topic="dead")
    sendings = prepare(
        given,
        limit=2000,
        counts={"x": 3},
        count_partitions=lambda *_: 3,
        value=["good", "no topic", "v" * 5000, "wrong partition"],
        topic=["x", None, "x", "x"],
        partition=[0, 0, 0, 9],
    )
    assert sendings[0] == ("x", {"value": ["good"], "partition": [0]})
    dead = [
        row for topic, rows in sendings if topic == "dead" for row in zip(rows["value"], rows["headers"], strict=True)
    ]
    dead.sort(key=lambda row: bytes(row[0]))
    assert [bytes(value)[:8] for value, _ in dead] == [b"no topic", b"vvvvvvvv", b"wrong pa"]
    assert len(dead[1][0]) < 2000
    texts = [{header["key"]: header["value"].decode() for header in headers} for _, headers in dead]
    assert "topic is null" in texts[0]["headrace.error"]
    assert texts[0]["headrace.where"] == "batch 3, task 1, row 1"
    assert "5000 bytes" in texts[1]["headrace.error"]
    assert texts[1]["headrace.topic"] == "x"
    assert "partition is 9" in texts[2]["headrace.error"]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
def test_dead_letters_have_the_bytes_of_the_row(kind):
    """Spark passes large types with spark.sql.execution.arrow.useLargeVarTypes."""
    given = options(on__bad__row="dead-letter", dead__letter__topic="dead")
    plan = ColumnPlan(given, Limits(2000, {"x": 3}), "batch 3, task 1", unexpected)
    columns = {"value": pa.array([b"abc\x00"], pa.binary()).cast(kind), "topic": pa.array([None], pa.string())}
    ((topic, letters),) = plan.prepare(pa.RecordBatch.from_pydict(columns))
    assert (topic, letters["value"].to_pylist()) == ("dead", [b"abc\x00"])


def fingerprint(batches: list[dict[str, list[object]]], attempt: int) -> Fingerprint:
    given = options(on__bad__row="dead-letter", dead__letter__topic="dead")
    plan = ColumnPlan(given, Limits(2000, {"x": 3, "y": 3}), f"batch 3, task 1 (attempt {attempt})", unexpected)
    for columns in batches:
        for _ in plan.prepare(pa.RecordBatch.from_pydict(columns)):
            pass
    return plan.fingerprint


@pytest.mark.behaviour("S12")
def test_a_fingerprint_does_not_depend_on_attempt_and_row_order():
    """Dead letters are part of it, with their values from Spark."""
    values: list[object] = ["one", "two", "v" * 5000, "no topic"]
    topics: list[object] = ["x", "y", "x", None]
    first = fingerprint([{"value": values, "topic": topics}], attempt=0)
    again = fingerprint(
        [{"value": values[:1:-1], "topic": topics[:1:-1]}, {"value": values[1::-1], "topic": topics[1::-1]}], attempt=1
    )
    assert first == again
    assert first.rows == 4
    others: list[list[object]] = [
        ["one", "two", "w" * 5000, "no topic"],
        ["one", "three", "v" * 5000, "no topic"],
    ]
    for other in others:
        assert fingerprint([{"value": other, "topic": topics}], attempt=0) != first
    assert fingerprint([{"value": values, "topic": ["y", "x", "x", None]}], attempt=0) != first


@pytest.mark.behaviour("S12")
@pytest.mark.parametrize(
    ("values", "other"),
    [
        (pa.array([1, 2, None]), pa.array([1, 2, 3])),
        (pa.array([True, None, False]), pa.array([True, True, False])),
        (pa.array([{"a": 1, "b": [1.5]}, {"a": 2, "b": []}]), pa.array([{"a": 1, "b": [1.5]}, {"a": 2, "b": [0.5]}])),
        (pa.array([Decimal("1.50")]), pa.array([Decimal("1.51")])),
        (pa.array([datetime(2026, 1, 2, tzinfo=UTC)]), pa.array([datetime(2026, 1, 3, tzinfo=UTC)])),
    ],
    ids=lambda values: str(values.type),
)
def test_a_fingerprint_knows_rows_of_any_type_that_a_serializer_takes(values, other):
    def of(values: pa.Array) -> Fingerprint:
        given = with_plugin("value.serializer", Silent())
        plan = ColumnPlan(given, Limits(2000, {"t": 3}), "batch 3, task 1", unexpected)
        assert [*plan.prepare(pa.RecordBatch.from_pydict({"value": values}))]
        return plan.fingerprint

    assert of(values) == of(values.take(pa.array(range(len(values) - 1, -1, -1))))
    assert of(values) != of(other)
    assert of(values).rows == len(values)


# -- plug-ins -----------------------------------------------------------------------------------


class Silent(Serializer):
    def serialize(self, topic, value, headers):
        return b""


class Doubling(Serializer):
    """Row by row."""

    def serialize(self, topic, value, headers):
        if value == 13:
            raise ValueError("no thirteens")
        headers.append(("doubled", b"yes"))
        return b"%d" % (2 * value)


class Columnar(Serializer):
    def serialize_column(self, topic, column):
        return pa.array([b"%d" % value for value in column.to_pylist()], pa.binary())


class Fixed(Partitioner):
    def partition(self, topic, key, key_bytes, value, value_bytes, cluster):
        return len(cluster.partitions_for(topic)) - 1


class Naming(ProducerInterceptor):
    def on_send_columns(self, topic, columns):
        return columns.append_column("key", pa.array([topic] * columns.num_rows))


class Shouting(ProducerInterceptor):
    """Row by row."""

    def on_send(self, record):
        return ProducerRecord(record.topic, record.value.upper(), record.key, record.partition, record.timestamp_ms)


def with_plugin(name: str, value: object, topic: str | None = "t", **given: str) -> SinkOptions:
    made = options(**({} if topic is None else {"topic": topic}), **given)
    made.kafka[name] = value  # type: ignore[assignment]
    return made


def test_a_serializer_that_knows_rows_only():
    ((topic, columns),) = prepare(with_plugin("value.serializer", Doubling()), value=[1, 2])
    assert (topic, columns["value"]) == ("t", [b"2", b"4"])
    assert columns["headers"][0] == [{"key": "doubled", "value": b"yes"}]


@pytest.mark.behaviour("S07")
def test_a_row_that_its_serializer_refuses_is_a_bad_row():
    with pytest.raises(BadRowError, match="row 1 to topic 't': its serializer failed: no thirteens"):
        prepare(with_plugin("value.serializer", Doubling()), value=[1, 13])
    given = with_plugin("value.serializer", Doubling(), on__bad__row="dead-letter", dead__letter__topic="d")
    sendings = prepare(given, value=[1, 13, 2])
    assert [(topic, columns["value"]) for topic, columns in sendings] == [("t", [b"2", b"4"]), ("d", [b"13"])]


@pytest.mark.behaviour("S04")
def test_partition_counts_of_topics_in_rows_are_looked_up_once_and_when_needed():
    lookups = []

    def count(topic, highest):
        if highest is None:
            lookups.append(topic)
        return {"x": 2, "y": 7}[topic]

    def partitions(given, **columns):
        sendings = prepare(given, count_partitions=count, value=["a", "b", "c"], topic=["x", "y", "x"], **columns)
        return {topic: columns["partition"] for topic, columns in sendings}

    assert partitions(with_plugin("partitioner.class", Fixed(), topic=None)) == {"x": [1, 1], "y": [6]}
    assert partitions(options(), partition=[0, 6, 1]) == {"x": [0, 1], "y": [6]}
    assert lookups == ["x", "y", "x", "y"]
    with pytest.raises(
        BadRowError, match="row 2 to topic 'x': its partition is 2, but the topic has partitions 0 to 1"
    ):
        partitions(options(), partition=[None, 6, 2])
    lookups.clear()
    assert partitions(options(), partition=pa.array([None, None, None], pa.int32())) == {"x": [None, None], "y": [None]}
    assert lookups == [], "of no interest"


@pytest.mark.behaviour("S14")
def test_a_partition_above_the_known_ones_is_looked_up_at_once():
    lookups = []

    def count(topic, highest):
        lookups.append((topic, highest))
        return 4

    (sendings,) = prepare(
        options(topic="t"), counts={"t": 3}, count_partitions=count, value=["a", "b"], partition=[3, 2]
    )
    assert sendings == ("t", {"value": ["a", "b"], "partition": [3, 2]})
    assert lookups == [("t", 3)]
    given = options(topic="t", on__bad__row="dead-letter", dead__letter__topic="d")
    plan = ColumnPlan(given, Limits(1_048_576, {"t": 3}), "batch 3, task 1", count)
    lookups.clear()
    for _ in range(3):
        rows = pa.RecordBatch.from_pydict({"value": ["a", "b"], "partition": [9, 3]})
        assert [sending.topic for sending in plan.prepare(rows)] == ["t", "d"]
    assert lookups == [("t", 9)], "not for every row that names a partition that does not exist"


def test_a_partitioner_that_knows_rows_only_gets_text_as_bytes():
    class ByLength(Partitioner):
        def partition(self, topic, key, key_bytes, value, value_bytes, cluster):
            assert (key, value) == (key_bytes.decode(), value_bytes.decode())
            return len(key_bytes) + len(value_bytes)

    given = with_plugin("partitioner.class", ByLength())
    ((_, columns),) = prepare(given, counts={"t": 9}, key=["é", "k"], value=["v", "é"])
    assert columns["partition"] == [3, 3]


def test_a_serializer_interceptor_and_partitioner_over_columns():
    assert prepare(with_plugin("value.serializer", Columnar()), value=[1, 2]) == [("t", {"value": [b"1", b"2"]})]
    ((_, columns),) = prepare(with_plugin("partitioner.class", Fixed()), counts={"t": 5}, value=["a", "b"])
    assert columns["partition"] == [4, 4]
    ((_, columns),) = prepare(with_plugin("interceptor.classes", (Naming(), Shouting())), value=["a", "b"])
    assert (columns["key"], columns["value"]) == (["t", "t"], ["A", "B"])


# -- no Python object for each row --------------------------------------------------------------


class WholeSerializer(Serializer):
    def serialize_column(self, topic, column):
        return column.cast(pa.string()).cast(pa.binary())


class WholeInterceptor(ProducerInterceptor):
    def on_send_columns(self, topic, columns):
        return columns.append_column("key", pc.cast(columns["value"], pa.string()))


class WholePartitioner(Partitioner):
    def partition_column(self, topic, columns, count):
        return pa.repeat(pa.scalar(count - 1, pa.int32()), len(columns["value"]))


def python_calls(rows: int, given: SinkOptions, topics: int) -> int:
    """Count the calls, of Python and of C, to prepare that many rows; those of the Python kernel do not count."""
    columns = {
        "value": pa.array(range(100, 100 + rows), pa.int64()) if "value.serializer" in given.kafka else ["v"] * rows,
        "topic": [f"t{number % topics}" for number in range(rows)],
    }
    batch = pa.RecordBatch.from_pydict(columns)
    plan = ColumnPlan(given, Limits(1_048_576, {f"t{number}": 3 for number in range(topics)}), "batch 3", unexpected)
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call") and "/wire/_reference/" not in frame.f_code.co_filename

    sys.setprofile(note)
    try:
        prepared = sum(sending.columns.num_rows for sending in plan.prepare(batch))
    finally:
        sys.setprofile(None)
    assert prepared == rows
    return count


@pytest.mark.behaviour("S04")
@pytest.mark.parametrize(
    "plugins",
    [
        {},
        {"value.serializer": WholeSerializer()},
        {"interceptor.classes": (WholeInterceptor(),)},
        {"partitioner.class": WholePartitioner()},
    ],
    ids=["none", "serializer", "interceptor", "partitioner"],
)
def test_the_work_in_python_does_not_depend_on_the_number_of_rows(plugins):
    given = options()
    given.kafka.update(plugins)
    python_calls(10, given, 2)  # the first time modules are imported
    assert python_calls(10_000, given, 2) == python_calls(10, given, 2)


def test_plug_ins_that_know_rows_only_are_called_for_each_row():
    """The count above does detect Python objects for rows."""
    given = with_plugin("value.serializer", Doubling(), topic=None)
    assert python_calls(1_000, given, 2) - python_calls(20, given, 2) >= 980
