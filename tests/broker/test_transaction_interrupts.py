"""Ctrl-C at every point of the calls of a transaction, and a second one in the clean-up of the first.

Afterwards the call can be made again, as after a time-out, and says how the transaction ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace import GroupMetadata, IllegalStateError, Producer
from headrace.broker import EmbeddedBroker
from headrace.producer.transactions import TransactionManager
from tests.support.interruption import ctrl_c, sweep, sweep_twice
from tests.support.peers.connection import Connection
from tests.support.topics import unique
from tests.support.visible import visible

BLOCK_MS = 10_000
GROUP = "interrupted"


class Rig:
    """A transactional producer, and the records that readers must see."""

    def __init__(self, producer: Producer, topic: str, connection: Connection) -> None:
        self.producer, self.topic, self._connection = producer, topic, connection
        self.committed: list[bytes] = []
        self.perhaps: set[bytes] = set()  # Committed if `send` had queued them before it was interrupted.
        self.trials = 0
        self.value = b""

    def begin(self, number: int) -> None:
        self.trials += 1
        self.value = b"%d in trial %d" % (number, self.trials)
        self.producer.begin_transaction()

    def begin_and_send(self, number: int) -> None:
        self.begin(number)
        self.producer.send(self.topic, self.value)

    def commit(self) -> None:
        self.producer.commit_transaction()
        self.committed.append(self.value)

    def check_works(self) -> None:
        """Check that another transaction works, and that readers see committed records once and no others."""
        self.begin_and_send(0)
        self.commit()

    def check_visible(self) -> None:
        values = visible(self._connection, self.topic)
        assert len(values) == len(set(values))
        assert [value for value in values if value not in self.perhaps] == self.committed


@pytest.fixture(params=["v1", "v2"])
def rig(
    broker: EmbeddedBroker,
    topic: str,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Rig]:
    if request.param == "v1":  # as with brokers before KIP-890
        monkeypatch.setattr(TransactionManager, "update_features", lambda manager, features: None)
    with Producer(
        bootstrap_servers=broker.bootstrap,
        transactional_id=unique("txn"),
        linger_ms=0,
        max_block_ms=BLOCK_MS,
        request_timeout_ms=BLOCK_MS // 2,
        delivery_timeout_ms=BLOCK_MS,
    ) as producer:
        producer.init_transactions()
        made = Rig(producer, topic, connection)
        made.check_works()
        yield made
        made.check_visible()


Swept = Callable[[Callable[[int], Callable[[], object]], Callable[[int], None]], None]


def once(prepare: Callable[[int], Callable[[], object]], check: Callable[[int], None]) -> None:
    assert sweep(prepare, ctrl_c, check) > 10


def twice(prepare: Callable[[int], Callable[[], object]], check: Callable[[int], None]) -> None:
    assert sweep_twice(prepare, check, step=4, points=range(1, 200)) > 10


@pytest.fixture(params=[once, twice])
def swept(request: pytest.FixtureRequest) -> Swept:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.behaviour("P51")
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_interrupted_commit_or_abort_can_be_repeated(rig: Rig, end: str, swept: Swept) -> None:
    end_transaction = rig.producer.commit_transaction if end == "commit" else rig.producer.abort_transaction
    is_over = False

    def prepare(number: int) -> Callable[[], object]:
        def call() -> None:
            nonlocal is_over
            end_transaction()
            is_over = True

        nonlocal is_over
        is_over = False
        rig.begin_and_send(number)
        return call

    def check(number: int) -> None:
        if not is_over:
            end_transaction()
        if end == "commit":
            rig.committed.append(rig.value)
        rig.check_works()

    swept(prepare, check)


@pytest.mark.behaviour("P51")
def test_after_an_interrupted_commit_an_abort_works_or_says_to_commit_again(rig: Rig) -> None:
    outcomes = set()

    def prepare(number: int) -> Callable[[], object]:
        rig.begin_and_send(number)
        return rig.producer.commit_transaction

    def check(number: int) -> None:
        try:
            rig.producer.abort_transaction()
            outcomes.add("aborted")
        except IllegalStateError as error:
            assert "call commit_transaction() again first" in str(error) or "is ready" in str(error)  # noqa: PT017
            if "is ready" not in str(error):
                rig.producer.commit_transaction()
            rig.committed.append(rig.value)
            outcomes.add("committed")
        rig.check_works()

    once(prepare, check)
    assert outcomes == {"aborted", "committed"}


@pytest.mark.behaviour("P51")
def test_an_interrupted_init_can_be_repeated(broker: EmbeddedBroker) -> None:
    is_over = False
    producers: list[Producer] = []
    transactional_id = unique("txn")

    def prepare(number: int) -> Callable[[], object]:
        producer = Producer(
            bootstrap_servers=broker.bootstrap, transactional_id=transactional_id, max_block_ms=BLOCK_MS
        )
        producers.append(producer)

        def call() -> None:
            nonlocal is_over
            producer.init_transactions()
            is_over = True

        nonlocal is_over
        is_over = False
        return call

    def check(number: int) -> None:
        producer = producers.pop()
        if not is_over:
            producer.init_transactions()
        producer.begin_transaction()
        producer.abort_transaction()
        producer.close()

    assert sweep(prepare, ctrl_c, check, step=3) > 10


@pytest.mark.behaviour("P51")
def test_an_interrupted_begin_has_begun_or_not(rig: Rig, swept: Swept) -> None:
    def check(number: int) -> None:
        try:
            rig.producer.begin_transaction()
        except IllegalStateError as error:
            assert "in transaction" in str(error)  # noqa: PT017
        rig.producer.abort_transaction()
        rig.check_works()

    swept(lambda number: rig.producer.begin_transaction, check)


@pytest.mark.behaviour("P51")
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_interrupted_transactional_send_is_all_or_nothing(rig: Rig, end: str, swept: Swept) -> None:
    def prepare(number: int) -> Callable[[], object]:
        rig.begin(number)
        return lambda: rig.producer.send(rig.topic, rig.value)

    def check(number: int) -> None:
        if end == "commit":
            rig.perhaps.add(rig.value)
            rig.producer.commit_transaction()
        else:
            rig.producer.abort_transaction()
        rig.check_works()

    if swept is once:
        once(prepare, check)
    else:
        assert sweep_twice(prepare, check, step=1, points=range(1, 200)) > 10


@pytest.mark.behaviour("P51")
@pytest.mark.parametrize("end", ["commit", "repeat", "abort"])
def test_interrupted_offsets_can_be_sent_again_or_aborted(
    rig: Rig, end: str, swept: Swept, broker: EmbeddedBroker
) -> None:
    group = unique(GROUP)

    def send_offsets(number: int) -> None:
        rig.producer.send_offsets_to_transaction({(rig.topic, 0): number}, GroupMetadata(group))

    def prepare(number: int) -> Callable[[], object]:
        rig.begin(number)
        return lambda: send_offsets(number)

    def check(number: int) -> None:
        if end == "repeat":
            send_offsets(number)
        if end == "abort":
            rig.producer.abort_transaction()
        else:
            rig.producer.commit_transaction()
        rig.check_works()

    swept(prepare, check)
