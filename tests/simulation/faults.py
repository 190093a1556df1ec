"""The faults of a run: what breaks, when, and for how long, drawn from the world's generator.

    crash        kill -9 of a broker or a client                torn write   the same, within a write to a file
    power cut    the same, and unsynced data are lost           pause        SIGSTOP, then SIGCONT
    partition    between two brokers, or of one from all        slow disk    writes and fsyncs block the broker
    skew         the clock of a process is wrong

A power cut is allowed only while all replicas are in sync: Kafka's promise is for data of min.insync.replicas brokers,
and holds only if fewer of them lose data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.simulation.clients import SimulatedClient
from tests.simulation.cluster import Node, SimulatedCluster

CALM_SECONDS = (5.0, 90.0)
FAULT_SECONDS = (0.05, 25.0)
SLOW_SECONDS_MAX = 0.5
SKEW_SECONDS_MAX = 3_600.0


class Faults:
    """Causes one fault after another, some at the same time."""

    def __init__(self, cluster: SimulatedCluster, clients: Sequence[SimulatedClient]) -> None:
        self._cluster = cluster
        self._clients = clients
        self._world = cluster.world
        self._is_active = False
        self._has_lost_power = False
        self.counts: dict[str, int] = {}

    def start(self) -> None:
        self._is_active = True
        self._next()

    def stop(self) -> None:
        """End all faults."""
        self._is_active = False
        self._cluster.network.heal()
        self._cluster.disk.slow_seconds.clear()
        self._cluster.disk.torn.clear()
        for node in self._cluster.nodes:
            node.skew_seconds = 0.0
            if node.process is not None:
                node.process.skew_seconds = 0.0
                if node.process.is_paused:
                    node.process.resume()
            node.start()
        for client in self._clients:
            if client.process is not None and client.process.is_paused:
                client.process.resume()

    def _next(self) -> None:
        if not self._is_active:
            return
        rng = self._world.rng
        kinds: list[Callable[[], str]] = [
            self._crash, self._crash, self._crash_all, self._torn_write, self._power_cut, self._pause,
            self._partition, self._isolate, self._slow_disk, self._skew, self._kill_client, self._pause_client,
        ]  # fmt: skip
        text = rng.choice(kinds)()
        if text:
            self._world.note(text)
            kind = text.split(":")[0]
            self.counts[kind] = self.counts.get(kind, 0) + 1
        # Usually a calm time, sometimes another fault on top.
        self._world.later(rng.uniform(*CALM_SECONDS) if rng.random() < 0.7 else rng.uniform(0, 2), self._next)

    def _duration(self) -> float:
        return self._world.rng.uniform(*FAULT_SECONDS)

    def _node(self) -> Node:
        return self._world.rng.choice(self._cluster.nodes)

    # -- faults of brokers -----------------------------------------------------------------------

    def _crash(self) -> str:
        node = self._node()
        node.kill()
        return f"crash: {node.name}"

    def _crash_all(self) -> str:
        for node in self._cluster.nodes:
            node.kill()
        return "crash: all brokers"

    def _torn_write(self) -> str:
        node = self._node()
        self._cluster.disk.torn[node.name] = self._world.rng.randrange(20)
        return f"torn write: {node.name}"

    def _power_cut(self) -> str:
        if len(self._cluster.nodes) < 3 or not self._cluster.is_in_sync():
            return ""
        node = self._node()
        node.kill(power=True)
        return f"power cut: {node.name}"

    def _pause(self) -> str:
        node = self._node()
        process = node.process
        if process is None or process.is_paused or not process.is_alive:
            return ""
        process.pause()
        seconds = self._duration()
        self._world.later(seconds, process.resume)
        return f"pause: {node.name} for {seconds:.1f} s"

    def _slow_disk(self) -> str:
        node = self._node()
        slow = self._cluster.disk.slow_seconds
        slow[node.name] = self._world.rng.uniform(0, SLOW_SECONDS_MAX)
        self._world.later(self._duration(), lambda: slow.pop(node.name, None))
        return f"slow disk: {node.name}, up to {slow[node.name]:.3f} s"

    def _skew(self) -> str:
        node = self._node()
        node.skew_seconds = self._world.rng.uniform(-SKEW_SECONDS_MAX, SKEW_SECONDS_MAX)
        if node.process is not None:
            node.process.skew_seconds = node.skew_seconds
        return f"skew: {node.name} by {node.skew_seconds:.0f} s"

    # -- faults of the network -------------------------------------------------------------------

    def _partition(self) -> str:
        hosts = [node.host for node in self._cluster.nodes] + [client.host for client in self._clients]
        source, target = self._world.rng.sample(hosts, 2)
        self._cut([(source, target)])
        if self._world.rng.random() < 0.7:
            self._cut([(target, source)])
        return f"partition: {source} from {target}"

    def _isolate(self) -> str:
        node = self._node()
        others = [other.host for other in self._cluster.nodes if other is not node]
        others += [client.host for client in self._clients]
        self._cut([(node.host, other) for other in others] + [(other, node.host) for other in others])
        return f"partition: {node.name} from all"

    def _cut(self, ways: list[tuple[str, str]]) -> None:
        for source, target in ways:
            self._cluster.network.cut(source, target)
        self._world.later(self._duration(), self._cluster.network.heal)

    # -- faults of clients -----------------------------------------------------------------------

    def _client(self) -> SimulatedClient | None:
        return self._world.rng.choice(self._clients) if self._clients else None

    def _kill_client(self) -> str:
        client = self._client()
        if client is None or client.process is None or not client.process.is_alive:
            return ""
        self._cluster.network.process_ended(client.process)
        client.process.kill()
        return f"client crash: {client.name}"

    def _pause_client(self) -> str:
        client = self._client()
        if client is None or client.process is None or client.process.is_paused or not client.process.is_alive:
            return ""
        process = client.process
        process.pause()
        self._world.later(self._duration(), process.resume)
        return f"client pause: {client.name}"
