"""Random idempotent and transactional clients, and a simple model of what readers may see of their writes.

    step: a client sends a request, or repeats one that got no response   → the model records the result
    check: read all records at both isolation levels, and compare with the model

The model has no epochs, sequences or logs. Its rules: an acknowledged record stays at its offset; a refused record
never appears; a record without a response appears at most once; a read_committed reader sees all records of committed
transactions, and nothing beyond the first open one.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVar

from headrace.errors import Code
from headrace.wire.api.fetch import PartitionData
from headrace.wire.api.produce import PartitionProduceResponse
from headrace.wire.records import decode_marker
from headrace.wire.schema import Message, RequestMessage
from tests.support.peers.connection import Connection, batches_of
from tests.support.raw_producer import RawProducer
from tests.support.waiting import eventually

DEDUPLICATED_BATCHES = 5
BUSY_SECONDS_MAX = 20
TRANSACTION_TIMEOUT_MS = 600_000
T = TypeVar("T")
R = TypeVar("R", bound=Message)


class Outcome(Enum):
    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(eq=False, slots=True)
class Transaction:
    outcome: Outcome = Outcome.OPEN


class Model:
    """The records that clients have sent, and their outcomes."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(partitions)]  # offset → value
        self.transactions: dict[bytes, Transaction | None] = {}  # by value
        self.pending: set[bytes] = set()
        self.refused: set[bytes] = set()

    def sent(self, values: list[bytes], transaction: Transaction | None) -> None:
        for value in values:
            self.transactions[value] = transaction
            self.pending.add(value)

    def acknowledge(self, partition: int, base_offset: int, values: list[bytes]) -> None:
        for offset, value in enumerate(values, base_offset):
            known = self.acknowledged[partition].setdefault(offset, value)
            assert known == value, f"offset {offset} of partition {partition} was given to {known!r} and to {value!r}"
            self.pending.discard(value)

    def refuse(self, values: list[bytes]) -> None:
        self.refused.update(values)
        self.pending.difference_update(values)

    def check_everything(self, partition: int, read: dict[int, bytes]) -> None:
        """Check the records of a read_uncommitted reader, by offset."""
        expected = self.acknowledged[partition]
        lost = {offset: value for offset, value in expected.items() if read.get(offset) != value}
        assert not lost, f"partition {partition} lost or changed: {lost}"
        for offset, value in read.items():
            assert value not in self.refused, f"{value!r} was refused, but is at offset {offset}"
            if offset not in expected:
                assert value in self.pending, f"{value!r} at offset {offset} is a duplicate, or was not sent"
                self.acknowledge(partition, offset, [value])

    def check_committed(self, partition: int, read: dict[int, bytes]) -> None:
        """Check the records of a read_committed reader. Call `check_everything` first."""
        stable = self.stable_end(partition)
        visible = {
            offset: value
            for offset, value in self.acknowledged[partition].items()
            if offset < stable and self._outcome(value) is Outcome.COMMITTED
        }
        assert read == visible, f"partition {partition}: {_difference(read, visible)}"

    def stable_end(self, partition: int) -> int:
        """Return the first offset of an open transaction, or one beyond all offsets."""
        open_ = (o for o, value in self.acknowledged[partition].items() if self._outcome(value) is Outcome.OPEN)
        return min(open_, default=1 << 62)

    def _outcome(self, value: bytes) -> Outcome:
        transaction = self.transactions[value]
        return Outcome.COMMITTED if transaction is None else transaction.outcome


def _difference(read: dict[int, bytes], visible: dict[int, bytes]) -> str:
    missing = {offset: value for offset, value in visible.items() if read.get(offset) != value}
    surplus = {offset: value for offset, value in read.items() if visible.get(offset) != value}
    return f"committed, but not seen: {missing}; seen, but not committed: {surplus}"


class LostError(Exception):
    """There was no response: the request may have been executed or not."""


class Link:
    """A connection that reconnects after it breaks."""

    def __init__(self, bootstrap: str, revive: Callable[[], None]) -> None:
        self._bootstrap = bootstrap
        self._revive = revive  # starts the broker again if it is dead
        self._connection: Connection | None = None

    def call(self, request: RequestMessage[R], version: int) -> R:
        return self._guarded(lambda connection: connection.call(request, version))

    def produce(
        self, topic: str, data: bytes, *, version: int, partition: int, transactional_id: str | None
    ) -> PartitionProduceResponse:
        return self._guarded(
            lambda connection: connection.produce(
                topic, data, version=version, partition=partition, transactional_id=transactional_id
            )
        )

    def fetch(self, topic: str, partition: int, offset: int, committed: bool) -> PartitionData:
        return self._guarded(
            lambda connection: connection.fetch(topic, partition=partition, offset=offset, committed=committed)
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _guarded(self, use: Callable[[Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = Connection(self._bootstrap)
            return use(self._connection)
        except OSError as error:
            self.close()
            self._revive()
            raise LostError from error


@dataclass(slots=True)
class Batch:
    """A batch in flight, or acknowledged."""

    partition: int
    values: list[bytes]
    data: bytes
    base_offset: int = -1


class Writer:
    """A client with a producer id. It numbers its batches, and repeats each until it gets a response."""

    transactions = 0  # version; 0: none

    def __init__(self, name: str, topic: str, link: Link, model: Model, rng: random.Random) -> None:
        self.name = name
        self.model = model
        self.rng = rng
        self.raw = RawProducer(link, topic, name if self.transactions else None, transactions=self.transactions)
        self.sequences: dict[int, int] = {}
        self.arrived: dict[int, deque[Batch]] = {}
        self._values = itertools.count()
        self._again: Callable[[], None] | None = None  # the call that got no response

    def step(self) -> None:
        """Do something random, or repeat a call that got no response."""
        if self._again is not None:
            self.attempt(self._again)
        elif self.raw.producer_id < 0:
            self.attempt(self.initialise)
        else:
            self.act()

    def settle(self) -> None:
        """Repeat a call until it gets a response."""
        while self._again is not None:
            self.attempt(self._again)

    def attempt(self, action: Callable[[], None]) -> None:
        self._again = action
        try:
            action()
        except LostError:
            return
        self._again = None

    def act(self) -> None:
        raise NotImplementedError

    def initialise(self) -> None:
        response = self.raw.init(timeout_ms=TRANSACTION_TIMEOUT_MS)
        assert response.error_code == 0, (self.name, response)
        self.reset_sequences()

    def reset_sequences(self) -> None:
        """Reset sequences for a new producer id or epoch."""
        self.sequences.clear()
        self.arrived.clear()

    def batch(self, partition: int, skip: int = 0) -> Batch:
        """Return the next batch for a partition; with `skip`, after a gap in the sequence."""
        values = [b"%s %d" % (self.name.encode(), next(self._values)) for _ in range(self.rng.randint(1, 3))]
        return Batch(partition, values, self.raw.batch(self.sequences.get(partition, 0) + skip, *values))

    def deliver(self, batch: Batch) -> None:
        """Send a batch that must be acknowledged."""
        response = self.raw.send(batch.data, batch.partition)
        assert response.error_code == 0, (self.name, batch, response)
        batch.base_offset = response.base_offset
        self.model.acknowledge(batch.partition, response.base_offset, batch.values)
        self.sequences[batch.partition] = self.sequences.get(batch.partition, 0) + len(batch.values)
        self.arrived.setdefault(batch.partition, deque(maxlen=DEDUPLICATED_BATCHES)).append(batch)

    def write(self, transaction: Transaction | None) -> None:
        batch = self.batch(self.rng.randrange(self.model.partitions))
        self.model.sent(batch.values, transaction)
        self.attempt(lambda: self.deliver(batch))

    def repeat(self) -> None:
        """Send one of the last batches of a partition again: it must not be written again."""
        if self.arrived:
            batch = self.rng.choice(self.rng.choice(list(self.arrived.values())))
            self.attempt(lambda: self._check_repeated(batch))

    def _check_repeated(self, batch: Batch) -> None:
        response = self.raw.send(batch.data, batch.partition)
        assert (response.error_code, response.base_offset) == (0, batch.base_offset), (self.name, batch, response)


class IdempotentWriter(Writer):
    """Writes without transactions."""

    def act(self) -> None:
        choice = self.rng.random()
        if choice < 0.75:
            self.write(None)
        elif choice < 0.92:
            self.repeat()
        else:
            self._leave_a_gap()

    def _leave_a_gap(self) -> None:
        partition = self.rng.choice([*self.sequences, None])
        if partition is None or partition not in self.arrived:
            return  # a producer that is new to a partition may begin with any sequence
        batch = self.batch(partition, skip=self.rng.randint(1, 100))
        self.model.refuse(batch.values)

        def send() -> None:
            response = self.raw.send(batch.data, batch.partition, patient=False)
            assert response.error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER, (self.name, batch, response)

        self.attempt(send)


class TransactionalWriter(Writer):
    """Writes in transactions of version 2, which get a new epoch after each."""

    transactions = 2

    def __init__(self, name: str, topic: str, link: Link, model: Model, rng: random.Random) -> None:
        super().__init__(name, topic, link, model, rng)
        self.transaction: Transaction | None = None
        self._zombie: RawProducer | None = None  # with a fenced epoch

    def act(self) -> None:
        choice = self.rng.random()
        if choice < 0.06:
            self._replace()
        elif choice < 0.12 and self._zombie is not None:
            self._send_as_zombie(self._zombie)
        elif self.transaction is None:
            self.transaction = Transaction()
            self.write(self.transaction)
        elif choice < 0.6:
            self.write(self.transaction)
        elif choice < 0.7:
            self.repeat()
        else:
            self._end(self.transaction, committed=choice < 0.9)

    def _end(self, transaction: Transaction, committed: bool) -> None:
        def end() -> None:
            response = self.raw.end(committed)
            assert response.error_code == 0, (self.name, response)
            transaction.outcome = Outcome.COMMITTED if committed else Outcome.ABORTED
            self.transaction = None
            self.ended()

        self.attempt(end)

    def ended(self) -> None:
        self.reset_sequences()

    def _replace(self) -> None:
        """Start another client with the same id: it fences the first one, and aborts its transaction."""
        zombie = copy(self.raw)

        def initialise() -> None:
            self.initialise()
            self._zombie = zombie
            if self.transaction is not None:
                self.transaction.outcome = Outcome.ABORTED
                self.transaction = None

        self.attempt(initialise)

    def _send_as_zombie(self, zombie: RawProducer) -> None:
        """Let the fenced client send: it must be refused."""
        value = b"zombie of %s %d" % (self.name.encode(), next(self._values))
        self.model.refuse([value])
        data = zombie.batch(0, value)
        partition = self.rng.randrange(self.model.partitions)
        ends = self.rng.random() < 0.5

        def send_as_zombie() -> None:
            response = zombie.end(True, patient=False) if ends else zombie.send(data, partition, patient=False)
            assert response.error_code != 0, (self.name, response)

        self.attempt(send_as_zombie)


class OldTransactionalWriter(TransactionalWriter):
    """Writes in transactions of version 1: it adds partitions with requests, and keeps its epoch."""

    transactions = 1

    def __init__(self, name: str, topic: str, link: Link, model: Model, rng: random.Random) -> None:
        super().__init__(name, topic, link, model, rng)
        self._added: set[int] = set()

    def reset_sequences(self) -> None:
        super().reset_sequences()
        self._added.clear()

    def ended(self) -> None:
        self._added.clear()
        self.arrived.clear()  # batches of an ended transaction are refused, not deduplicated

    def deliver(self, batch: Batch) -> None:
        if batch.partition not in self._added:
            assert self.raw.add(batch.partition) == [0], self.name
            self._added.add(batch.partition)
        super().deliver(batch)


class Reader:
    """Reads a topic from its beginning, filtering aborted transactions as clients do."""

    def __init__(self, topic: str, link: Link) -> None:
        self._topic = topic
        self._link = link

    def everything(self, partition: int) -> dict[int, bytes]:
        values: dict[int, bytes] = {}
        offset, end = 0, 1
        while offset < end:
            response = self._fetch(partition, offset, committed=False)
            end = response.high_watermark
            for batch in batches_of(response):
                if not batch.header.is_control:
                    values.update((r.offset, r.value or b"") for r in batch.records() if r.offset >= offset)
                offset = batch.header.last_offset + 1
        return values

    def committed(self, partition: int, up_to: int) -> dict[int, bytes]:
        """Return the visible records when the last stable offset is at `up_to`, or at the end of the log."""

        def stable() -> bool:
            response = self._fetch(partition, 0, committed=True)
            return response.last_stable_offset >= min(up_to, response.high_watermark)

        eventually(f"partition {partition} stable up to {up_to}", stable, BUSY_SECONDS_MAX)
        values: dict[int, bytes] = {}
        offset, end = 0, 1
        while offset < end:
            response = self._fetch(partition, offset, committed=True)
            end = response.last_stable_offset
            offset = max(offset, self._add(response, offset, values))
        return values

    def _add(self, response: PartitionData, offset: int, values: dict[int, bytes]) -> int:
        """Add the values of a response, and return the next offset."""
        ahead = deque(sorted((a.first_offset, a.producer_id) for a in response.aborted_transactions or ()))
        aborted: set[int] = set()
        for batch in batches_of(response):
            header = batch.header
            while ahead and ahead[0][0] <= header.last_offset:
                aborted.add(ahead.popleft()[1])
            if header.is_control:
                marker = decode_marker(batch.records()[0])
                if marker is not None and not marker.committed:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                values.update((r.offset, r.value or b"") for r in batch.records() if r.offset >= offset)
            offset = header.last_offset + 1
        return offset

    def _fetch(self, partition: int, offset: int, committed: bool) -> PartitionData:
        def response() -> PartitionData | None:
            try:
                return self._link.fetch(self._topic, partition, offset, committed)
            except LostError:
                return None

        return eventually(f"a fetch of partition {partition}", response, BUSY_SECONDS_MAX)
