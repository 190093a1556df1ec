"""Many tasks share an AsyncProducer, without ever blocking the event loop.

headrace broker start                     # in another terminal; or any Kafka, with BOOTSTRAP=host:port
python async_events.py
"""

import asyncio
import os

from headrace import AsyncProducer

BOOTSTRAP = os.environ.get("BOOTSTRAP", "localhost:9092")
SENSORS, READINGS = 50, 20


async def sensor(producer: AsyncProducer, number: int) -> int:
    """Send readings, and wait for the last one; earlier ones of the same partition are acknowledged before it."""
    key = b"sensor-%d" % number
    for reading in range(READINGS - 1):
        await producer.send("events", b"%d" % reading, key=key)  # queued: waits only if the buffer is full
        await asyncio.sleep(0)
    last = await producer.send_and_wait("events", b"%d" % (READINGS - 1), key=key)
    return last.partition


async def main() -> None:
    async with AsyncProducer(bootstrap_servers=BOOTSTRAP, linger_ms=5) as producer:
        partitions = await asyncio.gather(*(sensor(producer, number) for number in range(SENSORS)))
        await producer.flush(timeout=30)
    print(f"{SENSORS * READINGS} events in {len(set(partitions))} partitions")


asyncio.run(main())
