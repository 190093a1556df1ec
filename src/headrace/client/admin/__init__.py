"""The admin client: topics, configurations, groups, transactions, access and quotas.

    topics.py        topics, partitions, records, offsets, the cluster
    configs.py       configurations of topics and brokers
    groups.py        groups and their committed offsets
    transactions.py  transactions, including hanging ones
    acls.py          ACLs
    users.py         SCRAM credentials of users
    quotas.py        client quotas

Each call blocks until the response (blocking.py), and raises a BrokerError that names the resource.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, Unpack

from headrace.client.admin.acls import AclAdmin, AclBinding, AclBindingFilter
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
from headrace.client.admin.quotas import DEFAULT, QuotaAdmin, QuotaEntity
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
from headrace.client.admin.users import (
    DeleteScramCredential,
    ScramCredentialInfo,
    SetScramPassword,
    UserAdmin,
)
from headrace.client.blocking import BlockingClient, ClientOptions, ClientSettings
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.types import TopicPartition
from headrace.wire.acls import Operation, Pattern, Permission, Resource

__all__ = [
    "DEFAULT",
    "AclBinding",
    "AclBindingFilter",
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
    "DeleteScramCredential",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "HangingTransaction",
    "NewTopic",
    "Operation",
    "Pattern",
    "Permission",
    "QuotaEntity",
    "Resource",
    "ResourceKind",
    "ScramCredentialInfo",
    "SetScramPassword",
    "Subtract",
    "TopicDescription",
    "TopicPartition",
    "TransactionDescription",
    "TransactionListing",
]


class AdminClient(TopicAdmin, ConfigAdmin, GroupAdmin, TransactionAdmin, AclAdmin, UserAdmin, QuotaAdmin):
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
