"""The admin client: topics, configurations, groups, transactions.

    topics.py        topics, partitions, records, offsets, the cluster
    configs.py       configurations of topics and brokers
    groups.py        groups and their committed offsets
    transactions.py  transactions, including hanging ones

Each call blocks until the response (blocking.py), and raises a BrokerError that names the resource.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, Unpack

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
from headrace.client.blocking import BlockingClient, ClientOptions, ClientSettings
from headrace.config.clock import SYSTEM_CLOCK, Clock
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
    """A blocking admin client. Threads may share it; their calls are serialized."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        clock: Clock = SYSTEM_CLOCK,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(BlockingClient(ClientSettings(bootstrap_servers, **options), clock))

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
