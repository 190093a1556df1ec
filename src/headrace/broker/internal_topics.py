"""The internal topics of the coordinators: created on first use, written and replayed in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.broker.catalog import Catalog
from headrace.broker.catalog.topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from headrace.broker.log import Origin
from headrace.broker.tasks import TaskSet
from headrace.config import Config
from headrace.errors import BrokerError, Code, HeadraceError
from headrace.wire import records as batches_
from headrace.wire.layout import HEADER_BYTES, Record
from headrace.wire.records import NO_PRODUCER, BatchProducer, RecordBatch, record_bytes_max

if TYPE_CHECKING:
    from headrace.broker.partition import Partition
    from headrace.broker.replica_manager import ReplicaManager
    from headrace.broker.topic_manager import TopicManager

log = logging.getLogger("headrace.broker")

CONFIRM_PAUSE_MS = 50.0
"""The interval for checking whether enough replicas are in sync to start a coordinator."""
APPEND_TIMEOUT_MS = 5_000
"""How long a write waits for the in-sync replicas; offsets.commit.timeout.ms in Kafka."""

_FOR_CLIENTS: dict[int, Code] = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: Code.COORDINATOR_NOT_AVAILABLE,
    Code.INVALID_TOPIC_EXCEPTION: Code.COORDINATOR_NOT_AVAILABLE,  # a stray data folder has its name
    Code.NOT_ENOUGH_REPLICAS: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Code.COORDINATOR_NOT_AVAILABLE,
    Code.REQUEST_TIMED_OUT: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER: Code.NOT_COORDINATOR,
    Code.KAFKA_STORAGE_ERROR: Code.NOT_COORDINATOR,
    Code.MESSAGE_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
    Code.RECORD_LIST_TOO_LARGE: Code.UNKNOWN_SERVER_ERROR,
    Code.INVALID_FETCH_SIZE: Code.UNKNOWN_SERVER_ERROR,
}


def code_for_clients(error: BrokerError) -> int:
    """Return the client's code for an error of an internal topic: retry, or find the coordinator again."""
    return _FOR_CLIENTS.get(error.code, error.code)


@dataclass(frozen=True, slots=True)
class _Kind:
    """The names of the options of an internal topic."""

    partitions: str
    replication_factor: str
    segment_bytes: str


_KINDS = {
    CONSUMER_OFFSETS: _Kind(
        "offsets.topic.num.partitions", "offsets.topic.replication.factor", "offsets.topic.segment.bytes"
    ),
    TRANSACTION_STATE: _Kind(
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        "transaction.state.log.segment.bytes",
    ),
    SHARE_GROUP_STATE: _Kind(
        "share.coordinator.state.topic.num.partitions",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.segment.bytes",
    ),
}


class InternalTopics:
    """Creates, writes and reads the internal topics for the coordinators."""

    def __init__(self, catalog: Catalog, replicas: ReplicaManager, admin: TopicManager, config: Config) -> None:
        self._catalog = catalog
        self._replicas = replicas
        self._admin = admin
        self._config = config
        self._tasks = TaskSet("internal topics")
        self.create_on_controller: Callable[[str], Awaitable[None]] | None = None
        """Creates a topic on the controller; None if this broker is the controller or standalone."""

    def ensure(self, topic: str) -> int:
        """Create a topic if it is missing; return its number of partitions."""
        existing = self._catalog.topics.by_name.get(topic)
        if existing is None and self.create_on_controller is not None:
            self._tasks.start(self._create_on_controller(topic, self.create_on_controller))
            raise BrokerError(f"{topic} is being created", code=Code.COORDINATOR_NOT_AVAILABLE)
        if existing is None:
            kind = _KINDS[topic]
            configs = {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(self._config.of(int, kind.segment_bytes)),
            }
            if topic == TRANSACTION_STATE:
                configs |= {
                    "compression.type": "uncompressed",
                    "unclean.leader.election.enable": "false",
                    "min.insync.replicas": str(self._config.of(int, "transaction.state.log.min.isr")),
                }
            if topic == SHARE_GROUP_STATE:  # the share coordinator deletes what it does not need any more
                configs |= {
                    "cleanup.policy": "delete",
                    "retention.ms": "-1",
                    "min.insync.replicas": str(self._config.of(int, "share.coordinator.state.topic.min.isr")),
                }
            existing = self._admin.create(
                topic,
                self._config.of(int, kind.partitions),
                self._config.of(int, kind.replication_factor),
                configs,
                internal=True,
            )
        return len(existing.partitions)

    async def _create_on_controller(self, topic: str, create: Callable[[str], Awaitable[None]]) -> None:
        try:
            await create(topic)
        except HeadraceError as error:  # clients retry
            log.warning("failed to create %s: %s", topic, error)

    def partitions_led(self, topic: str) -> list[int]:
        """Return the partitions of a topic that this broker leads."""
        return [p.index for p in self._replicas.partitions() if p.topic == topic and p.is_leader]

    async def append(
        self, topic: str, index: int, records: Sequence[Record], *, producer: BatchProducer = NO_PRODUCER
    ) -> int:
        """Append records in as few batches as possible; return the first offset when they are replicated."""
        partition = self._replicas.partition(topic, index)
        first = last = -1
        for chunk in _chunks(records, partition.log.config.max_message_bytes):
            data = batches_.encode(
                [record._replace(offset=index_in_batch) for index_in_batch, record in enumerate(chunk)],
                producer=producer,
            )
            info = self._replicas.append(partition, data, origin=Origin.COORDINATOR, acks=-1)
            first = info.first_offset if first < 0 else first
            last = info.last_offset
        waiting = self._replicas.replicated(partition, last, APPEND_TIMEOUT_MS)
        if waiting is not None:
            await waiting
        return first

    def batches(self, topic: str, index: int) -> Iterator[RecordBatch]:
        """Yield all batches of a partition."""
        yield from self._replicas.partition(topic, index).log.batches()

    def delete_before(self, topic: str, index: int, offset: int) -> None:
        """Delete the records of a partition before an offset."""
        partition = self._replicas.partition(topic, index)
        if offset > partition.log.start_offset:
            self._replicas.delete_records(partition, offset)

    def when_confirmed(self, topic: str, index: int, then: Callable[[], None]) -> None:
        """Call `then` when all current records are replicated; never if the leader changes before.

        A new leader may have records that its followers do not have yet. A coordinator must not act on them: if it
        failed, the next leader would not know them.
        """
        partition = self._replicas.partition(topic, index)
        if partition.log.high_watermark >= partition.log.end_offset:
            then()
        else:
            self._tasks.start(self._confirm(partition, partition.leader_epoch, then))

    async def _confirm(self, partition: Partition, leader_epoch: int, then: Callable[[], None]) -> None:
        last = partition.log.end_offset - 1
        while partition.is_leader and partition.leader_epoch == leader_epoch:
            try:
                waiting = self._replicas.replicated(partition, last, APPEND_TIMEOUT_MS)
                if waiting is not None:
                    await waiting
                then()
                return
            except BrokerError as error:
                log.info("%s-%d: the coordinator waits for replicas: %s", partition.topic, partition.index, error)
            await asyncio.sleep(CONFIRM_PAUSE_MS / 1000)

    async def stop(self) -> None:
        """Cancel background tasks."""
        await self._tasks.cancel()


def _chunks(records: Sequence[Record], bytes_max: int) -> Iterator[list[Record]]:
    """Split records into batches of at most `bytes_max`."""
    chunk: list[Record] = []
    size = HEADER_BYTES
    for record in records:
        more = record_bytes_max(record.key, record.value, record.headers)
        if HEADER_BYTES + more > bytes_max:
            raise BrokerError(
                f"a record of {more} bytes exceeds the batch limit of {bytes_max}", code=Code.RECORD_LIST_TOO_LARGE
            )
        if chunk and size + more > bytes_max:
            yield chunk
            chunk, size = [], HEADER_BYTES
        chunk.append(record)
        size += more
    if chunk:
        yield chunk
