"""Key 43: let partitions have another leader. With one broker there is never another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code
from headrace.wire.api.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

_PREFERRED, _UNCLEAN = 0, 1


def handle(broker: Broker, context: Context, message: ElectLeadersRequest) -> Answer:
    try:
        require_on_cluster(broker.authorizer, context.session, Operation.ALTER)
    except BrokerError as error:
        return failure(context, message, error.code)
    if message.election_type not in (_PREFERRED, _UNCLEAN):
        return failure(context, message, Code.INVALID_REQUEST)
    results = []
    for topic in message.topic_partitions or ():  # asked for all of them, only those with a new leader are named
        rows = [_result(broker, topic.topic, index) for index in topic.partitions]
        results.append(ReplicaElectionResult(topic=topic.topic, partition_result=rows))
    return ElectLeadersResponse(replica_election_results=results)


def _result(broker: Broker, name: str, index: int) -> PartitionResult:
    topic = broker.catalog.topics.by_name.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        text = f"there is no partition {name}-{index}"
        return PartitionResult(partition_id=index, error_code=Code.UNKNOWN_TOPIC_OR_PARTITION, error_message=text)
    text = f"broker {topic.partitions[index].leader} leads it, and is its first replica"
    return PartitionResult(partition_id=index, error_code=Code.ELECTION_NOT_NEEDED, error_message=text)


def failure(context: Context, message: ElectLeadersRequest, code: int) -> ElectLeadersResponse:
    results = []
    for topic in message.topic_partitions or ():
        rows = [PartitionResult(partition_id=index, error_code=code, error_message=None) for index in topic.partitions]
        results.append(ReplicaElectionResult(topic=topic.topic, partition_result=rows))
    top = code if context.api_version >= 1 else Code.NONE
    return ElectLeadersResponse(error_code=top, replica_election_results=results)
