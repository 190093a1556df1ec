"""The control socket of a headrace broker or cluster, found by its data folder: faults, counters, kill and start.

    control socket of a broker  ─► its faults          of a cluster ─► its brokers ─► the socket of each ─► its faults

Nothing here goes through the Kafka protocol or the collector: the cluster may be failing on purpose.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.broker import control
from headrace.errors import ConnectionFailedError, HeadraceError, NotFoundError

FRESH_SECONDS = 0.5
"""A status that is younger than this is not fetched again: several pages may be open."""
CALL_SECONDS_MAX = 3.0
START_SECONDS_MAX = 12.0
SINGLE_BROKER = "the broker"


class BrokerControl:
    """Client of the control socket of the broker, or cluster, that runs on a data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def call(self, op: str, **arguments: Any) -> Any:
        """Call an operation and return its result; raise ConnectionFailedError if no broker runs there. Blocks.

        The run file is read for every call: a restarted broker may have another socket.
        """
        facts = control.read_run_file(self.folder)
        if facts is None:
            raise ConnectionFailedError(
                f"no broker is running on {self.folder}; start one with `headrace broker start`"
            )
        return control.call(facts["control"], op, **arguments)


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A headrace broker and its faults."""

    name: str
    node_id: int | None
    """None for a single broker, which cannot be killed or started here."""
    is_alive: bool
    address: str
    pid: int | None
    folder: Path
    rules: tuple[dict[str, Any], ...] = ()
    problem: str | None = None


class FaultControl:
    """Faults of all brokers behind a control socket. Thread-safe."""

    def __init__(self, control: BrokerControl) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._fetched_at = float("-inf")
        self._brokers: tuple[BrokerStatus, ...] = ()

    def brokers(self) -> tuple[BrokerStatus, ...]:
        """Return all brokers with their faults. Blocks; raises if no broker is running."""
        with self._lock:
            if time.monotonic() - self._fetched_at >= FRESH_SECONDS:
                status = self._control.call("status", seconds_max=CALL_SECONDS_MAX)
                rows = status.get("brokers")
                self._brokers = tuple(_status_of(row) for row in ([status] if rows is None else rows))
                self._fetched_at = time.monotonic()
            return self._brokers

    def inject(self, names: Iterable[str], fault: dict[str, Any]) -> int:
        """Inject a fault into brokers; return their number."""
        count = 0
        for broker in self._alive(names):
            BrokerControl(broker.folder).call("faults.inject", **fault)
            count += 1
        return count

    def remove(self, name: str, fault_id: int) -> bool:
        """Remove a fault; return whether it existed."""
        (broker,) = self._alive([name])
        return bool(BrokerControl(broker.folder).call("faults.remove", id=fault_id))

    def clear(self) -> int:
        """Remove all faults of all brokers; return their number."""
        return sum(
            int(BrokerControl(broker.folder).call("faults.clear")) for broker in self._fresh() if broker.is_alive
        )

    def kill(self, node_id: int) -> int:
        """Kill a broker of a cluster with SIGKILL; return its node id."""
        self._control.call("brokers.kill", seconds_max=START_SECONDS_MAX, node_id=node_id)
        self._invalidate()
        return node_id

    def start(self, node_id: int) -> int:
        """Start a broker of a cluster that is down; return its node id."""
        self._control.call("brokers.start", seconds_max=START_SECONDS_MAX, node_id=node_id)
        self._invalidate()
        return node_id

    def _alive(self, names: Iterable[str]) -> list[BrokerStatus]:
        selected = set(names)
        alive = [broker for broker in self._fresh() if broker.name in selected and broker.is_alive]
        if not alive:
            raise NotFoundError(f"none of these brokers is running: {', '.join(sorted(selected))}")
        return alive

    def _fresh(self) -> tuple[BrokerStatus, ...]:
        self._invalidate()
        brokers = self.brokers()
        self._invalidate()  # the caller is about to change it
        return brokers

    def _invalidate(self) -> None:
        self._fetched_at = float("-inf")


def _status_of(row: dict[str, Any]) -> BrokerStatus:
    node_id = row.get("node_id")
    broker = BrokerStatus(
        name=SINGLE_BROKER if node_id is None else f"broker {node_id}",
        node_id=node_id,
        is_alive=row.get("alive", True),
        address=row["bootstrap"],
        pid=row["pid"],
        folder=Path(row["data_dir"]),
    )
    if not broker.is_alive:
        return broker
    rules, problem = [], None
    try:
        rules = BrokerControl(broker.folder).call("faults.list", seconds_max=CALL_SECONDS_MAX)
    except HeadraceError as error:
        problem = str(error)
    return BrokerStatus(
        broker.name, node_id, broker.is_alive, broker.address, broker.pid, broker.folder, tuple(rules), problem
    )
