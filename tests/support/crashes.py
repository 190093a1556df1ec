"""Streaming queries that are killed and restarted, and the audit of their topics."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.client.fetcher import Fetcher
from headrace.types import TopicPartition
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.support.peers.broker import Broker

JOB_SECONDS_MAX = 170
SETTLE_SECONDS_MAX = 2


TextOf = Callable[[bytes], str]


@dataclass(slots=True)
class Audit:
    """The differences between the rows of a source and what read_committed readers see."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicated or self.foreign or self.out_of_order)

    def __str__(self) -> str:
        counts = (f"{len(rows)} {name} {rows[:3]}" for name, rows in asdict(self).items() if rows)
        return "; ".join(counts) or "clean"


class CrashingQuery:
    """A folder of source files, and the topic that their rows are written to. Callers run the query."""

    def __init__(self, folder: Path, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.rows: list[str] = []
        self._source = folder / "source"
        for path in (self._source, folder / "failpoints"):
            path.mkdir(parents=True)

    def add_file(self, count: int, width: int = 20, keys: int = 7, label: str = "") -> None:
        """Add a batch of `count` rows, each with the label in it."""
        number = len(list(self._source.iterdir()))
        rows = [f"k{n % keys} {number:04d}-{n:06d}-{label}".ljust(width, "x") for n in range(count)]
        path = self._source.with_name("part")
        path.write_text("\n".join(rows) + "\n")
        os.utime(path, (number + 1, number + 1))  # the source takes files in the order of their times
        path.rename(self._source / f"{number:04d}.txt")
        self.rows += rows

    def audit(self, text_of: TextOf = bytes.decode) -> Audit:
        """Compare the topic with all rows of the source; `text_of` decodes a value."""
        return audit(self.bootstrap, self.topic, self.rows, text_of)


class StreamInSession(CrashingQuery):
    """A source and its query, which runs in the Spark session of the tests."""

    def __init__(self, spark: SparkSession, folder: Path, broker: Broker, topic: str, **options: str) -> None:
        super().__init__(folder, broker.bootstrap, topic)
        self.spark, self.folder = spark, folder
        self.options = {"commit.mode": "parallel", **{k.replace("__", "."): v for k, v in options.items()}}

    def process(self, failpoints: str = "", checkpoint: str = "checkpoint", tasks: int = 2, **options: str) -> None:
        """Process all files; raise what the query raises."""
        self.end(self.begin(failpoints, checkpoint, tasks, **options))

    def begin(
        self, failpoints: str = "", checkpoint: str = "checkpoint", tasks: int = 2, **options: str
    ) -> StreamingQuery:
        """Start the query, and leave it running."""
        rows = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "source"))
        options = {k.replace("__", "."): v for k, v in options.items()}
        sink_options = {**self.options, **options, "kafka.bootstrap.servers": self.bootstrap, "topic": self.topic}
        if failpoints:
            sink_options["headrace.failpoints"] = failpoints
        return (
            rows.repartition(tasks)
            .selectExpr("split_part(value, ' ', 1) AS key", "value")
            .writeStream.format("headrace")
            .options(**sink_options)
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def end(self, query: StreamingQuery) -> None:
        """Wait for the end of the query; raise what it raises."""
        try:
            assert query.awaitTermination(JOB_SECONDS_MAX), f"the query has not ended after {JOB_SECONDS_MAX} s"
        finally:
            query.stop()


def marker_folder(spark: SparkSession) -> Path:
    """Return the folder with the marker files of failpoints of this session."""
    return Path(spark.conf.get("spark.headrace.markers") or "")


def markers(spark: SparkSession) -> Path:
    """Return the folder with the marker files, emptied: each failpoint acts once in a test."""
    folder = marker_folder(spark)
    for marker in folder.iterdir():
        marker.unlink()
    return folder


def committed(bootstrap: str, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """Return key and value of all committed records, by partition."""
    settle(bootstrap, topic)
    with Fetcher(bootstrap) as fetcher:
        partitions = _partitions(fetcher, topic)
        ends = fetcher.end_offsets(partitions)
        fetcher.assign(partitions, until=ends)
        records: defaultdict[int, list[tuple[bytes | None, bytes | None]]] = defaultdict(list)
        while not fetcher.is_finished():
            for record in fetcher.poll(1000, records_max=100_000):
                records[record.partition].append((record.key, record.value))
    return records


def settle(bootstrap: str, topic: str) -> None:
    """Wait for transaction markers, which are written after the response to a commit; give up on open transactions."""
    with suppress(TimeoutError):
        eventually("the end of all transactions", lambda: not open_transactions(bootstrap, topic), SETTLE_SECONDS_MAX)


def open_transactions(bootstrap: str, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    """Return the partitions with an open transaction: last stable offset and end offset."""
    with Fetcher(bootstrap) as stable, Fetcher(bootstrap, isolation="read_uncommitted") as unstable:
        partitions = _partitions(stable, topic)
        ends, last = stable.end_offsets(partitions), unstable.end_offsets(partitions)
    return {tp: (ends[tp], last[tp]) for tp in partitions if ends[tp] < last[tp]}


def _partitions(fetcher: Fetcher, topic: str) -> list[TopicPartition]:
    client = fetcher._client
    count = client.cluster([topic], client.deadline()).partition_count(topic)
    return [TopicPartition(topic, number) for number in range(count or 0)]


def audit(bootstrap: str, topic: str, expected: list[str], text_of: TextOf = bytes.decode) -> Audit:
    """Compare a topic with the expected rows: lost, duplicated, foreign, and out of order within a key."""
    by_partition = {
        partition: [(key, "" if value is None else text_of(value)) for key, value in records]
        for partition, records in committed(bootstrap, topic).items()
    }
    seen = Counter(text for records in by_partition.values() for _, text in records)
    expected_counts = Counter(expected)
    differences = Audit(
        lost=sorted((expected_counts - seen).elements()),
        duplicated=sorted(
            row for row, count in (seen - expected_counts).items() if row in expected_counts for _ in range(count)
        ),
        foreign=sorted(row for row in seen if row not in expected_counts),
    )
    for records in by_partition.values():
        last: dict[bytes | None, str] = {}
        for key, text in records:
            batch = _batch_of(text)
            if batch < last.get(key, ""):
                differences.out_of_order.append(text)
            last[key] = batch
    return differences


def _batch_of(text: str) -> str:
    parts = text.split(" ")
    return parts[1].partition("-")[0] if len(parts) > 1 else ""
