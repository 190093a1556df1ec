"""A consumer's Arrow stream, read by Polars, DuckDB and pandas."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from headrace import Consumer, Producer, TopicPartition

COUNT = 300
PARTITIONS = 2
EXPECTED = [f"value {i}".encode() for i in range(COUNT)]


@pytest.fixture
def consumer(either) -> Iterator[Consumer]:
    """A consumer at the start of a topic whose records lie in turn in its partitions."""
    topic = f"readers-{uuid.uuid4().hex[:8]}"
    either.create_topic(topic, PARTITIONS)
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        for i, value in enumerate(EXPECTED):
            producer.send(topic, value, partition=i % PARTITIONS, timestamp_ms=1_700_000_000_000 + i)
    with Consumer(bootstrap_servers=either.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, i) for i in range(PARTITIONS)])
        yield consumer


@pytest.mark.behaviour("C01")
def test_polars_makes_a_data_frame_of_a_consumer(consumer):
    frame = pl.DataFrame(consumer)
    assert frame.sort("timestamp")["value"].to_list() == EXPECTED
    assert frame.group_by("partition").len().sort("partition").rows() == [(0, 150), (1, 150)]


@pytest.mark.behaviour("C01")
def test_polars_from_arrow_takes_a_consumer_as_structs(consumer):
    rows = pl.from_arrow(consumer)  # Polars 2: a Series of structs for any stream that is not pyarrow's
    assert isinstance(rows, pl.Series)
    assert rows.struct.unnest().sort("timestamp")["value"].to_list() == EXPECTED


@pytest.mark.behaviour("C01")
def test_duckdb_queries_the_stream_of_a_consumer(consumer):
    with duckdb.connect() as connection:
        connection.register("records", consumer.arrow_stream())
        rows = connection.execute('SELECT value, "offset" FROM records ORDER BY timestamp').fetchall()
    assert rows == [(value, i // PARTITIONS) for i, value in enumerate(EXPECTED)]


@pytest.mark.behaviour("C01")
def test_pandas_takes_the_stream_of_a_consumer(consumer):
    frame = pa.RecordBatchReader.from_stream(consumer).read_pandas()
    assert frame.sort_values("timestamp")["value"].tolist() == EXPECTED
