"""A few minutes of simulated time with faults; `make simulate` runs many hours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.checks import anomalies_of
from tests.support.history import Ended, Event, Outcome, Read, SendResult, Sent
from tools import mutants

ROOT = Path(__file__).resolve().parent.parent.parent
RUN_SECONDS_MAX = 240
BUGS_MIN = 20
pytest.importorskip("greenlet")


def simulate(*arguments: str) -> str:
    """Return the report on a seed, from a process of its own."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert "digest" in run.stdout, run.stderr
    return run.stdout[run.stdout.index("\nseed ") :]


def digest(report: str) -> str:
    return report.split("digest ")[1].split(":")[0]


@pytest.mark.slow
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.parametrize("seed", [1, 2])
def test_no_promise_is_broken_under_faults(seed):
    assert "no anomalies" in simulate("--seed", str(seed), "--seconds", "120")


@pytest.mark.slow
@pytest.mark.timeout(3 * RUN_SECONDS_MAX)
def test_a_seed_replays_exactly_in_another_process():
    first, second = (simulate("--seed", "7", "--seconds", "40") for _ in range(2))
    assert digest(first) == digest(second)
    assert digest(first) != digest(simulate("--seed", "8", "--seconds", "40"))


def test_a_row_of_a_query_that_is_committed_twice_is_an_anomaly():
    value, writer = "q0/1:0:0", "q0/1:0"
    sent: list[Event] = [Sent(writer, value, 0, "q0/1"), Ended("q0/1", Outcome.DONE)]

    def read(*offsets: int, committed: bool) -> Read:
        return Read("final", committed, 0, tuple((offset, value) for offset in offsets), 9, final=True)

    assert anomalies_of([*sent, read(3, committed=True), read(2, 3, committed=False)]) == []
    twice = anomalies_of([*sent, read(2, 3, committed=True), read(2, 3, committed=False)])
    assert [text.split(":")[0] for text in twice] == ["duplicate"]


def test_batches_of_a_query_out_of_order_are_an_anomaly():
    rows = ["q0/2:0:0", "q0/1:0:0"]
    events = [Sent(row.rpartition(":")[0], row, 0, row.split(":")[0]) for row in reversed(rows)]
    reads = [Read("final", committed, 0, ((0, rows[0]), (1, rows[1])), 2, final=True) for committed in (True, False)]
    assert [text.split(":")[0] for text in anomalies_of([*events, *reads])] == ["out of order"]


def test_the_history_rules_apply_to_other_writers():
    events: list[Event] = [Sent("w0-1", "w0:1", 0), SendResult("w0:1", Outcome.DONE, 0, 0)]
    reads = [Read("final", committed, 0, ((0, "w0:1"), (1, "w0:1")), 2, final=True) for committed in (True, False)]
    assert "duplicate" in [text.split(":")[0] for text in anomalies_of([*events, *reads])]


def test_bugs_of_the_list_can_be_applied():
    bugs = mutants.load((ROOT / "tests" / "simulation" / "bugs.md").read_text())
    assert len(bugs) >= BUGS_MIN
    for bug in bugs:
        assert bug.test.startswith(mutants.SEED), bug.title
        assert (ROOT / bug.path).read_text().count(bug.before) == 1, bug.title
