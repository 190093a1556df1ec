"""Every error headrace raises, as one tree.

::

    HeadraceError
    ├── ConfigError                 an option, its value and what is allowed
    ├── SerializationError          a key or value that its serializer cannot take
    ├── WireError                   bytes that are not what the protocol says
    │   ├── MalformedError          what was expected, what came, at which offset
    │   └── CorruptBatchError       a checksum or a count that does not hold
    │       └── DecompressedSizeError   compressed bytes that come to more than is allowed
    ├── UnsupportedVersionError     a message that this version cannot express
    ├── NotFoundError               a topic, a group, a transaction that is not there
    ├── AuthenticationError         the broker or we refuse to go on: no retry will help
    │   └── TlsError                of the handshake: certificates, names, protocols
    ├── IoThreadError               the thread that sends has died, and of what
    └── BrokerError                 an error code in a response, see `ERROR_CODES`

All of them survive pickling with their attributes, because Spark carries them from
executors to the driver. That is what `_fields` is for: `__reduce__` rebuilds an error from
the arguments its constructor took, not from its text.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple


class HeadraceError(Exception):
    """The root of the tree."""

    _fields: tuple[str, ...] = ()  # constructor arguments after the message, by attribute name

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args[0] if self.args else "", {f: getattr(self, f) for f in self._fields})


def _rebuild(cls: type[HeadraceError], message: str, fields: dict[str, Any]) -> HeadraceError:
    return cls(message, **fields)


class ConfigError(HeadraceError):
    """An option is unknown, out of range, or contradicts another one."""


class SerializationError(HeadraceError):
    """A key or value is of a type, or has a value, that its serializer cannot take."""

    _fields = ("serializer", "topic", "value_type")

    def __init__(self, message: str, *, topic: str, serializer: str, value_type: str) -> None:
        super().__init__(message)
        self.topic = topic
        self.serializer = serializer
        self.value_type = value_type


class WireError(HeadraceError):
    """Bytes from a peer or a file that are not what the protocol says."""


class MalformedError(WireError):
    """Bytes that cannot be decoded. `offset` counts from the start of the buffer that was decoded."""

    _fields = ("offset",)

    def __init__(self, message: str, *, offset: int) -> None:
        super().__init__(message)
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.args[0]} (at offset {self.offset})"


class CorruptBatchError(WireError):
    """A record batch whose checksum, size or count contradicts its contents."""


class DecompressedSizeError(CorruptBatchError):
    """Compressed bytes that come to more than the reader allows."""


class UnsupportedVersionError(HeadraceError):
    """A message that cannot be expressed in the version at hand."""


class NotFoundError(HeadraceError):
    """What was asked for is not there: a topic, a group, a transaction."""


class AuthenticationError(HeadraceError):
    """Who we say we are, or who the broker says it is, was not accepted. Trying again changes nothing."""


class TlsError(AuthenticationError):
    """A TLS handshake failed: a certificate, a host name, or a protocol."""


class ConnectionFailedError(HeadraceError):
    """A connection could not be made, or broke; what it carried is tried again elsewhere or later."""


class ClosedError(HeadraceError):
    """Used after `close`."""


class IllegalStateError(HeadraceError):
    """A call that does not fit the state of things."""


class TimedOutError(HeadraceError, TimeoutError):
    """Waited as long as was allowed."""


class BufferExhaustedError(TimedOutError):
    """The buffer stayed full for all of max.block.ms."""


class RecordTooLargeError(HeadraceError):
    """A record that is larger than a request, or the whole buffer, may be."""


class IoThreadError(HeadraceError):
    """The producer's I/O thread has died; `__cause__` is what it died of. Close the producer and make a new one."""


class TransactionError(HeadraceError):
    """What became of a transaction."""


class AbortableError(TransactionError):
    """The transaction has to be aborted; after that the producer goes on."""


class FatalTransactionError(TransactionError):
    """The producer can do no more: close it."""


class BrokerError(HeadraceError):
    """A broker answered with an error code. Unknown codes keep their number."""

    _fields = ("code",)

    def __init__(self, message: str = "", *, code: int) -> None:
        super().__init__(message)
        self.code = code

    @property
    def name(self) -> str:
        return error_name(self.code)

    @property
    def retriable(self) -> bool:
        known = ERROR_CODES.get(self.code)
        return known is not None and known.retriable

    def __str__(self) -> str:
        return f"{self.name} ({self.code}): {self.args[0]}" if self.args[0] else f"{self.name} ({self.code})"


API_ERRORS = (AuthenticationError, BrokerError, RecordTooLargeError, TimedOutError, UnsupportedVersionError)
"""Kafka's ApiException. A `send` that meets one returns a future that has failed with it; all else is raised."""


class ErrorCode(NamedTuple):
    """A row of Kafka's table of error codes."""

    code: int
    name: str
    retriable: bool


def error_name(code: int) -> str:
    """The name of an error code; codes we have never heard of stay numbers."""
    known = ERROR_CODES.get(code)
    return known.name if known else f"ERROR_{code}"


class Code(IntEnum):
    """Kafka's error codes, read off Apache Kafka 4.3.

    Sharing, streams and tiered storage are listed so that a log line can name what a broker said, although nothing
    here asks for them.
    """

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


_RETRIABLE = frozenset(
    {
        Code.CORRUPT_MESSAGE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.REPLICA_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.NOT_CONTROLLER,
        Code.CONCURRENT_TRANSACTIONS,
        Code.KAFKA_STORAGE_ERROR,
        Code.FETCH_SESSION_ID_NOT_FOUND,
        Code.INVALID_FETCH_SESSION_EPOCH,
        Code.LISTENER_NOT_FOUND,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.PREFERRED_LEADER_NOT_AVAILABLE,
        Code.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        Code.ELECTION_NOT_NEEDED,
        Code.UNSTABLE_OFFSET_COMMIT,
        Code.THROTTLING_QUOTA_EXCEEDED,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
        Code.FETCH_SESSION_TOPIC_ID_ERROR,
        Code.SHARE_SESSION_NOT_FOUND,
        Code.INVALID_SHARE_SESSION_EPOCH,
        Code.SHARE_SESSION_LIMIT_REACHED,
    }
)
ERROR_CODES: dict[int, ErrorCode] = {code.value: ErrorCode(code.value, code.name, code in _RETRIABLE) for code in Code}
