"""The whole run: orders, a cluster, a stream whose processes are killed three times, an audit.

In every case all processes are ended and the folder is removed, except for the logs if a step has failed.
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
from headrace.demo.cluster import BOOTSTRAP, TIMEOUT_MS, DemoCluster, VisibleRows
from headrace.demo.demo_run import (
    DemoError,
    DemoRun,
    ProgressListener,
    StoppedError,
    kill_broker,
    kill_driver,
    kill_worker,
)
from headrace.demo.driver_process import descendants
from headrace.demo.orders import write_orders
from headrace.demo.outcome import BatchTimes, DemoOutcome
from headrace.errors import HeadraceError
from headrace.spark.local_session import find_java
from headrace.spark.log_setup import LOG_FORMAT

END_SECONDS_MAX = 600.0
LAST_ROW_SECONDS_MAX = 30.0
AUDIT_SECONDS_MAX = 300.0


@dataclass(frozen=True, slots=True)
class DemoSettings:
    rows: int
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client options. With bootstrap.servers that cluster is used; otherwise a broker is started."""
    keep: bool = False
    """Whether to keep the folder, and the topics of a cluster."""
    view_url: str | None = None
    """A live view to which the stream reports."""
    open_view: Callable[[DemoCluster], str] | None = None
    """Starts a live view for the cluster, and returns its address."""


class Demo:
    """One run of the demo."""

    def __init__(self, settings: DemoSettings, listener: ProgressListener) -> None:
        self._settings = settings
        self._listener = listener
        self._cluster: DemoCluster | None = None
        self._visible: VisibleRows | None = None
        self._outcome = DemoOutcome(settings.rows)
        self._folder: Path | None = None

    def run(self, stop: threading.Event) -> DemoOutcome:
        """Run to the end, or until `stop` is set (StoppedError). A DemoError names the logs, which are kept."""
        started_at_s = time.monotonic()
        is_kept = self._settings.keep
        find_java()  # fails early on a machine without Java
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
        try:
            (self.folder / "logs").mkdir()
            with ExitStack() as stack:
                stack.enter_context(_log_to(self.folder / "logs" / "demo.log"))
                self._run(stack, stop)
        except StoppedError as error:
            raise StoppedError(self._stopped_text(time.monotonic() - started_at_s)) from error
        except HeadraceError as error:
            logs = self._keep_logs()
            is_kept = is_kept or bool(logs)
            raise DemoError(f"{error}\n{logs}".strip()) from error
        finally:
            if not is_kept:
                self._remove_folder()
        self._outcome.seconds = time.monotonic() - started_at_s
        return self._outcome

    def abandon(self) -> None:
        """Kill all descendants of this process and remove the folder, without waiting for `stop`."""
        socket_folder = None if self._cluster is None else self._cluster.socket_folder()
        for process in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        if socket_folder is not None:
            shutil.rmtree(socket_folder, ignore_errors=True)
        if not self._settings.keep:
            self._remove_folder()

    @property
    def folder(self) -> Path:
        """The folder of the run: orders, checkpoint, the broker's data, logs."""
        assert self._folder is not None
        return self._folder

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, stack: ExitStack, stop: threading.Event) -> None:
        listener, outcome, options = self._listener, self._outcome, self._settings.options
        listener.step(f"writing {outcome.rows_in:,} orders to Parquet files")
        write_orders(self.folder / "orders", outcome.rows_in, lambda _: _check_stop(stop))
        listener.step("creating a topic" if BOOTSTRAP in options else "starting a broker")
        self._cluster = DemoCluster(self.folder / "broker", options, keep=self._settings.keep)
        cluster = stack.enter_context(self._cluster)
        outcome.cluster = cluster.name
        self._visible = stack.enter_context(VisibleRows(cluster.client_settings(TIMEOUT_MS), cluster.partitions))
        view_url = self._settings.view_url
        if self._settings.open_view is not None:
            view_url = self._settings.open_view(cluster)
            listener.note(f"live view: {view_url}")
        run = DemoRun(self.folder, cluster, self._visible, outcome, listener, stop=stop, view_url=view_url)
        stack.callback(run.close)
        listener.step("starting Spark")
        run.start_driver()
        listener.step("the stream is running")
        kill_worker(run)
        kill_driver(run)
        kill_broker(run)
        self._wait_for_end(run)
        self._collect_figures(run)
        listener.step("auditing: comparing every row of the files with every record of the topic")
        run.driver.request_audit()
        outcome.audit = run.wait_for("the audit", lambda: run.audit, AUDIT_SECONDS_MAX)

    def _wait_for_end(self, run: DemoRun) -> None:
        run.wait_for("the end of the stream", lambda: run.is_finished, END_SECONDS_MAX)
        try:
            run.wait_for("the last row", lambda: run.visible_share >= 1, LAST_ROW_SECONDS_MAX)
        except DemoError:
            self._listener.note("not all rows are visible: the audit will show which")

    def _collect_figures(self, run: DemoRun) -> None:
        outcome = self._outcome
        commits = {commit.batch: commit for commit in outcome.commits}
        outcome.batches = [
            BatchTimes.of(event, commits.get(number)) for number, event in sorted(run.batch_events.items())
        ]
        samples = [(round(run.from_monotonic_s(sample.at_s), 3), sample.rows) for sample in run.visible.samples]
        samples = [(at_s, rows) for at_s, rows in samples if at_s >= 0]
        outcome.done_at_s = next((at_s for at_s, rows in samples if rows == samples[-1][1]), 0.0)
        outcome.samples = [(at_s, rows) for at_s, rows in samples if at_s <= outcome.done_at_s]
        outcome.versions |= {
            "headrace": headrace.__version__,
            "Python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        }

    def _stopped_text(self, seconds: float) -> str:
        rows = 0 if self._visible is None else self._visible.count
        left = f"all files are kept in {self.folder}" if self._settings.keep else "all processes and files are removed"
        return (
            f"stopped after {seconds:.0f} s with {rows:,} of {self._outcome.rows_in:,} rows visible, without an audit; "
            f"{left}"
        )

    def _keep_logs(self) -> str:
        """Remove all but the logs, unless everything is kept; return a sentence that names what is kept."""
        logs = self.folder / "logs"
        if self._settings.keep:
            return f"All files are kept in {self.folder}."
        if not any(logs.iterdir()):
            return ""
        for entry in self.folder.iterdir():
            if entry != logs:
                shutil.rmtree(entry, ignore_errors=True)
        return f"The logs are in {logs}; --keep keeps all files."


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Log to a file: the clients warn of a broker that is down, which the demo itself has killed."""
    logger = logging.getLogger("headrace")
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _check_stop(stop: threading.Event) -> None:
    if stop.is_set():
        raise StoppedError("stopped")
