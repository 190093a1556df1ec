"""The run, step by step: orders, a cluster, a stream that is killed three times on the way, an audit.

Whatever happens on the way, no process is left, nor a folder but for the logs of what has failed.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import headrace
from headrace.demo import killing
from headrace.demo.cluster import BOOTSTRAP, Cluster
from headrace.demo.orders import make_orders
from headrace.demo.outcome import BatchTimes, Outcome
from headrace.demo.processes import descendants
from headrace.demo.stage import DemoError, Stage, StoppedError, Teller
from headrace.demo.visible import ASK_MS_MAX, VisibleRows
from headrace.errors import HeadraceError
from headrace.spark.commit_times import LOG_FORMAT
from headrace.spark.local_session import find_java

END_SECONDS_MAX = 600.0
LAST_ROW_SECONDS_MAX = 30.0
AUDIT_SECONDS_MAX = 300.0


@dataclass(frozen=True, slots=True)
class DemoSettings:
    rows: int
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For clients, by Kafka's names. With bootstrap.servers, that cluster is used; else a broker is started."""
    keep: bool = False
    """Leave the folder, and the topics of a cluster, when it is over."""
    view_url: str | None = None
    """A live view to be told of the stream."""
    open_view: Callable[[Cluster], str] | None = None
    """Opens one for the cluster when it is there, and returns its address."""


class Demo:
    """One run."""

    def __init__(self, settings: DemoSettings, teller: Teller) -> None:
        self._settings = settings
        self._teller = teller
        self._seen: VisibleRows | None = None
        self._outcome = Outcome(settings.rows)
        self._folder: Path | None = None

    def run(self, stop: threading.Event) -> Outcome:
        """To its end, or until `stop` is set (StoppedError). A DemoError names the logs, which are kept."""
        began_s = time.monotonic()
        is_kept = self._settings.keep
        find_java()  # a machine without one is told before anything is made
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
        try:
            (self.folder / "logs").mkdir()
            with ExitStack() as stack:
                stack.enter_context(_logged_to(self.folder / "logs" / "demo.log"))
                self._run(stack, stop)
        except StoppedError as error:
            raise StoppedError(self._stopped_text(time.monotonic() - began_s)) from error
        except HeadraceError as error:
            logs = self._kept_logs()
            is_kept = is_kept or bool(logs)
            raise DemoError(f"{error}\n{logs}".strip()) from error
        finally:
            if not is_kept:
                self._remove_folder()
        self._outcome.seconds = time.monotonic() - began_s
        return self._outcome

    def abandon(self) -> None:
        """For somebody who will not wait for `stop`: kill all that we have started, and remove the folder."""
        for process in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        if not self._settings.keep:
            self._remove_folder()

    @property
    def folder(self) -> Path:
        """Of a run: orders, checkpoint, the broker's data, logs."""
        assert self._folder is not None
        return self._folder

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, stack: ExitStack, stop: threading.Event) -> None:
        teller, outcome, options = self._teller, self._outcome, self._settings.options
        teller.step(f"making {outcome.rows_in:,} orders, as Parquet files")
        make_orders(self.folder / "orders", outcome.rows_in, lambda _: _check(stop))
        teller.step("making a topic" if BOOTSTRAP in options else "starting a broker")
        cluster = stack.enter_context(Cluster(self.folder / "broker", options, keep=self._settings.keep))
        outcome.cluster = cluster.name
        self._seen = stack.enter_context(VisibleRows(cluster.client_settings(ASK_MS_MAX), cluster.partitions))
        view_url = self._settings.view_url
        if self._settings.open_view is not None:
            view_url = self._settings.open_view(cluster)
            teller.note(f"the live view is at {view_url}")
        stage = Stage(self.folder, cluster, self._seen, outcome, teller, stop, view_url)
        stack.callback(stage.close)
        teller.step("starting Spark")
        stage.start_driver()
        teller.step("the stream runs")
        killing.kill_worker(stage)
        killing.kill_driver(stage)
        killing.kill_broker(stage)
        self._await_end(stage)
        self._note(stage)
        teller.step("auditing: every row of the files against every record of the topic")
        stage.driver.audit()
        outcome.audit = stage.until("the audit", lambda: stage.audit, AUDIT_SECONDS_MAX)

    def _await_end(self, stage: Stage) -> None:
        stage.until("the end of the stream", lambda: stage.is_finished, END_SECONDS_MAX)
        try:
            stage.until("the last row", lambda: stage.visible_share >= 1, LAST_ROW_SECONDS_MAX)
        except DemoError:
            self._teller.note("not all rows are to be seen: the audit will say which")

    def _note(self, stage: Stage) -> None:
        """All that is known of the stream."""
        outcome = self._outcome
        commits = {commit.batch: commit for commit in outcome.commits}
        outcome.batches = [
            BatchTimes.of(event, commits.get(number)) for number, event in sorted(stage.batch_events.items())
        ]
        seen = [(round(stage.at_s(at_s), 3), rows) for at_s, rows in stage.seen.samples if stage.at_s(at_s) >= 0]
        outcome.done_at_s = next((at_s for at_s, rows in seen if rows == seen[-1][1]), 0.0)
        outcome.samples = [(at_s, rows) for at_s, rows in seen if at_s <= outcome.done_at_s]
        outcome.versions |= {
            "headrace": headrace.__version__,
            "Python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        }

    def _stopped_text(self, seconds: float) -> str:
        rows = 0 if self._seen is None else self._seen.count
        left = f"everything is kept in {self.folder}" if self._settings.keep else "no process and no folder is left"
        return (
            f"stopped after {seconds:.0f} s, when {rows:,} of {self._outcome.rows_in:,} rows were visible: "
            f"nothing was audited; {left}"
        )

    def _kept_logs(self) -> str:
        """Where they are: with --keep everything is; else the logs stay, if there are any."""
        logs = self.folder / "logs"
        if self._settings.keep:
            return f"Everything is kept in {self.folder}."
        if not any(logs.iterdir()):
            return ""
        for entry in self.folder.iterdir():
            if entry != logs:
                shutil.rmtree(entry, ignore_errors=True)
        return f"The logs are in {logs}; with --keep everything else is kept too."


@contextmanager
def _logged_to(path: Path) -> Iterator[None]:
    """Our clients warn of a broker that has gone, rightly; but it was we who killed it, and it is told elsewhere."""
    logger = logging.getLogger("headrace")
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise StoppedError("stopped")
