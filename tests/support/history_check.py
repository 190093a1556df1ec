"""The judge of a history (history.py): what was promised to clients, and is not so.

    events ─► facts, by value and by transaction ─► one rule after the other ─► faults

A pure function of the events: a history that was kept can be judged again after the judge has learnt something.
`python -m tests.support.history_check FILE` does so.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tests.support.history import Answered, Batch, Ended, Event, Outcome, Read, Replica, Sent, load

SHOWN_MAX = 20


class Kind(StrEnum):
    """What can be wrong."""

    LOST = "lost write"  # acknowledged or committed, and not there in the end
    DUPLICATE = "duplicate"  # one value, two places
    ABORTED_READ = "aborted read"  # a reader of committed records saw what was not committed
    TORN = "torn transaction"  # some of it is there, and some is not
    REORDERED = "out of order"  # a writer's values in a partition are not in the order it sent them
    CHANGED = "changed offset"  # an offset had one value and then another, or none
    WENT_BACK = "went back"  # a reader got an offset again, or the end it was told of is not reached any more
    PHANTOM = "phantom"  # a value that nobody sent, or that was refused
    DIVERGED = "diverged replicas"  # an offset is not the same on all replicas
    INCOMPLETE = "incomplete history"  # there is no final read of a partition: nothing can be said


class Fault(NamedTuple):
    kind: Kind
    text: str


class Place(NamedTuple):
    """Where a value is."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}"


@dataclass(slots=True)
class Facts:
    """The events, sorted."""

    sent: dict[str, Sent] = field(default_factory=dict)  # by value, in order
    answers: dict[str, Answered] = field(default_factory=dict)
    ends: dict[str, Outcome] = field(default_factory=dict)
    transactions: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # their values
    reads: list[Read] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    committed: dict[int, dict[int, str]] = field(default_factory=dict)  # final reads: partition → offset → value
    everything: dict[int, dict[int, str]] = field(default_factory=dict)

    def outcome_of(self, value: str) -> Outcome:
        """Whether it has to be there in the end."""
        transaction = self.sent[value].transaction
        if transaction is not None:
            return self.ends.get(transaction, Outcome.UNKNOWN)
        answer = self.answers.get(value)
        return Outcome.UNKNOWN if answer is None else answer.outcome

    def places(self, reads: dict[int, dict[int, str]]) -> dict[str, list[Place]]:
        found: defaultdict[str, list[Place]] = defaultdict(list)
        for partition, records in reads.items():
            for offset, value in records.items():
                found[value].append(Place(partition, offset))
        return found


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
            case Answered():
                facts.answers[event.value] = event
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
    """All that is wrong; nothing, if the cluster has kept its promises."""
    facts = facts_of(events)
    rules = (complete, sent_values, nothing_lost, nothing_twice, atomic, in_order, stable, forwards, same_replicas)
    return [fault for rule in rules for fault in rule(facts)]


# -- the rules -----------------------------------------------------------------------------------


def complete(facts: Facts) -> Iterator[Fault]:
    """Every partition that anybody knows of was read in the end, both ways."""
    events: list[Sent | Answered | Read] = [*facts.sent.values(), *facts.answers.values(), *facts.reads]
    named = {event.partition for event in events}
    for partition in sorted(number for number in named if number is not None):
        for name, final in (("committed records", facts.committed), ("all records", facts.everything)):
            if partition not in final:
                yield Fault(Kind.INCOMPLETE, f"no final read of {name} of partition {partition}")


def sent_values(facts: Facts) -> Iterator[Fault]:
    """Whatever was read had been sent, to that partition, and not refused."""
    for read in facts.reads:
        for offset, value in read.records:
            place, sent = Place(read.partition, offset), facts.sent.get(value)
            if sent is None:
                yield Fault(Kind.PHANTOM, f"{read.reader} read {value!r} at {place}; nobody sent it")
            elif sent.partition not in (None, read.partition):
                yield Fault(Kind.PHANTOM, f"{read.reader} read {value!r} at {place}; it was for {sent.partition}")
            elif (answer := facts.answers.get(value)) is not None and answer.outcome is Outcome.UNDONE:
                yield Fault(Kind.PHANTOM, f"{read.reader} read {value!r} at {place}; it had been refused")


def nothing_lost(facts: Facts) -> Iterator[Fault]:
    """What was acknowledged, or committed as a whole, is there, and where the writer was told that it is."""
    visible, stored = facts.places(facts.committed), facts.places(facts.everything)
    for value, sent in facts.sent.items():
        if sent.transaction is None and facts.outcome_of(value) is Outcome.DONE and value not in visible:
            yield Fault(
                Kind.LOST, f"{value!r} was acknowledged{_told(facts, value)}; readers of committed records miss it"
            )
        elif sent.transaction is None and value in stored and value not in visible:
            yield Fault(Kind.LOST, f"{value!r} is at {_listed(stored[value])}; readers of committed records miss it")
        answer = facts.answers.get(value)
        if answer is None or answer.offset is None or answer.partition is None or value not in stored:
            continue
        if (told := Place(answer.partition, answer.offset)) not in stored[value]:
            yield Fault(Kind.CHANGED, f"{value!r} was acknowledged at {told}, and is at {_listed(stored[value])}")
    for transaction, values in facts.transactions.items():
        if facts.ends.get(transaction) is Outcome.DONE and not any(value in visible for value in values):
            yield Fault(
                Kind.LOST, f"transaction {transaction} was committed; none of its {len(values)} values is there"
            )


def nothing_twice(facts: Facts) -> Iterator[Fault]:
    for value, places in facts.places(facts.everything).items():
        if len(places) > 1:
            yield Fault(Kind.DUPLICATE, f"{value!r} is at {_listed(places)}")


def atomic(facts: Facts) -> Iterator[Fault]:
    """All of a transaction or nothing is visible in the end; and only what is then was so before."""
    visible = facts.places(facts.committed)
    for transaction, values in facts.transactions.items():
        missing = [value for value in values if value not in visible]
        if missing and len(missing) < len(values) and facts.ends.get(transaction) is not Outcome.UNDONE:
            text = f"transaction {transaction}: {len(missing)} of {len(values)} values are not there, as {missing[0]!r}"
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
                text = f"{read.reader} read {value!r} at {Place(read.partition, offset)}"
                yield Fault(Kind.ABORTED_READ, f"{text}; its transaction {sent.transaction} was aborted")


def in_order(facts: Facts) -> Iterator[Fault]:
    """In a partition, a writer's values are in the order in which it sent them."""
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
    """An offset has one value for ever, whoever reads it and when."""
    for read in facts.reads:
        whole = facts.everything.get(read.partition)
        if whole is None:
            continue  # said by `complete`
        for offset, value in read.records:
            if (now := whole.get(offset)) != value:
                text = f"{read.reader} read {value!r} at {Place(read.partition, offset)}"
                yield Fault(Kind.CHANGED, f"{text}; in the end there is {'nothing' if now is None else repr(now)}")


def forwards(facts: Facts) -> Iterator[Fault]:
    """A reader goes from lower to higher offsets; and no partition ends before what a reader was told."""
    position: dict[tuple[str, bool, int], int] = {}
    for read in facts.reads:
        key = (read.reader, read.committed, read.partition)
        for offset, _ in read.records:
            if offset <= position.get(key, -1):
                text = f"{read.reader} got {Place(read.partition, offset)} when it had got {position[key]}"
                yield Fault(Kind.WENT_BACK, text)
            position[key] = offset
    ends: dict[int, int] = {}
    for read in facts.reads:
        if read.final and read.high_watermark is not None:
            ends[read.partition] = max(ends.get(read.partition, 0), read.high_watermark)
    for read in facts.reads:
        end = ends.get(read.partition)
        if end is not None and (told := read.high_watermark) is not None and told > end:
            yield Fault(
                Kind.WENT_BACK, f"{read.reader} was told that partition {read.partition} ends at {told}; it is {end}"
            )


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


def _difference(one: tuple[Batch, ...], other: tuple[Batch, ...]) -> str | None:
    for left, right in zip(one, other, strict=False):
        if left != right:
            return f"{left} and {right}"
    if len(one) == len(other):
        return None
    longer = one if len(one) > len(other) else other
    return f"only one of them has {longer[min(len(one), len(other))]}"


def _told(facts: Facts, value: str) -> str:
    answer = facts.answers[value]
    told = answer.partition is not None and answer.offset is not None
    return f" at {answer.partition}@{answer.offset}" if told else ""


def _listed(places: Iterable[Place]) -> str:
    return ", ".join(map(str, places))


# -- for people ----------------------------------------------------------------------------------


def report(faults: list[Fault]) -> str:
    """How many there are of each kind, and the first ones."""
    if not faults:
        return "no faults"
    counts = Counter(fault.kind for fault in faults)
    lines = [", ".join(f"{kind}: {count}" for kind, count in counts.items())]
    lines += [f"  {fault.kind}: {fault.text}" for fault in faults[:SHOWN_MAX]]
    return "\n".join([*lines, "  …"] if len(faults) > SHOWN_MAX else lines)


if __name__ == "__main__":
    found = check(load(Path(sys.argv[1])))
    print(report(found))
    sys.exit(1 if found else 0)
