"""Looking after a cluster: topics, configurations, groups, transactions.

    topics.py        topics, partitions, records, offsets, the cluster itself
    configs.py       what topics and brokers are set to
    groups.py        groups and the offsets they have committed
    transactions.py  transactions, also those that hang

Each call asks and waits (blocking.py), and raises a BrokerError that names what it is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from headrace.client.admin.configs import (
    Append,
    ConfigAdmin,
    ConfigEntry,
    ConfigResource,
    ResourceKind,
    Subtract,
)
from headrace.client.admin.groups import (
    CommittedOffset,
    ConsumerGroupDescription,
    ConsumerGroupMember,
    GroupAdmin,
    GroupDescription,
    GroupListing,
    GroupMember,
)
from headrace.client.admin.topics import (
    BrokerDescription,
    ClusterDescription,
    NewTopic,
    TopicAdmin,
    TopicDescription,
)
from headrace.client.admin.transactions import (
    ActiveProducer,
    HangingTransaction,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
)
from headrace.client.blocking import BlockingClient, ClientSettings
from headrace.client.clock import SYSTEM_CLOCK, Clock
from headrace.types import TopicPartition

__all__ = [
    "ActiveProducer",
    "AdminClient",
    "Append",
    "BrokerDescription",
    "ClusterDescription",
    "CommittedOffset",
    "ConfigEntry",
    "ConfigResource",
    "ConsumerGroupDescription",
    "ConsumerGroupMember",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "HangingTransaction",
    "NewTopic",
    "ResourceKind",
    "Subtract",
    "TopicDescription",
    "TopicPartition",
    "TransactionDescription",
    "TransactionListing",
]


class AdminClient(TopicAdmin, ConfigAdmin, GroupAdmin, TransactionAdmin):
    """Asks and waits; threads may share it, and take turns."""

    def __init__(self, bootstrap_servers: str | Sequence[str], *, clock: Clock = SYSTEM_CLOCK, **options: Any) -> None:
        """`options` are those of `ClientSettings`: client_id, timeout_ms, tls, sasl and so on."""
        super().__init__(BlockingClient(ClientSettings(bootstrap_servers, **options), clock))

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
