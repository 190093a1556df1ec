"""Key 27: end transactions in partitions, without asking their coordinator.

For coordinators on other brokers, and for people who end a transaction that hangs: one that is open in a partition
while its coordinator knows nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.context import Context
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.broker.transactions.markers import IN_FLIGHT_MAX
from headrace.broker.transactions.transaction import VERSION_1
from headrace.errors import BrokerError, Code
from headrace.wire.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.wire.records import Marker

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


async def handle(broker: Broker, context: Context, message: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    allowed = any(
        broker.authorizer.allows(context.session, operation, Resource.CLUSTER, CLUSTER_NAME)
        for operation in (Operation.ALTER, Operation.CLUSTER_ACTION)
    )
    return WriteTxnMarkersResponse(markers=[await _write(broker, marker, allowed) for marker in message.markers])


async def _write(broker: Broker, marker: WritableTxnMarker, allowed: bool) -> WritableTxnMarkerResult:
    topics = [
        WritableTxnMarkerTopicResult(name=topic.name, partitions=await _write_topic(broker, marker, topic, allowed))
        for topic in marker.topics
    ]
    return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)


async def _write_topic(
    broker: Broker, marker: WritableTxnMarker, topic: WritableTxnMarkerTopic, allowed: bool
) -> Sequence[WritableTxnMarkerPartitionResult]:
    codes: list[int] = []
    indexes = topic.partition_indexes
    for start in range(0, len(indexes), IN_FLIGHT_MAX):
        some = indexes[start : start + IN_FLIGHT_MAX]
        if allowed:
            codes += await asyncio.gather(*(_write_one(broker, marker, topic.name, index) for index in some))
        else:
            codes += [Code.CLUSTER_AUTHORIZATION_FAILED] * len(some)
    return [
        WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
        for index, code in zip(indexes, codes, strict=True)
    ]


async def _write_one(broker: Broker, marker: WritableTxnMarker, topic: str, index: int) -> int:
    try:
        await broker.replicas.write_marker(
            topic,
            index,
            marker.producer_id,
            marker.producer_epoch,
            Marker(marker.transaction_result, marker.coordinator_epoch),
            transaction_version=max(marker.transaction_version, VERSION_1),
        )
    except BrokerError as error:
        return error.code
    return Code.NONE
