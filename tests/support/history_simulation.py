"""Random histories of a correct cluster, with clients that lose responses and give up."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

from tests.support.history import Batch, Ended, Event, Outcome, Read, Replica, SendResult, Sent

PARTITIONS = 3
BROKERS = 3
RECORDS_MAX = 4  # sent together
_MARKER = ""


@dataclass(slots=True)
class _Transaction:
    name: str
    is_open: bool = True
    is_committed: bool = False


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
        self._positions: dict[tuple[str, int], int] = {}
        self._count = 0
        self.events: list[Event] = []

    def step(self) -> None:
        action = self._rng.choice(
            (self._write, self._write, self._begin, self._end_transaction, self._read, self._read)
        )
        action()

    def finish(self) -> None:
        while self._open:
            self._end_transaction()
        for partition, log in enumerate(self._logs):
            end = len(log.records)
            for committed in (True, False):
                records = log.read(0, end, committed=committed)
                self.events.append(Read("final", committed, partition, records, end, final=True))
            batches = tuple(
                Batch(offset, offset, 0, hashlib.sha1(value.encode()).hexdigest())
                for offset, (value, _) in enumerate(log.records)
            )
            self.events += [Replica(broker, partition, batches) for broker in range(BROKERS)]

    def _write(self) -> None:
        """Send several values, each of which may be stored or not, and acknowledged or not."""
        sent = [self._send(f"w{self._rng.randrange(2)}", None) for _ in range(self._rng.randint(1, RECORDS_MAX))]
        for event in sent:
            fate = self._rng.choice(("acknowledged", "acknowledged", "response lost", "unknown", "refused"))
            partition = self._rng.randrange(PARTITIONS) if event.partition is None else event.partition
            if fate in ("unknown", "refused"):
                outcome = Outcome.UNDONE if fate == "refused" else Outcome.UNKNOWN
                self.events.append(SendResult(event.value, outcome))
                continue
            offset = self._store(partition, event.value, None)
            if fate == "acknowledged":
                has_offset = self._rng.random() < 0.8
                self.events.append(SendResult(event.value, Outcome.DONE, partition, offset if has_offset else None))

    def _begin(self) -> None:
        """Begin a transaction. If some of its records are not stored, it cannot be committed."""
        self._count += 1
        transaction = _Transaction(f"t{self._count}", is_committed=self._rng.random() < 0.6)
        for _ in range(self._rng.randint(1, RECORDS_MAX)):
            event = self._send(f"writer-{transaction.name}", transaction.name)
            if transaction.is_committed or self._rng.random() < 0.7:
                partition = self._rng.randrange(PARTITIONS) if event.partition is None else event.partition
                offset = self._store(partition, event.value, transaction)
                self.events.append(SendResult(event.value, Outcome.DONE, partition, offset))
        self._open.append(transaction)

    def _end_transaction(self) -> None:
        if not self._open:
            return
        transaction = self._open.pop(self._rng.randrange(len(self._open)))
        transaction.is_open = False
        for log in self._logs:
            if any(owner is transaction for _, owner in log.records):
                log.records.append((_MARKER, None))
        known = Outcome.DONE if transaction.is_committed else Outcome.UNDONE
        outcome = self._rng.choice((known, known, Outcome.UNKNOWN, None))
        if outcome is not None:
            self.events.append(Ended(transaction.name, outcome))

    def _read(self) -> None:
        """Read more of a partition with one of the readers."""
        committed, partition = self._rng.random() < 0.5, self._rng.randrange(PARTITIONS)
        reader, log = f"r{self._rng.randrange(2)}-{committed}", self._logs[partition]
        begin = self._positions.get((reader, partition), 0)
        end_max = log.stable_end if committed else len(log.records)
        end = self._rng.randint(begin, max(begin, end_max))
        self._positions[reader, partition] = end
        records = log.read(begin, end, committed=committed)
        self.events.append(Read(reader, committed, partition, records, len(log.records)))

    def _send(self, writer: str, transaction: str | None) -> Sent:
        self._count += 1
        partition = None if self._rng.random() < 0.2 else self._rng.randrange(PARTITIONS)
        event = Sent(writer, f"v{self._count}", partition, transaction)
        self.events.append(event)
        return event

    def _store(self, partition: int, value: str, transaction: _Transaction | None) -> int:
        records = self._logs[partition].records
        records.append((value, transaction))
        return len(records) - 1


def random_history(rng: random.Random, steps: int) -> list[Event]:
    """Return the events of a random run with this number of steps."""
    simulation = _Simulation(rng)
    for _ in range(steps):
        simulation.step()
    simulation.finish()
    return simulation.events
