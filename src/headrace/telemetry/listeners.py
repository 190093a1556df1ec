"""Listeners: how clients and the Spark sink are observed for reports. Failpoints, by contrast, are for tests only."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headrace.config import Log

if TYPE_CHECKING:  # every client imports this module, and only those that report need the models
    from headrace.telemetry.models import ConsumerSnapshot, ProducerSnapshot


class SnapshotSource(Protocol):
    """Collects snapshots of one client, on any thread and without a lock of the client."""

    @property
    def log(self) -> Log: ...
    def collect(self) -> ProducerSnapshot | ConsumerSnapshot: ...


@runtime_checkable
class ClientListener(Protocol):
    """A metrics reporter that also follows the state of clients.

    Called once by each producer and consumer that has it among its `metric.reporters`; `MetricsReporter.close` ends it.
    """

    def client_created(self, source: SnapshotSource) -> None: ...


class CommitPhase(StrEnum):
    """The phases of a commit, in the order of docs/exactly-once.md. `REDO`, `REPLAY` and `ABORT` are exceptional."""

    BEGIN = "begin"
    CHECK = "check"
    DECIDE = "decide"
    END = "end"
    FINISH = "finish"
    REDO = "redo"
    REPLAY = "replay"
    ABORT = "abort"


class CommitListener(Protocol):
    """Follows the commit of a batch, on the thread that commits. Implementations must not raise."""

    def phase_started(self, phase: CommitPhase) -> None: ...
    def transaction_redone(self) -> None: ...


class NullCommitListener:
    """A listener that ignores everything."""

    def phase_started(self, phase: CommitPhase) -> None:
        pass

    def transaction_redone(self) -> None:
        pass


NULL_COMMIT_LISTENER = NullCommitListener()
