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

from headrace.client.addresses import Endpoint
from headrace.client.requests import Response
from headrace.errors import ERROR_CODES, BrokerError, Code, ConnectionFailedError, HeadraceError
from headrace.producer.sequences import TopicPartition
from headrace.types import ProducerIdAndEpoch
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
    from headrace.producer.pending import PendingResult
    from headrace.producer.transactions import GroupMetadata, TransactionManager

COORDINATOR_MOVED = frozenset({Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
CONCURRENT_RETRY_MS = 20.0  # the previous transaction is just being ended: that takes a moment, not a backoff

FIND_COORDINATOR_PRIORITY, INIT_PRIORITY, ADD_PRIORITY, END_PRIORITY, BUMP_PRIORITY = range(5)


def is_retriable(code: int) -> bool:
    return code in ERROR_CODES and ERROR_CODES[code].retriable


class TransactionRequest:
    """A request to a coordinator; it stays in the queue until it has an outcome."""

    api_key: ClassVar[int]
    versions: ClassVar[tuple[int, int]]
    priority: int
    abortable: ClassVar[frozenset[int]] = frozenset({Code.TRANSACTION_ABORTABLE})
    """Errors after which the transaction can be aborted; what is neither that nor retriable is fatal."""

    def __init__(self, manager: TransactionManager, result: PendingResult | None) -> None:
        self.manager = manager
        self.result = result
        self.retry_at_ms = 0.0
        self.attempts = 0
        # Of the answer that is being dealt with.
        self._now = 0.0
        self._backoff_ms: Callable[[int], float] = float

    @property
    def coordinator(self) -> tuple[str, str] | None:
        """Whom to ask: kind and key. None: any broker will do."""
        return "transaction", self.manager.transactional_id or ""

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
            if isinstance(response.error, ConnectionFailedError):
                self.find_again()
                self.retry()
            elif response.error is not None:
                self.fail_fatally(response.error)
            else:
                try:
                    self.on_answer(response.message)
                except Exception as error:
                    # Whoever waits for this must not wait for ever.
                    self.fail_fatally(HeadraceError(f"{type(self).__name__}: the answer makes no sense: {error}"))
                    raise

    def find_again(self) -> None:
        """The coordinator may have moved."""
        if self.coordinator is not None:
            self.manager.lose_coordinator(self.coordinator)

    def retry(self, pause_ms: float | None = None) -> None:
        self.postpone(self._now, self._backoff_ms(self.attempts + 1) if pause_ms is None else pause_ms)

    def postpone(self, now: float, pause_ms: float) -> None:
        """Back into the queue, for later."""
        self.attempts += 1
        self.retry_at_ms = now + pause_ms
        self.manager.enqueue(self)

    def check(self, code: int, what: str) -> bool:
        """Deal with an error code; True if there was none."""
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
        """How long to wait before trying again after a retriable error; None: as after any other failure."""
        return None

    def fail_abortable(self, error: BrokerError) -> None:
        manager = self.manager
        if error.code == Code.UNKNOWN_PRODUCER_ID:
            # The coordinator has forgotten us: a new epoch mends that after the abort (KIP-360).
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


class FindCoordinator(TransactionRequest):
    api_key = FindCoordinatorRequest.api_key
    versions = (1, 6)
    priority = FIND_COORDINATOR_PRIORITY
    abortable = frozenset({Code.GROUP_AUTHORIZATION_FAILED, Code.TRANSACTION_ABORTABLE})

    def __init__(
        self, manager: TransactionManager, wanted: tuple[str, str], on_found: Callable[[int, Endpoint], None]
    ) -> None:
        super().__init__(manager, None)
        self.wanted = wanted
        self._on_found = on_found

    @property
    def coordinator(self) -> None:
        return None

    def build(self, version: int) -> Message:
        kind, key = self.wanted
        key_type = 1 if kind == "transaction" else 0
        if version >= 4:
            return FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))
        return FindCoordinatorRequest(key=key, key_type=key_type)

    def on_answer(self, answer: Any) -> None:
        kind, key = self.wanted
        found = answer.coordinators[0] if answer.coordinators else answer
        if self.check(found.error_code, f"finding the {kind} coordinator of {key!r}"):
            self._on_found(found.node_id, Endpoint(found.host, found.port))
            self.manager.coordinators[self.wanted] = found.node_id


class InitProducerId(TransactionRequest):
    """Get a producer id, or a new epoch for `current`; with a transactional id this fences whoever had it before."""

    api_key = InitProducerIdRequest.api_key
    versions = (0, 5)

    def __init__(self, manager: TransactionManager, current: ProducerIdAndEpoch, result: PendingResult | None) -> None:
        super().__init__(manager, result)
        self._current = current
        self.priority = BUMP_PRIORITY if current.is_valid else INIT_PRIORITY

    @property
    def coordinator(self) -> tuple[str, str] | None:
        return super().coordinator if self.manager.is_transactional else None

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
        what = "getting a producer id"
        if answer.error_code in (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED):
            error = BrokerError(what, code=answer.error_code)
            self.manager.refuse_producer_id(error)
            self.give_up(error)
        elif self.check(answer.error_code, what):
            self.manager.take_producer_id(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))
            self.succeed()


class AddPartitions(TransactionRequest):
    """Many new partitions make one request."""

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
        refused: dict[str, int] = {}
        for topic in answer.results_by_topic_v3_and_below:
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
        # Those that were not attempted only because of another one say nothing about the reason.
        codes = set(refused.values())
        code = Code.TOPIC_AUTHORIZATION_FAILED if Code.TOPIC_AUTHORIZATION_FAILED in codes else max(codes)
        self.fail_abortable(BrokerError(f"adding {', '.join(sorted(refused))} to the transaction", code=code))

    def pause_ms(self, code: int) -> float | None:
        # Only for the first partitions: then it is the transaction before that is still being ended.
        if code == Code.CONCURRENT_TRANSACTIONS and not self.manager.partitions:
            return min(CONCURRENT_RETRY_MS, self._backoff_ms(1))
        return None


class AddOffsets(TransactionRequest):
    """Make a group's offsets part of the transaction; committing them follows."""

    api_key = AddOffsetsToTxnRequest.api_key
    versions = (0, 4)
    priority = ADD_PRIORITY
    abortable = frozenset({Code.GROUP_AUTHORIZATION_FAILED, Code.UNKNOWN_PRODUCER_ID, Code.TRANSACTION_ABORTABLE})

    def __init__(
        self,
        manager: TransactionManager,
        offsets: dict[TopicPartition, Any],
        group: GroupMetadata,
        result: PendingResult | None,
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
            self.manager.enqueue(CommitOffsets(self.manager, self._offsets, self._group, self.result))


class CommitOffsets(TransactionRequest):
    """Commit offsets with the transaction, at the group's coordinator."""

    api_key = TxnOffsetCommitRequest.api_key
    priority = ADD_PRIORITY
    abortable = frozenset(
        {
            Code.ILLEGAL_GENERATION,
            Code.UNKNOWN_MEMBER_ID,
            Code.FENCED_INSTANCE_ID,
            Code.GROUP_AUTHORIZATION_FAILED,
            Code.TRANSACTION_ABORTABLE,
        }
    )

    def __init__(
        self,
        manager: TransactionManager,
        offsets: dict[TopicPartition, Any],
        group: GroupMetadata,
        result: PendingResult | None,
    ) -> None:
        super().__init__(manager, result)
        self._offsets = offsets  # what is not committed yet
        self.group = group

    @property
    def coordinator(self) -> tuple[str, str]:
        return "group", self.group.group_id

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
                place, code = (topic.name, partition.partition_index), partition.error_code
                if code == 0:
                    self._offsets.pop(place, None)
                elif code in COORDINATOR_MOVED or code == Code.REQUEST_TIMED_OUT:
                    self.find_again()
                elif not is_retriable(code):
                    self.check(code, f"committing {place[0]}-{place[1]} for group {self.group.group_id!r}")
                    return
        if self._offsets:
            self.retry()
        else:
            self.succeed()


class EndTransaction(TransactionRequest):
    api_key = EndTxnRequest.api_key
    priority = END_PRIORITY
    abortable = frozenset({Code.UNKNOWN_PRODUCER_ID, Code.TRANSACTION_ABORTABLE})

    def __init__(self, manager: TransactionManager, committed: bool, result: PendingResult) -> None:
        super().__init__(manager, result)
        self.committed = committed

    @property
    def allowed_versions(self) -> tuple[int, int]:
        # From v5 on the answer brings a new epoch (transactions v2).
        return (0, 5) if self.manager.v2_enabled else (0, 4)

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
            self.manager.end(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch), self.result)

    def fail_abortable(self, error: BrokerError) -> None:
        manager = self.manager
        if self.committed:
            super().fail_abortable(error)
        elif manager.can_bump_epoch:
            # An abort that cannot be: asking for a new epoch ends whatever is open.
            manager.epoch_bump_required = True
            manager.end(None, self.result)
        else:
            self.fail_fatally(error)
