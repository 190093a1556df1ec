"""headrace: exactly-once delivery from Spark to Kafka, in Python.

The public names; all else may change without notice. They are imported when first asked for, so that the parts of the
package can ask for the version, and who wants one name does not pay for all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client.metadata import Cluster, PartitionInfo
    from headrace.errors import (
        AbortableError,
        AuthenticationError,
        BrokerError,
        BufferExhaustedError,
        ClosedError,
        ConfigError,
        ConnectionFailedError,
        FatalTransactionError,
        HeadraceError,
        IllegalStateError,
        IoThreadError,
        RecordTooLargeError,
        SerializationError,
        TimedOutError,
        TlsError,
        TransactionError,
        UnsupportedVersionError,
    )
    from headrace.producer._send import RecordFuture
    from headrace.producer.aio import AsyncProducer
    from headrace.producer.arrow import ArrowDelivery, OffsetRange
    from headrace.producer.interceptors import ProducerInterceptor
    from headrace.producer.metrics import Metric, MetricName, MetricsReporter
    from headrace.producer.mock import MockProducer
    from headrace.producer.partitioners import Partitioner
    from headrace.producer.producer import Producer
    from headrace.producer.records import ProducerRecord, RecordMetadata
    from headrace.producer.serializers import Serializer
    from headrace.producer.transactions import GroupMetadata
    from headrace.wire.sasl import Token

__all__ = [
    "AbortableError",
    "ArrowDelivery",
    "AsyncProducer",
    "AuthenticationError",
    "BrokerError",
    "BufferExhaustedError",
    "ClosedError",
    "Cluster",
    "ConfigError",
    "ConnectionFailedError",
    "FatalTransactionError",
    "GroupMetadata",
    "HeadraceError",
    "IllegalStateError",
    "IoThreadError",
    "Metric",
    "MetricName",
    "MetricsReporter",
    "MockProducer",
    "OffsetRange",
    "PartitionInfo",
    "Partitioner",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "RecordFuture",
    "RecordMetadata",
    "RecordTooLargeError",
    "SerializationError",
    "Serializer",
    "TimedOutError",
    "TlsError",
    "Token",
    "TransactionError",
    "UnsupportedVersionError",
    "__version__",
]

__version__ = "0.1.0"

_PLACES = {
    "ArrowDelivery": "producer.arrow",
    "AsyncProducer": "producer.aio",
    "Cluster": "client.metadata",
    "GroupMetadata": "producer.transactions",
    "Metric": "producer.metrics",
    "MetricName": "producer.metrics",
    "MetricsReporter": "producer.metrics",
    "MockProducer": "producer.mock",
    "OffsetRange": "producer.arrow",
    "PartitionInfo": "client.metadata",
    "Partitioner": "producer.partitioners",
    "Producer": "producer.producer",
    "ProducerInterceptor": "producer.interceptors",
    "ProducerRecord": "producer.records",
    "RecordFuture": "producer.batch",
    "RecordMetadata": "producer.records",
    "Serializer": "producer.serializers",
    "Token": "wire.sasl",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_PLACES.get(name, 'errors')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
