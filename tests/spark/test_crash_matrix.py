"""The crash matrix: every failure at every failpoint, on both brokers; every row is visible once.

Faults that need several brokers run on a headrace cluster.

`make crash-matrix` runs all cells (HEADRACE_CRASH_MATRIX=all), prints a table and JSON, and shows its progress;
otherwise a few cells of each kind run. docs/exactly-once.md explains every cell.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from headrace.spark.failpoints import FAILPOINTS
from tests.support.crash_cells import (
    BROKER,
    DRIVER,
    EXECUTOR,
    EXPIRY,
    FAILPOINT_NAMES,
    FAULTS,
    IMPOSSIBLE,
    LEADER,
    PROCESS,
    RETRY,
    SHORT_TRANSACTION_MS,
    SPECULATIVE,
    ZOMBIE,
    Outcome,
)
from tests.support.crash_columns import Column
from tests.support.peers.broker import Broker
from tests.support.peers.embedded import OwnBroker
from tests.support.peers.embedded_cluster import OwnCluster
from tests.support.peers.real_kafka import RealKafka
from tools import traces

PROJECT = Path(__file__).parents[2]
COLUMN_SECONDS_MAX = 1500
OURS, APACHE, CLUSTER = "headrace", "apache", "cluster"
IS_WHOLE = os.environ.get("HEADRACE_CRASH_MATRIX") == "all"
CLEANUP = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}

SHORT = {
    (OURS, EXECUTOR): ("task.flushed", "decide.done"),
    (OURS, BROKER): FAILPOINT_NAMES,
    (OURS, EXPIRY): ("check.done", "end.between", "redo.written"),
    (OURS, RETRY): ("task.sent", "end.between"),
    (OURS, SPECULATIVE): ("task.flushed", "decide.begin"),
    (OURS, ZOMBIE): ("begin.fence", "decide.begin"),
    (OURS, PROCESS): ("begin.held", "decide.written", "decide.done", "redo.written"),
    (APACHE, DRIVER): ("task.flushed", "decide.written", "decide.done", "replay.abort"),
    (CLUSTER, LEADER): ("task.flushed", "decide.written", "decide.done", "end.between"),
}
"""The cells of `make test-spark`."""
EVERY_RUN = {column: SHORT[column] for column in ((OURS, BROKER), (APACHE, DRIVER), (CLUSTER, LEADER))}
"""The cells of `make test`: few columns with many cells, because the cells of a column run side by side."""

MET = {broker: [fault for fault in FAULTS if fault != LEADER] for broker in (OURS, APACHE)} | {CLUSTER: [LEADER]}
"""The faults of each broker."""
WHOLE = {(broker, fault): FAILPOINT_NAMES for broker, faults in MET.items() for fault in faults}
SELECTED = WHOLE if IS_WHOLE else SHORT


def cells() -> Iterator[object]:
    for (broker, fault), failpoints in SELECTED.items():
        for failpoint in failpoints:
            reason = IMPOSSIBLE.get((fault, failpoint))
            marks = [pytest.mark.skip(reason=reason)] if reason else []
            if failpoint not in EVERY_RUN.get((broker, fault), ()):
                marks.append(pytest.mark.slow)
            yield pytest.param(broker, fault, failpoint, marks=marks, id=f"{broker}-{fault}-{failpoint}")


class Matrix:
    """Runs a column when the first of its cells is needed."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> None:
        self._paths = tmp_path_factory
        self._request = request
        self._brokers: dict[tuple[str, bool], Broker] = {}
        self._stack = ExitStack()
        self.columns: dict[tuple[str, str], list[Outcome]] = {}

    def outcome(self, broker: str, fault: str, failpoint: str) -> Outcome:
        column = self.columns.get((broker, fault))
        if column is None:
            self.columns[broker, fault] = []  # a column that fails as a whole is not run again for its next cell
            column = self.columns[broker, fault] = self._run(broker, fault)
        return next(
            (outcome for outcome in column if outcome.failpoint == failpoint), Outcome(fault, failpoint, broker)
        )

    def _run(self, broker: str, fault: str) -> list[Outcome]:
        failpoints = [failpoint for failpoint in self._selected(broker, fault) if (fault, failpoint) not in IMPOSSIBLE]
        folder = self._paths.mktemp(f"{broker}-{fault.replace(' ', '-')}")
        jars = self._request.getfixturevalue("kafka_jars")("4.3.0")
        column = Column(fault, self._broker(broker, fault == EXPIRY), broker, folder=folder, jars=jars, log=_log)
        return column.run(failpoints)

    def _selected(self, broker: str, fault: str) -> list[str]:
        """Return the failpoints of a column that are selected in this run."""
        cells = [item.callspec.params for item in self._request.session.items if hasattr(item, "callspec")]
        chosen = {cell["failpoint"] for cell in cells if (cell.get("broker"), cell.get("fault")) == (broker, fault)}
        return [failpoint for failpoint in SELECTED[broker, fault] if failpoint in chosen]

    def _broker(self, name: str, is_short: bool) -> Broker:
        """Return a broker for this module: it is killed, and checks for expired transactions often."""
        if (name, is_short) not in self._brokers:
            options = dict(CLEANUP)
            if is_short:
                options["transaction.max.timeout.ms"] = str(SHORT_TRANSACTION_MS)
            started = self._start(name, options)
            self._stack.callback(started.remove)
            self._brokers[name, is_short] = started
        return self._brokers[name, is_short]

    def _start(self, name: str, options: dict[str, str]) -> OwnBroker | OwnCluster | RealKafka:
        if name == CLUSTER:
            return OwnCluster(options)
        if name == OURS:
            own = OwnBroker(EmbeddedBroker({"transaction.state.log.num.partitions": 4, **options}))
            own.embedded.start()
            return own
        jars = self._request.getfixturevalue("kafka_jars")("4.3.0")
        kafka = RealKafka(jars, self._paths.mktemp("kafka") / "data", options)
        kafka.start()
        return kafka

    def close(self) -> None:
        self._stack.close()


def _log(text: str) -> None:
    print(text, file=sys.__stderr__ if IS_WHOLE else sys.stdout, flush=True)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory, request):
    pytest.importorskip("pyspark.sql")
    matrix = Matrix(tmp_path_factory, request)
    try:
        yield matrix
    finally:
        matrix.close()
        if IS_WHOLE:
            _log(table(matrix.columns))


@pytest.mark.timeout(COLUMN_SECONDS_MAX)
@pytest.mark.behaviour("S05", "S06")
@pytest.mark.parametrize(("broker", "fault", "failpoint"), [*cells()])
def test_every_row_is_visible_once(matrix, broker, fault, failpoint):
    outcome = matrix.outcome(broker, fault, failpoint)
    assert outcome.verdict == "", outcome


@pytest.mark.timeout(COLUMN_SECONDS_MAX)
@pytest.mark.behaviour("S05")
def test_the_steps_of_every_cell_are_a_behaviour_of_the_model(matrix):
    """Of the cells that ran before this test: model/CommitProtocol.tla has to explain what their committers did."""
    outcomes = [outcome for column in matrix.columns.values() for outcome in column if outcome.is_reached]
    if not outcomes:
        pytest.skip("no cell was run")
    names = [f"{outcome.broker}: {outcome.fault} at {outcome.failpoint}" for outcome in outcomes]
    verdicts = traces.check(
        {name: traces.read(Path(outcome.trace)) for name, outcome in zip(names, outcomes, strict=True)}
    )
    rejected = [verdict for verdict in verdicts if not verdict.is_accepted]
    _log(f"traces: {len(verdicts) - len(rejected)} of {len(verdicts)} are behaviours of the model")
    assert not rejected, "\n".join(map(str, rejected))


def test_every_failpoint_is_tested_with_every_possible_fault():
    """docs/exactly-once.md has an explanation for each cell, or a dash for one that does not exist."""
    documented = cells_of((PROJECT / "docs" / "exactly-once.md").read_text())
    assert documented.keys() == {(fault, failpoint) for fault in FAULTS for failpoint in FAILPOINTS}
    assert {cell for cell, text in documented.items() if text == "–"} == IMPOSSIBLE.keys()
    run = {
        (fault, failpoint) for (_, fault), failpoints in WHOLE.items() for failpoint in failpoints
    } - IMPOSSIBLE.keys()
    assert run == {cell for cell, text in documented.items() if re.fullmatch(r"\d+(, \d+)*", text)}


@pytest.mark.parametrize("cells_of_run", [SHORT, EVERY_RUN], ids=["make test-spark", "make test"])
def test_a_shorter_run_has_possible_cells_only(cells_of_run):
    chosen = {(fault, failpoint) for (_, fault), failpoints in cells_of_run.items() for failpoint in failpoints}
    assert chosen
    assert not chosen & IMPOSSIBLE.keys()
    assert all(set(failpoints) <= set(WHOLE[column]) for column, failpoints in cells_of_run.items())


def test_each_fault_is_in_the_shorter_run():
    assert {fault for _, fault in SHORT} == set(FAULTS)


def cells_of(page: str) -> dict[tuple[str, str], str]:
    """Return the cells of the page's table of faults and failpoints."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    first = next(number for number, row in enumerate(rows) if row[0] == "at")
    faults = rows[first][1:]
    cells_by_name: dict[tuple[str, str], str] = {}
    for row in rows[first + 2 :]:
        if len(row) != len(rows[first]):
            break  # another table
        for failpoint in re.findall(r"`([^`]+)`", row[0]):
            cells_by_name |= {(fault, failpoint): text for fault, text in zip(faults, row[1:], strict=True)}
    return cells_by_name


def table(columns: dict[tuple[str, str], list[Outcome]]) -> str:
    """Return the outcomes as a table, followed by JSON."""
    lines = []
    outcomes = {
        (outcome.broker, outcome.fault, outcome.failpoint): outcome for column in columns.values() for outcome in column
    }
    for broker, faults in MET.items():
        lines += ["", f"{broker:14}" + "".join(f"{fault:>21}" for fault in faults)]
        for failpoint in FAILPOINT_NAMES:
            texts = []
            for fault in faults:
                outcome = outcomes.get((broker, fault, failpoint))
                if (fault, failpoint) in IMPOSSIBLE:
                    texts.append("impossible")
                else:
                    texts.append(
                        "–" if outcome is None else "FAILED" if outcome.verdict else f"{outcome.rows} rows once"
                    )
            lines.append(f"{failpoint:14}" + "".join(f"{text:>21}" for text in texts))
    good = sum(not outcome.verdict for outcome in outcomes.values())
    lines += ["", f"{good} of {len(outcomes)} cells passed", ""]
    lines += [f"impossible: {fault} at {failpoint}: {reason}" for (fault, failpoint), reason in IMPOSSIBLE.items()]
    lines.append(
        json.dumps([{**asdict(outcome), "verdict": outcome.verdict or "passed"} for outcome in outcomes.values()])
    )
    return "\n".join(lines)
