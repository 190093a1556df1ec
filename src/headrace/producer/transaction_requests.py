"""What is asked of a coordinator, and what its answers mean.

One class for each request. An answer is good, or its error belongs to one of these classes:

    coordinator moved   find it again, send again
    retriable           send again after a pause
    abortable           the transaction is lost, the producer is not
    fatal               the producer is lost: fenced, not authorised, or in a state nobody knows
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.client.requests import Response
from headrace.errors import ERROR_CODES, BrokerError, HeadraceError, UnsupportedVersionError
from headrace.producer.sequences import ProducerIdAndEpoch, TopicPartition
from headrace.wire.api.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.wire.api.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from headrace.wire.api.end_txn import EndTxnRequest
from headrace.wire.api.find_coordinator import FindCoordinatorRequest
from headrace.wire.api.init_producer_id import InitProducerIdRequest
from headrace.wire.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.producer.transactions import GroupMetadata, PendingResult, TransactionManager

COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS = 15, 16, 51
COORDINATOR_MOVED = frozenset({COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR})
TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED = 29, 30
OPERATION_NOT_ATTEMPTED = 55
# Abort and go on: a topic or group we may not use, or what the broker says is abortable.
ABORTABLE = frozenset(
    {
        TOPIC_AUTHORIZATION_FAILED,
        GROUP_AUTHORIZATION_FAILED,
        22,  # ILLEGAL_GENERATION: the group moved on without us
        25,  # UNKNOWN_MEMBER_ID
        82,  # FENCED_INSTANCE_ID
        120,  # TRANSACTION_ABORTABLE
    }
)
CONCURRENT_RETRY_MS = 20.0  # the previous transaction is just being ended: that takes a moment, not a backoff

FIND_COORDINATOR_PRIORITY, INIT_PRIORITY, ADD_PRIORITY, END_PRIORITY, BUMP_PRIORITY = range(5)


class TransactionRequest:
    """A request to a coordinator; it stays in the queue until it has an outcome."""

    api_key: ClassVar[int]
    versions: ClassVar[tuple[int, int]]
    priority: int
    coordinator: str | None = "transaction"  # None: any broker will do

    def __init__(self, manager: TransactionManager, result: PendingResult | None) -> None:
        self.manager = manager
        self.result = result
        self.retry_at_ms = 0.0
        self.attempts = 0

    def __lt__(self, other: object) -> bool:  # the heap compares priority and order first; these never tie
        return False

    @property
    def allowed_versions(self) -> tuple[int, int]:
        return self.versions

    def build(self, version: int) -> Message:
        raise NotImplementedError

    def on_answer(self, answer: Any) -> None:
        """Deal with an answer that arrived."""
        raise NotImplementedError

    # -- outcomes ------------------------------------------------------------------------------

    def on_response(self, response: Response, now: float, backoff_ms: Callable[[int], float]) -> None:
        """Called once for every attempt, on the I/O thread."""
        self._now, self._backoff_ms = now, backoff_ms
        manager = self.manager
        with manager.lock:
            manager.request_in_flight = None
            if isinstance(response.error, UnsupportedVersionError):
                self.fail_fatally(response.error)
            elif response.error is not None:
                if self.coordinator is not None:
                    manager.lose_coordinator(self.coordinator)
                self.retry()
            else:
                self.on_answer(response.message)

    def retry(self, pause_ms: float | None = None) -> None:
        self.attempts += 1
        self.retry_at_ms = self._now + (self._backoff_ms(self.attempts) if pause_ms is None else pause_ms)
        self.manager.enqueue(self)

    def check(self, code: int, what: str = "") -> bool:
        """Deal with an error code; True if there was none."""
        if code == 0:
            return True
        error = BrokerError(what or type(self).__name__, code=code)
        if code in COORDINATOR_MOVED:
            if self.coordinator is not None:
                self.manager.lose_coordinator(self.coordinator)
            self.retry()
        elif code == CONCURRENT_TRANSACTIONS:
            self.retry(CONCURRENT_RETRY_MS)
        elif code in ABORTABLE:
            self.fail_abortable(error)
        elif code in ERROR_CODES and ERROR_CODES[code].retriable:
            self.retry()
        else:
            self.fail_fatally(error)
        return False

    def fail_abortable(self, error: HeadraceError) -> None:
        self.manager.fail_abortable(error)
        self.give_up(self.manager.last_error or error)

    def fail_fatally(self, error: HeadraceError) -> None:
        self.manager.fail_fatally(error)
        self.give_up(self.manager.last_error or error)

    def give_up(self, error: Exception) -> None:
        if self.result is not None:
            self.result.fail(error)

    def succeed(self) -> None:
        if self.result is not None:
            self.result.succeed()


class FindCoordinator(TransactionRequest):
    api_key = FindCoordinatorRequest.api_key
    versions = (1, 6)
    priority = FIND_COORDINATOR_PRIORITY
    coordinator = None

    def __init__(self, manager: TransactionManager, kind: str, key: str) -> None:
        super().__init__(manager, None)
        self.kind = kind
        self.key = key

    def build(self, version: int) -> Message:
        kind = 1 if self.kind == "transaction" else 0
        if version >= 4:
            return FindCoordinatorRequest(key_type=kind, coordinator_keys=(self.key,))
        return FindCoordinatorRequest(key=self.key, key_type=kind)

    def on_answer(self, answer: Any) -> None:
        found = answer.coordinators[0] if answer.coordinators else answer
        if self.check(found.error_code, f"finding the {self.kind} coordinator of {self.key!r}"):
            self.manager.coordinators[self.kind] = found.node_id


class InitProducerId(TransactionRequest):
    """Get a producer id; with a transactional id this fences whoever had it before."""

    api_key = InitProducerIdRequest.api_key
    versions = (0, 5)

    def __init__(
        self,
        manager: TransactionManager,
        current: ProducerIdAndEpoch,
        result: PendingResult,
        *,
        after_abort: bool = False,
    ) -> None:
        super().__init__(manager, result)
        self._current = current
        self.priority = BUMP_PRIORITY if after_abort else INIT_PRIORITY
        self.coordinator = "transaction" if manager.is_transactional else None

    @property
    def allowed_versions(self) -> tuple[int, int]:
        return (3, 5) if self._current.is_valid else self.versions  # a bump needs v3

    def build(self, version: int) -> Message:
        self.manager.can_bump_epoch = version >= 3
        request = InitProducerIdRequest(
            transactional_id=self.manager.transactional_id,
            transaction_timeout_ms=self.manager.transaction_timeout_ms if self.manager.is_transactional else 0x7FFFFFFF,
        )
        if self._current.is_valid:
            request = request.replace(producer_id=self._current.producer_id, producer_epoch=self._current.epoch)
        return request

    def on_answer(self, answer: Any) -> None:
        if self.check(answer.error_code, "getting a producer id"):
            self.manager.take_producer_id(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))
            self.succeed()


class AddPartitions(TransactionRequest):
    """Many new partitions make one request."""

    api_key = AddPartitionsToTxnRequest.api_key
    versions = (0, 3)  # v4 and up is for brokers
    priority = ADD_PRIORITY

    def __init__(self, manager: TransactionManager, partitions: frozenset[TopicPartition]) -> None:
        super().__init__(manager, None)
        self.partitions = partitions

    def build(self, version: int) -> Message:
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(self.partitions):
            topics[topic].append(partition)
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.manager.transactional_id or "",
            v3_and_below_producer_id=self.manager.producer.producer_id,
            v3_and_below_producer_epoch=self.manager.producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=tuple(places)) for name, places in topics.items()
            ],
        )

    def on_answer(self, answer: Any) -> None:
        unauthorised: list[str] = []
        for topic in answer.results_by_topic_v3_and_below:
            for partition in topic.results_by_partition:
                code = partition.partition_error_code
                if code == TOPIC_AUTHORIZATION_FAILED:
                    unauthorised.append(topic.name)
                elif code != OPERATION_NOT_ATTEMPTED and not self.check(
                    code, f"adding {topic.name}-{partition.partition_index} to the transaction"
                ):
                    return
        if unauthorised:
            self.manager.partitions_refused(self.partitions)
            self.fail_abortable(
                BrokerError(f"topics {', '.join(sorted(set(unauthorised)))}", code=TOPIC_AUTHORIZATION_FAILED)
            )
            return
        self.manager.partitions_added(self.partitions)


class AddOffsets(TransactionRequest):
    """Make a group's offsets part of the transaction; committing them follows."""

    api_key = AddOffsetsToTxnRequest.api_key
    versions = (0, 3)
    priority = ADD_PRIORITY

    def __init__(
        self,
        manager: TransactionManager,
        offsets: dict[TopicPartition, Any],
        group: GroupMetadata,
        result: PendingResult,
    ) -> None:
        super().__init__(manager, result)
        self._offsets = offsets
        self._group = group

    def build(self, version: int) -> Message:
        return AddOffsetsToTxnRequest(
            transactional_id=self.manager.transactional_id or "",
            producer_id=self.manager.producer.producer_id,
            producer_epoch=self.manager.producer.epoch,
            group_id=self._group.group_id,
        )

    def on_answer(self, answer: Any) -> None:
        if self.check(answer.error_code, f"adding the offsets of group {self._group.group_id!r}"):
            self.manager.transaction_started = True
            assert self.result is not None
            self.manager.enqueue(CommitOffsets(self.manager, self._offsets, self._group, self.result))


class CommitOffsets(TransactionRequest):
    """Commit offsets with the transaction, at the group's coordinator."""

    api_key = TxnOffsetCommitRequest.api_key
    priority = ADD_PRIORITY
    coordinator = "group"

    def __init__(
        self,
        manager: TransactionManager,
        offsets: dict[TopicPartition, Any],
        group: GroupMetadata,
        result: PendingResult,
    ) -> None:
        super().__init__(manager, result)
        self._offsets = offsets
        self.group = group

    @property
    def allowed_versions(self) -> tuple[int, int]:
        # From v5 on the broker adds the group to the transaction by itself (transactions v2).
        if self.manager.v2_enabled:
            return (5, 5)
        return (3, 4) if self.group.generation_id >= 0 or self.group.member_id else (0, 4)

    def build(self, version: int) -> Message:
        topics: defaultdict[str, list[TxnOffsetCommitRequestPartition]] = defaultdict(list)
        for (topic, partition), value in self._offsets.items():
            offset, metadata = value if isinstance(value, tuple) else (value, "")
            topics[topic].append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
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

    def on_answer(self, answer: Any) -> None:
        for topic in answer.topics:
            for partition in topic.partitions:
                if not self.check(
                    partition.error_code,
                    f"committing {topic.name}-{partition.partition_index} for group {self.group.group_id!r}",
                ):
                    return
        self.succeed()


class EndTransaction(TransactionRequest):
    api_key = EndTxnRequest.api_key
    priority = END_PRIORITY

    def __init__(self, manager: TransactionManager, committed: bool, result: PendingResult) -> None:
        super().__init__(manager, result)
        self.committed = committed
        self._bumps = result.operation == "end"

    @property
    def allowed_versions(self) -> tuple[int, int]:
        return (5, 5) if self.manager.v2_enabled else (0, 4)

    def build(self, version: int) -> Message:
        return EndTxnRequest(
            transactional_id=self.manager.transactional_id or "",
            producer_id=self.manager.producer.producer_id,
            producer_epoch=self.manager.producer.epoch,
            committed=self.committed,
        )

    def on_answer(self, answer: Any) -> None:
        if self.check(answer.error_code, "committing" if self.committed else "aborting"):
            # Before v5 there is no new epoch in the answer: -1.
            self.manager.end(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch), then_bump=self._bumps)
            self.succeed()

    def finish_locally(self) -> None:
        """The coordinator never heard of this transaction: there is nothing to end."""
        self.manager.end(None, then_bump=self._bumps)
        self.succeed()
