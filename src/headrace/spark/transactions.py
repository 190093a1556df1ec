"""Transactions of others: looking at them and ending them, from the driver.

    describe           is it open?
    open_longer_than   how long has it been open?
    end                commit or abort by (transactional id, producer id, epoch), from any connection
    open_ids           which transactions of a sink are open
    fence              shut out whoever uses an id, which aborts what it has open

A coordinator takes EndTxn from whoever knows id, producer id and epoch; that is what lets the driver end what a task
has begun. Said again, it is answered with NONE as long as the id has no newer epoch. Any other answer: the log tells.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal

import pyarrow as pa

from headrace.client.admin.transactions import TransactionAdmin
from headrace.client.blocking import TRY_AGAIN, BlockingClient, Coordinator, CoordinatorKind
from headrace.client.fetcher import Fetcher
from headrace.client.offsets import EARLIEST, LATEST, Isolation, list_offsets
from headrace.errors import BrokerError, Code, ConnectionFailedError, UnsupportedVersionError
from headrace.spark.decisions import Decision, Span, TaskTransaction
from headrace.spark.errors import LostError, SinkError
from headrace.wire.api.describe_transactions import DescribeTransactionsRequest
from headrace.wire.api.end_txn import EndTxnRequest
from headrace.wire.api.find_coordinator import FindCoordinatorRequest
from headrace.wire.api.list_transactions import ListTransactionsRequest
from headrace.wire.columns import ArrowDecoder
from headrace.wire.records import RecordBatch

IN_FLIGHT_MAX = 64
"""Requests on their way at once to end transactions."""
ONGOING = "Ongoing"
_TRANSACTION = CoordinatorKind.TRANSACTION
_DURATION_FILTER_VERSIONS = (1, 2)


class Ending(Enum):
    """What came of asking for an end."""

    DONE = auto()
    """It is as was asked for, or was so before."""
    REFUSED = auto()
    """The coordinator knows better: expired, fenced, ended the other way, or forgotten. The log has to tell."""


@dataclass(frozen=True, slots=True)
class OpenState:
    """A transactional id as its coordinator knows it."""

    state: str
    producer_id: int
    epoch: int
    timeout_ms: int

    def is_of(self, transaction: TaskTransaction) -> bool:
        same = (self.producer_id, self.epoch) == (transaction.producer_id, transaction.epoch)
        return same and self.state == ONGOING


class Transactions:
    """Asks coordinators. One thread."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def end(
        self,
        transactions: Sequence[TaskTransaction],
        *,
        committed: bool,
        between: Callable[[], None] = lambda: None,
    ) -> dict[str, Ending]:
        """Commit or abort; by id what came of it. `between` is called when the first of several is ended."""
        found: dict[str, Ending] = {}
        if len(transactions) > 1:
            found[transactions[0].id] = self._end_one(transactions[0], committed)
            between()
        rest = [one for one in transactions if one.id not in found]
        nodes = self._coordinators([one.id for one in rest])
        for start in range(0, len(rest), IN_FLIGHT_MAX):
            found |= self._end_many(rest[start : start + IN_FLIGHT_MAX], nodes, committed)
        return found

    def _end_many(
        self, transactions: Sequence[TaskTransaction], nodes: dict[str, int], committed: bool
    ) -> dict[str, Ending]:
        """All at once; what is not answered, or not for good, is asked for one by one."""
        deadline = self._client.deadline()
        sent = []
        for one in transactions:
            try:
                pending = self._client.begin(nodes[one.id], _end_request(one, committed), _versions(one), deadline)
            except (ConnectionFailedError, KeyError):
                continue
            sent.append((one, pending))
        self._client.finish([pending for _, pending in sent], deadline)
        found = {}
        for one, pending in sent:
            try:
                code = pending.result().error_code
            except ConnectionFailedError:
                continue
            if code not in TRY_AGAIN:
                found[one.id] = _ending(one, code)
        return {one.id: found.get(one.id) or self._end_one(one, committed) for one in transactions}

    def _end_one(self, transaction: TaskTransaction, committed: bool) -> Ending:
        answer = self._client.ask(
            _end_request(transaction, committed),
            Coordinator(_TRANSACTION, transaction.id),
            versions=_versions(transaction),
            codes=lambda answer: [answer.error_code],
        )
        return _ending(transaction, answer.error_code)

    def describe(self, ids: Iterable[str]) -> dict[str, OpenState] | None:
        """The states of ids; None where brokers are too old to tell (before 3.0)."""
        wanted = list(ids)
        by_node: defaultdict[int, list[str]] = defaultdict(list)
        for transactional_id, node in self._coordinators(wanted).items():
            by_node[node].append(transactional_id)
        found: dict[str, OpenState] = {}
        try:
            for node, here in by_node.items():
                self._describe_at(node, here, found)
            for transactional_id in wanted:
                if transactional_id not in found:
                    self._describe_at(Coordinator(_TRANSACTION, transactional_id), [transactional_id], found)
        except UnsupportedVersionError:
            return None
        return found

    def _describe_at(self, target: int | Coordinator, ids: list[str], found: dict[str, OpenState]) -> None:
        try:
            answer = self._client.ask(
                DescribeTransactionsRequest(transactional_ids=ids),
                target,
                codes=(lambda answer: []) if isinstance(target, int) else _codes_of_states,
            )
        except ConnectionFailedError:
            return
        for one in answer.transaction_states:
            if one.error_code == 0:
                found[one.transactional_id] = OpenState(
                    one.transaction_state,
                    one.producer_id,
                    one.producer_epoch,
                    one.transaction_timeout_ms,
                )
            elif one.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND:
                found[one.transactional_id] = OpenState("Dead", -1, -1, 0)
            elif one.error_code not in TRY_AGAIN:
                raise BrokerError(f"transactional id {one.transactional_id!r}", code=one.error_code)

    def open_ids(self, prefix: str) -> list[str] | None:
        """Ids with this beginning that have an open transaction; None where brokers are too old to tell."""
        try:
            listed = TransactionAdmin(self._client).list_transactions(states=[ONGOING])
        except UnsupportedVersionError:
            return None
        return [one.transactional_id for one in listed if one.transactional_id.startswith(prefix)]

    def open_longer_than(self, age_ms: int, transactions: Sequence[TaskTransaction]) -> list[str] | None:
        """Return the ids of those that are older than this; None if brokers are too old to tell (before 3.8).

        Their coordinators compare with their own clocks, which are the ones that transactions expire by (KIP-994).
        """
        request = ListTransactionsRequest(
            state_filters=[ONGOING],
            producer_id_filters=[one.producer_id for one in transactions],
            duration_filter=age_ms,
        )
        nodes = self._coordinators([one.id for one in transactions])
        # One of its ids stands for each node: the coordinator is looked up again if that one does not respond.
        id_of_node = {nodes.get(one.id): one.id for one in transactions}
        found: set[str] = set()
        try:
            for transactional_id in id_of_node.values():
                answer = self._client.ask(
                    request,
                    Coordinator(_TRANSACTION, transactional_id),
                    versions=_DURATION_FILTER_VERSIONS,
                    codes=lambda answer: [answer.error_code],
                )
                found |= {one.transactional_id for one in answer.transaction_states}
        except UnsupportedVersionError:
            return None
        return sorted(found)

    def fence(self, ids: Iterable[str]) -> None:
        """Shut out whoever uses these ids. What they have open is aborted, and a late write of theirs refused."""
        TransactionAdmin(self._client).fence_producers(ids)

    def _coordinators(self, ids: Sequence[str]) -> dict[str, int]:
        """Who looks after each id, as far as one question tells; what is missing is found when it is asked for."""
        if len(ids) < 2:
            return {}
        message = FindCoordinatorRequest(key_type=_TRANSACTION.value, coordinator_keys=list(ids))
        try:
            answer = self._client.ask(message, versions=(4, 6))
        except UnsupportedVersionError:
            return {}
        return {one.key: one.node_id for one in answer.coordinators if one.error_code == 0}


def _codes_of_states(answer: Any) -> list[int]:
    return [one.error_code for one in answer.transaction_states]


def _end_request(transaction: TaskTransaction, committed: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transaction.id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        committed=committed,
    )


def _versions(transaction: TaskTransaction) -> tuple[int, int]:
    # From v5 on the id gets a new epoch with the end (transactions v2): late writes of a lost task are refused then.
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


def _ending(transaction: TaskTransaction, code: int) -> Ending:
    if code == 0:
        return Ending.DONE
    if code in _SETTLED:
        return Ending.REFUSED
    raise BrokerError(f"ending the transaction of {transaction.id!r}", code=code)


SETTLE_SECONDS_MAX = 60.0
"""How long a transaction may take to be over that its coordinator calls ended."""
READ_SECONDS_MAX = 600.0
PAUSE_SECONDS = 0.05
POLL_MS = 500
Level = Literal["read_committed", "read_uncommitted"]


class Outcome(Enum):
    VISIBLE = auto()
    ABORTED = auto()


class Redo:
    """Reads the log."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def outcome(self, decision: Decision, transaction: TaskTransaction) -> Outcome:
        """What readers of committed records see of it. It is one transaction: any partition speaks for all."""
        lost: list[Span] = []
        for span in transaction.spans:
            if self._is_gone(span):
                lost.append(span)
                continue
            self._wait_until_settled(span)
            seen = sum(batch.header.record_count for batch in self._batches(transaction, span, "read_committed"))
            if seen:
                return Outcome.VISIBLE
            if sum(batch.header.record_count for batch in self._batches(transaction, span, "read_uncommitted")):
                return Outcome.ABORTED
            lost.append(span)  # cleaned away: committed or not, nobody can tell any more
        raise _lost(decision, transaction, lost)

    def rows(self, decision: Decision, transaction: TaskTransaction) -> Iterator[tuple[str, pa.RecordBatch]]:
        """All its rows, to the partitions where they were, in pieces of what a fetch brings."""
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
        """Whether records of the span were deleted, with their topic perhaps, which may have been created again."""
        try:
            start = list_offsets(self._client, {span.place: EARLIEST})[span.place].offset
            end = list_offsets(self._client, {span.place: LATEST})[span.place].offset
        except BrokerError as error:
            if error.code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                return True
            raise
        return start > span.first or end <= span.last

    def _wait_until_settled(self, span: Span) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while (
            list_offsets(self._client, {span.place: LATEST}, Isolation.READ_COMMITTED)[span.place].offset <= span.last
        ):
            if time.monotonic() > deadline:
                raise SinkError(
                    f"{span.place} has had an open transaction before offset {span.last} for {SETTLE_SECONDS_MAX:g} s: "
                    "what readers will see there cannot be told yet. Start the query again later"
                )
            time.sleep(PAUSE_SECONDS)

    def _batches(self, transaction: TaskTransaction, span: Span, isolation: Level) -> Iterator[RecordBatch]:
        """The batches of the transaction in one partition that such a reader is given."""
        deadline = time.monotonic() + READ_SECONDS_MAX
        with Fetcher(self._client, isolation=isolation, max_wait_ms=POLL_MS) as fetcher:
            fetcher.assign({span.place: span.first}, until={span.place: span.last + 1})
            while not fetcher.is_finished():
                if time.monotonic() > deadline:
                    raise SinkError(f"{span.place} could not be read up to {span.last} in {READ_SECONDS_MAX:g} s")
                for batches in fetcher.poll_batches(POLL_MS).values():
                    for batch in batches:
                        header = batch.header
                        if (header.producer_id, header.producer_epoch) == (transaction.producer_id, transaction.epoch):
                            yield batch


def _columns(batch: RecordBatch, partition: int) -> pa.RecordBatch:
    decoder = ArrowDecoder(with_headers=True, bytes_hint=batch.header.size)
    decoder.add(batch)
    found = decoder.finish()
    places = pa.repeat(pa.scalar(partition, pa.int32()), found.num_rows)
    return found.drop_columns(["offset"]).append_column("partition", places)


def _lost(decision: Decision, transaction: TaskTransaction, spans: list[Span]) -> LostError:
    where = ", ".join(f"{span.place} offsets {span.first} to {span.last} ({span.count} records)" for span in spans)
    return LostError(
        f"batch {decision.batch} of query {decision.query!r} (sink.id {decision.sink!r}) was decided, but a part of it "
        f"was not committed in time and is gone from the log: {where}. It was deleted by retention, by compaction or "
        f"with its topic, after its transaction {transaction.id!r} had expired. To go on, write these rows again from "
        "their source, then use a new sink.id and checkpoint; nothing else was lost"
    )
