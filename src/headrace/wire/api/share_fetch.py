"""Fetching and acknowledging records in share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.api.leaders import NodeEndpoint
from headrace.wire.fields import Records, array, boolean, int8, int16, int32, int64, records_, string, struct, uuid
from headrace.wire.schema import Message, RequestMessage, Struct

# Key 78: acquire and fetch records, and acknowledge earlier ones. v2 acquire modes and renewal of locks.


class AcknowledgementBatch(Struct):
    first_offset: int = int64()
    last_offset: int = int64()
    acknowledge_types: Sequence[int] = array(int8)


class ShareFetchPartition(Struct):
    partition_index: int = int32()
    acknowledgement_batches: Sequence[AcknowledgementBatch] = array(AcknowledgementBatch)


class ShareFetchTopic(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[ShareFetchPartition] = array(ShareFetchPartition)


class ForgottenShareTopic(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[int] = array(int32)


class ShareFetchRequest(RequestMessage["ShareFetchResponse"], api_key=78, versions="1-2", flexible="0+"):
    group_id: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+")
    share_session_epoch: int = int32()
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=0x7FFFFFFF)
    max_records: int = int32("1+")
    batch_size: int = int32("1+")
    share_acquire_mode: int = int8("2+", ignorable=True)
    is_renew_ack: bool = boolean("2+")
    topics: Sequence[ShareFetchTopic] = array(ShareFetchTopic)
    forgotten_topics_data: Sequence[ForgottenShareTopic] = array(ForgottenShareTopic)


class ShareLeader(Struct):
    leader_id: int = int32()
    leader_epoch: int = int32()


class AcquiredRecords(Struct):
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_count: int = int16()


class ShareFetchPartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    acknowledge_error_code: int = int16()
    acknowledge_error_message: str | None = string(nullable="0+", default=None)
    current_leader: ShareLeader = struct(ShareLeader)
    records: Records = records_(default=b"")
    acquired_records: Sequence[AcquiredRecords] = array(AcquiredRecords)


class ShareFetchableTopicResponse(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[ShareFetchPartitionData] = array(ShareFetchPartitionData)


class ShareFetchResponse(Message, api_key=78, versions="1-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32("1+")
    responses: Sequence[ShareFetchableTopicResponse] = array(ShareFetchableTopicResponse)
    node_endpoints: Sequence[NodeEndpoint] = array(NodeEndpoint)


# Key 79: acknowledge acquired records. v2 renewal of locks.


class ShareAcknowledgeRequest(RequestMessage["ShareAcknowledgeResponse"], api_key=79, versions="1-2", flexible="0+"):
    group_id: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+")
    share_session_epoch: int = int32()
    is_renew_ack: bool = boolean("2+")
    topics: Sequence[ShareFetchTopic] = array(ShareFetchTopic)


class ShareAcknowledgePartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    current_leader: ShareLeader = struct(ShareLeader)


class ShareAcknowledgeTopicResponse(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[ShareAcknowledgePartitionData] = array(ShareAcknowledgePartitionData)


class ShareAcknowledgeResponse(Message, api_key=79, versions="1-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32("2+", ignorable=True)
    responses: Sequence[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse)
    node_endpoints: Sequence[NodeEndpoint] = array(NodeEndpoint)
