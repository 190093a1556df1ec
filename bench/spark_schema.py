"""`make bench-schema`, part 2: Avro topics as typed columns in Spark, beside fastavro in a UDF, in one run.

    records of four columns → topic → source with value.format=avro → an aggregate of all columns
                                    ↘ source of bytes → Arrow UDF, fastavro row by row → the same aggregate
    rows → sink with value.format=avro, exactly once; beside the same UDF before a sink of bytes

local[2]: broker, driver and two Python workers share the machine. The jobs take turns; medians are printed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa

from bench.schema import FLAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 4_000_000
ROWS_OF_FASTAVRO = 1_000_000
PARTITIONS = 4
PREFIX_BYTES = 5
SOURCE_TARGET = 1.0  # million rows/s
STRUCT = "id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP"
MADE = """
    named_struct('id', id, 'customer', IF(id % 5 = 0, NULL, CONCAT('customer-', id % 1000000)), 'amount', id / 7,
                 'at', IF(id % 10 = 0, NULL, TIMESTAMP_MILLIS(1700000000000 + id))) AS value
"""
USED = (
    "sum(value.id) AS id",
    "sum(length(value.customer)) AS customer",
    "sum(value.amount) AS amount",
    "max(value.at) AS at",
    "count(1) AS rows",
)


def decode_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode with fastavro, row by row, as a UDF of the user's would."""
    schema = fastavro.parse_schema(FLAT)
    kind = pa.struct(
        [("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
    )
    for batch in batches:
        rows = [
            fastavro.schemaless_reader(io.BytesIO(value[PREFIX_BYTES:]), schema, None)
            for value in batch.column(0).to_pylist()
        ]
        yield pa.RecordBatch.from_arrays([pa.array(rows, kind)], ["value"])


def encode_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Encode with fastavro, row by row."""
    schema = fastavro.parse_schema(FLAT)
    for batch in batches:
        values = []
        for row in batch.column(0).to_pylist():
            out = io.BytesIO(b"\0\0\0\0\1")
            out.seek(PREFIX_BYTES)
            fastavro.schemaless_writer(out, schema, row)
            values.append(out.getvalue())
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"])


class Jobs:
    """The jobs, each with the number of its rows."""

    def __init__(self, spark: SparkSession, bootstrap: str, registry_url: str) -> None:
        self._spark = spark
        self._common = {"kafka.bootstrap.servers": bootstrap}
        self._avro = {**self._common, "schema.registry.url": registry_url, "value.format": "avro"}

    def fill(self, topic: str, rows: int) -> None:
        self._write(self._spark.range(0, rows, 1, 2).selectExpr(MADE), self._avro, topic)

    def read(self, topic: str) -> dict[str, Any]:
        frame = self._spark.read.format("headrace").options(**self._avro, subscribe=topic).load()
        return self._aggregate(frame)

    def read_with_fastavro(self, topic: str) -> dict[str, Any]:
        frame = self._spark.read.format("headrace").options(**self._common, subscribe=topic).load()
        return self._aggregate(frame.select("value").mapInArrow(decode_rows, f"value STRUCT<{STRUCT}>"))

    def write(self, topic: str, rows: int) -> None:
        self.fill(topic, rows)

    def write_with_fastavro(self, topic: str, rows: int) -> None:
        frame = self._spark.range(0, rows, 1, 2).selectExpr(MADE).mapInArrow(encode_rows, "value BINARY")
        self._write(frame, self._common, topic)

    def _aggregate(self, frame: DataFrame) -> dict[str, Any]:
        (row,) = frame.selectExpr(*USED).collect()
        return dict(row.asDict())

    def _write(self, frame: DataFrame, options: dict[str, str], topic: str) -> None:
        frame.write.format("headrace").mode("append").options(**options, topic=topic).save()


def timed(job: Callable[[], object]) -> float:
    """Return the seconds that a job takes."""
    began = time.monotonic()
    job()
    return time.monotonic() - began


def measure(rounds: int, rows: int) -> dict[str, float]:
    """Return million rows/s of each job, as medians."""
    from pyspark.sql import SparkSession

    from headrace.broker import EmbeddedBroker
    from tests.support.scripted_registry import SmallRegistry

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    registry = SmallRegistry()
    few = min(rows, ROWS_OF_FASTAVRO)
    for topic in ("all", "few", "written", "written-by-udf"):
        registry.add(f"{topic}-value", json.dumps(FLAT))
    with EmbeddedBroker() as broker:
        for topic in ("all", "few", "written", "written-by-udf"):
            broker.create_topic(topic, PARTITIONS)
        settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.memory": "2g"}
        builder = SparkSession.builder.master("local[2]").config("spark.sql.session.timeZone", "UTC")
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark: SparkSession = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            jobs = Jobs(spark, broker.bootstrap, registry.url)
            jobs.fill("all", rows)
            jobs.fill("few", few)
            assert jobs.read("few") == jobs.read_with_fastavro("few")
            assert jobs.read("all")["rows"] == rows
            runs: dict[str, tuple[int, Callable[[], object]]] = {
                "source: value.format=avro": (rows, lambda: jobs.read("all")),
                "source: fastavro in a UDF": (few, lambda: jobs.read_with_fastavro("few")),
                "sink: value.format=avro": (rows // 4, lambda: jobs.write("written", rows // 4)),
                "sink: fastavro in a UDF": (few, lambda: jobs.write_with_fastavro("written-by-udf", few)),
            }
            seconds: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(rounds):
                for name, (_, job) in runs.items():
                    seconds[name].append(timed(job))
            return {name: count / statistics.median(seconds[name]) / 1e6 for name, (count, _) in runs.items()}
        finally:
            spark.stop()
            registry.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()
    rates = measure(options.rounds, options.rows)
    is_met = rates["source: value.format=avro"] >= SOURCE_TARGET
    if options.json:
        print(json.dumps(rates))
        return 0 if is_met else 1
    print(f"Avro in Spark, local[2], four columns, {options.rows:,} records, medians of {options.rounds} rounds")
    for name, rate in rates.items():
        print(f"{name:30} {rate:6.2f} million rows/s")
    for side in ("source", "sink"):
        ratio = rates[f"{side}: value.format=avro"] / rates[f"{side}: fastavro in a UDF"]
        print(f"{side}: {ratio:.1f} times fastavro in a UDF")
    print(f"source, target ≥ {SOURCE_TARGET:.0f} million rows/s: {'met' if is_met else 'MISSED'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
