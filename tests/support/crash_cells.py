"""The cells of the crash matrix: one failpoint and one fault each.

A cell is a streaming query with its own topic, checkpoint and decision topic. The query runs to its failpoint
(`SETUPS`), the fault happens (`FAULTS`, in crash_columns.py), the query is restarted until it succeeds, and its topic
is compared with its source.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import fastavro

from headrace.client.blocking import BlockingClient, ClientSettings
from headrace.schema import framing
from headrace.spark.decision_log import DecisionLog
from headrace.spark.failpoints import FAILPOINTS
from headrace.spark.holders import Holder, this_driver
from headrace.spark.sink_options import SEPARATOR, SinkOptions
from headrace.spark.tracing import Trace, TracedLedger
from headrace.spark.transactions import Transactions
from tests.support.crashes import Audit, CrashingQuery, open_transactions
from tests.support.peers.broker import Broker
from tests.support.spark_driver import SparkDriver
from tests.support.topics import new_topic, unique
from tools.traces import HELPER

EXECUTOR, DRIVER, BROKER = "executor killed", "driver killed", "broker restarted"
EXPIRY, SPECULATIVE, RETRY, ZOMBIE = "transaction expired", "speculative attempt", "stage retry", "zombie driver"
LEADER, PROCESS = "leader killed", "process changes"
FAULTS = (EXECUTOR, DRIVER, BROKER, EXPIRY, SPECULATIVE, RETRY, ZOMBIE, PROCESS, LEADER)
FAILPOINT_NAMES = tuple(FAILPOINTS)

IMPOSSIBLE = {
    (EXPIRY, "task.begin"): "no transaction is open yet",
    (EXPIRY, "end.done"): "every transaction of the decision is ended: none is left that could expire",
    (EXPIRY, "finish.done"): "every transaction of the decision is ended: none is left that could expire",
}
"""Cells that are not possible, and why."""

ROWS = 84
TASKS = 3
# One task of a batch then sends its rows inline, and two open transactions: see `Cell.check`.
SHAPE = {"commit.mode": "auto", "commit.inline.bytes.max": "1200", "kafka.batch.size": "200"}
AVRO_LINE = {"type": "record", "name": "Line", "fields": [{"name": "line", "type": "string"}]}
SHORT_TRANSACTION_MS = 12_000
"""Long enough for a batch on a busy machine, short enough to wait for."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How a query reaches a failpoint."""

    previous_run: str = ""
    """Failpoints that kill an earlier run."""
    expires: bool = False
    """Whether the transactions of the earlier run must have expired."""
    same_run: str = ""
    """Failpoints before it in the same run."""


# Spark calls abort() in another process than commit(): both are killed.
_UNDECIDED, _DECIDED = "decide.begin=kill, abort.begin=kill", "decide.done=kill, abort.begin=kill"
SETUPS = {
    "begin.finish": Setup(previous_run=_DECIDED),
    "begin.abort": Setup(previous_run=_UNDECIDED),
    "redo.begin": Setup(previous_run=_DECIDED, expires=True),
    "redo.written": Setup(previous_run=_DECIDED, expires=True),
    "redo.done": Setup(previous_run=_DECIDED, expires=True),
    "replay.abort": Setup(previous_run="finish.done=kill"),
    "abort.begin": Setup(same_run="check.done=raise"),
}
"""Every first batch passes the other failpoints."""


@dataclass(slots=True)
class Outcome:
    """The result of a cell."""

    fault: str
    failpoint: str
    broker: str
    is_reached: bool = False
    starts: int = 0
    rows: int = 0
    audit: Audit = field(default_factory=Audit)
    left_open: int = 0
    open_ids: list[str] = field(default_factory=list)
    """Transactional ids of the sink with an open transaction: sink, run, worker, number."""
    last_run: str = ""
    java_count: int | None = None
    trace: str = ""
    """The file with the steps of the commit protocol: tools/traces.py."""
    problem: str = ""

    @property
    def verdict(self) -> str:
        """The problem of this cell, or an empty text."""
        if self.problem:
            return self.problem
        if not self.is_reached:
            return "the failpoint was never reached"
        if not self.audit.is_clean:
            return str(self.audit)
        if self.left_open:
            return f"{self.left_open} partitions have an open transaction: {self.open_ids}, last run {self.last_run}"
        if self.java_count != self.rows:
            return f"Java's consumer counts {self.java_count} of {self.rows} rows"
        return ""


AVRO_EVERY = 3
"""Every third cell of a column writes Avro, the others text."""


def text_of_avro(value: bytes) -> str:
    """Return the text of a struct with one field."""
    _, payload = framing.decode(value)
    row = fastavro.schemaless_reader(io.BytesIO(bytes(payload)), AVRO_LINE, None)
    assert isinstance(row, dict)
    return str(row["line"])


class Cell:
    """The query of one cell. With the URL of a schema registry, it writes Avro."""

    def __init__(
        self,
        fault: str,
        failpoint: str,
        broker: Broker,
        broker_name: str,
        *,
        folder: Path,
        prefix: str,
        registry_url: str | None = None,
    ) -> None:
        self.fault, self.failpoint = fault, failpoint
        self.setup = SETUPS.get(failpoint, Setup())
        self.outcome = Outcome(fault, failpoint, broker_name)
        self.topic = new_topic(broker, f"{prefix}-{failpoint}", 3)
        self.label = self.topic
        self._bootstrap = broker.bootstrap
        self._registry_url = registry_url
        self._folder = folder / self.topic
        self._query = CrashingQuery(self._folder, broker.bootstrap, self.topic)
        self._sink, self._decisions = unique("sink"), f"decisions-{self.topic}"
        self._run = self._spark_run = ""
        self._options: dict[str, str] = {}
        self.add_batch()

    def add_batch(self) -> None:
        self._query.add_file(ROWS, width=60, label=f"{self.label}:")

    # -- runs ------------------------------------------------------------------------------------

    @property
    def run(self) -> str:
        """The name of the last run."""
        return self._run

    @property
    def _markers(self) -> Path:
        return self._folder / "failpoints" / f"run-{self.outcome.starts}"

    def start(self, driver: SparkDriver, failpoints: str = "", transaction_ms: int | None = None) -> None:
        """Start the query."""
        self.outcome.starts += 1
        self._run = f"{self.label} start {self.outcome.starts}"
        self._markers.mkdir()
        self.outcome.trace = str(self._folder / "trace.jsonl")
        options = {
            **SHAPE,
            "kafka.bootstrap.servers": self._bootstrap,
            "topic": self.topic,
            "sink.id": self._sink,
            # Its own topic: an open decision blocks all readers of the topic.
            "decision.topic": self._decisions,
        }
        if self._registry_url is not None:
            options |= {"value.format": "avro", "schema.registry.url": self._registry_url}
            options |= {"writer.schema": json.dumps(AVRO_LINE), "schema.auto.register": "true"}
        options["headrace.failpoints"] = f"markers={self._markers}, trace={self.outcome.trace}, {failpoints}"
        if transaction_ms is not None:
            options["kafka.transaction.timeout.ms"] = str(transaction_ms)
        self._options = options
        folder = self._folder
        self._spark_run = driver.start(self._run, folder / "source", folder / "checkpoint", options, TASKS)

    def has_reached(self, failpoint: str | None = None) -> bool:
        return (self._markers / (failpoint or self.failpoint)).exists()

    def release(self, action: str = "", failpoint: str | None = None) -> None:
        """End the hold at a failpoint of this run: do the action, or continue."""
        _write_go_file(self._markers / f"{failpoint or self.failpoint}.go", action)

    def later_release(self) -> Callable[[], None]:
        """Return a function that releases this run, even if other runs are started before it is called."""
        return partial(_write_go_file, self._markers / f"{self.failpoint}.go", "")

    def take_lock(self) -> None:
        """Take the sink lock as another process of the last run does: open the ledger, read, hold the sink."""
        options = SinkOptions.parse(
            {name: value for name, value in self._options.items() if name != "headrace.failpoints"}, is_stream=True
        )
        with BlockingClient(options.client_settings()) as client:
            trace = Trace(self.outcome.trace, self._sink, self._spark_run, process=HELPER)
            ledger = TracedLedger(trace, options, self._sink, client)
            try:
                ledger.open()
                ledger.read()
                if not ledger.holders.is_held_by(self._spark_run):
                    ledger.write_holders(ledger.holders.followed_by(Holder(self._spark_run, this_driver(), 0)))
            finally:
                ledger.close()

    # -- checks ----------------------------------------------------------------------------------

    def open_partitions(self) -> int:
        return len(open_transactions(self._bootstrap, self.topic))

    def check(self, java_count: int) -> None:
        """Compare the topic with the source."""
        self.outcome.rows = len(self._query.rows)
        self.outcome.audit = self._query.audit() if self._registry_url is None else self._query.audit(text_of_avro)
        self.outcome.left_open = self.open_partitions()
        self.outcome.java_count = java_count
        with BlockingClient(ClientSettings(self._bootstrap)) as client:
            last = [*DecisionLog(client, self._decisions).read(self._sink).values()]
            self.outcome.open_ids = Transactions(client).open_ids(self._sink + SEPARATOR) or []
        self.outcome.last_run = last[0].run if last else ""
        if not (len(last) == 1 and len(last[0].transactions) > 1 and last[0].inline_rows):
            self.outcome.problem = (
                self.outcome.problem or f"expected a batch with inline rows and several transactions, got {last}"
            )


def _write_go_file(path: Path, action: str) -> None:
    path.with_suffix(".new").write_text(action)
    path.with_suffix(".new").rename(path)
