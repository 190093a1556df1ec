"""Checks a history (history.py): finds violations of what the cluster has promised to clients.

    events ─► facts, by value and by transaction ─► rules ─► faults

A pure function of the events: `python -m tests.support.history_check FILE` checks a history again after a rule has
changed.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tests.support.history import Batch, Ended, Event, Outcome, Read, Replica, SendResult, Sent, load

SHOWN_MAX = 20


class Kind(StrEnum):
    """The kinds of faults."""

    LOST = "lost write"  # acknowledged or committed, but missing in the final read
    DUPLICATE = "duplicate"  # a value at two positions
    ABORTED_READ = "aborted read"  # a read_committed reader got a record that was not committed
    TORN = "torn transaction"  # only a part of it is visible
    REORDERED = "out of order"  # values of a writer in a partition are not in the order of its sends
    CHANGED = "changed offset"  # the value of an offset has changed, or is gone
    WENT_BACK = "went back"  # a reader got an offset again, or the end of a partition moved back
    PHANTOM = "phantom"  # a value that was not sent, or was refused
    DIVERGED = "diverged replicas"  # replicas have different batches
    INCOMPLETE = "incomplete history"  # a partition has no final read, so it cannot be checked


class Fault(NamedTuple):
    kind: Kind
    text: str


class Position(NamedTuple):
    """Partition and offset of a value."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}"


@dataclass(slots=True)
class Facts:
    """The events by kind."""

    sent: dict[str, Sent] = field(default_factory=dict)  # by value, in order
    results: dict[str, SendResult] = field(default_factory=dict)
    ends: dict[str, Outcome] = field(default_factory=dict)
    transactions: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # their values
    reads: list[Read] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    committed: dict[int, dict[int, str]] = field(default_factory=dict)  # final reads: partition → offset → value
    everything: dict[int, dict[int, str]] = field(default_factory=dict)

    def outcome_of(self, value: str) -> Outcome:
        """Return the outcome of a value, or of its transaction."""
        transaction = self.sent[value].transaction
        if transaction is not None:
            return self.ends.get(transaction, Outcome.UNKNOWN)
        result = self.results.get(value)
        return Outcome.UNKNOWN if result is None else result.outcome

    def positions(self, reads: dict[int, dict[int, str]]) -> dict[str, list[Position]]:
        """Return the positions of each value."""
        by_value: defaultdict[str, list[Position]] = defaultdict(list)
        for partition, records in reads.items():
            for offset, value in records.items():
                by_value[value].append(Position(partition, offset))
        return by_value


def facts_of(events: Iterable[Event]) -> Facts:
    facts = Facts()
    for event in events:
        match event:
            case Sent():
                if event.value in facts.sent:
                    raise ValueError(f"{event.value!r} was sent twice: values have to be unique")
                facts.sent[event.value] = event
                if event.transaction is not None:
                    facts.transactions[event.transaction].append(event.value)
            case SendResult():
                facts.results[event.value] = event
            case Ended():
                facts.ends[event.transaction] = event.outcome
            case Read():
                facts.reads.append(event)
                if event.final:
                    whole = facts.committed if event.committed else facts.everything
                    whole.setdefault(event.partition, {}).update(event.records)
            case Replica():
                facts.replicas.append(event)
    return facts


def check(events: Iterable[Event]) -> list[Fault]:
    """Return all faults; an empty list if there are none."""
    facts = facts_of(events)
    rules = (complete, sent_values, nothing_lost, nothing_twice, atomic, in_order, stable, forwards, same_replicas)
    return [fault for rule in rules for fault in rule(facts)]


# -- the rules -----------------------------------------------------------------------------------


def complete(facts: Facts) -> Iterator[Fault]:
    """Every partition of the history has a final read at both isolation levels."""
    events: list[Sent | SendResult | Read] = [*facts.sent.values(), *facts.results.values(), *facts.reads]
    named = {event.partition for event in events}
    for partition in sorted(number for number in named if number is not None):
        for name, final in (("committed records", facts.committed), ("all records", facts.everything)):
            if partition not in final:
                yield Fault(Kind.INCOMPLETE, f"no final read of {name} of partition {partition}")


def sent_values(facts: Facts) -> Iterator[Fault]:
    """Every value that was read was sent to that partition, and not refused."""
    for read in facts.reads:
        for offset, value in read.records:
            position, sent = Position(read.partition, offset), facts.sent.get(value)
            if sent is None:
                yield Fault(Kind.PHANTOM, f"{read.reader} read {value!r} at {position}; it was not sent")
            elif sent.partition not in (None, read.partition):
                yield Fault(Kind.PHANTOM, f"{read.reader} read {value!r} at {position}; it was for {sent.partition}")
            elif (result := facts.results.get(value)) is not None and result.outcome is Outcome.UNDONE:
                yield Fault(Kind.PHANTOM, f"{read.reader} read {value!r} at {position}; it had been refused")


def nothing_lost(facts: Facts) -> Iterator[Fault]:
    """Acknowledged records and committed transactions are visible, at the acknowledged offsets."""
    visible, stored = facts.positions(facts.committed), facts.positions(facts.everything)
    for value, sent in facts.sent.items():
        if sent.transaction is None and facts.outcome_of(value) is Outcome.DONE and value not in visible:
            yield Fault(
                Kind.LOST,
                f"{value!r} was acknowledged{_offset_text(facts, value)}, but is not visible to read_committed",
            )
        elif sent.transaction is None and value in stored and value not in visible:
            yield Fault(Kind.LOST, f"{value!r} is at {_listed(stored[value])}, but is not visible to read_committed")
        result = facts.results.get(value)
        if result is None or result.offset is None or result.partition is None or value not in stored:
            continue
        if (acknowledged := Position(result.partition, result.offset)) not in stored[value]:
            text = f"{value!r} was acknowledged at {acknowledged}, and is at {_listed(stored[value])}"
            yield Fault(Kind.CHANGED, text)
    for transaction, values in facts.transactions.items():
        if facts.ends.get(transaction) is Outcome.DONE and not any(value in visible for value in values):
            yield Fault(
                Kind.LOST, f"transaction {transaction} was committed; none of its {len(values)} values is visible"
            )


def nothing_twice(facts: Facts) -> Iterator[Fault]:
    for value, positions in facts.positions(facts.everything).items():
        if len(positions) > 1:
            yield Fault(Kind.DUPLICATE, f"{value!r} is at {_listed(positions)}")


def atomic(facts: Facts) -> Iterator[Fault]:
    """A transaction is visible as a whole or not at all, and earlier reads have nothing of an invisible one."""
    visible = facts.positions(facts.committed)
    for transaction, values in facts.transactions.items():
        missing = [value for value in values if value not in visible]
        if missing and len(missing) < len(values) and facts.ends.get(transaction) is not Outcome.UNDONE:
            text = f"transaction {transaction}: {len(missing)} of {len(values)} values are missing: {missing[0]!r}"
            yield Fault(Kind.TORN, text)
    for read in facts.reads:
        if not read.committed:
            continue
        for offset, value in read.records:
            sent = facts.sent.get(value)
            if sent is None or sent.transaction is None:
                continue
            outcome = facts.outcome_of(value)
            if outcome is Outcome.UNDONE or (outcome is Outcome.UNKNOWN and value not in visible):
                text = f"{read.reader} read {value!r} at {Position(read.partition, offset)}"
                yield Fault(Kind.ABORTED_READ, f"{text}; its transaction {sent.transaction} was aborted")


def in_order(facts: Facts) -> Iterator[Fault]:
    """The values of a writer in a partition are in the order of its sends."""
    numbers = {value: number for number, value in enumerate(facts.sent)}
    for partition, records in sorted(facts.everything.items()):
        last: dict[str, str] = {}  # by writer
        for _, value in sorted(records.items()):
            if value not in numbers:
                continue
            before = last.get(writer := facts.sent[value].writer)
            if before is not None and numbers[value] < numbers[before]:
                text = f"{value!r} of {writer} comes after {before!r} in partition {partition}; it was sent before"
                yield Fault(Kind.REORDERED, text)
            last[writer] = value


def stable(facts: Facts) -> Iterator[Fault]:
    """The value of an offset never changes, for any reader."""
    for read in facts.reads:
        whole = facts.everything.get(read.partition)
        if whole is None:
            continue  # reported by `complete`
        for offset, value in read.records:
            if (now := whole.get(offset)) != value:
                text = f"{read.reader} read {value!r} at {Position(read.partition, offset)}"
                yield Fault(Kind.CHANGED, f"{text}; the final read has {'nothing' if now is None else repr(now)}")


def forwards(facts: Facts) -> Iterator[Fault]:
    """Offsets of a reader increase, and no partition ends before a high watermark that a reader got."""
    position: dict[tuple[str, bool, int], int] = {}
    for read in facts.reads:
        key = (read.reader, read.committed, read.partition)
        for offset, _ in read.records:
            if offset <= position.get(key, -1):
                text = f"{read.reader} got {Position(read.partition, offset)} after {position[key]}"
                yield Fault(Kind.WENT_BACK, text)
            position[key] = offset
    ends: dict[int, int] = {}
    for read in facts.reads:
        if read.final and read.high_watermark is not None:
            ends[read.partition] = max(ends.get(read.partition, 0), read.high_watermark)
    for read in facts.reads:
        end = ends.get(read.partition)
        if end is not None and (high_watermark := read.high_watermark) is not None and high_watermark > end:
            text = f"{read.reader} got high watermark {high_watermark} of partition {read.partition}; it ends at {end}"
            yield Fault(Kind.WENT_BACK, text)


def same_replicas(facts: Facts) -> Iterator[Fault]:
    """All replicas of a partition have the same batches, byte for byte."""
    by_partition: defaultdict[int, list[Replica]] = defaultdict(list)
    for replica in facts.replicas:
        by_partition[replica.partition].append(replica)
    for partition, (first, *others) in sorted(by_partition.items()):
        for other in others:
            if (difference := _difference(first.batches, other.batches)) is not None:
                text = f"partition {partition} on brokers {first.broker} and {other.broker}: {difference}"
                yield Fault(Kind.DIVERGED, text)


def _difference(left: tuple[Batch, ...], right: tuple[Batch, ...]) -> str | None:
    for left_batch, right_batch in zip(left, right, strict=False):
        if left_batch != right_batch:
            return f"{left_batch} and {right_batch}"
    if len(left) == len(right):
        return None
    longer = left if len(left) > len(right) else right
    return f"only one of them has {longer[min(len(left), len(right))]}"


def _offset_text(facts: Facts, value: str) -> str:
    result = facts.results[value]
    is_known = result.partition is not None and result.offset is not None
    return f" at {result.partition}@{result.offset}" if is_known else ""


def _listed(positions: Iterable[Position]) -> str:
    return ", ".join(map(str, positions))


# -- report --------------------------------------------------------------------------------------


def report(faults: list[Fault]) -> str:
    """Return the number of faults of each kind, and the first faults."""
    if not faults:
        return "no faults"
    counts = Counter(fault.kind for fault in faults)
    lines = [", ".join(f"{kind}: {count}" for kind, count in counts.items())]
    lines += [f"  {fault.kind}: {fault.text}" for fault in faults[:SHOWN_MAX]]
    return "\n".join([*lines, "  …"] if len(faults) > SHOWN_MAX else lines)


if __name__ == "__main__":
    faults = check(load(Path(sys.argv[1])))
    print(report(faults))
    sys.exit(1 if faults else 0)
