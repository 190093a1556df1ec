"""All errors of headrace, as one tree.

::

    HeadraceError
    ├── RetriableError                  temporary: the same call may succeed later
    ├── AbortableError                  the transaction must be aborted; then the producer can continue
    ├── FatalError                      the producer or consumer cannot continue: close it
    ├── ConfigError                     an option is unknown, out of range, or contradicts another one
    ├── SerializationError              a serializer does not accept a key or value
    ├── DeserializationError            a deserializer does not accept the bytes of a key or value
    ├── WireError                       bytes that violate the protocol
    │   ├── MalformedError              bytes that cannot be decoded
    │   └── CorruptBatchError           a batch whose checksum or count is wrong
    │       └── DecompressedSizeError   decompressed data beyond the limit
    ├── UnsupportedVersionError         a message that a protocol version cannot express
    ├── NotFoundError                   a topic, group or transaction that does not exist
    ├── AuthenticationError             authentication failed; retrying does not help
    │   └── TlsError                    the TLS handshake failed
    ├── ConnectionFailedError           a connection could not be established, or broke
    ├── ClosedError                     used after close()
    ├── IllegalStateError               a call that the current state does not allow
    ├── TimedOutError                   a wait timed out (also a TimeoutError)
    │   └── BufferExhaustedError        buffer.memory was full for max.block.ms
    ├── RecordTooLargeError             a record larger than max.request.size or buffer.memory
    ├── IoThreadError                   the I/O thread of a producer or consumer died
    ├── WakeupError                     `wakeup()` interrupted a consumer's call
    ├── NoOffsetError                   a partition without a committed offset, and auto.offset.reset=none
    ├── LogTruncationError              records that were read are not in the log any more (auto.offset.reset=none)
    ├── CommitFailedError               the group has assigned the partitions to another member
    ├── SchemaError                     a schema, or data that do not fit their schema
    │   ├── SchemaFramingError          a value without a valid schema id
    │   └── RegistryError               the schema registry returned an error (`error.status`, `error.code`)
    │       ├── SchemaNotFoundError     it has no such id, GUID or version
    │       │   ├── SubjectNotFoundError    … or no such subject
    │       │   └── SchemaDeletedError      … because it was deleted
    │       ├── IncompatibleSchemaError the schema is not compatible with earlier versions
    │       ├── InvalidSchemaError      the registry cannot parse the schema
    │       ├── RegistryAuthenticationError     401 (AuthenticationError)
    │       ├── RegistryAuthorizationError      403
    │       ├── RegistryUnavailableError        no response, or 5xx (RetriableError)
    │       └── RegistryProtocolError   a response that is not a schema registry's
    └── BrokerError                     a broker returned an error code (`error.code`)
        ├── RetriableBrokerError        any retriable code without a class of its own (RetriableError)
        ├── UnknownTopicOrPartitionError, NotLeaderOrFollowerError, NotEnoughReplicasError,
        │   NotEnoughReplicasAfterAppendError, ConcurrentTransactionsError (RetriableError)
        ├── InvalidTopicError, TopicExistsError, InvalidConfigError, InvalidRecordError,
        │   InvalidTimestampError, PolicyViolationError, MessageTooLargeError
        ├── AuthorizationError          an ACL denies the operation
        │   ├── TopicAuthorizationError, GroupAuthorizationError, ClusterAuthorizationError
        │   └── TransactionalIdAuthorizationError (FatalError)
        ├── ProducerFencedError         a newer producer uses the transactional.id (FatalError)
        ├── InvalidProducerEpochError   an older epoch than the partition's (AbortableError)
        ├── OutOfOrderSequenceError     a gap in a producer's sequence numbers (AbortableError)
        ├── TransactionAbortableError   the transaction must be aborted (KIP-890) (AbortableError)
        ├── InvalidTxnStateError, InvalidPidMappingError, TransactionTimeoutError (FatalError)
        ├── UnknownProducerIdError      the broker has no state of the producer id
        ├── OffsetOutOfRangeError       the log does not have the offset
        ├── RebalanceInProgressError    the group rebalances: poll, then repeat the call
        ├── UnknownMemberIdError, IllegalGenerationError, FencedMemberEpochError, StaleMemberEpochError
        │                               the group has removed the member, or has rebalanced without it
        ├── FencedInstanceIdError       another consumer uses the group.instance.id (FatalError)
        └── InconsistentGroupProtocolError, UnsupportedAssignorError, InvalidGroupIdError,
            InvalidSessionTimeoutError, GroupMaxSizeReachedError, UnreleasedInstanceIdError,
            InvalidRegularExpressionError (FatalError)

`BrokerError(message, code=...)` makes an instance of the class of that code, so that callers can catch it by name.

All errors survive pickling with their attributes, because Spark carries them from executors to the driver. `_fields`
is for that: `__reduce__` rebuilds an error from its constructor's arguments.
"""

from __future__ import annotations

from typing import Any, ClassVar

from headrace.error_codes import ERROR_CODES as ERROR_CODES
from headrace.error_codes import RETRIABLE_CODES
from headrace.error_codes import Code as Code
from headrace.error_codes import ErrorCode as ErrorCode
from headrace.error_codes import error_name as error_name


class HeadraceError(Exception):
    """The base class of all errors of headrace."""

    _fields: tuple[str, ...] = ()  # constructor arguments after the message, by attribute name

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args[0] if self.args else "", {f: getattr(self, f) for f in self._fields})


def _rebuild(cls: type[HeadraceError], message: str, fields: dict[str, Any]) -> HeadraceError:
    return cls(message, **fields)


class RetriableError(HeadraceError):
    """Temporary: the same call may succeed later."""


class AbortableError(HeadraceError):
    """The transaction must be aborted; after that the producer can continue."""


class FatalError(HeadraceError):
    """The producer or consumer cannot continue: close it."""


class ConfigError(HeadraceError):
    """An option is unknown, out of range, or contradicts another one."""


class SerializationError(HeadraceError):
    """A serializer does not accept the type or the value of a key or value."""

    _fields = ("serializer", "topic", "value_type")

    def __init__(self, message: str, *, topic: str, serializer: str, value_type: str) -> None:
        super().__init__(message)
        self.topic = topic
        self.serializer = serializer
        self.value_type = value_type


class DeserializationError(HeadraceError):
    """A deserializer does not accept the bytes of a key or value: see `partition` and `offset`.

    The position of the partition is that of the record: seek to the next one to skip it.
    """

    _fields = ("deserializer", "topic", "partition", "offset")

    def __init__(self, message: str, *, topic: str, partition: int, offset: int, deserializer: str) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.deserializer = deserializer


class WireError(HeadraceError):
    """Bytes from a peer or a file that violate the protocol."""


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
    """Decompressed data that is larger than the reader allows."""


class UnsupportedVersionError(HeadraceError):
    """A message that this version of the protocol cannot express."""


class NotFoundError(HeadraceError):
    """A topic, group or transaction that does not exist."""


class AuthenticationError(HeadraceError):
    """Authentication of the client or of the broker failed. Retrying does not help."""


class TlsError(AuthenticationError):
    """A TLS handshake failed: a certificate, a host name, or a protocol."""


class ConnectionFailedError(HeadraceError):
    """A connection could not be established, or broke. Its requests are retried on another connection."""


class ClosedError(HeadraceError):
    """Used after `close()`."""


class IllegalStateError(HeadraceError):
    """A call that the current state does not allow."""


class TimedOutError(HeadraceError, TimeoutError):
    """A wait timed out."""


class BufferExhaustedError(TimedOutError):
    """buffer.memory was full for max.block.ms."""


class RecordTooLargeError(HeadraceError):
    """A record that is larger than max.request.size or buffer.memory."""


class IoThreadError(HeadraceError):
    """The I/O thread of a producer or consumer died of `__cause__`. Close the client and create a new one."""


class WakeupError(HeadraceError):
    """`wakeup()` interrupted a call of a consumer."""


class NoOffsetError(HeadraceError):
    """A partition has no committed offset, and auto.offset.reset is none."""


class LogTruncationError(HeadraceError):
    """The log lost records that were read, after an unclean election; auto.offset.reset is none (KIP-320)."""


class CommitFailedError(HeadraceError):
    """Offsets could not be committed: the group has rebalanced, and another member may own the partitions."""


class SchemaError(HeadraceError):
    """A schema that is invalid, or data that do not fit their schema."""


class SchemaFramingError(SchemaError):
    """A value without a valid schema id before its payload."""


class RegistryError(SchemaError):
    """The schema registry returned an error: HTTP status, and the registry's own code (0: none)."""

    _fields = ("status", "code")

    def __init__(self, message: str, *, status: int = 0, code: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class SchemaNotFoundError(RegistryError):
    """The registry has no schema with this id, GUID or version."""


class SubjectNotFoundError(SchemaNotFoundError):
    """The registry has no such subject."""


class SchemaDeletedError(SchemaNotFoundError):
    """The subject or version was deleted."""


class IncompatibleSchemaError(RegistryError):
    """The schema is not compatible with earlier versions; the message has the registry's words."""


class InvalidSchemaError(RegistryError):
    """The registry cannot parse the schema."""


class RegistryAuthenticationError(RegistryError, AuthenticationError):
    """The registry did not accept the credentials (401)."""


class RegistryAuthorizationError(RegistryError):
    """The registry denies the operation (403)."""


class RegistryUnavailableError(RegistryError, RetriableError):
    """No schema registry responded in time, or it returned a server error (5xx)."""


class RegistryProtocolError(RegistryError):
    """A response that is not a schema registry's: not JSON, a redirect, or too large."""


class BrokerError(HeadraceError):
    """A broker returned an error code. Unknown codes keep their number.

    The constructor returns an instance of the subclass of the code, if there is one.
    """

    _fields = ("code",)
    _by_code: ClassVar[dict[int, type[BrokerError]]] = {}

    def __init_subclass__(cls, *, code: Code | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if code is not None:
            BrokerError._by_code[code] = cls

    def __new__(cls, message: str = "", *, code: int) -> BrokerError:
        if cls is BrokerError:
            other = RetriableBrokerError if code in RETRIABLE_CODES else BrokerError
            return super().__new__(BrokerError._by_code.get(code, other))
        return super().__new__(cls)

    def __init__(self, message: str = "", *, code: int) -> None:
        super().__init__(message)
        self.code = code

    @property
    def name(self) -> str:
        return error_name(self.code)

    @property
    def retriable(self) -> bool:
        return self.code in RETRIABLE_CODES

    def __str__(self) -> str:
        return f"{self.name} ({self.code}): {self.args[0]}" if self.args[0] else f"{self.name} ({self.code})"


API_ERRORS = (AuthenticationError, BrokerError, RecordTooLargeError, TimedOutError, UnsupportedVersionError)
"""Kafka's ApiException: `send` returns a future that has failed with such an error, and raises all others."""


class RetriableBrokerError(BrokerError, RetriableError):
    """A retriable error code without a class of its own."""


class UnknownTopicOrPartitionError(BrokerError, RetriableError, code=Code.UNKNOWN_TOPIC_OR_PARTITION):
    """The broker does not have the topic or partition."""


class NotLeaderOrFollowerError(BrokerError, RetriableError, code=Code.NOT_LEADER_OR_FOLLOWER):
    """The broker is not the leader of the partition."""


class NotEnoughReplicasError(BrokerError, RetriableError, code=Code.NOT_ENOUGH_REPLICAS):
    """Fewer in-sync replicas than min.insync.replicas; nothing was written."""


class NotEnoughReplicasAfterAppendError(BrokerError, RetriableError, code=Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
    """Written, but to fewer in-sync replicas than min.insync.replicas."""


class ConcurrentTransactionsError(BrokerError, RetriableError, code=Code.CONCURRENT_TRANSACTIONS):
    """The previous transaction of the transactional.id is still being completed."""


class MessageTooLargeError(BrokerError, code=Code.MESSAGE_TOO_LARGE):
    """A batch that is larger than max.message.bytes of the topic."""


class InvalidTopicError(BrokerError, code=Code.INVALID_TOPIC_EXCEPTION):
    """An invalid topic name, or an operation that an internal topic does not allow."""


class TopicExistsError(BrokerError, code=Code.TOPIC_ALREADY_EXISTS):
    """The topic exists already."""


class InvalidConfigError(BrokerError, code=Code.INVALID_CONFIG):
    """An invalid configuration of a topic, broker or group."""


class InvalidTimestampError(BrokerError, code=Code.INVALID_TIMESTAMP):
    """A timestamp that the topic's limits do not allow."""


class InvalidRecordError(BrokerError, code=Code.INVALID_RECORD):
    """A record that the topic does not accept, such as one without a key in a compacted topic."""


class PolicyViolationError(BrokerError, code=Code.POLICY_VIOLATION):
    """A policy of the cluster denies the request."""


class AuthorizationError(BrokerError):
    """An ACL denies the operation."""

    _remedy: ClassVar[str] = "allow the operation with an ACL"

    def __str__(self) -> str:
        # Brokers that explain themselves name the principal and the operation.
        explains = "not authorized" in self.args[0]
        return super().__str__() if explains else f"{super().__str__()}; not authorized: {self._remedy}"


class TopicAuthorizationError(AuthorizationError, code=Code.TOPIC_AUTHORIZATION_FAILED):
    """No permission for the topic."""

    _remedy = "allow Describe on the topic, and Write to send or Read to consume"


class GroupAuthorizationError(AuthorizationError, code=Code.GROUP_AUTHORIZATION_FAILED):
    """No permission for the consumer group."""

    _remedy = "allow Read on the group"


class ClusterAuthorizationError(AuthorizationError, code=Code.CLUSTER_AUTHORIZATION_FAILED):
    """No permission for the cluster."""

    _remedy = "allow the operation on the cluster: IdempotentWrite to send, else Describe, Create or Alter"


class TransactionalIdAuthorizationError(
    AuthorizationError, FatalError, code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
):
    """No permission for the transactional.id."""

    _remedy = "allow Describe and Write on the transactional id"


class ProducerFencedError(BrokerError, FatalError, code=Code.PRODUCER_FENCED):
    """A newer producer with the same transactional.id has fenced this one."""


class InvalidProducerEpochError(BrokerError, AbortableError, code=Code.INVALID_PRODUCER_EPOCH):
    """The producer's epoch is older than the one that the partition knows."""


class OutOfOrderSequenceError(BrokerError, AbortableError, code=Code.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """A batch whose sequence number does not follow the last one of its producer."""


class TransactionAbortableError(BrokerError, AbortableError, code=Code.TRANSACTION_ABORTABLE):
    """The broker requires that the transaction is aborted (KIP-890)."""


class InvalidTxnStateError(BrokerError, FatalError, code=Code.INVALID_TXN_STATE):
    """A request that the state of the transaction does not allow."""


class InvalidPidMappingError(BrokerError, FatalError, code=Code.INVALID_PRODUCER_ID_MAPPING):
    """The coordinator has another producer id for the transactional.id, or none: it may have expired."""


class TransactionTimeoutError(BrokerError, FatalError, code=Code.INVALID_TRANSACTION_TIMEOUT):
    """transaction.timeout.ms is above the broker's transaction.max.timeout.ms."""


class UnknownProducerIdError(BrokerError, code=Code.UNKNOWN_PRODUCER_ID):
    """The partition has no state of the producer id."""


class OffsetOutOfRangeError(BrokerError, code=Code.OFFSET_OUT_OF_RANGE):
    """The log does not have the offset."""


class RebalanceInProgressError(BrokerError, code=Code.REBALANCE_IN_PROGRESS):
    """The group rebalances: call `poll`, then repeat the call."""


class UnknownMemberIdError(BrokerError, code=Code.UNKNOWN_MEMBER_ID):
    """The group does not have the member: its session has expired, or it has left."""


class IllegalGenerationError(BrokerError, code=Code.ILLEGAL_GENERATION):
    """The group has rebalanced without the member."""


class FencedMemberEpochError(BrokerError, code=Code.FENCED_MEMBER_EPOCH):
    """The coordinator has fenced the member (KIP-848)."""


class StaleMemberEpochError(BrokerError, code=Code.STALE_MEMBER_EPOCH):
    """The epoch of the member is not the current one (KIP-848)."""


class FencedInstanceIdError(BrokerError, FatalError, code=Code.FENCED_INSTANCE_ID):
    """Another consumer uses the same group.instance.id."""


class UnreleasedInstanceIdError(BrokerError, FatalError, code=Code.UNRELEASED_INSTANCE_ID):
    """The group.instance.id is in use by another member (KIP-848)."""


class InconsistentGroupProtocolError(BrokerError, FatalError, code=Code.INCONSISTENT_GROUP_PROTOCOL):
    """The members of the group have no assignor in common, or the group is of another type."""


class UnsupportedAssignorError(BrokerError, FatalError, code=Code.UNSUPPORTED_ASSIGNOR):
    """The broker does not have the assignor of group.remote.assignor."""


class InvalidGroupIdError(BrokerError, FatalError, code=Code.INVALID_GROUP_ID):
    """The broker does not accept the group.id."""


class InvalidSessionTimeoutError(BrokerError, FatalError, code=Code.INVALID_SESSION_TIMEOUT):
    """session.timeout.ms is outside the range of the broker."""


class GroupMaxSizeReachedError(BrokerError, FatalError, code=Code.GROUP_MAX_SIZE_REACHED):
    """The group has as many members as the broker allows."""


class InvalidRegularExpressionError(BrokerError, FatalError, code=Code.INVALID_REGULAR_EXPRESSION):
    """The broker cannot match the pattern of a subscription (KIP-848)."""
