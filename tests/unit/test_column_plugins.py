"""Built-in serializers and partitioners on columns: the same as row by row, without a Python object for each row."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from headrace.producer import partitioners, serializers
from headrace.producer.partitioners import Partitioner
from headrace.producer.serializers import Serializer
from headrace.spark.columns import ColumnPlan, Limits
from headrace.spark.plugin_columns import column_method
from headrace.spark.sink_options import SinkOptions
from headrace.wire.columns import HEADERS_TYPE
from tests.support.allocations import PeakBlocks
from tests.support.examples import examples

pytestmark = pytest.mark.both_kernels

ROWS = 100_000
PARTITIONS = 7
SERIALIZERS = ("bytes", "str", "short", "int", "long", "float", "double", "bool", "json", "none")
OPTIONS = {
    "kafka.bootstrap.servers": "localhost:9092",
    "topic": "t",
    "on.bad.row": "dead-letter",
    "dead.letter.topic": "dead",
}


class RowsOnly(Serializer):
    """A built-in serializer without its method for columns."""

    def __init__(self, name: str) -> None:
        self._inner: Serializer = getattr(serializers, f"{name.capitalize()}Serializer")()

    def configure(self, config, is_key):
        self._inner.configure(config, is_key)

    def serialize(self, topic, value, headers):
        return self._inner.serialize(topic, value, headers)


class PartitionRowsOnly(Partitioner):
    def __init__(self, inner: Partitioner) -> None:
        self.partition = inner.partition  # type: ignore[method-assign]


def plan(plugins: Mapping[str, object], **given: str) -> ColumnPlan:
    options = SinkOptions.parse({**OPTIONS, **given}, is_stream=False)
    options.kafka.update(plugins)  # type: ignore[arg-type]
    return ColumnPlan(options, Limits(10**9, {"t": PARTITIONS}), "batch 3, task 1", lambda *_: PARTITIONS)


def prepared(made: ColumnPlan, columns: Mapping[str, pa.Array]) -> list[tuple[str, dict[str, list[object]]]]:
    """What is sent, with bytes for text."""
    batch = pa.RecordBatch.from_pydict(columns)
    return [
        (topic, {name: [_plain(value) for value in column] for name, column in sent.to_pydict().items()})
        for topic, sent in made.prepare(batch)
    ]


def _plain(value: object) -> object:
    return value.encode() if isinstance(value, str) else value


def columns_of(kind: pa.DataType, values: st.SearchStrategy[object]) -> st.SearchStrategy[pa.Array]:
    """Columns with nulls, also such that are a slice of another column."""
    lists = st.lists(st.none() | values, max_size=20)
    return st.builds(lambda items, start: pa.array(items, kind)[start:], lists, st.integers(0, 3))


def integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high) | st.sampled_from([low, high, 0])


TEXT = st.text() | st.sampled_from(['"', "\\", "\n\x00\x1f", "\x7f", "é", "\u2028", "a"])
COLUMNS = {
    "int16": columns_of(pa.int16(), integers(16)),
    "int32": columns_of(pa.int32(), integers(32)),
    "int64": columns_of(pa.int64(), integers(64) | integers(16)),
    "uint64": columns_of(pa.uint64(), integers(64, signed=False)),
    "float32": columns_of(pa.float32(), st.floats(width=32)),
    "float64": columns_of(pa.float64(), st.floats() | st.sampled_from([3.4028235677973366e38, 1e-46])),
    "bool": columns_of(pa.bool_(), st.booleans()),
    "string": columns_of(pa.string(), TEXT),
    "large_string": columns_of(pa.large_string(), TEXT),
    "binary": columns_of(pa.binary(), st.binary()),
    "date": columns_of(pa.date32(), st.dates()),
    "null": columns_of(pa.null(), st.none()),
}
LENIENT = {("bytes", "string"), ("bytes", "large_string"), ("str", "binary")}
"""Text and bytes may be in the same column types in Arrow; row by row, these serializers accept one of them."""


@pytest.mark.behaviour("S04")
@pytest.mark.parametrize("name", SERIALIZERS)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), role=st.sampled_from(["key", "value"]))
def test_a_column_is_serialized_as_its_rows_are(name, data, role):
    kind = data.draw(st.sampled_from([kind for kind in COLUMNS if (name, kind) not in LENIENT]))
    column = data.draw(COLUMNS[kind])
    columns = {"value": pa.nulls(len(column), pa.binary()), role: column}
    option = f"{role}.serializer"
    assert prepared(plan({option: name}), columns) == prepared(plan({option: RowsOnly(name)}), columns)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "utf-16", "cp500"])
@settings(max_examples=examples(25), deadline=None)
@given(column=COLUMNS["string"])
def test_text_is_encoded_as_configured(encoding, column):
    given = {"kafka.value.serializer": "str", "kafka.value.serializer.encoding": encoding}
    by_column = prepared(plan({"value.serializer": "str"}, **given), {"value": column})
    assert by_column == prepared(plan({"value.serializer": RowsOnly("str")}, **given), {"value": column})


PARTITIONERS: dict[str, Callable[[random.Random], Partitioner]] = {
    "default-2.4": partitioners.DefaultPartitioner24,
    "uniform-sticky": partitioners.UniformStickyPartitioner,
    "round-robin": lambda _: partitioners.RoundRobinPartitioner(),
    "key-hash-round-robin": partitioners.KeyHashRoundRobinPartitioner,
}
KEYS = st.lists(st.none() | st.binary(max_size=4), min_size=1, max_size=20)
PARTITION_COLUMN = st.none() | st.integers(0, PARTITIONS - 1)


@pytest.mark.behaviour("S04")
@pytest.mark.parametrize("name", PARTITIONERS)
@settings(max_examples=examples(40), deadline=None)
@given(batches=st.lists(KEYS, min_size=1, max_size=4), data=st.data())
def test_partitions_of_columns_are_those_of_their_rows(name, batches, data):
    seed, has_keys = data.draw(st.integers(0, 99)), data.draw(st.booleans())
    first, second = (PARTITIONERS[name](random.Random(seed)) for _ in range(2))
    by_column, by_row = plan({"partitioner.class": first}), plan({"partitioner.class": PartitionRowsOnly(second)})
    for keys in batches:
        columns = {"value": pa.array([b"v"] * len(keys))}
        if has_keys:
            texts = [None if key is None else key.decode("latin-1") for key in keys]
            columns["key"] = data.draw(st.sampled_from([pa.array(keys, pa.binary()), pa.array(texts, pa.string())]))
        if data.draw(st.booleans()):
            explicit = data.draw(st.lists(PARTITION_COLUMN, min_size=len(keys), max_size=len(keys)))
            columns["partition"] = pa.array(explicit, pa.int32())
        assert prepared(by_column, columns) == prepared(by_row, columns)


def test_a_subclass_that_overrides_the_method_for_rows_is_called_for_each_row():
    class Loud(serializers.StrSerializer):
        def serialize(self, topic, value, headers):
            return super().serialize(topic, value.upper(), headers)

    class Last(partitioners.RoundRobinPartitioner):
        def partition(self, topic, key, key_bytes, value, value_bytes, cluster):
            return len(cluster.partitions_for(topic)) - 1

    made = plan({"value.serializer": Loud(), "partitioner.class": Last()})
    assert prepared(made, {"value": pa.array(["a"])}) == [("t", {"value": [b"A"], "partition": [PARTITIONS - 1]})]


def test_an_object_that_is_not_a_serializer_may_have_a_method_for_columns():
    class Duck:
        def serialize(self, topic, value, headers):
            raise AssertionError("the column is serialized")

        def serialize_column(self, topic, column):
            return column.cast(pa.string())

    assert prepared(plan({"value.serializer": Duck()}), {"value": pa.array([1])}) == [("t", {"value": [b"1"]})]


@settings(max_examples=examples(50), deadline=None)
@given(
    rows=st.lists(
        st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=4),
        min_size=1,
        max_size=8,
    ),
    start=st.integers(0, 3),
)
def test_the_headers_of_rows_count_as_bytes(rows, start):
    """The size of a row with headers, by the largest of them."""
    items = [row and [{"key": name, "value": value} for name, value in row] for row in rows]
    headers = pa.array(items, HEADERS_TYPE)[start:]
    options = SinkOptions.parse({"kafka.bootstrap.servers": "localhost:9092", "topic": "t"}, is_stream=False)
    sizes = [sum(10 + len(name.encode()) + len(value or b"") for name, value in row or ()) for row in rows[start:]]
    made = ColumnPlan(options, Limits(0, {}), "batch 3", lambda *_: 1)
    if not sizes or not max(sizes):
        return
    with pytest.raises(Exception, match=f"it has {max(sizes)} bytes of key, value and headers"):
        list(
            made.prepare(pa.RecordBatch.from_pydict({"value": pa.nulls(len(headers), pa.binary()), "headers": headers}))
        )


# -- no Python object for each row ---------------------------------------------------------------


def python_blocks(plugins: Mapping[str, object], columns: Mapping[str, pa.Array]) -> int:
    """Return how many memory blocks Python needed at most, at any call, to prepare these rows."""
    made = plan(plugins, delivery="at-least-once")
    batch = pa.RecordBatch.from_pydict(columns)
    list(made.prepare(batch.slice(0, 10)))  # the first time modules are imported
    with PeakBlocks() as blocks:
        rows = sum(sent.num_rows for _, sent in made.prepare(batch))
    assert rows == batch.num_rows
    return blocks.count


NUMBERS = pa.array(range(ROWS), pa.int64())
BLOCKS_MAX = ROWS // 50


@pytest.mark.slow
@pytest.mark.behaviour("S04")
@pytest.mark.parametrize("name", ["long", "int", "double", "float", "json", "str", "bytes", "bool", "short", "none"])
def test_serializers_create_no_object_for_each_row(name):
    columns = {"str": NUMBERS.cast(pa.string()), "bytes": NUMBERS.cast(pa.string()), "none": pa.nulls(ROWS)}
    columns["bool"] = pa.array([True, None] * (ROWS // 2))
    columns["short"] = pa.array([1, None] * (ROWS // 2), pa.int16())
    column = columns.get(name, NUMBERS)
    assert python_blocks({"value.serializer": name}, {"value": column, "key": NUMBERS.cast(pa.string())}) < BLOCKS_MAX


@pytest.mark.slow
@pytest.mark.behaviour("S04")
@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("keys", ["none", "some", "all"])
def test_partitioners_create_no_object_for_each_row(name, keys):
    text = NUMBERS.cast(pa.string())
    columns = {"value": text}
    if keys != "none":
        columns["key"] = text if keys == "all" else pa.array(["k", None] * (ROWS // 2))
    assert python_blocks({"partitioner.class": name}, columns) < BLOCKS_MAX


@pytest.mark.behaviour("S04")
def test_headers_create_no_object_for_each_row():
    headers = pa.array([[{"key": "h", "value": b"1"}]] * ROWS, HEADERS_TYPE)
    blocks = python_blocks({"value.serializer": "long"}, {"value": NUMBERS, "headers": headers})
    assert blocks < BLOCKS_MAX


@pytest.mark.slow
def test_a_serializer_without_a_method_for_columns_creates_objects_for_each_row():
    """The count above does detect them."""
    rows = ROWS // 50
    assert python_blocks({"value.serializer": RowsOnly("long")}, {"value": NUMBERS[:rows]}) > rows


def test_the_method_for_columns_of_a_base_class_is_used():
    assert column_method(serializers.LongSerializer(), "serialize_column", "serialize") is not None
