"""The producer for asyncio on a real broker."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from headrace import AsyncProducer, GroupMetadata, IllegalStateError
from tests.support.peers import librdkafka
from tests.support.topics import new_topic, unique


def committed(broker, topic, count):
    return [record.value for record in librdkafka.consume(broker.bootstrap, topic, count, isolation="read_committed")]


def test_many_tasks_send_through_one_producer(either):
    topic = new_topic(either, "tasks")

    async def main():
        async with AsyncProducer(bootstrap_servers=either.bootstrap, value_serializer="json") as producer:

            async def work(task):
                futures = [await producer.send(topic, [task, n]) for n in range(100)]
                return [(await future).offset for future in futures]

            offsets = await asyncio.gather(*(work(task) for task in range(20)))
            assert all(task_offsets == sorted(task_offsets) for task_offsets in offsets)
            assert sorted(offset for task_offsets in offsets for offset in task_offsets) == list(range(2000))
            delivery = await producer.send_arrow(topic, pa.table({"value": [b"column"]}))
            assert await delivery == {0: [(2000, 2000)]}

    asyncio.run(main())
    assert len(librdkafka.consume(either.bootstrap, topic, 2001)) == 2001


def test_async_transactions_commit_at_block_end_and_abort_on_errors(either):
    topic, group = new_topic(either, "async-txn"), unique("group")

    async def main():
        async with AsyncProducer(bootstrap_servers=either.bootstrap, transactional_id=unique("async")) as producer:
            with pytest.raises(IllegalStateError, match=r"init_transactions\(\) first"):
                await producer.send(topic, b"too early")
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send(topic, b"one")
                await producer.send_offsets_to_transaction({(topic, 0): 1}, GroupMetadata(group))

            async def fail():
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"never")
                    raise KeyError

            async def hang():
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"never")
                    await asyncio.sleep(60)

            with pytest.raises(KeyError):
                await fail()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(hang(), 0.5)
            await producer.begin_transaction()
            await producer.send(topic, b"two")
            await producer.commit_transaction()
            await producer.begin_transaction()
            await producer.send(topic, b"never")
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send(topic, b"three")

    asyncio.run(main())
    assert committed(either, topic, 3) == [b"one", b"two", b"three"]
