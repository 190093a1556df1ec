"""The transactions of tasks, as the driver sees them: describing, ending and redoing them.

    Transactions.describe           is it open?
    Transactions.open_longer_than   how long has it been open?
    Transactions.end                commit or abort by (transactional id, producer id, epoch), from any connection
    Transactions.open_ids, fence    the open transactions of a sink; abort them by fencing their producers
    check_open                      the protocol's check: all transactions of a batch are open, with time to spare
    Redo.outcome, rows              a decided transaction that its coordinator will not commit: was it committed or
                                    aborted? Aborted: its rows, to be written again

A coordinator accepts EndTxn from any client that knows id, producer id and epoch, so the driver can end the transaction
of a task. Repeated, EndTxn returns NONE as long as the id has no newer epoch. After any other error code, only the log
shows the outcome.

Aborted records stay in the log; only read_committed readers skip them. A redo finds them by producer id and epoch,
which no other transaction has. Their sequence numbers from 0 to count-1 prove that none is missing, the checksums of
the batches that none has changed.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

import pyarrow as pa

from headrace.client.admin.transactions import TransactionAdmin
from headrace.client.blocking import TRY_AGAIN, BlockingClient, Coordinator, CoordinatorKind, Pending
from headrace.client.fetcher import Fetcher
from headrace.client.offsets import EARLIEST, LATEST, Isolation, list_offsets
from headrace.client.parallel import NodeRequest, request_each
from headrace.errors import BrokerError, Code, ConnectionFailedError, UnsupportedVersionError
from headrace.spark.commit_types import Batch, TransactionsPort
from headrace.spark.decisions import Decision, Span, TaskTransaction
from headrace.spark.errors import LostError, NotDecidedError, SinkError
from headrace.wire.api.transaction_admin import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
)
from headrace.wire.api.transactions import EndTxnRequest, EndTxnResponse
from headrace.wire.columns import ArrowDecoder
from headrace.wire.records import RecordBatch

ROUNDS_MAX = 8
"""How often EndTxn requests are sent all at once, with back-off between the rounds: about 4 s with default options.
Those without a final response are then sent one by one, each until the client's timeout."""
DESCRIBED_MAX = 500
"""Transactional ids in one DescribeTransactions request."""
SPARE_MS_MAX = 60_000
SPARE_SHARE = 4
"""A transaction has time to spare if a minute is left, or a quarter of its time-out if that is less."""
SETTLE_SECONDS_MAX = 60.0
"""How long the markers of a transaction may take after its coordinator has ended it."""
READ_SECONDS_MAX = 600.0
PAUSE_SECONDS = 0.05
POLL_MS = 500
ONGOING = "Ongoing"
Level = Literal["read_committed", "read_uncommitted"]
_TRANSACTION = CoordinatorKind.TRANSACTION
_DESCRIBE_VERSIONS = (0, 0)
_DURATION_FILTER_VERSIONS = (1, 2)


class EndTxnResult(Enum):
    """The coordinator's response to EndTxn."""

    DONE = auto()
    """The transaction is ended as requested, now or earlier."""
    REFUSED = auto()
    """It expired, is fenced, was ended the other way, or is forgotten: only the log shows the outcome."""


@dataclass(frozen=True, slots=True)
class OpenState:
    """The state of a transactional id at its coordinator."""

    state: str
    producer_id: int
    epoch: int
    timeout_ms: int

    def is_of(self, transaction: TaskTransaction) -> bool:
        """Whether this transaction is the open one."""
        same = (self.producer_id, self.epoch) == (transaction.producer_id, transaction.epoch)
        return same and self.state == ONGOING


class Transactions:
    """Sends requests about transactions to their coordinators. Not thread-safe."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def end(
        self,
        transactions: Sequence[TaskTransaction],
        *,
        committed: bool,
        between: Callable[[], None] = lambda: None,
    ) -> dict[str, EndTxnResult]:
        """Commit or abort; return the result by id. `between` is called after the first of several is ended."""
        results: dict[str, EndTxnResult] = {}
        if len(transactions) > 1:
            results[transactions[0].id] = self._end_one(transactions[0], committed)
            between()
        for number in range(1, ROUNDS_MAX + 1):
            rest = [transaction for transaction in transactions if transaction.id not in results]
            nodes = self._coordinators([transaction.id for transaction in rest])
            if not nodes:  # all are ended, or brokers are too old (before 3.0) to look up many at once
                break
            results |= self._end_together([task for task in rest if task.id in nodes], nodes, committed)
            if len(results) < len(transactions):
                self._client.pause(self._client.backoff_ms(number))
        return {task.id: results.get(task.id) or self._end_one(task, committed) for task in transactions}

    def _end_together(
        self, transactions: Sequence[TaskTransaction], nodes: Mapping[str, int], committed: bool
    ) -> dict[str, EndTxnResult]:
        """Send all requests at once; return the results of those with a final response."""
        requests = [
            NodeRequest(nodes[task.id], _end_request(task, committed), _versions(task)) for task in transactions
        ]
        results = {}
        for transaction, pending in zip(transactions, request_each(self._client, requests), strict=True):
            code = _code(pending)
            if code not in TRY_AGAIN:
                results[transaction.id] = _end_result(transaction, code)
            elif code != Code.CONCURRENT_TRANSACTIONS:  # that one is from the right coordinator
                self._client.forget_coordinators(_TRANSACTION, [transaction.id])
        return results

    def _end_one(self, transaction: TaskTransaction, committed: bool) -> EndTxnResult:
        response = self._client.request(
            _end_request(transaction, committed),
            Coordinator(_TRANSACTION, transaction.id),
            versions=_versions(transaction),
            codes=lambda response: [response.error_code],
        )
        return _end_result(transaction, response.error_code)

    def describe(self, ids: Iterable[str]) -> dict[str, OpenState] | None:
        """Return the states of transactional ids; None if brokers are too old (before 3.0)."""
        all_ids = list(ids)
        by_node: defaultdict[int, list[str]] = defaultdict(list)
        nodes = self._coordinators(all_ids)
        for transactional_id, node_id in nodes.items():
            by_node[node_id].append(transactional_id)
        requests = [
            NodeRequest(
                node_id,
                DescribeTransactionsRequest(transactional_ids=node_ids[start : start + DESCRIBED_MAX]),
                _DESCRIBE_VERSIONS,
            )
            for node_id, node_ids in by_node.items()
            for start in range(0, len(node_ids), DESCRIBED_MAX)
        ]
        states: dict[str, OpenState] = {}
        try:
            for pending in request_each(self._client, requests):
                with contextlib.suppress(ConnectionFailedError):
                    _add_states(states, pending.result())
            for transactional_id in all_ids:
                if transactional_id not in states:
                    if transactional_id in nodes:
                        self._client.forget_coordinators(_TRANSACTION, [transactional_id])
                    _add_states(states, self._describe(transactional_id))
        except UnsupportedVersionError:
            return None
        return states

    def _describe(self, transactional_id: str) -> DescribeTransactionsResponse:
        return self._client.request(
            DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            Coordinator(_TRANSACTION, transactional_id),
            codes=lambda response: [entry.error_code for entry in response.transaction_states],
        )

    def open_ids(self, prefix: str) -> list[str] | None:
        """Return the ids with this prefix that have an open transaction; None if brokers are too old (before 3.0)."""
        try:
            listed = TransactionAdmin(self._client).list_transactions(states=[ONGOING], id_prefix=prefix)
        except UnsupportedVersionError:
            return None
        return [entry.transactional_id for entry in listed]

    def open_longer_than(self, age_ms: int, transactions: Sequence[TaskTransaction]) -> list[str] | None:
        """Return the ids of transactions older than this; None if brokers are too old (before 3.8).

        Coordinators compare with their own clocks, which also expire transactions (KIP-994).
        """
        request = ListTransactionsRequest(
            state_filters=[ONGOING],
            producer_id_filters=[transaction.producer_id for transaction in transactions],
            duration_filter=age_ms,
        )
        nodes = self._coordinators([transaction.id for transaction in transactions])
        # One id for each node: if the node does not respond, the client looks up the coordinator of that id again.
        id_of_node = {nodes.get(transaction.id): transaction.id for transaction in transactions}
        old: set[str] = set()
        try:
            for transactional_id in id_of_node.values():
                response = self._client.request(
                    request,
                    Coordinator(_TRANSACTION, transactional_id),
                    versions=_DURATION_FILTER_VERSIONS,
                    codes=lambda response: [response.error_code],
                )
                old |= {entry.transactional_id for entry in response.transaction_states}
        except UnsupportedVersionError:
            return None
        return sorted(old)

    def fence(self, ids: Iterable[str]) -> None:
        """Fence the producers of these ids: their open transactions are aborted, their later writes refused."""
        TransactionAdmin(self._client).fence_producers(ids)

    def _coordinators(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the coordinators of ids, as far as they are known; the others are looked up when needed."""
        return self._client.find_coordinators(_TRANSACTION, ids)


def _code(pending: Pending[EndTxnResponse]) -> int:
    try:
        return pending.result().error_code
    except ConnectionFailedError:
        return Code.NETWORK_EXCEPTION


def _add_states(states: dict[str, OpenState], response: DescribeTransactionsResponse) -> None:
    for entry in response.transaction_states:
        if entry.error_code == 0:
            states[entry.transactional_id] = OpenState(
                entry.transaction_state,
                entry.producer_id,
                entry.producer_epoch,
                entry.transaction_timeout_ms,
            )
        elif entry.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND:
            states[entry.transactional_id] = OpenState("Dead", -1, -1, 0)
        elif entry.error_code not in TRY_AGAIN:
            raise BrokerError(f"transactional id {entry.transactional_id!r}", code=entry.error_code)


def _end_request(transaction: TaskTransaction, committed: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transaction.id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        committed=committed,
    )


def _versions(transaction: TaskTransaction) -> tuple[int, int]:
    # From v5 on, EndTxn gives the id a new epoch (transactions v2): late writes of a lost task are then refused.
    return (5, 5) if transaction.is_v2 else (0, 4)


_SETTLED = frozenset(
    {
        Code.INVALID_PRODUCER_EPOCH,
        Code.PRODUCER_FENCED,
        Code.INVALID_TXN_STATE,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.UNKNOWN_PRODUCER_ID,
        Code.TRANSACTION_ABORTABLE,
    }
)


def _end_result(transaction: TaskTransaction, code: int) -> EndTxnResult:
    if code == 0:
        return EndTxnResult.DONE
    if code in _SETTLED:
        return EndTxnResult.REFUSED
    raise BrokerError(f"ending the transaction of {transaction.id!r}", code=code)


# -- check ---------------------------------------------------------------------------------------


def check_open(port: TransactionsPort, batch: Batch) -> None:
    """Raise NotDecidedError unless all transactions of a batch are open, with time to spare."""
    states = port.describe([task.id for task in batch.transactions])
    if states is None:
        return
    for task in batch.transactions:
        state = states.get(task.id)
        if state is None or not state.is_of(task):
            raise NotDecidedError(
                f"batch {batch.number}: the transaction of a task is not open any more ({task.id!r} is "
                f"{'unknown' if state is None else state.state}). It expired (kafka.transaction.timeout.ms), or "
                "another query uses this sink.id. Nothing of the batch is visible; it can be run again"
            )
    timeout_ms = min(states[task.id].timeout_ms for task in batch.transactions)
    age_ms = timeout_ms - min(SPARE_MS_MAX, timeout_ms // SPARE_SHARE)
    # Brokers compare with their own clocks: the driver's may differ by any amount.
    old = port.open_longer_than(age_ms, batch.transactions)
    if old:
        raise NotDecidedError(
            f"batch {batch.number}: the transaction {old[0]!r} has been open for more than {age_ms / 1000:g} s and "
            f"expires after {timeout_ms / 1000:g} s (kafka.transaction.timeout.ms), too soon to decide on it. Make "
            "batches smaller, or raise the time-out, and transaction.max.timeout.ms of the brokers with it"
        )


# -- redo ----------------------------------------------------------------------------------------


class Outcome(Enum):
    VISIBLE = auto()
    ABORTED = auto()


class Redo:
    """Reads the records of transactions that their coordinators will not commit."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def outcome(self, decision: Decision, transaction: TaskTransaction) -> Outcome:
        """Return what read_committed readers see. It is one transaction: any of its partitions shows it."""
        lost: list[Span] = []
        for span in transaction.spans:
            if self._is_gone(span):
                lost.append(span)
                continue
            self._wait_until_settled(span)
            if sum(batch.header.record_count for batch in self._batches(transaction, span, "read_committed")):
                return Outcome.VISIBLE
            if sum(batch.header.record_count for batch in self._batches(transaction, span, "read_uncommitted")):
                return Outcome.ABORTED
            lost.append(span)  # compacted away: whether it was committed cannot be known
        raise _lost(decision, transaction, lost)

    def rows(self, decision: Decision, transaction: TaskTransaction) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield all its rows by topic, with the partitions they were in."""
        for span in transaction.spans:
            if self._is_gone(span):
                raise _lost(decision, transaction, [span])
            expected = 0
            for batch in self._batches(transaction, span, "read_uncommitted"):
                header = batch.header
                if header.base_sequence != expected or header.record_count != header.last_offset_delta + 1:
                    raise _lost(decision, transaction, [span])
                expected += header.record_count
                yield span.topic, _columns(batch, span.partition)
            if expected != span.count:
                raise _lost(decision, transaction, [span])

    def _is_gone(self, span: Span) -> bool:
        """Whether records of the span were deleted, or the topic was deleted or recreated."""
        partition = span.topic_partition
        try:
            start = list_offsets(self._client, {partition: EARLIEST})[partition].offset
            end = list_offsets(self._client, {partition: LATEST})[partition].offset
        except BrokerError as error:
            if error.code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                return True
            raise
        return start > span.first or end <= span.last

    def _wait_until_settled(self, span: Span) -> None:
        deadline, partition = time.monotonic() + SETTLE_SECONDS_MAX, span.topic_partition
        while list_offsets(self._client, {partition: LATEST}, Isolation.READ_COMMITTED)[partition].offset <= span.last:
            if time.monotonic() > deadline:
                raise SinkError(
                    f"{partition} has had an open transaction before offset {span.last} for {SETTLE_SECONDS_MAX:g} s: "
                    "what read_committed readers will see is not known yet. Start the query again later"
                )
            time.sleep(PAUSE_SECONDS)

    def _batches(self, transaction: TaskTransaction, span: Span, isolation: Level) -> Iterator[RecordBatch]:
        """Yield the batches of the transaction in one partition that a reader with this isolation level gets."""
        deadline, partition = time.monotonic() + READ_SECONDS_MAX, span.topic_partition
        with Fetcher(self._client, isolation=isolation, max_wait_ms=POLL_MS) as fetcher:
            fetcher.assign({partition: span.first}, until={partition: span.last + 1})
            while not fetcher.is_finished():
                if time.monotonic() > deadline:
                    raise SinkError(f"reading {partition} up to {span.last} timed out after {READ_SECONDS_MAX:g} s")
                for batches in fetcher.poll_batches(POLL_MS).values():
                    for batch in batches:
                        header = batch.header
                        if (header.producer_id, header.producer_epoch) == (transaction.producer_id, transaction.epoch):
                            yield batch


def _columns(batch: RecordBatch, partition: int) -> pa.RecordBatch:
    decoder = ArrowDecoder(with_headers=True, bytes_hint=batch.header.size)
    decoder.add(batch)
    decoded = decoder.finish()
    partitions = pa.repeat(pa.scalar(partition, pa.int32()), decoded.num_rows)
    return decoded.drop_columns(["offset"]).append_column("partition", partitions)


def _lost(decision: Decision, transaction: TaskTransaction, spans: list[Span]) -> LostError:
    where = ", ".join(
        f"{span.topic_partition} offsets {span.first} to {span.last} ({span.count} records)" for span in spans
    )
    return LostError(
        f"batch {decision.batch} of query {decision.query!r} (sink.id {decision.sink!r}) was decided, but a part of it "
        f"was not committed in time and is gone from the log: {where}. It was deleted by retention, by compaction or "
        f"with its topic, after its transaction {transaction.id!r} had expired. To continue, write these rows again "
        "from their source, then use a new sink.id and checkpoint; nothing else was lost"
    )
