"""A broker with its control socket and run file, started and stopped together.

    start: folder → broker → schema registry, if wanted → control socket → run file      stop: in reverse order

The process (main.py) or thread (runners.py) that runs it waits for `stopping`, which the control socket can set.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from headrace import __version__
from headrace.broker.broker import Broker
from headrace.broker.broker_options import data_folder
from headrace.broker.control import ControlServer, Operation, RunningBroker, remove_run_file, write_run_file
from headrace.broker.ports import holder_of
from headrace.broker.tasks import failures
from headrace.config import Config
from headrace.errors import ConfigError, IllegalStateError

if TYPE_CHECKING:
    from headrace.broker.client_metrics.exposition import MetricsService
    from headrace.broker.registry.service import RegistryService

STOP_SECONDS_MAX = 30.0
STATUS_TOPICS_MAX = 100
"""Topics in the status: those with the most bytes. The metrics have all."""
REGISTRY_LISTENER = "headrace.schema.registry.listener"
METRICS_LISTENER = "headrace.metrics.listener"


class Service:
    """A broker and its control socket. Event loop only."""

    def __init__(self, config: Config, *, may_crash: bool = True) -> None:
        self._config = config
        self._data_dir = data_folder(config).absolute()
        self._broker = Broker(config)
        faults = self._broker.faults
        faults.may_crash = may_crash
        faults.topic_name = self._topic_name
        self._control = ControlServer(self._data_dir, self._operations())
        self._registry: RegistryService | None = None
        self._metrics: MetricsService | None = None
        self._started = time.monotonic()
        self._ready: RunningBroker | None = None
        self.stopping = asyncio.Event()

    async def start(self) -> RunningBroker:
        """Start the broker. Raises an error with the reason if that fails."""
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot create the data folder {self._data_dir}: {error.strerror}") from error
        try:
            await self._broker.start()
            listener = self._config.optional(str, REGISTRY_LISTENER)
            registry_url = None if listener is None else await self._start_registry(listener)
            metrics_listener = self._config.optional(str, METRICS_LISTENER)
            metrics_url = None if metrics_listener is None else await self._start_metrics(metrics_listener)
        except Exception as error:
            # Release what a failed start holds, such as the folder lock: this process may continue.
            with suppress(Exception):
                await self._broker.stop()
            if isinstance(error, OSError | ConfigError):
                raise _explained(error, self._config) from error
            raise
        await self._control.start()
        self._ready = RunningBroker(
            bootstrap=self._broker.listeners[0].address,
            listeners={listener.name: f"{listener.host}:{listener.port}" for listener in self._broker.listeners},
            pid=os.getpid(),
            data_dir=str(self._data_dir),
            control=str(self._control.path),
            schema_registry=registry_url,
            metrics=metrics_url,
        )
        write_run_file(self._data_dir, self._ready.to_json() | {"version": __version__})
        return self._ready

    async def _start_registry(self, listener: str) -> str:
        """Start the schema registry; return its URL."""
        from headrace.broker.registry.service import RegistryService  # most brokers have none: start-up time

        if self._registry is None:
            registry = RegistryService(self._broker)
            await registry.start(listener)
            self._registry = registry
        return self._registry.url

    async def _start_metrics(self, listener: str) -> str:
        """Start the metrics listener; return its URL."""
        from headrace.broker.client_metrics.exposition import MetricsService  # most brokers have none: start-up time

        self._metrics = MetricsService(self._broker)
        await self._metrics.start(listener)
        return self._metrics.url

    async def _add_registry(self, arguments: dict[str, Any]) -> str:
        """Start the schema registry of a running broker, for fixtures; return its URL."""
        assert self._ready is not None
        url = await self._start_registry(str(arguments["listener"]))
        self._ready = replace(self._ready, schema_registry=url)
        write_run_file(self._data_dir, self._ready.to_json() | {"version": __version__})
        return url

    async def stop(self) -> None:
        """Stop cleanly, within a time limit."""
        self._broker.faults.release()
        remove_run_file(self._data_dir)
        await self._control.stop()
        if self._registry is not None:
            await self._registry.stop()
        if self._metrics is not None:
            await self._metrics.stop()
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self._broker.stop()
        except TimeoutError:
            raise IllegalStateError(f"timed out after {STOP_SECONDS_MAX:g} s waiting for the broker to stop") from None

    def _topic_name(self, topic_id: bytes) -> str | None:
        topic = self._broker.catalog.topics.by_id.get(topic_id)
        return None if topic is None else topic.name

    def _operations(self) -> dict[str, Operation]:
        faults = self._broker.faults
        return {
            "ping": lambda arguments: "pong",
            "status": self._status,
            "stop": lambda arguments: self.stopping.set(),
            "faults.inject": lambda arguments: faults.inject(**arguments).to_json(),
            "faults.list": lambda arguments: [rule.to_json() for rule in faults.list()],
            "faults.remove": lambda arguments: faults.remove(arguments.get("id", 0)),
            "faults.clear": lambda arguments: faults.clear(),
            "topics.create": self._create_topic,
            "topics.delete": self._delete_topic,
            "topics.describe": self._describe_topic,
            "brokers": self._brokers,
            "schema-registry.start": self._add_registry,
            "clients": lambda arguments: [instance.to_json() for instance in self._broker.client_instances.all()],
            "clients.metrics": lambda arguments: self._broker.client_instances.points_to_json(str(arguments.get("id"))),
        }

    def _status(self, arguments: dict[str, Any]) -> dict[str, Any]:
        assert self._ready is not None
        topics = self._broker.catalog.topics.by_name.values()
        return self._ready.to_json() | {
            "version": __version__,
            "uptime_ms": int((time.monotonic() - self._started) * 1000),
            "cluster_id": self._broker.catalog.identity.cluster_id,
            "topics": sum(1 for topic in topics if not topic.is_internal),
            "partitions": sum(len(topic.partitions) for topic in topics),
            "connections": len(self._broker.server.connections),
            "faults": len(self._broker.faults.list()),
            "task_failures": failures(),
            "damaged": self._broker.logs.damages(),
            "catalog": self._catalog_state(),
            "leaderless": [
                asdict(partition) | {"text": str(partition)} for partition in self._broker.catalog.topics.leaderless()
            ],
            "strays": [
                {"folder": str(stray.folder), "reason": stray.reason} for stray in self._broker.logs.strays.values()
            ],
            **self._broker.server.counters(),
            "request_statistics": self._broker.statistics.request_rows(),
            "share_group_statistics": self._broker.share_group_rows(),
            "topic_statistics": self._broker.statistics.topic_rows(STATUS_TOPICS_MAX),
        }

    def _catalog_state(self) -> dict[str, Any]:
        catalog, cluster = self._broker.catalog, self._broker.cluster
        return {
            "epoch": catalog.epochs.last,
            "offset": catalog.offset,
            "problem": None if cluster is None else cluster.catalog_problem,
        }

    async def _create_topic(self, arguments: dict[str, Any]) -> str:
        """Create a topic without a client, for fixtures."""
        configs = {str(name): str(value) for name, value in arguments.get("configs", {}).items()}
        name = str(arguments["name"])
        partitions, replication_factor = int(arguments.get("partitions", 1)), arguments.get("replication_factor", 1)
        self._broker.topic_manager.create(name, partitions, int(replication_factor), configs)
        if self._broker.cluster is not None:
            await self._broker.cluster.wait_propagated()
        return name

    def _describe_topic(self, arguments: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Return the state of the partitions of a topic as this broker knows it; None if it is unknown."""
        topic = self._broker.catalog.topics.by_name.get(arguments["name"])
        return None if topic is None else [asdict(partition) for partition in topic.partitions]

    def _brokers(self, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the brokers of the cluster as this broker knows them; none if it is standalone."""
        return [asdict(broker) for _, broker in sorted(self._broker.catalog.brokers.by_id.items())]

    def _delete_topic(self, arguments: dict[str, Any]) -> bool:
        topic = self._broker.catalog.topics.by_name.get(arguments["name"])
        if topic is not None:
            self._broker.topic_manager.delete(topic)
        return topic is not None


def _explained(error: OSError | ConfigError, config: Config) -> Exception:
    """Return the error of a failed start, with the process that uses the port if it is in use."""
    cause = error.__cause__ if isinstance(error, ConfigError) else error
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return IllegalStateError(
            f"the broker could not start: the disk of its data folder {data_folder(config).absolute()} is full "
            f"({cause}): free some space and start it again"
        )
    if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
        return error if isinstance(error, ConfigError) else IllegalStateError(f"the broker could not start: {error}")
    http = (config.optional(str, name) for name in (REGISTRY_LISTENER, METRICS_LISTENER))
    for listener in (*config.of(tuple, "listeners"), *filter(None, http)):
        port = listener.rpartition(":")[2]
        if holder := holder_of(int(port)):
            return IllegalStateError(
                f"cannot listen on {listener}: port {port} is used by {holder}; choose another port, or stop that "
                "process"
            )
    return IllegalStateError(f"{error}; choose another port, or stop the process that uses it")
