"""The driver's hand on the decision topic: one transactional producer for a sink.

    open → (takes the lock) → read → write: rows + decision, one transaction → … → close

The transactional id is the sink's id, so only the process that opened the ledger last can write in it. A decision is
therefore a compare and set: what was read after opening still holds when a write succeeds. Which run may decide is in
the log: see holders.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from functools import partial

import pyarrow as pa

from headrace.client.blocking import BlockingClient
from headrace.errors import (
    AbortableError,
    BrokerError,
    Code,
    ConfigError,
    FatalError,
    HeadraceError,
    TimedOutError,
)
from headrace.producer.producer import Producer
from headrace.spark.decisions import Decision, DecisionLog
from headrace.spark.holders import Holders, holders_key
from headrace.spark.sink_errors import IDS_REFUSED, FencedError, InDoubtError, NotDecidedError, SinkError, not_sent
from headrace.spark.sink_options import DECISION_BYTES_MAX, TRANSACTION_MS_MAX, SinkOptions

TRANSACTION_MS = 60_000
"""For decisions. A driver that dies in the middle of one holds up readers for no longer than this."""
REDO_TRANSACTION_MS = TRANSACTION_MS_MAX
"""For writing a whole transaction again, which may take its time."""
DECISION_SECONDS_MAX = 300.0
"""How long the answer to a decision is waited for: longer than a broker needs to come back."""
CLOSE_SECONDS_MAX = 5.0
CAUSES_MAX = 10
_REQUEST_SLACK_BYTES = 64 * 1024
_REFUSED = frozenset({Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED})
_FENCED = frozenset({Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH})

Rows = Iterable[tuple[str, pa.RecordBatch]]
"""Topic and columns: key, value, headers, partition, timestamp."""


def _nothing() -> None:
    pass


class Ledger:
    """Reads and writes the decisions of one sink."""

    def __init__(self, options: SinkOptions, sink: str, client: BlockingClient) -> None:
        self._options = options
        self._sink = sink
        self._log = DecisionLog(client, options.decision_topic)
        self._producer: Producer | None = None

    def open(self, transaction_ms: int = TRANSACTION_MS) -> None:
        """Take the lock of this sink from any other process; what that one had under way is over when this returns.

        Brokers may allow less time for a transaction than is asked for here: then it is what the user gave for tasks.
        """
        given_ms = int(self._options.kafka.get("transaction.timeout.ms", transaction_ms))
        try:
            self._open(transaction_ms)
        except ConfigError:
            if given_ms >= transaction_ms:
                raise
            self._open(given_ms)

    def _open(self, transaction_ms: int) -> None:
        self.close()
        self._ensure_topic()
        config = self._options.producer_config(self._sink)
        config["transaction.timeout.ms"] = transaction_ms
        size = int(str(config.get("max.request.size", 0)))
        config["max.request.size"] = max(size, DECISION_BYTES_MAX + _REQUEST_SLACK_BYTES)
        producer = Producer(config)
        try:
            producer.init_transactions()
        except HeadraceError as error:
            producer.close(0)
            if _has_code(error, _FENCED):  # by another process that opens it at the same time
                raise self._fenced() from error
            if _has_code(error, {Code.INVALID_TRANSACTION_TIMEOUT}):
                raise ConfigError(
                    f"the brokers do not allow a transaction of {transaction_ms} ms: their "
                    "transaction.max.timeout.ms is lower. Raise it there"
                ) from error
            if _has_code(error, {Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}):
                raise BrokerError(IDS_REFUSED, code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED) from error
            raise
        self._producer = producer

    def _ensure_topic(self) -> None:
        try:
            self._log.ensure()
        except BrokerError as error:
            if error.code not in _REFUSED:
                raise
            raise BrokerError(
                f"the sink may not use its decision topic {self._log.topic!r}: allow Create, or make the topic "
                "(compacted, with one partition), and allow Describe, Read and Write on it",
                code=error.code,
            ) from error

    def read_before_writing(self) -> dict[str, Decision]:
        """The same as `read`, for a planner: it may come before anybody has opened the ledger for the first time."""
        self._ensure_topic()
        return self.read()

    def read(self) -> dict[str, Decision]:
        """The last decision of each query of the sink. It need not be open for that."""
        try:
            return self._log.read(self._sink)
        except BrokerError as error:
            if error.code == Code.UNKNOWN_TOPIC_OR_PARTITION and self._producer is None:
                return {}  # nobody has ever opened a ledger: opening makes the topic
            raise

    @property
    def holders(self) -> Holders:
        """The runs that have held the sink, as of the last `read`."""
        return self._log.holders(self._sink)

    def hold(self, holders: Holders) -> None:
        """Store who holds the sink. Errors as in `write`."""
        self._write_records(holders_key(self._sink), holders.encode())

    def write(
        self,
        decision: Decision,
        rows: Rows = (),
        *,
        is_erased: bool = False,
        on_rows: Callable[[], None] = _nothing,
        on_written: Callable[[], None] = _nothing,
    ) -> None:
        """Rows and decision in one transaction; `is_erased` stores that there is nothing to remember.

        NotDecidedError: it is certain that nothing was stored. FencedError, InDoubtError: only the log can tell.
        """
        value = None if is_erased else decision.encode()
        sends = (partial(_send, topic=topic, columns=columns, batch=decision.batch) for topic, columns in rows)
        self._write_records(decision.key, value, sends, on_rows, on_written)

    def _write_records(
        self,
        key: bytes,
        value: bytes | None,
        sends: Iterable[Callable[[Producer], None]] = (),
        on_rows: Callable[[], None] = _nothing,
        on_written: Callable[[], None] = _nothing,
    ) -> None:
        producer = self._producer
        if producer is None:
            raise SinkError("the ledger is not open")
        try:
            producer.begin_transaction()
            for send in sends:
                send(producer)
            on_rows()
            producer.send(self._options.decision_topic, value, key)
            on_written()
        except BaseException as error:
            self._abort(producer)
            if isinstance(error, FatalError):
                raise self._fatal(error) from error
            if isinstance(error, AbortableError):
                raise self._not_decided(error) from error
            raise
        self._commit(producer)

    def _commit(self, producer: Producer) -> None:
        """From the first EndTxn on, nobody but the coordinator knows: ask until it has answered."""
        deadline = time.monotonic() + DECISION_SECONDS_MAX
        while True:
            try:
                producer.commit_transaction()
                return
            except TimedOutError as error:
                if time.monotonic() >= deadline:
                    raise InDoubtError(
                        f"the decision was sent, and there has been no answer for {DECISION_SECONDS_MAX:g} s: {error}. "
                        "Start the query again: it reads first what was decided"
                    ) from error
            except AbortableError as error:
                self._abort(producer)
                raise self._not_decided(error) from error
            except FatalError as error:
                raise self._fatal(error) from error

    def _not_decided(self, error: AbortableError) -> SinkError:
        if _has_code(error, _FENCED):  # a partition may know of the new driver before the coordinator is asked
            return self._fenced()
        return NotDecidedError(f"the batch was not decided, and nothing of it will be seen: {error}")

    def _fatal(self, error: FatalError) -> SinkError:
        if _has_code(error, _FENCED):
            return self._fenced()
        return InDoubtError(f"the decision of sink {self._sink!r} failed, and may be stored all the same: {error}")

    def _fenced(self) -> FencedError:
        return FencedError(f"another process has opened the ledger of sink.id {self._sink!r} since this one did")

    def _abort(self, producer: Producer) -> None:
        """The error that led here is the one to be told; an open transaction would end by itself in a minute."""
        with contextlib.suppress(HeadraceError):
            producer.abort_transaction()

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(CLOSE_SECONDS_MAX)


def _send(producer: Producer, topic: str, columns: pa.RecordBatch, batch: int) -> None:
    try:
        delivery = producer.send_arrow(topic, columns)
        if delivery.refusal is not None:
            raise delivery.refusal
    except (AbortableError, FatalError):
        raise
    except HeadraceError as error:
        raise NotDecidedError(
            f"batch {batch}, {not_sent(topic, error)}. Nothing of the batch is seen; it can be run again"
        ) from error


def _has_code(error: BaseException, codes: Iterable[int]) -> bool:
    wanted = frozenset(codes)
    cause: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if cause is None:
            break
        if isinstance(cause, BrokerError) and cause.code in wanted:
            return True
        cause = cause.__cause__
    return False
