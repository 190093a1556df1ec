"""The side door of a broker of ours, found by its data folder: faults, counters, the brokers of a cluster.

The run file is read for every call: a broker that was started again has another process, perhaps another socket.
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


class Control:
    """Asks the broker, or the cluster, that runs on a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def call(self, op: str, **arguments: Any) -> Any:
        """What it answers; a ConnectionFailedError if nothing runs there. Blocks: not for the event loop."""
        facts = control.read_run_file(self.folder)
        if facts is None:
            raise ConnectionFailedError(f"no broker runs on {self.folder}; `headrace broker start` starts one")
        return control.call(facts["control"], op, **arguments)


FRESH_SECONDS = 0.5
"""What was asked so recently is not asked again: several pages may be open."""
ASK_SECONDS_MAX = 3.0
START_SECONDS_MAX = 12.0
SINGLE = "the broker"


@dataclass(frozen=True, slots=True)
class SeenBroker:
    """A broker of ours; `folder` is how it is found."""

    name: str
    node_id: int | None
    """None: it is no part of a cluster, so nobody can start it again."""
    is_alive: bool
    address: str
    pid: int | None
    folder: Path
    rules: tuple[dict[str, Any], ...] = ()
    problem: str | None = None


class FaultWatch:
    """Asks, and does what is asked for. Threads may share it."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._asked = float("-inf")
        self._seen: tuple[SeenBroker, ...] = ()

    def brokers(self) -> tuple[SeenBroker, ...]:
        """All brokers, with their faults. Blocks; raises if nothing runs there."""
        with self._lock:
            if time.monotonic() - self._asked >= FRESH_SECONDS:
                status = self._control.call("status", seconds_max=ASK_SECONDS_MAX)
                rows = status.get("brokers")
                self._seen = tuple(_seen(row) for row in ([status] if rows is None else rows))
                self._asked = time.monotonic()
            return self._seen

    def inject(self, names: Iterable[str], fault: dict[str, Any]) -> int:
        """Switch a fault on in brokers; in how many."""
        count = 0
        for broker in self._alive(names):
            Control(broker.folder).call("faults.inject", **fault)
            count += 1
        return count

    def remove(self, name: str, fault_id: int) -> bool:
        """Take one away; whether it was there."""
        (broker,) = self._alive([name])
        return bool(Control(broker.folder).call("faults.remove", id=fault_id))

    def clear(self) -> int:
        """Take away all faults of all brokers; how many there were."""
        return sum(int(Control(one.folder).call("faults.clear")) for one in self._fresh() if one.is_alive)

    def kill(self, node_id: int) -> int:
        """End a broker of a cluster as a power cut would; its number."""
        self._control.call("brokers.kill", seconds_max=START_SECONDS_MAX, node_id=node_id)
        self._forget()
        return node_id

    def start(self, node_id: int) -> int:
        """Start a broker of a cluster that is down; its number."""
        self._control.call("brokers.start", seconds_max=START_SECONDS_MAX, node_id=node_id)
        self._forget()
        return node_id

    def _alive(self, names: Iterable[str]) -> list[SeenBroker]:
        wanted = set(names)
        found = [one for one in self._fresh() if one.name in wanted and one.is_alive]
        if not found:
            raise NotFoundError(f"none of these brokers runs: {', '.join(sorted(wanted))}")
        return found

    def _fresh(self) -> tuple[SeenBroker, ...]:
        self._forget()
        found = self.brokers()
        self._forget()  # what is done now will change it
        return found

    def _forget(self) -> None:
        self._asked = float("-inf")


def _seen(row: dict[str, Any]) -> SeenBroker:
    node_id = row.get("node_id")
    broker = SeenBroker(
        name=SINGLE if node_id is None else f"broker {node_id}",
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
        rules = Control(broker.folder).call("faults.list", seconds_max=ASK_SECONDS_MAX)
    except HeadraceError as error:
        problem = str(error)
    return SeenBroker(
        broker.name, node_id, broker.is_alive, broker.address, broker.pid, broker.folder, tuple(rules), problem
    )
