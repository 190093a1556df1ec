"""The operations of a history by value, transaction, batch and partition: what the rules work with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from headrace.types import TopicPartition
from headrace.verify.anomalies import Evidence, Position
from headrace.verify.operations import (
    AcknowledgeOp,
    Action,
    BatchOp,
    InvalidHistoryError,
    Operation,
    Phase,
    ReadOp,
    ReplicaOp,
    SendOp,
    TransactionOp,
)


class Outcome(Enum):
    """The outcome of a transaction or batch, as its process knows it."""

    COMMITTED = auto()
    ABORTED = auto()
    UNKNOWN = auto()


@dataclass(slots=True)
class Write:
    """A value that was sent. Indexes are those of operations."""

    process: str
    partition: TopicPartition | None  # None: the client chooses one
    topic: str
    transaction: str | None
    index: int
    phase: Phase = Phase.INVOKE  # of the result
    result_index: int | None = None
    acknowledged: Position | None = None

    @property
    def target(self) -> TopicPartition | None:
        """The partition, as far as it is known."""
        return self.partition if self.acknowledged is None else self.acknowledged.partition


@dataclass(slots=True)
class Unit:
    """Values that become visible together: a transaction, or a batch of a query."""

    name: str
    process: str
    values: list[str] = field(default_factory=list)
    outcome: Outcome = Outcome.UNKNOWN
    commit_index: int | None = None  # where the commit was first invoked
    end_index: int | None = None  # where the outcome became known


@dataclass(slots=True)
class Contents:
    """The final reads at one isolation level."""

    values: dict[TopicPartition, dict[int, str]] = field(default_factory=dict)  # by offset
    indexes: dict[TopicPartition, int] = field(default_factory=dict)
    positions: dict[str, Position] = field(default_factory=dict)
    repeated: dict[str, list[Position]] = field(default_factory=dict)  # further positions

    def add(self, index: int, partition: TopicPartition, read: ReadOp) -> None:
        if partition in self.values:
            raise InvalidHistoryError(f"operation {index + 1}: a second final read of {partition}: expected one")
        self.indexes[partition] = index
        self.values[partition] = dict(read.records)
        for offset, value in read.records:
            position = Position(partition, offset)
            if self.positions.setdefault(value, position) is not position:
                self.repeated.setdefault(value, []).append(position)

    def all_positions(self, value: str) -> list[Position]:
        """Return all positions of a value that is there."""
        return [self.positions[value], *self.repeated.get(value, ())]


class Facts:
    """The history, indexed. One pass over the operations."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.operations = list(operations)
        self.writes: dict[str, Write] = {}
        self.transactions: dict[str, Unit] = {}
        self.batches: dict[tuple[str, int], Unit] = {}
        self.batch_of: dict[str, tuple[str, int]] = {}  # by value
        self.batch_invokes: dict[tuple[str, int], list[int]] = {}
        self._batch_fails: Counter[tuple[str, int]] = Counter()
        self.endings: list[tuple[int, TransactionOp]] = []  # init, commit and abort
        self.reads: list[tuple[int, TopicPartition, ReadOp]] = []
        self.acknowledgements: list[tuple[int, AcknowledgeOp]] = []
        self.replicas: dict[TopicPartition, list[tuple[int, ReplicaOp]]] = {}
        self.committed = Contents()
        self.everything = Contents()
        self._partitions: dict[tuple[str, int], TopicPartition] = {}
        for index, operation in enumerate(self.operations):
            kind = type(operation)
            if kind is SendOp:
                self._add_send(index, operation)  # type: ignore[arg-type]
            elif kind is ReadOp:
                self._add_read(index, operation)  # type: ignore[arg-type]
            else:
                self._add_other(index, operation)
        for key, fails in self._batch_fails.items():
            if fails >= len(self.batch_invokes[key]) and self.batches[key].outcome is Outcome.UNKNOWN:
                self.batches[key].outcome = Outcome.ABORTED
        for unit in self.units():
            if unit.outcome is Outcome.UNKNOWN and unit.commit_index is None:
                unit.outcome = Outcome.ABORTED  # its commit was never requested

    def units(self) -> Iterator[Unit]:
        """Yield transactions and batches."""
        yield from self.transactions.values()
        yield from self.batches.values()

    def unit_of(self, value: str) -> Unit | None:
        """Return the transaction or batch of a value."""
        write = self.writes.get(value)
        if write is not None:
            return None if write.transaction is None else self.transactions[write.transaction]
        key = self.batch_of.get(value)
        return None if key is None else self.batches[key]

    def partition(self, topic: str, number: int) -> TopicPartition:
        """Return a partition: always the same object, because there are millions of references."""
        key = (topic, number)
        known = self._partitions.get(key)
        if known is None:
            known = self._partitions[key] = TopicPartition(topic, number)
        return known

    def named_partitions(self) -> set[TopicPartition]:
        """Return all partitions that the history names."""
        return set(self._partitions.values())

    # -- evidence --------------------------------------------------------------------------------

    def evidence(self, *indexes: int | None, at: Iterable[Position] = (), value: str = "") -> tuple[Evidence, ...]:
        """Return operations in order: of reads the records at these positions, of acknowledgements this value."""
        kept = set(at)
        return tuple(self._evidence(index, kept, value) for index in sorted({i for i in indexes if i is not None}))

    def _evidence(self, index: int, kept: set[Position], value: str) -> Evidence:
        operation = self.operations[index]
        if isinstance(operation, AcknowledgeOp):
            return Evidence(index + 1, operation._replace(values=tuple(v for v in operation.values if v == value)))
        if not isinstance(operation, ReadOp):
            return Evidence(index + 1, operation)
        partition = self.partition(operation.topic, operation.partition)
        records = tuple(record for record in operation.records if Position(partition, record[0]) in kept)
        return Evidence(index + 1, operation._replace(records=records), len(operation.records))

    def send_indexes(self, value: str) -> list[int]:
        """Return the operations that sent a value: a send, or the invocations of its batch."""
        if value in self.writes:
            return [self.writes[value].index]
        return self.batch_invokes.get(self.batch_of[value], [])[:1] if value in self.batch_of else []

    # -- building --------------------------------------------------------------------------------

    def _add_send(self, index: int, operation: SendOp) -> None:
        value = operation.value
        partition = None if operation.partition is None else self.partition(operation.topic, operation.partition)
        if operation.phase is Phase.INVOKE:
            if value in self.writes or value in self.batch_of:
                raise InvalidHistoryError(f"operation {index + 1}: {value!r} was sent before: values have to be unique")
            self.writes[value] = Write(operation.process, partition, operation.topic, operation.transaction, index)
            if operation.transaction is not None:
                self._transaction(operation.transaction, operation.process).values.append(value)
            return
        write = self.writes.get(value)
        if write is None:
            raise InvalidHistoryError(f"operation {index + 1}: the result of {value!r}, which was not invoked")
        write.phase, write.result_index = operation.phase, index
        if partition is not None and operation.offset is not None:
            write.acknowledged = Position(partition, operation.offset)
        elif partition is not None and write.partition is None:
            write.partition = partition

    def _add_read(self, index: int, operation: ReadOp) -> None:
        partition = self.partition(operation.topic, operation.partition)
        self.reads.append((index, partition, operation))
        if operation.final:
            (self.committed if operation.committed else self.everything).add(index, partition, operation)

    def _add_other(self, index: int, operation: Operation) -> None:
        match operation:
            case TransactionOp():
                self.endings.append((index, operation))
                if operation.action is not Action.INIT:
                    self._end(index, operation)
            case BatchOp():
                self._add_batch(index, operation)
            case AcknowledgeOp():
                self.acknowledgements.append((index, operation))
            case ReplicaOp():
                partition = self.partition(operation.topic, operation.partition)
                self.replicas.setdefault(partition, []).append((index, operation))
            case _:
                pass  # a seek matters to reads only

    def _transaction(self, name: str, process: str) -> Unit:
        unit = self.transactions.get(name)
        if unit is None:
            unit = self.transactions[name] = Unit(f"transaction {name}", process)
        return unit

    def _end(self, index: int, operation: TransactionOp) -> None:
        assert operation.transaction is not None
        unit = self._transaction(operation.transaction, operation.process)
        is_commit = operation.action is Action.COMMIT
        if operation.phase is Phase.INVOKE:
            if is_commit and unit.commit_index is None:
                unit.commit_index = index
        elif is_commit and unit.commit_index is None:
            raise InvalidHistoryError(
                f"operation {index + 1}: the result of a commit of {operation.transaction!r}, which was not invoked"
            )
        elif is_commit and operation.phase is not Phase.INFO:
            unit.outcome = Outcome.COMMITTED if operation.phase is Phase.OK else Outcome.ABORTED
            unit.end_index = index
        elif operation.phase is Phase.OK and unit.outcome is Outcome.UNKNOWN:  # an abort
            unit.outcome, unit.end_index = Outcome.ABORTED, index

    def _add_batch(self, index: int, operation: BatchOp) -> None:
        key = (operation.query, operation.batch)
        if operation.phase is Phase.INVOKE:
            self.batch_invokes.setdefault(key, []).append(index)
            if key in self.batches:
                return  # another driver repeats it: see the rule for conflicts
            name = f"batch {operation.batch} of {operation.query}"
            self.batches[key] = Unit(name, operation.process, list(operation.values), commit_index=index)
            for value in operation.values:
                if value in self.writes or value in self.batch_of:
                    text = f"operation {index + 1}: {value!r} was sent before: values have to be unique"
                    raise InvalidHistoryError(text)
                self.batch_of[value] = key
            return
        unit = self.batches.get(key)
        if unit is None:
            raise InvalidHistoryError(
                f"operation {index + 1}: the result of batch {operation.batch} of {operation.query!r}, "
                "which was not invoked"
            )
        if operation.phase is Phase.OK:
            unit.outcome, unit.end_index = Outcome.COMMITTED, index
        elif operation.phase is Phase.FAIL:
            self._batch_fails[key] += 1
