"""The broker, put together: who knows whom, and in which order they start and stop.

    start: data folder (locked) → catalog → logs → cluster → replicas → coordinators → sockets
    stop: the other way round

Nothing is imported or opened before `start`, so a `Broker` costs nothing until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.broker_options import data_folder
from headrace.broker.catalog import Catalog, Event
from headrace.broker.catalog.configs import TOPIC
from headrace.broker.catalog.journal import DamagedJournalError
from headrace.broker.catalog.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.broker.clock import Clock, LoopClock
from headrace.broker.configs import Configurations
from headrace.broker.faults import Faults
from headrace.broker.groups.coordinator import GroupCoordinator
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
from headrace.broker.server.listener import Listener, listeners_of
from headrace.broker.server.server import Server
from headrace.broker.tasks import on_loop_error
from headrace.broker.topic_admin import TopicAdmin
from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.errors import BrokerError, Code, ConfigError
from headrace.wire.schema import ZERO_UUID

if TYPE_CHECKING:
    from headrace.broker.cluster.cluster import Cluster
    from headrace.broker.cluster.controller import Controller
    from headrace.broker.partition import Partition
    from headrace.config import Config

JOURNAL_NAME = "catalog.journal"
TRANSACTION_LOSS = "transaction-loss-checkpoint"
CHECKING_THREADS = 2
"""Large batches that are opened at the same time: each may take twice message.max.decompressed.bytes of memory."""
FOLDERS_SHOWN_MAX = 5


class Broker:
    """One broker. Its parts are there from `start` on; event loop only."""

    catalog: Catalog
    configurations: Configurations
    logs: LogManager
    replicas: ReplicaManager
    topic_admin: TopicAdmin
    internal: InternalTopics
    transactions: TransactionCoordinator
    groups: GroupCoordinator
    authorizer: Authorizer
    authenticator: Authenticator
    quotas: QuotaManager
    server: Server

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        self.config = config
        self.clock: Clock = clock or LoopClock()
        self.node_id = config.of(int, "node.id")
        self.rack = config.optional(str, "broker.rack")
        self.has_partitions = "broker" in config.of(tuple, "process.roles")  # else it is a controller and no more
        self.faults = Faults()
        self.listeners: list[Listener] = listeners_of(config)
        self.handler: Callable[[int], Handler] = handler  # what answers an API key
        self.decompression_limits = DecompressionLimits.of(config)
        self.loop_decompression = Decompression(self.decompression_limits, on_loop=True)  # of the request at hand
        self.checking_threads = ThreadPoolExecutor(CHECKING_THREADS, "headrace-checking")  # of large batches
        self.cluster: Cluster | None = None  # None: this broker is alone, until another one registers
        self._started = AsyncExitStack()  # what is to be stopped, the last one first

    async def start(self) -> None:
        """Recover what is on disk, then listen. Raises ConfigError, or OSError if a port is taken."""
        try:
            await self._start()
        except BaseException:
            await self._started.aclose()
            raise

    async def stop(self) -> None:
        """Finish what is in work, within bounds, and leave the data as a clean stop does."""
        await self._started.aclose()

    async def _start(self) -> None:
        config, clock = self.config, self.clock
        root = data_folder(config)
        asyncio.get_running_loop().set_exception_handler(on_loop_error)
        self.logs = LogManager(root, clock, config)  # locks the folder: before anything in it is read
        self._started.callback(self.logs.release)
        controller = config.optional(str, "headrace.controller")
        if controller is None:
            _check_journal_is_there(root)
        self.catalog = Catalog(root / JOURNAL_NAME, follows=controller is not None)
        self._started.callback(self.catalog.close)
        self.configurations = Configurations(config, self.catalog, self.node_id)
        previous_epoch = self._previous_epoch(controller)
        self.logs.load(self._facts_of)
        has_lost_records = self.logs.lost_tails or any(map(self._has_replica, self.logs.missing))
        if has_lost_records or self.logs.strays or self._has_logs_of_other_topics():
            previous_epoch = self._distrusted(previous_epoch)
        self._started.push_async_callback(self.logs.stop)
        self.authenticator = Authenticator(config, self.catalog.users, clock)
        self.authorizer = create_authorizer(config, self.catalog.acls)
        self.quotas = QuotaManager(self.catalog.quotas, clock, config)
        lag_ms_max = config.of(int, "replica.lag.time.max.ms")
        self.replicas = ReplicaManager(self.node_id, self.logs, self.catalog, clock, self.log_config, lag_ms_max)
        own_id = self.node_id if self.has_partitions else None
        self.topic_admin = TopicAdmin(self.catalog, own_id, config, self.logs.strays)
        self.internal = InternalTopics(self.catalog, self.replicas, self.topic_admin, config)
        self._started.push_async_callback(self.internal.stop)
        self.transactions = TransactionCoordinator(self.internal, self.replicas, self.catalog, clock, config)
        self.groups = GroupCoordinator(self.internal, clock, config, self.transactions)
        self.replicas.marker_listener = self.groups.complete_transaction
        self._note_lost_transactions()  # before anything that can fail: a stop notes the logs as they are now
        await self._enter_cluster(controller, previous_epoch)
        self._note_lost_transactions()  # with the producer ids of a newer catalog
        self.transactions.ids.seen(self.logs.last_producer_id)
        self.replicas.start()
        self.logs.start()
        self.replicas.placed.append(self._coordinate)
        for partition in self.replicas.partitions():
            self._coordinate(partition)
        if self.cluster is not None:
            self._replicate(self.cluster)
        self.transactions.start()
        self._started.push_async_callback(self.transactions.stop)
        self.catalog.listeners.append(self._on_event)
        self.groups.start()
        for listener in self.listeners:
            self.authenticator.prepare(listener)
        self.server = Server(self, self.listeners)
        self._started.callback(self.checking_threads.shutdown, wait=False, cancel_futures=True)
        self._started.push_async_callback(self.server.stop)
        self._started.push_async_callback(self.groups.stop)  # first, or who waits for a rebalance would be waited for
        await self.server.start()
        if self.cluster is not None:
            self._started.push_async_callback(self.cluster.leave)
            await self.cluster.joined()
            self.transactions.ids.prefetch()

    def _note_lost_transactions(self) -> None:
        """Remember which partitions of the transaction log have lost records, also over the next starts.

        Each transactional id in them gets another producer id when it is initialized next, however late that is: with
        the one that it has, an epoch could be given out twice.
        """
        checkpoint = OffsetCheckpoint(
            self.logs.root / TRANSACTION_LOSS,
            "if a transaction log has lost records, transactional ids may get an epoch that they have had",
        )
        bounds = checkpoint.read()
        first_unused_id = max(self.catalog.identity.next_producer_id, self.logs.last_producer_id + 1)
        lost = {*self.logs.lost_tails, *self.logs.missing}
        if new_bounds := {key: first_unused_id for key in lost if key.topic == TRANSACTION_STATE}:
            bounds |= new_bounds
            checkpoint.prepare(bounds)()
        self.transactions.lost_before = {index: producer_id for (_, index), producer_id in bounds.items()}

    def _has_logs_of_other_topics(self) -> bool:
        """Whether a log has another topic id than the topic of its name."""
        topics = self.catalog.topics.by_name
        known = ((each.topic_id, topics[each.topic].id) for each in self.logs.all if each.topic in topics)
        return any(found not in (ZERO_UUID, expected) for found, expected in known)

    # -- the cluster -----------------------------------------------------------------------------

    def _has_replica(self, key: tuple[str, int]) -> bool:
        """Whether a partition is on this broker, as far as its catalog knows."""
        name, index = key
        topic = self.catalog.topics.by_name.get(name)
        return topic is not None and index < len(topic.partitions) and self.node_id in topic.partitions[index].replicas

    def _facts_of(self, name: str, index: int) -> PartitionFacts:
        """Return what the recovery of a log has to know of its partition."""
        is_alone = self.config.optional(str, "headrace.controller") is None and not self.catalog.brokers.by_id
        topic = self.catalog.topics.by_name.get(name)
        if topic is None or index >= len(topic.partitions):
            return PartitionFacts(is_alone)
        is_alone |= topic.partitions[index].replicas == (self.node_id,)
        return PartitionFacts(is_alone, is_contiguous=not self.log_config(name).compact)

    def _previous_epoch(self, controller: str | None) -> int:
        """Of the last run of a broker that is in a cluster; -1: there was none, or its data cannot be trusted."""
        if controller is None and not self.catalog.brokers.by_id:
            return -1
        from headrace.broker.cluster.trust import previous_epoch

        return previous_epoch(self.logs.root)

    def _distrusted(self, previous_epoch: int) -> int:
        """Return the epoch of a broker that has lost records: the controller must not count on what it had.

        It is kept on disk as well. This run may end before it registers, and the next one finds nothing missing: the
        logs and high watermarks that this one notes are those that are left.
        """
        from headrace.broker.cluster.cluster import NO_EPOCH
        from headrace.broker.cluster.trust import keep_epoch

        if previous_epoch != NO_EPOCH:
            keep_epoch(self.logs.root, NO_EPOCH)
        return NO_EPOCH

    async def _enter_cluster(self, controller: str | None, previous_epoch: int) -> None:
        """Know the cluster before its partitions are taken over."""
        if controller is not None:
            from headrace.broker.cluster.following import Following

            following = self.cluster = Following(self, controller)
            self._started.push_async_callback(following.close)
            await following.catch_up(previous_epoch)
            self.handler = following.handlers()
            self.transactions.ids.follow(following.producer_ids)
            self._started.push_async_callback(self.transactions.ids.close)
        elif self.catalog.brokers.by_id or not self.has_partitions:
            leader = self.catalog.brokers.controller_id
            if leader not in (-1, self.node_id):
                raise ConfigError(
                    f"the data folder is of a broker that follows the controller {leader}, this is broker "
                    f"{self.node_id}: set headrace.controller to the address of that one (or node.id to {leader}, if "
                    "this is its folder)"
                )
            row = self.catalog.brokers.by_id.get(self.node_id)
            self._be_controller(trusted=row is None or row.trusts(previous_epoch))

    def found_cluster(self) -> None:
        """Another broker wants to join this one, which was alone: be the controller of both."""
        controller = self._be_controller(trusted=True)
        self.server.disconnected_listener = controller.sessions.disconnected
        self._replicate(controller)
        self._started.push_async_callback(controller.leave)

    def _replicate(self, cluster: Cluster) -> None:
        """Follow the leaders of what we have replicas of, and lead with others following."""
        from headrace.broker.cluster.replication import Replication

        replication = Replication(self, cluster)
        replication.start()
        self._started.push_async_callback(replication.stop)

    def _be_controller(self, *, trusted: bool) -> Controller:
        from headrace.broker.cluster.controller import Controller

        controller = self.cluster = Controller(self)
        self._started.push_async_callback(controller.close)
        controller.found(trusted=trusted)
        self.handler = controller.handlers()
        return controller

    def listener(self, name: str) -> Listener:
        """The listener of that name."""
        for listener in self.listeners:
            if listener.name == name:
                return listener
        raise BrokerError(f"there is no listener {name}", code=Code.LISTENER_NOT_FOUND)

    def log_config(self, topic: str) -> LogConfig:
        """What is set on a topic now, over what the broker has for all topics."""
        return LogConfig.resolve(self.catalog.configs.of(TOPIC, topic), self.configurations.current())

    def _on_event(self, event: Event) -> None:
        if event["kind"] == "topic-deleted":
            self.groups.topic_deleted(event["name"])

    def _coordinate(self, partition: Partition) -> None:
        """Who leads a partition of an internal topic coordinates what is in it."""
        coordinator: TransactionCoordinator | GroupCoordinator
        if partition.topic == TRANSACTION_STATE:
            coordinator = self.transactions
        elif partition.topic == CONSUMER_OFFSETS:
            coordinator = self.groups
        else:
            return
        coordinator.unload(partition.index)  # what was known of an older epoch may be out of date
        if partition.is_leader:
            coordinator.load(partition.index)


def _check_journal_is_there(root: Path) -> None:
    """Raise if the catalog is lost: a new one would know nothing of the records that are here."""
    journal = root / JOURNAL_NAME
    if journal.exists() and journal.stat().st_size:
        return
    folders = [folder.name for folder in partition_folders(root).values() if any(folder.glob("*.log"))]
    if folders:
        shown = ", ".join(folders[:FOLDERS_SHOWN_MAX]) + (", …" if len(folders) > FOLDERS_SHOWN_MAX else "")
        raise DamagedJournalError(
            f"{journal} is {'empty' if journal.exists() else 'missing'}, but there are folders of {len(folders)} "
            f"partitions ({shown}). `headrace broker repair --data-dir {root}` adds their topics again; in a cluster, "
            "with --from FOLDER_OF_ANOTHER_BROKER. To begin anew, use an empty folder"
        )
