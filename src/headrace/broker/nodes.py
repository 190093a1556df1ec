"""The brokers that clients are told of: where each is, on the listener that the client has come by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


class Node(NamedTuple):
    """A broker and its address."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False


def nodes(broker: Broker, listener: str, *, with_fenced: bool = False) -> list[Node]:
    """All that live and have such a listener; only this one if it is alone."""
    if broker.cluster is None:
        return [_alone(broker, listener)]
    return [
        Node(row.node_id, *row.listeners[listener], row.rack, row.fenced)
        for _, row in sorted(broker.catalog.brokers.by_id.items())
        if listener in row.listeners and (with_fenced or not row.fenced)
    ]


def node(broker: Broker, listener: str, node_id: int) -> Node:
    """One of them. BROKER_NOT_AVAILABLE if it does not live, or cannot be reached by such a listener."""
    if broker.cluster is None:
        return _alone(broker, listener)
    row = broker.catalog.brokers.by_id.get(node_id)
    if row is None or row.fenced or listener not in row.listeners:
        raise BrokerError(
            f"broker {node_id} is not there, or has no listener {listener}", code=Code.BROKER_NOT_AVAILABLE
        )
    return Node(node_id, *row.listeners[listener], row.rack)


def controller_id(broker: Broker) -> int:
    """Whom clients are told to ask for changes: any broker takes them, also if the controller is none of them."""
    brokers = broker.catalog.brokers
    if broker.cluster is None or brokers.is_live(brokers.controller_id):
        return broker.node_id if broker.cluster is None else brokers.controller_id
    return broker.node_id if broker.has_partitions else next((row.node_id for row in brokers.live()), -1)


def offline(broker: Broker, replicas: Sequence[int]) -> tuple[int, ...]:
    """Those of a partition's replicas that are on brokers which do not live."""
    if broker.cluster is None:
        return ()
    return tuple(node_id for node_id in replicas if not broker.catalog.brokers.is_live(node_id))


def _alone(broker: Broker, listener: str) -> Node:
    own = broker.listener(listener)
    return Node(broker.node_id, own.advertised_host, own.advertised_port or own.port, broker.rack)
