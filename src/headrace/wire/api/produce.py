"""Key 0: produce record batches. v0-2 message sets, v3 record batches (magic 2), v13 topic ids."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.api.leaders import LeaderIdAndEpoch, NodeEndpoint
from headrace.wire.fields import Records, array, int16, int32, int64, records_, string, struct, uuid
from headrace.wire.schema import Message, RequestMessage, Struct


class PartitionProduceData(Struct):
    partition_index: int = int32()
    records: Records = records_(nullable="0+")


class TopicProduceData(Struct):
    name: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)
    partition_data: Sequence[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(RequestMessage["ProduceResponse"], api_key=0, versions="0-13", flexible="9+"):
    transactional_id: str | None = string("3+", nullable="3+", default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: Sequence[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = int32("8+")
    batch_index_error_message: str | None = string("8+", nullable="8+", default=None)


class PartitionProduceResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64("2+", default=-1, ignorable=True)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    record_errors: Sequence[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, "8+", ignorable=True)
    error_message: str | None = string("8+", nullable="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Struct):
    name: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)
    partition_responses: Sequence[PartitionProduceResponse] = array(PartitionProduceResponse)


class ProduceResponse(Message, api_key=0, versions="0-13", flexible="9+"):
    responses: Sequence[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32("1+", ignorable=True)
    node_endpoints: Sequence[NodeEndpoint] = array(NodeEndpoint, "10+", tag=0)
