"""The check of a simulation's history."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.verify import Operation, check


def anomalies_of(operations: Iterable[Operation]) -> list[str]:
    """Return what is wrong with a history; an empty list if nothing is."""
    return [f"{anomaly.kind}: {anomaly.text}" for anomaly in check(operations).anomalies]
