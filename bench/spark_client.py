"""The Spark side of `make bench-spark`: one JVM does every job of every round, and prints one line of JSON.

python -m bench.spark_client --kafka … --embedded … --jars … --rounds … [--only sink,source,embedded,stream]

It runs on the Spark that the connector was made for (bench.spark sees to that). Jobs take turns: a round does each of
them once, in an order of its own. The rows are in memory before any clock runs, in as many partitions as the topics
have.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

from bench.empty_sink import EmptyDataSource
from headrace.client.admin import AdminClient, NewTopic
from headrace.spark import session
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 4_000_000
PARTITIONS = 4
KEYS = 10_000
VALUE_BYTES = 100
STREAM_ROWS = 100
STREAM_BATCHES = 20
STREAM_WARM_UP_BATCHES = 8
STREAM_SECONDS_MAX = 120
# The usual size for throughput; Spark's connector is measured both ways.
TUNED = {"kafka.batch.size": "262144", "kafka.linger.ms": "5", "kafka.buffer.memory": "67108864"}
ARROW_BYTES_MAX = "spark.sql.execution.arrow.maxBytesPerBatch"
PARTS = ("sink", "source", "embedded", "stream")
STREAM_ROUNDS = 2
WARM_UP_ROUNDS = 3
"""After one, the JVMs of Spark and Kafka still compile: a tenth of the CPU time, and rates that rise."""
STALLED = "Expiring"
STALLS_MAX = 5
STALL_CHARACTERS_MAX = 500
Milliseconds = dict[str, float]
T = TypeVar("T")


class Topics:
    """A new topic for every write, so that none depends on earlier ones."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient(bootstrap)
        self._count = 0

    def new(self) -> str:
        self._count += 1
        name = f"bench-{self._count}"
        self._admin.create_topics([NewTopic(name, PARTITIONS, configs={"file.delete.delay.ms": "1000"})])
        eventually("the topic is in the metadata", lambda: self._admin.describe_topics([name], missing_ok=True))
        return name

    def remove(self, name: str) -> None:
        self._admin.delete_topics([name])

    def close(self) -> None:
        self._admin.close()


class Rounds:
    """The jobs. Each returns the seconds it took."""

    def __init__(self, spark: SparkSession, kafka: Topics, embedded: Topics, rows: int) -> None:
        self.stalls: list[str] = []
        """Errors of Spark's connector, whose jobs were repeated."""
        self._spark = spark
        self._kafka = kafka
        self._embedded = embedded
        self._rows = rows
        self._frame = keyed_rows(spark, rows).persist()
        result = self._frame.count()
        assert result == rows, result

    # -- sinks ---------------------------------------------------------------------------------

    def sink_jobs(self) -> dict[str, Callable[[], float]]:
        exactly, plainly = {"delivery": "exactly-once"}, {"delivery": "at-least-once"}
        return {
            "rows alone (noop)": lambda: self._timed_save("noop", {}),
            "connector": lambda: self._write(self._kafka, "kafka", {}),
            "connector, large batches": lambda: self._write(self._kafka, "kafka", TUNED),
            "headrace, at-least-once": lambda: self._write(self._kafka, "headrace", plainly),
            "headrace, exactly-once": lambda: self._write(self._kafka, "headrace", exactly),
            "headrace, exactly-once, small rows": lambda: self._write_small_rows(exactly),
        }

    def _write_small_rows(self, options: dict[str, str]) -> float:
        """Write with the setting that docs/spark.md has for small rows."""
        self._spark.conf.set(ARROW_BYTES_MAX, "2147483647")
        try:
            return self._write(self._kafka, "headrace", options)
        finally:
            self._spark.conf.unset(ARROW_BYTES_MAX)

    def embedded_jobs(self) -> dict[str, Callable[[], float]]:
        return {
            "dropped in Python": lambda: self._timed_save("empty", {}),
            "headrace, embedded broker": lambda: self._write(self._embedded, "headrace", {}),
        }

    def _write(self, topics: Topics, kind: str, options: dict[str, str]) -> float:
        topic = topics.new()
        try:
            seconds = self._timed_save(kind, {"kafka.bootstrap.servers": topics.bootstrap, "topic": topic, **options})
            result = self._read(kind="headrace", topics=topics, topic=topic).count()
            if result != self._rows:
                raise SystemExit(f"{kind} {options} wrote {self._rows} rows, and {result} are there")
        finally:
            topics.remove(topic)
        return seconds

    def _timed_save(self, kind: str, options: dict[str, str]) -> float:
        started = time.perf_counter()
        self._frame.write.format(kind).mode("overwrite" if kind == "noop" else "append").options(**options).save()
        return time.perf_counter() - started

    # -- sources -------------------------------------------------------------------------------

    def source_jobs(self) -> dict[str, Callable[[], float]]:
        """Write topics with Spark's connector, with its defaults and with large batches."""
        small, large = self._filled({}), self._filled(TUNED)
        reads = (("noop", small, "small"), ("noop", large, "large"), ("aggregate", large, "large"))
        return {
            f"{kind}, {how}, {size} batches": self._source_job(kind, how, topic)
            for how, topic, size in reads
            for kind in ("kafka", "headrace")
        }

    def _filled(self, options: dict[str, str]) -> str:
        def fill() -> str:
            topic = self._kafka.new()
            self._timed_save("kafka", {"kafka.bootstrap.servers": self._kafka.bootstrap, "topic": topic, **options})
            return topic

        return repeated_if_stalled(fill, self.stalls)

    def _source_job(self, kind: str, how: str, topic: str) -> Callable[[], float]:
        def run() -> float:
            frame = self._read(kind, self._kafka, topic)
            started = time.perf_counter()
            if how == "noop":
                frame.write.format("noop").mode("overwrite").save()
            else:
                (row,) = frame.selectExpr(
                    "count(*) n", "sum(length(key)) k", "sum(length(value)) v", "max(offset) o", "max(timestamp) t"
                ).collect()
                if (row.n, row.v) != (self._rows, self._rows * VALUE_BYTES):
                    raise SystemExit(f"{kind} read {row}")
            return time.perf_counter() - started

        return run

    def _read(self, kind: str, topics: Topics, topic: str) -> DataFrame:
        reader = self._spark.read.format(kind).option("kafka.bootstrap.servers", topics.bootstrap)
        return reader.option("kafka.isolation.level", "read_committed").option("subscribe", topic).load()

    # -- streams -------------------------------------------------------------------------------

    def stream_jobs(self) -> dict[str, Callable[[], list[Milliseconds]]]:
        """Our sinks have the name of their job: bench.spark finds their own times by it in the log."""
        jobs = {
            "connector": ("kafka", {}),
            "empty-python-sink": ("empty", {}),
            "at-least-once": ("headrace", {"delivery": "at-least-once"}),
            "exactly-once": ("headrace", {"sink.id": "exactly-once"}),
            "exactly-once-parallel": ("headrace", {"sink.id": "exactly-once-parallel", "commit.mode": "parallel"}),
        }
        return {label: partial(self._stream, kind, options) for label, (kind, options) in jobs.items()}

    def _stream(self, kind: str, options: dict[str, str]) -> list[Milliseconds]:
        """Return the phases of each small batch after the warm-up, as Spark reports them."""
        topic = self._kafka.new()
        options = {"kafka.bootstrap.servers": self._kafka.bootstrap, "topic": topic, **options}
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", STREAM_ROWS)
        rows = source.option("numPartitions", 2).load()
        rows = rows.selectExpr("CAST(value AS STRING) key", f"lpad(CAST(value AS STRING), {VALUE_BYTES}, 'v') value")
        with TemporaryDirectory(prefix="headrace-bench-") as checkpoint:
            started = rows.writeStream.format(kind).options(**options).option("checkpointLocation", checkpoint).start()
            try:
                deadline = time.monotonic() + STREAM_SECONDS_MAX
                while len(started.recentProgress) < STREAM_WARM_UP_BATCHES + STREAM_BATCHES:
                    if started.exception() or time.monotonic() > deadline:
                        raise RuntimeError(f"{kind} {options}: {started.exception() or 'too few batches'}")
                    time.sleep(0.5)
                progress = started.recentProgress
            finally:
                started.stop()
        self._kafka.remove(topic)
        batches = progress[STREAM_WARM_UP_BATCHES : STREAM_WARM_UP_BATCHES + STREAM_BATCHES]
        assert all(batch.numInputRows == STREAM_ROWS for batch in batches)
        return [dict(batch.durationMs) for batch in batches]


def keyed_rows(spark: SparkSession, rows: int, partitions: int = PARTITIONS) -> DataFrame:
    """Keys of 9 bytes, values of 100, no two values the same."""
    return spark.range(0, rows, 1, partitions).selectExpr(
        f"CAST(concat('key-', lpad(CAST(id % {KEYS} AS STRING), 5, '0')) AS BINARY) key",
        f"CAST(concat(lpad(CAST(id AS STRING), 20, '0'), repeat('v', {VALUE_BYTES - 20})) AS BINARY) value",
    )


def say(text: str) -> None:
    print(f"\r\033[K{text}" if sys.stderr.isatty() else text, end="", file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        print(file=sys.stderr, flush=True)


def repeated_if_stalled(job: Callable[[], T], stalls: list[str]) -> T:
    """Run a job; run it again if the Java producer of Spark's connector has stalled.

    That happens now and then with kafka-clients 3.9 and Kafka 4.3: it gets OUT_OF_ORDER_SEQUENCE_NUMBER, retries for
    delivery.timeout.ms (two minutes), and fails. A measurement without it is kind to the connector.
    """
    while True:
        try:
            return job()
        except Exception as error:
            if STALLED not in str(error) or len(stalls) >= STALLS_MAX:
                raise
            stalls.append(str(error)[:STALL_CHARACTERS_MAX])
            say("Spark's connector has stalled; once more")


def take_turns(jobs: Mapping[str, Callable[[], T]], rounds: int, stalls: list[str]) -> dict[str, list[T]]:
    """Return the results by job. The first rounds are a warm-up and do not count."""
    samples: dict[str, list[T]] = {label: [] for label in jobs}
    for number in range(-WARM_UP_ROUNDS, rounds):
        for label, job in random.Random(number).sample(list(jobs.items()), len(jobs)):
            say(f"round {number + 1} of {rounds}: {label}" if number >= 0 else f"warm-up: {label}")
            sample = repeated_if_stalled(job, stalls)
            if number >= 0:
                samples[label].append(sample)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--embedded", required=True)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    # A query that is stopped during a batch logs a long error, which is expected here.
    settings = {"spark.jars": options.jars, "spark.driver.memory": "4g"}
    spark = session("headrace-bench", "local[*]", settings, log_level="OFF")
    kafka, embedded = Topics(options.kafka), Topics(options.embedded)
    spark.dataSource.register(EmptyDataSource)
    rounds = Rounds(spark, kafka, embedded, options.rows)
    parts = options.only.split(",")
    seconds: dict[str, dict[str, list[float]]] = {}
    batches: dict[str, list[Milliseconds]] = {}
    try:
        for part, jobs in (
            ("sink", rounds.sink_jobs),
            ("source", rounds.source_jobs),
            ("embedded", rounds.embedded_jobs),
        ):
            if part in parts:
                seconds[part] = take_turns(jobs(), options.rounds, rounds.stalls)
        if "stream" in parts:
            for label, runs in take_turns(rounds.stream_jobs(), STREAM_ROUNDS, rounds.stalls).items():
                batches[label] = [batch for run in runs for batch in run]
    finally:
        say("")
        kafka.close()
        embedded.close()
        spark.stop()
    result = {"rows": options.rows, "seconds": seconds, "batches": batches, "stalls": rounds.stalls}
    options.output.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
