"""A cluster on the event loop of the test whose brokers can be stopped and started, for tests of replication.

async with replica_cluster(tmp_path, 3) as cluster:
    cluster.topic("t", [[2, 3, 1]])
    await cluster.stop(2)
    await cluster.start(2)                    again, on the same port and folder
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from headrace.broker.broker import Broker
from headrace.broker.broker_options import resolve
from headrace.broker.catalog.topics import PartitionRegistration
from headrace.broker.partition import Partition
from headrace.broker.ports import free_port
from headrace.errors import BrokerError, Code
from headrace.wire.schema import Message, RequestMessage
from tests.support.cluster_in_loop import send_request, until

R = TypeVar("R", bound=Message)
STOP_SECONDS_MAX = 20
INNER = "inter.broker.listener.name"
QUICK: dict[str, object] = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "min.insync.replicas": 2,
    "default.replication.factor": 3,
}


class ReplicaCluster:
    """Brokers by node id; 1 is the controller."""

    def __init__(self, folder: Path, options: dict[str, object]) -> None:
        self._folder = folder
        self._options = options
        self._ports: dict[int, int] = {}
        self._inner_ports: dict[int, int] = {}  # of the inter-broker listener
        self.brokers: dict[int, Broker] = {}

    @property
    def controller(self) -> Broker:
        return self.brokers[1]

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address(node) for node in self.brokers)

    def address(self, node: int) -> str:
        return f"127.0.0.1:{self._ports[node]}"

    async def start(self, node: int, **options: object) -> Broker:
        """Start a new or stopped broker; return when it is a member of the cluster."""
        port = self._ports.setdefault(node, free_port())
        folder = self._folder / str(node)
        folder.mkdir(parents=True, exist_ok=True)
        listeners = [f"PLAINTEXT://127.0.0.1:{port}"]
        if INNER in self._options:
            inner = self._inner_ports.setdefault(node, free_port())
            listeners.append(f"{self._options[INNER]}://127.0.0.1:{inner}")
        own: dict[str, object] = {"node.id": node, "log.dirs": str(folder), "listeners": listeners}
        if node != 1:
            own["headrace.controller"] = f"127.0.0.1:{self._inner_ports.get(1, self._ports[1])}"
        broker = Broker(resolve(("argument", {**self._options, **options, **own})))
        await broker.start()
        self.brokers[node] = broker
        return broker

    async def stop(self, node: int) -> None:
        """Stop a broker cleanly: it hands over its leaderships."""
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await self.brokers.pop(node).stop()

    async def send_request(self, node: int, request: RequestMessage[R], version: int) -> R:
        return await send_request(self.brokers[node], request, version)

    async def topic(self, name: str, assignment: list[list[int]], **configs: str) -> None:
        """Create a topic with an assignment, leaders first; return when all brokers know it."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.controller.topic_manager.create(name, configs=named, assignment=assignment)
        for index, nodes in enumerate(assignment):
            for node in nodes:
                await until(f"{name}-{index} is on {node}", partial(self.brokers[node].replicas.get, name, index))

    def registration(self, name: str, index: int = 0) -> PartitionRegistration:
        """Return the state of a partition on the controller."""
        return self.controller.catalog.topics.by_name[name].partitions[index]

    def partition(self, node: int, name: str, index: int = 0) -> Partition:
        return self.brokers[node].replicas.replica(name, index)

    async def elect(self, name: str, leader: int, index: int = 0) -> None:
        """Make another in-sync replica the leader; return when all brokers know it."""
        topics = self.controller.catalog.topics
        topic, before = topics.by_name[name], self.registration(name, index)
        target = PartitionRegistration(
            before.replicas, before.isr, leader, before.leader_epoch + 1, before.partition_epoch + 1
        )
        self.controller.catalog.record(topics.partition_change(topic, index, target))
        for broker in self.brokers.values():
            await until(f"{name}-{index} is led by {leader}", partial(_knows, broker, name, index, target))

    async def in_sync(self, name: str, *nodes: int, index: int = 0) -> None:
        await until(f"in sync are {nodes}", lambda: {*self.registration(name, index).isr} == {*nodes})

    def hold_followers(self, leader: int, *, refusing: bool = False) -> Callable[[], object]:
        """Hide the fetches of followers from their leader, or reject them; call the result to end that."""
        replicas = self.brokers[leader].replicas

        def held(*_: object) -> None:
            if refusing:
                raise BrokerError("held", code=Code.UNKNOWN_LEADER_EPOCH)

        replicas.follower_fetched = held  # type: ignore[method-assign, assignment]

        def release() -> None:
            del replicas.follower_fetched
            assert replicas.follower_sessions is not None
            replicas.follower_sessions.close()  # the next session repeats what was hidden

        return release

    async def logs_agree(self, name: str, index: int = 0) -> None:
        """Check 2 of the facts: one value for an offset, on all replicas."""

        def same() -> bool:
            folders = [
                self.partition(node, name, index).log.directory for node in self.registration(name, index).replicas
            ]
            return len({b"".join(path.read_bytes() for path in sorted(one.glob("*.log"))) for one in folders}) == 1

        await until(f"all replicas of {name}-{index} have the same bytes", same)


@asynccontextmanager
async def replica_cluster(folder: Path, count: int = 3, **options: object) -> AsyncIterator[ReplicaCluster]:
    """Started, and stopped in the end."""
    cluster = ReplicaCluster(folder, QUICK | {name.replace("_", "."): value for name, value in options.items()})
    try:
        for node in range(1, count + 1):
            await cluster.start(node)
        yield cluster
    finally:
        for node in sorted(cluster.brokers, reverse=True):
            await cluster.stop(node)


def _knows(broker: Broker, name: str, index: int, registration: PartitionRegistration) -> bool:
    return broker.catalog.topics.by_name[name].partitions[index] == registration
