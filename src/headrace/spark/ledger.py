"""The ledger: a driver's access to the decisions of one sink, with one transactional producer.

    open → (takes the sink lock) → read → write: rows + decision, one transaction → … → close

The transactional id is the sink id, so only the process that opened the ledger last can write to it. A decision is
therefore a compare-and-set: what was read after opening is still true when a write succeeds. Which run may decide is in
the holder record: see holders.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial

import pyarrow as pa

from headrace.client.blocking import BlockingClient
from headrace.client.metadata import FATAL_TOPIC_ERRORS
from headrace.config.clock import SYSTEM_CLOCK
from headrace.errors import (
    AbortableError,
    BrokerError,
    Code,
    ConfigError,
    FatalError,
    HeadraceError,
    TimedOutError,
)
from headrace.producer.engine import SendEngine
from headrace.producer.records import ProducerRecord
from headrace.producer.settings import resolve
from headrace.spark.decision_log import NOT_AUTHORIZED, DecisionLog
from headrace.spark.decisions import Decision, Records
from headrace.spark.errors import IDS_NOT_AUTHORIZED, FencedError, InDoubtError, NotDecidedError, SinkError, not_sent
from headrace.spark.holders import Holders, holders_key
from headrace.spark.sink_options import DECISION_BYTES_MAX, TRANSACTION_MS_MAX, SinkOptions
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

TRANSACTION_MS = 60_000
"""For decisions. A driver that dies in a decision blocks read_committed readers no longer than this."""
REDO_TRANSACTION_MS = TRANSACTION_MS_MAX
"""For a redo, which writes a whole transaction again."""
DECISION_SECONDS_MAX = 300.0
"""How long to wait for the response to a decision: longer than a broker needs to restart."""
CLOSE_SECONDS_MAX = 5.0
CAUSES_MAX = 10
_REQUEST_SLACK_BYTES = 64 * 1024
_FENCED = frozenset(
    {
        Code.PRODUCER_FENCED,
        Code.INVALID_PRODUCER_EPOCH,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.INVALID_TXN_STATE,
    }
)
"""The producer's epoch or id is not the current one of its transactional id, or another client ended its transaction.

The last code is what EndTxn gets if the coordinator has aborted a transaction of version 2 that timed out.
"""

Rows = Iterable[tuple[str, pa.RecordBatch]]
"""Topic and columns: key, value, headers, partition, timestamp."""


def _nothing() -> None:
    pass


class Ledger:
    """Reads and writes the decisions of one sink."""

    def __init__(self, options: SinkOptions, sink: str, client: BlockingClient) -> None:
        self._options = options
        self._sink = sink
        self._client = client
        self._log = DecisionLog(client, options.decision_topic)
        self._producer: SendEngine | None = None
        self._row_topics: set[str] = set()  # whose metadata was requested

    def open(self, transaction_ms: int = TRANSACTION_MS) -> None:
        """Take the sink lock. When this returns, open transactions of the process that had it are ended.

        If brokers refuse this transaction time-out, use the one that the user has set for tasks.
        """
        task_ms = int(self._options.kafka.get("transaction.timeout.ms", transaction_ms))
        try:
            self._open(transaction_ms)
        except ConfigError:
            if task_ms >= transaction_ms:
                raise
            self._open(task_ms)

    def _open(self, transaction_ms: int) -> None:
        self.close()
        self._ensure_topic()
        config = self._options.producer_config(self._sink)
        config["transaction.timeout.ms"] = transaction_ms
        size = int(str(config.get("max.request.size", 0)))
        config["max.request.size"] = max(size, DECISION_BYTES_MAX + _REQUEST_SLACK_BYTES)
        # An auto-created decision topic would have the wrong settings.
        producer = SendEngine(resolve(config), SYSTEM_CLOCK, creates_topics=False)
        try:
            producer.init_transactions().acknowledged = True
        except HeadraceError as error:
            producer.close(0)
            if is_fenced(error):  # by another process that opens the ledger at the same time
                raise self._fenced(error) from error
            if _has_code(error, {Code.INVALID_TRANSACTION_TIMEOUT}):
                raise ConfigError(
                    f"the brokers refuse a transaction time-out of {transaction_ms} ms: their "
                    "transaction.max.timeout.ms is lower. Raise it on the brokers"
                ) from error
            if _has_code(error, {Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}):
                raise BrokerError(IDS_NOT_AUTHORIZED, code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED) from error
            raise
        self._producer = producer

    def _ensure_topic(self) -> None:
        try:
            self._log.ensure()
        except BrokerError as error:
            if error.code not in NOT_AUTHORIZED:
                raise
            raise BrokerError(
                f"not authorized to use decision.topic {self._log.topic!r}: allow Create, or create the topic "
                "(compacted, with one partition), and allow Describe, Read and Write on it",
                code=error.code,
            ) from error

    def read_before_writing(self) -> dict[str, Decision]:
        """Return the same as `read`; create the decision topic if the ledger was never opened. For planners."""
        self._ensure_topic()
        return self.read()

    def read(self) -> dict[str, Decision]:
        """Return the last decision of each query of the sink. The ledger need not be open."""
        try:
            return self._log.read(self._sink)
        except BrokerError as error:
            if error.code == Code.UNKNOWN_TOPIC_OR_PARTITION and self._producer is None:
                return {}  # the ledger was never opened: opening creates the topic
            raise

    @property
    def holders(self) -> Holders:
        """The runs that have held the sink, as of the last `read`."""
        return self._log.holders(self._sink)

    def write_holders(self, holders: Holders) -> None:
        """Write the holder record. Errors as in `write`."""
        self._write_records({holders_key(self._sink): holders.encode()})

    def write(
        self,
        decision: Decision,
        rows: Rows = (),
        *,
        as_tombstone: bool = False,
        on_rows: Callable[[], None] = _nothing,
        on_written: Callable[[], None] = _nothing,
    ) -> None:
        """Write rows and decision in one transaction; `as_tombstone` erases the decision instead.

        NotDecidedError: nothing was committed. FencedError, InDoubtError: only the log shows whether it was.
        """
        records: Records = {decision.key: None} if as_tombstone else {**decision.records()}
        records |= self._log.unused_parts(decision, records)
        sends = (partial(self._send, topic=topic, columns=columns, batch=decision.batch) for topic, columns in rows)
        self._write_records(records, sends, on_rows, on_written)
        self._log.parts_written(decision.sink, records)

    def _write_records(
        self,
        records: Records,
        sends: Iterable[Callable[[SendEngine], None]] = (),
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
            for key, value in records.items():
                producer.send_record(ProducerRecord(self._options.decision_topic, value, key))
            on_written()
        except BaseException as error:
            self._abort(producer)
            if isinstance(error, FatalError):
                raise self._fatal(error) from error
            if isinstance(error, AbortableError):
                raise self._not_decided(error) from error
            raise
        self._commit(producer)

    def _send(self, producer: SendEngine, topic: str, columns: pa.RecordBatch, batch: int) -> None:
        try:
            self._look_up(topic)
            delivery = producer.send_arrow(topic, columns)
            if delivery.refusal is not None:
                raise delivery.refusal
        except (AbortableError, FatalError):
            raise
        except HeadraceError as error:
            is_missing = isinstance(error, TimedOutError) and topic not in producer.metadata.cluster.topics
            raise NotDecidedError(
                f"batch {batch}, {not_sent(topic, error, is_missing=is_missing)}. Nothing of the batch is visible; it "
                "can be run again"
            ) from error

    def _look_up(self, topic: str) -> None:
        """Create a missing topic with topic.create. Otherwise let the brokers do it (auto.create.topics.enable).

        The brokers create topics that tasks send to in the same way.
        """
        if topic not in self._row_topics and self._options.creation is not None:
            self._options.creation.ensure(self._client, [topic])
            self._row_topics.add(topic)
        if topic not in self._row_topics:
            message = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
            response = self._client.request(message, versions=(4, 12))
            assert isinstance(response, MetadataResponse)
            for entry in response.topics:
                if entry.error_code in FATAL_TOPIC_ERRORS:
                    raise BrokerError(f"topic {topic!r}", code=entry.error_code)
            self._row_topics.add(topic)

    def _commit(self, producer: SendEngine) -> None:
        """Commit the transaction. Once EndTxn is sent, only the coordinator knows the outcome: retry until then."""
        deadline = time.monotonic() + DECISION_SECONDS_MAX
        while True:
            try:
                producer.commit_transaction().acknowledged = True
                return
            except TimedOutError as error:
                if time.monotonic() >= deadline:
                    raise InDoubtError(
                        f"the decision was sent, and there has been no response for {DECISION_SECONDS_MAX:g} s: {error}"
                    ) from error
            except AbortableError as error:
                self._abort(producer)
                raise self._not_decided(error) from error
            except FatalError as error:
                raise self._fatal(error) from error

    def _not_decided(self, error: AbortableError) -> SinkError:
        if is_fenced(error):  # a partition leader may fence the producer before the coordinator does
            return self._fenced(error)
        return NotDecidedError(
            f"the batch was not decided, and nothing of it is visible: {error}{self._deleted_text()}"
        )

    def _deleted_text(self) -> str:
        """Explain an error if its cause is that the decision topic was deleted."""
        try:
            is_missing = self._log.is_missing()
        except HeadraceError:
            return ""
        if not is_missing:
            return ""
        return (
            f". decision.topic {self._log.topic!r} does not exist any more: it was deleted while the query ran. The "
            "next start creates it, compacted, but earlier decisions are lost: a batch that Spark runs again is "
            "delivered again"
        )

    def _fatal(self, error: FatalError) -> SinkError:
        if is_fenced(error):
            return self._fenced(error)
        return InDoubtError(
            f"writing the decision of sink.id {self._sink!r} failed, but it may have been committed: {error}"
        )

    def _fenced(self, error: HeadraceError) -> FencedError:
        """Return the error of a fenced producer. The holder record, not the error code, tells which run continues."""
        if _has_code(error, {Code.INVALID_PRODUCER_ID_MAPPING}):
            cause = "the brokers have forgotten its transactional id (transactional.id.expiration.ms)"
        else:
            cause = (
                "another process has opened the ledger since this one did, or its transaction timed out "
                "(transaction.timeout.ms)"
            )
        return FencedError(f"the producer of sink.id {self._sink!r} is fenced: {cause}: {error}")

    def _abort(self, producer: SendEngine) -> None:
        """Abort the transaction. If that fails, it expires: the error that led here is reported."""
        with contextlib.suppress(HeadraceError):
            producer.abort_transaction().acknowledged = True

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(CLOSE_SECONDS_MAX)


def is_fenced(error: BaseException) -> bool:
    """Return whether the cause of an error is that the producer's epoch or transaction is not current any more."""
    return _has_code(error, _FENCED)


def _has_code(error: BaseException, codes: Collection[int]) -> bool:
    cause: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if cause is None:
            break
        if isinstance(cause, BrokerError) and cause.code in codes:
            return True
        cause = cause.__cause__
    return False
