"""Every error headrace raises, as one tree.

::

    HeadraceError
    ├── ConfigError                 an option, its value and what is allowed
    ├── SerializationError          a key or value that its serializer cannot take
    ├── WireError                   bytes that are not what the protocol says
    │   ├── MalformedError          what was expected, what came, at which offset
    │   └── CorruptBatchError       a checksum or a count that does not hold
    ├── UnsupportedVersionError     a message that this version cannot express
    ├── AuthenticationError         the broker or we refuse to go on: no retry will help
    │   └── TlsError                of the handshake: certificates, names, protocols
    └── BrokerError                 an error code in a response, see `ERROR_CODES`

All of them survive pickling with their attributes, because Spark carries them from
executors to the driver. That is what `_fields` is for: `__reduce__` rebuilds an error from
the arguments its constructor took, not from its text.
"""

from __future__ import annotations

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


class UnsupportedVersionError(HeadraceError):
    """A message that cannot be expressed in the version at hand."""


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


class ErrorCode(NamedTuple):
    """A row of Kafka's table of error codes."""

    code: int
    name: str
    retriable: bool


def error_name(code: int) -> str:
    """The name of an error code; codes we have never heard of stay numbers."""
    known = ERROR_CODES.get(code)
    return known.name if known else f"ERROR_{code}"


# Read off Apache Kafka 4.3. Sharing, streams and tiered storage are listed so that a log line can
# name what a broker said, although nothing here asks for them.
_RETRIABLE = True
_FINAL = False
ERROR_CODES: dict[int, ErrorCode] = {
    code: ErrorCode(code, name, retriable)
    for code, name, retriable in (
        (-1, "UNKNOWN_SERVER_ERROR", _FINAL),
        (0, "NONE", _FINAL),
        (1, "OFFSET_OUT_OF_RANGE", _FINAL),
        (2, "CORRUPT_MESSAGE", _RETRIABLE),
        (3, "UNKNOWN_TOPIC_OR_PARTITION", _RETRIABLE),
        (4, "INVALID_FETCH_SIZE", _FINAL),
        (5, "LEADER_NOT_AVAILABLE", _RETRIABLE),
        (6, "NOT_LEADER_OR_FOLLOWER", _RETRIABLE),
        (7, "REQUEST_TIMED_OUT", _RETRIABLE),
        (8, "BROKER_NOT_AVAILABLE", _FINAL),
        (9, "REPLICA_NOT_AVAILABLE", _RETRIABLE),
        (10, "MESSAGE_TOO_LARGE", _FINAL),
        (11, "STALE_CONTROLLER_EPOCH", _FINAL),
        (12, "OFFSET_METADATA_TOO_LARGE", _FINAL),
        (13, "NETWORK_EXCEPTION", _RETRIABLE),
        (14, "COORDINATOR_LOAD_IN_PROGRESS", _RETRIABLE),
        (15, "COORDINATOR_NOT_AVAILABLE", _RETRIABLE),
        (16, "NOT_COORDINATOR", _RETRIABLE),
        (17, "INVALID_TOPIC_EXCEPTION", _FINAL),
        (18, "RECORD_LIST_TOO_LARGE", _FINAL),
        (19, "NOT_ENOUGH_REPLICAS", _RETRIABLE),
        (20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", _RETRIABLE),
        (21, "INVALID_REQUIRED_ACKS", _FINAL),
        (22, "ILLEGAL_GENERATION", _FINAL),
        (23, "INCONSISTENT_GROUP_PROTOCOL", _FINAL),
        (24, "INVALID_GROUP_ID", _FINAL),
        (25, "UNKNOWN_MEMBER_ID", _FINAL),
        (26, "INVALID_SESSION_TIMEOUT", _FINAL),
        (27, "REBALANCE_IN_PROGRESS", _FINAL),
        (28, "INVALID_COMMIT_OFFSET_SIZE", _FINAL),
        (29, "TOPIC_AUTHORIZATION_FAILED", _FINAL),
        (30, "GROUP_AUTHORIZATION_FAILED", _FINAL),
        (31, "CLUSTER_AUTHORIZATION_FAILED", _FINAL),
        (32, "INVALID_TIMESTAMP", _FINAL),
        (33, "UNSUPPORTED_SASL_MECHANISM", _FINAL),
        (34, "ILLEGAL_SASL_STATE", _FINAL),
        (35, "UNSUPPORTED_VERSION", _FINAL),
        (36, "TOPIC_ALREADY_EXISTS", _FINAL),
        (37, "INVALID_PARTITIONS", _FINAL),
        (38, "INVALID_REPLICATION_FACTOR", _FINAL),
        (39, "INVALID_REPLICA_ASSIGNMENT", _FINAL),
        (40, "INVALID_CONFIG", _FINAL),
        (41, "NOT_CONTROLLER", _RETRIABLE),
        (42, "INVALID_REQUEST", _FINAL),
        (43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", _FINAL),
        (44, "POLICY_VIOLATION", _FINAL),
        (45, "OUT_OF_ORDER_SEQUENCE_NUMBER", _FINAL),
        (46, "DUPLICATE_SEQUENCE_NUMBER", _FINAL),
        (47, "INVALID_PRODUCER_EPOCH", _FINAL),
        (48, "INVALID_TXN_STATE", _FINAL),
        (49, "INVALID_PRODUCER_ID_MAPPING", _FINAL),
        (50, "INVALID_TRANSACTION_TIMEOUT", _FINAL),
        (51, "CONCURRENT_TRANSACTIONS", _RETRIABLE),
        (52, "TRANSACTION_COORDINATOR_FENCED", _FINAL),
        (53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", _FINAL),
        (54, "SECURITY_DISABLED", _FINAL),
        (55, "OPERATION_NOT_ATTEMPTED", _FINAL),
        (56, "KAFKA_STORAGE_ERROR", _RETRIABLE),
        (57, "LOG_DIR_NOT_FOUND", _FINAL),
        (58, "SASL_AUTHENTICATION_FAILED", _FINAL),
        (59, "UNKNOWN_PRODUCER_ID", _FINAL),
        (60, "REASSIGNMENT_IN_PROGRESS", _FINAL),
        (61, "DELEGATION_TOKEN_AUTH_DISABLED", _FINAL),
        (62, "DELEGATION_TOKEN_NOT_FOUND", _FINAL),
        (63, "DELEGATION_TOKEN_OWNER_MISMATCH", _FINAL),
        (64, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", _FINAL),
        (65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED", _FINAL),
        (66, "DELEGATION_TOKEN_EXPIRED", _FINAL),
        (67, "INVALID_PRINCIPAL_TYPE", _FINAL),
        (68, "NON_EMPTY_GROUP", _FINAL),
        (69, "GROUP_ID_NOT_FOUND", _FINAL),
        (70, "FETCH_SESSION_ID_NOT_FOUND", _RETRIABLE),
        (71, "INVALID_FETCH_SESSION_EPOCH", _RETRIABLE),
        (72, "LISTENER_NOT_FOUND", _RETRIABLE),
        (73, "TOPIC_DELETION_DISABLED", _FINAL),
        (74, "FENCED_LEADER_EPOCH", _RETRIABLE),
        (75, "UNKNOWN_LEADER_EPOCH", _RETRIABLE),
        (76, "UNSUPPORTED_COMPRESSION_TYPE", _FINAL),
        (77, "STALE_BROKER_EPOCH", _FINAL),
        (78, "OFFSET_NOT_AVAILABLE", _RETRIABLE),
        (79, "MEMBER_ID_REQUIRED", _FINAL),
        (80, "PREFERRED_LEADER_NOT_AVAILABLE", _RETRIABLE),
        (81, "GROUP_MAX_SIZE_REACHED", _FINAL),
        (82, "FENCED_INSTANCE_ID", _FINAL),
        (83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", _RETRIABLE),
        (84, "ELECTION_NOT_NEEDED", _RETRIABLE),
        (85, "NO_REASSIGNMENT_IN_PROGRESS", _FINAL),
        (86, "GROUP_SUBSCRIBED_TO_TOPIC", _FINAL),
        (87, "INVALID_RECORD", _FINAL),
        (88, "UNSTABLE_OFFSET_COMMIT", _RETRIABLE),
        (89, "THROTTLING_QUOTA_EXCEEDED", _RETRIABLE),
        (90, "PRODUCER_FENCED", _FINAL),
        (91, "RESOURCE_NOT_FOUND", _FINAL),
        (92, "DUPLICATE_RESOURCE", _FINAL),
        (93, "UNACCEPTABLE_CREDENTIAL", _FINAL),
        (94, "INCONSISTENT_VOTER_SET", _FINAL),
        (95, "INVALID_UPDATE_VERSION", _FINAL),
        (96, "FEATURE_UPDATE_FAILED", _FINAL),
        (97, "PRINCIPAL_DESERIALIZATION_FAILURE", _FINAL),
        (98, "SNAPSHOT_NOT_FOUND", _FINAL),
        (99, "POSITION_OUT_OF_RANGE", _FINAL),
        (100, "UNKNOWN_TOPIC_ID", _RETRIABLE),
        (101, "DUPLICATE_BROKER_REGISTRATION", _FINAL),
        (102, "BROKER_ID_NOT_REGISTERED", _FINAL),
        (103, "INCONSISTENT_TOPIC_ID", _RETRIABLE),
        (104, "INCONSISTENT_CLUSTER_ID", _FINAL),
        (105, "TRANSACTIONAL_ID_NOT_FOUND", _FINAL),
        (106, "FETCH_SESSION_TOPIC_ID_ERROR", _RETRIABLE),
        (107, "INELIGIBLE_REPLICA", _FINAL),
        (108, "NEW_LEADER_ELECTED", _FINAL),
        (109, "OFFSET_MOVED_TO_TIERED_STORAGE", _FINAL),
        (110, "FENCED_MEMBER_EPOCH", _FINAL),
        (111, "UNRELEASED_INSTANCE_ID", _FINAL),
        (112, "UNSUPPORTED_ASSIGNOR", _FINAL),
        (113, "STALE_MEMBER_EPOCH", _FINAL),
        (114, "MISMATCHED_ENDPOINT_TYPE", _FINAL),
        (115, "UNSUPPORTED_ENDPOINT_TYPE", _FINAL),
        (116, "UNKNOWN_CONTROLLER_ID", _FINAL),
        (117, "UNKNOWN_SUBSCRIPTION_ID", _FINAL),
        (118, "TELEMETRY_TOO_LARGE", _FINAL),
        (119, "INVALID_REGISTRATION", _FINAL),
        (120, "TRANSACTION_ABORTABLE", _FINAL),
        (121, "INVALID_RECORD_STATE", _FINAL),
        (122, "SHARE_SESSION_NOT_FOUND", _RETRIABLE),
        (123, "INVALID_SHARE_SESSION_EPOCH", _RETRIABLE),
        (124, "FENCED_STATE_EPOCH", _FINAL),
        (125, "INVALID_VOTER_KEY", _FINAL),
        (126, "DUPLICATE_VOTER", _FINAL),
        (127, "VOTER_NOT_FOUND", _FINAL),
        (128, "INVALID_REGULAR_EXPRESSION", _FINAL),
        (129, "REBOOTSTRAP_REQUIRED", _FINAL),
        (130, "STREAMS_INVALID_TOPOLOGY", _FINAL),
        (131, "STREAMS_INVALID_TOPOLOGY_EPOCH", _FINAL),
        (132, "STREAMS_TOPOLOGY_FENCED", _FINAL),
        (133, "SHARE_SESSION_LIMIT_REACHED", _RETRIABLE),
    )
}
