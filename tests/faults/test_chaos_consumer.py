"""Consume-transform-produce over three brokers, while workers and brokers are killed, paused and cut off: exactly once.

HEADRACE_CHAOS_SECONDS is the duration, HEADRACE_CHAOS_SEED selects the faults, HEADRACE_CHAOS_FOLDER keeps histories,
logs and report, HEADRACE_CHAOS_PROTOCOL is the protocol of the group.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.verify import AnomalyKind, Phase, ReadOp, SendOp, check
from tests.support import chaos_copying

SECONDS = float(os.environ.get("HEADRACE_CHAOS_SECONDS", "20"))
SEED = int(os.environ.get("HEADRACE_CHAOS_SEED", "20"))
PROTOCOL = os.environ.get("HEADRACE_CHAOS_PROTOCOL", "classic")
FOLDER = os.environ.get("HEADRACE_CHAOS_FOLDER")
OVERHEAD_SECONDS_MAX = 400
"""To start, to heal, to copy and read the rest, and to check."""


@pytest.mark.behaviour("C11")
@pytest.mark.timeout(OVERHEAD_SECONDS_MAX + SECONDS * 1.5)
def test_each_record_is_copied_once_while_brokers_and_workers_fail(tmp_path: Path) -> None:
    folder = Path(FOLDER) if FOLDER else tmp_path
    run = chaos_copying.run(folder, SEED, SECONDS, PROTOCOL)
    print(f"\n{run}")
    (folder / "report.txt").write_text(f"{run}\n")
    assert all(verdict.is_valid for verdict in run.verdicts), run
    assert run.errors == [], run
    # The run must not be empty.
    assert run.fed > SECONDS * 20, run
    assert run.workers.transactions, run
    assert len(run.broker_faults) >= SECONDS / 10, run
    assert run.workers.faults.total() >= SECONDS / 10, run


def test_the_check_finds_copies_that_are_missing_doubled_or_in_another_order() -> None:
    source = [ReadOp("final", "source", 0, True, ((0, "a"), (1, "b"), (2, "c")), 3, final=True)]

    def anomalies(*values: str) -> set[AnomalyKind]:
        records = tuple((offset, f"copy of {value}") for offset, value in enumerate(values))
        target = [ReadOp("final", "target", 0, True, records, len(values), final=True)]
        return set(check(chaos_copying.copies(source, target)).kinds)

    assert anomalies("a", "b", "c") == set()
    assert anomalies("a", "c") == {AnomalyKind.LOST}
    assert anomalies("a", "b", "b", "c") == {AnomalyKind.DUPLICATE}
    assert anomalies("a", "c", "b") == {AnomalyKind.REORDERED}
    assert anomalies("a", "b", "c", "d") == {AnomalyKind.PHANTOM}
    sent = list(chaos_copying.copies(source, []))
    invoke = SendOp(Phase.INVOKE, "source-0", "copy of a", "target", 0)
    assert sent[:2] == [invoke, invoke._replace(phase=Phase.OK)]
