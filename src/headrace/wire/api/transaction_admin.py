"""Administration of transactions and producers."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.fields import array, int16, int32, int64, string
from headrace.wire.schema import Message, RequestMessage, Struct

# Key 61: active producers of partitions, with their open transactions.


class TopicRequest(Struct):
    name: str = string()
    partition_indexes: Sequence[int] = array(int32)


class DescribeProducersRequest(RequestMessage["DescribeProducersResponse"], api_key=61, versions="0-0", flexible="0+"):
    topics: Sequence[TopicRequest] = array(TopicRequest)


class ProducerState(Struct):
    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


class PartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    active_producers: Sequence[ProducerState] = array(ProducerState)


class TopicResponse(Struct):
    name: str = string()
    partitions: Sequence[PartitionResponse] = array(PartitionResponse)


class DescribeProducersResponse(Message, api_key=61, versions="0-0", flexible="0+"):
    throttle_time_ms: int = int32()
    topics: Sequence[TopicResponse] = array(TopicResponse)


# Key 65: describe transactions.


class DescribeTransactionsRequest(
    RequestMessage["DescribeTransactionsResponse"], api_key=65, versions="0-0", flexible="0+"
):
    transactional_ids: Sequence[str] = array(string)


class TopicData(Struct):
    topic: str = string()
    partitions: Sequence[int] = array(int32)


class TransactionState(Struct):
    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: Sequence[TopicData] = array(TopicData)


class DescribeTransactionsResponse(Message, api_key=65, versions="0-0", flexible="0+"):
    throttle_time_ms: int = int32()
    transaction_states: Sequence[TransactionState] = array(TransactionState)


# Key 66: list transactions by state, producer, age or pattern.


class ListTransactionsRequest(RequestMessage["ListTransactionsResponse"], api_key=66, versions="0-2", flexible="0+"):
    state_filters: Sequence[str] = array(string)
    producer_id_filters: Sequence[int] = array(int64)
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)


class ListedTransaction(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Message, api_key=66, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: Sequence[str] = array(string)
    transaction_states: Sequence[ListedTransaction] = array(ListedTransaction)
