"""A cluster of brokers, for tests of replication and fail-over.

    with EmbeddedCluster(3) as cluster:
        Producer(bootstrap_servers=cluster.bootstrap_servers)
        cluster.brokers[0].kill()

Each broker is an `EmbeddedBroker`, a separate process with a port and a data folder that are kept until `close`. The
controller is another process without partitions, so that any broker can fail. With `separate_controller=False` the
first broker is the controller too: while it is down there are no elections and no changes, and requests that wait for
its replicas keep waiting.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from headrace.broker.broker_options import BROKER_OPTIONS
from headrace.broker.degrader import Degrader
from headrace.broker.embedded import EmbeddedBroker
from headrace.errors import ConfigError, IllegalStateError

if TYPE_CHECKING:
    from headrace.config.option_types import BrokerOptions

BROKERS_MAX = 50
CONTROLLER_ID = 0
"""The node id of a separate controller; brokers start with 1."""
REPLICATION_FACTOR = 3
"""The default replication factor if there are enough brokers; acks=all then needs two in-sync replicas."""


class EmbeddedCluster:
    """Several brokers on the loopback interface."""

    def __init__(
        self,
        count: int = 3,
        config: Mapping[str, object] | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        ports: Sequence[int] | None = None,
        controller_port: int = 0,
        racks: Sequence[str] | None = None,
        degraded: bool = False,
        separate_controller: bool = True,
        **options: Unpack[BrokerOptions],
    ) -> None:
        """Options of all brokers by name in `config`, or as keywords.

        With a `data_dir`, each broker has a folder in it, which is kept. `ports` and `racks` have one item for each
        broker; `controller_port` is that of a separate controller. Port 0 is replaced by a free port.
        `degraded=True` puts a `Degrader` in front of each broker for clients and other brokers, and `broker.isolate()`
        disconnects the broker. With `separate_controller=False` the first broker is the controller too, and requests
        that wait for its replicas wait until it is back.
        """
        if not 1 <= count <= BROKERS_MAX:
            raise ConfigError(f"invalid number of brokers {count}: expected 1 to {BROKERS_MAX}")
        for name, values in (("ports", ports), ("racks", racks)):
            if values is not None and len(values) != count:
                raise ConfigError(f"invalid {name}: expected {count} items, one for each broker, got {len(values)}")
        common = {**defaults(count), **(config or {}), **BROKER_OPTIONS.named(options)}
        _check_listeners(common.get("listeners"))
        self.data_dir: Path | None = None if data_dir is None else Path(data_dir).absolute()
        self._members: list[ClusterBroker] = []  # the controller first
        self.brokers: list[ClusterBroker] = self._members
        try:
            for index in range(count + separate_controller):
                node_id = index if separate_controller else index + 1
                own: dict[str, object] = {"node.id": node_id}
                if node_id == CONTROLLER_ID:
                    own["process.roles"] = "controller"
                elif racks is not None:
                    own["broker.rack"] = racks[node_id - 1]
                self._members.append(
                    ClusterBroker(
                        {**common, **own},
                        controller=self._members[0] if index else None,
                        data_dir=None if self.data_dir is None else self.data_dir / f"broker-{node_id}",
                        port=_port(node_id, ports, controller_port),
                        degraded=degraded,
                    )
                )
        except BaseException:
            self.close()
            raise
        self.brokers = self._members[1:] if separate_controller else self._members

    # -- lifecycle -------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the brokers that are not running, the controller first; return when all are members."""
        controller, *others = self._members
        if not controller.is_running:
            controller.start()
        _each([broker.start for broker in others if not broker.is_running])
        return self

    def stop(self) -> None:
        """Stop all brokers, the controller last. Data and ports are kept."""
        controller, *others = self._members
        _each([broker.stop for broker in others])
        controller.stop()

    def close(self) -> None:
        """Stop all brokers and remove their data, unless `data_dir` was given."""
        _each([broker.close for broker in self._members[1:]])
        if self._members:
            self._members[0].close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- state and operations --------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """host:port of all brokers, comma-separated; it does not change with restarts."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def has_separate_controller(self) -> bool:
        return self._members is not self.brokers

    @property
    def controller(self) -> ClusterBroker:
        """The controller: node 0, or the first broker if there is no separate controller."""
        return self._members[0]

    def broker(self, node_id: int) -> ClusterBroker:
        """Return a broker by node id; the first is 1."""
        return self.brokers[node_id - 1]

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic without a client; return its name. -1: default.replication.factor."""
        arguments = {"name": name, "partitions": partitions, "replication_factor": replication_factor}
        return str(self.controller.call("topics.create", **arguments, configs=dict(configs or {})))

    def describe_topic(self, topic: str) -> list[dict[str, Any]]:
        """Return the state of each partition on the controller: leader, leader_epoch, replicas, isr and so on."""
        return self.controller.describe_topic(topic)


class ClusterBroker(EmbeddedBroker):
    """A broker of a cluster."""

    def __init__(
        self,
        config: Mapping[str, object],
        *,
        controller: ClusterBroker | None,
        degraded: bool,
        data_dir: Path | None,
        port: int,
    ) -> None:
        super().__init__(config, data_dir=data_dir, port=port, degraded=degraded)
        self._controller = controller
        self._to_controller: Degrader | None = None
        self.node_id: int = int(str(config["node.id"]))

    def start(self) -> Self:
        if self._controller is not None:
            self._options["headrace.controller"] = self._controller_address(self._controller)
        return super().start()

    def close(self) -> None:
        super().close()
        if self._to_controller is not None:
            self._to_controller.close()
            self._to_controller = None

    def isolate(self) -> None:
        """Disconnect the broker from clients, other brokers and the controller, until `heal`."""
        self.degrader.cut()
        if self._to_controller is not None:
            self._to_controller.cut()

    def heal(self) -> None:
        """Reconnect the broker after `isolate`."""
        self.degrader.heal()
        if self._to_controller is not None:
            self._to_controller.heal()

    @property
    def controller_degrader(self) -> Degrader:
        """The proxy between this broker and the controller; with `degraded=True`, after the start."""
        if self._to_controller is None:
            raise IllegalStateError(
                "there is no degrader to the controller: use EmbeddedCluster(degraded=True), and start the broker"
            )
        return self._to_controller

    def _controller_address(self, controller: ClusterBroker) -> str:
        if not self._degraded:
            return controller.inner_address
        if self._to_controller is None:
            self._to_controller = Degrader(controller.inner_address).start()
        return self._to_controller.address

    @property
    def inner_address(self) -> str:
        """The address for other brokers: that of the inter-broker listener if it is named, otherwise `bootstrap`."""
        name = self._options.get("inter.broker.listener.name")
        if name is None or self._ready is None:
            return self.bootstrap
        return self._ready.listeners[str(name).upper()]

    def describe_topic(self, topic: str) -> list[dict[str, Any]]:
        """Return the state of each partition as this broker knows it: leader, replicas, isr and so on."""
        partitions: list[dict[str, Any]] = self.call("topics.describe", name=topic) or []
        return partitions

    def known_brokers(self) -> dict[int, dict[str, Any]]:
        """Return the brokers by node id as this broker knows them: epoch, listeners, fenced and so on."""
        return {row["node_id"]: row for row in self.call("brokers")}


def defaults(count: int) -> dict[str, object]:
    """Return the default options: replication factors and min.insync.replicas for the number of brokers."""
    replication_factor = min(REPLICATION_FACTOR, count)
    min_isr = 2 if replication_factor >= REPLICATION_FACTOR else 1
    return {
        "default.replication.factor": replication_factor,
        "offsets.topic.replication.factor": replication_factor,
        "transaction.state.log.replication.factor": replication_factor,
        "transaction.state.log.min.isr": min_isr,
        "share.coordinator.state.topic.replication.factor": replication_factor,
        "share.coordinator.state.topic.min.isr": min_isr,
        "min.insync.replicas": min_isr,
    }


def _port(node_id: int, ports: Sequence[int] | None, controller_port: int) -> int:
    if node_id == CONTROLLER_ID:
        return controller_port
    return 0 if ports is None else ports[node_id - 1]


def _check_listeners(listeners: object) -> None:
    """Raise if a listener has a fixed port, which only one of the processes could use."""
    texts = listeners.split(",") if isinstance(listeners, str) else listeners
    for text in texts if isinstance(texts, list | tuple) else ():
        if not str(text).endswith(":0"):
            raise ConfigError(
                f"invalid listeners={text}: all brokers of the cluster would listen on this port; use port 0 and give "
                "each broker a port with ports=[…] (on the command line, with --listen)"
            )


def _each(calls: Sequence[Any]) -> None:
    """Call all functions in parallel and wait for all of them, also if one fails."""
    if not calls:
        return
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()
