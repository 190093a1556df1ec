"""The partitions that this broker has, and everything that happens to their high watermarks.

    catalog event ─► partitions come, go, get another leader or another configuration
    append ─► log ─► high watermark ─► those who wait for it: fetches, and produces with acks=all

On one node a partition's high watermark follows the end of its log at once. With followers it will follow what they
have: `Partition.advance_high_watermark` is the one place that decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.broker.catalog import Catalog, Event
from headrace.broker.catalog.configs import TOPIC
from headrace.broker.catalog.topics import CONSUMER_OFFSETS, Topic
from headrace.broker.clock import Clock
from headrace.broker.partition import Partition
from headrace.broker.purgatory import Purgatory
from headrace.errors import BrokerError, Code
from headrace.wire.primitives import Buffer
from headrace.wire.schema import ZERO_UUID

if TYPE_CHECKING:
    from headrace.broker.log import AppendInfo, Log, LogConfig, LogManager, Origin
    from headrace.wire.records import Marker

log = logging.getLogger("headrace.broker")

MARKER_TIMEOUT_MS = 30_000
"""How long a transaction marker may take to reach the in-sync replicas."""

Key = tuple[str, int]


class ReplicaManager:
    """All partitions of this broker. Event loop only."""

    def __init__(
        self, node_id: int, logs: LogManager, catalog: Catalog, clock: Clock, config_of: Callable[[str], LogConfig]
    ) -> None:
        self._node_id = node_id
        self._logs = logs
        self._catalog = catalog
        self._config_of = config_of
        self._partitions: dict[Key, Partition] = {}
        self._by_topic_id: dict[bytes, Topic] = {}
        self.delayed_fetches = Purgatory[Key](clock)
        self.delayed_produces = Purgatory[Key](clock)
        self.marker_listener: Callable[[int, int, bool], None] = _nobody

    # -- which partitions there are --------------------------------------------------------------

    def start(self) -> None:
        """Take over the partitions of the catalog, and follow it from now on."""
        for topic in self._catalog.topics.by_name.values():
            self._open(topic)
        for stray in self._logs.all:
            if (stray.topic, stray.index) not in self._partitions:
                log.warning("%s is of no topic in the catalog: left alone, remove it by hand", stray.directory)
        self._catalog.listeners.append(self._on_event)

    def partition(self, topic: str, index: int) -> Partition:
        """A partition that this broker leads."""
        found = self._partitions.get((topic, index))
        if found is None:
            raise BrokerError(f"there is no partition {topic}-{index}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
        if not found.is_leader:
            raise BrokerError(
                f"broker {self._node_id} does not lead {topic}-{index}: broker {found.leader} does",
                code=Code.NOT_LEADER_OR_FOLLOWER,
            )
        return found

    def partitions(self) -> list[Partition]:
        """Everything that is here, led or followed."""
        return [*self._partitions.values()]

    def _open(self, topic: Topic) -> None:
        """Make the logs of a topic that are not there yet."""
        self._by_topic_id[topic.id] = topic
        config = self._config_of(topic.name)
        for index, place in enumerate(topic.partitions):
            if self._node_id not in place.replicas or (topic.name, index) in self._partitions:
                continue
            partition = Partition(topic.name, index, self._log_of(topic, index, config), place, self._node_id)
            self._partitions[partition.key] = partition
            partition.advance_high_watermark()  # after a crash the log may know of less than it has

    def _log_of(self, topic: Topic, index: int, config: LogConfig) -> Log:
        found = self._logs.get(topic.name, index)
        if found is not None and found.topic_id not in (topic.id, ZERO_UUID):
            # A crash came between the catalog's journal and the folder: it is of an older topic of that name.
            self._logs.delete(topic.name, index)
        return self._logs.create(topic.name, index, topic.id, config)

    def _on_event(self, event: Event) -> None:
        kind = event["kind"]
        if kind in ("topic", "partitions-added"):
            self._open(self._catalog.topics.by_id[bytes.fromhex(event["id"])])
        elif kind == "topic-deleted":
            self._remove(self._by_topic_id.pop(bytes.fromhex(event["id"])))
        elif kind == "partition":
            self._move(self._catalog.topics.by_id[bytes.fromhex(event["id"])], event["index"])
        elif kind == "config":
            self._reconfigure(event["name"] if event["resource"] == TOPIC else None)

    def _move(self, topic: Topic, index: int) -> None:
        partition = self._partitions.get((topic.name, index))
        if partition is None:
            self._open(topic)
            return
        partition.place(topic.partitions[index], self._node_id)
        self.raise_high_watermark(partition)
        self._wake(partition.key)  # those who wait for it have to know who leads now

    def _remove(self, topic: Topic) -> None:
        for index in range(len(topic.partitions)):
            partition = self._partitions.pop((topic.name, index), None)
            if partition is not None:
                partition.is_deleted = True
                self._logs.delete(topic.name, index)
                self._wake((topic.name, index))  # to be told that it is gone

    def _reconfigure(self, name: str | None) -> None:
        """Give logs what is set now: those of a topic, or all of them."""
        names = {partition.topic for partition in self._partitions.values() if name in (None, partition.topic)}
        configs = {topic: self._config_of(topic) for topic in names}
        for partition in self._partitions.values():
            if partition.topic in configs:
                partition.log.reconfigure(configs[partition.topic])

    # -- writing ---------------------------------------------------------------------------------

    def append(
        self, partition: Partition, records: Buffer, *, origin: Origin, acks: int, magic_allowed: int = 2
    ) -> AppendInfo:
        """Write records, and let those know who wait for them."""
        if acks == -1 and len(partition.isr) < partition.log.config.min_insync_replicas:
            raise BrokerError(
                f"{partition.topic}-{partition.index} has {len(partition.isr)} in-sync replicas of the "
                f"{partition.log.config.min_insync_replicas} that min.insync.replicas wants",
                code=Code.NOT_ENOUGH_REPLICAS,
            )
        info = partition.log.append(
            records, origin=origin, leader_epoch=partition.leader_epoch, magic_allowed=magic_allowed
        )
        self.raise_high_watermark(partition)
        return info

    def raise_high_watermark(self, partition: Partition) -> None:
        """As far as the in-sync replicas allow; wakes those who wait for it."""
        if partition.advance_high_watermark():
            self._wake(partition.key)

    def _wake(self, key: Key) -> None:
        self.delayed_fetches.wake(key)
        self.delayed_produces.wake(key)

    def replicated(self, partition: Partition, offset: int, timeout_ms: int) -> asyncio.Future[None] | None:
        """When all in-sync replicas have `offset`: None if they have it already, else a future to wait for."""
        if partition.log.high_watermark > offset:
            return None
        waiting = _Replication(partition, offset)
        self.delayed_produces.watch(waiting, [partition.key], timeout_ms)
        waiting.future.add_done_callback(lambda _: self.delayed_produces.forget(waiting))
        return waiting.future

    async def write_marker(
        self,
        topic: str,
        index: int,
        producer_id: int,
        epoch: int,
        marker: Marker,
        *,
        transaction_version: int = 1,
    ) -> None:
        """End a transaction in a partition, and return when that is replicated."""
        partition = self.partition(topic, index)
        info = partition.log.append_marker(
            producer_id,
            epoch,
            marker,
            leader_epoch=partition.leader_epoch,
            transaction_version=transaction_version,
        )
        self.raise_high_watermark(partition)
        waiting = self.replicated(partition, info.last_offset, MARKER_TIMEOUT_MS)
        if waiting is not None:
            await waiting
        if topic == CONSUMER_OFFSETS:
            self.marker_listener(index, producer_id, marker.committed)


class _Replication:
    """A produce that waits for the in-sync replicas."""

    def __init__(self, partition: Partition, offset: int) -> None:
        self._partition = partition
        self._offset = offset
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def try_complete(self, key: Key) -> bool:
        if self._partition.log.high_watermark <= self._offset:
            return False
        if not self.future.done():
            self.future.set_result(None)
        return True

    def expire(self) -> None:
        if not self.future.done():
            name = f"{self._partition.topic}-{self._partition.index}"
            self.future.set_exception(
                BrokerError(
                    f"{name}: offset {self._offset} was written, but not all in-sync replicas have it in time",
                    code=Code.REQUEST_TIMED_OUT,
                )
            )


def _nobody(index: int, producer_id: int, committed: bool) -> None:
    """Until the group coordinator listens."""
