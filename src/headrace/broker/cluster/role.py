"""The role of a broker in its cluster, controller or follower: the interface that the rest of the broker uses."""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.catalog.cluster import NO_EPOCH
from headrace.broker.catalog.topics import PartitionRegistration
from headrace.broker.cluster.peer import Peers, create_login
from headrace.broker.security.tls import client_context
from headrace.broker.server.listener import Listener

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


class IsrChange(NamedTuple):
    """A new in-sync set that the leader of a partition proposes, as in AlterPartition."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: Mapping[int, int]  # broker epoch by node id; -1: unknown


class ClusterRole(ABC):
    """The role of this broker in a cluster. Event loop only."""

    is_controller: bool
    broker_epoch = NO_EPOCH  # of this broker: new for every registration

    def __init__(self, broker: Broker) -> None:
        self.node_id = broker.node_id
        self.listener = inter_broker_listener(broker)
        self.tls: ssl.SSLContext | None = None
        if self.listener.uses_tls:
            self.tls = client_context(broker.config, self.listener.name)
        self.login = create_login(broker.config, self.listener.name) if self.listener.uses_sasl else None
        self.peers = Peers(
            broker.catalog.brokers,
            self.listener.name,
            client_id=f"broker-{broker.node_id}",
            tls=self.tls,
            login=self.login,
        )

    @abstractmethod
    async def alter_partition(self, change: IsrChange) -> PartitionRegistration:
        """Propose an in-sync set of a partition that this broker leads; return the controller's state after it.

        Raises BrokerError if it is rejected, ConnectionFailedError if the controller is unreachable.
        """

    @abstractmethod
    async def create_topic(self, name: str) -> None:
        """Create an auto-created or internal topic; return when it is known here."""

    @abstractmethod
    async def wait_propagated(self) -> None:
        """Wait until the live brokers know the changes made here; only the controller makes changes."""

    @property
    def controller_address(self) -> str:
        """HOST:PORT of the controller; empty if it is this broker."""
        return ""

    @property
    def catalog_problem(self) -> str | None:
        """Why this broker does not replicate the controller's catalog; None if it does or is the controller."""
        return None

    @abstractmethod
    async def join(self) -> None:
        """Join the cluster, once this broker listens; return when it is a member."""

    @abstractmethod
    async def leave(self) -> None:
        """Hand over the leaderships of this broker before it stops, within a time limit."""

    @abstractmethod
    async def close(self) -> None:
        """Stop all tasks and close all connections."""


def inter_broker_listener(broker: Broker) -> Listener:
    """Return the listener for other brokers: by name, by protocol, or the first one."""
    config = broker.config
    name = config.optional(str, "inter.broker.listener.name")
    protocol = config.of(str, "security.inter.broker.protocol")
    if name is not None:
        return broker.listener(name.upper())
    matching = [listener for listener in broker.listeners if listener.security_protocol == protocol]
    return (matching or broker.listeners)[0]


def advertised(listeners: list[Listener]) -> dict[str, tuple[str, int]]:
    """Return the advertised addresses by listener name."""
    return {
        listener.name: (listener.advertised_host, listener.advertised_port or listener.port) for listener in listeners
    }
