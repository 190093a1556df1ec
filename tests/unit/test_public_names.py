"""The names people may rely on, and nothing that would make them wait for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace

NAMES = {
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
}
SENDING = {
    "abort_transaction",
    "begin_transaction",
    "close",
    "commit_transaction",
    "config",
    "flush",
    "from_properties",
    "init_transactions",
    "metrics",
    "partitions_for",
    "send",
    "send_arrow",
    "send_offsets_to_transaction",
    "send_record",
    "transaction",
}


def public(cls, instance=None):
    return {name for name in {*dir(cls), *vars(instance or cls)} if not name.startswith("_")}


def test_the_public_names_are_these():
    assert set(headrace.__all__) == NAMES
    assert set(dir(headrace)) >= NAMES
    for name in NAMES:
        assert getattr(headrace, name) is not None


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'Subscriber'"):
        _ = headrace.Subscriber


def test_the_three_producers_have_the_same_names():
    with headrace.MockProducer() as mock:
        assert public(headrace.MockProducer, mock) >= SENDING
    with headrace.Producer(bootstrap_servers="127.0.0.1:1") as producer:
        assert public(headrace.Producer, producer) == SENDING | {"settings"}
    assert public(headrace.AsyncProducer) == SENDING | {"send_and_wait"}


def test_the_version_costs_no_import_of_the_rest():
    code = (
        "import sys, headrace; headrace.__version__; headrace.ConfigError;"
        " print(*[name for name in sys.modules if name.startswith(('headrace.', 'pyarrow'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["headrace.error_codes", "headrace.errors"]


def test_every_error_is_one_of_ours():
    for name in NAMES:
        if name.endswith("Error"):
            assert issubclass(getattr(headrace, name), headrace.HeadraceError)
