"""Places to die at, for tests: every arrow of the commit protocol has a name here.

    option headrace.failpoints = "decide.written=kill-driver, end.between=raise"      and HEADRACE_FAILPOINTS=1

An action happens once: a marker in the folder HEADRACE_FAILPOINTS_DIR keeps a restarted process from dying again.
`name=action*` happens every time.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import NoReturn

from headrace.errors import ConfigError, HeadraceError

ENABLED, FOLDER = "HEADRACE_FAILPOINTS", "HEADRACE_FAILPOINTS_DIR"
SLEEP_SECONDS_MAX = 600.0
ANCESTORS_MAX = 32

FAILPOINTS = {
    # On an executor.
    "task.begin": "before the task's transaction is begun",
    "task.sent": "some rows are sent, not all",
    "task.flushed": "all is written and acknowledged, the transaction is open, the report not on its way",
    # On the driver, in commit().
    "begin.fence": "before older drivers are shut out",
    "begin.read": "older drivers are shut out, the decisions are not read",
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

ACTIONS = "kill, kill-driver, raise, sleep:SECONDS"


class FailpointError(HeadraceError):
    """Raised on purpose."""


class Failpoints:
    """What to do where. Without any, reaching one costs a look into an empty dictionary."""

    def __init__(self, given: str) -> None:
        self._actions: dict[str, str] = {}
        if given and os.environ.get(ENABLED) != "1":
            raise ConfigError(f"headrace.failpoints is set, but {ENABLED}=1 is not in the environment: it is for tests")
        for item in filter(None, (part.strip() for part in given.split(","))):
            name, _, action = item.partition("=")
            kind = action.rstrip("*").partition(":")[0]
            if name not in FAILPOINTS or kind not in ("kill", "kill-driver", "raise", "sleep"):
                raise ConfigError(
                    f"headrace.failpoints has {item!r}; it may be name=action, with a name of {', '.join(FAILPOINTS)} "
                    f"and an action of {ACTIONS}"
                )
            self._actions[name] = action

    def reach(self, name: str) -> None:
        """Called at every place of the table."""
        action = self._actions.get(name)
        if action is None:
            return
        if not action.endswith("*") and not _first_time(name):
            return
        kind, _, argument = action.rstrip("*").partition(":")
        if kind == "sleep":
            time.sleep(min(float(argument), SLEEP_SECONDS_MAX))
        elif kind == "raise":
            raise FailpointError(f"failpoint {name}: {FAILPOINTS[name]}")
        else:
            if kind == "kill-driver":
                _kill_driver()
            _kill_self()


NO_FAILPOINTS = Failpoints("")


def _first_time(name: str) -> bool:
    folder = os.environ.get(FOLDER)
    if folder is None:
        raise ConfigError(f"a failpoint that happens once needs a folder for its marker: set {FOLDER}")
    try:
        (Path(folder) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _kill_self() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived")


def _kill_driver() -> None:
    """Kill the nearest Java process above this one: that is the driver where this runs in the driver's workers."""
    pid = os.getpid()
    for _ in range(ANCESTORS_MAX):
        pid = _parent(pid)
        if pid <= 1:
            return
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            os.kill(pid, signal.SIGKILL)
            return


def _parent(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("PPid:"):
            return int(line.split()[1])
    return 0
