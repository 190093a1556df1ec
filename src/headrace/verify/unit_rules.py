"""Rules for transactions and batches: each is visible as a whole or not at all, and not before its commit."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.verify.anomalies import Anomaly, AnomalyKind, Position
from headrace.verify.facts import Facts, Outcome
from headrace.verify.operations import Action, Phase
from headrace.verify.write_rules import finals_without


def atomic(facts: Facts) -> Iterator[Anomaly]:
    """A transaction or batch is visible as a whole or not at all; a committed one is visible."""
    visible = facts.committed.positions
    for unit in facts.units():
        missing = [value for value in unit.values if value not in visible]
        if not missing or unit.outcome is Outcome.ABORTED:
            continue
        finals = _finals_for(facts, missing[0])
        if not finals:
            continue  # reported as incomplete
        seen = next((value for value in unit.values if value in visible), None)
        indexes = [unit.commit_index, *_all_operations(facts, missing[0]), *finals]
        if seen is not None:
            position = visible[seen]
            indexes += [*facts.send_indexes(seen), facts.committed.indexes[position.partition]]
            text = f"{unit.name}: {len(missing)} of {len(unit.values)} values are missing: {missing[0]!r}"
            evidence = facts.evidence(unit.end_index, *indexes, at=[position])
            yield Anomaly(AnomalyKind.TORN, text, evidence)
        elif unit.outcome is Outcome.COMMITTED:
            text = f"{unit.name} was committed; none of its {len(unit.values)} values is visible"
            yield Anomaly(AnomalyKind.LOST, text, facts.evidence(unit.end_index, *indexes))


def _finals_for(facts: Facts, value: str) -> list[int]:
    write = facts.writes.get(value)
    return [*facts.committed.indexes.values()] if write is None else finals_without(facts.committed, write)


def _all_operations(facts: Facts, value: str) -> list[int | None]:
    """Return the send of a value and its result, which says why it is missing."""
    write = facts.writes.get(value)
    return [*facts.send_indexes(value)] if write is None else [write.index, write.result_index]


def committed_reads(facts: Facts) -> Iterator[Anomaly]:
    """A read_committed reader gets nothing of an aborted transaction, and nothing before the commit was requested."""
    visible = facts.committed.positions
    reported: set[tuple[str, str]] = set()  # once for each unit and reader
    for index, partition, read in facts.reads:
        if not read.committed:
            continue
        for offset, value in read.records:
            unit = facts.unit_of(value)
            if unit is None:
                continue
            finals: list[int] = []
            if unit.outcome is Outcome.UNKNOWN and value not in visible:
                finals = _finals_for(facts, value)
            if unit.outcome is Outcome.ABORTED or finals:
                kind, text = AnomalyKind.ABORTED_READ, f"{unit.name} was not committed"
            elif unit.commit_index is not None and index < unit.commit_index:
                kind, text = AnomalyKind.DIRTY_READ, f"the commit of {unit.name} had not been requested"
            else:
                continue
            if (unit.name, read.process) in reported:
                continue
            reported.add((unit.name, read.process))
            position = Position(partition, offset)
            end = unit.end_index if kind is AnomalyKind.ABORTED_READ else None
            evidence = facts.evidence(*facts.send_indexes(value), unit.commit_index, end, index, *finals, at=[position])
            yield Anomaly(kind, f"{read.process} read {value!r} at {position}; {text}", evidence)


def fenced(facts: Facts) -> Iterator[Anomaly]:
    """A producer cannot commit a transaction after another one has initialised its transactional id."""
    owner: dict[str, tuple[str, int, int]] = {}  # by transactional id: producer, its init invoked and completed
    invoked: dict[tuple[str, str], int] = {}  # init, by producer and transactional id
    commits: dict[str, tuple[int, tuple[str, int, int] | None]] = {}  # by transaction: its last commit, the owner then
    for index, operation in facts.endings:
        name = operation.transactional_id
        if name is None:
            continue
        producer = operation.producer or operation.process
        if operation.action is Action.INIT:
            if operation.phase is Phase.INVOKE:
                invoked[producer, name] = index
            elif operation.phase is Phase.OK:
                owner[name] = (producer, invoked.get((producer, name), index), index)
        elif operation.action is Action.COMMIT and operation.transaction is not None:
            if operation.phase is Phase.INVOKE:
                commits[operation.transaction] = (index, owner.get(name))
            elif operation.phase is Phase.OK and operation.transaction in commits:
                commit, owner_then = commits[operation.transaction]
                if owner_then is not None and owner_then[0] != producer:
                    other, first, completed = owner_then
                    text = f"{producer} committed transaction {operation.transaction} after {other} had fenced it"
                    yield Anomaly(AnomalyKind.ZOMBIE, text, facts.evidence(first, completed, commit, index))
