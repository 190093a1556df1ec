"""The request and response classes of every API, imported when first used.

An API has `<Name>Request` and `<Name>Response`. Names, fields and versions follow the protocol guide of Apache Kafka
4.3; versions that 4.x removed follow 3.9.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from headrace.errors import UnsupportedVersionError
from headrace.wire.schema import Message

APIS: dict[int, tuple[str, str]] = {  # key: (name, module)
    0: ("Produce", "produce"),
    1: ("Fetch", "fetch"),
    2: ("ListOffsets", "offsets"),
    3: ("Metadata", "metadata"),
    8: ("OffsetCommit", "group_offsets"),
    9: ("OffsetFetch", "group_offsets"),
    10: ("FindCoordinator", "metadata"),
    11: ("JoinGroup", "groups"),
    12: ("Heartbeat", "groups"),
    13: ("LeaveGroup", "groups"),
    14: ("SyncGroup", "groups"),
    15: ("DescribeGroups", "group_admin"),
    16: ("ListGroups", "group_admin"),
    17: ("SaslHandshake", "sasl"),
    18: ("ApiVersions", "metadata"),
    19: ("CreateTopics", "topics"),
    20: ("DeleteTopics", "topics"),
    21: ("DeleteRecords", "topics"),
    22: ("InitProducerId", "transactions"),
    23: ("OffsetForLeaderEpoch", "offsets"),
    24: ("AddPartitionsToTxn", "transactions"),
    25: ("AddOffsetsToTxn", "transactions"),
    26: ("EndTxn", "transactions"),
    27: ("WriteTxnMarkers", "transactions"),
    28: ("TxnOffsetCommit", "group_offsets"),
    29: ("DescribeAcls", "access"),
    30: ("CreateAcls", "access"),
    31: ("DeleteAcls", "access"),
    32: ("DescribeConfigs", "configs"),
    33: ("AlterConfigs", "configs"),
    35: ("DescribeLogDirs", "cluster_admin"),
    36: ("SaslAuthenticate", "sasl"),
    37: ("CreatePartitions", "topics"),
    42: ("DeleteGroups", "group_admin"),
    43: ("ElectLeaders", "cluster_admin"),
    44: ("IncrementalAlterConfigs", "configs"),
    45: ("AlterPartitionReassignments", "cluster_admin"),
    46: ("ListPartitionReassignments", "cluster_admin"),
    47: ("OffsetDelete", "group_offsets"),
    48: ("DescribeClientQuotas", "access"),
    49: ("AlterClientQuotas", "access"),
    50: ("DescribeUserScramCredentials", "access"),
    51: ("AlterUserScramCredentials", "access"),
    57: ("UpdateFeatures", "cluster_admin"),
    60: ("DescribeCluster", "metadata"),
    61: ("DescribeProducers", "transaction_admin"),
    64: ("UnregisterBroker", "cluster_admin"),
    65: ("DescribeTransactions", "transaction_admin"),
    66: ("ListTransactions", "transaction_admin"),
    69: ("ConsumerGroupDescribe", "group_admin"),
    74: ("ListConfigResources", "configs"),
    75: ("DescribeTopicPartitions", "metadata"),
}

BETWEEN_BROKERS: dict[int, tuple[str, str]] = {
    56: ("AlterPartition", "inter_broker"),
    62: ("BrokerRegistration", "inter_broker"),
    63: ("BrokerHeartbeat", "inter_broker"),
    67: ("AllocateProducerIds", "inter_broker"),
    # headrace's own: Kafka replicates the controllers' log instead, and wraps a forwarded request in an Envelope.
    30_000: ("CatalogFetch", "inter_broker"),
    30_001: ("Forward", "inter_broker"),
    30_002: ("EnsureTopic", "inter_broker"),
}
"""The APIs that only brokers of a cluster use. They are not advertised in ApiVersions."""


def api_name(key: int) -> str:
    """Return the name of an API key, API_<number> if it is unknown."""
    known = APIS.get(key) or BETWEEN_BROKERS.get(key)
    return f"API_{key}" if known is None else known[0]


@cache
def request_class(key: int) -> type[Message]:
    """Return the request class of an API key."""
    return _message_class(key, "Request")


@cache
def response_class(key: int) -> type[Message]:
    """Return the response class of an API key."""
    return _message_class(key, "Response")


def _message_class(key: int, side: str) -> type[Message]:
    known = APIS.get(key) or BETWEEN_BROKERS.get(key)
    if known is None:
        raise UnsupportedVersionError(f"API key {key} is not supported")
    name, module = known
    message_class: type[Message] = getattr(import_module(f"{__name__}.{module}"), name + side)
    return message_class
