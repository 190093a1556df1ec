"""One module an API key, each with `handle(broker, context, message)`; imported when first asked for.

The table is what ApiVersions advertises. A row must be right: clients do without what is not advertised, but trust what
is. The lowest versions are those that the oldest clients in use speak, the highest are those of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.context import Answer, Context
from headrace.wire.api import BETWEEN_BROKERS, module_name, request_class

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

Handler = Callable[["Broker", Context, Any], Answer]


class Supported(NamedTuple):
    """The versions of an API that we answer."""

    first: int
    last: int


SUPPORTED: dict[int, Supported] = {
    0: Supported(0, 13),  # Produce
    1: Supported(0, 18),  # Fetch
    2: Supported(0, 11),  # ListOffsets
    3: Supported(0, 13),  # Metadata
    8: Supported(0, 10),  # OffsetCommit
    9: Supported(0, 10),  # OffsetFetch
    10: Supported(0, 6),  # FindCoordinator
    11: Supported(0, 9),  # JoinGroup
    12: Supported(0, 4),  # Heartbeat
    13: Supported(0, 5),  # LeaveGroup
    14: Supported(0, 5),  # SyncGroup
    15: Supported(0, 6),  # DescribeGroups
    16: Supported(0, 5),  # ListGroups
    17: Supported(0, 1),  # SaslHandshake
    18: Supported(0, 4),  # ApiVersions
    19: Supported(0, 7),  # CreateTopics
    20: Supported(0, 6),  # DeleteTopics
    21: Supported(0, 2),  # DeleteRecords
    22: Supported(0, 5),  # InitProducerId
    23: Supported(0, 4),  # OffsetForLeaderEpoch
    24: Supported(0, 5),  # AddPartitionsToTxn
    25: Supported(0, 4),  # AddOffsetsToTxn
    26: Supported(0, 5),  # EndTxn
    27: Supported(0, 2),  # WriteTxnMarkers
    28: Supported(0, 5),  # TxnOffsetCommit
    29: Supported(0, 3),  # DescribeAcls
    30: Supported(0, 3),  # CreateAcls
    31: Supported(0, 3),  # DeleteAcls
    32: Supported(0, 4),  # DescribeConfigs
    33: Supported(0, 2),  # AlterConfigs
    35: Supported(0, 5),  # DescribeLogDirs
    36: Supported(0, 2),  # SaslAuthenticate
    37: Supported(0, 3),  # CreatePartitions
    42: Supported(0, 2),  # DeleteGroups
    43: Supported(0, 2),  # ElectLeaders
    44: Supported(0, 1),  # IncrementalAlterConfigs
    45: Supported(0, 1),  # AlterPartitionReassignments
    46: Supported(0, 0),  # ListPartitionReassignments
    47: Supported(0, 0),  # OffsetDelete
    48: Supported(0, 1),  # DescribeClientQuotas
    49: Supported(0, 1),  # AlterClientQuotas
    50: Supported(0, 0),  # DescribeUserScramCredentials
    51: Supported(0, 0),  # AlterUserScramCredentials
    57: Supported(0, 2),  # UpdateFeatures
    60: Supported(0, 2),  # DescribeCluster
    61: Supported(0, 0),  # DescribeProducers
    64: Supported(0, 0),  # UnregisterBroker
    65: Supported(0, 0),  # DescribeTransactions
    66: Supported(0, 2),  # ListTransactions
    74: Supported(0, 1),  # ListConfigResources
    75: Supported(0, 0),  # DescribeTopicPartitions
}


def supported(api_key: int) -> Supported | None:
    """The versions of an API that we answer, to clients or to other brokers; None if we do not."""
    if api_key in BETWEEN_BROKERS:
        return Supported(*request_class(api_key).versions)
    return SUPPORTED.get(api_key)


@cache
def handler(api_key: int) -> Handler:
    """The function that answers an API key of the table."""
    found: Handler = import_module(f"{__name__}.{module_name(api_key)}").handle
    return found
