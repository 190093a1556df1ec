"""headrace: exactly-once delivery from Spark to Kafka, in Python.

These are the public names; everything else may change without notice. Each is imported on first use, which keeps
`import headrace` fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client.metadata import Cluster, PartitionInfo
    from headrace.client.registry import SchemaRegistryClient
    from headrace.config.option_types import ConsumerOptions, ProducerOptions
    from headrace.consumer.aio import AsyncConsumer
    from headrace.consumer.consumer import Consumer
    from headrace.consumer.deserializers import Deserializer
    from headrace.consumer.interceptors import ConsumerInterceptor
    from headrace.consumer.rebalances import RebalanceListener
    from headrace.consumer.results import OffsetAndTimestamp
    from headrace.consumer.share_consumer import ShareConsumer, ShareRecord
    from headrace.consumer.share_session import AcknowledgeType
    from headrace.errors import (
        AbortableError,
        AuthenticationError,
        AuthorizationError,
        BrokerError,
        BufferExhaustedError,
        ClosedError,
        ClusterAuthorizationError,
        CommitFailedError,
        ConcurrentTransactionsError,
        ConfigError,
        ConnectionFailedError,
        DeserializationError,
        FatalError,
        FencedInstanceIdError,
        FencedMemberEpochError,
        GroupAuthorizationError,
        GroupMaxSizeReachedError,
        HeadraceError,
        IllegalGenerationError,
        IllegalStateError,
        IncompatibleSchemaError,
        InconsistentGroupProtocolError,
        InvalidConfigError,
        InvalidGroupIdError,
        InvalidPidMappingError,
        InvalidProducerEpochError,
        InvalidRecordError,
        InvalidRegularExpressionError,
        InvalidSchemaError,
        InvalidSessionTimeoutError,
        InvalidTimestampError,
        InvalidTopicError,
        InvalidTxnStateError,
        IoThreadError,
        LogTruncationError,
        MessageTooLargeError,
        NoOffsetError,
        NotEnoughReplicasAfterAppendError,
        NotEnoughReplicasError,
        NotLeaderOrFollowerError,
        OffsetOutOfRangeError,
        OutOfOrderSequenceError,
        PolicyViolationError,
        ProducerFencedError,
        RebalanceInProgressError,
        RecordTooLargeError,
        RegistryAuthenticationError,
        RegistryAuthorizationError,
        RegistryError,
        RegistryProtocolError,
        RegistryUnavailableError,
        RetriableBrokerError,
        RetriableError,
        SchemaDeletedError,
        SchemaError,
        SchemaFramingError,
        SchemaNotFoundError,
        SerializationError,
        StaleMemberEpochError,
        SubjectNotFoundError,
        TimedOutError,
        TlsError,
        TopicAuthorizationError,
        TopicExistsError,
        TransactionAbortableError,
        TransactionalIdAuthorizationError,
        TransactionTimeoutError,
        UnknownMemberIdError,
        UnknownProducerIdError,
        UnknownTopicOrPartitionError,
        UnreleasedInstanceIdError,
        UnsupportedAssignorError,
        UnsupportedVersionError,
        WakeupError,
    )
    from headrace.producer._send import RecordFuture
    from headrace.producer.aio import AsyncProducer
    from headrace.producer.batch import ArrowDelivery, OffsetRange
    from headrace.producer.interceptors import ProducerInterceptor
    from headrace.producer.mock import MockProducer
    from headrace.producer.partitioners import Partitioner
    from headrace.producer.producer import Producer
    from headrace.producer.records import ProducerRecord, RecordMetadata
    from headrace.producer.serializers import Serializer
    from headrace.schema.types import RegisteredSchema, Schema, SchemaFormat, SchemaReference
    from headrace.telemetry.metrics import Metric, MetricName, MetricsReporter
    from headrace.types import GroupMetadata, OffsetAndMetadata, TopicPartition
    from headrace.wire.layout import ConsumerRecord
    from headrace.wire.sasl import Token

__all__ = [
    "AbortableError",
    "AcknowledgeType",
    "ArrowDelivery",
    "AsyncConsumer",
    "AsyncProducer",
    "AuthenticationError",
    "AuthorizationError",
    "BrokerError",
    "BufferExhaustedError",
    "ClosedError",
    "Cluster",
    "ClusterAuthorizationError",
    "CommitFailedError",
    "ConcurrentTransactionsError",
    "ConfigError",
    "ConnectionFailedError",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerOptions",
    "ConsumerRecord",
    "DeserializationError",
    "Deserializer",
    "FatalError",
    "FencedInstanceIdError",
    "FencedMemberEpochError",
    "GroupAuthorizationError",
    "GroupMaxSizeReachedError",
    "GroupMetadata",
    "HeadraceError",
    "IllegalGenerationError",
    "IllegalStateError",
    "IncompatibleSchemaError",
    "InconsistentGroupProtocolError",
    "InvalidConfigError",
    "InvalidGroupIdError",
    "InvalidPidMappingError",
    "InvalidProducerEpochError",
    "InvalidRecordError",
    "InvalidRegularExpressionError",
    "InvalidSchemaError",
    "InvalidSessionTimeoutError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTxnStateError",
    "IoThreadError",
    "LogTruncationError",
    "MessageTooLargeError",
    "Metric",
    "MetricName",
    "MetricsReporter",
    "MockProducer",
    "NoOffsetError",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotLeaderOrFollowerError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "OffsetRange",
    "OutOfOrderSequenceError",
    "PartitionInfo",
    "Partitioner",
    "PolicyViolationError",
    "Producer",
    "ProducerFencedError",
    "ProducerInterceptor",
    "ProducerOptions",
    "ProducerRecord",
    "RebalanceInProgressError",
    "RebalanceListener",
    "RecordFuture",
    "RecordMetadata",
    "RecordTooLargeError",
    "RegisteredSchema",
    "RegistryAuthenticationError",
    "RegistryAuthorizationError",
    "RegistryError",
    "RegistryProtocolError",
    "RegistryUnavailableError",
    "RetriableBrokerError",
    "RetriableError",
    "Schema",
    "SchemaDeletedError",
    "SchemaError",
    "SchemaFormat",
    "SchemaFramingError",
    "SchemaNotFoundError",
    "SchemaReference",
    "SchemaRegistryClient",
    "SerializationError",
    "Serializer",
    "ShareConsumer",
    "ShareRecord",
    "StaleMemberEpochError",
    "SubjectNotFoundError",
    "TimedOutError",
    "TlsError",
    "Token",
    "TopicAuthorizationError",
    "TopicExistsError",
    "TopicPartition",
    "TransactionAbortableError",
    "TransactionTimeoutError",
    "TransactionalIdAuthorizationError",
    "UnknownMemberIdError",
    "UnknownProducerIdError",
    "UnknownTopicOrPartitionError",
    "UnreleasedInstanceIdError",
    "UnsupportedAssignorError",
    "UnsupportedVersionError",
    "WakeupError",
    "__version__",
]

__version__ = "0.1.0"

_MODULES = {
    "Consumer": "consumer.consumer",
    "AcknowledgeType": "consumer.share_session",
    "ShareConsumer": "consumer.share_consumer",
    "ShareRecord": "consumer.share_consumer",
    "ConsumerRecord": "wire.layout",
    "ConsumerOptions": "config.option_types",
    "ConsumerInterceptor": "consumer.interceptors",
    "Deserializer": "consumer.deserializers",
    "OffsetAndMetadata": "types",
    "OffsetAndTimestamp": "consumer.results",
    "TopicPartition": "types",
    "ArrowDelivery": "producer.batch",
    "AsyncConsumer": "consumer.aio",
    "AsyncProducer": "producer.aio",
    "Cluster": "client.metadata",
    "GroupMetadata": "types",
    "Metric": "telemetry.metrics",
    "MetricName": "telemetry.metrics",
    "MetricsReporter": "telemetry.metrics",
    "MockProducer": "producer.mock",
    "OffsetRange": "producer.batch",
    "PartitionInfo": "client.metadata",
    "Partitioner": "producer.partitioners",
    "Producer": "producer.producer",
    "ProducerInterceptor": "producer.interceptors",
    "ProducerOptions": "config.option_types",
    "ProducerRecord": "producer.records",
    "RebalanceListener": "consumer.rebalances",
    "RecordFuture": "producer.batch",
    "RecordMetadata": "producer.records",
    "RegisteredSchema": "schema.types",
    "Schema": "schema.types",
    "SchemaFormat": "schema.types",
    "SchemaReference": "schema.types",
    "SchemaRegistryClient": "client.registry",
    "Serializer": "producer.serializers",
    "Token": "wire.sasl",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
