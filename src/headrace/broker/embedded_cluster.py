"""Several brokers that are one cluster, for tests of what only several can do: replication, fail-over.

    with EmbeddedCluster(3) as cluster:
        Producer(bootstrap_servers=cluster.bootstrap_servers)
        cluster.brokers[0].kill()

Each broker is an `EmbeddedBroker`, a process of its own, with a port and a data folder that stay the same until
`close`. The controller is one process more, without partitions: any broker can be lost, whichever leads what a test is
about, and the others go on. With `separate_controller=False` the first broker is the controller, too: while that one is
down nobody is elected, nothing is changed, and what waits for a replica on it goes on waiting.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from headrace.broker.broker_options import BROKER_OPTIONS
from headrace.broker.embedded import EmbeddedBroker
from headrace.errors import ConfigError, IllegalStateError

if TYPE_CHECKING:
    from headrace.broker.degrader import Degrader
    from headrace.config.option_types import BrokerOptions

BROKERS_MAX = 50
SEPARATE = 0
"""The node id of a controller that is nothing else; brokers begin with 1."""
COPIES = 3
"""Of every topic, if there are so many brokers; then an acknowledgement (acks=all) means that two have it."""


class EmbeddedCluster:
    """Brokers on the loopback, owned by who made them."""

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
        """Options of all brokers by their dotted names in `config`, or as keywords.

        With a `data_dir`, each broker has a folder in it, and they stay. `ports` and `racks` are one for each broker;
        `controller_port` is that of a separate controller. A port 0 is a free one.
        `degraded=True` puts a `Degrader` before each broker: clients and the other brokers come through it, and
        `broker.isolate()` cuts the broker off. With `separate_controller=False` the first broker is the controller as
        well, and what waits for a replica on it waits until it is back.
        """
        if not 1 <= count <= BROKERS_MAX:
            raise ConfigError(f"a cluster has 1 to {BROKERS_MAX} brokers, not {count}")
        for what, given in (("ports", ports), ("racks", racks)):
            if given is not None and len(given) != count:
                raise ConfigError(f"{what} has {len(given)} items for {count} brokers")
        common = {**defaults(count), **(config or {}), **BROKER_OPTIONS.named(options)}
        _check_listeners(common.get("listeners"))
        self.data_dir: Path | None = None if data_dir is None else Path(data_dir).absolute()
        self._members: list[ClusterBroker] = []  # the controller first
        self.brokers: list[ClusterBroker] = self._members
        try:
            for index in range(count + separate_controller):
                node_id = index if separate_controller else index + 1
                own: dict[str, object] = {"node.id": node_id}
                if node_id == SEPARATE:
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

    # -- their lives -----------------------------------------------------------------------------

    def start(self) -> Self:
        """Start those that are down, the controller first; come back when all are part of the cluster."""
        controller, *others = self._members
        if not controller.is_alive:
            controller.start()
        _each([broker.start for broker in others if not broker.is_alive])
        return self

    def stop(self) -> None:
        """Stop all, the controller last. Data and ports are kept."""
        controller, *others = self._members
        _each([broker.stop for broker in others])
        controller.stop()

    def close(self) -> None:
        """Stop all and leave nothing behind (but a data folder that was named)."""
        _each([broker.close for broker in self._members[1:]])
        if self._members:
            self._members[0].close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- what there is to know, and to ask -------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """host:port of all brokers, with commas between them; the same over restarts."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def has_separate_controller(self) -> bool:
        return self._members is not self.brokers

    @property
    def controller(self) -> ClusterBroker:
        """The process that elects leaders and makes changes: node 0, or the first broker if that is it as well."""
        return self._members[0]

    def broker(self, node_id: int) -> ClusterBroker:
        """A broker by its number: 1 for the first one."""
        return self.brokers[node_id - 1]

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic, without a client; -1: with default.replication.factor. Its name."""
        arguments = {"name": name, "partitions": partitions, "replication_factor": replication_factor}
        return str(self.controller.call("topics.create", **arguments, configs=dict(configs or {})))

    def places(self, topic: str) -> list[dict[str, Any]]:
        """For each partition its leader, leader_epoch, replicas, isr and so on, as the controller knows them."""
        return self.controller.places(topic)


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
            self._options["headrace.controller"] = self._way_to(self._controller)
        return super().start()

    def close(self) -> None:
        super().close()
        if self._to_controller is not None:
            self._to_controller.close()
            self._to_controller = None

    def isolate(self) -> None:
        """Cut it off: nobody reaches it, and it does not reach the controller, until `heal`."""
        self.degrader.cut()
        if self._to_controller is not None:
            self._to_controller.cut()

    def heal(self) -> None:
        """End what `isolate` began."""
        self.degrader.heal()
        if self._to_controller is not None:
            self._to_controller.heal()

    @property
    def way_to_controller(self) -> Degrader:
        """The network between this broker and the controller, to be spoilt: with `degraded=True`, once it runs."""
        if self._to_controller is None:
            raise IllegalStateError(
                "there is such a way only in EmbeddedCluster(degraded=True), from a broker that runs"
            )
        return self._to_controller

    def _way_to(self, controller: ClusterBroker) -> str:
        if not self._degraded:
            return controller.inner_address
        if self._to_controller is None:
            from headrace.broker.degrader import Degrader

            self._to_controller = Degrader(controller.inner_address).start()
        return self._to_controller.address

    @property
    def inner_address(self) -> str:
        """Where other brokers reach it: at the listener that is named for them, or where clients do."""
        name = self._options.get("inter.broker.listener.name")
        if name is None or self._ready is None:
            return self.bootstrap
        return self._ready.listeners[str(name).upper()]

    @property
    def is_alive(self) -> bool:
        return self.is_running

    def places(self, topic: str) -> list[dict[str, Any]]:
        """For each partition of a topic its leader, replicas, isr and so on, as this broker knows them."""
        places: list[dict[str, Any]] = self.call("topics.describe", name=topic) or []
        return places

    def known_brokers(self) -> dict[int, dict[str, Any]]:
        """The brokers of the cluster by node id, as this one knows them: epoch, listeners, fenced and so on."""
        return {row["node_id"]: row for row in self.call("brokers")}


def defaults(count: int) -> dict[str, object]:
    """Options that let topics, also the internal ones, have as many copies as make sense."""
    copies = min(COPIES, count)
    enough = 2 if copies >= COPIES else 1
    return {
        "default.replication.factor": copies,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": enough,
        "min.insync.replicas": enough,
    }


def _port(node_id: int, ports: Sequence[int] | None, controller_port: int) -> int:
    if node_id == SEPARATE:
        return controller_port
    return 0 if ports is None else ports[node_id - 1]


def _check_listeners(listeners: object) -> None:
    """Several processes cannot listen on one port."""
    texts = listeners.split(",") if isinstance(listeners, str) else listeners
    for text in texts if isinstance(texts, list | tuple) else ():
        if not str(text).endswith(":0"):
            raise ConfigError(
                f"listeners={text}: all brokers of the cluster would listen on this port. Give it port 0, and each "
                "broker a port with ports=[…] (on the command line, with --listen)"
            )


def _each(calls: Sequence[Any]) -> None:
    """Do them all at the same time, and wait for all, also if one fails."""
    if not calls:
        return
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()
