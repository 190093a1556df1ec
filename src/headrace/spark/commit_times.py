"""The times of a commit, as a line of the log: where the time of a batch has gone.

    Committer → CommitTimes → "sink …: batch 7 is committed {…}" → whoever reads the log → CommitTimes.of_line

Spark's Python workers set up no logging of their own. HEADRACE_LOG=INFO in the driver's environment shows ours on the
standard error of the process that commits, which Spark passes on to its own.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

log = logging.getLogger("headrace.spark")

LEVEL = "HEADRACE_LOG"
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
_MARK = " is committed {"


@dataclass(slots=True)
class CommitTimes:
    """One commit of a batch, phase by phase."""

    batch: int
    rows: int = 0
    transactions: int = 0
    had_retries: bool = False
    begin_ms: float = 0.0
    """Taking the lock and reading what is decided: the first batch of a run in a process, and after other processes."""
    check_ms: float = 0.0
    decide_ms: float = 0.0
    end_ms: float = 0.0
    """Committing the transactions of the tasks, and noting that it is done."""
    clean_ms: float = 0.0
    """Aborting what tasks that failed have left open."""

    @property
    def total_ms(self) -> float:
        return self.begin_ms + self.check_ms + self.decide_ms + self.end_ms + self.clean_ms

    @classmethod
    def of_line(cls, line: str) -> Self | None:
        """The times in a line of the log; None if it has none."""
        _, mark, text = line.partition(_MARK)
        if not mark:
            return None
        try:
            found = json.loads("{" + text)
            return cls(**{one.name: found[one.name] for one in fields(cls)})
        except (ValueError, KeyError, TypeError):
            return None  # a line that was cut, as the last one of a killed process may be

    def tell(self, sink: str) -> None:
        """Log it."""
        if log.isEnabledFor(logging.INFO):
            text = json.dumps(rounded(asdict(self)))
            log.info("sink %s: batch %d%s%s", sink, self.batch, _MARK[:-1], text)


class Stopwatch:
    """Times one thing after the other."""

    def __init__(self) -> None:
        self._since_s = time.perf_counter()

    def lap_ms(self) -> float:
        """Since the last time it was asked."""
        now_s = time.perf_counter()
        since_s, self._since_s = self._since_s, now_s
        return (now_s - since_s) * 1000


def show_log() -> None:
    """Let this process show our log, if the environment asks for it and nobody has seen to it yet."""
    level = os.environ.get(LEVEL, "").upper()
    ours = logging.getLogger("headrace")
    if level in logging.getLevelNamesMapping() and not ours.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
        ours.addHandler(handler)
        ours.setLevel(level)


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Times to a hundredth of a millisecond."""
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in values.items()}
