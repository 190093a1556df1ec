"""The partitions of this broker and their high watermarks.

    catalog event ─► partitions are added, removed, or get another leader or configuration
    append ─► log ─► high watermark ─► delayed fetches and produces with acks=all
    fetch of a follower ─► its end offset ─► in-sync set, high watermark

Without followers the high watermark of a partition is the end of its log. With followers it is what all in-sync
replicas have; only `Partition.advance_high_watermark` decides it. Fetching from leaders, and changing in-sync sets, is
in `cluster/`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.broker.catalog import Catalog, Event
from headrace.broker.catalog.configs import TOPIC
from headrace.broker.catalog.topics import CONSUMER_OFFSETS, Topic
from headrace.broker.clock import TimerClock
from headrace.broker.fetch_sessions import ClientSessions
from headrace.broker.log import Origin
from headrace.broker.log.files import METADATA
from headrace.broker.partition import UNKNOWN_OFFSET, Partition, PartitionEnv
from headrace.broker.purgatory import DelayedDeleteRecords, DelayedProduce, Purgatory, not_enough_replicas_error
from headrace.broker.statistics import Statistics
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.fields import ZERO_UUID
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    from headrace.broker.cluster.follower_sessions import FollowerSessions
    from headrace.broker.log import AppendInfo, Log, LogConfig, LogManager, Prepared
    from headrace.wire.records import Marker

log = logging.getLogger("headrace.broker")

MARKER_TIMEOUT_MS = 30_000
"""How long a transaction marker may take to be replicated."""


class ReplicaManager:
    """All partitions of this broker. Event loop only."""

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        catalog: Catalog,
        clock: TimerClock,
        config_of: Callable[[str], LogConfig],
        *,
        lag_ms_max: int = 30_000,
        fetch_session_slots: int = 1000,
        statistics: Statistics | None = None,
    ) -> None:
        self._node_id = node_id
        self._logs = logs
        self._catalog = catalog
        self._config_of = config_of
        self._statistics = statistics or Statistics(clock)
        self._env = PartitionEnv(node_id, clock, lag_ms_max, self._is_eligible)
        self._partitions: dict[tuple[str, int], Partition] = {}  # by TopicPartition, or an equal plain tuple
        self._offline: set[TopicPartition] = set()  # not opened because of a stray folder
        self._by_topic_id: dict[bytes, Topic] = {}
        self.delayed_fetches = Purgatory[TopicPartition](clock)
        self.delayed_follower_fetches = Purgatory[TopicPartition](clock)  # these wait for the end of the log
        self.delayed_produces = Purgatory[TopicPartition](clock)
        self.delayed_deletes = Purgatory[TopicPartition](clock)
        self.client_sessions = ClientSessions(clock, fetch_session_slots)
        self.marker_listener: Callable[[int, int, bool], None] = _ignore_marker
        self.leadership_listeners: list[Callable[[Partition], None]] = []
        """Called with partitions that were added, removed, or got another leader or epoch."""
        self.follower_sessions: FollowerSessions | None = None  # None: standalone
        self.replica_selector: Callable[[Partition, str, int], int] | None = None
        """Returns the broker for a consumer by rack and offset, -1 for this one. None: always this one (KIP-392)."""
        self.isr_candidate_listener: Callable[[Partition, int], None] = _ignore_candidate
        """Called when a replica outside the in-sync set has fetched: it may be able to join."""

    # -- partitions ------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the partitions of the catalog, and follow its changes."""
        for topic in self._catalog.topics.by_name.values():
            self._open(topic)
        for unused in self._logs.all:
            key = TopicPartition(unused.topic, unused.index)
            if key in self._partitions:
                continue
            if unused.topic_id in self._catalog.topics.deleted:  # a crash came before its files were removed
                self._logs.delete(*key)
            elif unused.topic_id in self._catalog.topics.by_id:
                self._set_aside(key, "the catalog has no replica of it on this broker")
            else:
                self._set_aside(key, "its topic is not in the catalog")
        self._catalog.listeners.append(self._on_event)

    def partition(self, topic: str, index: int) -> Partition:
        """Return a partition that this broker leads; raise if it does not."""
        partition = self.replica(topic, index)
        if not partition.is_leader:
            raise BrokerError(
                f"broker {self._node_id} is not the leader of {topic}-{index}, broker {partition.leader} is",
                code=Code.NOT_LEADER_OR_FOLLOWER,
            )
        return partition

    def replica(self, topic: str, index: int) -> Partition:
        """Return a partition that this broker leads or follows; raise if there is none."""
        partition = self._partitions.get((topic, index))
        if partition is not None:
            return partition
        known = self._catalog.topics.by_name.get(topic)
        if known is None or not 0 <= index < len(known.partitions):
            raise BrokerError(f"unknown partition {topic}-{index}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
        stray = self._logs.strays.get(TopicPartition(topic, index))
        if stray is not None and self._node_id in known.partitions[index].replicas:
            raise BrokerError(
                f"{topic}-{index} is offline on broker {self._node_id}: {stray.folder}: {stray.reason}",
                code=Code.KAFKA_STORAGE_ERROR,
            )
        raise BrokerError(f"broker {self._node_id} has no replica of {topic}-{index}", code=Code.NOT_LEADER_OR_FOLLOWER)

    def get(self, topic: str, index: int) -> Partition | None:
        """Return a partition, or None if it is not on this broker."""
        return self._partitions.get(TopicPartition(topic, index))

    def partitions(self) -> list[Partition]:
        """Return all partitions, led or followed."""
        return [*self._partitions.values()]

    def _is_eligible(self, node: int, broker_epoch: int) -> bool:
        """Return whether a broker may be in an in-sync set: unfenced, not stopping, not restarted since its fetch."""
        broker = self._catalog.brokers.by_id.get(node)
        return broker is not None and not broker.fenced and not broker.stopping and broker_epoch in (-1, broker.epoch)

    def _open(self, topic: Topic) -> None:
        """Create the partitions of a topic that are not open yet."""
        self._by_topic_id[topic.id] = topic
        config: LogConfig | None = None
        for index, registration in enumerate(topic.partitions):
            key = TopicPartition(topic.name, index)
            if self._node_id not in registration.replicas or key in self._partitions:
                continue
            config = config or self._config_of(topic.name)
            partition_log = self._open_log(topic, index, config)
            if partition_log is None:
                continue
            partition = Partition(key, partition_log, registration, self._env)
            self._partitions[key] = partition
            partition.advance_high_watermark()  # after a crash the checkpoint may be behind
            self._notify_leadership(partition)

    def _open_log(self, topic: Topic, index: int, config: LogConfig) -> Log | None:
        """Return the log of a partition; None if its folder may have records of another topic."""
        key = TopicPartition(topic.name, index)
        existing = self._logs.get(*key)
        if existing is not None and existing.topic_id not in (topic.id, ZERO_UUID):
            if existing.topic_id in self._catalog.topics.deleted:
                # A crash came after the deletion was recorded: the folder is of an older topic of that name.
                self._logs.delete(*key)
            else:
                theirs, ours = existing.topic_id.hex(), topic.id.hex()
                self._logs.set_aside(
                    *key, f"its topic id is {theirs} ({METADATA}), but topic {topic.name} in the catalog has {ours}"
                )
        stray = self._logs.strays.get(key)
        if stray is None or stray.topic_id == topic.id:
            return self._logs.create(*key, topic.id, config)
        if key not in self._offline:  # log it once: this runs again at every change of the topic
            self._offline.add(key)
            log.error(
                "%s-%d is offline on this broker: %s: %s. Nothing was deleted. If the records belong to this topic, "
                "run headrace broker repair --accept %s-%d; if not, move the folder away",
                *key,
                stray.folder,
                stray.reason,
                *key,
            )
        return None

    def _set_aside(self, key: TopicPartition, reason: str) -> None:
        """Keep the folder of a partition that is not used, for an operator."""
        stray = self._logs.set_aside(*key, reason)
        log.warning(
            "%s is a stray folder: %s. It is kept unchanged: run `headrace broker repair` to see what can be done",
            stray.folder,
            reason,
        )

    def _on_event(self, event: Event) -> None:
        kind = event["kind"]
        if kind in ("topic", "partitions-added"):
            self._open(self._catalog.topics.by_id[bytes.fromhex(event["id"])])
        elif kind in ("topic-deleted", "topic-tombstone", "topic-lost"):
            self._topic_removed(bytes.fromhex(event["id"]), deleted=kind != "topic-lost")
        elif kind == "partition":
            topic = self._catalog.topics.by_id[bytes.fromhex(event["id"])]
            self._update(topic, event["index"], from_snapshot=event.get("from_snapshot", False))
        elif kind == "config":
            self._reconfigure(event["name"] if event["resource"] == TOPIC else None)
        elif kind == "broker":
            self._broker_changed(event["id"])

    def _topic_removed(self, topic_id: bytes, *, deleted: bool) -> None:
        topic = self._by_topic_id.pop(topic_id, None)
        if topic is not None:
            for index in range(len(topic.partitions)):
                stray_reason = "" if deleted else "the controller's catalog has lost this topic"
                self._remove(TopicPartition(topic.name, index), stray_reason)
        for key, stray in list(self._logs.strays.items()):
            if deleted and stray.topic_id == topic_id:
                self._logs.delete_stray(*key)

    def _broker_changed(self, node: int) -> None:
        """Re-evaluate the partitions of a broker: a fenced one is no longer waited for."""
        for partition in self._partitions.values():
            if node in partition.followers:
                self.check_isr_candidates(partition, (node,))
                self.raise_high_watermark(partition)
                self.delayed_deletes.wake(partition.key)

    def check_isr_candidates(self, partition: Partition, nodes: Iterable[int]) -> None:
        """Check whether replicas outside the in-sync set can join now."""
        for node in nodes:
            if node not in partition.isr:
                self.isr_candidate_listener(partition, node)

    def _update(self, topic: Topic, index: int, *, from_snapshot: bool) -> None:
        key = TopicPartition(topic.name, index)
        partition = self._partitions.get(key)
        if partition is None:
            self._open(topic)
            return
        registration = topic.partitions[index]
        before, isr_before = (partition.leader, partition.leader_epoch), partition.isr
        partition.apply_registration(registration)
        if self._node_id not in registration.replicas:
            # Reassigned. If only a snapshot says so, keep the files.
            self._remove(key, "the catalog has no replica of it on this broker any more" if from_snapshot else "")
            return
        self.raise_high_watermark(partition)
        self._wake(partition)  # waiting requests depend on the leader and the in-sync set
        self.delayed_deletes.wake(key)
        self.check_isr_candidates(partition, [node for node in partition.followers if node not in isr_before])
        if (partition.leader, partition.leader_epoch) != before:
            self._wake_followers(partition)
            self._notify_leadership(partition)

    def _remove(self, key: TopicPartition, stray_reason: str = "") -> None:
        """Remove a partition and delete its files; with a `stray_reason` the files are kept."""
        partition = self._partitions.pop(key, None)
        if partition is None:
            return
        partition.is_deleted = True
        partition.is_leader = False
        if stray_reason:
            self._set_aside(key, stray_reason)
        else:
            self._logs.delete(*key)
        self._wake(partition)  # waiting requests fail
        self.delayed_deletes.wake(key)
        self._wake_followers(partition)
        self._notify_leadership(partition)

    def _notify_leadership(self, partition: Partition) -> None:
        for listener in self.leadership_listeners:
            listener(partition)

    def _reconfigure(self, name: str | None) -> None:
        """Apply the current options to the logs of a topic, or of all topics."""
        names = {partition.topic for partition in self._partitions.values() if name in (None, partition.topic)}
        configs = {topic: self._config_of(topic) for topic in names}
        for partition in self._partitions.values():
            if partition.topic in configs:
                partition.log.reconfigure(configs[partition.topic])

    # -- writing ---------------------------------------------------------------------------------

    def append(self, partition: Partition, records: Buffer | Prepared, *, origin: Origin, acks: int) -> AppendInfo:
        """Append records and wake the requests that wait for them."""
        if not partition.is_leader:  # the leader may have changed since the partition was looked up
            raise BrokerError(f"{partition.key} has another leader now", code=Code.NOT_LEADER_OR_FOLLOWER)
        if acks == -1 and len(partition.isr) < partition.log.config.min_insync_replicas:
            self._check_in_sync(partition)
        info = partition.log.append(records, origin=origin, leader_epoch=partition.leader_epoch)
        if not info.duplicate:
            topic = self._statistics.topic(partition.topic)
            topic.records_in += info.last_offset - info.first_offset + 1
            topic.bytes_in += info.size_bytes
        if partition.followers:
            self._notify_followers(partition, info)
        self.raise_high_watermark(partition)
        return info

    def _notify_followers(self, partition: Partition, info: AppendInfo) -> None:
        if not info.duplicate:
            partition.note_caught_up(info.first_offset)
            self._wake_followers(partition)

    def _wake_followers(self, partition: Partition) -> None:
        for session, key in partition.follower_sessions.items():
            session.mark(key)
        self.delayed_follower_fetches.wake(partition.key)

    def _check_in_sync(self, partition: Partition) -> None:
        """Raise NOT_ENOUGH_REPLICAS if the in-sync set is too small for acks=all."""
        if len(partition.isr) < partition.min_isr:
            raise not_enough_replicas_error(partition, Code.NOT_ENOUGH_REPLICAS)

    def raise_high_watermark(self, partition: Partition) -> None:
        """Advance the high watermark as far as the in-sync replicas allow, and wake the requests that wait for it."""
        if partition.advance_high_watermark():
            self._wake(partition)
            for session, key in partition.follower_sessions.items():
                session.mark_for_next(key)

    def _wake(self, partition: Partition) -> None:
        self._wake_clients(partition)
        self.delayed_produces.wake(partition.key)

    def _wake_clients(self, partition: Partition) -> None:
        for session, key in partition.client_sessions.items():
            session.mark(key)
        self.delayed_fetches.wake(partition.key)

    def replicated(self, partition: Partition, offset: int, timeout_ms: int) -> asyncio.Future[None] | None:
        """Return a future for the replication of `offset` to all in-sync replicas; None if they have it already."""
        if partition.log.high_watermark > offset:
            return None
        waiting = DelayedProduce(partition, offset)
        self.delayed_produces.watch(waiting, [partition.key], timeout_ms)
        waiting.future.add_done_callback(lambda _: self.delayed_produces.forget(waiting))
        return waiting.future

    def delete_records(self, partition: Partition, before: int) -> None:
        """Delete the records below an offset; followers get the new start offset with their next fetch."""
        partition.log.delete_records(before)
        for session, key in partition.follower_sessions.items():
            session.mark(key)

    def low_watermark(self, partition: Partition) -> int:
        """Return the lowest start offset of all live replicas."""
        return partition.low_watermark(self._catalog.brokers.is_live)

    def deleted(self, partition: Partition, before: int, timeout_ms: int) -> asyncio.Future[None] | None:
        """Return a future for the deletion below an offset on all live replicas; None if it is complete."""
        if self.low_watermark(partition) >= before:
            return None
        waiting = DelayedDeleteRecords(partition, before, self.low_watermark)
        self.delayed_deletes.watch(waiting, [partition.key], timeout_ms)
        waiting.future.add_done_callback(lambda _: self.delayed_deletes.forget(waiting))
        return waiting.future

    # -- replication -----------------------------------------------------------------------------

    def follower_fetched(
        self, node: int, broker_epoch: int, partition: Partition, offset: int, start_offset: int = UNKNOWN_OFFSET
    ) -> None:
        """Record the fetch offset of a follower. Raises if it is out of range or from a broker without a replica."""
        log = partition.log
        if not log.start_offset <= offset <= log.end_offset:
            raise BrokerError(
                f"{log.name}: broker {node} fetches offset {offset}, outside of {log.start_offset} to {log.end_offset}",
                code=Code.OFFSET_OUT_OF_RANGE,
            )
        has_moved = partition.follower_fetched(node, offset, broker_epoch)
        self.check_isr_candidates(partition, (node,))
        if has_moved:
            self.raise_high_watermark(partition)
        follower = partition.followers[node]
        if start_offset > follower.start_offset:
            follower.start_offset = start_offset
            self.delayed_deletes.wake(partition.key)

    def append_as_follower(self, partition: Partition, records: Buffer, high_watermark: int, start_offset: int) -> None:
        """Append records of the leader, and take over its high watermark and start offset."""
        log = partition.log
        if len(records):
            log.append(records, origin=Origin.REPLICATION)
        if log.advance_high_watermark(high_watermark):
            self._wake_clients(partition)
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
        """Write a transaction marker; return when it is replicated."""
        partition = self.partition(topic, index)
        self._check_in_sync(partition)
        info = partition.log.append_marker(
            producer_id,
            epoch,
            marker,
            leader_epoch=partition.leader_epoch,
            transaction_version=transaction_version,
        )
        self._notify_followers(partition, info)
        self.raise_high_watermark(partition)
        waiting = self.replicated(partition, info.last_offset, MARKER_TIMEOUT_MS)
        if waiting is not None:
            await waiting
        if topic == CONSUMER_OFFSETS:
            self.marker_listener(index, producer_id, marker.committed)


def _ignore_marker(index: int, producer_id: int, committed: bool) -> None:
    """Ignore markers until the group coordinator listens."""


def _ignore_candidate(partition: Partition, node: int) -> None:
    """Ignore candidates: a standalone broker has no in-sync sets."""
