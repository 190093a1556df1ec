"""The I/O thread survives exceptions of user code; if it dies, all waiting callers get an error."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace import (
    AsyncProducer,
    ClosedError,
    IoThreadError,
    MetricsReporter,
    Producer,
    ProducerInterceptor,
    Serializer,
)
from headrace.producer.records import PreparedRecord
from tests.support.small_broker import SmallBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.both_kernels

SECONDS = 10


@pytest.fixture
def broker() -> Iterator[SmallBroker]:
    with SmallBroker() as broker:
        yield broker


def make(broker: SmallBroker, **options: Any) -> Producer:
    short = {"request.timeout.ms": 3000, "delivery.timeout.ms": 4000, "linger.ms": 0}
    return Producer({**short, **options}, bootstrap_servers=broker.address, enable_idempotence=False)


class Fails:
    """Raises `error` once, wherever it is called."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.calls == 1:
            raise self.error("of mine")


def in_a_delivery_callback(broker: SmallBroker, fails: Fails) -> Producer:
    producer = make(broker)
    producer.send("t", b"1", on_delivery=fails)
    return producer


def in_the_callback_of_a_failed_record(broker: SmallBroker, fails: Fails) -> Producer:
    producer = make(broker, retries=0)
    broker.error_code = 2
    producer.send("t", b"1", on_delivery=fails)
    eventually("the callback", lambda: fails.calls)
    broker.error_code = 0
    return producer


def in_a_future_callback(broker: SmallBroker, fails: Fails) -> Producer:
    producer = make(broker)
    broker.responding.clear()
    producer.send("t", b"1").add_done_callback(fails)
    broker.responding.set()
    return producer


def in_an_interceptor(broker: SmallBroker, fails: Fails) -> Producer:
    class Interceptor(ProducerInterceptor):
        def on_acknowledgement(self, metadata: Any, error: Exception | None) -> None:
            fails()

    producer = make(broker, **{"interceptor.classes": Interceptor()})
    producer.send("t", b"1")
    return producer


def in_a_metrics_reporter(broker: SmallBroker, fails: Fails) -> Producer:
    class Reporter(MetricsReporter):
        def metric_change(self, metric: Any) -> None:
            fails()

    producer = make(broker, **{"metric.reporters": Reporter()})
    producer.send("t", b"1")
    return producer


def in_a_cluster_listener(broker: SmallBroker, fails: Fails) -> Producer:
    class Listener(Serializer):
        def serialize(self, topic: str, value: Any, headers: Any) -> Any:
            return value

        def on_update(self, cluster: Any) -> None:
            fails()

    return make(broker, **{"value.serializer": Listener()})


@pytest.mark.behaviour("P51")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, ValueError])
@pytest.mark.parametrize(
    "start",
    [
        in_a_delivery_callback,
        in_the_callback_of_a_failed_record,
        in_a_future_callback,
        in_an_interceptor,
        in_a_metrics_reporter,
        in_a_cluster_listener,
    ],
)
def test_the_io_thread_outlives_what_user_code_raises(
    broker: SmallBroker,
    caplog: pytest.LogCaptureFixture,
    start: Callable[[SmallBroker, Fails], Producer],
    error: type[BaseException],
) -> None:
    fails = Fails(error)
    with start(broker, fails) as producer:
        assert producer.send("t", b"2").result(SECONDS).topic == "t"
        eventually("the error", lambda: fails.calls)
        producer.flush(SECONDS)
    assert broker.values("t")[-1] == b"2"
    named = [record for record in caplog.records if record.exc_info and record.exc_info[0] is error]
    assert len(named) == 1
    assert f"client_id={producer.settings.client_id}" in named[0].getMessage()


@pytest.mark.behaviour("P51")
def test_errors_of_delivery_callbacks_are_counted(broker: SmallBroker) -> None:
    def fails(metadata: object, error: object) -> None:
        raise SystemExit(3)

    with make(broker) as producer:
        for _ in range(5):
            producer.send("t", b"v", on_delivery=fails)
        producer.flush(SECONDS)
    (error,) = producer._engine.recent.errors()
    assert (error.where, error.text, error.count) == ("delivery callback of t-0", "SystemExit(3)", 5)


# -- a dead I/O thread -------------------------------------------------------------------------


class Deadly(logging.Filter):
    """Raises where the I/O thread logs what it has survived: nothing is left that would catch it."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise SystemExit("from a logging filter")


@pytest.fixture
def kill_io_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Producer | AsyncProducer], None]]:
    logger, deadly = logging.getLogger("headrace.producer"), Deadly()

    def kill(producer: Producer | AsyncProducer) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("broken")

        logger.addFilter(deadly)
        monkeypatch.setattr(producer._engine.sender, "run_once", fail)
        producer._engine.sender.wakeup()

    yield kill
    logger.removeFilter(deadly)


def is_dead(producer: Producer | AsyncProducer) -> bool:
    return producer._engine.thread is not None and not producer._engine.thread.is_alive()


@pytest.mark.behaviour("P51")
def test_a_dead_io_thread_fails_every_call_and_every_future(
    broker: SmallBroker, kill_io_thread: Callable[[Producer | AsyncProducer], None]
) -> None:
    heard: list[Exception | None] = []
    producer = make(broker)
    producer.send("t", b"1").result(SECONDS)
    broker.responding.clear()
    queued = producer.send("t", b"2", on_delivery=lambda _, error: heard.append(error))
    delivery = producer.send_arrow("t", _table(b"3"))
    kill_io_thread(producer)
    eventually("the end of the I/O thread", lambda: is_dead(producer))
    with pytest.raises(IoThreadError, match=r"I/O thread .* SystemExit\('from a logging filter'\)") as raised:
        queued.result(0)
    assert isinstance(raised.value.__cause__, SystemExit)
    assert [type(error) for error in heard] == [IoThreadError]
    with pytest.raises(IoThreadError):
        delivery.result(0)
    calls: list[Callable[[], object]] = [
        lambda: producer.send("t", b"4"),
        lambda: producer.send("other", b"4"),
        lambda: producer.send_arrow("t", _table(b"4")),
        lambda: producer.partitions_for("t"),
        lambda: producer.flush(),
        lambda: producer.close(),
    ]
    for call in calls:
        with pytest.raises(IoThreadError, match="from a logging filter"):
            call()
    producer.close()  # it is closed by now: nothing more to tell
    with pytest.raises(ClosedError):
        producer.send("t", b"5")
    broker.responding.set()


@pytest.mark.behaviour("P51")
def test_a_dying_io_thread_ends_all_waits(
    broker: SmallBroker, kill_io_thread: Callable[[Producer | AsyncProducer], None]
) -> None:
    producer = make(broker, **{"buffer.memory": 16384, "max.block.ms": 60_000})
    producer.send("t", b"1").result(SECONDS)
    broker.responding.clear()
    future = producer.send("t", bytes(16000))
    errors: list[BaseException] = []

    def waiting(call: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                call()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    threads = [
        waiting(lambda: producer.send("t", bytes(16000))),  # memory
        waiting(lambda: producer.flush()),
        waiting(lambda: future.result()),
    ]
    eventually("a thread that waits for memory", lambda: producer._engine.pool.waiting_threads)
    broker.knows_topics.clear()
    threads.append(waiting(lambda: producer.partitions_for("unknown")))
    kill_io_thread(producer)
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert {type(error) for error in errors} == {IoThreadError}
    assert len(errors) == 3  # flush() is over once the records have failed
    broker.responding.set()
    with pytest.raises(IoThreadError):
        producer.close()


@pytest.mark.behaviour("P51")
def test_a_dead_io_thread_fails_calls_of_transactions(
    kill_io_thread: Callable[[Producer | AsyncProducer], None],
) -> None:
    producer = Producer(bootstrap_servers="127.0.0.1:1", transactional_id="t", max_block_ms=60_000)
    errors: list[BaseException] = []

    def init() -> None:
        try:
            producer.init_transactions()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=init, daemon=True)
    thread.start()
    eventually(
        "a pending init", lambda: producer._engine.transactions is not None and producer._engine.transactions._result
    )
    kill_io_thread(producer)
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [IoThreadError]
    calls = (producer.init_transactions, producer.begin_transaction, producer.commit_transaction)
    for call in (*calls, producer.abort_transaction, producer.close):
        with pytest.raises(IoThreadError):
            call()


@pytest.mark.behaviour("P51")
def test_a_dead_io_thread_fails_what_is_awaited(
    broker: SmallBroker, kill_io_thread: Callable[[Producer | AsyncProducer], None]
) -> None:
    async def main() -> None:
        short = {"request.timeout.ms": 3000, "delivery.timeout.ms": 4000, "linger.ms": 0}
        producer = AsyncProducer(short, bootstrap_servers=broker.address, enable_idempotence=False)
        await producer.send_and_wait("t", b"1")
        broker.responding.clear()
        future = await producer.send("t", b"2")
        kill_io_thread(producer)
        with pytest.raises(IoThreadError):
            await asyncio.wait_for(future, SECONDS)
        for call in (lambda: producer.send("t", b"3"), producer.flush, lambda: producer.partitions_for("t")):
            with pytest.raises(IoThreadError):
                await asyncio.wait_for(call(), SECONDS)
        with pytest.raises(IoThreadError):
            await asyncio.wait_for(producer.close(), SECONDS)
        broker.responding.set()

    asyncio.run(main())


# -- close() and send() at the same time -------------------------------------------------------


@pytest.mark.behaviour("P36", "P51")
def test_a_record_sent_while_the_producer_closes_is_sent_or_refused(
    broker: SmallBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send between the begin of close() and the close of the accumulator."""
    producer = make(broker)
    producer.send("t", b"1").result(SECONDS)
    is_closing, may_go_on = threading.Event(), threading.Event()
    close = producer._engine.accumulator.close

    def held(*arguments: Any) -> None:
        is_closing.set()
        assert may_go_on.wait(SECONDS)
        close(*arguments)

    monkeypatch.setattr(producer._engine.accumulator, "close", held)
    closing = threading.Thread(target=producer.close, daemon=True)
    closing.start()
    assert is_closing.wait(SECONDS)
    thread = producer._engine.thread
    assert thread is not None
    thread.join(0.2)  # where nothing keeps it from ending, it ends now
    # As a thread does that passed the check for a closed producer just before.
    cluster = producer._engine.metadata.cluster
    future = producer._engine.accumulator.append(
        producer._engine.accumulator.topics["t"], cluster, PreparedRecord(0, None, None, b"2", [], None), None, 1e18
    )
    may_go_on.set()
    closing.join(SECONDS)
    assert not closing.is_alive()
    assert future.exception(SECONDS) is None
    assert broker.values("t") == [b"1", b"2"]


def _table(*values: bytes) -> pa.Table:
    return pa.table({"value": list(values)})
