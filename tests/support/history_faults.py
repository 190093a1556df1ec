"""Faults planted in correct histories: one function for each kind of anomaly.

A function changes the operations, and returns the text that the report of the anomaly must contain; or None if the
history has nothing that could fail in this way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

from headrace.verify import (
    AcknowledgeOp,
    Action,
    AnomalyKind,
    BatchOp,
    Operation,
    Phase,
    ReadOp,
    ReplicaOp,
    SendOp,
    TransactionOp,
)
from tests.support.history_simulation import PARTITIONS, TOPIC

T = TypeVar("T")
Plant = Callable[[random.Random, list[Operation]], str | None]


def lost(rng: random.Random, history: list[Operation]) -> str | None:
    """An acknowledged value is missing at the end."""
    plain = {op.value for op in _sends(history, Phase.INVOKE) if op.transaction is None}
    value = _choose(rng, [op.value for op in _sends(history, Phase.OK) if op.value in plain])
    if value is not None:
        _remove_from_finals(history, value)
    return value


def lost_transaction(rng: random.Random, history: list[Operation]) -> str | None:
    """Nothing of a committed transaction is there."""
    name = _choose(rng, _committed_transactions(history, values_min=1))
    if name is None:
        return None
    for value in _values_of(history, name):
        _remove_from_finals(history, value)
    return f"transaction {name} was committed; none of"


def duplicate(rng: random.Random, history: list[Operation]) -> str | None:
    """A value was written again, perhaps to another partition."""
    unset = {op.value for op in _sends(history, Phase.INVOKE) if op.partition is None}
    value = _choose(rng, [value for _, value in _final_records(history) if value in unset or value.startswith("row")])
    if value is not None:
        _append_to_finals(history, value, rng.randrange(PARTITIONS))
    return value


def torn(rng: random.Random, history: list[Operation]) -> str | None:
    """One value of a committed transaction is missing."""
    name = _choose(rng, _committed_transactions(history, values_min=2))
    if name is None:
        return None
    value = rng.choice(_values_of(history, name))
    _remove_from_finals(history, value)
    return f"transaction {name}: 1 of"


def torn_batch(rng: random.Random, history: list[Operation]) -> str | None:
    """One row of a batch is missing."""
    batch = _choose(rng, [op for op in history if isinstance(op, BatchOp) and len(op.values) > 1])
    if batch is None:
        return None
    _remove_from_finals(history, rng.choice(batch.values))
    return f"batch {batch.batch} of {batch.query}: 1 of"


def aborted_read(rng: random.Random, history: list[Operation]) -> str | None:
    """A reader got a value of a transaction that was not committed."""
    visible = {value for _, value in _final_records(history)}
    ended = [op for op in _endings(history, Action.ABORT, Phase.INVOKE) if op.transaction is not None]
    values = {value: op for op in ended for value in _values_of(history, str(op.transaction)) if value not in visible}
    stored = [
        (op.partition, offset, value)
        for op in _finals(history, committed=False)
        for offset, value in op.records
        if value in values
    ]
    chosen = _choose(rng, stored)
    if chosen is None:
        return None
    partition, offset, value = chosen
    history.append(ReadOp("planted", TOPIC, partition, True, ((offset, value),)))
    return f"planted read {value!r}"


def dirty_read(rng: random.Random, history: list[Operation]) -> str | None:
    """A reader got a value before its transaction was committed."""
    name = _choose(rng, _committed_transactions(history, values_min=1))
    if name is None:
        return None
    value = rng.choice(_values_of(history, name))
    rows = [(op.partition, offset) for op in _finals(history, committed=True) for offset, v in op.records if v == value]
    (partition, offset), *_ = rows
    commit = next(n for n, op in enumerate(history) if isinstance(op, TransactionOp) and op.transaction == name)
    history.insert(commit, ReadOp("planted", TOPIC, partition, True, ((offset, value),)))
    return f"planted read {value!r}"


def zombie(rng: random.Random, history: list[Operation]) -> str | None:
    """A transaction is committed after another producer has initialised its transactional id."""
    commit = _choose(rng, _endings(history, Action.COMMIT, Phase.OK))
    if commit is None:
        return None
    name = commit.transaction
    at = next(n for n, op in enumerate(history) if isinstance(op, TransactionOp) and op.transaction == name)
    init = TransactionOp(Action.INIT, Phase.INVOKE, "planted", None, commit.transactional_id)
    history[at:at] = [init, init._replace(phase=Phase.OK)]
    return f"committed transaction {name} after planted had fenced it"


def zombie_before_another(rng: random.Random, history: list[Operation]) -> str | None:
    """As `zombie`, and a third producer has initialised the id when the commit returns."""
    text = zombie(rng, history)
    if text is not None:
        name = text.split()[2]
        ended = next(
            n
            for n, op in enumerate(history)
            if isinstance(op, TransactionOp)
            and op.transaction == name
            and op.action is Action.COMMIT
            and op.phase is Phase.OK
        )
        ending = history[ended]
        assert isinstance(ending, TransactionOp)
        init = TransactionOp(Action.INIT, Phase.INVOKE, "third", None, ending.transactional_id)
        history[ended:ended] = [init, init._replace(phase=Phase.OK)]
    return text


def reordered(rng: random.Random, history: list[Operation]) -> str | None:
    """Two values of a process changed places."""
    return _swap(rng, history, {op.value: op.process for op in _sends(history, Phase.INVOKE)})


def reordered_batches(rng: random.Random, history: list[Operation]) -> str | None:
    """Rows of two batches changed places."""
    rows = {value: op.batch for op in history if isinstance(op, BatchOp) for value in op.values}
    pairs = [
        (left, right)
        for op in _finals(history, committed=True)
        for (_, left), (_, right) in zip(op.records, op.records[1:], strict=False)
        if left in rows and right in rows and rows[left] != rows[right]
    ]
    pair = _choose(rng, pairs)
    if pair is None:
        return None
    _exchange(history, *pair)
    return f"{pair[0]!r} of batch" if rows[pair[0]] < rows[pair[1]] else f"{pair[1]!r} of batch"


def phantom(rng: random.Random, history: list[Operation]) -> str | None:
    """A value is there that nobody sent."""
    _append_to_finals(history, "ghost", rng.randrange(PARTITIONS))
    return "'ghost'"


def failed(rng: random.Random, history: list[Operation]) -> str | None:
    """A value is there whose send had failed."""
    sent = {op.value: op for op in _sends(history, Phase.INVOKE)}
    value = _choose(rng, [op.value for op in _sends(history, Phase.FAIL)])
    if value is None:
        return None
    _append_to_finals(history, value, sent[value].partition or 0)
    return f"{value!r}"


def misplaced(rng: random.Random, history: list[Operation]) -> str | None:
    """A value is in another partition."""
    unknown = {op.value for op in _sends(history, Phase.INFO)}
    sends = [op for op in _sends(history, Phase.INVOKE) if op.partition is not None and op.value in unknown]
    send = _choose(rng, sends)
    if send is None or send.partition is None:
        return None
    _remove_from_finals(history, send.value)
    _append_to_finals(history, send.value, (send.partition + 1) % PARTITIONS)
    return f"{send.value!r}"


def changed(rng: random.Random, history: list[Operation]) -> str | None:
    """An offset had another value when a reader got it."""
    index = _choose(rng, [n for n, op in enumerate(history) if _is_poll(op, records_min=2)])
    if index is None:
        return None
    read = history[index]
    assert isinstance(read, ReadOp)
    (first, left), (second, right), *rest = read.records
    history[index] = read._replace(records=((first, right), (second, left), *rest))
    return f"read {right!r} at"


def skipped(rng: random.Random, history: list[Operation]) -> str | None:
    """A reader did not get a record between two that it got."""
    index = _choose(rng, [n for n, op in enumerate(history) if _is_poll(op, records_min=3)])
    if index is None:
        return None
    read = history[index]
    assert isinstance(read, ReadOp)
    middle = rng.randrange(1, len(read.records) - 1)
    history[index] = read._replace(records=read.records[:middle] + read.records[middle + 1 :])
    return f"but not {read.records[middle][0]}"


def went_back(rng: random.Random, history: list[Operation]) -> str | None:
    """A reader got a record again."""
    index = _choose(rng, [n for n, op in enumerate(history) if _is_poll(op, records_min=1)])
    if index is None:
        return None
    read = history[index]
    assert isinstance(read, ReadOp)
    history.insert(index + 1, read._replace(records=read.records[-1:]))
    return f"after {read.records[-1][0]}"


def truncated(rng: random.Random, history: list[Operation]) -> str | None:
    """A reader got a high watermark beyond the end."""
    final = rng.choice(_finals(history, committed=True))
    assert final.high_watermark is not None
    end = final.high_watermark + rng.randint(1, 5)
    history.insert(rng.randrange(len(history)), ReadOp("planted", TOPIC, final.partition, True, (), end))
    return f"planted got high watermark {end}"


def diverged(rng: random.Random, history: list[Operation]) -> str | None:
    """A replica has other bytes, another epoch, or fewer batches."""
    index = _choose(rng, [n for n, op in enumerate(history) if isinstance(op, ReplicaOp) and op.batches])
    if index is None:
        return None
    replica = history[index]
    assert isinstance(replica, ReplicaOp)
    batches = list(replica.batches)
    number = rng.randrange(len(batches))
    change = rng.choice(("bytes", "epoch", "missing"))
    if change == "missing":
        del batches[number:]
    elif change == "epoch":
        batches[number] = batches[number]._replace(leader_epoch=7)
    else:
        batches[number] = batches[number]._replace(digest="other")
    history[index] = replica._replace(batches=tuple(batches))
    return f"{TOPIC}-{replica.partition} on brokers"


def conflict(rng: random.Random, history: list[Operation]) -> str | None:
    """A batch is invoked again with fewer rows."""
    batch = _choose(rng, [op for op in history if isinstance(op, BatchOp) and len(op.values) > 1])
    if batch is None:
        return None
    history.append(batch._replace(values=batch.values[1:]))
    return f"batch {batch.batch} of {batch.query} was invoked again"


def undelivered(rng: random.Random, history: list[Operation]) -> str | None:
    """A share group never got an acknowledged value."""
    visible = {value for _, value in _final_records(history)}
    plain = {op.value for op in _sends(history, Phase.INVOKE) if op.transaction is None}
    acknowledged = [op.value for op in _sends(history, Phase.OK) if op.value in visible and op.value in plain]
    value = _choose(rng, acknowledged)
    if value is None:
        return None
    history[:] = [op for op in history if not (isinstance(op, AcknowledgeOp) and op.values == (value,))]
    return f"{value!r} was acknowledged, but no member"


def accepted_twice(rng: random.Random, history: list[Operation]) -> str | None:
    """A share group accepted a value again after the broker had persisted that."""
    accepted = _choose(rng, [op for op in history if isinstance(op, AcknowledgeOp) and op.phase is Phase.OK])
    if accepted is None:
        return None
    history += [accepted._replace(phase=phase, process="planted") for phase in (Phase.INVOKE, Phase.OK)]
    return f"accepted {accepted.values[0]!r} twice"


def incomplete(rng: random.Random, history: list[Operation]) -> str | None:
    """A partition was not read at the end."""
    final = rng.choice([*_finals(history, committed=True), *_finals(history, committed=False)])
    history.remove(final)
    return f"no final read of {TOPIC}-{final.partition}"


PLANTS: list[tuple[AnomalyKind, Plant]] = [
    (AnomalyKind.LOST, lost),
    (AnomalyKind.LOST, lost_transaction),
    (AnomalyKind.DUPLICATE, duplicate),
    (AnomalyKind.TORN, torn),
    (AnomalyKind.TORN, torn_batch),
    (AnomalyKind.ABORTED_READ, aborted_read),
    (AnomalyKind.DIRTY_READ, dirty_read),
    (AnomalyKind.ZOMBIE, zombie),
    (AnomalyKind.ZOMBIE, zombie_before_another),
    (AnomalyKind.REORDERED, reordered),
    (AnomalyKind.REORDERED, reordered_batches),
    (AnomalyKind.PHANTOM, phantom),
    (AnomalyKind.FAILED, failed),
    (AnomalyKind.MISPLACED, misplaced),
    (AnomalyKind.CHANGED, changed),
    (AnomalyKind.SKIPPED, skipped),
    (AnomalyKind.WENT_BACK, went_back),
    (AnomalyKind.TRUNCATED, truncated),
    (AnomalyKind.DIVERGED, diverged),
    (AnomalyKind.CONFLICT, conflict),
    (AnomalyKind.UNDELIVERED, undelivered),
    (AnomalyKind.ACCEPTED_TWICE, accepted_twice),
    (AnomalyKind.INCOMPLETE, incomplete),
]


# -- what the functions above share ---------------------------------------------------------------


def _choose(rng: random.Random, candidates: list[T]) -> T | None:
    return rng.choice(candidates) if candidates else None


def _sends(history: list[Operation], phase: Phase) -> Iterator[SendOp]:
    return (op for op in history if isinstance(op, SendOp) and op.phase is phase)


def _finals(history: list[Operation], *, committed: bool) -> list[ReadOp]:
    return [op for op in history if isinstance(op, ReadOp) and op.final and op.committed is committed]


def _final_records(history: list[Operation]) -> list[tuple[int, str]]:
    return [record for op in _finals(history, committed=True) for record in op.records]


def _is_poll(operation: Operation, records_min: int) -> bool:
    return isinstance(operation, ReadOp) and not operation.final and len(operation.records) >= records_min


def _endings(history: list[Operation], action: Action, phase: Phase) -> list[TransactionOp]:
    return [op for op in history if isinstance(op, TransactionOp) and (op.action, op.phase) == (action, phase)]


def _values_of(history: list[Operation], transaction: str) -> list[str]:
    return [op.value for op in _sends(history, Phase.INVOKE) if op.transaction == transaction]


def _committed_transactions(history: list[Operation], values_min: int) -> list[str]:
    names = [str(op.transaction) for op in _endings(history, Action.COMMIT, Phase.OK)]
    return [name for name in names if len(_values_of(history, name)) >= values_min]


def _change_finals(history: list[Operation], change: Callable[[ReadOp], ReadOp]) -> None:
    history[:] = [change(op) if isinstance(op, ReadOp) and op.final else op for op in history]


def _remove_from_finals(history: list[Operation], value: str) -> None:
    _change_finals(history, lambda op: op._replace(records=tuple(row for row in op.records if row[1] != value)))


def _append_to_finals(history: list[Operation], value: str, partition: int) -> None:
    def appended(op: ReadOp) -> ReadOp:
        if op.partition != partition or op.high_watermark is None:
            return op
        records = (*op.records, (op.high_watermark, value))
        return op._replace(records=records, high_watermark=op.high_watermark + 1)

    _change_finals(history, appended)


def _swap(rng: random.Random, history: list[Operation], owners: dict[str, str]) -> str | None:
    pairs = [
        (left, right)
        for op in _finals(history, committed=False)
        for (_, left), (_, right) in zip(op.records, op.records[1:], strict=False)
        if left in owners and owners.get(left) == owners.get(right)
    ]
    pair = _choose(rng, pairs)
    if pair is None:
        return None
    _exchange(history, *pair)
    return f"{pair[0]!r} of {owners[pair[0]]} comes after {pair[1]!r}"


def _exchange(history: list[Operation], left: str, right: str) -> None:
    other = {left: right, right: left}
    _change_finals(
        history, lambda op: op._replace(records=tuple((offset, other.get(v, v)) for offset, v in op.records))
    )
