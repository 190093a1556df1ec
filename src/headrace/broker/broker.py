"""The broker: its parts, and the order in which they start and stop.

    start: data folder (locked) → catalog → logs → cluster → replicas → coordinators → sockets
    stop: in reverse order

Nothing is opened before `start`. The cluster roles, the group coordinator and the parts for share groups are imported
when needed: a broker starts faster without them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.broker import clean_shutdown
from headrace.broker.broker_options import data_folder
from headrace.broker.catalog import Catalog, Event
from headrace.broker.catalog.cluster import NO_EPOCH
from headrace.broker.catalog.configs import BROKER, TOPIC
from headrace.broker.catalog.journal import DamagedJournalError
from headrace.broker.catalog.topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from headrace.broker.client_metrics.instances import ClientInstances
from headrace.broker.clock import LoopClock, TimerClock
from headrace.broker.configs import Configurations
from headrace.broker.faults import Faults
from headrace.broker.handlers import Handler, handler
from headrace.broker.internal_topics import InternalTopics
from headrace.broker.log import LogConfig, LogManager
from headrace.broker.log.checkpoints import OffsetCheckpoint
from headrace.broker.log.decompression import Decompression, DecompressionLimits
from headrace.broker.log.manager import partition_folders
from headrace.broker.log.recovery import PartitionFacts
from headrace.broker.quotas import QuotaManager
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.security.authenticator import Authenticator
from headrace.broker.security.authorizer import Authorizer, create_authorizer
from headrace.broker.server.limits import ConnectionLimits
from headrace.broker.server.listener import Listener, listeners_of
from headrace.broker.server.server import Server
from headrace.broker.statistics import Statistics
from headrace.broker.tasks import on_loop_error
from headrace.broker.topic_manager import TopicManager
from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.errors import BrokerError, Code, ConfigError
from headrace.wire.fields import ZERO_UUID

if TYPE_CHECKING:
    from headrace.broker.cluster.controller import Controller
    from headrace.broker.cluster.role import ClusterRole
    from headrace.broker.context import Session
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.partition import Partition
    from headrace.broker.share.coordinator import ShareCoordinator
    from headrace.broker.share.parts import ShareParts
    from headrace.config import Config

log = logging.getLogger("headrace.broker")

JOURNAL_NAME = "catalog.journal"
TRANSACTION_LOSS = "transaction-loss-checkpoint"
CHECKING_THREADS = 2
"""Large batches that are validated at the same time: each may use twice message.max.decompressed.bytes of memory."""
FOLDERS_SHOWN_MAX = 5
TOPIC_CHANGES = frozenset({"topic", "topic-deleted", "topic-lost", "partitions-added"})
"""The events after which subscriptions of consumer groups may match other partitions."""


class Broker:
    """A broker. Its parts exist after `start`. Event loop only."""

    catalog: Catalog
    configurations: Configurations
    logs: LogManager
    replicas: ReplicaManager
    topic_manager: TopicManager
    internal: InternalTopics
    transactions: TransactionCoordinator
    authorizer: Authorizer
    authenticator: Authenticator
    quotas: QuotaManager
    client_instances: ClientInstances
    server: Server

    def __init__(self, config: Config, clock: TimerClock | None = None) -> None:
        self.config = config
        self.clock: TimerClock = clock or LoopClock()
        self.node_id = config.of(int, "node.id")
        self.rack = config.optional(str, "broker.rack")
        self.has_partitions = "broker" in config.of(tuple, "process.roles")  # False: a separate controller
        self.faults = Faults()
        self.statistics = Statistics(self.clock)
        self.listeners: list[Listener] = listeners_of(config)
        self.handler: Callable[[int], Handler] = handler  # by API key
        self.decompression_limits = DecompressionLimits.of(config)
        self.loop_decompression = Decompression(self.decompression_limits, on_loop=True)  # of the current request
        self.checking_threads = ThreadPoolExecutor(CHECKING_THREADS, "headrace-checking")  # for large batches
        self.cluster: ClusterRole | None = None  # None: standalone, until another broker registers
        self._started = AsyncExitStack()  # what to stop, in reverse order

    async def start(self) -> None:
        """Recover the data, then listen. Raises ConfigError, or OSError if a port is in use."""
        try:
            await self._start()
        except BaseException:
            await self._started.aclose()
            raise

    async def stop(self) -> None:
        """Complete running requests, within a time limit, and stop cleanly."""
        await self._started.aclose()

    async def _start(self) -> None:
        config, clock = self.config, self.clock
        root = data_folder(config)
        asyncio.get_running_loop().set_exception_handler(on_loop_error)
        self.logs = LogManager(root, clock, config)  # locks the folder before it is read
        self._started.callback(self.logs.release)
        controller = config.optional(str, "headrace.controller")
        if controller is None:
            _require_journal(root)
        self.catalog = Catalog(root / JOURNAL_NAME, follows=controller is not None)
        self._started.callback(self.catalog.close)
        self.configurations = Configurations(config, self.catalog, self.node_id)
        previous_epoch = self._previous_epoch(controller)
        self.logs.load(self._facts_of)
        has_lost_records = self.logs.lost_tails or any(map(self._has_replica, self.logs.missing))
        if has_lost_records or self.logs.strays or self._has_logs_of_other_topics():
            previous_epoch = self._invalidate_epoch(previous_epoch)
        self._started.push_async_callback(self.logs.stop)
        self.authenticator = Authenticator(config, self.catalog.users, clock)
        self.authorizer = create_authorizer(config, self.catalog.acls)
        self.quotas = QuotaManager(self.catalog.quotas, clock, config)
        self.client_instances = ClientInstances(self.catalog.configs, clock)
        self.replicas = ReplicaManager(
            self.node_id,
            self.logs,
            self.catalog,
            clock,
            self.log_config,
            lag_ms_max=config.of(int, "replica.lag.time.max.ms"),
            fetch_session_slots=config.of(int, "max.incremental.fetch.session.cache.slots"),
            statistics=self.statistics,
        )
        own_id = self.node_id if self.has_partitions else None
        self.topic_manager = TopicManager(self.catalog, own_id, config, self.logs.strays)
        self.internal = InternalTopics(self.catalog, self.replicas, self.topic_manager, config)
        self._started.push_async_callback(self.internal.stop)
        self.transactions = TransactionCoordinator(self.internal, self.replicas, self.catalog, clock, config)
        self._note_lost_transactions()  # before anything that can fail: a stop checkpoints the logs as they are now
        await self._enter_cluster(controller, previous_epoch)
        self._note_lost_transactions()  # again, with the producer ids of a newer catalog
        self.transactions.ids.seen(self.logs.last_producer_id)
        self.replicas.start()
        self.logs.reconfigure(self.configurations.current())  # with the options that were changed before
        self.logs.start()
        self.replicas.leadership_listeners.append(self._coordinate)
        for partition in self.replicas.partitions():
            self._coordinate(partition)
        if self.cluster is not None:
            self._replicate(self.cluster)
        self.transactions.start()
        self._started.push_async_callback(self.transactions.stop)
        self.catalog.listeners.append(self._on_event)
        for listener in self.listeners:
            self.authenticator.prepare(listener)
        self.server = Server(self, self.listeners)
        self.server.disconnected_listeners.append(self._on_disconnected)
        self._started.callback(self.checking_threads.shutdown, wait=False, cancel_futures=True)
        self._started.push_async_callback(self.server.stop)
        self._started.push_async_callback(self._stop_groups)  # before the server, which waits for pending requests
        await self.server.start()
        self.statistics.start()
        self._started.callback(self.statistics.stop)
        if self.cluster is not None:
            self._started.push_async_callback(self.cluster.leave)
            await self.cluster.join()
            self.transactions.ids.prefetch()

    def _note_lost_transactions(self) -> None:
        """Record which partitions of the transaction log have lost records, for this and later starts.

        Each transactional id in them gets a new producer id at its next initialization, however late that is: with its
        current producer id an epoch could be used twice.
        """
        checkpoint = OffsetCheckpoint(
            self.logs.root / TRANSACTION_LOSS,
            "if a transaction log has lost records, transactional ids may get an epoch that was used before",
        )
        bounds = checkpoint.read()
        first_unused_id = max(self.catalog.identity.next_producer_id, self.logs.last_producer_id + 1)
        lost = {*self.logs.lost_tails, *self.logs.missing}
        if new_bounds := {key: first_unused_id for key in lost if key.topic == TRANSACTION_STATE}:
            bounds |= new_bounds
            checkpoint.prepare(bounds)()
        self.transactions.lost_before = {index: producer_id for (_, index), producer_id in bounds.items()}

    def _has_logs_of_other_topics(self) -> bool:
        """Return whether a log has another topic id than the topic of its name."""
        topics = self.catalog.topics.by_name
        ids = ((log.topic_id, topics[log.topic].id) for log in self.logs.all if log.topic in topics)
        return any(topic_id not in (ZERO_UUID, expected) for topic_id, expected in ids)

    # -- the cluster -----------------------------------------------------------------------------

    def _has_replica(self, partition: tuple[str, int]) -> bool:
        """Return whether this broker has a replica of a partition, according to its catalog."""
        name, index = partition
        topic = self.catalog.topics.by_name.get(name)
        return topic is not None and index < len(topic.partitions) and self.node_id in topic.partitions[index].replicas

    def _facts_of(self, name: str, index: int) -> PartitionFacts:
        """Return what the recovery of a log needs to know about its partition."""
        is_alone = self.config.optional(str, "headrace.controller") is None and not self.catalog.brokers.by_id
        topic = self.catalog.topics.by_name.get(name)
        if topic is None or index >= len(topic.partitions):
            return PartitionFacts(is_alone)
        is_alone |= topic.partitions[index].replicas == (self.node_id,)
        return PartitionFacts(is_alone, is_contiguous=not self.log_config(name).compact)

    def _previous_epoch(self, controller: str | None) -> int:
        """Return the epoch of the last run in a cluster; -1 if there was none, or data may be lost."""
        if controller is None and not self.catalog.brokers.by_id:
            return NO_EPOCH
        return clean_shutdown.previous_epoch(self.logs.root)

    def _invalidate_epoch(self, previous_epoch: int) -> int:
        """Return the epoch of a broker that has lost records, so that the controller does not rely on its data.

        It is saved as well: this run may end before it registers, and the next one cannot detect the loss, because
        logs and high watermarks are checkpointed as they are now.
        """
        if previous_epoch != NO_EPOCH:
            clean_shutdown.save_epoch(self.logs.root, NO_EPOCH)
        return NO_EPOCH

    async def _enter_cluster(self, controller: str | None, previous_epoch: int) -> None:
        """Join or start the cluster before its partitions are opened."""
        if controller is not None:
            from headrace.broker.cluster.follower import FollowerRole  # not for standalone brokers: start-up time

            follower = self.cluster = FollowerRole(self, controller)
            self._started.push_async_callback(follower.close)
            await follower.catch_up(previous_epoch)
            self.handler = follower.handlers()
            self.transactions.ids.follow(follower.allocate_producer_ids)
            self._started.push_async_callback(self.transactions.ids.close)
        elif self.catalog.brokers.by_id or not self.has_partitions:
            controller_id = self.catalog.brokers.controller_id
            if controller_id not in (-1, self.node_id):
                raise ConfigError(
                    f"the data folder belongs to a follower of controller {controller_id}, but this is broker "
                    f"{self.node_id} without headrace.controller: set it to the address of the controller (or node.id "
                    f"to {controller_id}, if this is the controller's data folder)"
                )
            registration = self.catalog.brokers.by_id.get(self.node_id)
            self._become_controller(trusted=registration is None or registration.trusts(previous_epoch))

    def start_cluster(self) -> None:
        """Become the controller of a cluster with the broker that wants to join this standalone one."""
        controller = self._become_controller(trusted=True)
        self.server.disconnected_listeners.append(controller.sessions.disconnected)
        self._replicate(controller)
        self._started.push_async_callback(controller.leave)

    def _replicate(self, cluster: ClusterRole) -> None:
        """Start the replication of partitions."""
        from headrace.broker.cluster.replication import Replication  # not for standalone brokers: start-up time

        replication = Replication(self, cluster)
        replication.start()
        self._started.push_async_callback(replication.stop)

    def _become_controller(self, *, trusted: bool) -> Controller:
        from headrace.broker.cluster.controller import Controller  # not for standalone brokers: start-up time

        controller = self.cluster = Controller(self)
        self._started.push_async_callback(controller.close)
        controller.start(trusted=trusted)
        self.handler = controller.handlers()
        return controller

    def listener(self, name: str) -> Listener:
        """Return the listener with a name."""
        for listener in self.listeners:
            if listener.name == name:
                return listener
        raise BrokerError(f"unknown listener {name}", code=Code.LISTENER_NOT_FOUND)

    def log_config(self, topic: str) -> LogConfig:
        """Return the current configuration of a topic, including the broker's defaults."""
        return LogConfig.resolve(self.catalog.configs.of(TOPIC, topic), self.configurations.current())

    def _on_event(self, event: Event) -> None:
        if event["kind"] in TOPIC_CHANGES and self._has_groups:
            self.groups.consumer_settings.note_topics_changed()
        if event["kind"] == "topic-deleted":
            self.statistics.topics.pop(event["name"], None)
            if self._has_groups:
                self.groups.topic_deleted(event["name"])
            if self._has_share_groups:
                self.share.coordinator.topic_deleted(bytes.fromhex(event["id"]))
        if event["kind"] == "config" and event["resource"] == BROKER:
            self._reconfigure()

    def _reconfigure(self) -> None:
        """Apply the broker's current options. Topics inherit theirs through the replica manager."""
        current = self.configurations.current()
        self.logs.reconfigure(current)
        if self._has_groups:
            self.groups.consumer_settings.reconfigure(current)
        try:
            self.server.limits = ConnectionLimits.of(current)
        except ConfigError as error:  # checked before, but a name may no longer have an address
            log.warning("limits on connections not changed: %s", error)

    @cached_property
    def groups(self) -> GroupCoordinator:
        """The group coordinator, made on first use."""
        from headrace.broker.groups.coordinator import GroupCoordinator  # not for brokers without groups: start-up time

        groups = GroupCoordinator(
            self.internal,
            self.clock,
            self.config,
            self.catalog,
            self.transactions,
            share_states=lambda: self.share.states,
        )
        groups.consumer_settings.reconfigure(self.configurations.current())
        self.replicas.marker_listener = groups.complete_transaction
        return groups

    @property
    def _has_groups(self) -> bool:
        return "groups" in vars(self)

    async def _stop_groups(self) -> None:
        if self._has_groups:
            await self.groups.stop()

    @cached_property
    def share(self) -> ShareParts:
        """The parts for share groups, made on first use."""
        from headrace.broker.share.parts import make_parts  # not for brokers without share groups: start-up time

        parts = make_parts(self)
        self._started.push_async_callback(parts.coordinator.stop)
        self._started.push_async_callback(parts.partitions.stop)
        return parts

    def share_group_rows(self) -> list[dict[str, Any]]:
        """Return the statistics of share groups."""
        return self.share.partitions.rows() if self._has_share_groups else []

    @property
    def _has_share_groups(self) -> bool:
        return "share" in vars(self)

    def _on_disconnected(self, session: Session) -> None:
        if self._has_share_groups:
            self.share.partitions.disconnected(session)

    def _coordinate(self, partition: Partition) -> None:
        """Load or unload the coordinator of an internal partition when its leader changes."""
        coordinator: TransactionCoordinator | GroupCoordinator | ShareCoordinator
        if partition.topic == TRANSACTION_STATE:
            coordinator = self.transactions
        elif partition.topic == CONSUMER_OFFSETS:
            coordinator = self.groups
        elif partition.topic == SHARE_GROUP_STATE:
            coordinator = self.share.coordinator
        else:
            if self._has_share_groups:
                self.share.partitions.leadership_changed(partition)
            return
        coordinator.unload(partition.index)  # its state may be of an older epoch
        if partition.is_leader:
            coordinator.load(partition.index)


def _require_journal(root: Path) -> None:
    """Raise if the catalog is lost: a new one would not know the existing partitions."""
    journal = root / JOURNAL_NAME
    if journal.exists() and journal.stat().st_size:
        return
    folders = [folder.name for folder in partition_folders(root).values() if any(folder.glob("*.log"))]
    if folders:
        shown = ", ".join(folders[:FOLDERS_SHOWN_MAX]) + (", …" if len(folders) > FOLDERS_SHOWN_MAX else "")
        raise DamagedJournalError(
            f"{journal} is {'empty' if journal.exists() else 'missing'}, but there are folders of {len(folders)} "
            f"partitions ({shown}). Run `headrace broker repair --data-dir {root}` to add their topics again; in a "
            "cluster, with --from FOLDER_OF_ANOTHER_BROKER. To start without these data, use an empty folder"
        )
