"""A broker on the event loop of the test, which can access its parts; clients run on threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.broker_options import resolve
from headrace.broker.ports import free_port


@asynccontextmanager
async def broker_in_loop(folder: Path, **options: object) -> AsyncIterator[Broker]:
    """Yield a running broker."""
    folder.mkdir(exist_ok=True)
    listeners = f"PLAINTEXT://127.0.0.1:{free_port()}"
    broker = Broker(resolve(("argument", {"log.dirs": str(folder), "listeners": listeners, **options})))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def hold_markers(broker: Broker, allowed: int = 0) -> asyncio.Event:
    """Delay markers until the event is set, except in the first `allowed` partitions."""
    released = asyncio.Event()
    write = broker.replicas.write_marker

    async def held(topic: str, index: int, *arguments: Any, **options: Any) -> None:
        if index >= allowed:
            await released.wait()
        await write(topic, index, *arguments, **options)

    broker.replicas.write_marker = held  # type: ignore[method-assign]
    return released
