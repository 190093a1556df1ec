"""A Spark query without Spark: a driver, executors with tasks, and the real commit protocol of the sink.

    SimulatedQuery   a driver: plan batch n → tasks on executors → Committer.commit → commit log → n + 1
    Executor         a Python worker: runs tasks (TaskWriter) and keeps producers between them

As Spark does, a driver writes the plan of a batch before its tasks run, and its number to the commit log after the
commit. What a driver does not finish is run again, with the same number and rows, by a new driver with a new run. A
task whose executor is gone, or is slow, is run again on another one; both attempts may write.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa

from headrace.client.blocking import BlockingClient
from headrace.errors import HeadraceError
from headrace.spark.columns import Limits
from headrace.spark.commit_types import Batch
from headrace.spark.committer import Committer
from headrace.spark.decisions import Fingerprint
from headrace.spark.errors import SinkError
from headrace.spark.holders import DriverProcess
from headrace.spark.ledger import Ledger
from headrace.spark.sink_options import SinkOptions
from headrace.spark.task_writer import Report, TaskAttempt, TaskWriter, merged
from headrace.spark.transactions import Redo, Transactions
from headrace.verify import BatchOp, Phase
from tests.simulation.clients import Scope, SimulatedClient

QUERY = "query"
TASKS_MAX, ROWS_MAX = 3, 4
TASK_SECONDS_MAX = 40.0
"""How long the driver waits for a task before it starts another attempt."""
ATTEMPTS_MAX = 4
SPECULATION_CHANCE, FAILED_COMMIT_LOG_CHANCE = 0.1, 0.05
TRANSACTION_SECONDS = 120
"""The time-out of a task's transaction."""
RECORD_BYTES_MAX = 1024 * 1024


class Executor(SimulatedClient):
    """A process that runs tasks. It has nothing to do of its own."""

    def run(self) -> None:
        while not self.is_stopping:
            self.pause(1.0)


class SimulatedQuery(SimulatedClient):
    """A streaming query: the driver's process, and the checkpoint that survives it."""

    def __init__(self, scope: Scope, name: str, number: int, executors: Sequence[Executor], rate_per_s: float) -> None:
        super().__init__(scope, name, number)
        self.committed = -1  # the commit log
        self._executors = executors
        self._rate_per_s = rate_per_s
        self._options = SinkOptions.parse(
            {
                "kafka.bootstrap.servers": scope.bootstrap,
                "topic": scope.topic,
                "decision.topic": f"{name}-decisions",
                "kafka.request.timeout.ms": "4000",
                "kafka.delivery.timeout.ms": "12000",
                "kafka.max.block.ms": "15000",
                "kafka.transaction.timeout.ms": str(TRANSACTION_SECONDS * 1000),
                "commit.inline.bytes.max": "80",
            },
            is_stream=True,
        )

    def run(self) -> None:
        """Run drivers one after the other: the query is started again when it has failed."""
        while not self.is_stopping:
            self.generation += 1
            run = f"run{self.generation}"
            try:
                self._drive(run)
            except (HeadraceError, TaskFailedError) as error:
                self.scope.world.note(f"{self.name}: {run} ended: {type(error).__name__}: {error}")
                self.pause(self.rng.uniform(0.5, 5.0))

    def _drive(self, run: str) -> None:
        driver = DriverProcess(self.host, self.generation, 0)
        with BlockingClient(self._options.client_settings()) as client:
            ledger = Ledger(self._options, self.name, client)
            committer = Committer(
                self.name, run, ledger, Transactions(client), Redo(client), driver=driver, on_close=ledger.close
            )
            try:
                while not self.is_stopping:
                    self._run_batch(committer, run, self.committed + 1)
                    self.pause(self.rng.expovariate(self._rate_per_s))
            finally:
                committer.close()

    def _run_batch(self, committer: Committer, run: str, number: int) -> None:
        parts = self._rows_of(number)
        values = tuple(value for rows in parts for _, value in rows)
        operation = BatchOp(Phase.INVOKE, self.name, self.name, number, values)
        self.scope.history.add(operation)
        reports: list[Report] = []
        try:
            for task, rows in enumerate(parts):
                reports.append(self._run_task(run, number, task, rows))
        except TaskFailedError:
            committer.abort(self._batch(number, reports))
            raise
        committer.commit(self._batch(number, reports))
        self.scope.history.add(operation._replace(phase=Phase.OK, values=()))
        self.successes += 1
        if self.rng.random() < FAILED_COMMIT_LOG_CHANCE:
            raise TaskFailedError(f"writing batch {number} to the commit log failed")
        self.committed = max(self.committed, number)

    def _rows_of(self, number: int) -> list[list[tuple[int, str]]]:
        """Return the rows of each task: partition and value. A batch that is run again has the same ones."""
        rng = random.Random(f"{self.scope.world.seed} {self.name} {number}")
        return [
            [
                (rng.randrange(self.scope.partitions), f"{self.name}/{number}:{task}:{row}")
                for row in range(rng.randint(1, ROWS_MAX))
            ]
            for task in range(rng.randint(1, TASKS_MAX))
        ]

    def _batch(self, number: int, reports: list[Report]) -> Batch:
        transactions = [report.transaction for report in reports if report.transaction is not None]
        fingerprint = sum((report.fingerprint for report in reports), Fingerprint())
        return Batch(QUERY, number, transactions, merged(reports), fingerprint=fingerprint)

    # -- tasks -----------------------------------------------------------------------------------

    def _run_task(self, run: str, batch: int, task: int, rows: list[tuple[int, str]]) -> Report:
        """Return the first report of the attempts of a task."""
        reports: list[Report] = []
        failures: list[str] = []
        for attempt in range(ATTEMPTS_MAX):
            pending = [TaskAttempt(self.name, QUERY, run, batch, task, attempt)]
            if self.rng.random() < SPECULATION_CHANCE:
                pending.append(TaskAttempt(self.name, QUERY, run, batch, task, attempt + ATTEMPTS_MAX))
            for each in pending:
                self._start_attempt(each, rows, reports, failures)
            deadline = self.scope.world.now + TASK_SECONDS_MAX
            while not reports and len(failures) <= attempt and self.scope.world.now < deadline:
                self.pause(0.02)
            if reports:
                return reports[0]
            self.pause(0.5)
        raise TaskFailedError(f"task {task} of batch {batch} failed {ATTEMPTS_MAX} times: {failures[-1:]}")

    def _start_attempt(
        self, attempt: TaskAttempt, rows: list[tuple[int, str]], reports: list[Report], failures: list[str]
    ) -> None:
        executor = self.rng.choice(self._executors)
        process = executor.process
        if process is None or not process.is_alive:
            failures.append(f"{executor.name} is gone")
            return
        limits = Limits(RECORD_BYTES_MAX, {self.scope.topic: self.scope.partitions})
        columns = pa.RecordBatch.from_pydict(
            {
                "key": [value for _, value in rows],
                "value": [value for _, value in rows],
                "partition": pa.array([partition for partition, _ in rows], pa.int32()),
            }
        )

        def work() -> None:
            try:
                reports.append(TaskWriter(self._options, attempt, limits).write(iter([columns])))
            except (HeadraceError, SinkError) as error:
                failures.append(repr(error))

        process.start_thread(work, f"{process}/task")


class TaskFailedError(Exception):
    """Ends a driver: a task failed too often, or the checkpoint cannot be written."""
