"""Share groups (KIP-932): membership, descriptions and offsets."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.api.group_admin import Assignment, DescribedGroupBase
from headrace.wire.api.groups import HeartbeatResult
from headrace.wire.fields import array, boolean, int16, int32, int64, string, struct, uuid
from headrace.wire.schema import Message, RequestMessage, Struct

# Key 76: join, heartbeat and leave of a member (KIP-932).


class ShareGroupHeartbeatRequest(
    RequestMessage["ShareGroupHeartbeatResponse"], api_key=76, versions="1-1", flexible="0+"
):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    rack_id: str | None = string(nullable="0+", default=None)
    subscribed_topic_names: Sequence[str] | None = array(string, nullable="0+", default=None)


class ShareGroupHeartbeatResponse(Message, HeartbeatResult, api_key=76, versions="1-1", flexible="0+"):
    """The same fields as for consumer groups."""


# Key 77: describe share groups.


class ShareGroupDescribeRequest(
    RequestMessage["ShareGroupDescribeResponse"], api_key=77, versions="1-1", flexible="0+"
):
    group_ids: Sequence[str] = array(string)
    include_authorized_operations: bool = boolean()


class ShareMember(Struct):
    member_id: str = string()
    rack_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: Sequence[str] = array(string)
    assignment: Assignment = struct(Assignment)


class DescribedShareGroup(DescribedGroupBase):
    members: Sequence[ShareMember] = array(ShareMember)
    authorized_operations: int = int32(default=-2147483648)


class ShareGroupDescribeResponse(Message, api_key=77, versions="1-1", flexible="0+"):
    throttle_time_ms: int = int32()
    groups: Sequence[DescribedShareGroup] = array(DescribedShareGroup)


# Key 90: describe the start offsets of share groups. v1 lag.


class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = string()
    partitions: Sequence[int] = array(int32)


class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: str = string()
    topics: Sequence[DescribeShareGroupOffsetsRequestTopic] | None = array(
        DescribeShareGroupOffsetsRequestTopic, nullable="0+"
    )


class DescribeShareGroupOffsetsRequest(
    RequestMessage["DescribeShareGroupOffsetsResponse"], api_key=90, versions="0-1", flexible="0+"
):
    groups: Sequence[DescribeShareGroupOffsetsRequestGroup] = array(DescribeShareGroupOffsetsRequestGroup)


class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = int32()
    start_offset: int = int64()
    leader_epoch: int = int32()
    lag: int = int64("1+", default=-1, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = string()
    topic_id: bytes = uuid()
    partitions: Sequence[DescribeShareGroupOffsetsResponsePartition] = array(DescribeShareGroupOffsetsResponsePartition)


class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: str = string()
    topics: Sequence[DescribeShareGroupOffsetsResponseTopic] = array(DescribeShareGroupOffsetsResponseTopic)
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class DescribeShareGroupOffsetsResponse(Message, api_key=90, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    groups: Sequence[DescribeShareGroupOffsetsResponseGroup] = array(DescribeShareGroupOffsetsResponseGroup)


# Key 91: set the start offsets of a share group.


class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: int = int32()
    start_offset: int = int64()


class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = string()
    partitions: Sequence[AlterShareGroupOffsetsRequestPartition] = array(AlterShareGroupOffsetsRequestPartition)


class AlterShareGroupOffsetsRequest(
    RequestMessage["AlterShareGroupOffsetsResponse"], api_key=91, versions="0-0", flexible="0+"
):
    group_id: str = string()
    topics: Sequence[AlterShareGroupOffsetsRequestTopic] = array(AlterShareGroupOffsetsRequestTopic)


class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = string()
    topic_id: bytes = uuid()
    partitions: Sequence[AlterShareGroupOffsetsResponsePartition] = array(AlterShareGroupOffsetsResponsePartition)


class AlterShareGroupOffsetsResponse(Message, api_key=91, versions="0-0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    responses: Sequence[AlterShareGroupOffsetsResponseTopic] = array(AlterShareGroupOffsetsResponseTopic)


# Key 92: delete the offsets of a share group's topics.


class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = string()


class DeleteShareGroupOffsetsRequest(
    RequestMessage["DeleteShareGroupOffsetsResponse"], api_key=92, versions="0-0", flexible="0+"
):
    group_id: str = string()
    topics: Sequence[DeleteShareGroupOffsetsRequestTopic] = array(DeleteShareGroupOffsetsRequestTopic)


class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = string()
    topic_id: bytes = uuid()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class DeleteShareGroupOffsetsResponse(Message, api_key=92, versions="0-0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    responses: Sequence[DeleteShareGroupOffsetsResponseTopic] = array(DeleteShareGroupOffsetsResponseTopic)
