"""The side door of a broker of ours, found by its data folder: faults, counters, the brokers of a cluster.

The run file is read for every call: a broker that was started again has another process, perhaps another socket.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.broker import control
from headrace.errors import ConnectionFailedError


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
