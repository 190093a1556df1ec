"""The times of a commit, phase by phase, as a line of the log.

    Committer → CommitTimes → "sink …: batch 7 is committed {…}" → CommitTimes.of_line, for programs that read the log

The line is logged at INFO: see log_setup.py.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

_log = logging.getLogger("headrace.spark")

_MARK = " is committed {"


@dataclass(frozen=True, slots=True)
class TaskPhases:
    """What a batch has taken before its commit began. Clocks of several hosts are compared: never below zero."""

    plan_ms: float = 0.0
    launch_ms: float = 0.0
    """From the end of planning until the first task writes: Spark's."""
    write_ms: float = 0.0
    """From the first task that writes until the last one has written."""
    collect_ms: float = 0.0
    """From the end of the last task until the commit begins: Spark's."""


@dataclass(slots=True)
class CommitTimes:
    """The times of one commit of a batch."""

    batch: int
    rows: int = 0
    transactions: int = 0
    had_retries: bool = False
    plan_ms: float = 0.0
    launch_ms: float = 0.0
    write_ms: float = 0.0
    collect_ms: float = 0.0
    """As in `TaskPhases`."""
    begin_ms: float = 0.0
    """Taking the sink lock and reading the decisions, if the process has just started or has lost the lock."""
    check_ms: float = 0.0
    decide_ms: float = 0.0
    end_ms: float = 0.0
    """Committing the transactions of the tasks, and marking the decision as finished."""
    clean_ms: float = 0.0
    """Aborting leftover transactions of failed tasks."""

    @property
    def total_ms(self) -> float:
        return self.begin_ms + self.check_ms + self.decide_ms + self.end_ms + self.clean_ms

    def set_phases(self, phases: TaskPhases) -> None:
        self.plan_ms, self.launch_ms = phases.plan_ms, phases.launch_ms
        self.write_ms, self.collect_ms = phases.write_ms, phases.collect_ms

    @classmethod
    def of_line(cls, line: str) -> Self | None:
        """Parse a line of the log; None if it has no times."""
        _, mark, text = line.partition(_MARK)
        if not mark:
            return None
        try:
            values = json.loads("{" + text)
            return cls(**{field.name: values[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError):
            return None  # a truncated line, as the last one of a killed process may be

    def log(self, sink: str) -> None:
        if _log.isEnabledFor(logging.INFO):
            text = json.dumps(rounded(asdict(self)))
            _log.info("sink %s: batch %d%s%s", sink, self.batch, _MARK[:-1], text)


class Stopwatch:
    """Measures the time of one phase after the other."""

    def __init__(self) -> None:
        self._since_s = time.perf_counter()

    def lap_ms(self) -> float:
        """Return the time since the last call."""
        now_s = time.perf_counter()
        since_s, self._since_s = self._since_s, now_s
        return (now_s - since_s) * 1000


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Round times to a hundredth of a millisecond."""
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in values.items()}
