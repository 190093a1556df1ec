"""Random idempotent and transactional clients, and a simple model of what a reader may see of their writes.

    step: a client does something, or does again what it got no answer to   → the model notes what was promised
    check: read everything, both ways, and compare with the model

The model knows no epochs, sequences or logs. It knows that an acknowledged record is at its offset for ever, that a
refused one never appears, that one without an answer may appear, once; and that a reader of committed records sees
those of committed transactions, all of them, and nothing past the first open one.
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
from headrace.wire.schema import Message
from tests.support.peers.connection import Connection, batches_of
from tests.support.raw_producer import RawProducer
from tests.support.waiting import eventually

DEDUPLICATED_BATCHES = 5
BUSY_SECONDS_MAX = 20
TRANSACTION_TIMEOUT_MS = 600_000
T = TypeVar("T")


class Outcome(Enum):
    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(eq=False, slots=True)
class Transaction:
    outcome: Outcome = Outcome.OPEN


class Model:
    """What has been promised."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(partitions)]  # offset → value
        self.transactions: dict[bytes, Transaction | None] = {}  # value → what it belongs to
        self.unanswered: set[bytes] = set()
        self.refused: set[bytes] = set()

    def sent(self, values: list[bytes], transaction: Transaction | None) -> None:
        for value in values:
            self.transactions[value] = transaction
            self.unanswered.add(value)

    def acknowledge(self, partition: int, base_offset: int, values: list[bytes]) -> None:
        for offset, value in enumerate(values, base_offset):
            known = self.acknowledged[partition].setdefault(offset, value)
            assert known == value, f"offset {offset} of partition {partition} was given to {known!r} and to {value!r}"
            self.unanswered.discard(value)

    def refuse(self, values: list[bytes]) -> None:
        self.refused.update(values)
        self.unanswered.difference_update(values)

    def check_everything(self, partition: int, read: dict[int, bytes]) -> None:
        """What a reader of everything has found, by offset."""
        promised = self.acknowledged[partition]
        lost = {offset: value for offset, value in promised.items() if read.get(offset) != value}
        assert not lost, f"partition {partition} lost, or has something else for: {lost}"
        for offset, value in read.items():
            assert value not in self.refused, f"{value!r} was refused, but is at offset {offset}"
            if offset not in promised:
                assert value in self.unanswered, f"{value!r} at offset {offset} is there twice, or nobody sent it"
                self.acknowledge(partition, offset, [value])

    def check_committed(self, partition: int, read: dict[int, bytes]) -> None:
        """What a reader of committed records has found. Comes after `check_everything`."""
        stable = self.stable_end(partition)
        visible = {
            offset: value
            for offset, value in self.acknowledged[partition].items()
            if offset < stable and self._outcome(value) is Outcome.COMMITTED
        }
        assert read == visible, f"partition {partition}: {_difference(read, visible)}"

    def stable_end(self, partition: int) -> int:
        """The first offset that belongs to an open transaction, or one that is past everything."""
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
    """There was no answer: the request was carried out, or not."""


class Link:
    """A connection that is made again when it breaks."""

    def __init__(self, bootstrap: str, revive: Callable[[], None]) -> None:
        self._bootstrap = bootstrap
        self._revive = revive  # starts the broker again if it is dead
        self._connection: Connection | None = None

    def call(self, request: Message, version: int) -> Message:
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
    """A batch on its way, or one that has arrived."""

    partition: int
    values: list[bytes]
    data: bytes
    base_offset: int = -1


class Writer:
    """A client with a producer id: it numbers its batches, and sends one again until it has an answer."""

    transactions = 0  # their version

    def __init__(self, name: str, topic: str, link: Link, model: Model, rng: random.Random) -> None:
        self.name = name
        self.model = model
        self.rng = rng
        self.raw = RawProducer(link, topic, name if self.transactions else None, transactions=self.transactions)
        self.sequences: dict[int, int] = {}
        self.arrived: dict[int, deque[Batch]] = {}
        self._values = itertools.count()
        self._again: Callable[[], None] | None = None  # what had no answer

    def step(self) -> None:
        """Do something, or finish what was begun."""
        if self._again is not None:
            self.attempt(self._again)
        elif self.raw.producer_id < 0:
            self.attempt(self.initialise)
        else:
            self.act()

    def settle(self) -> None:
        """Get an answer to whatever has none."""
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
        self.begin_anew()

    def begin_anew(self) -> None:
        """There is a new identity."""
        self.sequences.clear()
        self.arrived.clear()

    def batch(self, partition: int, skip: int = 0) -> Batch:
        """The next batch for a partition; with `skip`, one that leaves a gap before it."""
        values = [b"%s %d" % (self.name.encode(), next(self._values)) for _ in range(self.rng.randint(1, 3))]
        return Batch(partition, values, self.raw.batch(self.sequences.get(partition, 0) + skip, *values))

    def deliver(self, batch: Batch) -> None:
        """Send a batch that must be taken."""
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
            return  # a producer that a partition does not know may begin anywhere
        batch = self.batch(partition, skip=self.rng.randint(1, 100))
        self.model.refuse(batch.values)

        def send() -> None:
            response = self.raw.send(batch.data, batch.partition, patient=False)
            assert response.error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER, (self.name, batch, response)

        self.attempt(send)


class TransactionalWriter(Writer):
    """Writes in transactions of the second version: a new epoch after each of them."""

    transactions = 2

    def __init__(self, name: str, topic: str, link: Link, model: Model, rng: random.Random) -> None:
        super().__init__(name, topic, link, model, rng)
        self.transaction: Transaction | None = None
        self._zombie: RawProducer | None = None  # with an identity that has been replaced

    def act(self) -> None:
        choice = self.rng.random()
        if choice < 0.06:
            self._replace()
        elif choice < 0.12 and self._zombie is not None:
            self._haunt(self._zombie)
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
        self.begin_anew()

    def _replace(self) -> None:
        """Another client of the same name appears: it ends what the first one has begun."""
        zombie = copy(self.raw)

        def initialise() -> None:
            self.initialise()
            self._zombie = zombie
            if self.transaction is not None:
                self.transaction.outcome = Outcome.ABORTED
                self.transaction = None

        self.attempt(initialise)

    def _haunt(self, zombie: RawProducer) -> None:
        """The first client has not noticed, and goes on: nothing of that may have an effect."""
        value = b"zombie of %s %d" % (self.name.encode(), next(self._values))
        self.model.refuse([value])
        data = zombie.batch(0, value)
        partition = self.rng.randrange(self.model.partitions)
        ends = self.rng.random() < 0.5

        def haunt() -> None:
            response = zombie.end(True, patient=False) if ends else zombie.send(data, partition, patient=False)
            assert response.error_code != 0, (self.name, response)

        self.attempt(haunt)


class OldTransactionalWriter(TransactionalWriter):
    """Writes in transactions of the first version: it says which partitions it will write to, and keeps its epoch."""

    transactions = 1

    def __init__(self, name: str, topic: str, link: Link, model: Model, rng: random.Random) -> None:
        super().__init__(name, topic, link, model, rng)
        self._announced: set[int] = set()

    def begin_anew(self) -> None:
        super().begin_anew()
        self._announced.clear()

    def ended(self) -> None:
        self._announced.clear()
        self.arrived.clear()  # what belongs to a transaction that is over is refused, not recognised

    def deliver(self, batch: Batch) -> None:
        if batch.partition not in self._announced:
            assert self.raw.add(batch.partition) == [0], self.name
            self._announced.add(batch.partition)
        super().deliver(batch)


class Reader:
    """Reads a topic from its beginning, by the rules that all clients follow."""

    def __init__(self, topic: str, link: Link) -> None:
        self._topic = topic
        self._link = link

    def everything(self, partition: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        offset, end = 0, 1
        while offset < end:
            answer = self._fetch(partition, offset, committed=False)
            end = answer.high_watermark
            for batch in batches_of(answer):
                if not batch.header.is_control:
                    found.update((r.offset, r.value or b"") for r in batch.records() if r.offset >= offset)
                offset = batch.header.last_offset + 1
        return found

    def committed(self, partition: int, up_to: int) -> dict[int, bytes]:
        """What is visible once the last stable offset is at `up_to`, or at the end of the log."""

        def stable() -> bool:
            answer = self._fetch(partition, 0, committed=True)
            return answer.last_stable_offset >= min(up_to, answer.high_watermark)

        eventually(f"partition {partition} stable up to {up_to}", stable, BUSY_SECONDS_MAX)
        found: dict[int, bytes] = {}
        offset, end = 0, 1
        while offset < end:
            answer = self._fetch(partition, offset, committed=True)
            end = answer.last_stable_offset
            offset = max(offset, self._take(answer, offset, found))
        return found

    def _take(self, answer: PartitionData, offset: int, found: dict[int, bytes]) -> int:
        ahead = deque(sorted((a.first_offset, a.producer_id) for a in answer.aborted_transactions or ()))
        aborted: set[int] = set()
        for batch in batches_of(answer):
            header = batch.header
            while ahead and ahead[0][0] <= header.last_offset:
                aborted.add(ahead.popleft()[1])
            if header.is_control:
                marker = decode_marker(batch.records()[0])
                if marker is not None and not marker.committed:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found.update((r.offset, r.value or b"") for r in batch.records() if r.offset >= offset)
            offset = header.last_offset + 1
        return offset

    def _fetch(self, partition: int, offset: int, committed: bool) -> PartitionData:
        def answer() -> PartitionData | None:
            try:
                return self._link.fetch(self._topic, partition, offset, committed)
            except LostError:
                return None

        return eventually(f"a fetch of partition {partition}", answer, BUSY_SECONDS_MAX)
