"""The transaction coordinator: the response to each request in each state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from headrace.broker.catalog.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.broker.transactions.transaction import VALID_TRANSITIONS, Transaction, TransactionState
from headrace.errors import BrokerError, Code
from headrace.types import ProducerIdAndEpoch, TopicPartition
from tests.support.transaction_rig import ID, TIMEOUT_MS, Rig, code_of, refused, run

NONE, CONCURRENT, FENCED = Code.NONE, Code.CONCURRENT_TRANSACTIONS, Code.PRODUCER_FENCED
INVALID, MAPPING = Code.INVALID_TXN_STATE, Code.INVALID_PRODUCER_ID_MAPPING
ABORTABLE = Code.TRANSACTION_ABORTABLE

UNKNOWN = "unknown"
PENDING = "pending"
STATES: list[TransactionState | str] = [
    UNKNOWN,
    TransactionState.EMPTY,
    PENDING,
    TransactionState.ONGOING,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
]


@asynccontextmanager
async def in_state(state: TransactionState | str, version: int = 1) -> AsyncIterator[tuple[Rig, ProducerIdAndEpoch]]:
    """Return a coordinator with the id in a state, and its producer before the last end."""
    rig = Rig()
    if state == UNKNOWN:
        yield rig, ProducerIdAndEpoch(0, 0)
        return
    producer = await rig.init()
    if state == TransactionState.EMPTY:
        yield rig, producer
    elif state == PENDING:
        with rig.internal.held():
            waiting = asyncio.ensure_future(rig.add(producer, 0, version=version))
            await rig.clock.run()
            yield rig, producer
        await waiting
    else:
        await rig.add(producer, 0, version=version)
        committed = state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
        if state == TransactionState.ONGOING:
            yield rig, producer
        elif state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
            with rig.replicas.held():
                await rig.end(producer, committed, version)
                yield rig, producer
        else:
            await rig.end(producer, committed, version)
            await rig.clock.run()
            assert rig.current.state == state
            yield rig, producer


def verified(rig: Rig, producer: ProducerIdAndEpoch) -> Awaitable[object]:
    async def verify() -> None:
        responses = await rig.coordinator.ensure_partitions(ID, producer, [TopicPartition("t", 0)], add=False)
        await _raise(responses[TopicPartition("t", 0)])

    return verify()


async def _raise(code: Code) -> None:
    if code:
        raise BrokerError(code=code)


REQUESTS: dict[str, Callable[[Rig, ProducerIdAndEpoch], Awaitable[object]]] = {
    "init": lambda rig, producer: rig.init(),
    "init as who I was": lambda rig, producer: rig.init(producer),
    "init as somebody else": lambda rig, producer: rig.init(ProducerIdAndEpoch(999, 0)),
    "add what is in": lambda rig, producer: rig.add(producer, 0),
    "add more": lambda rig, producer: rig.add(producer, 0, 1),
    "add with another epoch": lambda rig, producer: rig.add(producer._replace(epoch=7), 0),
    "add with another id": lambda rig, producer: rig.add(producer._replace(producer_id=999), 0),
    "verify": verified,
    "commit": lambda rig, producer: rig.end(producer, True),
    "abort": lambda rig, producer: rig.end(producer, False),
    "commit with another epoch": lambda rig, producer: rig.end(producer._replace(epoch=7), True),
    "commit with another id": lambda rig, producer: rig.end(producer._replace(producer_id=999), True),
    "commit v2": lambda rig, producer: rig.end(producer, True, 2),
    "abort v2": lambda rig, producer: rig.end(producer, False, 2),
}

# The code of each request in the states above, for a transaction of version 1.
VERSION_1 = {
    "init": [NONE, NONE, CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT, NONE, NONE],
    "init as who I was": [NONE, NONE, CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT, NONE, NONE],
    "init as somebody else": [NONE, FENCED, CONCURRENT, FENCED, CONCURRENT, CONCURRENT, FENCED, FENCED],
    "add what is in": [MAPPING, NONE, CONCURRENT, NONE, CONCURRENT, CONCURRENT, NONE, NONE],
    "add more": [MAPPING, NONE, CONCURRENT, NONE, CONCURRENT, CONCURRENT, NONE, NONE],
    "add with another epoch": [MAPPING, FENCED, CONCURRENT, FENCED, CONCURRENT, CONCURRENT, FENCED, FENCED],
    "add with another id": [MAPPING, MAPPING, CONCURRENT, MAPPING, CONCURRENT, CONCURRENT, MAPPING, MAPPING],
    "verify": [MAPPING, ABORTABLE, ABORTABLE, NONE, CONCURRENT, CONCURRENT, ABORTABLE, ABORTABLE],
    "commit": [MAPPING, INVALID, CONCURRENT, NONE, CONCURRENT, CONCURRENT, NONE, INVALID],
    "abort": [MAPPING, INVALID, CONCURRENT, NONE, CONCURRENT, CONCURRENT, INVALID, NONE],
    "commit with another epoch": [MAPPING, FENCED, CONCURRENT, FENCED, CONCURRENT, CONCURRENT, FENCED, FENCED],
    "commit with another id": [MAPPING, MAPPING, CONCURRENT, MAPPING, CONCURRENT, CONCURRENT, MAPPING, MAPPING],
    "commit v2": [MAPPING, INVALID, CONCURRENT, NONE, CONCURRENT, CONCURRENT, INVALID, INVALID],
    "abort v2": [MAPPING, NONE, CONCURRENT, NONE, CONCURRENT, CONCURRENT, NONE, NONE],
}
# The same for version 2; the producer uses the epoch of the transaction.
VERSION_2 = {
    "add what is in": [MAPPING, NONE, CONCURRENT, NONE, CONCURRENT, CONCURRENT, FENCED, FENCED],
    "verify": [MAPPING, ABORTABLE, ABORTABLE, NONE, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_EPOCH]
    + [Code.INVALID_PRODUCER_EPOCH] * 2,
    "commit v2": [MAPPING, INVALID, CONCURRENT, NONE, CONCURRENT, CONCURRENT, NONE, INVALID],
    "abort v2": [MAPPING, NONE, CONCURRENT, NONE, CONCURRENT, CONCURRENT, INVALID, NONE],
    "commit": [MAPPING, INVALID, CONCURRENT, NONE, CONCURRENT, CONCURRENT, FENCED, FENCED],
}


@pytest.mark.parametrize(("version", "request_name"), [*((1, r) for r in VERSION_1), *((2, r) for r in VERSION_2)])
def test_each_request_gets_its_response_in_each_state(version: int, request_name: str) -> None:
    expected = (VERSION_1 if version == 1 else VERSION_2)[request_name]

    async def main() -> None:
        for state, code in zip(STATES, expected, strict=True):
            async with in_state(state, version) as (rig, producer):
                response = await code_of(REQUESTS[request_name](rig, producer))
                assert response == code, f"{request_name} in {state!r}: {response.name}, not {code.name}"

    run(main)


def test_only_the_listed_transitions_are_valid() -> None:
    """Try every transition from every state."""
    for state in TransactionState:
        base = Transaction(ID, 5, 3, TIMEOUT_MS, state, 0, 0, frozenset({TopicPartition("t", 0)}))
        steps: list[tuple[TransactionState, Callable[[], Transaction]]] = [
            (TransactionState.EMPTY, partial(base.initialized, 1, 1, None)),
            (TransactionState.EMPTY, partial(base.rotated, 6, 1, 1, keep_last=False)),
            (TransactionState.ONGOING, partial(base.extended, [TopicPartition("t", 1)], 1, 1)),
            (TransactionState.PREPARE_COMMIT, partial(base.prepared, True, 1, 1, -1)),
            (TransactionState.PREPARE_ABORT, partial(base.prepared, False, 1, 1, -1)),
        ]
        for target, step in steps:
            if target in VALID_TRANSITIONS[state]:
                assert step().state == target
            else:
                with pytest.raises(AssertionError, match="illegal state transition"):
                    step()
        if state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
            assert base.completed(1).state in VALID_TRANSITIONS[state]
        else:
            with pytest.raises(AssertionError, match="illegal state transition"):
                base.completed(1)


@pytest.mark.parametrize("request_name", ["add", "end", "init", "describe"])
def test_an_empty_id_is_an_invalid_request(request_name: str) -> None:
    async def main() -> None:
        coordinator = Rig().coordinator
        with refused(Code.INVALID_REQUEST):
            if request_name == "add":
                await coordinator.add_partitions("", ProducerIdAndEpoch(0, 0), [TopicPartition("t", 0)])
            elif request_name == "end":
                await coordinator.end_transaction("", ProducerIdAndEpoch(0, 0), True, 1)
            elif request_name == "init":
                await coordinator.init_producer_id("", TIMEOUT_MS)
            else:
                coordinator.describe("")

    run(main)


@pytest.mark.parametrize(("timeout_ms", "code"), [(0, 50), (-1, 50), (900_001, 50), (900_000, 0), (1, 0)])
def test_the_transaction_timeout_has_bounds(timeout_ms: int, code: int) -> None:
    async def main() -> None:
        assert await code_of(Rig().coordinator.init_producer_id(ID, timeout_ms)) == code

    run(main)


def test_without_a_transactional_id_every_producer_gets_a_new_id() -> None:
    async def main() -> None:
        rig = Rig()
        ids = [await rig.coordinator.init_producer_id(None, 0) for _ in range(2_500)]
        again = rig.restarted()
        ids.append(await again.coordinator.init_producer_id(None, 0))
        assert len({producer.producer_id for producer in ids}) == len(ids)
        assert {producer.epoch for producer in ids} == {0}

    run(main)


def test_a_failed_id_reservation_is_retriable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        rig = Rig()

        def full(*events: object) -> None:
            raise BrokerError("no space left on device", code=Code.KAFKA_STORAGE_ERROR)

        with monkeypatch.context() as patch:
            patch.setattr(rig.catalog, "record", full)
            for name in (None, ID):
                with refused(Code.COORDINATOR_NOT_AVAILABLE):
                    await rig.coordinator.init_producer_id(name, TIMEOUT_MS)
        await rig.init()

    run(main)


def test_a_response_is_sent_only_after_the_log_write() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        with rig.internal.held():
            adding = asyncio.ensure_future(rig.add(producer, 0))
            await rig.clock.run()
            assert not adding.done()
            assert rig.current.state == TransactionState.EMPTY
        await adding
        assert rig.logged()[-1] == rig.current
        assert rig.current.partitions == {("t", 0)}

    run(main)


def test_adding_known_partitions_writes_nothing() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        await rig.add(producer, 0, 1)
        writes = len(rig.internal.appends)
        await rig.add(producer, 1)
        assert len(rig.internal.appends) == writes

    run(main)


def test_end_txn_responds_before_the_markers_are_written() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        await rig.add(producer, 0, 1)
        with rig.replicas.held():
            await rig.end(producer, True)
            await rig.clock.run(5_000)
            assert rig.state() == TransactionState.PREPARE_COMMIT
        await rig.clock.run()
        assert rig.state() == TransactionState.COMPLETE_COMMIT
        assert [(m.topic, m.partition, m.committed, m.epoch) for m in rig.replicas.markers] == [
            ("t", 0, True, 0),
            ("t", 1, True, 0),
        ]

    run(main)


@pytest.mark.parametrize(
    ("failure", "response"),
    [
        (Code.NOT_ENOUGH_REPLICAS, Code.COORDINATOR_NOT_AVAILABLE),
        (Code.REQUEST_TIMED_OUT, Code.COORDINATOR_NOT_AVAILABLE),
        (Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_COORDINATOR),
        (Code.RECORD_LIST_TOO_LARGE, Code.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_failed_write_changes_nothing(failure: Code, response: Code) -> None:
    async def main() -> None:
        rig = Rig()
        rig.internal.fail(failure)
        with refused(response):
            await rig.init()
        with refused(Code.TRANSACTIONAL_ID_NOT_FOUND):
            rig.coordinator.describe(ID)
        producer = await rig.init()
        await rig.add(producer, 0)
        before = rig.current
        for request in (rig.add(producer, 1), rig.end(producer, True), rig.init()):
            rig.internal.fail(failure)
            with refused(response):
                await request
            assert rig.current == before
        await rig.end(producer, True)

    run(main)


def test_a_cancelled_request_leaves_memory_and_log_consistent() -> None:
    """A closed connection cancels its handler, but the write may be on disk already."""

    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        with rig.internal.held():
            adding = asyncio.ensure_future(rig.add(producer, 0))
            await rig.clock.run()
            adding.cancel()
            await rig.clock.run()
        await rig.clock.run()
        assert rig.current == rig.logged()[-1]
        assert rig.current.state == TransactionState.ONGOING
        await rig.end(producer, True)

    run(main)


def test_concurrent_requests_are_not_both_served() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        await rig.add(producer, 0)
        codes = await asyncio.gather(
            code_of(rig.end(producer, True)), code_of(rig.end(producer, False)), code_of(rig.add(producer, 1))
        )
        assert list(codes) == [NONE, CONCURRENT, CONCURRENT]
        await rig.clock.run()
        assert rig.current.state == TransactionState.COMPLETE_COMMIT

    run(main)


def test_a_v2_write_waits_for_the_completion_of_the_previous_transaction() -> None:
    async def main() -> None:
        rig = Rig()
        first = await rig.init()
        await rig.add(first, 0, version=2)
        with rig.replicas.held():
            second = await rig.end(first, True, 2)
            writing = asyncio.ensure_future(
                rig.coordinator.ensure_partitions(
                    ID, second, [TopicPartition("t", 1), TopicPartition("u", 0)], add=True
                )
            )
            await rig.clock.run(50)
            assert not writing.done()
        await rig.clock.run()
        assert await writing == {("t", 1): NONE, ("u", 0): NONE}
        assert rig.current.partitions == {("t", 1), ("u", 0)}
        with rig.replicas.held():
            third = await rig.end(second, True, 2)
            writing = asyncio.ensure_future(
                rig.coordinator.ensure_partitions(ID, third, [TopicPartition("t", 1)], add=True)
            )
            await rig.clock.run(100)
            assert writing.done()
            assert await writing == {("t", 1): CONCURRENT}

    run(main)


def test_a_fenced_writer_gets_invalid_producer_epoch() -> None:
    async def main() -> None:
        rig = Rig()
        old = await rig.init()
        await rig.init()
        for add in (True, False):
            codes = await rig.coordinator.ensure_partitions(ID, old, [TopicPartition("t", 1)], add=add)
            assert codes == {("t", 1): Code.INVALID_PRODUCER_EPOCH}

    run(main)


def test_add_offsets_adds_the_partition_of_the_group() -> None:
    async def main() -> None:
        rig = Rig()
        rig.internal._counts[CONSUMER_OFFSETS] = 50
        producer = await rig.init()
        await rig.coordinator.add_offsets(ID, producer, "a")
        assert rig.current.partitions == {(CONSUMER_OFFSETS, 97 % 50)}

    run(main)


def test_ids_of_another_coordinator_fail_with_not_coordinator() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        rig.coordinator.unload(0)
        rig.internal._counts[TRANSACTION_STATE] = 1
        rig.internal.partitions_led = lambda topic: []  # type: ignore[method-assign]
        with refused(Code.NOT_COORDINATOR):
            await rig.add(producer, 0)

    run(main)
