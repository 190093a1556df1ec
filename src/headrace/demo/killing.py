"""The three kills: a worker, the driver, the broker. Each has work in its hands, and each is seen to be dead."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from headrace.demo.handle import DriverHandle
from headrace.demo.outcome import BROKER, DRIVER, WORKER, Kill
from headrace.demo.processes import find
from headrace.demo.stage import DemoError, Stage

WHEN_VISIBLE = {WORKER: 0.10, DRIVER: 0.35, BROKER: 0.65}
"""What share of the rows readers have when each has its turn."""
TRIES_MAX = 8
"""A worker may be hit between two tasks, which proves nothing: then another one is."""
BROKER_DOWN_SECONDS = 1.0
SETTLE_SECONDS = 0.25
"""Rows that come in so soon after a kill were committed before it, and on their way to the reader."""
TURN_SECONDS_MAX = 240.0
MOMENT_SECONDS_MAX = 60.0
DEATH_SECONDS_MAX = 10.0
BACK_SECONDS_MAX = 120.0
FIRST_RECORDS_SECONDS_MAX = 0.05
WORKERS_SECONDS_MAX = 0.3
IDLE_SECONDS_MIN = 0.05
"""Who has slept for so long had nothing to do: a task never waits for its rows as long as that."""
_MOMENT_POLL_SECONDS = 0.002


def kill_worker(stage: Stage) -> None:
    """A Python process in the middle of a task. Spark runs the task again; the dead one's records are never seen."""
    _await_turn(stage, WORKER)
    workers = Workers(stage.driver)
    for _ in range(TRIES_MAX):
        pid = stage.until(
            "a worker had begun a task",
            workers.beginner,
            MOMENT_SECONDS_MAX,
            poll_s=_MOMENT_POLL_SECONDS,
            within_stream=True,
        )
        open_records = _await_first_records(stage)
        commits_before = len(stage.outcome.commits)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        kill = _dead(stage, WORKER, pid, open_records)
        stage.until(
            "the batch was committed",
            lambda: stage.outcome.commits[commits_before:],  # noqa: B023 - asked before the next round
            BACK_SECONDS_MAX,
        )
        if stage.outcome.commits[commits_before].had_retries:
            kill.note = f"its task of batch {stage.outcome.commits[commits_before].batch} was run again"
            stage.outcome.kills.append(kill)
            stage.teller.killed(kill)
            _await_flow(stage, kill)
            return
        stage.teller.note(f"worker {pid} was between two tasks when it was killed: once more")
    raise DemoError(f"in {TRIES_MAX} tries no worker was killed in the middle of a task. Use more --rows")


def kill_driver(stage: Stage) -> None:
    """Python and Java of the driver, with a batch half written. Another one goes on from the checkpoint."""
    _await_turn(stage, DRIVER)
    driver = stage.driver
    driver.note_family()
    open_records = _await_open_records(stage)
    driver.kill()
    kill = _dead(stage, DRIVER, driver.pid, open_records)
    stage.take_commits()
    kill.note = "started again from its checkpoint"
    stage.outcome.kills.append(kill)
    stage.teller.killed(kill)
    stage.teller.step("starting the driver again")
    stage.start_driver()
    stage.teller.step("the stream runs again")
    _await_flow(stage, kill)


def kill_broker(stage: Stage) -> None:
    """Our own one only, with a batch half written. It is started again on its data; everybody finds it again."""
    broker = stage.cluster.broker
    if broker is None:
        stage.outcome.kills.append(Kill(BROKER, note="left alone: it is not the demo's"))
        stage.teller.note(f"{stage.cluster.name} is not the demo's: no broker is killed")
        return
    _await_turn(stage, BROKER)
    open_records = _await_open_records(stage)
    kill = _dead(stage, BROKER, stage.cluster.kill_broker(), open_records)
    kill.note = f"down for {BROKER_DOWN_SECONDS:g} s, started again on its data"
    stage.outcome.kills.append(kill)
    stage.teller.killed(kill)
    stage.pause(BROKER_DOWN_SECONDS)
    broker.start()
    _await_flow(stage, kill)


class Workers:
    """The Python processes that run the tasks of a driver."""

    def __init__(self, driver: DriverHandle) -> None:
        self._driver = driver
        self._ran_at_s: dict[int, float] = {}
        self._looked_at_s = 0.0

    def beginner(self) -> int | None:
        """One that has just woken up: it has got a task. Who has run for a while may be cleaning up after one."""
        now_s = time.monotonic()
        if now_s - self._looked_at_s > WORKERS_SECONDS_MAX:  # all processes of the machine: not every time
            self._ran_at_s = {one.pid: self._ran_at_s.get(one.pid, now_s) for one in self._driver.workers()}
            self._looked_at_s = now_s
        found: int | None = None
        for pid, ran_at_s in self._ran_at_s.items():
            process = find(pid)
            if process is not None and process.state == "R":
                self._ran_at_s[pid] = now_s
                if now_s - ran_at_s > IDLE_SECONDS_MIN:
                    found = pid
        return found


def _await_turn(stage: Stage, what: str) -> None:
    share = WHEN_VISIBLE[what]
    stage.until(f"the {what} had its turn", lambda: stage.visible_share >= share, TURN_SECONDS_MAX, within_stream=True)


def _await_open_records(stage: Stage) -> int:
    """The moment when rows are written and not committed. It lasts milliseconds, so it is asked for often."""
    return stage.until(
        "a batch was half written",
        stage.open_records.count,
        MOMENT_SECONDS_MAX,
        poll_s=_MOMENT_POLL_SECONDS,
        within_stream=True,
    )


def _await_first_records(stage: Stage) -> int:
    """A worker that dies with nothing sent makes no trouble: give the batch a moment to get to the topic."""
    deadline_s = stage.now_s() + FIRST_RECORDS_SECONDS_MAX
    while not (count := stage.open_records.count()) and stage.now_s() < deadline_s:
        stage.pause(_MOMENT_POLL_SECONDS)
    return count


def _dead(stage: Stage, what: str, pid: int, open_records: int) -> Kill:
    """A kill that is seen to be one."""
    kill = Kill(what, pid, stage.now_s(), open_records)
    deadline_s = stage.now_s() + DEATH_SECONDS_MAX
    while find(pid) is not None:
        if stage.now_s() > deadline_s:
            raise DemoError(f"the {what} {pid} was killed, and still runs after {DEATH_SECONDS_MAX:g} s")
        stage.pause(_MOMENT_POLL_SECONDS)
    return kill


def _await_flow(stage: Stage, kill: Kill) -> None:
    """How long readers had to wait for new rows."""
    grown_at_s = stage.until(
        f"new rows after the {kill.what} was killed",
        lambda: stage.seen.grown_after(stage.monotonic_s(kill.at_s + SETTLE_SECONDS)),
        BACK_SECONDS_MAX,
    )
    kill.back_s = stage.at_s(grown_at_s) - kill.at_s
    stage.teller.flows(kill)
