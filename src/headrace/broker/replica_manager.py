"""The partitions that this broker has, and everything that happens to their high watermarks.

    catalog event ─► partitions come, go, get another leader or another configuration
    append ─► log ─► high watermark ─► those who wait for it: fetches, and produces with acks=all
    fetch of a follower ─► what it has ─► in-sync set, high watermark

On one node a partition's high watermark follows the end of its log at once. With followers it follows what they have:
`Partition.advance_high_watermark` is the one place that decides. Following other brokers, and asking the controller for
another in-sync set, is done in `cluster/`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.broker.catalog import Catalog, Event
from headrace.broker.catalog.configs import TOPIC
from headrace.broker.catalog.topics import CONSUMER_OFFSETS, Topic
from headrace.broker.clock import Clock
from headrace.broker.delayed import DelayedDeleteRecords, DelayedProduce, not_enough_replicas_error
from headrace.broker.log.files import METADATA
from headrace.broker.partition import UNKNOWN_OFFSET, Partition, Rules
from headrace.broker.purgatory import Purgatory
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.primitives import Buffer
from headrace.wire.schema import ZERO_UUID

if TYPE_CHECKING:
    from headrace.broker.cluster.follower_sessions import FollowerSessions
    from headrace.broker.log import AppendInfo, Log, LogConfig, LogManager, Origin, Prepared
    from headrace.wire.records import Marker

log = logging.getLogger("headrace.broker")

MARKER_TIMEOUT_MS = 30_000
"""How long a transaction marker may take to reach the in-sync replicas."""

Key = tuple[str, int]


class ReplicaManager:
    """All partitions of this broker. Event loop only."""

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        catalog: Catalog,
        clock: Clock,
        config_of: Callable[[str], LogConfig],
        lag_ms_max: int = 30_000,
    ) -> None:
        self._node_id = node_id
        self._logs = logs
        self._catalog = catalog
        self._config_of = config_of
        self._rules = Rules(node_id, clock, lag_ms_max, self._is_eligible)
        self._partitions: dict[Key, Partition] = {}
        self._offline: set[Key] = set()  # not opened, because a stray folder is in the way
        self._by_topic_id: dict[bytes, Topic] = {}
        self.delayed_fetches = Purgatory[Key](clock)
        self.delayed_follower_fetches = Purgatory[Key](clock)  # these wait for the end of the log
        self.delayed_produces = Purgatory[Key](clock)
        self.delayed_deletes = Purgatory[Key](clock)
        self.marker_listener: Callable[[int, int, bool], None] = _nobody
        self.placed: list[Callable[[Partition], None]] = []
        """Told of partitions that came, went, or got another leader or epoch: what follows, or coordinates."""
        self.follower_sessions: FollowerSessions | None = None  # there are none for a broker that is alone
        self.nearest: Callable[[Partition, str, int], int] | None = None
        """Who should serve a client of that rack, from that offset on; -1: we. None: always we (KIP-392)."""
        self.out_of_sync_fetch: Callable[[Partition, int], None] = _nothing
        """Told when a replica has fetched that is not in sync: it may have become so."""

    # -- which partitions there are --------------------------------------------------------------

    def start(self) -> None:
        """Take over the partitions of the catalog, and follow it from now on."""
        for topic in self._catalog.topics.by_name.values():
            self._open(topic)
        for unknown in self._logs.all:
            key = (unknown.topic, unknown.index)
            if key in self._partitions:
                continue
            if unknown.topic_id in self._catalog.topics.deleted:  # a crash came before its files were removed
                self._logs.delete(*key)
            elif unknown.topic_id in self._catalog.topics.by_id:
                self._set_aside(*key, "the catalog says that this broker has no replica of it")
            else:
                self._set_aside(*key, "the catalog knows no such topic")
        self._catalog.listeners.append(self._on_event)

    def partition(self, topic: str, index: int) -> Partition:
        """A partition that this broker leads."""
        found = self.replica(topic, index)
        if not found.is_leader:
            raise BrokerError(
                f"broker {self._node_id} does not lead {topic}-{index}: broker {found.leader} does",
                code=Code.NOT_LEADER_OR_FOLLOWER,
            )
        return found

    def replica(self, topic: str, index: int) -> Partition:
        """A partition that this broker leads or follows."""
        found = self._partitions.get((topic, index))
        if found is None:
            known = self._catalog.topics.by_name.get(topic)
            if known is not None and 0 <= index < len(known.partitions):
                stray = self._logs.strays.get(TopicPartition(topic, index))
                if stray is not None and self._node_id in known.partitions[index].replicas:
                    raise BrokerError(
                        f"{topic}-{index} is offline on broker {self._node_id}: {stray.folder}: {stray.reason}",
                        code=Code.KAFKA_STORAGE_ERROR,
                    )
                raise BrokerError(f"{topic}-{index} is on other brokers", code=Code.NOT_LEADER_OR_FOLLOWER)
            raise BrokerError(f"there is no partition {topic}-{index}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def get(self, topic: str, index: int) -> Partition | None:
        """A partition, if it is here."""
        return self._partitions.get((topic, index))

    def partitions(self) -> list[Partition]:
        """Everything that is here, led or followed."""
        return [*self._partitions.values()]

    def _is_eligible(self, node: int, broker_epoch: int) -> bool:
        """Whether a broker may be in an in-sync set: it lives, wants to, and has fetched since it was started."""
        row = self._catalog.brokers.by_id.get(node)
        return row is not None and not row.fenced and not row.stopping and broker_epoch in (-1, row.epoch)

    def _open(self, topic: Topic) -> None:
        """Make the logs of a topic that are not there yet."""
        self._by_topic_id[topic.id] = topic
        config: LogConfig | None = None
        for index, place in enumerate(topic.partitions):
            if self._node_id not in place.replicas or (topic.name, index) in self._partitions:
                continue
            config = config or self._config_of(topic.name)
            log_of = self._log_of(topic, index, config)
            if log_of is None:
                continue
            partition = Partition(topic.name, index, log_of, place, self._rules)
            self._partitions[partition.key] = partition
            partition.advance_high_watermark()  # after a crash the log may know of less than it has
            self._tell(partition)

    def _log_of(self, topic: Topic, index: int, config: LogConfig) -> Log | None:
        """The log of a partition; None if its folder has records that may be of another topic."""
        key = TopicPartition(topic.name, index)
        existing = self._logs.get(*key)
        if existing is not None and existing.topic_id not in (topic.id, ZERO_UUID):
            if existing.topic_id in self._catalog.topics.deleted:
                # A crash came between the catalog's journal and the folder: it is of an older topic of that name.
                self._logs.delete(*key)
            else:
                theirs, ours = existing.topic_id.hex(), topic.id.hex()
                self._logs.set_aside(
                    *key, f"its topic id is {theirs} ({METADATA}), the topic {topic.name} of the catalog has {ours}"
                )
        stray = self._logs.strays.get(key)
        if stray is None or stray.topic_id == topic.id:
            return self._logs.create(*key, topic.id, config)
        if key not in self._offline:  # once: this is tried again whenever the partition changes
            self._offline.add(key)
            log.error(
                "%s-%d is offline on this broker: %s: %s. Nothing was deleted. If these records are of this topic: "
                "headrace broker repair --accept %s-%d; if not, move the folder away",
                *key,
                stray.folder,
                stray.reason,
                *key,
            )
        return None

    def _set_aside(self, topic: str, index: int, why: str) -> None:
        """Keep a folder that no partition uses; somebody has to look at it."""
        stray = self._logs.set_aside(topic, index, why)
        log.warning(
            "%s is a stray folder: %s. It is kept as it is: `headrace broker repair` shows what can be done",
            stray.folder,
            why,
        )

    def _on_event(self, event: Event) -> None:
        kind = event["kind"]
        if kind in ("topic", "partitions-added"):
            self._open(self._catalog.topics.by_id[bytes.fromhex(event["id"])])
        elif kind in ("topic-deleted", "topic-tombstone", "topic-lost"):
            self._topic_gone(bytes.fromhex(event["id"]), deleted=kind != "topic-lost")
        elif kind == "partition":
            topic = self._catalog.topics.by_id[bytes.fromhex(event["id"])]
            self._move(topic, event["index"], from_snapshot=event.get("from_snapshot", False))
        elif kind == "config":
            self._reconfigure(event["name"] if event["resource"] == TOPIC else None)
        elif kind == "broker":
            self._broker_changed(event["id"])

    def _topic_gone(self, topic_id: bytes, *, deleted: bool) -> None:
        topic = self._by_topic_id.pop(topic_id, None)
        if topic is not None:
            for index in range(len(topic.partitions)):
                self._remove(topic.name, index, "" if deleted else "the controller's catalog has lost this topic")
        for key, stray in list(self._logs.strays.items()):
            if deleted and stray.topic_id == topic_id:
                self._logs.delete_stray(*key)

    def _broker_changed(self, node: int) -> None:
        """It may be gone: nobody waits any longer for it to come in sync."""
        for partition in self._partitions.values():
            if node in partition.followers:
                self.consider(partition, (node,))
                self.raise_high_watermark(partition)
                self.delayed_deletes.wake(partition.key)

    def consider(self, partition: Partition, nodes: Iterable[int]) -> None:
        """Whether replicas that are not in sync have become so: something has changed, but not what they have."""
        for node in nodes:
            if node not in partition.isr:
                self.out_of_sync_fetch(partition, node)

    def _move(self, topic: Topic, index: int, *, from_snapshot: bool) -> None:
        partition = self._partitions.get((topic.name, index))
        if partition is None:
            self._open(topic)
            return
        place = topic.partitions[index]
        before, was_in_sync = (partition.leader, partition.leader_epoch), partition.isr
        partition.place(place)
        if self._node_id not in place.replicas:
            # It was moved away for good; or so it seems, if it is only a snapshot that says so.
            why = "the catalog says that this broker has no replica of it any more" if from_snapshot else ""
            self._remove(topic.name, index, why)
            return
        self.raise_high_watermark(partition)
        self._wake(partition.key)  # those who wait for it have to know who leads now, and who is in sync
        self.delayed_deletes.wake(partition.key)
        self.consider(partition, [node for node in partition.followers if node not in was_in_sync])
        if (partition.leader, partition.leader_epoch) != before:
            self._wake_followers(partition)
            self._tell(partition)

    def _remove(self, topic: str, index: int, stray_because: str = "") -> None:
        """Have a partition no more. Its files are deleted; with `stray_because` they stay."""
        partition = self._partitions.pop((topic, index), None)
        if partition is None:
            return
        partition.is_deleted = True
        partition.is_leader = False
        if stray_because:
            self._set_aside(topic, index, stray_because)
        else:
            self._logs.delete(topic, index)
        self._wake(partition.key)  # to be told that it is gone
        self.delayed_deletes.wake(partition.key)
        self._wake_followers(partition)
        self._tell(partition)

    def _tell(self, partition: Partition) -> None:
        for told in self.placed:
            told(partition)

    def _reconfigure(self, name: str | None) -> None:
        """Give logs what is set now: those of a topic, or all of them."""
        names = {partition.topic for partition in self._partitions.values() if name in (None, partition.topic)}
        configs = {topic: self._config_of(topic) for topic in names}
        for partition in self._partitions.values():
            if partition.topic in configs:
                partition.log.reconfigure(configs[partition.topic])

    # -- writing ---------------------------------------------------------------------------------

    def append(self, partition: Partition, records: Buffer | Prepared, *, origin: Origin, acks: int) -> AppendInfo:
        """Write records, and let those know who wait for them."""
        if not partition.is_leader:  # any more: who found it may have waited for something since
            raise BrokerError(f"{partition.key} has another leader now", code=Code.NOT_LEADER_OR_FOLLOWER)
        if acks == -1 and len(partition.isr) < partition.log.config.min_insync_replicas:
            self._check_in_sync(partition)
        info = partition.log.append(records, origin=origin, leader_epoch=partition.leader_epoch)
        if partition.followers:
            self._tell_followers(partition, info)
        self.raise_high_watermark(partition)
        return info

    def _tell_followers(self, partition: Partition, info: AppendInfo) -> None:
        """There is more for them."""
        if not info.duplicate:
            partition.left_behind(info.first_offset)
            self._wake_followers(partition)

    def _wake_followers(self, partition: Partition) -> None:
        for session in partition.sessions:
            session.mark(partition.key)
        self.delayed_follower_fetches.wake(partition.key)

    def _check_in_sync(self, partition: Partition) -> None:
        """Before anything is written that must not be lost."""
        if len(partition.isr) < partition.min_isr:
            raise not_enough_replicas_error(partition, Code.NOT_ENOUGH_REPLICAS)

    def raise_high_watermark(self, partition: Partition) -> None:
        """As far as the in-sync replicas allow; wakes those who wait for it."""
        if partition.advance_high_watermark():
            self._wake(partition.key)
            for session in partition.sessions:
                session.note(partition.key)

    def _wake(self, key: Key) -> None:
        self.delayed_fetches.wake(key)
        self.delayed_produces.wake(key)

    def replicated(self, partition: Partition, offset: int, timeout_ms: int) -> asyncio.Future[None] | None:
        """When all in-sync replicas have `offset`: None if they have it already, else a future to wait for."""
        if partition.log.high_watermark > offset:
            return None
        waiting = DelayedProduce(partition, offset)
        self.delayed_produces.watch(waiting, [partition.key], timeout_ms)
        waiting.future.add_done_callback(lambda _: self.delayed_produces.forget(waiting))
        return waiting.future

    def delete_records(self, partition: Partition, before: int) -> None:
        """Forget what is below an offset; followers do the same when they hear of it."""
        partition.log.delete_records(before)
        for session in partition.sessions:
            session.mark(partition.key)

    def low_watermark(self, partition: Partition) -> int:
        """Below that no replica has anything any more, but on brokers that do not live."""
        return partition.low_watermark(self._catalog.brokers.is_live)

    def deleted(self, partition: Partition, before: int, timeout_ms: int) -> asyncio.Future[None] | None:
        """When no replica has anything below an offset: None if that is so, else a future to wait for."""
        if self.low_watermark(partition) >= before:
            return None
        waiting = DelayedDeleteRecords(partition, before, self.low_watermark)
        self.delayed_deletes.watch(waiting, [partition.key], timeout_ms)
        waiting.future.add_done_callback(lambda _: self.delayed_deletes.forget(waiting))
        return waiting.future

    # -- replicas elsewhere ----------------------------------------------------------------------

    def follower_fetched(
        self, node: int, broker_epoch: int, partition: Partition, offset: int, start_offset: int = UNKNOWN_OFFSET
    ) -> None:
        """A follower asks for what is at `offset`. Raises if it is not one, or asks for what there is not."""
        log = partition.log
        if not log.start_offset <= offset <= log.end_offset:
            raise BrokerError(
                f"{log.name}: broker {node} asks for offset {offset}, there are {log.start_offset} to {log.end_offset}",
                code=Code.OFFSET_OUT_OF_RANGE,
            )
        has_moved = partition.follower_fetched(node, offset, broker_epoch)
        self.consider(partition, (node,))
        if has_moved:
            self.raise_high_watermark(partition)
        follower = partition.followers[node]
        if start_offset > follower.start_offset:
            follower.start_offset = start_offset
            self.delayed_deletes.wake(partition.key)

    def take_over(self, partition: Partition, records: Buffer, high_watermark: int, start_offset: int) -> None:
        """Append what the leader has sent to a follower, and believe it where the log may begin and be read to."""
        from headrace.broker.log import Origin

        log = partition.log
        if len(records):
            log.append(records, origin=Origin.REPLICATION)
        if log.advance_high_watermark(high_watermark):
            self.delayed_fetches.wake(partition.key)
        start_offset = min(start_offset, log.high_watermark)
        if start_offset > log.start_offset:
            log.delete_records(start_offset)

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
        self._check_in_sync(partition)
        info = partition.log.append_marker(
            producer_id,
            epoch,
            marker,
            leader_epoch=partition.leader_epoch,
            transaction_version=transaction_version,
        )
        self._tell_followers(partition, info)
        self.raise_high_watermark(partition)
        waiting = self.replicated(partition, info.last_offset, MARKER_TIMEOUT_MS)
        if waiting is not None:
            await waiting
        if topic == CONSUMER_OFFSETS:
            self.marker_listener(index, producer_id, marker.committed)


def _nobody(index: int, producer_id: int, committed: bool) -> None:
    """Until the group coordinator listens."""


def _nothing(partition: Partition, node: int) -> None:
    """Without a cluster there is no in-sync set to change."""
