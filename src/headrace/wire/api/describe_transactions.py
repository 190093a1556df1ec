"""Key 65: state of transactions."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.schema import Message, Struct, array, int16, int32, int64, string


class DescribeTransactionsRequest(Message, api_key=65, versions="0-0", flexible="0+"):
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
