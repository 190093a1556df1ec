"""The broker, put together: who knows whom, and in which order they start and stop.

    start: data folder (locked) → catalog → logs → replicas → coordinators → sockets          stop: the other way round

Nothing is imported or opened before `start`, so a `Broker` costs nothing until then.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from headrace.broker.broker_options import data_folder
from headrace.broker.catalog import Catalog
from headrace.broker.catalog.configs import TOPIC
from headrace.broker.catalog.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.broker.clock import Clock, LoopClock
from headrace.broker.configs import Configurations
from headrace.broker.faults import Faults
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.internal_topics import InternalTopics
from headrace.broker.log import LogConfig, LogManager
from headrace.broker.quotas import QuotaManager
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.security.acl_authorizer import authorizer_of
from headrace.broker.security.authenticator import Authenticator
from headrace.broker.security.authorizer import Authorizer
from headrace.broker.server.listener import Listener, listeners_of
from headrace.broker.server.server import Server
from headrace.broker.topic_admin import TopicAdmin
from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.config import Config

JOURNAL_NAME = "catalog.journal"


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
        self.faults = Faults()
        self.listeners: list[Listener] = listeners_of(config)
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
        self.logs = LogManager(root, clock, config)  # locks the folder: before anything in it is read
        self.catalog = Catalog(root / JOURNAL_NAME)
        self._started.callback(self.catalog.close)
        self.configurations = Configurations(config, self.catalog, self.node_id)
        self.logs.load()
        self._started.push_async_callback(self.logs.stop)
        self.authenticator = Authenticator(config, self.catalog.users, clock)
        self.authorizer = authorizer_of(config, self.catalog.acls)
        self.quotas = QuotaManager(self.catalog.quotas, clock, config)
        self.replicas = ReplicaManager(self.node_id, self.logs, self.catalog, clock, self.log_config)
        self.topic_admin = TopicAdmin(self.catalog, self.node_id, config)
        self.internal = InternalTopics(self.catalog, self.replicas, self.topic_admin, config)
        self.transactions = TransactionCoordinator(self.internal, self.replicas, self.catalog, clock, config)
        self.groups = GroupCoordinator(self.internal, clock, config, self.transactions)
        self.internal.created = self._load_coordinators
        self.replicas.marker_listener = self.groups.complete_transaction
        self.replicas.start()
        self.logs.start()
        self._load_coordinators(TRANSACTION_STATE)
        self.transactions.start()
        self._started.push_async_callback(self.transactions.stop)
        self.topic_admin.deleted = self.groups.topic_deleted
        self.groups.start()
        for listener in self.listeners:
            self.authenticator.prepare(listener)
        self.server = Server(self, self.listeners)
        self._started.push_async_callback(self.server.stop)
        self._started.push_async_callback(self.groups.stop)  # first, or who waits for a rebalance would be waited for
        await self.server.start()

    def listener(self, name: str) -> Listener:
        """The listener of that name."""
        for listener in self.listeners:
            if listener.name == name:
                return listener
        raise BrokerError(f"there is no listener {name}", code=Code.LISTENER_NOT_FOUND)

    def log_config(self, topic: str) -> LogConfig:
        """What is set on a topic now, over what the broker has for all topics."""
        return LogConfig.resolve(self.catalog.configs.of(TOPIC, topic), self.configurations.current())

    def _load_coordinators(self, topic: str) -> None:
        """An internal topic is there: whoever keeps its state in it reads it."""
        load = {TRANSACTION_STATE: self.transactions.load, CONSUMER_OFFSETS: self.groups.load}[topic]
        for index in self.internal.partitions_led(topic):
            load(index)
