"""The supervisor of `headrace broker start --brokers N`: starts, monitors and stops a cluster from one process.

    start: brokers → control socket → run file      stop: in reverse order

Each broker has a subfolder with a control socket, so that it can be controlled separately. The brokers stop when
this process ends for any reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.broker.control import (
    ControlServer,
    Operation,
    RunningBroker,
    call,
    read_run_file,
    remove_run_file,
    write_run_file,
)
from headrace.broker.embedded_cluster import ClusterBroker, EmbeddedCluster
from headrace.broker.statistics import merged
from headrace.errors import ConfigError, HeadraceError, IllegalStateError

log = logging.getLogger("headrace.broker")

WATCH_SECONDS = 0.5
_SIGNALLED = 128  # shells add this to the number of the signal
_SUMMED = ("connections", "faults", "requests", "failed_requests", "received_bytes", "sent_bytes")


class Supervisor:
    """Runs a cluster in the foreground."""

    def __init__(self, cluster: EmbeddedCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._started = time.monotonic()
        self._ready: RunningBroker | None = None
        self._down: set[int] = set()  # node ids that were reported
        self._stopping = asyncio.Event()

    async def run(self, announce: Callable[[RunningBroker], None]) -> None:
        """Run until stopped by a signal or the control socket. A second signal exits at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot create the data folder {self._folder}: {error.strerror}") from error
        operations: dict[str, Operation] = {
            "ping": lambda _: "pong",
            "status": self._status,
            "stop": lambda _: self._stopping.set(),
            "brokers.kill": self._kill,
            "brokers.start": self._start,
        }
        try:
            await asyncio.to_thread(self._cluster.start)  # fails if another cluster has locked the folders
            await self._serve(ControlServer(self._folder, operations), announce)
        finally:
            await asyncio.to_thread(self._cluster.close)

    async def _serve(self, control: ControlServer, announce: Callable[[RunningBroker], None]) -> None:
        try:
            await control.start()
            self._ready = self._facts(control.path)
            write_run_file(self._folder, self._ready.to_json() | {"version": __version__})
            announce(self._ready)
            await self._watch()
        finally:
            remove_run_file(self._folder)
            await control.stop()

    def _facts(self, control: Path) -> RunningBroker:
        return RunningBroker(
            bootstrap=self._cluster.bootstrap_servers,
            listeners={self._name(member): member.bootstrap for member in self._members},
            pid=os.getpid(),
            data_dir=str(self._folder),
            control=str(control),
        )

    @property
    def _members(self) -> list[ClusterBroker]:
        """All processes: the brokers, and the controller if it is separate."""
        cluster = self._cluster
        return [*cluster.brokers, cluster.controller] if cluster.has_separate_controller else cluster.brokers

    def _name(self, member: ClusterBroker) -> str:
        return f"broker-{member.node_id}" if member in self._cluster.brokers else "controller"

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            os._exit(_SIGNALLED + number)
        self._stopping.set()

    async def _watch(self) -> None:
        """Log when a broker exits; the others continue."""
        while not self._stopping.is_set():
            for member in self._members:
                if not member.is_running and member.node_id not in self._down:
                    self._down.add(member.node_id)
                    name, tail = self._name(member), member.log_text.strip()
                    log.warning("%s has exited; the others continue. %s", name, tail)
            try:
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def _kill(self, arguments: dict[str, Any]) -> None:
        """Kill a broker."""
        await asyncio.to_thread(self._named(arguments).kill)

    async def _start(self, arguments: dict[str, Any]) -> None:
        """Start a broker; respond when it is a member of the cluster again."""
        broker = self._named(arguments)
        if broker.is_running:
            raise IllegalStateError(f"broker {broker.node_id} is already running on {broker.bootstrap}")
        await asyncio.to_thread(broker.start)
        self._down.discard(broker.node_id)

    def _named(self, arguments: dict[str, Any]) -> ClusterBroker:
        node_id = arguments.get("node_id")
        for member in self._members:
            if member.node_id == node_id:
                return member
        node_ids = ", ".join(str(broker.node_id) for broker in self._cluster.brokers)
        raise ConfigError(f"unknown broker {node_id!r} in this cluster: expected one of {node_ids}")

    async def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        assert self._ready is not None
        rows = await asyncio.gather(*(asyncio.to_thread(_member_status, member) for member in self._members))
        processes = [_process_row(row) for row in rows]
        controller = processes.pop() if self._cluster.has_separate_controller else None
        # The controller if it is running: it has the lowest node id.
        first = min((row for row in rows if row["alive"]), key=lambda row: row["node_id"], default={})
        return self._ready.to_json() | {
            "version": __version__,
            "uptime_ms": int((time.monotonic() - self._started) * 1000),
            **{name: first.get(name) for name in ("cluster_id", "topics", "partitions")},
            **{name: sum(row.get(name, 0) for row in rows) for name in _SUMMED},
            "task_failures": sum((Counter(row.get("task_failures", {})) for row in rows), Counter()),
            "request_statistics": merged((row for each in rows for row in each.get("request_statistics", ())), "api"),
            "topic_statistics": merged((row for each in rows for row in each.get("topic_statistics", ())), "topic"),
            "share_group_statistics": merged(
                (row for each in rows for row in each.get("share_group_statistics", ())), "group"
            ),
            "damaged": [f"broker {row['node_id']}: {text}" for row in rows for text in row.get("damaged", ())],
            "brokers": processes,
            "controller": controller,
            "leaderless": first.get("leaderless", []),
            "strays": [stray for row in rows for stray in row.get("strays", [])],
        }


def _process_row(status: dict[str, Any]) -> dict[str, Any]:
    row = {name: status.get(name) for name in ("node_id", "alive", "bootstrap", "pid", "data_dir")}
    return row | {"catalog_problem": status.get("catalog", {}).get("problem")}


def _member_status(broker: ClusterBroker) -> dict[str, Any]:
    """Return the status of a broker, also if it was restarted with --join; `alive` is False if it does not respond."""
    row: dict[str, Any] = {
        "node_id": broker.node_id,
        "alive": False,
        "bootstrap": broker.bootstrap,
        "pid": None,
        "data_dir": str(broker.data_dir),
    }
    try:
        if broker.is_running:
            return {**row, **broker.status(), "alive": True}
        if (facts := read_run_file(broker.data_dir)) is not None:
            return {**row, **call(facts["control"], "status"), "alive": True}
    except HeadraceError:
        pass
    return row
