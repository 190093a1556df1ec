"""AsyncConsumer: iteration, cancellation, close. No record is lost, and nothing blocks the event loop."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from headrace import AsyncConsumer, AsyncProducer, ClosedError, Consumer, IllegalStateError, Producer, TopicPartition
from tests.support.topics import new_topic, unique

SECONDS_MAX = 20.0
SEED = 17
COUNT = 50


@pytest.fixture
def topic(either):
    """A partition with the values 0 to 49."""
    name = new_topic(either, "async")
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        for i in range(COUNT):
            producer.send(name, b"%d" % i)
    return name


def open_consumer(broker, group, **options):
    return AsyncConsumer(bootstrap_servers=broker.bootstrap, group_id=group, auto_offset_reset="earliest", **options)


def committed(broker, group, topic):
    with Consumer(bootstrap_servers=broker.bootstrap, group_id=group) as consumer:
        offsets = consumer.committed([TopicPartition(topic, 0)])
        return offsets[TopicPartition(topic, 0)].offset if offsets else 0


def run(main):
    """Run a coroutine function, within a time limit."""

    async def limited():
        async with asyncio.timeout(SECONDS_MAX):
            return await main()

    return asyncio.run(limited())


@pytest.mark.behaviour("C09")
def test_async_for_reads_in_order_and_break_leaves_the_rest(either, topic):
    group = unique("async-for")

    async def main():
        offsets: list[int] = []
        async with open_consumer(either, group) as consumer:
            consumer.subscribe([topic])
            async for record in consumer:
                offsets.append(record.offset)
                if record.offset == 9:
                    break
            assert await consumer.position(TopicPartition(topic, 0)) == 10
            async for record in consumer:
                offsets.append(record.offset)
                if record.offset == 19:
                    await consumer.commit()
                    break
        return offsets

    assert run(main) == list(range(20))
    assert committed(either, group, topic) == 20


@pytest.mark.behaviour("C09")
def test_cancelled_polls_lose_no_record(either, topic):
    chance = random.Random(SEED)

    async def main():
        seen: list[int] = []
        cancelled = 0
        async with open_consumer(either, unique("cancelled"), max_poll_records=1) as consumer:
            consumer.subscribe([topic])
            while len(seen) < COUNT:
                polling = asyncio.create_task(consumer.poll(1.0))
                await asyncio.sleep(chance.uniform(0, 0.003))
                polling.cancel()
                if chance.random() < 0.3:
                    await asyncio.sleep(0)
                    polling.cancel()  # again, while the first cancellation is handled
                try:
                    seen += [record.offset for record in await polling]
                except asyncio.CancelledError:
                    cancelled += 1
                    seen += [record.offset for record in await consumer.poll(1.0)] if cancelled % 10 == 0 else []
        return seen, cancelled

    seen, cancelled = run(main)
    assert seen == list(range(COUNT))
    assert cancelled


@pytest.mark.behaviour("C09")
def test_a_timeout_around_async_for_loses_no_record(either, topic):
    async def main():
        seen: list[int] = []
        async with open_consumer(either, unique("timeouts"), max_poll_records=3) as consumer:
            consumer.subscribe([topic])
            while len(seen) < COUNT:
                try:
                    async with asyncio.timeout(0.02):
                        async for record in consumer:
                            seen.append(record.offset)
                            if len(seen) % 7 == 0:
                                await asyncio.sleep(0.03)  # the timeout strikes while a record is processed
                except TimeoutError:
                    continue
        return seen

    assert run(main) == list(range(COUNT))


@pytest.mark.behaviour("C09")
def test_a_cancelled_task_does_not_commit_what_it_did_not_process(either, topic):
    group = unique("processing")

    async def main():
        processed: list[int] = []

        async def work():
            async with open_consumer(either, group) as consumer:
                consumer.subscribe([topic])
                async for record in consumer:
                    if record.offset == 12:
                        reached.set()
                        await asyncio.sleep(SECONDS_MAX)
                    processed.append(record.offset)

        reached = asyncio.Event()
        task = asyncio.create_task(work())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return processed

    assert run(main) == list(range(12))
    assert committed(either, group, topic) == 12


@pytest.mark.behaviour("C09")
def test_a_cancelled_close_closes_nevertheless_and_commits(either, topic):
    group = unique("closing")

    async def main():
        consumer = open_consumer(either, group)
        consumer.subscribe([topic])
        async for record in consumer:
            if record.offset == 24:
                break
        closing = asyncio.create_task(consumer.close())
        for _ in range(3):
            await asyncio.sleep(0)
            closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(ClosedError, match="the consumer is closed"):
            await consumer.poll(0)

    run(main)
    assert committed(either, group, topic) == 25


@pytest.mark.behaviour("C09")
def test_close_ends_the_poll_of_another_task(either, topic):
    async def main():
        consumer = open_consumer(either, unique("other-task"))
        consumer.assign({TopicPartition(topic, 0): COUNT})
        polling = asyncio.create_task(consumer.poll(SECONDS_MAX))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await consumer.close()
        with pytest.raises(ClosedError, match="the consumer is closed"):
            await polling
        return time.monotonic() - began

    assert run(main) < SECONDS_MAX / 2


@pytest.mark.behaviour("C09")
def test_the_event_loop_runs_while_a_poll_waits(either, topic):
    async def main():
        turns = 0
        async with open_consumer(either, unique("turns")) as consumer:
            consumer.assign({TopicPartition(topic, 0): COUNT})
            polling = asyncio.create_task(consumer.poll(0.5))
            while not polling.done():
                await asyncio.sleep(0.01)
                turns += 1
            assert await polling == []
            with pytest.raises(IllegalStateError, match="not assigned"):
                consumer.seek(TopicPartition("other", 0), 0)
        return turns

    assert run(main) > 10


@pytest.mark.behaviour("C04")
def test_asyncio_consumes_transforms_and_produces_in_transactions(either, topic):
    target, group = new_topic(either, "async-target"), unique("async-transform")

    async def main():
        async with (
            AsyncProducer(bootstrap_servers=either.bootstrap, transactional_id=unique("async-transform")) as producer,
            open_consumer(either, group, enable_auto_commit=False, isolation_level="read_committed") as consumer,
        ):
            await producer.init_transactions()
            consumer.subscribe([topic])
            count = 0
            while count < COUNT:
                records = await consumer.poll(1.0, max_records=10)
                async with producer.transaction():
                    for record in records:
                        await producer.send(target, b"async " + record.value)
                    await producer.send_offsets_to_transaction(consumer)
                count += len(records)

    run(main)
    assert committed(either, group, topic) == COUNT
    with Consumer(bootstrap_servers=either.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign({TopicPartition(target, 0): 0})
        values = consumer.arrow_stream(SECONDS_MAX).read_all()["value"].to_pylist()
    assert values == [b"async %d" % i for i in range(COUNT)]
