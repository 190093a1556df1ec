"""A sink without Spark: its tasks, ledgers and drivers run in the test, against a real broker."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Self

import pyarrow as pa

from headrace.broker import EmbeddedBroker
from headrace.client.blocking import BlockingClient
from headrace.config.clock import SYSTEM_CLOCK
from headrace.producer.producer import Producer
from headrace.spark import worker
from headrace.spark.columns import Limits
from headrace.spark.commit_types import Batch
from headrace.spark.committer import Committer
from headrace.spark.decisions import Decision, Fingerprint, TaskTransaction
from headrace.spark.failpoints import FAILPOINTS, Failpoints
from headrace.spark.ledger import Ledger
from headrace.spark.origins import known_origins
from headrace.spark.sink_options import SinkOptions
from headrace.spark.task_writer import Report, TaskAttempt, TaskWriter, merged
from headrace.spark.tracing import new_committer
from headrace.spark.transactions import Redo, Transactions
from tests.support.crashes import committed
from tests.support.topics import unique

QUERY = "query"
PARTITIONS = 2
RECORD_BYTES_MAX = 1024 * 1024


class Steps(Failpoints):
    """Failpoints that call a function of the test, each the first time it is reached."""

    def __init__(self, **actions: Callable[[], None]) -> None:
        super().__init__("")
        self._calls: dict[str, Callable[[], None]] = {}
        self.add(**actions)

    def add(self, **actions: Callable[[], None]) -> None:
        self._calls |= {name.replace("__", "."): action for name, action in actions.items()}
        assert self._calls.keys() <= FAILPOINTS.keys()

    def reach(self, name: str) -> None:
        action = self._calls.pop(name, None)
        if action is not None:
            action()


class _DiscardError(Exception):
    """Makes the worker close the producer that it would keep."""


class SinkRig:
    """A sink with its own topic and decision topic."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.sink = unique("sink")
        self.topic = broker.create_topic(unique("rows"), PARTITIONS)
        self.decision_topic = unique("decisions")
        self.trace = ""  # a file: drivers write a trace
        self._stack = contextlib.ExitStack()
        self._used: dict[str, SinkOptions] = {}
        self.client = self._stack.enter_context(BlockingClient(self.options().client_settings()))
        self.transactions = Transactions(self.client)
        self.redo = Redo(self.client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for options in self._used.values():
            with contextlib.suppress(_DiscardError), worker.producer_of(options):
                raise _DiscardError
        self._stack.close()

    def options(self, **given: str) -> SinkOptions:
        """Return the options of the sink; `commit__mode="auto"` sets the option commit.mode."""
        options = {
            "kafka.bootstrap.servers": self.broker.bootstrap,
            "topic": self.topic,
            "decision.topic": self.decision_topic,
            "commit.mode": "parallel",
            **{name.replace("__", "."): value for name, value in given.items()},
        }
        return SinkOptions.parse(options, is_stream=True)

    # -- tasks -----------------------------------------------------------------------------------

    def task(
        self, *parts: Sequence[str], batch: int = 0, run: str = "run", partition: int | None = 0, **options: str
    ) -> Report:
        """Run a task that writes these parts to one partition of the topic."""
        columns = (_columns(part, partition) for part in parts)
        return self.write(columns, batch=batch, run=run, **options)

    def write(
        self,
        columns: Iterator[pa.RecordBatch],
        *,
        batch: int = 0,
        run: str = "run",
        query: str = QUERY,
        **options: str,
    ) -> Report:
        """Run a task; with source.offsets, it is planned with the current decisions."""
        parsed = self.options(**options)
        self._used[repr(sorted(parsed.producer_config().items()))] = parsed
        limits = Limits(RECORD_BYTES_MAX, {self.topic: PARTITIONS})
        known = None if parsed.origins is None else known_origins(self.ledger().read_before_writing())
        return TaskWriter(parsed, TaskAttempt(self.sink, query, run, batch, 0, 0), limits, known).write(columns)

    def transaction(self, *parts: Sequence[str], **options: str) -> TaskTransaction:
        """Run a task, and return the transaction that it has left open."""
        transaction = self.task(*parts, **options).transaction  # type: ignore[arg-type]
        assert transaction is not None
        return transaction

    # -- the driver ------------------------------------------------------------------------------

    def ledger(self, sink: str | None = None, **options: str) -> Ledger:
        ledger = Ledger(self.options(**options), sink or self.sink, self.client)
        self._stack.callback(ledger.close)
        return ledger

    def driver(
        self, run: str = "run", steps: Failpoints | None = None, now_ms: Callable[[], int] = SYSTEM_CLOCK.time_ms
    ) -> Committer:
        steps = steps or Steps()
        steps.trace = self.trace
        committer = new_committer(self.options(), self.sink, run, self.client, steps, now_ms=now_ms)
        self._stack.callback(committer.close)
        return committer

    def batch(self, number: int, *reports: Report) -> Batch:
        transactions = [report.transaction for report in reports if report.transaction is not None]
        fingerprint = sum((report.fingerprint for report in reports), Fingerprint())
        origins = [report.origin for report in reports if report.origin is not None]
        origin = reduce(operator.add, origins) if origins else None
        query = reports[0].task.query if reports else QUERY
        return Batch(query, number, transactions, merged([*reports]), fingerprint=fingerprint, origin=origin)

    def decision(self, batch: int = 0, *transactions: TaskTransaction, query: str = QUERY) -> Decision:
        return Decision(self.sink, query, "run", batch, transactions)

    def producer(self, transactional_id: str, **config: str) -> Producer:
        """Return a transactional producer of another client, initialised."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrap, "transactional.id": transactional_id, **settings}
        )
        self._stack.callback(producer.close, 0)
        producer.init_transactions()
        return producer

    # -- content of the topic --------------------------------------------------------------------

    def rows(self) -> list[str]:
        """Return the committed values, by partition and offset."""
        by_partition = committed(self.broker.bootstrap, self.topic)
        return [(value or b"").decode() for _, records in sorted(by_partition.items()) for _, value in records]


def _columns(rows: Sequence[str], partition: int | None) -> pa.RecordBatch:
    columns: Mapping[str, object] = {"key": [row[:1] for row in rows], "value": list(rows)}
    batch = pa.RecordBatch.from_pydict(columns)
    if partition is None:
        return batch
    return batch.append_column("partition", pa.array([partition] * len(rows), pa.int32()))


def hours_from_now(hours: float) -> Callable[[], int]:
    """Return a clock with this error."""
    return lambda: SYSTEM_CLOCK.time_ms() + int(hours * 3_600_000)
