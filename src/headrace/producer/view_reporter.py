"""The metrics reporter `view`: reports producers to a live view (`headrace ui`), once a second.

    metric.reporters=view, view.url=… → producer_created → ReportSender's thread: SnapshotCollector.collect → POST

A report takes about a tenth of a millisecond, on a thread that no other thread waits for.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import Secret
from headrace.config.clock import SYSTEM_CLOCK
from headrace.telemetry.listeners import SnapshotSource
from headrace.telemetry.metrics import MetricsReporter
from headrace.telemetry.models import ProducerReport
from headrace.telemetry.sender import ReportSender, check_url, new_envelope

INTERVAL_SECONDS = 1.0


class ViewReporter(MetricsReporter):
    """Reports each producer that has it to the view at `view.url`. A `ProducerListener`."""

    def __init__(self) -> None:
        self._url = ""
        self._token: str | None = None
        self._senders: list[ReportSender] = []

    def configure(self, config: Mapping[str, object]) -> None:
        token = config.get("view.token")
        self._url = check_url(str(config["view.url"]))
        self._token = token.reveal() if isinstance(token, Secret) else None

    def producer_created(self, source: SnapshotSource) -> None:
        sender = ReportSender(self._url, self._token, _ProducerReports(source), INTERVAL_SECONDS, source.log)
        self._senders.append(sender)
        sender.notify()

    def close(self) -> None:
        while self._senders:
            self._senders.pop().close()


class _ProducerReports:
    """Creates the reports of one producer."""

    def __init__(self, source: SnapshotSource) -> None:
        self._source = source
        self._envelope = new_envelope(INTERVAL_SECONDS)

    def create_report(self, *, is_last: bool) -> ProducerReport:
        snapshot = vars(self._source.collect())
        return ProducerReport(**self._envelope, time_ms=SYSTEM_CLOCK.time_ms(), is_closed=is_last, **snapshot)

    def acknowledge(self, report: ProducerReport) -> None:
        """Do nothing: every report is complete."""
