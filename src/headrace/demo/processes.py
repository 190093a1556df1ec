"""Who runs on this machine: from /proc, or from `ps` where there is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

PS_SECONDS_MAX = 10.0
PROCESSES_MAX = 100_000
_PROC = Path("/proc")


class Process(NamedTuple):
    pid: int
    parent: int
    state: str
    """R: it is running, or wants to. Z: it has ended."""
    command: str


def all_processes() -> list[Process]:
    """All that we may see."""
    if (_PROC / "self" / "stat").exists():
        pids = [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdecimal()]
        found = (_of_proc(pid) for pid in pids[:PROCESSES_MAX])
        return [process for process in found if process is not None]
    done = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,state=,args="],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PS_SECONDS_MAX,
    )
    return [of_ps(line) for line in done.stdout.splitlines()[:PROCESSES_MAX] if line.strip()]


def find(pid: int) -> Process | None:
    """One of them, if it lives."""
    if (_PROC / "self" / "stat").exists():
        found = _of_proc(pid)
    else:
        found = next((process for process in all_processes() if process.pid == pid), None)
    return None if found is None or found.state == "Z" else found


def descendants(pid: int) -> list[Process]:
    """Children, their children, and so on, parents first."""
    by_parent: dict[int, list[Process]] = {}
    for process in all_processes():
        by_parent.setdefault(process.parent, []).append(process)
    found, open_pids = [], [pid]
    while open_pids:
        children = by_parent.pop(open_pids.pop(), [])
        found += children
        open_pids += [child.pid for child in children]
    return found


def spark_workers(driver_pid: int) -> list[Process]:
    """The Python processes that run the tasks of a driver: forks of Spark's daemon for them."""
    family = descendants(driver_pid)
    daemons = {process.pid for process in family if "pyspark.daemon pyspark.worker" in process.command}
    return [process for process in family if process.parent in daemons]


def of_ps(line: str) -> Process:
    """A line of `ps -o pid=,ppid=,state=,args=`."""
    pid, parent, state, *command = line.split(None, 3)
    return Process(int(pid), int(parent), state[:1], command[0] if command else "")


def _of_proc(pid: int) -> Process | None:
    try:
        # Between the parentheses there is a name, which may hold anything.
        state, parent = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        command = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (OSError, ValueError):
        return None  # it has gone meanwhile
    return Process(pid, int(parent), state, command)
