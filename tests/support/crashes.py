"""Streaming queries that are killed and started again, and what is in the topic afterwards."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
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


@dataclass(slots=True)
class Audit:
    """What readers of committed records see, beside what was to be seen."""

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
    """A source of files in a folder of its own, and the topic that its rows go to. Others run the query."""

    def __init__(self, folder: Path, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.rows: list[str] = []
        self._source = folder / "source"
        for one in (self._source, folder / "failpoints"):
            one.mkdir(parents=True)

    def add_file(self, count: int, width: int = 20, keys: int = 7, label: str = "") -> None:
        """One more batch: `count` rows, each with the label in it."""
        number = len(list(self._source.iterdir()))
        rows = [f"k{n % keys} {number:04d}-{n:06d}-{label}".ljust(width, "x") for n in range(count)]
        path = self._source.with_name("part")
        path.write_text("\n".join(rows) + "\n")
        os.utime(path, (number + 1, number + 1))  # the source takes files in the order of their times
        path.rename(self._source / f"{number:04d}.txt")
        self.rows += rows

    def audit(self) -> Audit:
        """Compare the topic with all rows that were ever in the source."""
        return audit(self.bootstrap, self.topic, self.rows)


class StreamInSession(CrashingQuery):
    """The same, and the query, which runs in the session of the tests."""

    def __init__(self, spark: SparkSession, folder: Path, broker: Broker, topic: str, **options: str) -> None:
        super().__init__(folder, broker.bootstrap, topic)
        self.spark, self.folder = spark, folder
        self.options = {"commit.mode": "parallel", **{k.replace("__", "."): v for k, v in options.items()}}

    def process(self, failpoints: str = "", checkpoint: str = "checkpoint", tasks: int = 2, **options: str) -> None:
        """All files that are there; raises what the query raises."""
        self.end(self.begin(failpoints, checkpoint, tasks, **options))

    def begin(
        self, failpoints: str = "", checkpoint: str = "checkpoint", tasks: int = 2, **options: str
    ) -> StreamingQuery:
        """Start it, and leave it running."""
        rows = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "source"))
        options = {k.replace("__", "."): v for k, v in options.items()}
        given = {**self.options, **options, "kafka.bootstrap.servers": self.bootstrap, "topic": self.topic}
        if failpoints:
            given["headrace.failpoints"] = failpoints
        return (
            rows.repartition(tasks)
            .selectExpr("split_part(value, ' ', 1) AS key", "value")
            .writeStream.format("headrace")
            .options(**given)
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def end(self, query: StreamingQuery) -> None:
        """Wait for its end; raises what the query raises."""
        try:
            assert query.awaitTermination(JOB_SECONDS_MAX), "the query has not ended in time"
        finally:
            query.stop()


def marks_of(spark: SparkSession) -> Path:
    """Where failpoints of the session leave their marks."""
    return Path(spark.conf.get("spark.headrace.markers") or "")


def markers(spark: SparkSession) -> Path:
    """The same, emptied: each failpoint is to happen once a test."""
    folder = marks_of(spark)
    for mark in folder.iterdir():
        mark.unlink()
    return folder


def committed(bootstrap: str, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """Key and value of every record that a reader of committed ones is given, by partition."""
    settle(bootstrap, topic)
    with Fetcher(bootstrap) as fetcher:
        partitions = _partitions(fetcher, topic)
        ends = fetcher.end_offsets(partitions)
        fetcher.assign(partitions, until=ends)
        found: defaultdict[int, list[tuple[bytes | None, bytes | None]]] = defaultdict(list)
        while not fetcher.is_finished():
            for record in fetcher.poll(1000, records_max=100_000):
                found[record.partition].append((record.key, record.value))
    return found


def settle(bootstrap: str, topic: str) -> None:
    """A commit is answered before its markers are written: wait for those, unless somebody has left one open."""
    with suppress(TimeoutError):
        eventually("the end of all transactions", lambda: not open_transactions(bootstrap, topic), SETTLE_SECONDS_MAX)


def open_transactions(bootstrap: str, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    """Partitions whose readers wait for an open transaction: last stable offset and end."""
    with Fetcher(bootstrap) as stable, Fetcher(bootstrap, isolation="read_uncommitted") as all_of_it:
        partitions = _partitions(stable, topic)
        ends, last = stable.end_offsets(partitions), all_of_it.end_offsets(partitions)
    return {tp: (ends[tp], last[tp]) for tp in partitions if ends[tp] < last[tp]}


def _partitions(fetcher: Fetcher, topic: str) -> list[TopicPartition]:
    client = fetcher._client
    count = client.cluster([topic], client.deadline()).partition_count(topic)
    return [TopicPartition(topic, number) for number in range(count or 0)]


def audit(bootstrap: str, topic: str, expected: list[str]) -> Audit:
    """Lost, duplicated, foreign; and for each key the order of batches."""
    by_partition = committed(bootstrap, topic)
    seen = Counter((value or b"").decode() for records in by_partition.values() for _, value in records)
    wanted = Counter(expected)
    found = Audit(
        lost=sorted((wanted - seen).elements()),
        duplicated=sorted(row for row, count in (seen - wanted).items() if row in wanted for _ in range(count)),
        foreign=sorted(row for row in seen if row not in wanted),
    )
    for records in by_partition.values():
        last: dict[bytes | None, str] = {}
        for key, value in records:
            batch = _batch_of(value)
            if batch < last.get(key, ""):
                found.out_of_order.append((value or b"").decode())
            last[key] = batch
    return found


def _batch_of(value: bytes | None) -> str:
    parts = (value or b"").decode().split(" ")
    return parts[1].partition("-")[0] if len(parts) > 1 else ""
