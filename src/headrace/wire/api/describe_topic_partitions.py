"""Key 75: partitions of topics, page by page."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.schema import Message, Struct, array, boolean, int16, int32, string, struct, uuid


class TopicRequest(Struct):
    name: str = string()


class CursorRequest(Struct):
    topic_name: str = string()
    partition_index: int = int32()


class DescribeTopicPartitionsRequest(Message, api_key=75, versions="0-0", flexible="0+"):
    topics: Sequence[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = int32(default=2000)
    cursor: CursorRequest | None = struct(CursorRequest, nullable="0+", default=None)


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1)
    replica_nodes: Sequence[int] = array(int32)
    isr_nodes: Sequence[int] = array(int32)
    eligible_leader_replicas: Sequence[int] | None = array(int32, nullable="0+", default=None)
    last_known_elr: Sequence[int] | None = array(int32, nullable="0+", default=None)
    offline_replicas: Sequence[int] = array(int32)


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = int16()
    name: str | None = string(nullable="0+")
    topic_id: bytes = uuid()
    is_internal: bool = boolean()
    partitions: Sequence[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition)
    topic_authorized_operations: int = int32(default=-0x80000000)


class CursorResponse(Struct):
    topic_name: str = string()
    partition_index: int = int32()


class DescribeTopicPartitionsResponse(Message, api_key=75, versions="0-0", flexible="0+"):
    throttle_time_ms: int = int32()
    topics: Sequence[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: CursorResponse | None = struct(CursorResponse, nullable="0+", default=None)
