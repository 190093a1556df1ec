"""Interleaved timing of cases in one process: a round runs every case once, medians are over rounds.

The machine's noise hits all cases of a round alike, so ratios between cases are worth more than any single figure.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SHORT_LOGS = {
    "log.retention.bytes": str(256 << 20),
    "log.segment.bytes": str(64 << 20),
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
}
"""Options of a broker that keeps few records of each partition.

Logs that grow take new memory for the page cache all the time. A virtual machine gets its first pages from the host,
which can halve the rate of every producer and broker, until old segments are deleted and their pages are used again.
"""


@dataclass(slots=True)
class Case:
    """A function to measure: `run` does `operations` operations."""

    name: str
    run: Callable[[], object]
    operations: int = 1
    limit_ns: float | None = None  # a target for the median of one operation
    samples_ns: list[float] = field(default_factory=list)

    @property
    def median_ns(self) -> float:
        return statistics.median(self.samples_ns)

    @property
    def met(self) -> bool | None:
        return None if self.limit_ns is None else self.median_ns <= self.limit_ns


def measure(cases: list[Case], rounds: int = 15) -> None:
    """Fill in the samples of every case, round after round."""
    for case in cases:
        case.run()  # first use compiles, caches and faults pages in
    for done in range(rounds):
        for case in cases:
            started = time.perf_counter_ns()
            case.run()
            case.samples_ns.append((time.perf_counter_ns() - started) / case.operations)
        if sys.stderr.isatty():
            print(f"\rround {done + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r" + " " * 30 + "\r", end="", file=sys.stderr)


def report(title: str, cases: list[Case], as_json: bool) -> bool:
    """Print a table or JSON; True if every target was met."""
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "name": case.name,
                "median_ns": round(case.median_ns, 1),
                "best_ns": round(min(case.samples_ns), 1),
                "limit_ns": case.limit_ns,
                "met": case.met,
            }
            for case in cases
        ]
        print(json.dumps({"title": title, "python": platform.python_version(), "cases": rows}, indent=2))
    else:
        width = max(len(case.name) for case in cases)
        print(title)
        print(f"{'':{width}}  {'median':>12}  {'best':>12}  {'target':>12}")
        for case in cases:
            verdict = {None: "", True: "met", False: "MISSED"}[case.met]
            limit = "" if case.limit_ns is None else f"≤ {_duration(case.limit_ns)}"
            print(
                f"{case.name:{width}}  {_duration(case.median_ns):>12}  {_duration(min(case.samples_ns)):>12}"
                f"  {limit:>12}  {verdict}"
            )
    return all(case.met is not False for case in cases)


def _duration(ns: float) -> str:
    return f"{ns:.1f} ns" if ns < 1000 else f"{ns / 1000:.2f} µs" if ns < 1e6 else f"{ns / 1e6:.2f} ms"
