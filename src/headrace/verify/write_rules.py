"""Rules for what was written: nothing is lost, twice, invented, in another order or in another partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.types import TopicPartition
from headrace.verify.anomalies import Anomaly, AnomalyKind, Position
from headrace.verify.facts import Contents, Facts, Outcome, Write
from headrace.verify.operations import Phase


def complete(facts: Facts) -> Iterator[Anomaly]:
    """Every partition of the history has a final read at both isolation levels.

    A batch does not name its partitions: a history of batches must have final reads of all that they are written to.
    """
    for partition in sorted(facts.named_partitions()):
        for name, contents in (("read_committed", facts.committed), ("read_uncommitted", facts.everything)):
            if partition not in contents.values:
                yield Anomaly(AnomalyKind.INCOMPLETE, f"no final read of {partition} with {name}")
    if facts.batches and not facts.committed.indexes:
        yield Anomaly(AnomalyKind.INCOMPLETE, "no final read of the partitions of the batches with read_committed")
    read_topics = {partition.topic for partition in facts.committed.indexes}
    for topic in sorted({write.topic for write in facts.writes.values() if write.target is None} - read_topics):
        yield Anomaly(AnomalyKind.INCOMPLETE, f"no final read of topic {topic} with read_committed")


def nothing_lost(facts: Facts) -> Iterator[Anomaly]:
    """Acknowledged records are visible, at the acknowledged offsets."""
    visible, stored = facts.committed.positions, facts.everything.positions
    for value, write in facts.writes.items():
        if write.transaction is None and value not in visible:
            yield from _invisible(facts, value, write)
        acknowledged = write.acknowledged
        if acknowledged is None or value not in stored or stored[value] == acknowledged:
            continue
        if acknowledged not in (positions := facts.everything.all_positions(value)):
            text = f"{value!r} was acknowledged at {acknowledged}, and is at {listed(positions)}"
            final = facts.everything.indexes[positions[0].partition]
            evidence = facts.evidence(write.index, write.result_index, final, at=positions[:1])
            yield Anomaly(AnomalyKind.CHANGED, text, evidence)


def _invisible(facts: Facts, value: str, write: Write) -> Iterator[Anomaly]:
    at = facts.everything.positions.get(value)
    if write.phase is Phase.OK:
        finals = finals_without(facts.committed, write)
        if finals:
            where = "" if write.acknowledged is None else f" at {write.acknowledged}"
            text = f"{value!r} was acknowledged{where}, but is not visible to read_committed"
            yield Anomaly(AnomalyKind.LOST, text, facts.evidence(write.index, write.result_index, *finals))
    elif at is not None and at.partition in facts.committed.indexes:
        finals = [facts.everything.indexes[at.partition], facts.committed.indexes[at.partition]]
        text = f"{value!r} is at {at}, but is not visible to read_committed"
        yield Anomaly(AnomalyKind.LOST, text, facts.evidence(write.index, *finals, at=[at]))


def finals_without(contents: Contents, write: Write) -> list[int]:
    """Return the final reads that would have the value; none if they are not complete."""
    target = write.target
    if target is not None:
        return [contents.indexes[target]] if target in contents.indexes else []
    return [index for partition, index in contents.indexes.items() if partition.topic == write.topic]


def nothing_twice(facts: Facts) -> Iterator[Anomaly]:
    """A value is at one position. Attempts of a batch that were aborted do not count."""
    for contents in (facts.everything, facts.committed):
        for value in contents.repeated:
            if (value in facts.batch_of) is (contents is facts.committed):
                positions = contents.all_positions(value)
                finals = [contents.indexes[position.partition] for position in positions]
                evidence = facts.evidence(*facts.send_indexes(value), *finals, at=positions)
                yield Anomaly(AnomalyKind.DUPLICATE, f"{value!r} is at {listed(positions)}", evidence)


def sent_values(facts: Facts) -> Iterator[Anomaly]:
    """Every value that was read was sent to that partition, and had not failed."""
    reported: set[tuple[str, str]] = set()  # once for each value and reader
    for index, partition, read in facts.reads:
        for offset, value in read.records:
            write = facts.writes.get(value)
            if write is None:
                key = facts.batch_of.get(value)
                if key is not None:
                    continue
                anomaly, text = AnomalyKind.PHANTOM, "it was not sent"
            elif write.phase is Phase.FAIL:
                anomaly, text = AnomalyKind.FAILED, "its send had failed"
            elif write.topic != partition.topic or write.partition not in (None, partition):
                anomaly, text = AnomalyKind.MISPLACED, f"it was sent to {write.partition or write.topic}"
            else:
                continue
            if (value, read.process) in reported:
                continue
            reported.add((value, read.process))
            sent = [] if write is None else [write.index]
            if anomaly is AnomalyKind.FAILED and write is not None:
                sent.append(write.result_index or write.index)
            position = Position(partition, offset)
            evidence = facts.evidence(*sent, index, at=[position])
            yield Anomaly(anomaly, f"{read.process} read {value!r} at {position}; {text}", evidence)


def in_order(facts: Facts) -> Iterator[Anomaly]:
    """In each partition, the values of a process are in the order of its sends, and batches of a query in theirs."""
    for partition, records in sorted(facts.everything.values.items()):
        final = facts.everything.indexes[partition]
        last: dict[str, tuple[int, int, str]] = {}  # by process: index of the send, offset, value
        for offset in sorted(records):
            value = records[offset]
            write = facts.writes.get(value)
            if write is None:
                continue
            before = last.get(write.process)
            if before is not None and write.index < before[0]:
                text = f"{value!r} of {write.process} comes after {before[2]!r} in {partition}; it was sent before"
                at = [Position(partition, before[1]), Position(partition, offset)]
                evidence = facts.evidence(write.index, before[0], final, at=at)
                yield Anomaly(AnomalyKind.REORDERED, text, evidence)
            last[write.process] = (write.index, offset, value)
    if facts.batches:
        for partition, records in sorted(facts.committed.values.items()):
            yield from _batches_in_order(facts, partition, records)


def _batches_in_order(facts: Facts, partition: TopicPartition, records: dict[int, str]) -> Iterator[Anomaly]:
    last: dict[str, tuple[int, int]] = {}  # by query: batch, offset
    for offset in sorted(records):
        key = facts.batch_of.get(records[offset])
        if key is None:
            continue
        query, batch = key
        before = last.get(query)
        if before is not None and batch < before[0]:
            text = f"{records[offset]!r} of batch {batch} of {query} comes after batch {before[0]} in {partition}"
            invoked = [facts.batch_invokes[key][0], facts.batch_invokes[query, before[0]][0]]
            final = facts.committed.indexes[partition]
            at = [Position(partition, before[1]), Position(partition, offset)]
            yield Anomaly(AnomalyKind.REORDERED, text, facts.evidence(*invoked, final, at=at))
        last[query] = (batch, offset)


def same_rows(facts: Facts) -> Iterator[Anomaly]:
    """A batch that is invoked again has the same rows."""
    for key, indexes in facts.batch_invokes.items():
        first = facts.batches[key]
        for index in indexes[1:]:
            repeated = facts.operations[index]
            values: Iterable[str] = getattr(repeated, "values", ())
            if sorted(values) != sorted(first.values):
                text = f"{first.name} was invoked again with other rows"
                yield Anomaly(AnomalyKind.CONFLICT, text, facts.evidence(indexes[0], index))


def accepted(facts: Facts) -> Iterator[Anomaly]:
    """Each share group gets every acknowledged record, and accepts it once."""
    groups = {operation.group for _, operation in facts.acknowledgements}
    for group in sorted(groups):
        delivered: dict[str, int] = {}
        persisted: dict[str, int] = {}
        for index, operation in facts.acknowledgements:
            if operation.group != group:
                continue
            for value in operation.values:
                if operation.phase is Phase.INVOKE:
                    delivered.setdefault(value, index)
                    if value not in facts.writes and value not in facts.batch_of:
                        text = f"group {group} got {value!r}; it was not sent"
                        yield Anomaly(AnomalyKind.PHANTOM, text, facts.evidence(index, value=value))
                elif operation.phase is Phase.OK:
                    if value in persisted:
                        text = f"group {group} accepted {value!r} twice"
                        evidence = facts.evidence(*facts.send_indexes(value), persisted[value], index, value=value)
                        yield Anomaly(AnomalyKind.ACCEPTED_TWICE, text, evidence)
                    persisted[value] = index
        for value, write in facts.writes.items():
            if write.phase is Phase.OK and value not in delivered and _is_stored(facts, value, write):
                text = f"{value!r} was acknowledged, but no member of group {group} got it"
                member = next(index for index, operation in facts.acknowledgements if operation.group == group)
                evidence = facts.evidence(write.index, write.result_index, member)
                yield Anomaly(AnomalyKind.UNDELIVERED, text, evidence)


def _is_stored(facts: Facts, value: str, write: Write) -> bool:
    """Return whether a group must get a value: not if it is reported as lost, or is in an aborted transaction."""
    is_readable = value in facts.committed.positions or not facts.committed.values
    unit = facts.unit_of(value)
    return is_readable and (unit is None or unit.outcome is Outcome.COMMITTED)


def listed(positions: Iterable[Position]) -> str:
    """Return positions as text."""
    return ", ".join(map(str, positions))
