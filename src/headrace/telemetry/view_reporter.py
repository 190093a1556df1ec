"""The metrics reporter `view`: reports producers and consumers to a live view (`headrace ui`), once a second.

    metric.reporters=view, view.url=… → client_created → ReportSender's thread: SnapshotCollector.collect → POST

A report takes about a tenth of a millisecond, on a thread that no other thread waits for.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import Secret
from headrace.config.clock import SYSTEM_CLOCK
from headrace.telemetry.listeners import SnapshotSource
from headrace.telemetry.metrics import MetricsReporter
from headrace.telemetry.models import ConsumerReport, ConsumerSnapshot, ProducerReport
from headrace.telemetry.sender import ReportSender, check_url, new_envelope

INTERVAL_SECONDS = 1.0


class ViewReporter(MetricsReporter):
    """Reports each client that has it to the view at `view.url`. A `ClientListener`."""

    def __init__(self) -> None:
        self._url = ""
        self._token: str | None = None
        self._senders: list[ReportSender] = []

    def configure(self, config: Mapping[str, object]) -> None:
        token = config.get("view.token")
        self._url = check_url(str(config["view.url"]))
        self._token = token.reveal() if isinstance(token, Secret) else None

    def client_created(self, source: SnapshotSource) -> None:
        sender = ReportSender(self._url, self._token, _ClientReports(source), INTERVAL_SECONDS, source.log)
        self._senders.append(sender)
        sender.notify()

    def close(self) -> None:
        while self._senders:
            self._senders.pop().close()


class _ClientReports:
    """Creates the reports of one client."""

    def __init__(self, source: SnapshotSource) -> None:
        self._source = source
        self._envelope = new_envelope(INTERVAL_SECONDS)

    def create_report(self, *, is_last: bool) -> ProducerReport | ConsumerReport:
        snapshot = self._source.collect()
        report = ConsumerReport if isinstance(snapshot, ConsumerSnapshot) else ProducerReport
        return report(**self._envelope, time_ms=SYSTEM_CLOCK.time_ms(), is_closed=is_last, **vars(snapshot))

    def acknowledge(self, report: ProducerReport | ConsumerReport) -> None:
        """Do nothing: every report is complete."""
