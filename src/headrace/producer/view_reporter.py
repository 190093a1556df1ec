"""The metrics reporter `view`: shows a producer's inside to a live view (`headrace ui`), once a second.

    metric.reporters=view, view.url=… → look_inside → ViewLink's thread: Inside.look → POST

The producer does not notice: a look takes about a tenth of a millisecond, in a thread that nobody waits for.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.client.clock import SYSTEM_CLOCK
from headrace.config import Secret
from headrace.producer.metrics import MetricsReporter
from headrace.producer.view_link import Report, ViewLink, check_url, identity

if TYPE_CHECKING:
    from headrace.producer.inside import Inside

INTERVAL_SECONDS = 1.0


class ViewReporter(MetricsReporter):
    """Tells the view that `view.url` names of each producer that has it."""

    def __init__(self) -> None:
        self._url = ""
        self._token: str | None = None
        self._links: list[ViewLink] = []

    def configure(self, config: Mapping[str, object]) -> None:
        token = config.get("view.token")
        self._url = check_url(str(config["view.url"]))
        self._token = token.reveal() if isinstance(token, Secret) else None

    def look_inside(self, inside: Inside) -> None:
        link = ViewLink(self._url, self._token, _Told(inside), INTERVAL_SECONDS, inside.log)
        self._links.append(link)
        link.wake()

    def close(self) -> None:
        while self._links:
            self._links.pop().close()


class _Told:
    """One producer, as the view hears of it."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._about = {
            "kind": "producer",
            "id": uuid.uuid4().hex,
            **identity(),
            "started_ms": SYSTEM_CLOCK.time_ms(),
            "interval_ms": int(INTERVAL_SECONDS * 1000),
        }

    def report(self, *, is_last: bool) -> Report:
        now_ms = SYSTEM_CLOCK.time_ms()
        return {**self._about, "time_ms": now_ms, "is_closed": is_last, **self._inside.look()}

    def delivered(self, report: Report) -> None:
        """What was told is over: the next look is another one."""
