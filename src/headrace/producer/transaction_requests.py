"""Requests to coordinators, one class each, and the handling of their responses.

An error belongs to one of these categories:

    coordinator moved   find the coordinator, then retry
    retriable           retry after a back-off
    abortable           the transaction must be aborted; the producer can continue
    fatal               the producer cannot continue: fenced, not authorized, or in an unknown state
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from headrace.client.addresses import Endpoint
from headrace.client.concurrency import OneShotEvent
from headrace.client.connection import Response
from headrace.errors import ERROR_CODES, BrokerError, Code, ConnectionFailedError, HeadraceError, TimedOutError
from headrace.producer.records import Offset
from headrace.producer.sequences import TopicPartition
from headrace.types import GroupMetadata, OffsetAndMetadata, ProducerIdAndEpoch
from headrace.wire.api.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from headrace.wire.api.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.wire.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.wire.schema import Message, RequestMessage

if TYPE_CHECKING:
    from headrace.producer.transactions import TransactionManager


class PendingResult:
    """The result of an operation. Set once, by the I/O thread; any thread may wait."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self._event = OneShotEvent()
        self._error: Exception | None = None  # Written before _event is set.
        self.acknowledged = False
        """True once a caller has seen the result. Until then, the operation is pending for the application.

        A signal handler that raises (Ctrl-C) just before keeps it False: repeating the call returns the result.
        """

    @property
    def is_done(self) -> bool:
        return self._event.is_set()

    def succeed(self) -> None:
        self._event.set()

    def fail(self, error: Exception) -> None:
        if not self._event.is_set():
            self._error = error
            self._event.set()

    def wait(self, timeout_ms: float) -> None:
        """Wait for the result and acknowledge it."""
        self.wait_unacknowledged(timeout_ms)
        self.acknowledged = True

    def wait_unacknowledged(self, timeout_ms: float) -> None:
        """Wait, for a caller that sets `acknowledged` itself as the last thing before it returns."""
        if not self._event.wait(timeout_ms / 1000):
            raise TimedOutError(
                f"{self.operation} timed out after {timeout_ms / 1000:g} s (max.block.ms); call it again to wait"
            )
        if self._error is not None:
            self.acknowledged = True
            raise self._error


Coordinator = tuple[str, str]
"""Kind and key: ("transaction", transactional id) or ("group", group id)."""
COORDINATOR_MOVED = frozenset({Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
CONCURRENT_RETRY_MS = 20.0  # The previous transaction is completing, which is quick.

R = TypeVar("R", bound=Message)

FIND_COORDINATOR_PRIORITY, INIT_PRIORITY, ADD_PRIORITY, END_PRIORITY, BUMP_PRIORITY = range(5)


def is_retriable(code: int) -> bool:
    return code in ERROR_CODES and ERROR_CODES[code].retriable


class TransactionRequest(Generic[R]):
    """A request to a coordinator, with a response of type R. It is queued again until it has a result."""

    api_key: ClassVar[int]
    versions: ClassVar[tuple[int, int]]
    priority: int
    abortable: ClassVar[frozenset[int]] = frozenset({Code.TRANSACTION_ABORTABLE})
    """Errors after which the transaction can be aborted. Other errors that are not retriable are fatal."""

    def __init__(self, manager: TransactionManager, result: PendingResult | None) -> None:
        self.manager = manager
        self.result = result
        self.retry_at_ms = 0.0
        self.attempts = 0
        # Of the response that is being handled.
        self._now = 0.0
        self._backoff_ms: Callable[[int], float] = float

    @property
    def coordinator(self) -> Coordinator | None:
        """The kind and key of the coordinator; None: any broker."""
        return "transaction", self.manager.transactional_id or ""

    @property
    def allowed_versions(self) -> tuple[int, int]:
        return self.versions

    def build(self, version: int) -> RequestMessage[R]:
        raise NotImplementedError

    def handle(self, response: R) -> None:
        """Handle a response."""
        raise NotImplementedError

    # -- results -------------------------------------------------------------------------------

    def on_response(self, response: Response[R], now: float, backoff_ms: Callable[[int], float]) -> None:
        """Called once for every attempt, on the I/O thread."""
        self._now, self._backoff_ms = now, backoff_ms
        manager = self.manager
        with manager.lock:
            manager.request_in_flight = None
            if isinstance(response.error, ConnectionFailedError):
                self.find_again()
                self.retry()
            elif response.error is not None:
                self.fail_fatally(response.error)
            else:
                assert response.message is not None  # there is no error
                try:
                    self.handle(response.message)
                except Exception as error:
                    # The result must be set, or its caller waits for ever.
                    self.fail_fatally(HeadraceError(f"{type(self).__name__}: invalid response: {error}"))
                    raise

    def find_again(self) -> None:
        """Discard the coordinator, which may have moved."""
        if self.coordinator is not None:
            self.manager.coordinators.pop(self.coordinator, None)

    def retry(self, pause_ms: float | None = None) -> None:
        self.postpone(self._now, self._backoff_ms(self.attempts + 1) if pause_ms is None else pause_ms)

    def postpone(self, now: float, pause_ms: float) -> None:
        """Queue the request again, for later."""
        self.attempts += 1
        self.retry_at_ms = now + pause_ms
        self.manager.enqueue(self)

    def check(self, code: int, what: str) -> bool:
        """Handle an error code; True if there was no error."""
        if code == 0:
            return True
        if code in COORDINATOR_MOVED:
            self.find_again()
            self.retry()
        elif is_retriable(code):
            self.retry(self.pause_ms(code))
        elif code in (
            Code.INVALID_PRODUCER_EPOCH,
            Code.PRODUCER_FENCED,
        ):  # KIP-588: old coordinators return the first
            self.fail_fatally(BrokerError(what, code=Code.PRODUCER_FENCED))
        elif code in self.abortable:
            self.fail_abortable(BrokerError(what, code=code))
        else:
            self.fail_fatally(BrokerError(what, code=code))
        return False

    def pause_ms(self, code: int) -> float | None:
        """Return the pause after a retriable error; None: the usual back-off."""
        return None

    def fail_abortable(self, error: BrokerError) -> None:
        manager = self.manager
        if error.code == Code.UNKNOWN_PRODUCER_ID:
            # The coordinator has lost the producer id: after the abort, a new epoch recovers (KIP-360).
            if not manager.can_bump_epoch:
                self.fail_fatally(error)
                return
            manager.epoch_bump_required = True
        manager.fail_abortable(error)
        self.give_up(manager.last_error or error)

    def fail_fatally(self, error: HeadraceError) -> None:
        self.manager.fail_fatally(error)
        self.give_up(self.manager.last_error or error)

    def give_up(self, error: Exception) -> None:
        if self.result is not None:
            self.result.fail(error)

    def succeed(self) -> None:
        if self.result is not None:
            self.result.succeed()


QueuedRequest: TypeAlias = TransactionRequest[Any]
"""A request of any kind."""


class FindCoordinator(TransactionRequest[FindCoordinatorResponse]):
    api_key = FindCoordinatorRequest.api_key
    versions = (1, 6)
    priority = FIND_COORDINATOR_PRIORITY
    abortable = frozenset({Code.GROUP_AUTHORIZATION_FAILED, Code.TRANSACTION_ABORTABLE})

    def __init__(
        self, manager: TransactionManager, key: Coordinator, set_node: Callable[[int, Endpoint], None]
    ) -> None:
        super().__init__(manager, None)
        self._key = key
        self._set_node = set_node

    @property
    def coordinator(self) -> None:
        return None

    def build(self, version: int) -> FindCoordinatorRequest:
        kind, key = self._key
        key_type = 1 if kind == "transaction" else 0
        if version >= 4:
            return FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))
        return FindCoordinatorRequest(key=key, key_type=key_type)

    def handle(self, response: FindCoordinatorResponse) -> None:
        kind, key = self._key
        node = response.coordinators[0] if response.coordinators else response
        if self.check(node.error_code, f"finding the {kind} coordinator of {key!r}"):
            self._set_node(node.node_id, Endpoint(node.host, node.port))
            self.manager.coordinators[self._key] = node.node_id


class InitProducerId(TransactionRequest[InitProducerIdResponse]):
    """Get a producer id, or a new epoch for `current`. With a transactional id, it fences the previous producer."""

    api_key = InitProducerIdRequest.api_key
    versions = (0, 5)

    def __init__(self, manager: TransactionManager, current: ProducerIdAndEpoch, result: PendingResult | None) -> None:
        super().__init__(manager, result)
        self._current = current
        self.priority = BUMP_PRIORITY if current.is_valid else INIT_PRIORITY

    @property
    def coordinator(self) -> Coordinator | None:
        return super().coordinator if self.manager.is_transactional else None

    @property
    def allowed_versions(self) -> tuple[int, int]:
        return (3, 5) if self._current.is_valid else self.versions  # a bump needs v3

    def build(self, version: int) -> InitProducerIdRequest:
        self.manager.can_bump_epoch = version >= 3
        request = InitProducerIdRequest(
            transactional_id=self.manager.transactional_id,
            transaction_timeout_ms=self.manager.transaction_timeout_ms if self.manager.is_transactional else 0x7FFFFFFF,
        )
        if self._current.is_valid:
            request = request.replace(producer_id=self._current.producer_id, producer_epoch=self._current.epoch)
        return request

    def handle(self, response: InitProducerIdResponse) -> None:
        what = "getting a producer id"
        if response.error_code in (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED):
            error = BrokerError(what, code=response.error_code)
            self.manager.refuse_producer_id(error)
            self.give_up(error)
        elif self.check(response.error_code, what):
            self.manager.take_producer_id(ProducerIdAndEpoch(response.producer_id, response.producer_epoch))
            self.succeed()


class AddPartitions(TransactionRequest[AddPartitionsToTxnResponse]):
    """Add new partitions to the transaction, all in one request."""

    api_key = AddPartitionsToTxnRequest.api_key
    versions = (0, 3)  # v4 and up is for brokers
    priority = ADD_PRIORITY
    abortable = frozenset({Code.UNKNOWN_PRODUCER_ID, Code.TRANSACTION_ABORTABLE})
    decides_for_all: ClassVar[frozenset[int]] = abortable | {
        Code.INVALID_PRODUCER_EPOCH,
        Code.INVALID_TXN_STATE,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Code.PRODUCER_FENCED,
    }

    def __init__(self, manager: TransactionManager, partitions: frozenset[TopicPartition]) -> None:
        super().__init__(manager, None)
        self.partitions = partitions

    def build(self, version: int) -> AddPartitionsToTxnRequest:
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(self.partitions):
            topics[topic].append(partition)
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.manager.transactional_id or "",
            v3_and_below_producer_id=self.manager.producer.producer_id,
            v3_and_below_producer_epoch=self.manager.producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()
            ],
        )

    def handle(self, response: AddPartitionsToTxnResponse) -> None:
        refused: dict[str, int] = {}
        for topic in response.results_by_topic_v3_and_below:
            for partition in topic.results_by_partition:
                code, name = partition.partition_error_code, f"{topic.name}-{partition.partition_index}"
                if code in self.decides_for_all or is_retriable(code):
                    self.check(code, f"adding {name} to the transaction")
                    return
                if code:
                    refused[name] = code
        if not refused:
            self.manager.partitions_added(self.partitions)
            return
        self.manager.partitions_refused(self.partitions)
        # Partitions that were not attempted because of another one do not give the reason.
        codes = set(refused.values())
        code = Code.TOPIC_AUTHORIZATION_FAILED if Code.TOPIC_AUTHORIZATION_FAILED in codes else max(codes)
        self.fail_abortable(BrokerError(f"adding {', '.join(sorted(refused))} to the transaction", code=code))

    def pause_ms(self, code: int) -> float | None:
        # For the first partitions only: the previous transaction is still completing.
        if code == Code.CONCURRENT_TRANSACTIONS and not self.manager.partitions:
            return min(CONCURRENT_RETRY_MS, self._backoff_ms(1))
        return None


class _OffsetsRequest(TransactionRequest[R]):
    """A request about offsets of a group."""

    priority = ADD_PRIORITY

    def __init__(
        self,
        manager: TransactionManager,
        offsets: dict[TopicPartition, Offset],
        group: GroupMetadata,
        result: PendingResult | None,
    ) -> None:
        super().__init__(manager, result)
        self._offsets = offsets  # not committed yet
        self.group = group


class AddOffsets(_OffsetsRequest[AddOffsetsToTxnResponse]):
    """Add a group's offsets to the transaction. CommitOffsets follows."""

    api_key = AddOffsetsToTxnRequest.api_key
    versions = (0, 4)
    abortable = frozenset({Code.GROUP_AUTHORIZATION_FAILED, Code.UNKNOWN_PRODUCER_ID, Code.TRANSACTION_ABORTABLE})

    def build(self, version: int) -> AddOffsetsToTxnRequest:
        return AddOffsetsToTxnRequest(
            transactional_id=self.manager.transactional_id or "",
            producer_id=self.manager.producer.producer_id,
            producer_epoch=self.manager.producer.epoch,
            group_id=self.group.group_id,
        )

    def handle(self, response: AddOffsetsToTxnResponse) -> None:
        if self.check(response.error_code, f"adding the offsets of group {self.group.group_id!r}"):
            self.manager.transaction_started = True
            self.manager.enqueue(CommitOffsets(self.manager, self._offsets, self.group, self.result))


class CommitOffsets(_OffsetsRequest[TxnOffsetCommitResponse]):
    """Commit offsets with the transaction, at the group's coordinator."""

    api_key = TxnOffsetCommitRequest.api_key
    abortable = frozenset(
        {
            Code.ILLEGAL_GENERATION,
            Code.UNKNOWN_MEMBER_ID,
            Code.FENCED_INSTANCE_ID,
            Code.GROUP_AUTHORIZATION_FAILED,
            Code.TRANSACTION_ABORTABLE,
        }
    )

    @property
    def coordinator(self) -> Coordinator:
        return "group", self.group.group_id

    @property
    def allowed_versions(self) -> tuple[int, int]:
        # From v5 on, the broker adds the group to the transaction (transactions v2).
        if self.manager.v2_enabled:
            return (5, 5)
        return (3, 4) if self.group.generation_id >= 0 or self.group.member_id else (0, 4)

    def build(self, version: int) -> TxnOffsetCommitRequest:
        topics: defaultdict[str, list[TxnOffsetCommitRequestPartition]] = defaultdict(list)
        for (topic, partition), value in self._offsets.items():
            committed = OffsetAndMetadata(*value) if isinstance(value, tuple) else OffsetAndMetadata(value)
            topics[topic].append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.manager.transactional_id or "",
            group_id=self.group.group_id,
            producer_id=self.manager.producer.producer_id,
            producer_epoch=self.manager.producer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )
        if version >= 3:
            request = request.replace(
                generation_id=self.group.generation_id,
                member_id=self.group.member_id,
                group_instance_id=self.group.group_instance_id,
            )
        return request

    def handle(self, response: TxnOffsetCommitResponse) -> None:
        for topic in response.topics:
            for partition in topic.partitions:
                key, code = (topic.name, partition.partition_index), partition.error_code
                if code == Code.NONE:
                    self._offsets.pop(key, None)
                elif code in COORDINATOR_MOVED or code == Code.REQUEST_TIMED_OUT:
                    self.find_again()
                elif not is_retriable(code):
                    self.check(code, f"committing {key[0]}-{key[1]} for group {self.group.group_id!r}")
                    return
        if self._offsets:
            self.retry()
        else:
            self.succeed()


class EndTransaction(TransactionRequest[EndTxnResponse]):
    api_key = EndTxnRequest.api_key
    priority = END_PRIORITY
    abortable = frozenset({Code.UNKNOWN_PRODUCER_ID, Code.TRANSACTION_ABORTABLE})

    def __init__(self, manager: TransactionManager, committed: bool, result: PendingResult) -> None:
        super().__init__(manager, result)
        self.committed = committed

    @property
    def allowed_versions(self) -> tuple[int, int]:
        # From v5 on, the response has a new epoch (transactions v2).
        return (0, 5) if self.manager.v2_enabled else (0, 4)

    def build(self, version: int) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.manager.transactional_id or "",
            producer_id=self.manager.producer.producer_id,
            producer_epoch=self.manager.producer.epoch,
            committed=self.committed,
        )

    def handle(self, response: EndTxnResponse) -> None:
        if self.check(response.error_code, "committing" if self.committed else "aborting"):
            # Before v5 the response has no epoch (-1).
            self.manager.end(ProducerIdAndEpoch(response.producer_id, response.producer_epoch), self.result)

    def fail_abortable(self, error: BrokerError) -> None:
        manager = self.manager
        if self.committed:
            super().fail_abortable(error)
        elif manager.can_bump_epoch:
            # The abort is impossible; InitProducerId for a new epoch ends the open transaction.
            manager.epoch_bump_required = True
            manager.end(None, self.result)
        else:
            self.fail_fatally(error)
