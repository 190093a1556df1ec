"""What the sink may do, asked before it is done: brokers tell for each topic what a client is allowed to."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.client.blocking import BlockingClient
from headrace.errors import UnsupportedVersionError
from headrace.spark.sink_errors import PlanError
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic

WRITE_BIT = 1 << 4
"""Kafka's number of the operation Write is 4."""
UNKNOWN = -(1 << 31)
"""What a broker says that does not tell."""


def refused(topics: Iterable[str]) -> PlanError:
    """What is said to whoever has no right to a topic, or to one of these."""
    return PlanError(
        f"this client may not write to topic {' or '.join(map(repr, topics))}: allow it the operation Write there "
        "(kafka-acls.sh --add --allow-principal … --operation Write --operation Describe --topic …)"
    )


def check_may_write(client: BlockingClient, topics: Iterable[str]) -> None:
    """An error if it is known that records to one of these topics would be refused."""
    message = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    try:
        answer = client.request(message, versions=(8, 12))
    except UnsupportedVersionError:
        return  # brokers before 2.3 do not tell: they will refuse the records
    for topic in answer.topics:
        allowed = topic.topic_authorized_operations
        if allowed != UNKNOWN and not allowed & WRITE_BIT:
            raise refused([topic.name])
