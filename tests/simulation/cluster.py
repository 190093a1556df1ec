"""Brokers of the simulation: real brokers, each in a simulated process that can be killed and started again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.broker.broker import Broker
from headrace.broker.broker_options import resolve
from tests.simulation.disk import Disk
from tests.simulation.loop import SimulatedLoop
from tests.simulation.network import Network, Socket
from tests.simulation.world import Process, World

PORT = 9092
RESTART_SECONDS = (0.2, 5.0)
"""How long a broker that could not start is down before the next attempt."""
OPTIONS: dict[str, object] = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 4,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 1,
    "replica.lag.time.max.ms": 10_000,
    "replica.fetch.wait.max.ms": 2_000,
    "replica.socket.timeout.ms": 5_000,
    "broker.session.timeout.ms": 6_000,
    "broker.heartbeat.interval.ms": 2_000,
    "log.segment.bytes": 1_048_576,
    "log.roll.ms": 300_000,
}
log = logging.getLogger("headrace.simulation")


class Node:
    """A broker and its host: the process may end, the folder remains."""

    def __init__(self, cluster: SimulatedCluster, node_id: int, folder: Path, options: Mapping[str, object]) -> None:
        self.node_id = node_id
        self.name = f"broker-{node_id}"
        self.host = f"10.0.0.{node_id}"
        self.folder = folder
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.is_up = False
        self.is_wanted = False  # running, or to be started again
        self.skew_seconds = 0.0
        self.boots = 0
        self._cluster = cluster
        self._options = options
        self._orphans: list[Socket] = []  # sockets of a host without power

    @property
    def is_running(self) -> bool:
        return self.is_up and self.process is not None and self.process.is_alive

    def start(self) -> None:
        """Start the broker; if it cannot start, try again."""
        self.is_wanted = True
        if self.process is not None and self.process.is_alive:
            return
        world = self._cluster.world
        for sock in self._orphans:
            sock.reset_peer()
        self._orphans = []
        process = self.process = Process(world, self.name, self.host)
        process.skew_seconds, process.boots = self.skew_seconds, self.boots
        process.on_kill.append(lambda: self._ended(process))
        loop = SimulatedLoop(process, self._cluster.network)  # type: ignore[abstract]  # brokers need no more

        async def run() -> None:
            try:
                self.broker = Broker(resolve(("argument", dict(self._options))))
                await self.broker.start()
                self.is_up = True
                world.note(f"{self.name} is up")
            except Exception as error:
                world.note(f"{self.name} did not start: {error}")
                log.debug("%s did not start", self.name, exc_info=True)
                world.at(world.now, process.kill)

        world.at(world.now, lambda: loop.create_task(run(), name="main"), process)

    def kill(self, *, power: bool = False) -> None:
        """Kill the process; with `power`, cut the power of its host: what was not synced is lost."""
        if self.process is None or not self.process.is_alive:
            return
        if power:
            self.boots += 1
            self._is_power_cut = True
        self.process.kill()
        if power:
            lost = self._cluster.disk.cut_power(self.folder)
            self._cluster.world.note(f"{self.name} lost {lost} bytes")

    _is_power_cut = False

    def _ended(self, process: Process) -> None:
        self.is_up = False
        orphans = self._cluster.network.process_ended(process, silently=self._is_power_cut)
        if self._is_power_cut:
            self._orphans = orphans
        self._is_power_cut = False
        self._cluster.disk.process_ended(process)
        self.broker = None
        world = self._cluster.world
        world.later(world.rng.uniform(*RESTART_SECONDS), self._restart)

    def _restart(self) -> None:
        if self.is_wanted:
            self.start()

    def stop(self) -> None:
        """Kill the process for good."""
        self.is_wanted = False
        self.kill()


class SimulatedCluster:
    """Brokers 1 to `count`; the first is the controller."""

    def __init__(
        self, world: World, network: Network, disk: Disk, folder: Path, options: Sequence[Mapping[str, object]]
    ) -> None:
        """`options` are those of each broker, beyond the ones of all simulations."""
        self.world, self.network, self.disk = world, network, disk
        count = len(options)
        self.nodes: list[Node] = []
        defaults = dict(OPTIONS)
        replicas = min(count, 3)
        for name in ("default", "transaction.state.log", "offsets.topic"):
            defaults[f"{name}.replication.factor"] = replicas
        for name in ("min.insync.replicas", "transaction.state.log.min.isr"):
            defaults[name] = min(replicas, 2)
        for node_id, given in enumerate(options, 1):
            own: dict[str, object] = {
                **defaults,
                **given,
                "node.id": node_id,
                "log.dirs": str(folder / str(node_id)),
                "listeners": f"PLAINTEXT://10.0.0.{node_id}:{PORT}",
            }
            if node_id > 1:
                own["headrace.controller"] = f"10.0.0.1:{PORT}"
            (folder / str(node_id)).mkdir(parents=True, exist_ok=True)
            self.nodes.append(Node(self, node_id, folder / str(node_id), own))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{node.host}:{PORT}" for node in self.nodes)

    @property
    def is_up(self) -> bool:
        return all(node.is_running for node in self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def is_in_sync(self) -> bool:
        """Return whether all replicas of all partitions are in sync, as the controller sees it."""
        controller = self.nodes[0].broker
        if not self.is_up or controller is None:
            return False
        return all(
            len(partition.isr) == len(partition.replicas)
            for topic in controller.catalog.topics.by_name.values()
            for partition in topic.partitions
        )
