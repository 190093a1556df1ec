"""Key 46: partitions that are being moved. With one broker none ever is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError
from headrace.wire.api.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: ListPartitionReassignmentsRequest) -> Answer:
    try:
        require_on_cluster(broker.authorizer, context.session, Operation.DESCRIBE)
    except BrokerError as error:
        return ListPartitionReassignmentsResponse(error_code=error.code, error_message=str(error.args[0]))
    return ListPartitionReassignmentsResponse(error_message=None)
