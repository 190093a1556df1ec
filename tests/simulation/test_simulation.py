"""A few minutes of simulated time with faults; `make simulate` runs many hours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_bugs_of_the_list_can_be_applied():
    bugs = mutants.load((ROOT / "tests" / "simulation" / "bugs.md").read_text())
    assert len(bugs) >= BUGS_MIN
    for bug in bugs:
        assert bug.test.startswith(mutants.SEED), bug.title
        assert (ROOT / bug.path).read_text().count(bug.before) == 1, bug.title
