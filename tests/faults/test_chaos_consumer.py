"""Consume-transform-produce over three brokers, while workers and brokers are killed, paused and cut off: exactly once.

HEADRACE_CHAOS_SECONDS is the duration, HEADRACE_CHAOS_SEED selects the faults, HEADRACE_CHAOS_FOLDER keeps histories,
logs and report, HEADRACE_CHAOS_PROTOCOL is the protocol of the group.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import chaos_copying
from tests.support.history import Outcome, Read, SendResult, Sent
from tests.support.history_check import Kind, check

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
    assert run.faults == [], run
    assert run.errors == [], run
    # The run must not be empty.
    assert run.fed > SECONDS * 20, run
    assert run.workers.transactions, run
    assert len(run.broker_faults) >= SECONDS / 10, run
    assert run.workers.faults.total() >= SECONDS / 10, run


def test_the_check_finds_copies_that_are_missing_doubled_or_in_another_order() -> None:
    source = [Read("final", True, 0, ((0, "a"), (1, "b"), (2, "c")), 3, final=True)]

    def faults(*values: str) -> set[Kind]:
        records = tuple((offset, f"copy of {value}") for offset, value in enumerate(values))
        target = [Read("final", True, 0, records, len(values), final=True)]
        return {fault.kind for fault in check(chaos_copying.copies(source, target))}

    assert faults("a", "b", "c") == set()
    assert faults("a", "c") == {Kind.LOST}
    assert faults("a", "b", "b", "c") == {Kind.DUPLICATE}
    assert faults("a", "c", "b") == {Kind.REORDERED}
    assert faults("a", "b", "c", "d") == {Kind.PHANTOM}
    sent = list(chaos_copying.copies(source, []))
    assert sent[:2] == [Sent("source-0", "copy of a", 0), SendResult("copy of a", Outcome.DONE, 0)]
