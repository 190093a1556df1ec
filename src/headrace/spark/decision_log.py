"""The decision topic: reading the records of one sink, and creating the topic.

DecisionLog.ensure   creates the topic, or checks its settings
DecisionLog.read     the decisions of one sink; waits for open transactions of that sink
DecisionLog.holders  its holder record, as of the last read
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field

from headrace.client.admin import NewTopic
from headrace.client.admin.configs import ConfigAdmin, ConfigResource, ResourceKind
from headrace.client.admin.topics import TopicAdmin
from headrace.client.blocking import BlockingClient
from headrace.client.fetcher import Fetcher
from headrace.client.offsets import EARLIEST, LATEST, Isolation, list_offsets
from headrace.errors import BrokerError, Code
from headrace.spark.decisions import Decision, Records, is_part_of, part_index, parts_of
from headrace.spark.errors import SinkError
from headrace.spark.holders import Holders, holders_key
from headrace.spark.sink_options import DECISION_BYTES_MAX
from headrace.types import TopicPartition
from headrace.wire.records import decode_marker

SETTLE_MS_MAX = 90_000
"""How long a read waits for an open transaction of its sink. A decision's transaction times out after a minute."""
SETTLE_POLL_MS = 50
READ_MS_MAX = 60_000
POLL_MS = 500
REPLICAS_MAX = 3
NOT_AUTHORIZED = frozenset({Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED})
_TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(DECISION_BYTES_MAX),
    # Each batch adds a record, and only the last one is needed: small segments, so that compaction removes the others.
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(slots=True)
class _SinkState:
    """The decisions and holders of one sink, up to an offset."""

    offset: int = EARLIEST
    """The first offset that is not read yet. No transaction of the sink is open before it."""
    decisions: dict[str, Decision] = field(default_factory=dict)
    holders: Holders = field(default_factory=Holders)
    part_keys: set[bytes] = field(default_factory=set)
    """The keys of the parts of decisions that the topic has, in use or not."""

    def add_parts(self, records: Records) -> None:
        for key, value in records.items():
            if part_index(key) is not None:
                (self.part_keys.discard if value is None else self.part_keys.add)(key)


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

    def unused_parts(self, decision: Decision, records: Records) -> Records:
        """Return tombstones for the parts of the decision before this one that its records do not replace."""
        part_keys = self._states.get(decision.sink, _SinkState()).part_keys
        return {key: None for key in sorted(part_keys - records.keys()) if is_part_of(key, decision.key)}

    def parts_written(self, sink: str, records: Records) -> None:
        """Remember which parts the topic has now. A write that failed is followed by `read`, if by anything."""
        self._states.setdefault(sink, _SinkState()).add_parts(records)

    def _read(self, sink: str) -> _SinkState:
        end = self._end(Isolation.READ_UNCOMMITTED)
        stable_end = min(self._end(Isolation.READ_COMMITTED), end)
        state = self._states.get(sink)
        if state is None or state.offset > end:  # the log ends before what was read: the topic was recreated
            state = _SinkState()
        records: Records = {}
        if state.offset < stable_end:
            self._read_committed(sink, state.offset, stable_end, records)
        end = self._read_unstable(sink, max(state.offset, stable_end), end, records)
        decisions, holders = dict(state.decisions), state.holders
        for key, value in records.items():
            if key == holders_key(sink):
                holders = Holders() if value is None else Holders.decode(value)
            elif part_index(key) is not None:
                continue  # decoded with its decision, which is in the same transaction
            elif value is None:
                decisions.pop(json.loads(key)[1], None)
            else:
                decisions[json.loads(key)[1]] = Decision.decode(value, parts_of(key, records))
        self._states[sink] = state = _SinkState(end, decisions, holders, set(state.part_keys))
        state.add_parts(records)
        return state

    def _read_committed(self, sink: str, start: int, end: int, records: Records) -> None:
        with Fetcher(self._client, isolation="read_committed", max_wait_ms=POLL_MS) as fetcher:
            fetcher.assign({self._partition: start}, until={self._partition: end})
            deadline = self._client.deadline(READ_MS_MAX)
            while not fetcher.is_finished():
                for record in fetcher.poll(POLL_MS):
                    if record.key is not None and _sink_of(record.key) == sink:
                        records[record.key] = record.value
                self._check_read_time(deadline, fetcher, end)

    def _read_unstable(self, sink: str, start: int, end: int, records: Records) -> int:
        """Read from the last stable offset until no transaction of the sink is open; return the end offset."""
        pending: dict[int, Records] = {}  # by producer id: records of the sink whose transaction has no marker yet
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
        self, sink: str, start: int, end: int, pending: dict[int, Records], records: Records
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
        sink, name, *rest = json.loads(key)
    except (ValueError, TypeError):
        return None
    if not isinstance(sink, str) or not isinstance(name, str):
        return None
    return sink if not rest or key == holders_key(sink) or part_index(key) is not None else None
