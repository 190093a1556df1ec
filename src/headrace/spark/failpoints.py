"""Failpoints, for tests only: named points of the commit protocol at which a process is killed, fails or waits.

    option headrace.failpoints = "decide.written=kill-driver, end.between=raise"      and HEADRACE_FAILPOINTS=1

An action is done once: a marker file keeps a restarted process from doing it again. The folder of the marker files is
`markers=FOLDER` in the option, or HEADRACE_FAILPOINTS_DIR. `name=action*` is done every time.

`trace=FILE` appends to a trace of the commit protocol (tracing.py).

`hold` waits for the test: the marker file shows that the failpoint is reached, and the test then writes `name.go` next
to it, with another action, or empty to continue.

Reports do not use failpoints: see telemetry/listeners.py.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import NoReturn

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.holders import nearest_jvm

ENABLED, FOLDER = "HEADRACE_FAILPOINTS", "HEADRACE_FAILPOINTS_DIR"
SLEEP_SECONDS_MAX = 600.0
HOLD_POLL_SECONDS = 0.02
MARKERS, TRACE = "markers", "trace"

FAILPOINTS = {
    # On an executor.
    "task.begin": "before the task's transaction is begun",
    "task.sent": "some rows are sent, not all",
    "task.flushed": "all rows are acknowledged, the transaction is open, the report is not sent",
    # On the driver, in commit().
    "begin.fence": "before the sink lock is taken",
    "begin.read": "the lock is taken, the decisions are not read",
    "begin.held": "a new run holds the sink, and has done nothing else",
    "begin.finish": "an unfinished decision is read, and not carried out yet",
    "begin.abort": "before the leftovers of older runs are aborted",
    "begin.done": "the run has begun, this batch is not checked",
    "check.done": "all transactions of the batch are open",
    "decide.begin": "before the decision is written",
    "decide.rows": "inline rows are written, the decision is not",
    "decide.written": "rows and decision are written, not committed",
    "decide.done": "decided, no transaction is ended",
    "end.between": "the first of several transactions is ended",
    "end.done": "all are ended, the decision is not marked as finished",
    "redo.begin": "a decided transaction has expired, and is not redone yet",
    "redo.written": "its rows are written again, not committed",
    "redo.done": "its rows are committed again",
    "finish.done": "the decision is marked as finished",
    "replay.abort": "a batch is a replay, and its new transactions are not aborted yet",
    "abort.begin": "abort() is called, and has done nothing",
}
"""Name → the state of the commit when it is reached."""

ACTIONS = "kill, kill-driver, raise, hold, sleep:SECONDS"


class FailpointError(HeadraceError):
    """Raised by the action `raise`."""


class Failpoints:
    """The failpoints of a test and their actions. Without any, `reach` is one lookup in an empty dictionary."""

    def __init__(self, given: str) -> None:
        self._actions: dict[str, str] = {}
        self._folder = os.environ.get(FOLDER)
        self.trace = ""
        if given and os.environ.get(ENABLED) != "1":
            raise ConfigError(f"headrace.failpoints is for tests: leave it out, or set {ENABLED}=1 in the environment")
        for item in filter(None, (part.strip() for part in given.split(","))):
            name, _, action = item.partition("=")
            if name == MARKERS:
                self._folder = action
                continue
            if name == TRACE:
                self.trace = action
                continue
            kind = action.rstrip("*").partition(":")[0]
            if name not in FAILPOINTS or kind not in ("kill", "kill-driver", "raise", "hold", "sleep"):
                raise ConfigError(
                    f"invalid headrace.failpoints: expected name=action, with a name of {', '.join(FAILPOINTS)} and an "
                    f"action of {ACTIONS}, got {item!r}"
                )
            self._actions[name] = action

    def reach(self, name: str) -> None:
        """Do the action of a failpoint, if it has one. Called at every failpoint of the table."""
        action = self._actions.get(name)
        if action is None or not (action.endswith("*") or self._first_time(name)):
            return
        action = action.rstrip("*")
        _act(name, self._wait_for_go(name) if action == "hold" else action)

    def _first_time(self, name: str) -> bool:
        try:
            (self._markers() / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _wait_for_go(self, name: str) -> str:
        """Return the action in the file `name.go`, when the test has written it."""
        go_file = self._markers() / f"{name}.go"
        deadline = time.monotonic() + SLEEP_SECONDS_MAX
        while not go_file.exists() and time.monotonic() < deadline:
            time.sleep(HOLD_POLL_SECONDS)
        return go_file.read_text().strip() if go_file.exists() else ""

    def _markers(self) -> Path:
        if self._folder is None:
            raise ConfigError(f"a failpoint that acts once needs a folder for its marker file: set {FOLDER}")
        return Path(self._folder)


def _act(name: str, action: str) -> None:
    kind, _, argument = action.partition(":")
    if kind == "sleep":
        time.sleep(min(float(argument), SLEEP_SECONDS_MAX))
    elif kind == "raise":
        raise FailpointError(f"failpoint {name}: {FAILPOINTS[name]}")
    elif kind:
        if kind == "kill-driver":
            _kill_driver()
        _kill_self()


NO_FAILPOINTS = Failpoints("")


def _kill_self() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("the process has survived SIGKILL")


def _kill_driver() -> None:
    """Kill the nearest Java process among the ancestors: the driver, if this process is one of its Python workers."""
    driver = nearest_jvm()
    if driver is not None:
        os.kill(driver, signal.SIGKILL)
