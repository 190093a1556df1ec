"""Requests between brokers. Those of Kafka have their last version only."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.fields import array, boolean, bytes_, int8, int16, int32, int64, string, uint16, uuid
from headrace.wire.schema import Message, RequestMessage, Struct

# Key 56: a leader changes the in-sync replicas of its partitions.


class BrokerState(Struct):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)


class PartitionData(Struct):
    partition_index: int = int32()
    leader_epoch: int = int32()
    new_isr_with_epochs: Sequence[BrokerState] = array(BrokerState)
    leader_recovery_state: int = int8()
    partition_epoch: int = int32()


class TopicData(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[PartitionData] = array(PartitionData)


class AlterPartitionRequest(RequestMessage["AlterPartitionResponse"], api_key=56, versions="3-3", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    topics: Sequence[TopicData] = array(TopicData)


class PartitionResult(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    isr: Sequence[int] = array(int32)
    leader_recovery_state: int = int8()
    partition_epoch: int = int32()


class TopicResult(Struct):
    topic_id: bytes = uuid()
    partitions: Sequence[PartitionResult] = array(PartitionResult)


class AlterPartitionResponse(Message, api_key=56, versions="3-3", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: Sequence[TopicResult] = array(TopicResult)


# Key 62: a broker registers at the controller.


class Listener(Struct):
    name: str = string()
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


class Feature(Struct):
    name: str = string()
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class BrokerRegistrationRequest(
    RequestMessage["BrokerRegistrationResponse"], api_key=62, versions="4-4", flexible="0+"
):
    broker_id: int = int32()
    cluster_id: str = string()
    incarnation_id: bytes = uuid()
    listeners: Sequence[Listener] = array(Listener)
    features: Sequence[Feature] = array(Feature)
    rack: str | None = string(nullable="0+")
    is_migrating_zk_broker: bool = boolean()
    log_dirs: Sequence[bytes] = array(uuid)
    previous_broker_epoch: int = int64(default=-1)


class BrokerRegistrationResponse(Message, api_key=62, versions="4-4", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    broker_epoch: int = int64(default=-1)


# Key 63: heartbeat of a broker to the controller.


class BrokerHeartbeatRequest(RequestMessage["BrokerHeartbeatResponse"], api_key=63, versions="1-1", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    current_metadata_offset: int = int64()
    want_fence: bool = boolean()
    want_shut_down: bool = boolean()
    offline_log_dirs: Sequence[bytes] = array(uuid, tag=0)


class BrokerHeartbeatResponse(Message, api_key=63, versions="1-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    is_caught_up: bool = boolean()
    is_fenced: bool = boolean(default=True)
    should_shut_down: bool = boolean()


# Key 67: allocate a block of producer ids.


class AllocateProducerIdsRequest(
    RequestMessage["AllocateProducerIdsResponse"], api_key=67, versions="0-0", flexible="0+"
):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)


class AllocateProducerIdsResponse(Message, api_key=67, versions="0-0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id_start: int = int64()
    producer_id_len: int = int32()


# Key 30000, headrace only: fetch the changes of the controller's catalog; waits for the next one.


class CatalogFetchRequest(RequestMessage["CatalogFetchResponse"], api_key=30_000, versions="0-0", flexible="0+"):
    broker_id: int = int32()
    generation: int = int64(default=-1)
    next_number: int = int64()
    max_wait_ms: int = int32()


class CatalogFetchResponse(Message, api_key=30_000, versions="0-0", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    controller_id: int = int32()
    generation: int = int64()
    next_number: int = int64()  # after these changes
    is_snapshot: bool = boolean()
    changes: Sequence[bytes] = array(bytes_)  # each a list of events, as JSON
    controller: str = string(tag=0, default="")  # HOST:PORT, with NOT_CONTROLLER


# Key 30001, headrace only: forward a client's request to the controller.


class ForwardRequest(RequestMessage["ForwardResponse"], api_key=30_001, versions="0-0", flexible="0+"):
    broker_id: int = int32()
    request_key: int = int16()
    request_version: int = int16()
    principal: str = string()
    host: str = string()
    listener: str = string()
    client_id: str | None = string(nullable="0+", default=None)
    body: bytes = bytes_(secret=True)


class ForwardResponse(Message, api_key=30_001, versions="0-0", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    generation: int = int64()  # of the catalog, and its next number at the time of the response
    next_number: int = int64()
    body: bytes = bytes_(secret=True)


# Key 30002, headrace only: create a topic at the controller, automatically or an internal one.


class EnsureTopicRequest(RequestMessage["EnsureTopicResponse"], api_key=30_002, versions="0-0", flexible="0+"):
    broker_id: int = int32()
    name: str = string()


class EnsureTopicResponse(Message, api_key=30_002, versions="0-0", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    generation: int = int64()  # of the catalog, and its next number when the topic existed
    next_number: int = int64()
