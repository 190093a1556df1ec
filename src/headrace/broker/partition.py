"""A partition as this broker has it: its log, who leads it, and which replicas have what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import PartitionPlace
from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.broker.log import Log


class Partition:
    """One replica of a partition: the leader's, or a follower's."""

    __slots__ = (
        "_ends",
        "index",
        "is_deleted",
        "is_leader",
        "isr",
        "key",
        "leader",
        "leader_epoch",
        "log",
        "replicas",
        "topic",
    )

    def __init__(self, topic: str, index: int, log: Log, place: PartitionPlace, node_id: int) -> None:
        self.topic = topic
        self.index = index
        self.key = (topic, index)
        self.log = log
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.leader = -1
        self.leader_epoch = -1
        self.is_leader = False
        self.is_deleted = False  # somebody may still hold it who found it before
        self._ends: dict[int, int] = {}  # of the other replicas' logs, as far as they have told
        self.place(place, node_id)

    @property
    def topic_id(self) -> bytes:
        return self.log.topic_id

    def place(self, place: PartitionPlace, node_id: int) -> None:
        """Take over what the catalog says: another leader, epoch or set of replicas."""
        self.replicas, self.isr = place.replicas, place.isr
        self.leader, self.leader_epoch = place.leader, place.leader_epoch
        self.is_leader = place.leader == node_id
        self._ends = {node: self._ends.get(node, 0) for node in place.isr if node != node_id}
        if self.is_leader and self.leader_epoch > self.log.latest_epoch:
            self.log.begin_epoch(self.leader_epoch)

    def advance_high_watermark(self) -> bool:
        """Raise the high watermark to what all in-sync replicas have; whether it went up."""
        end = self.log.end_offset
        if self._ends:
            end = min(end, *self._ends.values())
        return end > self.log.high_watermark and self.log.advance_high_watermark(end)

    def check_epoch(self, known: int) -> None:
        """Raise unless a client's leader epoch (-1: it does not say) is ours."""
        if known in (-1, self.leader_epoch):
            return
        if known < self.leader_epoch:
            raise BrokerError(
                f"{self.topic}-{self.index}: leader epoch {known} is over, it is {self.leader_epoch} now",
                code=Code.FENCED_LEADER_EPOCH,
            )
        raise BrokerError(
            f"{self.topic}-{self.index}: leader epoch {known} is not known here, it is {self.leader_epoch}",
            code=Code.UNKNOWN_LEADER_EPOCH,
        )
