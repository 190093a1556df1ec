"""State shared by all pages of the live view, and the options it is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.client.blocking import ClientSettings
from headrace.errors import HeadraceError
from headrace.ui.broker_control import BrokerControl
from headrace.ui.cluster_feeds import Topology, Traffic, topology_feed
from headrace.ui.collector import Collector
from headrace.ui.reports import ReportStore
from headrace.ui.schemas import SchemaViewer

__all__ = ["ReadOnlyError", "Topology", "View", "ViewOptions"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9080


@dataclass(slots=True, frozen=True, kw_only=True)
class ViewOptions:
    """Options of a live view."""

    client: ClientSettings
    """How to reach the cluster."""
    producer: Mapping[str, str]
    """Options of the producer behind the form that sends a record."""
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    read_only: bool = False
    token: str | None = field(default=None, repr=False)
    registry: Mapping[str, object] = field(default_factory=dict, repr=False)
    """The `schema.registry.*` options; empty: there is no registry."""
    data_dir: Path | None = None
    """Data folder of a headrace broker or cluster, used to find its control socket."""


class ReadOnlyError(HeadraceError):
    """A change was attempted in a read-only view."""


class View:
    """The cluster and the reports, shared by all pages and browsers."""

    def __init__(self, options: ViewOptions) -> None:
        self.options = options
        self.read_only = options.read_only
        self.cluster = Collector(options.client)
        self.control = None if options.data_dir is None else BrokerControl(options.data_dir)
        self.reports = ReportStore()
        self.schemas = SchemaViewer(options.registry) if options.registry else None
        self.topology = topology_feed(self.cluster)
        self.traffic = Traffic(self.cluster, self.topology, self.control)

    def check_writable(self) -> None:
        """Raise ReadOnlyError in a read-only view. Pages also hide their buttons; this check is the one that counts."""
        if self.read_only:
            raise ReadOnlyError("this view is read-only; start it without --read-only to make changes")
