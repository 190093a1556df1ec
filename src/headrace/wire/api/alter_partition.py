"""Key 56: a leader tells the controller which replicas are in sync. Between brokers, and so the last version only."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.schema import Message, Struct, array, int8, int16, int32, int64, uuid


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


class AlterPartitionRequest(Message, api_key=56, versions="3-3", flexible="0+"):
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
