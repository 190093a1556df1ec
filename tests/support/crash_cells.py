"""The crash matrix as a table: at which failpoint what happens, and how a query gets there.

A cell is a streaming query of its own, with a topic, a checkpoint and a decision topic of its own. It is led to its
failpoint (`WAYS`), something happens there (`FAULTS`, done in crash_columns.py), it is started again as often as it
takes, and in the end its topic is compared with its source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headrace.client.blocking import BlockingClient, ClientSettings
from headrace.spark.decisions import DecisionLog
from headrace.spark.failpoints import FAILPOINTS
from headrace.spark.holders import Holder, this_driver
from headrace.spark.ledger import Ledger
from headrace.spark.sink_options import SEPARATOR, SinkOptions
from headrace.spark.transactions import Transactions
from tests.support.crashes import Audit, CrashingQuery, open_transactions
from tests.support.peers.broker import Broker
from tests.support.spark_driver import SparkDriver
from tests.support.topics import new_topic, unique

EXECUTOR, DRIVER, BROKER = "executor killed", "driver killed", "broker restarted"
EXPIRY, SPECULATIVE, RETRY, ZOMBIE = "transaction expired", "speculative attempt", "stage retry", "zombie driver"
LEADER, PROCESS = "leader killed", "process changes"
FAULTS = (EXECUTOR, DRIVER, BROKER, EXPIRY, SPECULATIVE, RETRY, ZOMBIE, PROCESS, LEADER)
PLACES = tuple(FAILPOINTS)

NONSENSE = {
    (EXPIRY, "task.begin"): "no transaction is open yet",
    (EXPIRY, "end.done"): "every transaction of the decision is ended: none is left that could expire",
    (EXPIRY, "finish.done"): "every transaction of the decision is ended: none is left that could expire",
}
"""Cells that cannot be, and why."""

ROWS = 84
TASKS = 3
# In a batch of these sizes one task is small enough to ride home, and two are not: see `Cell.judge`.
SHAPE = {"commit.mode": "auto", "commit.inline.bytes.max": "1200", "kafka.batch.size": "200"}
SHORT_TRANSACTION_MS = 12_000
"""Long enough for a batch on a busy machine, short enough to wait for."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a query is led to a failpoint."""

    before: str = ""
    """Failpoints of an earlier run, which dies of them."""
    expires: bool = False
    """Whether transactions of the earlier run have to run out."""
    beside: str = ""
    """Failpoints of the run itself, on the way there."""


# Spark calls abort() in another process than the one that died in commit(): that has to die as well.
_UNDECIDED, _DECIDED = "decide.begin=kill, abort.begin=kill", "decide.done=kill, abort.begin=kill"
WAYS = {
    "begin.finish": Way(before=_DECIDED),
    "begin.abort": Way(before=_UNDECIDED),
    "redo.begin": Way(before=_DECIDED, expires=True),
    "redo.written": Way(before=_DECIDED, expires=True),
    "redo.done": Way(before=_DECIDED, expires=True),
    "replay.abort": Way(before="finish.done=kill"),
    "abort.begin": Way(beside="check.done=raise"),
}
"""The others are passed by any first batch."""


@dataclass(slots=True)
class Outcome:
    """What became of a cell."""

    fault: str
    place: str
    broker: str
    is_reached: bool = False
    starts: int = 0
    rows: int = 0
    audit: Audit = field(default_factory=Audit)
    left_open: int = 0
    open_ids: list[str] = field(default_factory=list)
    """Transactional ids of the sink that have one open: sink, run, worker, number."""
    last_run: str = ""
    java_count: int | None = None
    problem: str = ""

    @property
    def verdict(self) -> str:
        """Empty if all is well."""
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


class Cell:
    """One query on its way through the matrix."""

    def __init__(self, fault: str, place: str, broker: Broker, broker_name: str, folder: Path, prefix: str) -> None:
        self.fault, self.place = fault, place
        self.way = WAYS.get(place, Way())
        self.outcome = Outcome(fault, place, broker_name)
        self.topic = new_topic(broker, f"{prefix}-{place}", 3)
        self.label = self.topic
        self._bootstrap = broker.bootstrap
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
        """The name of the last start."""
        return self._run

    @property
    def _marks(self) -> Path:
        return self._folder / "failpoints" / f"run-{self.outcome.starts}"

    def start(self, driver: SparkDriver, failpoints: str = "", transaction_ms: int | None = None) -> None:
        """Start the query once more."""
        self.outcome.starts += 1
        self._run = f"{self.label} start {self.outcome.starts}"
        self._marks.mkdir()
        options = {
            **SHAPE,
            "kafka.bootstrap.servers": self._bootstrap,
            "topic": self.topic,
            "sink.id": self._sink,
            # Of its own: a decision that is held open keeps every reader of its topic waiting.
            "decision.topic": self._decisions,
        }
        if failpoints:
            options["headrace.failpoints"] = f"markers={self._marks}, {failpoints}"
        if transaction_ms is not None:
            options["kafka.transaction.timeout.ms"] = str(transaction_ms)
        self._options = options
        folder = self._folder
        self._spark_run = driver.start(self._run, folder / "source", folder / "checkpoint", options, TASKS)

    def has_reached(self, place: str | None = None) -> bool:
        return (self._marks / (place or self.place)).exists()

    def order(self, action: str = "", place: str | None = None) -> None:
        """To whoever is held at a place of this run: what to do."""
        _order(self._marks / f"{place or self.place}.go", action)

    def release(self) -> Callable[[], None]:
        """The same order to go on, for later: other runs may come between."""
        return partial(_order, self._marks / f"{self.place}.go", "")

    def take_lock(self) -> None:
        """As another process of the last start does that serves a commit: open the ledger, read, hold the sink."""
        options = SinkOptions.parse(
            {name: value for name, value in self._options.items() if name != "headrace.failpoints"}, is_stream=True
        )
        with BlockingClient(options.client_settings()) as client:
            ledger = Ledger(options, self._sink, client)
            try:
                ledger.open()
                ledger.read()
                if not ledger.holders.is_held_by(self._spark_run):
                    ledger.write_holders(ledger.holders.followed_by(Holder(self._spark_run, this_driver(), 0)))
            finally:
                ledger.close()

    # -- what is there ---------------------------------------------------------------------------

    def open_partitions(self) -> int:
        return len(open_transactions(self._bootstrap, self.topic))

    def judge(self, java_count: int) -> None:
        """Compare the topic with the source."""
        self.outcome.rows = len(self._query.rows)
        self.outcome.audit = self._query.audit()
        self.outcome.left_open = self.open_partitions()
        self.outcome.java_count = java_count
        with BlockingClient(ClientSettings(self._bootstrap)) as client:
            last = [*DecisionLog(client, self._decisions).read(self._sink).values()]
            self.outcome.open_ids = Transactions(client).open_ids(self._sink + SEPARATOR) or []
        self.outcome.last_run = last[0].run if last else ""
        if not (len(last) == 1 and len(last[0].transactions) > 1 and last[0].inline_rows):
            self.outcome.problem = self.outcome.problem or f"not a batch of both kinds of tasks: {last}"


def _order(path: Path, action: str) -> None:
    path.with_suffix(".new").write_text(action)
    path.with_suffix(".new").rename(path)
