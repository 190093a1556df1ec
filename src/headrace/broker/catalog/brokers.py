"""The brokers of a cluster: who has registered, where they are, and which of them count as living.

A broker that is alone has no rows here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.broker.catalog.journal import Event

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker as the controller knows it."""

    node_id: int
    incarnation: str  # another one for every start of its process, in hexadecimal
    epoch: int  # another one for every registration; higher than all before
    listeners: Mapping[str, tuple[str, int]]  # the addresses to tell, by name
    rack: str | None
    fenced: bool  # it is not heard of: it leads nothing, and is in no in-sync set
    stopping: bool  # it wants to stop: its leaderships are given away
    unfenced_epoch: int = 0  # the last epoch in which it was not fenced; 0: it never was

    def trusts(self, previous_epoch: int) -> bool:
        """Return whether a broker that comes back with the data of `previous_epoch` has what it is counted on for.

        A fenced broker leads nothing and is in no in-sync set, so nothing is acknowledged because of it. What the
        controller counts on it for (in-sync sets, eligible leader replicas) is what it had when it was unfenced last.
        Data of that epoch or of a later one of its own are therefore enough. A later one may be recorded here but not
        on its disk: it was killed, or the response was lost, between the registration and the first heartbeat.
        """
        return max(1, self.unfenced_epoch) <= previous_epoch <= self.epoch


class Brokers:
    """By node id."""

    kinds = ("broker", "broker-removed")

    def __init__(self) -> None:
        self.by_id: dict[int, Registration] = {}
        self.controller_id = -1  # -1: there is no cluster
        self.last_epoch = 0  # that any broker has got

    @staticmethod
    def change(row: Registration, controller_id: int) -> Event:
        """The event that registers a broker, or says something new of it."""
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
        """The event that forgets a broker, but not which epochs there were: none is given out twice."""
        return {"kind": "broker-removed", "id": node_id, "epoch": last_epoch}

    def is_live(self, node_id: int) -> bool:
        """Whether it is registered, and heard of."""
        row = self.by_id.get(node_id)
        return row is not None and not row.fenced

    def live(self) -> list[Registration]:
        """All that are heard of, by number."""
        return [row for _, row in sorted(self.by_id.items()) if not row.fenced]

    def apply(self, event: Event) -> None:
        node_id = event["id"]
        self.last_epoch = max(self.last_epoch, event["epoch"])
        if event["kind"] == "broker-removed":
            self.by_id.pop(node_id, None)
            return
        self.controller_id = event["controller"]
        self.by_id[node_id] = Registration(
            node_id,
            event["incarnation"],
            event["epoch"],
            {name: (host, port) for name, (host, port) in event["listeners"].items()},
            event["rack"],
            event["fenced"],
            event["stopping"],
            event["unfenced_epoch" if "unfenced_epoch" in event else "epoch"],  # earlier versions do not say
        )

    def snapshot(self) -> Iterator[Event]:
        for row in self.by_id.values():
            yield self.change(row, self.controller_id)
        if self._is_of_nobody(self.last_epoch):
            yield self.removal(NOBODY, self.last_epoch)

    def changes_to(self, target: Brokers) -> Iterator[Event]:
        """Events that make this section what `target` is."""
        for node_id in self.by_id.keys() - target.by_id.keys():
            yield self.removal(node_id, target.last_epoch)
        for node_id, row in target.by_id.items():
            if self.by_id.get(node_id) != row or self.controller_id != target.controller_id:
                yield self.change(row, target.controller_id)
        if target.last_epoch > self.last_epoch and target._is_of_nobody(target.last_epoch):
            yield self.removal(NOBODY, target.last_epoch)

    def _is_of_nobody(self, epoch: int) -> bool:
        """Whether an epoch is that of nobody who is here."""
        return epoch > max((row.epoch for row in self.by_id.values()), default=0)
