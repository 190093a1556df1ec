"""The messages, a module for each API key, imported when first asked for.

Each module has `<Name>Request` and `<Name>Response`. Names and versions are those of the public protocol
guide (Apache Kafka 4.3; versions that 4.x dropped as 3.9 had them), in snake case.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from headrace.errors import UnsupportedVersionError
from headrace.wire.schema import Message

APIS: dict[int, tuple[str, str]] = {  # key: (name, module)
    0: ("Produce", "produce"),
    1: ("Fetch", "fetch"),
    2: ("ListOffsets", "list_offsets"),
    3: ("Metadata", "metadata"),
    8: ("OffsetCommit", "offset_commit"),
    9: ("OffsetFetch", "offset_fetch"),
    10: ("FindCoordinator", "find_coordinator"),
    11: ("JoinGroup", "join_group"),
    12: ("Heartbeat", "heartbeat"),
    13: ("LeaveGroup", "leave_group"),
    14: ("SyncGroup", "sync_group"),
    15: ("DescribeGroups", "describe_groups"),
    16: ("ListGroups", "list_groups"),
    17: ("SaslHandshake", "sasl_handshake"),
    18: ("ApiVersions", "api_versions"),
    19: ("CreateTopics", "create_topics"),
    20: ("DeleteTopics", "delete_topics"),
    21: ("DeleteRecords", "delete_records"),
    22: ("InitProducerId", "init_producer_id"),
    23: ("OffsetForLeaderEpoch", "offset_for_leader_epoch"),
    24: ("AddPartitionsToTxn", "add_partitions_to_txn"),
    25: ("AddOffsetsToTxn", "add_offsets_to_txn"),
    26: ("EndTxn", "end_txn"),
    27: ("WriteTxnMarkers", "write_txn_markers"),
    28: ("TxnOffsetCommit", "txn_offset_commit"),
    29: ("DescribeAcls", "describe_acls"),
    30: ("CreateAcls", "create_acls"),
    31: ("DeleteAcls", "delete_acls"),
    32: ("DescribeConfigs", "describe_configs"),
    33: ("AlterConfigs", "alter_configs"),
    35: ("DescribeLogDirs", "describe_log_dirs"),
    36: ("SaslAuthenticate", "sasl_authenticate"),
    37: ("CreatePartitions", "create_partitions"),
    42: ("DeleteGroups", "delete_groups"),
    43: ("ElectLeaders", "elect_leaders"),
    44: ("IncrementalAlterConfigs", "incremental_alter_configs"),
    45: ("AlterPartitionReassignments", "alter_partition_reassignments"),
    46: ("ListPartitionReassignments", "list_partition_reassignments"),
    47: ("OffsetDelete", "offset_delete"),
    48: ("DescribeClientQuotas", "describe_client_quotas"),
    49: ("AlterClientQuotas", "alter_client_quotas"),
    50: ("DescribeUserScramCredentials", "describe_user_scram_credentials"),
    51: ("AlterUserScramCredentials", "alter_user_scram_credentials"),
    57: ("UpdateFeatures", "update_features"),
    60: ("DescribeCluster", "describe_cluster"),
    61: ("DescribeProducers", "describe_producers"),
    64: ("UnregisterBroker", "unregister_broker"),
    65: ("DescribeTransactions", "describe_transactions"),
    66: ("ListTransactions", "list_transactions"),
    69: ("ConsumerGroupDescribe", "consumer_group_describe"),
    74: ("ListConfigResources", "list_config_resources"),
    75: ("DescribeTopicPartitions", "describe_topic_partitions"),
}

BETWEEN_BROKERS: dict[int, tuple[str, str]] = {
    56: ("AlterPartition", "alter_partition"),
    62: ("BrokerRegistration", "broker_registration"),
    63: ("BrokerHeartbeat", "broker_heartbeat"),
    67: ("AllocateProducerIds", "allocate_producer_ids"),
    # Ours: where Kafka replicates the log of its controllers, and wraps a request in an Envelope.
    30_000: ("CatalogFetch", "catalog_fetch"),
    30_001: ("Forward", "forward"),
    30_002: ("EnsureTopic", "ensure_topic"),
}
"""What brokers of a cluster ask each other and no client asks: it is not advertised."""


def api_name(key: int) -> str:
    """The name of an API key; unknown ones stay numbers."""
    known = APIS.get(key) or BETWEEN_BROKERS.get(key)
    return f"API_{key}" if known is None else known[0]


def module_name(key: int) -> str:
    """The module of an API key, which has the same name wherever there is one."""
    known = APIS.get(key) or BETWEEN_BROKERS.get(key)
    if known is None:
        raise UnsupportedVersionError(f"API key {key} is not one that headrace speaks")
    return known[1]


@cache
def request_class(key: int) -> type[Message]:
    """The request of an API key."""
    return _message_class(key, "Request")


@cache
def response_class(key: int) -> type[Message]:
    """The response of an API key."""
    return _message_class(key, "Response")


def _message_class(key: int, side: str) -> type[Message]:
    module = module_name(key)
    found: type[Message] = getattr(import_module(f"{__name__}.{module}"), api_name(key) + side)
    return found
