"""What every page of the live view is given, and what the view is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.client.blocking import ClientSettings
from headrace.errors import HeadraceError
from headrace.ui.broker_control import Control
from headrace.ui.cluster_feeds import Topology, Traffic, topology_feed
from headrace.ui.collector import Collector
from headrace.ui.reports import Reports

__all__ = ["ReadOnlyError", "Topology", "View", "ViewOptions"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9080


@dataclass(slots=True, frozen=True, kw_only=True)
class ViewOptions:
    """What a view is started with."""

    client: ClientSettings
    """How to reach the cluster."""
    producer: Mapping[str, str]
    """Options of the producer that sends what people type."""
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    read_only: bool = False
    token: str | None = field(default=None, repr=False)
    data_dir: Path | None = None
    """The folder of a broker, or cluster, of ours: its control socket is found by it."""


class ReadOnlyError(HeadraceError):
    """Somebody wanted to change something in a view that only shows."""


class View:
    """The cluster, the reports, and what may be done. One for all pages and browsers."""

    def __init__(self, options: ViewOptions) -> None:
        self.options = options
        self.read_only = options.read_only
        self.cluster = Collector(options.client)
        self.control = None if options.data_dir is None else Control(options.data_dir)
        self.reports = Reports()
        self.topology = topology_feed(self.cluster)
        self.traffic = Traffic(self.cluster, self.topology, self.control)

    def check_writable(self) -> None:
        """Raise unless this view may change things. Pages hide what is not allowed; this is what refuses it."""
        if self.read_only:
            raise ReadOnlyError("this view is read-only: start it without --read-only to change something")
