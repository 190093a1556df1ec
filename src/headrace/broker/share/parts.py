"""The parts of a broker for share groups, made on first use: a broker without share groups starts faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.share.coordinator import ShareCoordinator
from headrace.broker.share.manager import SharePartitionManager
from headrace.broker.share.state_store import ShareStateStore

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


class ShareParts(NamedTuple):
    """The share coordinator, the states of all share partitions, and the share partitions that this broker leads."""

    coordinator: ShareCoordinator
    states: ShareStateStore
    partitions: SharePartitionManager


def make_parts(broker: Broker) -> ShareParts:
    """Return the parts of a broker that has started."""
    topics, clock, config = broker.catalog.topics, broker.clock, broker.config
    coordinator = ShareCoordinator(broker.internal, topics, clock, config)
    states = ShareStateStore(
        coordinator, topics, broker.node_id, lambda: None if broker.cluster is None else broker.cluster.peers
    )
    partitions = SharePartitionManager(broker.replicas, broker.catalog, states, clock, config)
    return ShareParts(coordinator, states, partitions)
