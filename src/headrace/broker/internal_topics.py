"""The topics that coordinators keep their state in: made when first asked for, written and replayed batch by batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.broker.catalog import Catalog
from headrace.broker.catalog.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.broker.tasks import start_task
from headrace.config import Config
from headrace.errors import BrokerError, Code, HeadraceError
from headrace.wire import records as batches_
from headrace.wire.layout import HEADER_BYTES, Record
from headrace.wire.records import NO_PRODUCER, Producer, RecordBatch, record_bytes_max

if TYPE_CHECKING:
    from headrace.broker.partition import Partition
    from headrace.broker.replica_manager import ReplicaManager
    from headrace.broker.topic_admin import TopicAdmin

log = logging.getLogger("headrace.broker")

CONFIRM_PAUSE_MS = 50.0
"""Between looks whether enough replicas are in sync for a coordinator to begin."""
APPEND_TIMEOUT_MS = 5_000
"""How long a change of state may take to reach the in-sync replicas: offsets.commit.timeout.ms in Kafka."""

_FOR_CLIENTS: dict[int, Code] = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: Code.COORDINATOR_NOT_AVAILABLE,
    Code.INVALID_TOPIC_EXCEPTION: Code.COORDINATOR_NOT_AVAILABLE,  # its folders are there, but are not known
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
    """What went wrong with our own topic means nothing to a client, but for where to go, or to come again."""
    return _FOR_CLIENTS.get(error.code, error.code)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Where the options of an internal topic are."""

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
}


class InternalTopics:
    """What a coordinator may do with its topic."""

    def __init__(self, catalog: Catalog, replicas: ReplicaManager, admin: TopicAdmin, config: Config) -> None:
        self._catalog = catalog
        self._replicas = replicas
        self._admin = admin
        self._config = config
        self._tasks: set[asyncio.Task[None]] = set()
        self.make_elsewhere: Callable[[str], Awaitable[None]] | None = None
        """Has the controller make a topic; None: we are the controller, or alone."""

    def ensure(self, topic: str) -> int:
        """Make it if it is missing; how many partitions it has."""
        found = self._catalog.topics.by_name.get(topic)
        if found is None and self.make_elsewhere is not None:
            self._spawn(self._make_elsewhere(topic, self.make_elsewhere))
            raise BrokerError(f"{topic} is being made", code=Code.COORDINATOR_NOT_AVAILABLE)
        if found is None:
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
            found = self._admin.create(
                topic,
                self._config.of(int, kind.partitions),
                self._config.of(int, kind.replication_factor),
                configs,
                internal=True,
            )
        return len(found.partitions)

    async def _make_elsewhere(self, topic: str, make: Callable[[str], Awaitable[None]]) -> None:
        try:
            await make(topic)
        except HeadraceError as error:  # whoever needs it asks again
            log.warning("%s could not be made: %s", topic, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = start_task(work, "internal topics")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def partitions_led(self, topic: str) -> list[int]:
        """The partitions that this broker leads, and coordinates; none if the topic is not there."""
        return [p.index for p in self._replicas.partitions() if p.topic == topic and p.is_leader]

    async def append(
        self, topic: str, index: int, records: Sequence[Record], *, producer: Producer = NO_PRODUCER
    ) -> int:
        """Write records as one batch, or several if they are too large for one; the first offset, when replicated."""
        from headrace.broker.log import Origin

        partition = self._replicas.partition(topic, index)
        first = last = -1
        for chunk in _chunks(records, partition.log.config.max_message_bytes):
            data = batches_.encode(
                [record._replace(offset=place) for place, record in enumerate(chunk)], producer=producer
            )
            info = self._replicas.append(partition, data, origin=Origin.COORDINATOR, acks=-1)
            first = info.first_offset if first < 0 else first
            last = info.last_offset
        waiting = self._replicas.replicated(partition, last, APPEND_TIMEOUT_MS)
        if waiting is not None:
            await waiting
        return first

    def batches(self, topic: str, index: int) -> Iterator[RecordBatch]:
        """All that is there, from the beginning."""
        yield from self._replicas.partition(topic, index).log.batches()

    def when_confirmed(self, topic: str, index: int, then: Callable[[], None]) -> None:
        """Call back when all that is there now is replicated; never, if another broker leads before.

        A new leader may have records that the others do not have yet. Whoever acts on them, and is gone before they
        are replicated, has done what the next one knows nothing of.
        """
        partition = self._replicas.partition(topic, index)
        if partition.log.high_watermark >= partition.log.end_offset:
            then()
        else:
            self._spawn(self._confirm(partition, partition.leader_epoch, then))

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
                log.info("%s-%d: its coordinator waits for replicas: %s", partition.topic, partition.index, error)
            await asyncio.sleep(CONFIRM_PAUSE_MS / 1000)

    async def stop(self) -> None:
        """Give up what is waited for."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks])


def _chunks(records: Sequence[Record], bytes_max: int) -> Iterator[list[Record]]:
    """Cut records into batches of at most `bytes_max`."""
    chunk: list[Record] = []
    size = HEADER_BYTES
    for record in records:
        more = record_bytes_max(record.key, record.value, record.headers)
        if HEADER_BYTES + more > bytes_max:
            raise BrokerError(
                f"a record of {more} bytes does not fit a batch of {bytes_max}", code=Code.RECORD_LIST_TOO_LARGE
            )
        if chunk and size + more > bytes_max:
            yield chunk
            chunk, size = [], HEADER_BYTES
        chunk.append(record)
        size += more
    if chunk:
        yield chunk
