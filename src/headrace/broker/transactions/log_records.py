"""The records of `__transaction_state`, in Kafka's format, so that its tools can read it.

A key is a version and the transactional id; a value is a version and the state of the transaction. A null value is a
tombstone. Values are written in version 1, which adds tagged fields to version 0.
"""

from __future__ import annotations

import struct

from headrace.broker.transactions.transaction import NOT_STARTED, Transaction, TransactionState
from headrace.errors import MalformedError
from headrace.types import TopicPartition
from headrace.wire.internal_topics import PartitionsOfTopic, TransactionLogKey, TransactionLogValue, split_version
from headrace.wire.layout import Record

KEY_VERSION = 0
VALUE_VERSION = 1

_version = struct.Struct(">h")


def encode(transaction: Transaction, now_ms: int) -> Record:
    """Return the record of a transaction."""
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if transaction.state == TransactionState.EMPTY else _by_topic(transaction),
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.version,
    )
    body = _version.pack(VALUE_VERSION) + value.encode(VALUE_VERSION)
    return Record(0, now_ms, _key(transaction.transactional_id), body, ())


def tombstone(transactional_id: str, now_ms: int) -> Record:
    """Return the record that removes a transactional id."""
    return Record(0, now_ms, _key(transactional_id), None, ())


def decode(record: Record) -> tuple[str, Transaction | None] | None:
    """Decode a record to a transactional id and its transaction (None: tombstone); None for unknown record types."""
    if record.key is None:
        raise MalformedError("invalid record: expected a key", offset=0)
    version, body = split_version(record.key)
    if version not in TransactionLogKey.versions:
        return None
    transactional_id = TransactionLogKey.decode(version, body).transactional_id
    return transactional_id, None if record.value is None else _decode_value(transactional_id, record.value)


def _decode_value(transactional_id: str, data: bytes) -> Transaction:
    version, body = split_version(data)
    if version not in TransactionLogValue.versions:
        raise MalformedError(
            f"invalid transaction: expected version {TransactionLogValue.versions}, got {version}", offset=0
        )
    value = TransactionLogValue.decode(version, body)
    try:
        state = TransactionState(value.transaction_status)
    except ValueError:
        raise MalformedError(f"invalid transaction state {value.transaction_status}", offset=2) from None
    topics = value.transaction_partitions or ()
    return Transaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        updated_ms=value.transaction_last_update_timestamp_ms,
        started_ms=NOT_STARTED if state == TransactionState.EMPTY else value.transaction_start_timestamp_ms,
        partitions=frozenset(TopicPartition(row.topic, index) for row in topics for index in row.partition_ids),
        version=value.client_transaction_version,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
    )


def _key(transactional_id: str) -> bytes:
    key = TransactionLogKey(transactional_id=transactional_id)
    return _version.pack(KEY_VERSION) + key.encode(KEY_VERSION)


def _by_topic(transaction: Transaction) -> list[PartitionsOfTopic]:
    indexes: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        indexes.setdefault(topic, []).append(index)
    return [PartitionsOfTopic(topic=topic, partition_ids=ids) for topic, ids in indexes.items()]
