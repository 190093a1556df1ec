"""What all steps of a run share: the driver of the moment, what it has said, what readers see, and how to wait.

Every wait has an end, looks after Ctrl-C, and notices when the driver has died of something else than of us.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headrace.demo.cluster import Cluster
from headrace.demo.handle import DriverHandle, Event
from headrace.demo.orders import FILES_PER_BATCH
from headrace.demo.outcome import Kill, Outcome
from headrace.demo.visible import ASK_MS_MAX, OpenRecords, VisibleRows
from headrace.errors import HeadraceError

START_SECONDS_MAX = 120.0
TASK_FAILURES_MAX = 4
ARROW_ROWS_MAX = 5_000
"""Smaller than for speed alone: a task then has several sendings to die between."""
POLL_SECONDS = 0.02
LOG_LINES_SHOWN = 5

T = TypeVar("T")


class DemoError(HeadraceError):
    """A step has failed; the message says which, why, and what to do."""


class StoppedError(HeadraceError):
    """Somebody has asked us to stop."""


class Teller(Protocol):
    """Who shows what happens. Called from one thread."""

    def step(self, text: str) -> None: ...
    def rows(self, visible: int, total: int) -> None: ...
    def killed(self, kill: Kill) -> None: ...
    def flows(self, kill: Kill) -> None: ...
    def note(self, text: str) -> None: ...


class Stage:
    """The parts of a run while it runs. One thread."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        seen: VisibleRows,
        outcome: Outcome,
        teller: Teller,
        stop: threading.Event,
        view_url: str | None = None,
    ) -> None:
        self.cluster = cluster
        self.seen = seen
        self.outcome = outcome
        self.teller = teller
        self.open_records = OpenRecords(cluster.client_settings(ASK_MS_MAX), cluster.partitions)
        self._folder = folder
        self._stop = stop
        self._view_url = view_url
        self._driver: DriverHandle | None = None
        self._driver_count = 0
        self._zero_s = time.monotonic()
        self.batch_events: dict[int, Event] = {}
        self.audit: dict[str, Any] | None = None
        self._is_started = False
        self.is_finished = False

    # -- the driver ------------------------------------------------------------------------------

    @property
    def driver(self) -> DriverHandle:
        assert self._driver is not None
        return self._driver

    def start_driver(self) -> None:
        """From the checkpoint, if there is one; it is back when its stream has begun."""
        self.close_driver()
        self._driver_count += 1
        self._is_started = False
        spark_folder = self._folder / "spark"
        spark_folder.mkdir(exist_ok=True)
        log = self._folder / "logs" / f"driver-{self._driver_count}.log"
        if self._driver_count == 1:
            self._zero_s = time.monotonic()
        self._driver = DriverHandle(self._driver_settings(spark_folder), spark_folder, log)
        self.until("the start of Spark", lambda: self._is_started, START_SECONDS_MAX)
        if self._driver_count == 1:
            self.outcome.query_at_s = self.now_s()

    def close_driver(self) -> None:
        """No process of it is left."""
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
            # Half a minute of work is over before the second compiler has paid for itself.
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
        """Since the first driver was started."""
        return time.monotonic() - self._zero_s

    def at_s(self, monotonic_s: float) -> float:
        """A time of the monotonic clock on ours."""
        return monotonic_s - self._zero_s

    def monotonic_s(self, at_s: float) -> float:
        """And back."""
        return at_s + self._zero_s

    @property
    def visible_share(self) -> float:
        return self.seen.count / self.outcome.rows_in

    def until(
        self,
        what: str,
        ask: Callable[[], T | None],
        seconds_max: float,
        *,
        poll_s: float = POLL_SECONDS,
        within_stream: bool = False,
    ) -> T:
        """Ask until the answer is true, and return it. `within_stream`: there is no hope once the stream is over."""
        deadline = time.monotonic() + seconds_max
        while not (answer := ask()):
            self.listen()
            if within_stream and self.is_finished:
                raise DemoError(
                    f"the stream was over before {what}: this machine is too fast for {self.outcome.rows_in:,} rows. "
                    "Use more --rows"
                )
            if time.monotonic() > deadline:
                raise DemoError(f"waited for {what}, and it has not come within {seconds_max:g} s{self._last_words()}")
            self.pause(poll_s)
        self.listen()
        return answer

    def pause(self, seconds: float) -> None:
        """Wait, and no longer than until somebody wants us to stop."""
        if self._stop.wait(seconds):
            raise StoppedError("stopped")

    def listen(self) -> None:
        """Take what the driver has said, and see that all are well."""
        self.teller.rows(self.seen.count, self.outcome.rows_in)
        if self.seen.error is not None:
            raise DemoError(f"the topic cannot be read any more: {self.seen.error}")
        driver = self._driver
        if driver is None:
            return
        exit_code = driver.exit_code  # asked first, or its last words could be missed
        for event in driver.take():
            self._take(event)
        self.take_commits()
        if exit_code is not None and self.audit is None:
            raise DemoError(f"the driver has ended by itself, with exit code {exit_code}{self._last_words()}")

    def take_commits(self) -> None:
        """Those that are in the log of the driver, also of a dead one."""
        self.outcome.commits += self.driver.commits()

    def _take(self, event: Event) -> None:
        match event["event"]:
            case "session":
                self.outcome.versions |= {"Spark": event["spark"], "Java": event["java"]}
            case "started":
                self._is_started = True
            case "batch":
                self.batch_events[event["batch"]] = event
            case "finished":
                self.is_finished = True
            case "audited":
                self.audit = {name: value for name, value in event.items() if name != "event"}
            case "failed":
                raise DemoError(f"the driver has failed: {event['error']}")

    def _last_words(self) -> str:
        lines = [] if self._driver is None else self._driver.log_tail().splitlines()[-LOG_LINES_SHOWN:]
        return "; the driver's log ends:\n" + "\n".join(lines) if lines else ""
