"""The decision log: which batch of which query is decided, and what still has to be done for it.

    decision topic (one partition, compacted), key [sink, query]        → the last decision of that query
                                               key [sink, "holders", 1] → the runs that have held the sink (holders.py)

A decision is a record like any other, written in the transaction of `sink.id` that also holds the inline rows of the
batch. So the moment that transaction is committed is the moment the batch is decided: there is no other one.

    DecisionLog.read    the decisions of one sink, as of now: an open transaction of that sink is waited for
    Fingerprint         what the rows of a batch were, so that a batch that comes again is known from another one
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
from headrace.client.blocking import BlockingClient, TopicPartition
from headrace.client.fetcher import Fetcher
from headrace.client.offsets import EARLIEST, LATEST, Isolation, list_offsets
from headrace.errors import BrokerError, Code
from headrace.spark.errors import SinkError
from headrace.spark.holders import DriverProcess, Holders, holders_key
from headrace.spark.origins import NOTHING, Coverage
from headrace.spark.sink_options import DECISION_BYTES_MAX
from headrace.wire.records import decode_marker

VERSION = 2
"""Since 2 a decision has the fingerprint of its rows and the driver that took it. Keys that are unknown are ignored."""
VERSIONS_READ = (1, 2)
PLAIN_BYTES_MAX = 32 * 1024
"""Decisions beyond this are compressed: with many tasks and partitions they are long, and all alike."""
INFLATED_BYTES_MAX = 256 * 1024 * 1024
SETTLE_MS_MAX = 90_000
"""How long a read waits for an open transaction of its own sink: one that decides is over after a minute at most."""
SETTLE_POLL_MS = 50
READ_MS_MAX = 60_000
POLL_MS = 500
REPLICAS_MAX = 3
HASH_MODULUS = 1 << 64
_MAY_NOT_DESCRIBE = frozenset({Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED})
_TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(DECISION_BYTES_MAX),
    # A new record for every batch, and only the last one counts: without small segments nothing would be compacted.
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(frozen=True, slots=True)
class Span:
    """What a transaction wrote to one partition. Offsets between `first` and `last` may belong to others."""

    topic: str
    partition: int
    first: int
    last: int
    count: int

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class TaskTransaction:
    """A task's transaction: written, acknowledged, and left open for the driver to end."""

    id: str
    producer_id: int
    epoch: int
    is_v2: bool
    """Transactions v2 (KIP-890): ending it gives its id a new epoch."""
    spans: tuple[Span, ...]

    @property
    def identity(self) -> tuple[str, int, int]:
        """Never used twice: every transaction gets an epoch of its own before it begins."""
        return self.id, self.producer_id, self.epoch

    @property
    def record_count(self) -> int:
        return sum(span.count for span in self.spans)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the rows of a batch are, whatever their order: how many, and the sum of a hash of each (modulo 2^64)."""

    rows: int = 0
    hash: int = 0

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.rows + other.rows, (self.hash + other.hash) % HASH_MODULUS)

    def __str__(self) -> str:
        return f"{self.rows} rows with hash {self.hash:016x}"


@dataclass(frozen=True, slots=True)
class Decision:
    """A batch is to be seen, whole."""

    sink: str
    query: str
    run: str
    batch: int
    transactions: tuple[TaskTransaction, ...] = ()
    inline_rows: int = 0
    at_ms: int = 0
    is_finished: bool = False
    redone: frozenset[str] = field(default_factory=frozenset)
    """Ids of transactions that had expired and whose rows were written again."""
    fingerprint: Fingerprint | None = None
    """None in decisions of version 1."""
    driver: DriverProcess | None = None
    """The driver that took the decision. None in decisions of version 1."""
    offsets: Coverage = NOTHING
    """Source offsets that the query has covered, this batch included."""
    base: Coverage = NOTHING
    """Source offsets that were skipped in this batch because other queries of the sink had covered them."""
    batch_offsets: Coverage = NOTHING
    """Source offsets of this batch alone. Empty without the option source.offsets."""

    @property
    def rows(self) -> int:
        """All rows of the batch, dead letters included."""
        return self.inline_rows + sum(one.record_count for one in self.transactions)

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
        found: dict[str, Any] = {
            "v": VERSION,
            "sink": self.sink,
            "query": self.query,
            "run": self.run,
            "batch": self.batch,
            "state": "finished" if self.is_finished else "decided",
            "at": self.at_ms,
            "inline": self.inline_rows,
            "transactions": [_transaction_json(one) for one in self.transactions],
            "redone": sorted(self.redone),
        }
        # Keys that may be missing: each has a default that says what its absence means.
        if self.fingerprint is not None:
            found |= {"rows": self.fingerprint.rows, "hash": f"{self.fingerprint.hash:016x}"}
        if self.driver is not None:
            found["driver"] = self.driver.to_json()
        if self.offsets.intervals:
            found["offsets"] = self.offsets.to_json()
        if self.base.intervals:
            found["base"] = self.base.to_json()
        if self.batch_offsets.intervals:
            found["batch_offsets"] = self.batch_offsets.to_json()
        text = json.dumps(found, separators=(",", ":")).encode()
        return text if len(text) <= PLAIN_BYTES_MAX else zlib.compress(text)

    @classmethod
    def decode(cls, data: bytes) -> Decision:
        try:
            found = json.loads(data if data[:1] == b"{" else _inflate(data))
            version = found["v"]
            if version not in VERSIONS_READ:
                raise SinkError(
                    f"a decision of version {version}, and this headrace knows {VERSION}: use the one that wrote it"
                )
            return cls(
                found["sink"],
                found["query"],
                found["run"],
                int(found["batch"]),
                tuple(_transaction(one) for one in found["transactions"]),
                int(found["inline"]),
                int(found["at"]),
                {"finished": True, "decided": False}[found["state"]],
                frozenset(found["redone"]),
                Fingerprint(int(found["rows"]), int(found["hash"], 16)) if "hash" in found else None,
                DriverProcess.from_json(found["driver"]) if "driver" in found else None,
                Coverage.from_json(found.get("offsets", {})),
                Coverage.from_json(found.get("base", {})),
                Coverage.from_json(found.get("batch_offsets", {})),
            )
        except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
            raise SinkError(f"this is no decision: {data[:100]!r} ({error!r})") from error


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


def _transaction(found: dict[str, Any]) -> TaskTransaction:
    spans = tuple(Span(topic, *map(int, row)) for topic, rows in found["spans"].items() for row in rows)
    return TaskTransaction(found["id"], int(found["pid"]), int(found["epoch"]), bool(found["v2"]), spans)


_Records = dict[bytes, bytes | None]
"""The last value of each key; None for a tombstone."""


@dataclass(slots=True)
class _SinkState:
    """What the log says of one sink, up to an offset."""

    offset: int = EARLIEST
    """The first offset that is not read yet. Everything before it is settled: it will not change any more."""
    decisions: dict[str, Decision] = field(default_factory=dict)
    holders: Holders = field(default_factory=Holders)


class DecisionLog:
    """Reads the decision topic, and creates it if there is none. Reading again costs what is new in the log."""

    def __init__(self, client: BlockingClient, topic: str) -> None:
        self._client = client
        self.topic = topic
        self._place = TopicPartition(topic, 0)
        self._topic_id: uuid.UUID | None = None
        self._is_known = False  # whether the topic was seen to be one that keeps decisions
        self._states: dict[str, _SinkState] = {}

    def ensure(self) -> None:
        """Create the topic if there is none; raise if it cannot keep decisions."""
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
                f"decision.topic {self.topic!r} has {len(topic.partitions)} partitions, and decisions need their "
                "order: it must have one; name another topic"
            )
        if topic.topic_id != self._topic_id:  # another topic of that name: what was read before is not in it
            self._states.clear()
            self._topic_id = topic.topic_id
            self._is_known = False
        if not self._is_known:
            self._check_retention()
            self._is_known = True

    def is_missing(self) -> bool:
        """Whether there is no such topic."""
        try:
            TopicAdmin(self._client).describe_topics([self.topic])
        except BrokerError as error:
            if error.code != Code.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return True
        return False

    def _check_retention(self) -> None:
        """Raise if the topic forgets decisions with time, as one does that a broker has created by itself."""
        resource = ConfigResource(ResourceKind.TOPIC, self.topic)
        try:
            policy = ConfigAdmin(self._client).describe_configs([resource])[resource]["cleanup.policy"].value
        except BrokerError as error:
            if error.code not in _MAY_NOT_DESCRIBE:
                raise
            return
        if policy is not None and "delete" in policy:
            raise SinkError(
                f"decision.topic {self.topic!r} has cleanup.policy={policy}: decisions would be deleted after a while, "
                "and batches that come again be delivered again. Set cleanup.policy=compact on it (`kafka-configs.sh "
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

        An open transaction of this sink is waited for: it may hold a decision. Open transactions of other sinks are
        not. They hold back the last stable offset, and readers of committed records with it. So only what lies below
        that offset is read like that. Above it, all records are read, and the transaction markers tell which ones
        count: the next marker of a producer id ends the transaction of its records, because a producer id has one open
        transaction at a time. No marker is missing there: compaction stops at the last stable offset.
        """
        return dict(self._read(sink).decisions)

    def holders(self, sink: str) -> Holders:
        """The runs that have held a sink, as of the last `read`."""
        return self._states.get(sink, _SinkState()).holders

    def _read(self, sink: str) -> _SinkState:
        end = self._end(Isolation.READ_UNCOMMITTED)
        stable_end = min(self._end(Isolation.READ_COMMITTED), end)
        state = self._states.get(sink)
        if state is None or state.offset > end:  # an end before what was read: the topic was made anew
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
            fetcher.assign({self._place: start}, until={self._place: end})
            deadline = self._client.deadline(READ_MS_MAX)
            while not fetcher.is_finished():
                for record in fetcher.poll(POLL_MS):
                    if record.key is not None and _sink_of(record.key) == sink:
                        records[record.key] = record.value
                self._check_read_time(deadline, fetcher, end)

    def _read_unstable(self, sink: str, start: int, end: int, records: _Records) -> int:
        """Read on from the last stable offset until no transaction of the sink is open; return the offset reached."""
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
                    f"{SETTLE_MS_MAX / 1000:g} s: whether it decides a batch is not known yet. Its driver hangs, or "
                    "commits at this moment; end that driver, or start the query again later"
                )
            time.sleep(SETTLE_POLL_MS / 1000)
            end = self._end(Isolation.READ_UNCOMMITTED)
        return end

    def _read_transactions(
        self, sink: str, start: int, end: int, pending: dict[int, _Records], records: _Records
    ) -> None:
        with Fetcher(self._client, isolation="read_uncommitted", max_wait_ms=POLL_MS, control_batches=True) as fetcher:
            fetcher.assign({self._place: start}, until={self._place: end})
            deadline = self._client.deadline(READ_MS_MAX)
            while not fetcher.is_finished():
                for batch in fetcher.poll_batches(POLL_MS).get(self._place, ()):
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
                f"{fetcher.position(self._place)} of {end}. Are the brokers overloaded? Start the query again"
            )

    def _end(self, isolation: Isolation) -> int:
        return list_offsets(self._client, {self._place: LATEST}, isolation)[self._place].offset


def _sink_of(key: bytes) -> str | None:
    """The sink that a record belongs to; None for records of other kinds, readable or not."""
    try:
        sink, name, *version = json.loads(key)
    except (ValueError, TypeError):
        return None
    is_known = isinstance(sink, str) and isinstance(name, str) and (not version or key == holders_key(sink))
    return sink if is_known else None
