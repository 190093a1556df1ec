"""The share partitions of this broker: loaded on first use, dropped when the leader changes or the state is reset."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.catalog.configs import GROUP
from headrace.broker.clock import TimerClock
from headrace.broker.group_options import DeliverySettings, delivery_of
from headrace.broker.partition import Partition
from headrace.broker.purgatory import Purgatory
from headrace.broker.share.partition import COUNTERS, Acknowledgement, SharePartition, SharePartitionEnv
from headrace.broker.share.sessions import ShareSession, ShareSessions
from headrace.broker.share.state import SharePartitionKey
from headrace.broker.tasks import TaskSet, start_task
from headrace.config import Config
from headrace.config.offset_reset import BY_DURATION, duration_ms
from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.broker.catalog import Catalog
    from headrace.broker.context import Session
    from headrace.broker.replica_manager import ReplicaManager
    from headrace.broker.share.state_store import ShareStateStore

log = logging.getLogger("headrace.broker.share")


class SharePartitionManager:
    """Share partitions by group and partition, and the sessions of members. Event loop only."""

    def __init__(
        self, replicas: ReplicaManager, catalog: Catalog, store: ShareStateStore, clock: TimerClock, config: Config
    ) -> None:
        self.replicas = replicas
        self.clock = clock
        self.sessions = ShareSessions(config.of(int, "group.share.max.share.sessions"))
        self.waiting = Purgatory[SharePartitionKey](clock)
        """Fetches that wait for records of a share partition to become available again."""
        self._catalog = catalog
        self._store = store
        self._config = config
        self._partitions: dict[SharePartitionKey, SharePartition] = {}
        self._counters: dict[str, Counter[str]] = {}  # by group
        self._loads: dict[SharePartitionKey, asyncio.Task[None]] = {}
        self._tasks = TaskSet("share partition")

    def settings_of(self, group_id: str) -> DeliverySettings:
        """Return how a group delivers records."""
        return delivery_of(self._catalog.configs.of(GROUP, group_id), self._config)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each group that was served here: its share partitions, and counts of records."""
        rows = []
        for group_id, counters in sorted(self._counters.items()):
            loaded = [each for key, each in self._partitions.items() if key.group_id == group_id and each.is_loaded]
            in_flight = sum(each.records.in_flight_count for each in loaded)
            counts = {name: counters[name] for name in COUNTERS}
            rows.append({"group": group_id, "partitions": len(loaded), "in_flight": in_flight, **counts})
        return rows

    # -- share partitions ------------------------------------------------------------------------

    def find(self, key: SharePartitionKey) -> SharePartition | None:
        """Return a share partition that is loaded."""
        share_partition = self._partitions.get(key)
        return share_partition if share_partition is not None and share_partition.is_loaded else None

    def load(self, key: SharePartitionKey, partition: Partition) -> asyncio.Task[None] | None:
        """Start to load a share partition; None if it is loaded. The task raises why it could not be loaded."""
        share_partition = self._partitions.get(key)
        if share_partition is not None and share_partition.leader_epoch != partition.leader_epoch:
            self._drop(share_partition)
            share_partition = None
        if share_partition is not None and share_partition.is_loaded:
            return None
        if key not in self._loads:
            env = SharePartitionEnv(
                self.clock,
                self._store,
                partial(self.settings_of, key.group_id),
                partial(self.waiting.wake, key),
                partial(self._on_fenced, key),
                self._counters.setdefault(key.group_id, Counter()),
            )
            share_partition = self._partitions[key] = SharePartition(key, partition.leader_epoch, env)
            self._loads[key] = start_task(
                self._load(share_partition, partition), "share partition", outcomes=(BrokerError,)
            )
        return self._loads[key]

    async def _load(self, share_partition: SharePartition, partition: Partition) -> None:
        key = share_partition.key
        try:
            await share_partition.load(partial(self._reset_offset, partition))
        except BrokerError as error:
            log.info("failed to load share partition %s: %s", key.coordinator_key, error)
            self._drop(share_partition)
            if not any(each.group_id == key.group_id for each in self._partitions):
                self._counters.pop(key.group_id, None)  # the group may not exist
            raise
        finally:
            self._loads.pop(key, None)
            self.waiting.wake(key)

    def _reset_offset(self, partition: Partition, policy: str) -> int:
        """Return the start offset of a share partition without one. A duration finds the batch with that time."""
        partition_log = partition.log
        if policy == "earliest":
            return partition_log.start_offset
        kind, _, duration = policy.partition(":")
        age_ms = duration_ms(duration) if kind == BY_DURATION else None
        if age_ms is not None:
            since_ms = self.clock.time_ms() - age_ms
            batch = partition_log.segments.batch_for_time(since_ms, partition_log.start_offset)
            if batch is not None:
                return max(batch.header.base_offset, partition_log.start_offset)
        return partition_log.high_watermark

    def _on_fenced(self, key: SharePartitionKey) -> None:
        share_partition = self._partitions.get(key)
        if share_partition is not None:
            self._drop(share_partition)

    def _drop(self, share_partition: SharePartition) -> None:
        share_partition.fence()
        if self._partitions.get(share_partition.key) is share_partition:
            del self._partitions[share_partition.key]
        self.waiting.wake(share_partition.key)

    def leadership_changed(self, partition: Partition) -> None:
        """Drop the share partitions of a partition that has another leader or epoch, or is deleted."""
        for key, share_partition in list(self._partitions.items()):
            if (key.topic_id, key.partition) == (partition.topic_id, partition.index) and (
                not partition.is_leader or share_partition.leader_epoch != partition.leader_epoch
            ):
                self._drop(share_partition)

    # -- acknowledge -----------------------------------------------------------------------------

    async def acknowledge(
        self, group_id: str, member_id: str, rows: Mapping[tuple[bytes, int], Iterable[Acknowledgement]]
    ) -> dict[tuple[bytes, int], BrokerError | None]:
        """Acknowledge records of several partitions; return an error or None for each."""

        async def acknowledge(key: SharePartitionKey, batches: Iterable[Acknowledgement]) -> BrokerError | None:
            share_partition = self.find(key)
            try:
                if share_partition is None:
                    raise BrokerError(
                        "This server does not host this topic-partition.", code=Code.UNKNOWN_TOPIC_OR_PARTITION
                    )
                await share_partition.acknowledge(member_id, batches)
            except BrokerError as error:
                return error
            return None

        keys = {partition: SharePartitionKey(group_id, *partition) for partition in rows}
        results = await asyncio.gather(*(acknowledge(keys[partition], batches) for partition, batches in rows.items()))
        return dict(zip(rows, results, strict=True))

    # -- sessions --------------------------------------------------------------------------------

    def end_session(self, session: ShareSession) -> None:
        """End a session and release the records of its member."""
        self.sessions.remove(session)
        self._tasks.start(self._release(session))

    async def _release(self, session: ShareSession) -> None:
        await self._release_records(session)
        if not self.sessions.has_group(session.group_id):
            for key, share_partition in list(self._partitions.items()):
                if key.group_id == session.group_id:  # offsets of the group may be altered now
                    self._drop(share_partition)

    async def _release_records(self, session: ShareSession) -> None:
        for topic_id, index in list(session.partitions):
            share_partition = self.find(SharePartitionKey(session.group_id, topic_id, index))
            if share_partition is None:
                continue
            try:
                await share_partition.release(session.member_id)
            except BrokerError as error:  # the locks end later
                log.info("failed to release the records of %s: %s", session.member_id, error)

    def disconnected(self, connection: Session) -> None:
        """End the sessions of a connection that was closed."""
        for session in self.sessions.of_connection(connection):
            self.end_session(session)

    async def stop(self) -> None:
        """Stop locks and background tasks."""
        for share_partition in list(self._partitions.values()):
            self._drop(share_partition)
        tasks = [*self._tasks, *self._loads.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
