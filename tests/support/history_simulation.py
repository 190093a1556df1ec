"""Random histories of a correct cluster, with clients that lose responses and give up."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

from headrace.verify import (
    AcknowledgeOp,
    Action,
    BatchOp,
    Operation,
    Phase,
    ReadOp,
    ReplicaOp,
    SeekOp,
    SendOp,
    StoredBatch,
    TransactionOp,
)

TOPIC, QUERY, GROUP = "topic", "query", "group"
PARTITIONS = 3
BROKERS = 3
IDS = 3  # transactional ids
RECORDS_MAX = 4  # sent together
_MARKER = ""


@dataclass(slots=True)
class _Transaction:
    name: str
    process: str
    id_number: int
    is_open: bool = True
    is_committed: bool = False
    fate: Phase = Phase.OK  # what the client learns about its end


@dataclass(slots=True)
class _Log:
    """A partition: values and transaction markers, each with its transaction."""

    records: list[tuple[str, _Transaction | None]] = field(default_factory=list)

    @property
    def stable_end(self) -> int:
        for offset, (_, transaction) in enumerate(self.records):
            if transaction is not None and transaction.is_open:
                return offset
        return len(self.records)

    def read(self, begin: int, end: int, *, committed: bool) -> tuple[tuple[int, str], ...]:
        return tuple(
            (offset, value)
            for offset, (value, transaction) in enumerate(self.records[begin:end], begin)
            if value != _MARKER and not (committed and transaction is not None and not transaction.is_committed)
        )


class _Simulation:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._logs = [_Log() for _ in range(PARTITIONS)]
        self._open: list[_Transaction] = []
        self._owners: dict[int, int] = {}  # transactional id: the instance of the client
        self._positions: dict[tuple[str, int], int] = {}
        self._count = self._batch_number = 0
        self.operations: list[Operation] = []

    def step(self) -> None:
        """Do something."""
        actions = (self._write, self._begin, self._end_transaction, self._read, self._read, self._batch, self._seek)
        self._rng.choices(actions, weights=(4, 3, 3, 3, 3, 2, 1))[0]()

    def finish(self) -> None:
        """End what is open, read everything, and compare the replicas."""
        while self._open:
            self._end_transaction()
        for partition, log in enumerate(self._logs):
            end = len(log.records)
            for committed in (True, False):
                records = log.read(0, end, committed=committed)
                self.operations.append(ReadOp("final", TOPIC, partition, committed, records, end, final=True))
            batches = tuple(
                StoredBatch(offset, offset, 0, hashlib.sha1(value.encode()).hexdigest())
                for offset, (value, _) in enumerate(log.records)
            )
            self.operations += [ReplicaOp(broker, TOPIC, partition, batches) for broker in range(BROKERS)]

    def share(self) -> None:
        """Let a share group accept what was sent, in any order, and again after a lost response."""
        values = [value for log in self._logs for _, value in log.read(0, len(log.records), committed=True)]
        self._rng.shuffle(values)
        for value in values:
            for fate in (Phase.INFO, Phase.OK) if self._rng.random() < 0.3 else (Phase.OK,):
                member = f"member-{self._rng.randrange(2)}"
                self.operations += [AcknowledgeOp(phase, member, GROUP, (value,)) for phase in (Phase.INVOKE, fate)]

    def _write(self) -> None:
        """Send several values, each of which may be stored or not, and acknowledged or not."""
        sent = [self._send(f"w{self._rng.randrange(2)}", None) for _ in range(self._rng.randint(1, RECORDS_MAX))]
        for send in sent:
            fate = self._rng.choice(("acknowledged", "acknowledged", "response lost", "unknown", "refused"))
            partition = self._rng.randrange(PARTITIONS) if send.partition is None else send.partition
            if fate in ("unknown", "refused"):
                self._result(send, Phase.FAIL if fate == "refused" else Phase.INFO)
                continue
            offset = self._store(partition, send.value, None)
            if fate == "acknowledged":
                has_offset = self._rng.random() < 0.8
                self._result(send, Phase.OK, partition, offset if has_offset else None)

    def _begin(self) -> None:
        """Begin a transaction. If some of its records are not stored, it cannot be committed."""
        free = [number for number in range(IDS) if number not in {each.id_number for each in self._open}]
        if not free:
            return
        self._count += 1
        number = self._rng.choice(free)
        if number not in self._owners or self._rng.random() < 0.3:
            self._owners[number] = self._owners.get(number, 0) + 1
            for phase in (Phase.INVOKE, Phase.OK):
                self.operations.append(self._transaction_op(Action.INIT, phase, f"p{number}", None, number))
        name = f"t{self._count}"
        transaction = _Transaction(name, f"p{number}", number, is_committed=self._rng.random() < 0.6)
        for _ in range(self._rng.randint(1, RECORDS_MAX)):
            send = self._send(transaction.process, name)
            if transaction.is_committed or self._rng.random() < 0.7:
                partition = self._rng.randrange(PARTITIONS) if send.partition is None else send.partition
                offset = self._store(partition, send.value, transaction)
                self._result(send, Phase.OK, partition, offset)
        known = (Phase.OK, Phase.OK, Phase.INFO)
        transaction.fate = self._rng.choice(known)
        self._open.append(transaction)

    def _end_transaction(self) -> None:
        if not self._open:
            return
        transaction = self._open.pop(self._rng.randrange(len(self._open)))
        action = Action.COMMIT
        if not transaction.is_committed and self._rng.random() < 0.7:
            action = Action.ABORT
        elif not transaction.is_committed:
            transaction.fate = Phase.FAIL
        self._end(transaction, action, Phase.INVOKE)
        transaction.is_open = False
        for log in self._logs:
            if any(owner is transaction for _, owner in log.records):
                log.records.append((_MARKER, None))
        if self._rng.random() < 0.9:  # else the client was killed
            self._end(transaction, action, transaction.fate)

    def _batch(self) -> None:
        """Deliver a micro-batch; a second driver may have to repeat it."""
        values = tuple(f"row-{self._batch_number}-{n}" for n in range(self._rng.randint(1, RECORDS_MAX)))
        is_repeated, is_stored = self._rng.random() < 0.3, False
        for phase in (Phase.INFO, Phase.OK) if is_repeated else (Phase.OK,):
            driver = f"driver-{phase}"
            self.operations.append(BatchOp(Phase.INVOKE, driver, QUERY, self._batch_number, values))
            if not is_stored and (phase is Phase.OK or self._rng.random() < 0.5):
                for value in values:
                    self._store(self._rng.randrange(PARTITIONS), value, None)
                is_stored = True
            self.operations.append(BatchOp(phase, driver, QUERY, self._batch_number))
        self._batch_number += 1

    def _read(self) -> None:
        """Read more of a partition with one of the readers."""
        committed, partition = self._rng.random() < 0.5, self._rng.randrange(PARTITIONS)
        reader, log = f"r{self._rng.randrange(2)}-{committed}", self._logs[partition]
        begin = self._positions.get((reader, partition), 0)
        end_max = log.stable_end if committed else len(log.records)
        end = self._rng.randint(begin, max(begin, end_max))
        self._positions[reader, partition] = end
        records = log.read(begin, end, committed=committed)
        self.operations.append(ReadOp(reader, TOPIC, partition, committed, records, len(log.records)))

    def _seek(self) -> None:
        if self._positions:
            reader, partition = self._rng.choice(sorted(self._positions))
            offset = self._rng.randint(0, self._positions[reader, partition])
            self._positions[reader, partition] = offset
            known = offset if self._rng.random() < 0.8 else None
            self.operations.append(SeekOp(reader, TOPIC, partition, known))

    def _send(self, process: str, transaction: str | None) -> SendOp:
        self._count += 1
        partition = None if self._rng.random() < 0.2 else self._rng.randrange(PARTITIONS)
        send = SendOp(Phase.INVOKE, process, f"v{self._count}", TOPIC, partition, transaction=transaction)
        self.operations.append(send)
        return send

    def _result(self, send: SendOp, phase: Phase, partition: int | None = None, offset: int | None = None) -> None:
        self.operations.append(SendOp(phase, send.process, send.value, TOPIC, partition, offset))

    def _end(self, transaction: _Transaction, action: Action, phase: Phase) -> None:
        number = transaction.id_number
        self.operations.append(self._transaction_op(action, phase, transaction.process, transaction.name, number))

    def _transaction_op(
        self, action: Action, phase: Phase, process: str, transaction: str | None, number: int
    ) -> TransactionOp:
        producer = f"{process}-{self._owners[number]}"
        return TransactionOp(action, phase, process, transaction, f"id-{number}", producer)

    def _store(self, partition: int, value: str, transaction: _Transaction | None) -> int:
        records = self._logs[partition].records
        records.append((value, transaction))
        return len(records) - 1


def random_history(rng: random.Random, steps: int, *, share: bool = False) -> list[Operation]:
    """Return a random run with this number of steps; with `share`, a share group reads it."""
    simulation = _Simulation(rng)
    for _ in range(steps):
        simulation.step()
    simulation.finish()
    if share:
        simulation.share()
    return simulation.operations
