"""The cluster of the catalog: its id, the producer ids it has allocated, and the registered brokers.

A standalone broker has no registrations.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.broker.catalog.journal import Event

NO_NODE = -1
NO_EPOCH = -1
PRODUCER_ID_BLOCK = 1000
"""Producer ids are reserved on disk in blocks, so that most of them need no write."""
PRODUCER_IDS_SKIPPED = 1000 * PRODUCER_ID_BLOCK
"""How many ids are skipped when a change of the catalog was lost: it may have reserved some of the 2⁶³ ids."""


class Identity:
    """The id of the cluster and the first producer id that is not reserved."""

    kinds = ("cluster", "producer-ids")

    def __init__(self) -> None:
        self.cluster_id = ""
        self.next_producer_id = 0

    @staticmethod
    def creation() -> list[Event]:
        """Return the events that create a cluster."""
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        return [{"kind": "cluster", "id": text}]

    def reserve_producer_ids(self, first: int = 0) -> Event:
        """Return the event that reserves the next block, from `next_producer_id` or `first` on, whichever is higher."""
        return {"kind": "producer-ids", "next": max(self.next_producer_id, first) + PRODUCER_ID_BLOCK}

    def skip_producer_ids(self) -> Event:
        """Return the event that skips ids which a lost change may have reserved."""
        return {"kind": "producer-ids", "next": self.next_producer_id + PRODUCER_IDS_SKIPPED}

    def apply(self, event: Event) -> None:
        if event["kind"] == "cluster":
            self.cluster_id = event["id"]
        else:
            self.next_producer_id = max(self.next_producer_id, event["next"])  # no id is allocated twice

    def snapshot(self) -> Iterator[Event]:
        yield {"kind": "cluster", "id": self.cluster_id}
        yield {"kind": "producer-ids", "next": self.next_producer_id}

    def changes_to(self, target: Identity) -> Iterator[Event]:
        """Yield events that turn this section into `target`."""
        if (self.cluster_id, self.next_producer_id) != (target.cluster_id, target.next_producer_id):
            yield from target.snapshot()


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker as the controller knows it."""

    node_id: int
    incarnation: str  # new for every start of the process, in hexadecimal
    epoch: int  # new for every registration, increasing across all brokers
    listeners: Mapping[str, tuple[str, int]]  # advertised addresses by listener name
    rack: str | None
    fenced: bool  # without heartbeats: it leads nothing and is in no in-sync set
    stopping: bool  # in controlled shutdown: its leaderships are moved
    unfenced_epoch: int = 0  # the last epoch in which it was not fenced; 0: never

    def trusts(self, previous_epoch: int) -> bool:
        """Return whether a broker with the data of `previous_epoch` has everything the controller relies on.

        A fenced broker leads nothing and is in no in-sync set, so nothing is acknowledged because of it. The controller
        relies on it (in-sync sets, eligible leader replicas) for what it had when it was last unfenced. Data of that
        epoch, or of a later epoch of this broker, are therefore enough. A later epoch may be recorded here but not on
        the broker's disk: it was killed, or the response was lost, between the registration and the first heartbeat.
        """
        return max(1, self.unfenced_epoch) <= previous_epoch <= self.epoch


class Brokers:
    """The registered brokers by node id."""

    kinds = ("broker", "broker-removed")

    def __init__(self) -> None:
        self.by_id: dict[int, BrokerRegistration] = {}
        self.controller_id = -1  # -1: standalone
        self.last_epoch = 0  # the highest epoch of any broker

    @staticmethod
    def change(row: BrokerRegistration, controller_id: int) -> Event:
        """Return the event that registers a broker or updates its registration."""
        return {
            "kind": "broker",
            "id": row.node_id,
            "controller": controller_id,
            "incarnation": row.incarnation,
            "epoch": row.epoch,
            "listeners": {name: list(address) for name, address in row.listeners.items()},
            "rack": row.rack,
            "fenced": row.fenced,
            "stopping": row.stopping,
            "unfenced_epoch": row.unfenced_epoch,
        }

    @staticmethod
    def removal(node_id: int, last_epoch: int) -> Event:
        """Return the event that removes a broker but keeps the last epoch, so that no epoch is used twice."""
        return {"kind": "broker-removed", "id": node_id, "epoch": last_epoch}

    def is_live(self, node_id: int) -> bool:
        """Return whether a broker is registered and not fenced."""
        row = self.by_id.get(node_id)
        return row is not None and not row.fenced

    def live(self) -> list[BrokerRegistration]:
        """Return the brokers that are not fenced, by node id."""
        return [row for _, row in sorted(self.by_id.items()) if not row.fenced]

    def apply(self, event: Event) -> None:
        node_id = event["id"]
        self.last_epoch = max(self.last_epoch, event["epoch"])
        if event["kind"] == "broker-removed":
            self.by_id.pop(node_id, None)
            return
        self.controller_id = event["controller"]
        self.by_id[node_id] = BrokerRegistration(
            node_id,
            event["incarnation"],
            event["epoch"],
            {name: (host, port) for name, (host, port) in event["listeners"].items()},
            event["rack"],
            event["fenced"],
            event["stopping"],
            event["unfenced_epoch" if "unfenced_epoch" in event else "epoch"],  # missing in earlier versions
        )

    def snapshot(self) -> Iterator[Event]:
        for row in self.by_id.values():
            yield self.change(row, self.controller_id)
        if self._is_unassigned(self.last_epoch):
            yield self.removal(NO_NODE, self.last_epoch)

    def changes_to(self, target: Brokers) -> Iterator[Event]:
        """Yield events that turn this section into `target`."""
        for node_id in self.by_id.keys() - target.by_id.keys():
            yield self.removal(node_id, target.last_epoch)
        for node_id, row in target.by_id.items():
            if self.by_id.get(node_id) != row or self.controller_id != target.controller_id:
                yield self.change(row, target.controller_id)
        if target.last_epoch > self.last_epoch and target._is_unassigned(target.last_epoch):
            yield self.removal(NO_NODE, target.last_epoch)

    def _is_unassigned(self, epoch: int) -> bool:
        """Return whether no registered broker has this epoch or a later one."""
        return epoch > max((row.epoch for row in self.by_id.values()), default=0)
