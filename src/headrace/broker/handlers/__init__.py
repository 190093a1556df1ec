"""The request handlers, one module for each family of APIs, imported on first use.

For an API `JoinGroup` a module has `handle_join_group(broker, context, request)`, which returns the response, and where
a failed response needs more than an error code also `fail_join_group(context, request, code)`, which returns it.

`SUPPORTED` is what ApiVersions advertises. The lowest versions are those of the oldest clients in use, the highest
those of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.context import Context, HandlerResult
from headrace.wire.api import BETWEEN_BROKERS, ApiKey, request_class
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

Handler = Callable[["Broker", Context, Any], HandlerResult]
FailureHandler = Callable[[Context, Any, int], Message]


class Api(NamedTuple):
    """The supported versions of an API, and the module with its handler."""

    first: int
    last: int
    module: str


SUPPORTED: dict[int, Api] = {
    ApiKey.PRODUCE: Api(0, 13, "produce"),
    ApiKey.FETCH: Api(0, 18, "fetch"),
    ApiKey.LIST_OFFSETS: Api(0, 11, "list_offsets"),
    ApiKey.METADATA: Api(0, 13, "metadata"),
    ApiKey.OFFSET_COMMIT: Api(0, 10, "group_offsets"),
    ApiKey.OFFSET_FETCH: Api(0, 10, "group_offsets"),
    ApiKey.FIND_COORDINATOR: Api(0, 6, "groups"),
    ApiKey.JOIN_GROUP: Api(0, 9, "groups"),
    ApiKey.HEARTBEAT: Api(0, 4, "groups"),
    ApiKey.LEAVE_GROUP: Api(0, 5, "groups"),
    ApiKey.SYNC_GROUP: Api(0, 5, "groups"),
    ApiKey.DESCRIBE_GROUPS: Api(0, 6, "group_admin"),
    ApiKey.LIST_GROUPS: Api(0, 5, "group_admin"),
    ApiKey.SASL_HANDSHAKE: Api(0, 1, "sasl"),
    ApiKey.API_VERSIONS: Api(0, 4, "api_versions"),
    ApiKey.CREATE_TOPICS: Api(0, 7, "topics"),
    ApiKey.DELETE_TOPICS: Api(0, 6, "topics"),
    ApiKey.DELETE_RECORDS: Api(0, 2, "topics"),
    ApiKey.INIT_PRODUCER_ID: Api(0, 5, "transactions"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(0, 4, "list_offsets"),
    ApiKey.ADD_PARTITIONS_TO_TXN: Api(0, 5, "transactions"),
    ApiKey.ADD_OFFSETS_TO_TXN: Api(0, 4, "transactions"),
    ApiKey.END_TXN: Api(0, 5, "transactions"),
    ApiKey.WRITE_TXN_MARKERS: Api(0, 2, "transactions"),
    ApiKey.TXN_OFFSET_COMMIT: Api(0, 5, "transactions"),
    ApiKey.DESCRIBE_ACLS: Api(0, 3, "acls"),
    ApiKey.CREATE_ACLS: Api(0, 3, "acls"),
    ApiKey.DELETE_ACLS: Api(0, 3, "acls"),
    ApiKey.DESCRIBE_CONFIGS: Api(0, 4, "configs"),
    ApiKey.ALTER_CONFIGS: Api(0, 2, "configs"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Api(1, 2, "cluster_admin"),
    ApiKey.DESCRIBE_LOG_DIRS: Api(0, 5, "cluster_admin"),
    ApiKey.SASL_AUTHENTICATE: Api(0, 2, "sasl"),
    ApiKey.CREATE_PARTITIONS: Api(0, 3, "topics"),
    ApiKey.CREATE_DELEGATION_TOKEN: Api(1, 3, "delegation_tokens"),
    ApiKey.RENEW_DELEGATION_TOKEN: Api(1, 2, "delegation_tokens"),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Api(1, 2, "delegation_tokens"),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Api(1, 3, "delegation_tokens"),
    ApiKey.DELETE_GROUPS: Api(0, 2, "group_admin"),
    ApiKey.ELECT_LEADERS: Api(0, 2, "cluster_admin"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(0, 1, "configs"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Api(0, 1, "cluster_admin"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Api(0, 0, "cluster_admin"),
    ApiKey.OFFSET_DELETE: Api(0, 0, "group_offsets"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Api(0, 1, "quotas"),
    ApiKey.ALTER_CLIENT_QUOTAS: Api(0, 1, "quotas"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Api(0, 0, "sasl"),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Api(0, 0, "sasl"),
    ApiKey.DESCRIBE_QUORUM: Api(0, 2, "cluster_admin"),
    ApiKey.UPDATE_FEATURES: Api(0, 2, "api_versions"),
    ApiKey.DESCRIBE_CLUSTER: Api(0, 2, "cluster_admin"),
    ApiKey.DESCRIBE_PRODUCERS: Api(0, 0, "transaction_admin"),
    ApiKey.UNREGISTER_BROKER: Api(0, 0, "cluster_admin"),
    ApiKey.DESCRIBE_TRANSACTIONS: Api(0, 0, "transaction_admin"),
    ApiKey.LIST_TRANSACTIONS: Api(0, 2, "transaction_admin"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Api(0, 1, "groups"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Api(0, 1, "group_admin"),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Api(0, 0, "telemetry"),
    ApiKey.PUSH_TELEMETRY: Api(0, 0, "telemetry"),
    ApiKey.LIST_CONFIG_RESOURCES: Api(0, 1, "configs"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(0, 0, "metadata"),
    ApiKey.SHARE_GROUP_HEARTBEAT: Api(1, 1, "share_groups"),
    ApiKey.SHARE_GROUP_DESCRIBE: Api(1, 1, "share_groups"),
    ApiKey.SHARE_FETCH: Api(1, 2, "share_fetch"),
    ApiKey.SHARE_ACKNOWLEDGE: Api(1, 2, "share_fetch"),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: Api(0, 0, "share_state"),
    ApiKey.READ_SHARE_GROUP_STATE: Api(0, 0, "share_state"),
    ApiKey.WRITE_SHARE_GROUP_STATE: Api(0, 1, "share_state"),
    ApiKey.DELETE_SHARE_GROUP_STATE: Api(0, 0, "share_state"),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: Api(0, 1, "share_state"),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Api(0, 1, "share_groups"),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Api(0, 0, "share_groups"),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Api(0, 0, "share_groups"),
}


def supported(api_key: int) -> Api | None:
    """Return the supported versions of an API for clients or brokers; None if the API is unknown."""
    if api_key in BETWEEN_BROKERS:
        return Api(*request_class(api_key).versions, "inter_broker")
    return SUPPORTED.get(api_key)


@cache
def handler(api_key: int) -> Handler:
    """Return the handler of a supported API."""
    handle: Handler = getattr(_module(api_key), f"handle_{ApiKey(api_key).name.lower()}")
    return handle


@cache
def failure_handler(api_key: int) -> FailureHandler | None:
    """Return the function that builds a failed response; None if the error code is sufficient."""
    return getattr(_module(api_key), f"fail_{ApiKey(api_key).name.lower()}", None)


def _module(api_key: int) -> ModuleType:
    api = supported(api_key)
    assert api is not None
    return import_module(f"{__name__}.{api.module}")
