"""What producers and pipelines tell of themselves.

    POST /report, JSON → Reports.take → a ToldProducer or a ToldPipeline, which pages look at

Reports are refused that are too large, make no sense, or are of one producer too many. What was silent for a quarter of
an hour is forgotten. All of it runs on the server's event loop.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse, Response

from headrace.ui.collector import HISTORY_SECONDS
from headrace.ui.pipeline_reports import ToldPipeline
from headrace.ui.producer_reports import Look, ToldProducer
from headrace.ui.report_fields import Fields, ReportError

if TYPE_CHECKING:
    from headrace.ui.view import View

REPORT_BYTES_MAX = 256 * 1024
PRODUCERS_MAX = 100
PIPELINES_MAX = 50
ROOM_SECONDS = 10.0
"""Who was heard of so lately does not make room for others."""


class FullError(ReportError):
    """No room for one more."""


class Reports:
    """What was told last, and the fifteen minutes before it."""

    def __init__(self) -> None:
        self._producers: dict[str, ToldProducer] = {}
        self._pipelines: dict[str, ToldPipeline] = {}

    def take(self, body: bytes) -> None:
        """Raises ReportError if it is no report."""
        try:
            found = Fields(json.loads(body))
        except (ValueError, RecursionError) as error:
            raise ReportError(f"the report is not JSON: {error}") from error
        kind, id = found.text("kind"), found.text("id")
        if kind == "producer":
            self._take_producer(id, Look.of(found))
        elif kind == "commits":
            self._pipeline(found.text("name")).take_commits(id, found)
        elif kind == "pipeline":
            self._pipeline(found.text("name")).take_driver(id, found)
        else:
            raise ReportError(f"kind is {kind!r}; it may be producer, commits or pipeline")

    def _take_producer(self, id: str, look: Look) -> None:
        told = self._producers.get(id)
        if told is None:
            _make_room(self._producers, PRODUCERS_MAX, "producers")
            told = self._producers[id] = ToldProducer(id, look)
        told.take(look)

    def _pipeline(self, name: str) -> ToldPipeline:
        found = self._pipelines.get(name)
        if found is None:
            _make_room(self._pipelines, PIPELINES_MAX, "pipelines")
            found = self._pipelines[name] = ToldPipeline(name)
        return found

    def producers(self) -> list[ToldProducer]:
        """The living first, then the one heard of last."""
        _forget_silent(self._producers)
        return sorted(self._producers.values(), key=lambda one: (not one.is_live, -one.last.started_ms))

    def producer(self, id: str) -> ToldProducer | None:
        return self._producers.get(id)

    def pipelines(self) -> list[ToldPipeline]:
        """The one heard of last first."""
        _forget_silent(self._pipelines)
        return sorted(self._pipelines.values(), key=lambda one: -one.heard_s)

    def pipeline(self, name: str) -> ToldPipeline | None:
        return self._pipelines.get(name)


def _forget_silent(told: dict[str, ToldProducer] | dict[str, ToldPipeline]) -> None:
    now = time.time()
    for id in [id for id, one in told.items() if now - one.heard_s > HISTORY_SECONDS]:
        del told[id]


def _make_room(told: dict[str, ToldProducer] | dict[str, ToldPipeline], count_max: int, what: str) -> None:
    _forget_silent(told)
    if len(told) < count_max:
        return
    oldest = min(told, key=lambda id: told[id].heard_s)
    if time.time() - told[oldest].heard_s < ROOM_SECONDS:
        raise FullError(f"this view follows {count_max} {what} already, and no more")
    del told[oldest]


def mount(app: FastAPI, view: View) -> None:
    """Take reports: POST /report."""

    @app.post("/report")
    async def report(request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > REPORT_BYTES_MAX:
                return PlainTextResponse(f"A report may have {REPORT_BYTES_MAX} bytes.\n", 413)
        try:
            view.reports.take(bytes(body))
        except FullError as error:
            return PlainTextResponse(f"{error}\n", 503)
        except ReportError as error:
            return PlainTextResponse(f"{error}\n", 400)
        return Response(status_code=204)
