"""Administration of consumer groups."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.fields import array, boolean, bytes_, int8, int16, int32, string, struct, uuid
from headrace.wire.schema import Message, RequestMessage, Struct

# Key 16: list the groups of a broker.


class ListGroupsRequest(RequestMessage["ListGroupsResponse"], api_key=16, versions="0-5", flexible="3+"):
    states_filter: Sequence[str] = array(string, "4+")
    types_filter: Sequence[str] = array(string, "5+")


class ListedGroup(Struct):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string("4+", ignorable=True)
    group_type: str = string("5+", ignorable=True)


class ListGroupsResponse(Message, api_key=16, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    groups: Sequence[ListedGroup] = array(ListedGroup)


# Key 15: describe groups: state and members.


class DescribeGroupsRequest(RequestMessage["DescribeGroupsResponse"], api_key=15, versions="0-6", flexible="5+"):
    groups: Sequence[str] = array(string)
    include_authorized_operations: bool = boolean("3+")


class DescribedGroupMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string("4+", nullable="4+", default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = bytes_()
    member_assignment: bytes = bytes_()


class DescribedGroup(Struct):
    error_code: int = int16()
    error_message: str | None = string("6+", nullable="6+", default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: Sequence[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32("3+", default=-0x80000000)


class DescribeGroupsResponse(Message, api_key=15, versions="0-6", flexible="5+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    groups: Sequence[DescribedGroup] = array(DescribedGroup)


# Key 42: delete empty groups.


class DeleteGroupsRequest(RequestMessage["DeleteGroupsResponse"], api_key=42, versions="0-2", flexible="2+"):
    groups_names: Sequence[str] = array(string)


class DeletableGroupResult(Struct):
    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Message, api_key=42, versions="0-2", flexible="2+"):
    throttle_time_ms: int = int32()
    results: Sequence[DeletableGroupResult] = array(DeletableGroupResult)


# Key 69: describe groups of the new consumer protocol (KIP-848).


class ConsumerGroupDescribeRequest(
    RequestMessage["ConsumerGroupDescribeResponse"], api_key=69, versions="0-1", flexible="0+"
):
    group_ids: Sequence[str] = array(string)
    include_authorized_operations: bool = boolean()


class TopicPartitions(Struct):
    topic_id: bytes = uuid()
    topic_name: str = string()
    partitions: Sequence[int] = array(int32)


class Assignment(Struct):
    topic_partitions: Sequence[TopicPartitions] = array(TopicPartitions)


class Member(Struct):
    member_id: str = string()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: Sequence[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable="0+", default=None)
    assignment: Assignment = struct(Assignment)
    target_assignment: Assignment = struct(Assignment)
    member_type: int = int8("1+", default=-1, ignorable=True)


class DescribedGroupBase(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()


class DescribedConsumerGroup(DescribedGroupBase):
    members: Sequence[Member] = array(Member)
    authorized_operations: int = int32(default=-0x80000000)


class ConsumerGroupDescribeResponse(Message, api_key=69, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    groups: Sequence[DescribedConsumerGroup] = array(DescribedConsumerGroup)
