"""The producer for asyncio: the event loop never stands still, and cancelling loses and doubles nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pyarrow as pa
import pytest

from headrace import (
    AsyncProducer,
    BufferExhaustedError,
    ClosedError,
    IllegalStateError,
    ProducerRecord,
    RecordTooLargeError,
    SerializationError,
    TimedOutError,
)
from headrace.producer.buffer_pool import Claim
from headrace.producer.pipeline import SendPipeline
from tests.support.small_broker import SmallBroker

pytestmark = pytest.mark.both_kernels

SECONDS = 10
PAUSE_SECONDS_MAX = 0.25


@pytest.fixture
def broker():
    with SmallBroker() as broker:
        yield broker


def make(broker, **options):
    settings = {"request_timeout_ms": 3000, "delivery_timeout_ms": 4000, "enable_idempotence": False, **options}
    return AsyncProducer(bootstrap_servers=broker.address, **settings)


@contextlib.asynccontextmanager
async def watched():
    """Fail if the event loop stood still for longer than a moment. What another thread waited is the machine's."""
    pauses = {"loop": 0.0, "thread": 0.0}
    is_over = threading.Event()

    def note(name: str, before: float) -> None:
        pauses[name] = max(pauses[name], time.monotonic() - before)

    async def tick():
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            note("loop", before)

    def tick_in_thread() -> None:
        while not is_over.is_set():
            before = time.monotonic()
            time.sleep(0.005)
            note("thread", before)

    thread = threading.Thread(target=tick_in_thread)
    thread.start()
    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()
        is_over.set()
        thread.join(SECONDS)
    assert pauses["loop"] < PAUSE_SECONDS_MAX + 2 * pauses["thread"], pauses


async def until(true):
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def test_records_arrive_in_order_and_their_futures_are_awaited(broker):
    async def main():
        outcomes = []
        async with make(broker) as producer:
            futures = [await producer.send("t", b"%d" % n) for n in range(1000)]
            metadata = await asyncio.gather(*futures)
            assert [one.offset for one in metadata] == list(range(1000))
            last = await producer.send_and_wait(
                "t", b"x", headers=[("a", None)], on_delivery=lambda *a: outcomes.append(a)
            )
            assert last.offset == 1000
            await until(lambda: outcomes)
            assert outcomes == [(last, None)]
            record = await producer.send_record(ProducerRecord("t", b"y"))
            assert (await record).offset == 1001
            delivery = await producer.send_arrow("t", pa.table({"value": [b"c", b"d"]}))
            assert await delivery == {0: [(1002, 1003)]}
            assert len(await producer.partitions_for("t")) == 1
            await producer.flush()
            assert producer.metrics()
            assert repr(producer).startswith("AsyncProducer(client_id=")
        with pytest.raises(ClosedError):
            await producer.send("t", b"v")

    asyncio.run(main())
    assert broker.values("t")[:1000] == [b"%d" % n for n in range(1000)]


def test_plug_ins_are_not_inspected_for_every_record(broker, monkeypatch):
    inspected: list[object] = []

    async def main():
        async with make(broker) as producer:
            await producer.send_and_wait("topic", b"first")
            monkeypatch.setattr(SendPipeline, "is_noop", property(inspected.append))
            await (await producer.send("topic", b"second"))

    asyncio.run(main())
    assert inspected == []


def test_callbacks_run_on_the_event_loop(broker):
    async def main():
        threads = []
        async with make(broker) as producer:
            await producer.send("t", b"v", on_delivery=lambda *_: threads.append(threading.current_thread()))
            await producer.flush()
            await until(lambda: threads)
        assert threads == [threading.current_thread()]

    asyncio.run(main())


def test_waiting_for_metadata_does_not_stop_the_loop_and_many_tasks_share_a_thread(broker):
    broker.knows_topics.clear()

    async def main():
        async with make(broker) as producer, watched():
            tasks = [asyncio.create_task(producer.send("t", b"%d" % n)) for n in range(50)]
            await asyncio.sleep(0.3)
            assert not any(task.done() for task in tasks)
            assert sum(thread.name == "headrace-wait" for thread in threading.enumerate()) == 1
            broker.knows_topics.set()
            futures = await asyncio.gather(*tasks)
            await asyncio.gather(*futures)

    asyncio.run(main())
    assert sorted(broker.values("t")) == sorted(b"%d" % n for n in range(50))


def test_a_topic_that_never_comes_times_out(broker):
    broker.knows_topics.clear()

    async def main():
        async with make(broker, max_block_ms=200) as producer, watched():
            for attempt in (producer.send_and_wait("t", b"v"), producer.partitions_for("t")):
                with pytest.raises(TimedOutError, match="topic 't' is not in the metadata"):
                    await attempt

    asyncio.run(main())


def test_a_full_buffer_makes_senders_wait_in_order_and_the_loop_goes_on(broker):
    broker.responding.clear()

    async def main():
        async with make(broker, buffer_memory=50_000, batch_size=5_000) as producer, watched():
            sent = []

            async def send(number):
                future = await producer.send("t", b"%04d" % number + b"x" * 4_000)
                sent.append(number)
                return future

            tasks = [asyncio.create_task(send(n)) for n in range(60)]
            await asyncio.sleep(0.3)
            assert 5 <= len(sent) <= 12, "as many as there is room for"
            assert sum(thread.name == "headrace-wait" for thread in threading.enumerate()) == 1
            broker.responding.set()
            await asyncio.gather(*(await asyncio.gather(*tasks)))
            assert sent == list(range(60))

    asyncio.run(main())
    assert [int((value or b"")[:4]) for value in broker.values("t")] == list(range(60))


def test_a_buffer_that_stays_full_is_an_error(broker):
    async def main():
        async with make(broker, buffer_memory=10_000, batch_size=5_000, max_block_ms=200) as producer:
            await producer.send_and_wait("t", b"first")
            broker.responding.clear()

            async def fill():
                for _ in range(10):
                    future = await producer.send("t", b"x" * 4_000)
                    if future.done():
                        await future

            async with watched():
                with pytest.raises(BufferExhaustedError, match="buffer exhausted"):
                    await fill()
            broker.responding.set()
            assert (await producer.send_and_wait("t", b"room again")).offset

    asyncio.run(main())


def test_cancelling_send_sends_nothing_cancelling_later_changes_nothing(broker):
    async def main():
        async with make(broker, buffer_memory=20_000, batch_size=5_000) as producer:
            first = await producer.send("t", b"first")
            await first
            broker.responding.clear()
            queued: list = []
            waiting: list = []
            for number in range(12):
                task = asyncio.create_task(producer.send("t", b"%04d" % number + b"x" * 4_000))
                await asyncio.sleep(0.02)
                (queued if task.done() else waiting).append((number, task))
            assert queued
            assert waiting
            # Cancelled while it waits for memory: not sent. Cancelled while it waits for the response: sent.
            for _, task in waiting[::2]:
                task.cancel()
            response = asyncio.ensure_future(queued[0][1].result())
            await asyncio.sleep(0.01)
            response.cancel()
            broker.responding.set()
            results = await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)
            assert [type(result).__name__ for result in results[::2]] == ["CancelledError"] * len(results[::2])
            await producer.flush()
            return [n for n, _ in queued] + [n for n, _ in waiting[1::2]]

    expected = asyncio.run(main())
    assert [int((value or b"")[:4]) for value in broker.values("t")[1:]] == expected


def test_cancelling_while_metadata_is_missing_leaves_nothing_behind(broker):
    broker.knows_topics.clear()

    async def main():
        # Longer than the pause between two requests for metadata may grow to, or the second send might miss them.
        async with make(broker, max_block_ms=5000) as producer:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.send("t", b"never"), 0.05)
            await asyncio.sleep(0.2)
            broker.knows_topics.set()
            await producer.send_and_wait("t", b"yes")

    asyncio.run(main())
    assert broker.values("t") == [b"yes"]


@pytest.mark.behaviour("P50")
def test_a_refused_record_fails_the_future_that_send_returns_and_calls_its_callback(broker):
    outcomes = []

    async def main():
        async with make(broker, max_request_size=1000) as producer:
            future = await producer.send("t", b"x" * 2000, on_delivery=lambda *outcome: outcomes.append(outcome))
            with pytest.raises(RecordTooLargeError):
                await future
            delivery = await producer.send_arrow("t", pa.table({"value": [b"x" * 2000]}))
            with pytest.raises(RecordTooLargeError):
                await delivery
            assert (await producer.send_and_wait("t", b"fits")).offset == 0
        assert outcomes == [(None, future.exception(0))]

    asyncio.run(main())


def test_batches_that_compress_well_take_more_memory_and_the_loop_goes_on(broker):
    """What a batch takes from the pool grows with how well records compress; a pool for one such batch is full."""

    async def main():
        options = {"compression_type": "zstd", "batch_size": 16_000, "buffer_memory": 128_000 + 16_000, "linger_ms": 0}
        async with make(broker, **options) as producer:
            for _ in range(200):  # until it is known that zeros compress
                await producer.send_and_wait("t", bytes(15_000))
            topic = producer._engine.accumulator.topics["t"]
            room = producer._engine.accumulator.room_bytes(topic, 0)
            assert room > 16_000
            claim, pool = Claim(), producer._engine.pool
            while pool.available_bytes < pool.total_bytes:  # the last batch is completed before its memory is released
                await asyncio.sleep(0.001)
            pool.reserve(pool.available_bytes - room + 1, 0, claim)  # as send_arrow does in another thread
            async with watched():
                sending = asyncio.create_task(producer.send("t", b"v"))
                await asyncio.sleep(0.3)
                assert not sending.done()
                pool.give_back(claim)
                await (await sending)

    asyncio.run(main())


def test_errors_of_serializers_and_of_use_are_raised_at_once(broker):
    async def main():
        async with make(broker, value_serializer="str") as producer:
            with pytest.raises(SerializationError):
                await producer.send("t", b"bytes")
            with pytest.raises(IllegalStateError, match=r"transactional\.id"):
                await producer.init_transactions()
            with pytest.raises(IllegalStateError, match=r"transactional\.id"):
                await producer.begin_transaction()
            assert (await producer.send_and_wait("t", "text")).offset == 0

    asyncio.run(main())


def test_an_event_loop_that_ends_before_the_responses_is_harmless(broker, caplog):
    async def main():
        producer = make(broker)
        await producer.send_and_wait("t", b"first")
        broker.responding.clear()
        future = await producer.send("t", b"v", on_delivery=lambda *_: None)
        waiting = asyncio.ensure_future(future)
        await asyncio.sleep(0.05)
        waiting.cancel()
        return producer

    producer = asyncio.run(main())
    broker.responding.set()
    asyncio.run(producer.close())
    assert broker.values("t") == [b"first", b"v"]
    assert "callback" not in caplog.text
