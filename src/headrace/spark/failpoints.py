"""Places to die at, for tests: every arrow of the commit protocol has a name here.

    option headrace.failpoints = "decide.written=kill-driver, end.between=raise"      and HEADRACE_FAILPOINTS=1

An action happens once: a marker keeps a restarted process from dying again. It lies in the folder that `markers=FOLDER`
among the failpoints names, or HEADRACE_FAILPOINTS_DIR. `name=action*` happens every time.

`hold` waits for orders: the marker says that the place is reached, and a file beside it, `name.go`, what to do then (an
action, or nothing: go on).
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
MARKERS = "markers"

FAILPOINTS = {
    # On an executor.
    "task.begin": "before the task's transaction is begun",
    "task.sent": "some rows are sent, not all",
    "task.flushed": "all is written and acknowledged, the transaction is open, the report not on its way",
    # On the driver, in commit().
    "begin.fence": "before the lock of the ledger is taken",
    "begin.read": "the lock is taken, the decisions are not read",
    "begin.held": "a new run holds the sink, nothing else is done",
    "begin.finish": "an unfinished decision was found, nothing is done about it",
    "begin.abort": "before the leftovers of older runs are aborted",
    "begin.done": "begun, nothing of this batch is done",
    "check.done": "all open transactions were found alive",
    "decide.begin": "before anything of the decision is written",
    "decide.rows": "inline rows are written, the decision is not",
    "decide.written": "rows and decision are written, not committed",
    "decide.done": "decided, no transaction is ended",
    "end.between": "one transaction of several is ended",
    "end.done": "all are ended, the decision is not marked as finished",
    "redo.begin": "a decided transaction was found aborted, nothing is done about it",
    "redo.written": "its rows are written again, not committed",
    "redo.done": "its rows are committed again",
    "finish.done": "the decision is marked as finished",
    "replay.abort": "a batch that was decided before came again: its new transactions are not aborted yet",
    "abort.begin": "abort() was called, nothing is done",
}
"""Name → what has happened when it is reached."""

ACTIONS = "kill, kill-driver, raise, hold, sleep:SECONDS"


class FailpointError(HeadraceError):
    """Raised on purpose."""


class Failpoints:
    """What to do where. Without any, reaching one costs a look into an empty dictionary."""

    def __init__(self, given: str) -> None:
        self._actions: dict[str, str] = {}
        self._folder = os.environ.get(FOLDER)
        if given and os.environ.get(ENABLED) != "1":
            raise ConfigError(f"headrace.failpoints is set, but {ENABLED}=1 is not in the environment: it is for tests")
        for item in filter(None, (part.strip() for part in given.split(","))):
            name, _, action = item.partition("=")
            if name == MARKERS:
                self._folder = action
                continue
            kind = action.rstrip("*").partition(":")[0]
            if name not in FAILPOINTS or kind not in ("kill", "kill-driver", "raise", "hold", "sleep"):
                raise ConfigError(
                    f"headrace.failpoints has {item!r}; it may be name=action, with a name of {', '.join(FAILPOINTS)} "
                    f"and an action of {ACTIONS}"
                )
            self._actions[name] = action

    def reach(self, name: str) -> None:
        """Called at every place of the table."""
        action = self._actions.get(name)
        if action is None or not (action.endswith("*") or self._first_time(name)):
            return
        action = action.rstrip("*")
        _act(name, self._order(name) if action == "hold" else action)

    def _first_time(self, name: str) -> bool:
        try:
            (self._markers() / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _order(self, name: str) -> str:
        order = self._markers() / f"{name}.go"
        deadline = time.monotonic() + SLEEP_SECONDS_MAX
        while not order.exists() and time.monotonic() < deadline:
            time.sleep(HOLD_POLL_SECONDS)
        return order.read_text().strip() if order.exists() else ""

    def _markers(self) -> Path:
        if self._folder is None:
            raise ConfigError(f"a failpoint that happens once needs a folder for its marker: set {FOLDER}")
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
    raise AssertionError("survived")


def _kill_driver() -> None:
    """Kill the nearest Java process above this one: that is the driver where this runs in the driver's workers."""
    driver = nearest_jvm()
    if driver is not None:
        os.kill(driver, signal.SIGKILL)
