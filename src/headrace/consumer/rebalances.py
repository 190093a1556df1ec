"""Rebalances on the application thread: commits, the listener, and the new partitions. They run in `poll`.

I/O thread: revoke(lost) → application thread: commit, on_revoked or on_lost, remove → I/O thread: join
I/O thread: apply(assigned) → application thread: revoke what moves, add, on_assigned → I/O thread: stable
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from headrace.client.plugins import PrefixedLogger
from headrace.consumer.metrics import ConsumerMetrics, Listener
from headrace.consumer.partitions import AssignedPartition, Assignment, PositionState
from headrace.types import TopicPartition


class RebalanceListener:
    """Called in `poll` when the group moves partitions. Subclasses define what they need; exceptions leave `poll`."""

    def on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions were added; the listener may seek in them."""

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions will move to another member; the listener may commit their offsets."""

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions have another owner already, because this member was removed: their offsets cannot be committed."""
        self.on_revoked(partitions)


class Partitions(Protocol):
    """The assigned partitions, as rebalances need them."""

    @property
    def assignment(self) -> Assignment: ...
    @property
    def metrics(self) -> ConsumerMetrics: ...
    def assign(self, partitions: Iterable[AssignedPartition]) -> None: ...


class Rebalancer:
    """Applies the assignments of the group. Application thread only."""

    def __init__(self, partitions: Partitions, commit: Callable[[], None], log: PrefixedLogger) -> None:
        """`commit` commits the positions, if enable.auto.commit is on."""
        self._partitions = partitions
        self._commit = commit
        self._log = log
        self.listener = RebalanceListener()

    def revoke_all(self, *, lost: bool) -> None:
        """Give up all partitions."""
        self.revoke(self._partitions.assignment.partitions, lost=lost)

    def revoke(self, names: Iterable[TopicPartition], *, lost: bool = False) -> None:
        """Give up partitions: commit, call the listener, remove them."""
        current = self._partitions.assignment.partitions
        revoked = sorted(name for name in names if name in current)
        if not revoked:
            return
        self._log.info("%s %s", "lost" if lost else "revoking", ", ".join(map(str, revoked)))
        try:
            if lost:
                self._call("lost", self.listener.on_lost, revoked)
            else:
                self._commit()
                self._call("revoked", self.listener.on_revoked, revoked)
        finally:
            kept = self._partitions.assignment.partitions
            self._partitions.assign(partition for name, partition in kept.items() if name not in set(revoked))

    def apply(self, assigned: Iterable[TopicPartition]) -> bool:
        """Replace the partitions with those that the group has assigned; returns whether some were revoked."""
        self._partitions.metrics.rebalance_started()
        names = set(assigned)
        before = set(self._partitions.assignment.partitions)
        self.revoke(before - names)
        added = sorted(names - before)
        current = self._partitions.assignment.partitions
        self._partitions.assign(
            current.get(name) or AssignedPartition(name, PositionState.COMMITTED) for name in sorted(names)
        )
        self._log.info("assigned %s", ", ".join(map(str, sorted(names))) or "no partitions")
        try:
            self._call("assigned", self.listener.on_assigned, added)
        finally:
            self._partitions.metrics.rebalanced()
        return bool(before - names)

    def _call(
        self,
        what: Listener,
        method: Callable[[Collection[TopicPartition]], None],
        partitions: Collection[TopicPartition],
    ) -> None:
        """Call a method of the listener, and record its time."""
        metrics = self._partitions.metrics
        started_ms = metrics.now_ms()
        try:
            method(partitions)
        finally:
            metrics.listener_called(what, started_ms)
