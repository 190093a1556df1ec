"""Decisions: which batch of which query is decided, and what is left to do for it.

    decision topic (one partition, compacted), key [sink, query]        → the last decision of that query
                                               key [sink, "holders", 1] → the runs that have held the sink (holders.py)

A decision is a record, written in the transaction of `sink.id` that also has the inline rows of the batch. The batch is
decided when that transaction is committed, and not before.

    DecisionLog.read    reads the decisions of one sink; waits for open transactions of that sink
    Fingerprint         row count and hash of a batch: tells a replay from another batch with the same number
"""

from __future__ import annotations

import json
import time
import uuid
import zlib
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.client.admin import NewTopic
from headrace.client.admin.configs import ConfigAdmin, ConfigResource, ResourceKind
from headrace.client.admin.topics import TopicAdmin
from headrace.client.blocking import BlockingClient
from headrace.client.fetcher import Fetcher
from headrace.client.offsets import EARLIEST, LATEST, Isolation, list_offsets
from headrace.errors import BrokerError, Code
from headrace.spark.errors import SinkError
from headrace.spark.holders import DriverProcess, Holders, holders_key
from headrace.spark.origins import NOTHING, Coverage
from headrace.spark.sink_options import DECISION_BYTES_MAX
from headrace.types import TopicPartition
from headrace.wire.records import decode_marker

VERSION = 2
"""Version 2 added the fingerprint and the driver. Unknown keys are ignored."""
VERSIONS_READ = (1, 2)
PLAIN_BYTES_MAX = 32 * 1024
"""Larger decisions are compressed: with many tasks and partitions they are long and repetitive."""
INFLATED_BYTES_MAX = 256 * 1024 * 1024
SETTLE_MS_MAX = 90_000
"""How long a read waits for an open transaction of its sink. A decision's transaction times out after a minute."""
SETTLE_POLL_MS = 50
READ_MS_MAX = 60_000
POLL_MS = 500
REPLICAS_MAX = 3
HASH_MODULUS = 1 << 64
NOT_AUTHORIZED = frozenset({Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED})
_TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(DECISION_BYTES_MAX),
    # Each batch adds a record, and only the last one is needed: small segments, so that compaction removes the others.
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(frozen=True, slots=True)
class Span:
    """The records of a transaction in one partition. Other records may be between `first` and `last`."""

    topic: str
    partition: int
    first: int
    last: int
    count: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class TaskTransaction:
    """The transaction of a task: all records acknowledged, left open for the driver to end."""

    id: str
    producer_id: int
    epoch: int
    is_v2: bool
    """Transactions v2 (KIP-890): EndTxn gives the id a new epoch."""
    spans: tuple[Span, ...]

    @property
    def identity(self) -> tuple[str, int, int]:
        """Unique: every transaction gets a new epoch before it begins."""
        return self.id, self.producer_id, self.epoch

    @property
    def record_count(self) -> int:
        return sum(span.count for span in self.spans)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The number of rows of a batch and the sum of their hashes (modulo 2^64), independent of their order."""

    rows: int = 0
    hash: int = 0

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.rows + other.rows, (self.hash + other.hash) % HASH_MODULUS)

    def __str__(self) -> str:
        return f"{self.rows} rows with hash {self.hash:016x}"


@dataclass(frozen=True, slots=True)
class Decision:
    """The record that makes a batch decided: all of its rows become visible."""

    sink: str
    query: str
    run: str
    batch: int
    transactions: tuple[TaskTransaction, ...] = ()
    inline_rows: int = 0
    at_ms: int = 0
    is_finished: bool = False
    redone: frozenset[str] = field(default_factory=frozenset)
    """Ids of transactions that expired and whose rows were written again."""
    fingerprint: Fingerprint | None = None
    """None in decisions of version 1."""
    driver: DriverProcess | None = None
    """The driver that decided. None in decisions of version 1."""
    offsets: Coverage = NOTHING
    """Source offsets that the query has covered, including this batch."""
    base: Coverage = NOTHING
    """Source offsets that were skipped in this batch because other queries of the sink had covered them."""
    batch_offsets: Coverage = NOTHING
    """Source offsets of this batch alone. Empty without the option source.offsets."""

    @property
    def rows(self) -> int:
        """All rows of the batch, dead letters included."""
        return self.inline_rows + sum(transaction.record_count for transaction in self.transactions)

    @property
    def unended(self) -> list[TaskTransaction]:
        """The transactions that have to be committed: all but those that were redone."""
        return [transaction for transaction in self.transactions if transaction.id not in self.redone]

    def finished(self) -> Decision:
        return replace(self, is_finished=True)

    def with_redone(self, transaction: TaskTransaction) -> Decision:
        return replace(self, redone=self.redone | {transaction.id})

    def holds(self, transaction: TaskTransaction) -> bool:
        return any(own.identity == transaction.identity for own in self.transactions)

    @property
    def key(self) -> bytes:
        return decision_key(self.sink, self.query)

    def encode(self) -> bytes:
        fields: dict[str, Any] = {
            "v": VERSION,
            "sink": self.sink,
            "query": self.query,
            "run": self.run,
            "batch": self.batch,
            "state": "finished" if self.is_finished else "decided",
            "at": self.at_ms,
            "inline": self.inline_rows,
            "transactions": [_transaction_json(transaction) for transaction in self.transactions],
            "redone": sorted(self.redone),
        }
        # Optional keys: decode() has a default for each.
        if self.fingerprint is not None:
            fields |= {"rows": self.fingerprint.rows, "hash": f"{self.fingerprint.hash:016x}"}
        if self.driver is not None:
            fields["driver"] = self.driver.to_json()
        if self.offsets.intervals:
            fields["offsets"] = self.offsets.to_json()
        if self.base.intervals:
            fields["base"] = self.base.to_json()
        if self.batch_offsets.intervals:
            fields["batch_offsets"] = self.batch_offsets.to_json()
        text = json.dumps(fields, separators=(",", ":")).encode()
        return text if len(text) <= PLAIN_BYTES_MAX else zlib.compress(text)

    @classmethod
    def decode(cls, data: bytes) -> Decision:
        try:
            fields = json.loads(data if data[:1] == b"{" else _inflate(data))
            version = fields["v"]
            if version not in VERSIONS_READ:
                raise SinkError(
                    f"unsupported decision record: expected version {VERSION} or lower, got {version}; use the "
                    "headrace that wrote it, or a newer one"
                )
            return cls(
                fields["sink"],
                fields["query"],
                fields["run"],
                int(fields["batch"]),
                tuple(_transaction(entry) for entry in fields["transactions"]),
                int(fields["inline"]),
                int(fields["at"]),
                {"finished": True, "decided": False}[fields["state"]],
                frozenset(fields["redone"]),
                Fingerprint(int(fields["rows"]), int(fields["hash"], 16)) if "hash" in fields else None,
                DriverProcess.from_json(fields["driver"]) if "driver" in fields else None,
                Coverage.from_json(fields.get("offsets", {})),
                Coverage.from_json(fields.get("base", {})),
                Coverage.from_json(fields.get("batch_offsets", {})),
            )
        except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
            raise SinkError(f"invalid decision record: {data[:100]!r} ({error!r})") from error


def decision_key(sink: str, query: str) -> bytes:
    return json.dumps([sink, query], separators=(",", ":")).encode()


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    text = inflater.decompress(data, INFLATED_BYTES_MAX)
    if inflater.unconsumed_tail:
        raise ValueError(f"more than {INFLATED_BYTES_MAX} bytes")
    return text


def _transaction_json(transaction: TaskTransaction) -> dict[str, Any]:
    spans: defaultdict[str, list[list[int]]] = defaultdict(list)
    for span in transaction.spans:
        spans[span.topic].append([span.partition, span.first, span.last, span.count])
    return {
        "id": transaction.id,
        "pid": transaction.producer_id,
        "epoch": transaction.epoch,
        "v2": transaction.is_v2,
        "spans": spans,
    }


def _transaction(fields: dict[str, Any]) -> TaskTransaction:
    spans = tuple(Span(topic, *map(int, row)) for topic, rows in fields["spans"].items() for row in rows)
    return TaskTransaction(fields["id"], int(fields["pid"]), int(fields["epoch"]), bool(fields["v2"]), spans)


_Records = dict[bytes, bytes | None]
"""The last value of each key; None for a tombstone."""


@dataclass(slots=True)
class _SinkState:
    """The decisions and holders of one sink, up to an offset."""

    offset: int = EARLIEST
    """The first offset that is not read yet. No transaction of the sink is open before it."""
    decisions: dict[str, Decision] = field(default_factory=dict)
    holders: Holders = field(default_factory=Holders)


class DecisionLog:
    """Reads the decision topic, and creates it if it is missing. Later reads fetch new records only."""

    def __init__(self, client: BlockingClient, topic: str) -> None:
        self._client = client
        self.topic = topic
        self._partition = TopicPartition(topic, 0)
        self._topic_id: uuid.UUID | None = None
        self._is_checked = False  # whether the settings of the topic were checked
        self._states: dict[str, _SinkState] = {}

    def ensure(self) -> None:
        """Create the topic if it is missing; raise if its settings would lose decisions."""
        admin = TopicAdmin(self._client)
        try:
            topic = admin.describe_topics([self.topic])[self.topic]
        except BrokerError as error:
            if error.code != Code.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            self._create(admin)
            self._states.clear()
            self._topic_id = None
            return
        if len(topic.partitions) != 1:
            raise SinkError(
                f"decision.topic {self.topic!r} has {len(topic.partitions)} partitions, and decisions need one "
                "order: it must have one partition; name another topic"
            )
        if topic.topic_id != self._topic_id:  # the topic was recreated: what was read before is not in it
            self._states.clear()
            self._topic_id = topic.topic_id
            self._is_checked = False
        if not self._is_checked:
            self._check_retention()
            self._is_checked = True

    def is_missing(self) -> bool:
        """Whether the topic does not exist."""
        try:
            TopicAdmin(self._client).describe_topics([self.topic])
        except BrokerError as error:
            if error.code != Code.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return True
        return False

    def _check_retention(self) -> None:
        """Raise if the topic deletes decisions after some time, as an auto-created topic does."""
        resource = ConfigResource(ResourceKind.TOPIC, self.topic)
        try:
            policy = ConfigAdmin(self._client).describe_configs([resource])[resource]["cleanup.policy"].value
        except BrokerError as error:
            if error.code not in NOT_AUTHORIZED:
                raise
            return
        if policy is not None and "delete" in policy:
            raise SinkError(
                f"decision.topic {self.topic!r} has cleanup.policy={policy}: decisions would be deleted after some "
                "time, and replayed batches delivered again. Set cleanup.policy=compact on it (`kafka-configs.sh "
                f"--alter --entity-type topics --entity-name {self.topic} --add-config cleanup.policy=compact`), or "
                "name another topic"
            )

    def _create(self, admin: TopicAdmin) -> None:
        brokers = len(self._client.cluster((), self._client.deadline(), fresh=True).brokers)
        replicas = min(REPLICAS_MAX, brokers)
        configs = dict(_TOPIC_CONFIGS)
        if replicas == REPLICAS_MAX:
            configs["min.insync.replicas"] = "2"
        try:
            admin.create_topics([NewTopic(self.topic, 1, replicas, configs)])
        except BrokerError as error:
            if error.code != Code.TOPIC_ALREADY_EXISTS:
                raise

    def read(self, sink: str) -> dict[str, Decision]:
        """Return the last decision of each query of a sink.

        Waits for open transactions of this sink, which may have a decision, but not for those of other sinks. These
        hold back the last stable offset. Below it, this reads committed records. Above it, it reads all records and the
        transaction markers: the next marker of a producer id ends the transaction of its records, because a producer id
        has one open transaction at a time. No marker is missing there: compaction stops at the last stable offset.
        """
        return dict(self._read(sink).decisions)

    def holders(self, sink: str) -> Holders:
        """Return the runs that have held a sink, as of the last `read`."""
        return self._states.get(sink, _SinkState()).holders

    def _read(self, sink: str) -> _SinkState:
        end = self._end(Isolation.READ_UNCOMMITTED)
        stable_end = min(self._end(Isolation.READ_COMMITTED), end)
        state = self._states.get(sink)
        if state is None or state.offset > end:  # the log ends before what was read: the topic was recreated
            state = _SinkState()
        records: _Records = {}
        if state.offset < stable_end:
            self._read_committed(sink, state.offset, stable_end, records)
        end = self._read_unstable(sink, max(state.offset, stable_end), end, records)
        decisions, holders = dict(state.decisions), state.holders
        for key, value in records.items():
            if key == holders_key(sink):
                holders = Holders() if value is None else Holders.decode(value)
            elif value is None:
                decisions.pop(json.loads(key)[1], None)
            else:
                decisions[json.loads(key)[1]] = Decision.decode(value)
        self._states[sink] = state = _SinkState(end, decisions, holders)
        return state

    def _read_committed(self, sink: str, start: int, end: int, records: _Records) -> None:
        with Fetcher(self._client, isolation="read_committed", max_wait_ms=POLL_MS) as fetcher:
            fetcher.assign({self._partition: start}, until={self._partition: end})
            deadline = self._client.deadline(READ_MS_MAX)
            while not fetcher.is_finished():
                for record in fetcher.poll(POLL_MS):
                    if record.key is not None and _sink_of(record.key) == sink:
                        records[record.key] = record.value
                self._check_read_time(deadline, fetcher, end)

    def _read_unstable(self, sink: str, start: int, end: int, records: _Records) -> int:
        """Read from the last stable offset until no transaction of the sink is open; return the end offset."""
        pending: dict[int, _Records] = {}  # by producer id: records of the sink whose transaction has no marker yet
        deadline = self._client.deadline(SETTLE_MS_MAX)
        while start < end or pending:
            self._read_transactions(sink, start, end, pending, records)
            start = end
            if not pending:
                break
            if self._client.clock.monotonic_ms() > deadline:
                raise SinkError(
                    f"a transaction of sink.id {sink!r} has been open in {self.topic!r} before offset {end} for "
                    f"{SETTLE_MS_MAX / 1000:g} s: whether it decides a batch is not known yet. Its driver hangs, or is "
                    "committing; stop that driver, or start the query again later"
                )
            time.sleep(SETTLE_POLL_MS / 1000)
            end = self._end(Isolation.READ_UNCOMMITTED)
        return end

    def _read_transactions(
        self, sink: str, start: int, end: int, pending: dict[int, _Records], records: _Records
    ) -> None:
        with Fetcher(self._client, isolation="read_uncommitted", max_wait_ms=POLL_MS, control_batches=True) as fetcher:
            fetcher.assign({self._partition: start}, until={self._partition: end})
            deadline = self._client.deadline(READ_MS_MAX)
            while not fetcher.is_finished():
                for batch in fetcher.poll_batches(POLL_MS).get(self._partition, ()):
                    if batch.header.is_control:
                        marker = next(map(decode_marker, batch.records()), None)
                        if marker is not None:
                            ended = pending.pop(batch.header.producer_id, {})
                            records |= ended if marker.committed else {}
                        continue
                    for record in batch.records():
                        if record.key is not None and _sink_of(record.key) == sink and start <= record.offset < end:
                            is_open = batch.header.is_transactional
                            target = pending.setdefault(batch.header.producer_id, {}) if is_open else records
                            target[record.key] = record.value
                self._check_read_time(deadline, fetcher, end)

    def _check_read_time(self, deadline: float, fetcher: Fetcher, end: int) -> None:
        if self._client.clock.monotonic_ms() > deadline:
            raise SinkError(
                f"reading the decisions in {self.topic!r} timed out after {READ_MS_MAX / 1000:g} s at offset "
                f"{fetcher.position(self._partition)} of {end}. Are the brokers overloaded? Start the query again"
            )

    def _end(self, isolation: Isolation) -> int:
        return list_offsets(self._client, {self._partition: LATEST}, isolation)[self._partition].offset


def _sink_of(key: bytes) -> str | None:
    """Return the sink that a record belongs to; None for other kinds of keys."""
    try:
        sink, name, *version = json.loads(key)
    except (ValueError, TypeError):
        return None
    is_known = isinstance(sink, str) and isinstance(name, str) and (not version or key == holders_key(sink))
    return sink if is_known else None
