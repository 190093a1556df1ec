"""Committed offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.fields import array, boolean, int16, int32, int64, string, uuid
from headrace.wire.schema import Message, RequestMessage, Struct

# Key 8: commit the offsets of a group.


class OffsetCommitRequestPartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32("6+", default=-1, ignorable=True)
    commit_timestamp: int = int64("1", default=-1)
    committed_metadata: str | None = string(nullable="0+")


class OffsetCommitRequestTopic(Struct):
    name: str = string("0-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)
    partitions: Sequence[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(RequestMessage["OffsetCommitResponse"], api_key=8, versions="0-10", flexible="8+"):
    group_id: str = string()
    generation_id_or_member_epoch: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("1+", ignorable=True)
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1, ignorable=True)
    topics: Sequence[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetResultPartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Struct):
    name: str = string("0-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)
    partitions: Sequence[OffsetResultPartition] = array(OffsetResultPartition)


class OffsetCommitResponse(Message, api_key=8, versions="0-10", flexible="8+"):
    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: Sequence[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


# Key 9: fetch the committed offsets of a group. v8 several groups.


class OffsetFetchRequestTopic(Struct):
    name: str = string("0-7")
    partition_indexes: Sequence[int] = array(int32, "0-7")


class OffsetFetchRequestTopics(Struct):
    name: str = string("8-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)
    partition_indexes: Sequence[int] = array(int32, "8+")


class OffsetFetchRequestGroup(Struct):
    group_id: str = string("8+")
    member_id: str | None = string("9+", nullable="9+", default=None, ignorable=True)
    member_epoch: int = int32("9+", default=-1, ignorable=True)
    topics: Sequence[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, "8+", nullable="8+")


class OffsetFetchRequest(RequestMessage["OffsetFetchResponse"], api_key=9, versions="0-10", flexible="6+"):
    group_id: str = string("0-7")
    topics: Sequence[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, "0-7", nullable="2-7")
    groups: Sequence[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = boolean("7+")


class OffsetFetchResponsePartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32("5+", default=-1, ignorable=True)
    metadata: str | None = string(nullable="0+")
    error_code: int = int16()


class OffsetFetchResponseTopic(Struct):
    name: str = string("0-7")
    partitions: Sequence[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, "0-7")


class OffsetFetchResponseTopics(Struct):
    name: str = string("8-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)
    partitions: Sequence[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, "8+")


class OffsetFetchResponseGroup(Struct):
    group_id: str = string("8+")
    topics: Sequence[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "8+")
    error_code: int = int16("8+")


class OffsetFetchResponse(Message, api_key=9, versions="0-10", flexible="6+"):
    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: Sequence[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "0-7")
    error_code: int = int16("2-7", ignorable=True)
    groups: Sequence[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+")


# Key 47: delete committed offsets.


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = int32()


class OffsetDeleteRequestTopic(Struct):
    name: str = string()
    partitions: Sequence[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


class OffsetDeleteRequest(RequestMessage["OffsetDeleteResponse"], api_key=47, versions="0-0"):
    group_id: str = string()
    topics: Sequence[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


class OffsetResultTopic(Struct):
    name: str = string()
    partitions: Sequence[OffsetResultPartition] = array(OffsetResultPartition)


class OffsetDeleteResponse(Message, api_key=47, versions="0-0"):
    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: Sequence[OffsetResultTopic] = array(OffsetResultTopic)


# Key 28: commit offsets with a transaction.


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)
    committed_metadata: str | None = string(nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    name: str = string()
    partitions: Sequence[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


class TxnOffsetCommitRequest(RequestMessage["TxnOffsetCommitResponse"], api_key=28, versions="0-5", flexible="3+"):
    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32("3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: Sequence[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponse(Message, api_key=28, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32()
    topics: Sequence[OffsetResultTopic] = array(OffsetResultTopic)
