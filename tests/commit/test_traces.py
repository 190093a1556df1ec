"""The committer against its model: what it does in failures is a behaviour of model/CommitProtocol.tla."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from headrace.errors import HeadraceError
from headrace.spark import committer, replays
from headrace.spark.commit_types import Batch
from headrace.spark.committer import Committer
from headrace.spark.failpoints import FAILPOINTS, FailpointError
from headrace.spark.holders import Holder, this_driver
from headrace.spark.replays import ReplayChecks
from headrace.spark.task_writer import Report
from headrace.spark.tracing import Trace, TracedLedger
from tests.support.sink_rig import SinkRig, Steps
from tools import traces

RUN_0, RUN_1, RUN_2, RUN_3 = "run-0", "run-1", "run-2", "run-3"
SECONDS_MAX = 300
DRIVER_FAILPOINTS = [name for name in FAILPOINTS if not name.startswith("task.")]


def fail() -> None:
    raise FailpointError("on purpose")


class Scenario:
    """A sink with a trace: two tasks and inline rows for each batch."""

    def __init__(self, rig: SinkRig, path: Path) -> None:
        self.rig, self.path = rig, path
        self.is_reached = False
        rig.trace = str(path)

    def batch(self, run: str, number: int, rows: str = "") -> Batch:
        return self.rig.batch(number, *self.reports(run, number, rows))

    def reports(self, run: str, number: int, rows: str = "") -> list[Report]:
        tasks = [
            self.rig.task([f"{letter}{number}{rows}"], batch=number, run=run, partition=partition)
            for partition, letter in enumerate("ab")
        ]
        return [*tasks, self.rig.task([f"c{number}{rows}"], batch=number, run=run, commit__mode="inline")]

    def try_to_commit(self, run: str, batch: Batch, steps: Steps | None = None) -> None:
        """Commit as Spark does: a failed commit is followed by abort()."""
        driver = self.rig.driver(run, steps)
        try:
            driver.commit(batch)
        except HeadraceError:
            with contextlib.suppress(FailpointError):
                driver.abort(batch)

    def commit_all(self, run: str) -> None:
        """Commit two batches in a new driver."""
        driver = self.rig.driver(run)
        for number in range(2):
            driver.commit(self.batch(run, number))

    def steps(self, failpoint: str, action: Callable[[], None]) -> Steps:
        """Return steps with an action at a failpoint, and a failure if abort() has to be called for that."""

        def act() -> None:
            self.is_reached = True
            action()

        before = {"check.done": fail} if failpoint == "abort.begin" else {}
        return Steps(**before, **{failpoint: act})

    def prepare(self, failpoint: str) -> None:
        """Run an earlier driver, if the failpoint needs one."""
        at = {"begin.finish": "decide.done", "begin.abort": "decide.begin", "replay.abort": "finish.done"}.get(
            failpoint
        )
        if failpoint.startswith("redo."):
            at = "decide.done"
        if at is not None:
            with contextlib.suppress(HeadraceError):
                self.rig.driver(RUN_0, self.steps(at, fail)).commit(self.batch(RUN_0, 0))
        if failpoint.startswith("redo."):
            self.abort_open()

    def abort_open(self) -> None:
        self.rig.transactions.fence(self.rig.transactions.open_ids(self.rig.sink) or [])

    def take_lock(self, run: str) -> None:
        """Take the sink lock as another process of the run does: open the ledger, read, hold the sink."""
        ledger = TracedLedger(
            Trace(str(self.path), self.rig.sink, run, traces.HELPER), self.rig.options(), self.rig.sink, self.rig.client
        )
        ledger.open()
        ledger.read()
        if not ledger.holders.is_held_by(run):
            ledger.write_holders(ledger.holders.followed_by(Holder(run, this_driver(), 0)))
        ledger.close()

    def lines(self) -> list[traces.Line]:
        return traces.read(self.path)


def fail_then_succeed(scenario: Scenario, failpoint: str) -> None:
    """The commit fails at the failpoint; the query is restarted."""
    scenario.try_to_commit(RUN_1, scenario.batch(RUN_1, 0), scenario.steps(failpoint, fail))
    scenario.commit_all(RUN_2)


def die_then_succeed(scenario: Scenario, failpoint: str) -> None:
    """The driver dies at the failpoint, and nothing is cleaned up; the query is restarted."""
    with contextlib.suppress(HeadraceError):
        scenario.rig.driver(RUN_1, scenario.steps(failpoint, fail)).commit(scenario.batch(RUN_1, 0))
    scenario.commit_all(RUN_2)


def come_back_as_a_zombie(scenario: Scenario, failpoint: str) -> None:
    """Another driver takes over and goes on, while the first one is at the failpoint."""
    steps = scenario.steps(failpoint, lambda: scenario.commit_all(RUN_2))
    scenario.try_to_commit(RUN_1, scenario.batch(RUN_1, 0), steps)


def come_back_to_a_new_holder(scenario: Scenario, failpoint: str) -> None:
    """Another driver has taken the sink over, and has decided nothing yet."""

    def take_over() -> None:
        with contextlib.suppress(HeadraceError):
            scenario.rig.driver(RUN_2, Steps(begin__done=fail)).commit(scenario.batch(RUN_2, 0))

    scenario.try_to_commit(RUN_1, scenario.batch(RUN_1, 0), scenario.steps(failpoint, take_over))


def change_process(scenario: Scenario, failpoint: str) -> None:
    """Another process of the run takes the sink lock, as another query of the driver makes it do."""
    scenario.try_to_commit(
        RUN_1, scenario.batch(RUN_1, 0), scenario.steps(failpoint, lambda: scenario.take_lock(RUN_1))
    )
    scenario.commit_all(RUN_2)


def expire(scenario: Scenario, failpoint: str) -> None:
    """All open transactions of tasks are aborted, as if they had expired."""
    steps = scenario.steps(failpoint, scenario.abort_open)
    scenario.try_to_commit(RUN_1, scenario.batch(RUN_1, 0), steps)
    scenario.commit_all(RUN_2)


def restore_the_checkpoint(scenario: Scenario, _: str) -> None:
    """A batch comes again with other rows, then one with the number of an earlier batch: both are refused."""
    scenario.commit_all(RUN_1)
    for run, number in ((RUN_2, 1), (RUN_3, 0)):
        scenario.try_to_commit(run, scenario.batch(run, number, "other rows"))


FAULTS = (fail_then_succeed, die_then_succeed, come_back_as_a_zombie, change_process, expire)


@pytest.mark.timeout(SECONDS_MAX)
def test_every_failure_at_every_failpoint_is_a_behaviour_of_the_model(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """All in one run of TLC."""
    recorded: dict[str, list[traces.Line]] = {}
    cells = {*itertools.product(FAULTS, DRIVER_FAILPOINTS), (restore_the_checkpoint, "")}
    cells.remove((die_then_succeed, "abort.begin"))  # a driver that dies does not call it
    for fault, failpoint in sorted(cells, key=str):
        name = f"{fault.__name__} at {failpoint}"
        with SinkRig(broker) as rig:
            scenario = Scenario(rig, tmp_path / f"{name}.jsonl")
            scenario.prepare(failpoint)
            scenario.is_reached = not failpoint
            fault(scenario, failpoint)
            assert scenario.is_reached, name
            assert sorted(rig.rows()) == ["a0", "a1", "b0", "b1", "c0", "c1"], name
            recorded[name] = scenario.lines()
    rejected = [verdict for verdict in traces.check(recorded) if not verdict.is_accepted]
    assert not rejected, "\n".join(map(str, rejected))


COMMITTER, REPLAYS = "committer.py", "replays.py"


@dataclass(frozen=True)
class Deviation:
    """A change of the code that the model does not allow, and a scenario in which it shows."""

    module: str
    before: str
    after: str
    scenario: Callable[[Scenario, str], None]
    failpoint: str


DEVIATIONS = {
    "transactions are committed before the decision": Deviation(
        COMMITTER,
        "        decision = self._decide(batch)\n",
        "        self._transactions.end(batch.transactions, committed=True)\n        decision = self._decide(batch)\n",
        *(fail_then_succeed, "end.done"),
    ),
    "a batch is decided without a check": Deviation(
        COMMITTER, "        self._check(batch)\n", "", *(fail_then_succeed, "end.done")
    ),
    "a redo does not read the decisions again": Deviation(
        COMMITTER,
        "        self._is_open_for_redo = True\n        self._decisions = self._ledger.read()\n",
        "        self._is_open_for_redo = True\n",
        *(fail_then_succeed, "redo.done"),
    ),
    "a decision is marked as finished before its transactions are ended": Deviation(
        COMMITTER,
        "        unended = decision.unended\n",
        "        unended = decision.unended\n        self._ledger.write(decision.finished())\n",
        *(fail_then_succeed, "end.done"),
    ),
    "a replay is accepted without comparing fingerprints": Deviation(
        REPLAYS, "or not self._is_same(batch, last)", "", *(restore_the_checkpoint, "")
    ),
    "a batch with a lower number is accepted": Deviation(
        REPLAYS,
        "        return batch.number < last.batch or not self._is_same(batch, last)\n",
        "        return batch.number == last.batch and not self._is_same(batch, last)\n",
        *(restore_the_checkpoint, ""),
    ),
    "a new run does not write the holder record": Deviation(
        COMMITTER, "            self._take_over()\n", "            pass\n", *(fail_then_succeed, "end.done")
    ),
    "a run that was fenced takes the sink back": Deviation(
        COMMITTER,
        "        if last is None or not holders.is_fenced(self._run):\n",
        "        if True:\n",
        *(come_back_to_a_new_holder, "decide.begin"),
    ),
    "a decision is not finished by the next run": Deviation(
        COMMITTER,
        "            if not decision.is_finished:\n                self._reach",
        "            if False:\n                self._reach",
        *(die_then_succeed, "decide.done"),
    ),
    "transactions that are in no decision are committed": Deviation(
        COMMITTER,
        "self._transactions.end(undecided, committed=False)",
        "self._transactions.end(undecided, committed=True)",
        *(fail_then_succeed, "check.done"),
    ),
}


@pytest.mark.timeout(SECONDS_MAX)
def test_a_deviation_of_the_code_is_no_behaviour_of_the_model(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """All in one run of TLC, beside the same scenarios without the deviation."""
    recorded: dict[str, list[traces.Line]] = {}
    for title, deviation in DEVIATIONS.items():
        for name in (f"with: {title}", f"without: {title}"):
            with SinkRig(broker) as rig, pytest.MonkeyPatch.context() as patch, contextlib.suppress(HeadraceError):
                if name.startswith("with:"):
                    apply(deviation, patch)
                scenario = Scenario(rig, tmp_path / f"{len(recorded)}.jsonl")
                scenario.prepare(deviation.failpoint)
                deviation.scenario(scenario, deviation.failpoint)
            recorded[name] = scenario.lines()
    verdicts = traces.check(recorded)
    wrong = [verdict for verdict in verdicts if verdict.is_accepted is not verdict.name.startswith("without:")]
    assert not wrong, "\n".join(map(str, wrong))


def apply(deviation: Deviation, patch: pytest.MonkeyPatch) -> None:
    """Replace the methods of a class by those of its changed source."""
    module, cls = {COMMITTER: (committer, Committer), REPLAYS: (replays, ReplayChecks)}[deviation.module]
    source = inspect.getsource(module)
    assert source.count(deviation.before) == 1, deviation
    changed = types.ModuleType(module.__name__)
    exec(compile(source.replace(deviation.before, deviation.after), deviation.module, "exec"), changed.__dict__)
    for name, member in vars(getattr(changed, cls.__name__)).items():
        if inspect.isfunction(member):
            patch.setattr(cls, name, member)
