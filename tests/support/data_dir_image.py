"""Data folders with all files that a broker writes, created once and copied for each damage.

    earlier/    half-way: older copies of files
    killed/     after kill -9: a copy while the broker runs (written data is with the system)
    clean/      after a clean stop
    facts.json  the acknowledged records

Each has a folder for each broker, 1 to n. Two topics are written by plain, idempotent and transactional producers, over
several segments; one is compacted; some records are deleted; a group has committed offsets; a transaction is open.
"""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.broker.log.files import UNFINISHED
from headrace.wire.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.wire.api.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from headrace.wire.layout import Record
from headrace.wire.records import BatchProducer, encode
from tests.support.data_dir_brokers import RoutingClient, RunningBrokers
from tests.support.raw_producer import RawProducer

EARLIER, KILLED, CLEAN = "earlier", "killed", "clean"
FACTS = "facts.json"
ORDERS, PAYMENTS, PRICES = "orders", "payments", "prices"
ORDERS_PARTITIONS = 2
GROUP, GROUP_OFFSET = "billing", 3
TRANSACTIONAL_ID = "ledger"
DELETED_BEFORE = 5
ROUNDS = 12
TIME_MS = time.time_ns() // 1_000_000  # old records and new markers would not share a segment
PLAIN, COMMITTED, ABORTED, OPEN = "plain", "committed", "aborted", "open"
ZSTD = 4
OPTIONS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "log.retention.ms": -1,
    "log.cleaner.backoff.ms": 3_600_000,
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": 3_000,
}


@dataclass
class Facts:
    """The acknowledged records and offsets, which must survive."""

    # By partition, such as orders-0: offset, key, value and outcome of each record.
    records: dict[str, list[tuple[int, str, str, str]]] = field(default_factory=dict)
    start_offsets: dict[str, int] = field(default_factory=dict)
    producer_ids: list[int] = field(default_factory=list)
    transaction: tuple[int, int] = (-1, -1)  # producer id and epoch of the one that is open
    resend: dict[str, Any] = field(default_factory=dict)  # the last batch of an idempotent producer, and its next one

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(path: Path) -> Facts:
        return Facts(**json.loads(path.read_text()))


def prepare(folder: Path, brokers: int) -> None:
    """Make the images in a new folder."""
    folder.mkdir(parents=True)
    live = [folder / "live" / str(node_id) for node_id in range(1, brokers + 1)]
    for path in live:
        path.mkdir(parents=True)
    running = RunningBrokers(live, **OPTIONS, **_replication(brokers))
    running.start()
    if running.refusals:
        raise RuntimeError(f"brokers on empty folders do not start: {running.refusals}")
    client = running.client()
    facts = _Writer(client, brokers).write(lambda: _half_way(running, folder))
    for broker in running.brokers.values():
        running.run(broker.logs.compact())
        running.run(broker.logs.write_checkpoints())
    facts.records[f"{PRICES}-0"] = _last_of_each_key(facts.records[f"{PRICES}-0"])
    facts.write(folder / FACTS)
    # Files that are being replaced come and go under temporary names.
    shutil.copytree(folder / "live", folder / KILLED, ignore=shutil.ignore_patterns(f"*{UNFINISHED}"))
    client.close()
    running.stop()
    shutil.move(folder / "live", folder / CLEAN)


def _replication(brokers: int) -> dict[str, object]:
    names = (
        "default.replication.factor",
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
    )
    return {**dict.fromkeys(names, brokers), "min.insync.replicas": 1, "transaction.state.log.min.isr": 1}


def _half_way(running: RunningBrokers, folder: Path) -> None:
    for broker in running.brokers.values():
        for log in broker.logs.all:
            running.run(broker.logs.flushed(log))
        running.run(broker.logs.write_checkpoints())
    shutil.copytree(folder / "live", folder / EARLIER)


def _last_of_each_key(rows: list[tuple[int, str, str, str]]) -> list[tuple[int, str, str, str]]:
    """The records that compaction must keep: the newest of every key. Older ones may exist or not."""
    return sorted({key: (offset, key, value, outcome) for offset, key, value, outcome in rows}.values())


class _Writer:
    """Writes the records, and records which were acknowledged."""

    def __init__(self, client: RoutingClient, brokers: int) -> None:
        self._client = client
        self._facts = Facts()
        self._brokers = brokers
        self._time_ms = TIME_MS
        self._written = 0

    def write(self, half_way: Any) -> Facts:
        self._create_topics()
        idempotent = RawProducer(self._client, ORDERS)
        transactional = RawProducer(self._client, ORDERS, TRANSACTIONAL_ID)
        for producer in (idempotent, transactional):
            assert producer.init().error_code == 0
            self._facts.producer_ids.append(producer.producer_id)
        sequences = dict.fromkeys(range(ORDERS_PARTITIONS), 0)
        for turn in range(ROUNDS):
            for partition in range(ORDERS_PARTITIONS):
                self._append(ORDERS, partition, idempotent, sequences[partition], 2)
                sequences[partition] += 2
            self._transaction(transactional, ABORTED if turn % 3 == 1 else COMMITTED)
            self._append(PAYMENTS, 0, None, 0, 3, codec=ZSTD)
            self._append(PRICES, 0, None, 0, 3, keys=4)
            if turn == ROUNDS // 2:
                self._commit_offsets()
                half_way()
        self._delete_records()
        self._commit_offsets()
        self._keep_last(idempotent, sequences[0])
        self._begin_transaction(transactional)
        return self._facts

    def _create_topics(self) -> None:
        configs = {"internal.segment.bytes": "1200", "index.interval.bytes": "100", "file.delete.delay.ms": "0"}
        compacted = configs | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=self._brokers,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in chosen.items()],
            )
            for name, partitions, chosen in (
                (ORDERS, ORDERS_PARTITIONS, configs),
                (PAYMENTS, 1, configs),
                (PRICES, 1, compacted),
            )
        ]
        response = self._client.call(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 5)
        assert not any(topic.error_code for topic in response.topics), response

    def _append(
        self,
        topic: str,
        partition: int,
        producer: RawProducer | None,
        sequence: int,
        count: int,
        *,
        outcome: str = PLAIN,
        codec: int = 0,
        keys: int = 0,
    ) -> bytes:
        self._time_ms += 1
        rows = []
        for _ in range(count):
            self._written += 1
            key = f"key-{self._written % keys if keys else self._written}"
            rows.append((key, f"value {self._written} of {topic}-{partition} " + "." * 40))
        data = _batch(rows, self._time_ms, producer, sequence, outcome != PLAIN, codec)
        response = self._client.produce(
            topic,
            data,
            version=12 if producer is not None else 9,
            partition=partition,
            transactional_id=TRANSACTIONAL_ID if outcome != PLAIN else None,
        )
        assert response.error_code == 0, response
        known = self._facts.records.setdefault(f"{topic}-{partition}", [])
        known += [(response.base_offset + n, key, value, outcome) for n, (key, value) in enumerate(rows)]
        if producer is not None and outcome == PLAIN and partition == 0:
            self._facts.resend = {"data": base64.b64encode(data).decode(), "base_offset": response.base_offset}
        return data

    def _transaction(self, producer: RawProducer, outcome: str) -> None:
        for partition in range(ORDERS_PARTITIONS):
            self._append(ORDERS, partition, producer, 0, 2, outcome=outcome)
        assert producer.end(outcome == COMMITTED).error_code == 0

    def _begin_transaction(self, producer: RawProducer) -> None:
        self._append(ORDERS, 1, producer, 0, 2, outcome=OPEN)
        self._facts.transaction = (producer.producer_id, producer.epoch)

    def _keep_last(self, producer: RawProducer, sequence: int) -> None:
        self._append(ORDERS, 0, producer, sequence, 2)
        fresh = _batch([("next", "next")], self._time_ms, producer, sequence + 2, False, 0)
        self._facts.resend["next"] = base64.b64encode(fresh).decode()

    def _delete_records(self) -> None:
        self._facts.start_offsets[f"{PAYMENTS}-0"] = DELETED_BEFORE
        row = DeleteRecordsPartition(partition_index=0, offset=DELETED_BEFORE)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=PAYMENTS, partitions=[row])], timeout_ms=5000)
        response = self._client.call_leader(PAYMENTS, 0, request, 2)
        assert isinstance(response, DeleteRecordsResponse)
        assert response.topics[0].partitions[0].error_code == 0, response
        rows = self._facts.records[f"{PAYMENTS}-0"]
        self._facts.records[f"{PAYMENTS}-0"] = [row for row in rows if row[0] >= DELETED_BEFORE]

    def _commit_offsets(self) -> None:
        row = OffsetCommitRequestPartition(partition_index=0, committed_offset=GROUP_OFFSET, committed_metadata="")
        request = OffsetCommitRequest(group_id=GROUP, topics=[OffsetCommitRequestTopic(name=ORDERS, partitions=[row])])
        response = self._client.call(request, 8)
        assert response.topics[0].partitions[0].error_code == 0, response


def _batch(
    rows: Sequence[tuple[str, str]],
    time_ms: int,
    producer: RawProducer | None,
    sequence: int,
    transactional: bool,
    codec: int,
) -> bytes:
    records = [Record(n, time_ms + n, key.encode(), value.encode(), ()) for n, (key, value) in enumerate(rows)]
    if producer is None:
        return bytes(encode(records, codec=codec))
    identity = BatchProducer(producer.producer_id, producer.epoch, sequence, transactional)
    return bytes(encode(records, codec=codec, producer=identity))
