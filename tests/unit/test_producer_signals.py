"""Ctrl-C, and signal handlers that send, at every point of a call at which Python would run them.

At each of these points (see interruption.py) a trial raises KeyboardInterrupt, or calls `send` as a handler would.
After it the producer has to work, with no lock held and no memory lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace import IllegalStateError, Producer, ProducerInterceptor
from tests.support.interruption import ctrl_c, sweep, sweep_twice
from tests.support.small_broker import SmallBroker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.both_kernels]

SECONDS = 10
BATCH_BYTES = 16_384


@pytest.fixture
def broker() -> Iterator[SmallBroker]:
    with SmallBroker() as broker:
        yield broker


def make(broker: SmallBroker, **options: Any) -> Producer:
    short = {"request.timeout.ms": 10_000, "delivery.timeout.ms": 20_000, "linger.ms": 0}
    return Producer({**short, **options}, bootstrap_servers=broker.address, enable_idempotence=False)


class Checks:
    """Check that the producer works on this and other threads, and has released its memory."""

    def __init__(
        self, broker: SmallBroker, producer: Producer, encode: Callable[[bytes], object] = lambda value: value
    ) -> None:
        self.broker, self.producer, self.encode = broker, producer, encode
        self.errors: list[BaseException] = []

    def __call__(self, number: int) -> None:
        producer = self.producer
        producer.send("check", self.encode(b"here %d" % number))
        other = threading.Thread(target=self._send, args=(number,), daemon=True)
        other.start()
        other.join(SECONDS)
        assert not other.is_alive(), f"a lock is held after point {number}"
        assert not self.errors, f"after point {number}"
        producer.flush(SECONDS)
        pool = producer._engine.pool  # the I/O thread releases memory just after the flush is done
        eventually(f"all memory is back at point {number}", lambda: pool.available_bytes == pool.total_bytes)
        assert self.broker.values("check")[-2:] in (
            [b"here %d" % number, b"there %d" % number],
            [b"there %d" % number, b"here %d" % number],
        )

    def _send(self, number: int) -> None:
        try:
            self.producer.send("check", self.encode(b"there %d" % number)).result(SECONDS)
        except BaseException as error:
            self.errors.append(error)


def each_once(broker: SmallBroker, topic: str) -> None:
    values = broker.values(topic)
    assert len(values) == len(set(values))


@pytest.mark.behaviour("P51")
def test_ctrl_c_in_a_send_that_opens_a_batch_leaves_no_lock_held(broker: SmallBroker) -> None:
    with make(broker) as producer:
        producer.send("t", b"0").result(SECONDS)
        check = Checks(broker, producer)
        points = sweep(lambda number: lambda: producer.send("t", b"%d" % number), ctrl_c, check)
    assert points > 30
    each_once(broker, "t")


@pytest.mark.behaviour("P51")
def test_a_second_ctrl_c_in_the_clean_up_of_a_send_leaves_no_lock_held(broker: SmallBroker) -> None:
    with make(broker) as producer:
        producer.send("t", b"0").result(SECONDS)
        trials = sweep_twice(
            lambda number: lambda: producer.send("t", b"%d" % number), Checks(broker, producer), 1, range(1, 200)
        )
    assert trials > 30


@pytest.mark.behaviour("P51")
def test_ctrl_c_in_a_send_with_interceptors_leaves_no_lock_held(broker: SmallBroker) -> None:
    with make(broker, **{"interceptor.classes": ProducerInterceptor(), "value.serializer": "str"}) as producer:
        producer.send("t", "0").result(SECONDS)
        points = sweep(
            lambda number: lambda: producer.send("t", str(number), headers=[("a", b"b")]),
            ctrl_c,
            Checks(broker, producer, encode=lambda value: value.decode()),
        )
    assert points > 50
    each_once(broker, "t")


@pytest.mark.behaviour("P51")
def test_ctrl_c_while_metadata_is_waited_for_leaves_no_lock_held(broker: SmallBroker) -> None:
    with make(broker) as producer:
        points = sweep(
            lambda number: lambda: producer.send(f"topic-{number}", b"v"), ctrl_c, Checks(broker, producer), 2
        )
    assert points > 50


@pytest.mark.behaviour("P51")
def test_ctrl_c_while_memory_is_waited_for_leaves_no_lock_held(broker: SmallBroker) -> None:
    with make(broker, **{"buffer.memory": BATCH_BYTES}) as producer:
        producer.send("t", b"0").result(SECONDS)

        def prepare(number: int) -> Callable[[], object]:
            broker.responding.clear()
            producer.send("t", bytes(BATCH_BYTES - 500))
            timer = threading.Timer(0.005, broker.responding.set)
            timer.daemon = True
            timer.start()
            return lambda: producer.send("t", b"%1000d" % number)

        def check(number: int) -> None:
            broker.responding.set()
            checks(number)

        checks = Checks(broker, producer)
        points = sweep(prepare, ctrl_c, check)
    assert points > 50


@pytest.mark.behaviour("P51")
def test_ctrl_c_in_send_arrow_leaves_no_lock_held(broker: SmallBroker) -> None:
    with make(broker) as producer:
        producer.send("t", b"0").result(SECONDS)
        points = sweep(
            lambda number: lambda: producer.send_arrow("t", pa.table({"value": [b"%d" % number, b"%d!" % number]})),
            ctrl_c,
            Checks(broker, producer),
        )
    assert points > 50
    each_once(broker, "t")


@pytest.mark.behaviour("P51")
def test_ctrl_c_while_partitions_are_added_leaves_no_old_count_in_send(broker: SmallBroker) -> None:
    with make(broker) as producer:
        producer.send("t", b"0").result(SECONDS)
        accumulator = producer._engine.accumulator
        count = len(accumulator.topics["t"].queues)

        def check(number: int) -> None:
            queues = accumulator.topic("t", count + number)
            assert producer._appenders["t"] is queues.appender
            assert len(queues.queues) == len(queues.appender.open_batches) == count + number

        assert sweep(lambda number: lambda: accumulator.topic("t", count + number), ctrl_c, check) > 20


@pytest.mark.behaviour("P51")
def test_ctrl_c_in_a_flush_ends_it_and_records_linger_again(broker: SmallBroker) -> None:
    with make(broker) as producer:
        producer.send("t", b"0").result(SECONDS)

        def prepare(number: int) -> Callable[[], object]:
            producer.send("t", b"%d" % number)
            return lambda: producer.flush(SECONDS)

        def check(number: int) -> None:
            assert not producer._engine.accumulator.flushes
            producer.send("t", b"after").result(SECONDS)

        assert sweep(prepare, ctrl_c, check) > 30


@pytest.mark.behaviour("P51")
@pytest.mark.parametrize("wait", ["result", "flush"])
def test_ctrl_c_while_a_record_is_waited_for_leaves_the_io_thread_alive(broker: SmallBroker, wait: str) -> None:
    with make(broker) as producer:
        producer.send("t", b"0").result(SECONDS)

        def prepare(number: int) -> Callable[[], object]:
            broker.responding.clear()
            future = producer.send("t", b"%d" % number)
            timer = threading.Timer(0.005, broker.responding.set)
            timer.daemon = True
            timer.start()
            return (lambda: future.result(SECONDS)) if wait == "result" else (lambda: producer.flush(SECONDS))

        def check(number: int) -> None:
            broker.responding.set()
            checks(number)

        checks = Checks(broker, producer)
        assert sweep(prepare, ctrl_c, check) > 10


@pytest.mark.behaviour("P51")
@pytest.mark.parametrize("topics", ["known", "new"])
def test_a_signal_handler_may_send_or_is_refused_at_once(broker: SmallBroker, topics: str) -> None:
    outcomes: list[object] = []
    with make(broker) as producer:
        producer.send("t", b"0").result(SECONDS)
        producer.send("handler", b"0").result(SECONDS)

        def handler() -> None:
            try:
                outcomes.append(producer.send("t", b"of the handler %d" % len(outcomes)))
                producer.send("handler", b"v")
            except IllegalStateError as error:
                assert "signal handler" in str(error)  # noqa: PT017
                outcomes.append(error)

        futures = []

        def prepare(number: int) -> Callable[[], object]:
            topic = "t" if topics == "known" else f"topic-{number}"
            return lambda: futures.append(producer.send(topic, b"%d" % number))

        sweep(prepare, handler, Checks(broker, producer), step=1 if topics == "known" else 7)
        refused = [outcome for outcome in outcomes if isinstance(outcome, IllegalStateError)]
        sent: list[Any] = [outcome for outcome in outcomes if not isinstance(outcome, IllegalStateError)]
        assert len(futures) == len(outcomes) + 1  # it continues where it was interrupted
        assert all(future.exception(SECONDS) is None for future in [*futures, *sent])
    assert refused or topics == "new"  # there it is sampled only
    assert sent
    each_once(broker, "t")


@pytest.mark.behaviour("P51")
@pytest.mark.parametrize("call", ["close", "flush"])
def test_a_call_refused_in_a_signal_handler_changes_nothing(broker: SmallBroker, call: str) -> None:
    """As if the handler had interrupted a `send` that opens a batch."""
    with make(broker) as producer:
        producer.send("t", b"0").result(SECONDS)
        flushes = dict(producer._engine.accumulator.flushes)
        with (
            producer._engine.accumulator.topics["t"].lock,
            pytest.raises(IllegalStateError, match="called by a signal handler"),
        ):
            getattr(producer, call)()
        assert producer._engine.accumulator.flushes == flushes
        producer.send("t", b"1").result(SECONDS)
    each_once(broker, "t")
