"""What a broker is in its cluster: its controller, or one that follows it. The rest of the broker sees this only."""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import PartitionPlace
from headrace.broker.cluster.link import Peers
from headrace.broker.cluster.login import login_of
from headrace.broker.server.listener import Listener

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

NO_EPOCH = -1


class Cluster(ABC):
    """This broker's part in a cluster. Event loop only."""

    is_controller: bool
    broker_epoch = NO_EPOCH  # this broker's: another one for every registration

    def __init__(self, broker: Broker) -> None:
        self.node_id = broker.node_id
        self.listener = inter_broker_listener(broker)
        self.tls = _client_context(broker, self.listener)
        self.login = login_of(broker.config, self.listener.name) if self.listener.uses_sasl else None
        self.peers = Peers(
            broker.catalog.brokers,
            self.listener.name,
            client_id=f"broker-{broker.node_id}",
            tls=self.tls,
            login=self.login,
        )

    @abstractmethod
    async def alter_partition(
        self, topic_id: bytes, index: int, leader_epoch: int, partition_epoch: int, new_isr: Mapping[int, int]
    ) -> PartitionPlace:
        """Ask for another in-sync set of a partition that we lead; the place as the controller has it then.

        `new_isr` are broker epochs by node id, as the brokers have told them (-1: they have not). BrokerError if that
        is refused, ConnectionFailedError if the controller cannot be asked.
        """

    @abstractmethod
    async def create_topic(self, name: str) -> None:
        """Have a topic made that somebody asked for, or one of the internal ones; return when it is known here."""

    @abstractmethod
    async def spread(self) -> None:
        """Return when others have heard of a change that was made here: only the controller makes any."""

    @abstractmethod
    async def producer_ids(self) -> tuple[int, int]:
        """A block of producer ids: the first one, and the first one beyond."""

    @property
    def controller_address(self) -> str:
        """HOST:PORT of the controller, to tell others; empty: it is this broker."""
        return ""

    @property
    def catalog_problem(self) -> str | None:
        """Why this broker does not follow the controller's catalog; None: it does, or is the controller."""
        return None

    @abstractmethod
    async def joined(self) -> None:
        """Called when this broker listens: return when it is part of the cluster."""

    @abstractmethod
    async def leave(self) -> None:
        """Called before this broker stops, in good order: give away what it leads, within bounds."""

    @abstractmethod
    async def close(self) -> None:
        """End all tasks and connections."""


def inter_broker_listener(broker: Broker) -> Listener:
    """The listener that brokers use among themselves: by its name, by its protocol, or the first one."""
    config = broker.config
    name = config.optional(str, "inter.broker.listener.name")
    protocol = config.of(str, "security.inter.broker.protocol")
    if name is not None:
        return broker.listener(name.upper())
    matching = [one for one in broker.listeners if one.security_protocol == protocol]
    return (matching or broker.listeners)[0]


def advertised(listeners: list[Listener]) -> dict[str, tuple[str, int]]:
    """The addresses to tell others, by the names of listeners."""
    return {one.name: (one.advertised_host, one.advertised_port or one.port) for one in listeners}


def _client_context(broker: Broker, listener: Listener) -> ssl.SSLContext | None:
    if not listener.uses_tls:
        return None
    from headrace.broker.security.tls import client_context

    return client_context(broker.config, listener.name)
