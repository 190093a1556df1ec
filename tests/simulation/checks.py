"""The check of a simulation's history: the rules for all clients, and those for queries.

A query may write a row several times: tasks are run again, and expired transactions are written again. Only one of the
copies is ever committed. So its rows are checked among the committed records, not among all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.support.history import Event, Read, Sent
from tests.support.history_check import Fault, Kind, check


def anomalies_of(events: Iterable[Event]) -> list[str]:
    """Return what is wrong with a history; an empty list if nothing is."""
    events = list(events)
    rows = {event.value for event in events if isinstance(event, Sent) and event.writer.startswith("q")}
    faults = [f"{fault.kind}: {fault.text}" for fault in check(events) if not _is_copy(fault, rows)]
    return [*faults, *_check_queries(events, rows)]


def _is_copy(fault: Fault, rows: set[str]) -> bool:
    """Return whether a fault is about copies of a query's row, of which at most one is committed."""
    value = fault.text.split("'")[1] if "'" in fault.text else ""
    return fault.kind in (Kind.DUPLICATE, Kind.REORDERED) and value in rows


def _check_queries(events: list[Event], rows: set[str]) -> Iterator[str]:
    """Every row is committed once, and batches are in their order in each partition."""
    positions: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    last: dict[tuple[str, int], int] = {}  # by query and partition: the batch
    for event in events:
        if not isinstance(event, Read) or not event.final or not event.committed:
            continue
        for offset, value in event.records:
            if value not in rows:
                continue
            positions[value].append((event.partition, offset))
            query, batch = value.split(":")[0].split("/")
            previous = last.get((query, event.partition), -1)
            if int(batch) < previous:
                yield f"out of order: {value!r} at {event.partition}@{offset} is behind batch {previous}"
            last[query, event.partition] = max(int(batch), previous)
    for value, where in positions.items():
        if len(where) > 1:
            yield f"duplicate: {value!r} is committed at {where}"
