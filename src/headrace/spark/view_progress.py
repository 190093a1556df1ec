"""Tells a live view how far a pipeline is, beside whoever shows it on the terminal.

    Pipeline.run → ViewProgress → the other reporter
                               ↘ what is to be told → ViewLink's thread → POST

The view puts it together, by name, with what the sink tells of its commits (commit_watch.py).
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.client.clock import SYSTEM_CLOCK
from headrace.errors import HeadraceError
from headrace.producer import view_link
from headrace.spark.pipeline_spec import FORMAT, PipelineSpec
from headrace.spark.progress import BatchProgress, Reporter, Started, Tasks, Totals

INTERVAL_SECONDS = 2.0
BATCHES_MAX = 64
ERROR_CHARACTERS_MAX = 500


def sink_options(spec: PipelineSpec) -> dict[str, str]:
    """What makes the sink of a pipeline tell the same view, under the same name."""
    if spec.view.url is None or spec.sink.format != FORMAT:
        return {}
    found = {"view.url": spec.view.url, "view.name": spec.name}
    if spec.view.token is not None:
        found["view.token"] = spec.view.token
    return found


@contextmanager
def shown(spec: PipelineSpec, reporter: Reporter) -> Iterator[Reporter]:
    """The reporter, or one that tells the view besides: of a block that runs the pipeline."""
    if spec.view.url is None:
        yield reporter
        return
    told = ViewProgress(spec.view.url, spec.view.token, spec.name, reporter)
    try:
        yield told
    except BaseException as error:
        told.fail(error)
        raise
    finally:
        told.close()


class ViewProgress:
    """One run of a pipeline. Called from one thread."""

    def __init__(self, url: str, token: str | None, name: str, reporter: Reporter) -> None:
        self._reporter = reporter
        self.wants_tasks = reporter.wants_tasks
        self._lock = threading.Lock()  # held for a moment: the link's thread reads what this one writes
        self._state: dict[str, Any] = {
            "kind": "pipeline",
            "id": uuid.uuid4().hex,
            "name": name,
            **view_link.identity(),
            "started_ms": SYSTEM_CLOCK.time_ms(),
            "interval_ms": int(INTERVAL_SECONDS * 1000),
            "state": "starting",
        }
        self._batches: deque[dict[str, Any]] = deque(maxlen=BATCHES_MAX)  # Guarded by _lock.
        self._link = view_link.ViewLink(url, token, self, INTERVAL_SECONDS)

    # -- the pipeline's thread -------------------------------------------------------------------

    def started(self, what: Started) -> None:
        self._note(state="running", is_stream=what.is_stream, master=what.master, resumes_after=what.resumes_after)
        self._reporter.started(what)

    def tasks(self, tasks: Tasks, totals: Totals) -> None:
        self._reporter.tasks(tasks, totals)

    def batch(self, batch: BatchProgress, totals: Totals) -> None:
        with self._lock:
            self._batches.append({**batch.to_json(), "time_ms": SYSTEM_CLOCK.time_ms()})
        self._note(totals=totals.to_json())
        self._reporter.batch(batch, totals)

    def finished(self, totals: Totals) -> None:
        self._note(state=totals.stopped or "finished", totals=totals.to_json())
        self._reporter.finished(totals)

    def fail(self, error: BaseException) -> None:
        text = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
        self._note(state="failed", error=text[:ERROR_CHARACTERS_MAX])

    def close(self) -> None:
        self._link.close()

    def _note(self, **facts: Any) -> None:
        with self._lock:
            self._state |= facts
        self._link.wake()

    # -- the link's thread -----------------------------------------------------------------------

    def report(self, *, is_last: bool) -> view_link.Report:
        with self._lock:
            batches = list(self._batches)
            state = dict(self._state)
        return {**state, "time_ms": SYSTEM_CLOCK.time_ms(), "is_closed": is_last, "batches": batches}

    def delivered(self, report: view_link.Report) -> None:
        told = {batch["batch"] for batch in report["batches"]}
        with self._lock:
            while self._batches and self._batches[0]["batch"] in told:
                self._batches.popleft()
