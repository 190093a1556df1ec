"""The state of share partitions (KIP-932), which partition leaders keep at the share coordinator."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.fields import array, int8, int16, int32, int64, string, uuid
from headrace.wire.schema import Message, RequestMessage, Struct

# Key 83: set the start offset of share partitions; between brokers.


class InitializePartition(Struct):
    partition: int = int32()
    state_epoch: int = int32()
    start_offset: int = int64()


class InitializeStateData(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[InitializePartition] = array(InitializePartition)


class InitializeShareGroupStateRequest(
    RequestMessage["InitializeShareGroupStateResponse"], api_key=83, versions="0-0", flexible="0+"
):
    group_id: str = string()
    topics: Sequence[InitializeStateData] = array(InitializeStateData)


class StatePartitionResult(Struct):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class StateResult(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[StatePartitionResult] = array(StatePartitionResult)


class InitializeShareGroupStateResponse(Message, api_key=83, versions="0-0", flexible="0+"):
    results: Sequence[StateResult] = array(StateResult)


# Key 84: read the state of share partitions; between brokers.


class ReadPartition(Struct):
    partition: int = int32()
    leader_epoch: int = int32()


class ReadStateData(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[ReadPartition] = array(ReadPartition)


class ReadShareGroupStateRequest(
    RequestMessage["ReadShareGroupStateResponse"], api_key=84, versions="0-0", flexible="0+"
):
    group_id: str = string()
    topics: Sequence[ReadStateData] = array(ReadStateData)


class StateBatch(Struct):
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_state: int = int8()
    delivery_count: int = int16()


class ReadPartitionResult(StatePartitionResult):
    state_epoch: int = int32()
    start_offset: int = int64()
    state_batches: Sequence[StateBatch] = array(StateBatch)


class ReadStateResult(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[ReadPartitionResult] = array(ReadPartitionResult)


class ReadShareGroupStateResponse(Message, api_key=84, versions="0-0", flexible="0+"):
    results: Sequence[ReadStateResult] = array(ReadStateResult)


# Key 85: write the state of share partitions; between brokers. v1 count of completed deliveries.


class WritePartition(Struct):
    partition: int = int32()
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32("1+", default=-1, ignorable=True)
    state_batches: Sequence[StateBatch] = array(StateBatch)


class WriteStateData(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[WritePartition] = array(WritePartition)


class WriteShareGroupStateRequest(
    RequestMessage["WriteShareGroupStateResponse"], api_key=85, versions="0-1", flexible="0+"
):
    group_id: str = string()
    topics: Sequence[WriteStateData] = array(WriteStateData)


class WriteShareGroupStateResponse(Message, api_key=85, versions="0-1", flexible="0+"):
    results: Sequence[StateResult] = array(StateResult)


# Key 86: delete the state of share partitions; between brokers.


class DeletePartition(Struct):
    partition: int = int32()


class DeleteStateData(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[DeletePartition] = array(DeletePartition)


class DeleteShareGroupStateRequest(
    RequestMessage["DeleteShareGroupStateResponse"], api_key=86, versions="0-0", flexible="0+"
):
    group_id: str = string()
    topics: Sequence[DeleteStateData] = array(DeleteStateData)


class DeleteShareGroupStateResponse(Message, api_key=86, versions="0-0", flexible="0+"):
    results: Sequence[StateResult] = array(StateResult)


# Key 87: read the start offsets of share partitions; between brokers. v1 count of completed deliveries.


class ReadShareGroupStateSummaryRequest(
    RequestMessage["ReadShareGroupStateSummaryResponse"], api_key=87, versions="0-1", flexible="0+"
):
    group_id: str = string()
    topics: Sequence[ReadStateData] = array(ReadStateData)


class SummaryPartitionResult(StatePartitionResult):
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32("1+", default=-1, ignorable=True)


class ReadStateSummaryResult(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[SummaryPartitionResult] = array(SummaryPartitionResult)


class ReadShareGroupStateSummaryResponse(Message, api_key=87, versions="0-1", flexible="0+"):
    results: Sequence[ReadStateSummaryResult] = array(ReadStateSummaryResult)
