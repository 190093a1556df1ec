"""A cluster on the event loop of the test: fast, and with access to its internals. Brokers cannot be killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from headrace.broker.broker import Broker
from headrace.broker.cluster.peer import Peer
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace.wire.api.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.wire.schema import Message, RequestMessage
from tests.support.broker_in_loop import broker_in_loop

SECONDS_MAX = 10.0
RESPONSE_MS_MAX = 10_000
_POLL_SECONDS = 0.01

T = TypeVar("T")
R = TypeVar("R", bound=Message)


@asynccontextmanager
async def cluster_in_loop(
    folder: Path,
    count: int = 3,
    options: Mapping[str, object] | None = None,
    racks: Mapping[int, str] | None = None,
) -> AsyncIterator[list[Broker]]:
    """Start brokers 1 to `count`; the first is the controller, and stopped last."""
    async with AsyncExitStack() as running:
        brokers: list[Broker] = []
        for node_id in range(1, count + 1):
            own: dict[str, object] = {"node.id": node_id, **(options or {})}
            if racks is not None:
                own["broker.rack"] = racks[node_id]
            if brokers:
                own["headrace.controller"] = brokers[0].listeners[0].address
            brokers.append(await running.enter_async_context(broker_in_loop(folder / str(node_id), **own)))
        yield brokers


async def until(what: str, condition: Callable[[], T | None]) -> T:
    """Run the event loop until the condition is true, and return its value."""
    deadline = asyncio.get_running_loop().time() + SECONDS_MAX
    while not (value := condition()):
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError(f"timed out after {SECONDS_MAX:g} s waiting for {what}; the last value was {value!r}")
        await asyncio.sleep(_POLL_SECONDS)
    return value


async def send_request(broker: Broker, message: RequestMessage[R], version: int) -> R:
    """Return the response of a broker, on a new connection."""
    listener = broker.listeners[0]
    peer = Peer(lambda: (listener.host, listener.port), client_id="test")
    try:
        return await peer.request(message, version, RESPONSE_MS_MAX)
    finally:
        await peer.close()


def create(name: str, partitions: int = 1, replicas: int = 1, *assignment: list[int]) -> CreateTopicsRequest:
    rows = [CreatableReplicaAssignment(partition_index=n, broker_ids=nodes) for n, nodes in enumerate(assignment)]
    if rows:
        partitions = replicas = -1
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, assignments=rows)
    return CreateTopicsRequest(topics=[topic], timeout_ms=5000)


async def made(broker: Broker, request: CreateTopicsRequest) -> CreateTopicsResponse:
    response = await send_request(broker, request, 7)
    assert [row.error_code for row in response.topics] == [0]
    return response


async def metadata(broker: Broker, *names: str, auto: bool = False) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=auto)
    return await send_request(broker, request, 12)
