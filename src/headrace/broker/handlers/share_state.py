"""The state of share partitions, for the leaders of partitions and the group coordinator (KIP-932).

InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState and
ReadShareGroupStateSummary. Only brokers use them: they need CLUSTER_ACTION.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.context import Context
from headrace.broker.security.authorizer import Operation
from headrace.broker.share.state import SharePartitionKey, StateUpdate
from headrace.errors import BrokerError
from headrace.wire.api.share_state import (
    DeletePartition,
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStateData,
    InitializePartition,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateData,
    ReadPartition,
    ReadPartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateData,
    ReadStateResult,
    ReadStateSummaryResult,
    StatePartitionResult,
    StateResult,
    SummaryPartitionResult,
    WritePartition,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateData,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

Result = TypeVar("Result", bound=StatePartitionResult)


async def handle_initialize_share_group_state(
    broker: Broker, context: Context, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    """Start new states of share partitions."""
    _require_cluster_action(broker, context)

    async def initialize(key: SharePartitionKey, row: InitializePartition) -> StatePartitionResult:
        await broker.share.coordinator.initialize(key, row.state_epoch, row.start_offset)
        return StatePartitionResult(partition=key.partition)

    results = await _results(request.group_id, request.topics, StatePartitionResult, initialize)
    return InitializeShareGroupStateResponse(
        results=[StateResult(topic_id=topic_id, partitions=rows) for topic_id, rows in results]
    )


async def handle_read_share_group_state(
    broker: Broker, context: Context, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    """Return the states of share partitions for their leader."""
    _require_cluster_action(broker, context)

    async def read(key: SharePartitionKey, row: ReadPartition) -> ReadPartitionResult:
        state = await broker.share.coordinator.read(key, row.leader_epoch)
        return ReadPartitionResult(
            partition=key.partition,
            state_epoch=state.state_epoch,
            start_offset=state.start_offset,
            state_batches=state.batches,
        )

    results = await _results(request.group_id, request.topics, ReadPartitionResult, read)
    return ReadShareGroupStateResponse(
        results=[ReadStateResult(topic_id=topic_id, partitions=rows) for topic_id, rows in results]
    )


async def handle_write_share_group_state(
    broker: Broker, context: Context, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    """Change the states of share partitions. v1+ the number of completed deliveries."""
    _require_cluster_action(broker, context)

    async def write(key: SharePartitionKey, row: WritePartition) -> StatePartitionResult:
        update = StateUpdate(
            row.state_epoch, row.leader_epoch, row.start_offset, row.delivery_complete_count, row.state_batches
        )
        await broker.share.coordinator.write(key, update)
        return StatePartitionResult(partition=key.partition)

    results = await _results(request.group_id, request.topics, StatePartitionResult, write)
    return WriteShareGroupStateResponse(
        results=[StateResult(topic_id=topic_id, partitions=rows) for topic_id, rows in results]
    )


async def handle_delete_share_group_state(
    broker: Broker, context: Context, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    """Delete the states of share partitions."""
    _require_cluster_action(broker, context)

    async def delete(key: SharePartitionKey, row: DeletePartition) -> StatePartitionResult:
        await broker.share.coordinator.delete(key)
        return StatePartitionResult(partition=key.partition)

    results = await _results(request.group_id, request.topics, StatePartitionResult, delete)
    return DeleteShareGroupStateResponse(
        results=[StateResult(topic_id=topic_id, partitions=rows) for topic_id, rows in results]
    )


async def handle_read_share_group_state_summary(
    broker: Broker, context: Context, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    """Return the start offsets of share partitions. v1+ the number of completed deliveries."""
    _require_cluster_action(broker, context)

    async def summarize(key: SharePartitionKey, row: ReadPartition) -> SummaryPartitionResult:
        state = broker.share.coordinator.summary(key)
        return SummaryPartitionResult(
            partition=key.partition,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.complete_count,
        )

    results = await _results(request.group_id, request.topics, SummaryPartitionResult, summarize)
    return ReadShareGroupStateSummaryResponse(
        results=[ReadStateSummaryResult(topic_id=topic_id, partitions=rows) for topic_id, rows in results]
    )


def _require_cluster_action(broker: Broker, context: Context) -> None:
    broker.authorizer.require_on_cluster(context.session, Operation.CLUSTER_ACTION)


async def _results(
    group_id: str,
    topics: Iterable[InitializeStateData | ReadStateData | WriteStateData | DeleteStateData],
    result_class: type[Result],
    call: Callable[[SharePartitionKey, Any], Awaitable[Result]],
) -> list[tuple[bytes, list[Result]]]:
    """Call a function for each share partition; return its results, or errors, by topic id."""
    results = []
    for topic in topics:
        rows = []
        for row in topic.partitions:
            try:
                result = await call(SharePartitionKey(group_id, topic.topic_id, row.partition), row)
            except BrokerError as error:
                result = result_class(partition=row.partition, error_code=error.code, error_message=str(error.args[0]))
            rows.append(result)
        results.append((topic.topic_id, rows))
    return results
