"""The brokers in responses to clients, with their addresses on the listener of the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


class Node(NamedTuple):
    """A broker and its advertised address."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False


def nodes(broker: Broker, listener: str, *, with_fenced: bool = False) -> list[Node]:
    """Return the live brokers with this listener; a standalone broker returns itself."""
    if broker.cluster is None:
        return [_standalone_node(broker, listener)]
    return [
        Node(row.node_id, *row.listeners[listener], row.rack, row.fenced)
        for _, row in sorted(broker.catalog.brokers.by_id.items())
        if listener in row.listeners and (with_fenced or not row.fenced)
    ]


def node(broker: Broker, listener: str, node_id: int) -> Node:
    """Return a broker, or raise BROKER_NOT_AVAILABLE if it is not live or has no such listener."""
    if broker.cluster is None:
        return _standalone_node(broker, listener)
    row = broker.catalog.brokers.by_id.get(node_id)
    if row is None or row.fenced or listener not in row.listeners:
        raise BrokerError(
            f"broker {node_id} is not available, or has no listener {listener}", code=Code.BROKER_NOT_AVAILABLE
        )
    return Node(node_id, *row.listeners[listener], row.rack)


def controller_id(broker: Broker) -> int:
    """Return the controller for clients: any broker accepts changes, so a live broker if the controller is separate."""
    brokers = broker.catalog.brokers
    if broker.cluster is None or brokers.is_live(brokers.controller_id):
        return broker.node_id if broker.cluster is None else brokers.controller_id
    return broker.node_id if broker.has_partitions else next((row.node_id for row in brokers.live()), -1)


def offline(broker: Broker, replicas: Sequence[int]) -> tuple[int, ...]:
    """Return the replicas on brokers that are not live."""
    if broker.cluster is None:
        return ()
    return tuple(node_id for node_id in replicas if not broker.catalog.brokers.is_live(node_id))


def _standalone_node(broker: Broker, listener: str) -> Node:
    own = broker.listener(listener)
    return Node(broker.node_id, own.advertised_host, own.advertised_port or own.port, broker.rack)
