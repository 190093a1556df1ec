"""Readers for a chaos run: readers that follow the writers, the final reads, and the content of the replicas."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition

from headrace.verify import ReadOp, ReplicaOp, StoredBatch
from headrace.wire.records import read_batches
from tests.support.chaos_writers import Setting
from tests.support.peers import librdkafka

RECORDS_MAX = 500  # in one call
WAIT_SECONDS = 0.2
STOP_SECONDS_MAX = 20
WATERMARK_SECONDS_MAX = 20


class Reader(threading.Thread):
    """Reads all partitions from their beginning to the end of the run."""

    def __init__(self, name: str, setting: Setting, *, committed: bool) -> None:
        super().__init__(name=name, daemon=True)
        self.errors: list[str] = []
        self.count = 0
        self._setting = setting
        self._committed = committed
        self._stopping = threading.Event()
        self._consumer = _consumer(setting.bootstrap, committed=committed)
        self._consumer.assign([TopicPartition(setting.topic, number, 0) for number in range(setting.partitions)])

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._read()
        except BaseException as error:
            self.errors.append(repr(error))
        finally:
            self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join(STOP_SECONDS_MAX)
        if self.is_alive():
            raise TimeoutError(f"reader {self.name} has not stopped after {STOP_SECONDS_MAX} s")

    def _read(self) -> None:
        by_partition: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
        for message in self._consumer.consume(RECORDS_MAX, WAIT_SECONDS):
            if (error := message.error()) is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                by_partition[partition].append((offset, (message.value() or b"").decode()))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self.errors.append(f"{self.name} got an error for its offset: {error}")
        for partition, records in by_partition.items():
            end = self._end(partition)
            read = ReadOp(self.name, self._setting.topic, partition, self._committed, tuple(records), end)
            self._setting.history.add(read)
            self.count += len(records)

    def _end(self, partition: int) -> int | None:
        known = self._consumer.get_watermark_offsets(TopicPartition(self._setting.topic, partition), cached=True)
        return known[1] if known is not None and known[1] >= 0 else None


def _consumer(bootstrap: str, *, committed: bool) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "not-used",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "error",
            "check.crcs": True,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )


def read_finally(setting: Setting) -> None:
    """Read all records at both isolation levels, after the writers have ended."""
    for partition in range(setting.partitions):
        consumer = _consumer(setting.bootstrap, committed=False)
        try:
            where = TopicPartition(setting.topic, partition)
            known = consumer.get_watermark_offsets(where, timeout=WATERMARK_SECONDS_MAX)
        finally:
            consumer.close()
        assert known is not None, f"the end offset of partition {partition} is unknown"
        for committed in (True, False):
            isolation = "read_committed" if committed else "read_uncommitted"
            records = librdkafka.consume_to_end(
                setting.bootstrap, setting.topic, partition=partition, isolation=isolation
            )
            rows = tuple((record.offset, (record.value or b"").decode()) for record in records)
            setting.history.add(ReadOp("final", setting.topic, partition, committed, rows, known[1], final=True))


def dump_replicas(setting: Setting, folders: dict[int, Path]) -> None:
    """Record the batches that stopped brokers have on disk; `folders` by broker id."""
    for broker, folder in folders.items():
        for partition in range(setting.partitions):
            files = sorted((folder / f"{setting.topic}-{partition}").glob("*.log"))
            batches = [
                StoredBatch(
                    batch.header.base_offset,
                    batch.header.last_offset,
                    batch.header.leader_epoch,
                    hashlib.sha1(batch.view).hexdigest(),
                )
                for file in files
                for batch in read_batches(file.read_bytes())
            ]
            setting.history.add(ReplicaOp(broker, setting.topic, partition, tuple(batches)))
