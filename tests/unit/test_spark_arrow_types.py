"""Arrow columns in the types that Spark takes."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from headrace.errors import SchemaError
from headrace.spark import arrow_types
from headrace.spark.arrow_types import arrow_type, conform, conform_rows, spark_type

UTC = datetime.UTC


def converted(column):
    return conform(column, arrow_type(spark_type(column.type)))


@pytest.mark.parametrize(
    ("data_type", "value", "name", "expected"),
    [
        (pa.uint8(), 255, "smallint", 255),
        (pa.uint16(), 65_535, "int", 65_535),
        (pa.uint32(), 2**32 - 1, "bigint", 2**32 - 1),
        (pa.uint64(), 2**64 - 1, "decimal(20,0)", Decimal(2**64 - 1)),
        (pa.float16(), 0.5, "float", 0.5),
        (pa.decimal128(38, 3), Decimal("1.250"), "decimal(38,3)", Decimal("1.250")),
        (pa.decimal256(50, 2), Decimal(10**40), "string", f"{10**40}.00"),
        (pa.binary(3), b"abc", "binary", b"abc"),
        (pa.large_string(), "ü", "string", "ü"),
        (pa.dictionary(pa.int8(), pa.string()), "a", "string", "a"),
        (pa.date64(), datetime.date(2026, 1, 2), "date", datetime.date(2026, 1, 2)),
        (pa.duration("ms"), datetime.timedelta(1, 2), "interval day to second", datetime.timedelta(1, 2)),
        (pa.null(), None, "void", None),
    ],
)
def test_types_that_spark_does_not_have_are_converted(data_type, value, name, expected):
    column = pa.array([value, None], data_type)

    assert spark_type(data_type).simpleString() == name
    assert converted(column).to_pylist() == [expected, None]


@pytest.mark.parametrize(
    ("unit", "zone", "number", "micros"),
    [("s", "UTC", 5, 5_000_000), ("ms", None, -1, -1_000), ("ns", "UTC", -1, -1), ("ns", None, 1_999, 1)],
)
def test_timestamps_become_microseconds_rounded_down(unit, zone, number, micros):
    column = converted(pa.array([number], pa.int64()).cast(pa.timestamp(unit, zone)))

    assert column.type == pa.timestamp("us", zone)
    assert column.cast(pa.int64()).to_pylist() == [micros]


def test_times_are_microseconds_where_spark_has_no_time(monkeypatch):
    monkeypatch.setattr(arrow_types, "HAS_TIME", False)

    assert spark_type(pa.time32("ms")).simpleString() == "bigint"
    assert converted(pa.array([3], pa.time32("ms"))).to_pylist() == [3_000]
    assert converted(pa.array([3_999], pa.time64("ns"))).to_pylist() == [3]


def test_times_keep_their_digits():
    assert spark_type(pa.time32("ms")).simpleString() == "time(3)"
    assert spark_type(pa.time64("us")).simpleString() == "time(6)"
    assert converted(pa.array([3], pa.time32("ms"))).to_pylist() == [datetime.time(0, 0, 0, 3_000)]


NESTED = pa.struct(
    [
        pa.field("id", pa.uint64(), nullable=False),
        pa.field("list", pa.list_(pa.struct([pa.field("at", pa.timestamp("ms", "UTC")), pa.field("n", pa.uint8())]))),
        pa.field("map", pa.map_(pa.string(), pa.list_(pa.decimal256(40, 1)))),
        pa.field("text", pa.string()),
    ]
)


def nested_row(chance):
    if chance.random() < 0.2:
        return None
    at = datetime.datetime(2026, 1, 1, tzinfo=UTC)
    items = [
        {"at": at, "n": chance.randrange(256)} if chance.random() < 0.8 else None for _ in range(chance.randrange(4))
    ]
    entries = [(f"k{n}", [Decimal(n).scaleb(-1)] * n) for n in range(chance.randrange(3))]
    return {
        "id": chance.randrange(2**64),
        "list": None if chance.random() < 0.2 else items,
        "map": None if chance.random() < 0.2 else entries,
        "text": None if chance.random() < 0.3 else "x" * chance.randrange(5),
    }


def as_spark(row):
    """Return what Spark should get for a row."""
    if row is None:
        return None
    entries = row["map"] and [(key, [str(number) for number in numbers]) for key, numbers in row["map"]]
    return {**row, "id": Decimal(row["id"]), "map": entries}


@pytest.mark.parametrize("seed", range(5))
def test_nested_columns_and_slices_keep_their_rows(seed):
    chance = random.Random(seed)
    rows = [nested_row(chance) for _ in range(50)]
    column = pa.array(rows, NESTED)

    assert converted(column).to_pylist() == [as_spark(row) for row in rows]
    assert converted(column.slice(7, 20)).to_pylist() == [as_spark(row) for row in rows[7:27]]
    converted(column.slice(7, 20)).validate(full=True)


def test_fields_that_the_target_lacks_are_left_out_and_others_reordered():
    column = pa.array([{"a": 1, "b": "x", "c": {"d": 2, "e": 3}}, None])
    target = pa.struct([("c", pa.struct([("e", pa.int64())])), ("a", pa.int64())])

    assert conform(column, target).to_pylist() == [{"c": {"e": 3}, "a": 1}, None]


def test_an_equal_type_is_not_copied():
    column = pa.array([{"a": 1}])

    assert conform(column, column.type) is column


def test_rows_out_of_range_are_null_and_the_others_stay():
    late = 2**62
    column = pa.array([[1], [2, late], None, [late], [3]], pa.list_(pa.int64()))
    column = column.cast(pa.list_(pa.timestamp("ms", "UTC")))

    result, bad = conform_rows(column, pa.list_(pa.timestamp("us", "UTC")))

    assert bad == [1, 3]
    assert result.cast(pa.list_(pa.int64())).to_pylist() == [[1_000], None, None, None, [3_000]]


def test_a_type_that_spark_cannot_have_is_a_named_error():
    with pytest.raises(SchemaError, match="Spark has no type for Arrow type month_day_nano_interval"):
        spark_type(pa.month_day_nano_interval())
