"""The state of a running demo: the current driver, its events, the visible rows; waiting; and the three kills.

Every wait is bounded, ends on a stop request, and fails if the driver has died without being killed by the demo.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headrace.demo.cluster import TIMEOUT_MS, DemoCluster, OpenRecords, VisibleRows
from headrace.demo.driver_process import DemoDriver, Event, find_process
from headrace.demo.orders import FILES_PER_BATCH
from headrace.demo.outcome import BROKER, DRIVER, WORKER, DemoOutcome, Kill
from headrace.errors import HeadraceError

START_SECONDS_MAX = 120.0
TASK_FAILURES_MAX = 4
ARROW_ROWS_MAX = 5_000
"""Smaller than is best for speed: a task then sends several batches between which it can be killed."""
POLL_SECONDS = 0.02
LOG_LINES_SHOWN = 5

KILL_AT_SHARE = {WORKER: 0.10, DRIVER: 0.35, BROKER: 0.65}
"""The share of visible rows at which each process is killed."""
WORKER_ATTEMPTS_MAX = 8
"""A kill that hits a worker between two tasks proves nothing and is repeated."""
BROKER_DOWN_SECONDS = 1.0
SETTLE_SECONDS = 0.25
"""Rows that become visible within this time after a kill were committed before it."""
KILL_SHARE_SECONDS_MAX = 240.0
OPEN_RECORDS_SECONDS_MAX = 60.0
DEATH_SECONDS_MAX = 10.0
RECOVERY_SECONDS_MAX = 120.0
FIRST_RECORDS_SECONDS_MAX = 0.05
WORKERS_REFRESH_SECONDS = 0.3
IDLE_SECONDS_MIN = 0.05
"""A worker that slept longer than this had no task: a task never waits that long for rows."""
_FAST_POLL_SECONDS = 0.002

T = TypeVar("T")


class DemoError(HeadraceError):
    """A step has failed."""


class StoppedError(HeadraceError):
    """The run was stopped on request."""


class ProgressListener(Protocol):
    """Shows the progress of a run. Called from one thread."""

    def step(self, text: str) -> None: ...
    def rows(self, visible: int, total: int) -> None: ...
    def killed(self, kill: Kill) -> None: ...
    def recovered(self, kill: Kill) -> None: ...
    def note(self, text: str) -> None: ...


class DemoRun:
    """The parts of a run while it runs. One thread."""

    def __init__(
        self,
        folder: Path,
        cluster: DemoCluster,
        visible: VisibleRows,
        outcome: DemoOutcome,
        listener: ProgressListener,
        *,
        stop: threading.Event,
        view_url: str | None = None,
    ) -> None:
        self.cluster = cluster
        self.visible = visible
        self.outcome = outcome
        self.listener = listener
        self.open_records = OpenRecords(cluster.client_settings(TIMEOUT_MS), cluster.partitions)
        self._folder = folder
        self._stop = stop
        self._view_url = view_url
        self._driver: DemoDriver | None = None
        self._driver_count = 0
        self._started_at_s = time.monotonic()
        self.batch_events: dict[int, Event] = {}
        self.audit: dict[str, Any] | None = None
        self._is_stream_started = False
        self.is_finished = False

    # -- the driver ------------------------------------------------------------------------------

    @property
    def driver(self) -> DemoDriver:
        assert self._driver is not None
        return self._driver

    def start_driver(self) -> None:
        """Start a driver, which resumes from the checkpoint if there is one, and wait until its stream has begun."""
        self.close_driver()
        self._driver_count += 1
        self._is_stream_started = False
        spark_folder = self._folder / "spark"
        spark_folder.mkdir(exist_ok=True)
        log = self._folder / "logs" / f"driver-{self._driver_count}.log"
        if self._driver_count == 1:
            self._started_at_s = time.monotonic()
        self._driver = DemoDriver(self._driver_settings(spark_folder), spark_folder, log)
        self.wait_for("the start of Spark", lambda: self._is_stream_started, START_SECONDS_MAX)
        if self._driver_count == 1:
            self.outcome.query_at_s = self.now_s()

    def close_driver(self) -> None:
        """Kill the driver and all its processes."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def close(self) -> None:
        self.close_driver()
        self.open_records.close()

    def _driver_settings(self, spark_folder: Path) -> dict[str, Any]:
        config = {
            "spark.local.dir": str(spark_folder),
            "spark.sql.warehouse.dir": str(spark_folder / "warehouse"),
            "spark.sql.shuffle.partitions": str(FILES_PER_BATCH),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS_MAX),
            # The run is too short for the second JIT compiler to pay off.
            "spark.driver.extraJavaOptions": (
                f"-Djava.io.tmpdir={spark_folder} -XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
            ),
        }
        return {
            "source": str(self._folder / "orders"),
            "checkpoint": str(self._folder / "checkpoint"),
            "options": self.cluster.options,
            "topic": self.cluster.topic,
            "master": f"local[{FILES_PER_BATCH},{TASK_FAILURES_MAX}]",
            "config": config,
            "view_url": self._view_url,
        }

    # -- waiting ---------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Return the seconds since the first driver was started."""
        return time.monotonic() - self._started_at_s

    def from_monotonic_s(self, monotonic_s: float) -> float:
        """Convert a time of the monotonic clock to seconds since the first driver was started."""
        return monotonic_s - self._started_at_s

    def to_monotonic_s(self, run_s: float) -> float:
        """Convert seconds since the first driver was started to the monotonic clock."""
        return run_s + self._started_at_s

    @property
    def visible_share(self) -> float:
        return self.visible.count / self.outcome.rows_in

    def wait_for(
        self,
        what: str,
        condition: Callable[[], T | None],
        seconds_max: float,
        *,
        poll_s: float = POLL_SECONDS,
        within_stream: bool = False,
    ) -> T:
        """Poll until the condition is true, and return its value; `within_stream` fails when the stream has ended."""
        deadline = time.monotonic() + seconds_max
        while not (value := condition()):
            self.process_events()
            if within_stream and self.is_finished:
                raise DemoError(
                    f"the stream ended before {what}: this machine is too fast for {self.outcome.rows_in:,} rows; "
                    "use more --rows"
                )
            if time.monotonic() > deadline:
                raise DemoError(f"timed out after {seconds_max:g} s waiting for {what}{self._log_tail_text()}")
            self.sleep(poll_s)
        self.process_events()
        return value

    def sleep(self, seconds: float) -> None:
        """Sleep; raise StoppedError on a stop request."""
        if self._stop.wait(seconds):
            raise StoppedError("stopped")

    def process_events(self) -> None:
        """Process the events of the driver; raise DemoError if the driver or the reader has failed."""
        self.listener.rows(self.visible.count, self.outcome.rows_in)
        if self.visible.error is not None:
            raise DemoError(f"the topic is not readable: {self.visible.error}")
        driver = self._driver
        if driver is None:
            return
        exit_code = driver.exit_code  # before the events: the last ones must not be missed
        for event in driver.events():
            self._apply(event)
        self.collect_commits()
        if exit_code is not None and self.audit is None:
            raise DemoError(f"the driver exited unexpectedly with code {exit_code}{self._log_tail_text()}")

    def collect_commits(self) -> None:
        """Add the commits in the log of the driver, which may be dead."""
        self.outcome.commits += self.driver.commits()

    def _apply(self, event: Event) -> None:
        match event["event"]:
            case "session":
                self.outcome.versions |= {"Spark": event["spark"], "Java": event["java"]}
            case "started":
                self._is_stream_started = True
            case "batch":
                self.batch_events[event["batch"]] = event
            case "finished":
                self.is_finished = True
            case "audited":
                self.audit = {name: value for name, value in event.items() if name != "event"}
            case "failed":
                raise DemoError(f"the driver failed: {event['error']}")

    def _log_tail_text(self) -> str:
        lines = [] if self._driver is None else self._driver.log_tail().splitlines()[-LOG_LINES_SHOWN:]
        return "; end of the driver's log:\n" + "\n".join(lines) if lines else ""


# -- kills -----------------------------------------------------------------------------------------


def kill_worker(run: DemoRun) -> None:
    """Kill a Python worker during a task. Spark repeats the task; the records of the killed one are never visible."""
    _wait_for_share(run, WORKER)
    workers = WorkerWatch(run.driver)
    for _ in range(WORKER_ATTEMPTS_MAX):
        pid = run.wait_for(
            "a worker began a task",
            workers.find_starting,
            OPEN_RECORDS_SECONDS_MAX,
            poll_s=_FAST_POLL_SECONDS,
            within_stream=True,
        )
        open_records = _wait_for_first_records(run)
        commits_before = len(run.outcome.commits)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        kill = _wait_for_death(run, WORKER, pid, open_records)
        run.wait_for(
            "the commit of the batch",
            lambda: run.outcome.commits[commits_before:],  # noqa: B023 - called before the next iteration
            RECOVERY_SECONDS_MAX,
        )
        commit = run.outcome.commits[commits_before]
        if commit.had_retries:
            kill.note = f"its task of batch {commit.batch} was repeated"
            run.outcome.kills.append(kill)
            run.listener.killed(kill)
            _wait_for_recovery(run, kill)
            return
        run.listener.note(f"worker {pid} was killed between two tasks; trying again")
    raise DemoError(f"no worker was killed during a task in {WORKER_ATTEMPTS_MAX} attempts; use more --rows")


def kill_driver(run: DemoRun) -> None:
    """Kill the driver, Python and JVM, while a batch is being written; a new one resumes from the checkpoint."""
    _wait_for_share(run, DRIVER)
    driver = run.driver
    driver.record_descendants()  # before the moment of the kill: it takes longer than a batch
    open_records = _wait_for_open_records(run)
    driver.kill()
    kill = _wait_for_death(run, DRIVER, driver.pid, open_records)
    run.collect_commits()
    kill.note = "restarted from its checkpoint"
    run.outcome.kills.append(kill)
    run.listener.killed(kill)
    run.listener.step("restarting the driver")
    run.start_driver()
    run.listener.step("the stream is running again")
    _wait_for_recovery(run, kill)


def kill_broker(run: DemoRun) -> None:
    """Kill the demo's own broker while a batch is being written, and restart it on its data."""
    broker = run.cluster.broker
    if broker is None:
        run.outcome.kills.append(Kill(BROKER, note="not killed: it does not belong to the demo"))
        run.listener.note(f"{run.cluster.name} does not belong to the demo: no broker is killed")
        return
    _wait_for_share(run, BROKER)
    open_records = _wait_for_open_records(run)
    kill = _wait_for_death(run, BROKER, run.cluster.kill_broker(), open_records)
    kill.note = f"down for {BROKER_DOWN_SECONDS:g} s, restarted on its data"
    run.outcome.kills.append(kill)
    run.listener.killed(kill)
    run.sleep(BROKER_DOWN_SECONDS)
    broker.start()
    _wait_for_recovery(run, kill)


class WorkerWatch:
    """Watches the Python workers of a driver for the start of a task."""

    def __init__(self, driver: DemoDriver) -> None:
        self._driver = driver
        self._last_running_s: dict[int, float] = {}
        self._refreshed_at_s = 0.0

    def find_starting(self) -> int | None:
        """Return a worker that has just woken up, so has a new task; others may be at the end of theirs."""
        now_s = time.monotonic()
        if now_s - self._refreshed_at_s > WORKERS_REFRESH_SECONDS:  # scans all processes of the machine
            self._last_running_s = {
                worker.pid: self._last_running_s.get(worker.pid, now_s) for worker in self._driver.workers()
            }
            self._refreshed_at_s = now_s
        starting: int | None = None
        for pid, last_running_s in self._last_running_s.items():
            process = find_process(pid)
            if process is not None and process.state == "R":
                self._last_running_s[pid] = now_s
                if now_s - last_running_s > IDLE_SECONDS_MIN:
                    starting = pid
        return starting


def _wait_for_share(run: DemoRun, what: str) -> None:
    share = KILL_AT_SHARE[what]
    run.wait_for(
        f"{share:.0%} of the rows were visible and the {what} could be killed",
        lambda: run.visible_share >= share,
        KILL_SHARE_SECONDS_MAX,
        within_stream=True,
    )


def _wait_for_open_records(run: DemoRun) -> int:
    """Wait until rows are written but not committed, which lasts milliseconds; return their number."""
    return run.wait_for(
        "a batch was partly written",
        run.open_records.count,
        OPEN_RECORDS_SECONDS_MAX,
        poll_s=_FAST_POLL_SECONDS,
        within_stream=True,
    )


def _wait_for_first_records(run: DemoRun) -> int:
    """Wait briefly for records of the batch: killing a worker that has sent nothing proves nothing."""
    deadline_s = run.now_s() + FIRST_RECORDS_SECONDS_MAX
    while not (count := run.open_records.count()) and run.now_s() < deadline_s:
        run.sleep(_FAST_POLL_SECONDS)
    return count


def _wait_for_death(run: DemoRun, what: str, pid: int, open_records: int) -> Kill:
    kill = Kill(what, pid, run.now_s(), open_records)
    deadline_s = run.now_s() + DEATH_SECONDS_MAX
    while find_process(pid) is not None:
        if run.now_s() > deadline_s:
            raise DemoError(f"{what} {pid} still runs {DEATH_SECONDS_MAX:g} s after SIGKILL")
        run.sleep(_FAST_POLL_SECONDS)
    return kill


def _wait_for_recovery(run: DemoRun, kill: Kill) -> None:
    """Wait until new rows are visible after a kill, and record how long it took."""
    visible_at_s = run.wait_for(
        f"new rows after the {kill.what} was killed",
        lambda: run.visible.first_increase_after(run.to_monotonic_s(kill.at_s + SETTLE_SECONDS)),
        RECOVERY_SECONDS_MAX,
    )
    kill.back_s = run.from_monotonic_s(visible_at_s) - kill.at_s
    run.listener.recovered(kill)
