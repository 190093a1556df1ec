"""Key 43: let partitions have another leader: the first replica, or any that lives (which may lose records)."""

from __future__ import annotations

from collections.abc import Sequence
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
    wanted: dict[str, Sequence[int]] = {}
    if message.topic_partitions is None:
        wanted = {topic.name: range(len(topic.partitions)) for topic in broker.catalog.topics.by_name.values()}
    else:
        wanted = {row.topic: row.partitions for row in message.topic_partitions}
    results = []
    for name, indexes in wanted.items():
        rows = [_result(broker, message.election_type, name, index) for index in indexes]
        if message.topic_partitions is None:  # asked for all of them, only those that need another one are named
            rows = [row for row in rows if row.error_code != Code.ELECTION_NOT_NEEDED]
        if rows or message.topic_partitions is not None:
            results.append(ReplicaElectionResult(topic=name, partition_result=rows))
    return ElectLeadersResponse(replica_election_results=results)


def _result(broker: Broker, election_type: int, name: str, index: int) -> PartitionResult:
    try:
        _elect(broker, election_type, name, index)
    except BrokerError as error:
        return PartitionResult(partition_id=index, error_code=error.code, error_message=str(error.args[0]))
    return PartitionResult(partition_id=index, error_message=None)


def _elect(broker: Broker, election_type: int, name: str, index: int) -> None:
    topic = broker.catalog.topics.by_name.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise BrokerError(f"there is no partition {name}-{index}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
    if broker.cluster is None:
        raise BrokerError(
            f"broker {topic.partitions[index].leader} leads it, and is its first replica",
            code=Code.ELECTION_NOT_NEEDED,
        )
    from headrace.broker.cluster.controller import Controller
    from headrace.broker.cluster.elections import Election

    assert isinstance(broker.cluster, Controller), "others hand this on"
    election = Election.UNCLEAN if election_type == _UNCLEAN else Election.PREFERRED
    broker.cluster.elect(topic, index, election)


def failure(context: Context, message: ElectLeadersRequest, code: int) -> ElectLeadersResponse:
    results = []
    for topic in message.topic_partitions or ():
        rows = [PartitionResult(partition_id=index, error_code=code, error_message=None) for index in topic.partitions]
        results.append(ReplicaElectionResult(topic=topic.topic, partition_result=rows))
    top = code if context.api_version >= 1 else Code.NONE
    return ElectLeadersResponse(error_code=top, replica_election_results=results)
