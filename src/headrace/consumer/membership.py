"""Membership in a group: what the classic protocol and the consumer protocol (KIP-848) share.

    UNJOINED ─ subscribe ─► states of the protocol ─ leave ─► UNJOINED
    PARTED: left because the application does not poll; joins again when it does.   FAILED: an error that stays.

The states of the protocols, and their transitions, are in `classic_membership.py` and `consumer_membership.py`. Giving
up and taking partitions are steps of the application, in `poll`; heartbeats continue meanwhile. I/O thread only.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, Protocol, TypeVar

from headrace.client.metadata import Cluster, Metadata, MetadataUpdater
from headrace.client.plugins import PrefixedLogger
from headrace.config.clock import Clock
from headrace.consumer.coordinator import CoordinatorRequest, GroupCoordinator
from headrace.consumer.settings import GroupSettings
from headrace.errors import HeadraceError, IllegalStateError
from headrace.types import GroupMetadata, TopicPartition
from headrace.wire.schema import Message, RequestMessage

R = TypeVar("R", bound=Message)
NO_GENERATION = -1
IDLE_MS = 60_000.0


class MemberState(Enum):
    """The states of both protocols; each has a table of its own."""

    UNJOINED = auto()
    REVOKING = auto()
    JOINING = auto()
    SYNCING = auto()
    ASSIGNING = auto()
    STABLE = auto()
    RECONCILING = auto()
    ACKNOWLEDGING = auto()
    FENCED = auto()
    PARTED = auto()
    FAILED = auto()


OUTSIDE = frozenset({MemberState.UNJOINED, MemberState.PARTED, MemberState.FAILED})
"""States in which the consumer is not in the group. A member can get there from every other state."""
Transitions = Mapping[MemberState, frozenset[MemberState]]

LeaveRequest = tuple[type[RequestMessage[Any]], Callable[[int], RequestMessage[Any]]]
"""The kind of a request that leaves the group, and how to build it for a version."""
Step = Callable[[], bool]
"""Returns whether a step is still to be done: the state of the member may have changed before the application polls."""


class Application(Protocol):
    """The application thread, as the membership needs it."""

    def revoke(self, step: Step, on_done: Callable[[], None], *, lost: bool, keeps: bool) -> None:
        """Give up the partitions, except if `keeps` (cooperative) those of subscribed topics; then call `on_done`."""

    def apply(
        self,
        step: Step,
        assigned: Sequence[TopicPartition],
        on_done: Callable[[bool], None],
        recreated: Collection[TopicPartition] = (),
    ) -> None:
        """Take the assigned partitions; then call `on_done` with whether some were revoked.

        `recreated` are partitions of topics that were deleted and created again: they are lost, and start anew.
        """

    def owned(self) -> list[TopicPartition]: ...
    def raise_in_poll(self, error: HeadraceError) -> None: ...
    def is_overdue(self, now: float) -> bool:
        """Return whether the last poll is longer ago than max.poll.interval.ms."""

    def poll_deadline_ms(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Topics:
    """What a consumer subscribes to: names, or a pattern."""

    names: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    """Matched by the consumer, with the names of all topics."""
    regex: str = ""
    """Matched by the broker (KIP-848)."""
    matches_internal: bool = False

    def resolve(self, cluster: Cluster) -> frozenset[str]:
        """Return the topics; those of a pattern from the metadata. The broker alone knows those of a regex."""
        if self.pattern is None:
            return self.names
        return frozenset(
            name
            for name, info in cluster.topics.items()
            if self.pattern.fullmatch(name) and (self.matches_internal or not info.internal)
        )


@dataclass(frozen=True, slots=True)
class MemberParts:
    """What a member works with."""

    coordinator: GroupCoordinator
    updater: MetadataUpdater
    settings: GroupSettings
    clock: Clock
    application: Application
    log: PrefixedLogger


class Membership(ABC):
    """The state of this member, and its requests to the coordinator."""

    transitions: ClassVar[Transitions]
    poll_checked: ClassVar[frozenset[MemberState]]
    """States in which the application must poll."""
    renewing: ClassVar[frozenset[MemberState]]
    """States that start a new attempt: responses to earlier requests, and earlier steps, are ignored from then on."""

    def __init__(self, parts: MemberParts) -> None:
        self._coordinator = coordinator = parts.coordinator
        self._updater = parts.updater
        self._metadata: Metadata = parts.updater.metadata
        self._settings = parts.settings
        self._clock = parts.clock
        self._application = parts.application
        self._log = parts.log
        self._state = MemberState.UNJOINED
        self._generation = NO_GENERATION  # Or the epoch of the member.
        self._member_id = ""
        self._topics = Topics()
        self._attempt = 0
        self._is_requested = False  # A request of the current attempt is in flight.
        self._identity = self._no_identity()
        coordinator.identity = lambda: self._identity
        coordinator.is_member = lambda: self._generation != NO_GENERATION
        coordinator.on_removed = self._on_removed
        coordinator.on_error = self._fail

    # -- state ---------------------------------------------------------------------------------

    @property
    def identity(self) -> GroupMetadata:
        """Group, generation and member id. Replaced as a whole, so that any thread may read it."""
        return self._identity

    @property
    def state(self) -> MemberState:
        return self._state

    @property
    def protocol(self) -> str:
        return self._settings.protocol

    def _transition_to(self, state: MemberState) -> None:
        if state not in self.transitions[self._state]:
            raise IllegalStateError(f"internal error: a member cannot go from {self._state.name} to {state.name}")
        self._log.debug("member: %s → %s", self._state.name, state.name)
        self._state = state
        if state in self.renewing:
            self._attempt += 1
            self._is_requested = False

    def _step(self) -> Step:
        attempt = self._attempt
        return lambda: attempt == self._attempt

    def _set_identity(self, generation: int, member_id: str) -> None:
        self._generation, self._member_id = generation, member_id
        self._identity = GroupMetadata(self._settings.group_id, generation, member_id, self._settings.instance_id)

    def _no_identity(self) -> GroupMetadata:
        return GroupMetadata(self._settings.group_id, NO_GENERATION, "", self._settings.instance_id)

    def _forget_member(self, member_id: str = "") -> None:
        """Be no member any more. The identity stays, as in Java, so that commits fail: a commit without a member is
        accepted by a group without members, and could undo those of later owners.
        """
        self._generation, self._member_id = NO_GENERATION, member_id

    @abstractmethod
    def topics(self) -> frozenset[str]:
        """Return the topics whose metadata is needed."""

    # -- subscription --------------------------------------------------------------------------

    def subscribe(self, topics: Topics) -> None:
        """Join the group with these topics, or tell it about them."""
        self._topics = topics
        self._updater.track_all_topics(topics.pattern is not None)
        for name in topics.names:
            self._metadata.add_topic(name)
        if topics.pattern is not None:
            self._metadata.request_update(is_urgent=True)
        if self._state is MemberState.FAILED:
            self._transition_to(MemberState.UNJOINED)
        self._on_subscribed()

    @abstractmethod
    def _on_subscribed(self) -> None:
        """Join if UNJOINED; otherwise tell the group about the changed subscription."""

    def leave(self, reason: str, on_done: Callable[[], None]) -> None:
        """Leave the group."""
        self._topics = Topics()
        self._updater.track_all_topics(False)
        leave = self._leave_request(reason)
        if self._state is not MemberState.UNJOINED:
            self._transition_to(MemberState.UNJOINED)
        self._forget_member()
        self._identity = self._no_identity()
        self._send_leave(leave, on_done)

    @abstractmethod
    def _leave_request(self, reason: str) -> LeaveRequest | None:
        """Return the request that leaves the group; None: there is nothing to leave."""

    def _send_leave(self, leave: LeaveRequest | None, on_done: Callable[[], None]) -> None:
        if leave is None or not self._coordinator.is_known():
            on_done()
            return
        kind, build = leave
        timeout_ms = self._settings.request_timeout_ms
        self._coordinator.submit(
            CoordinatorRequest(
                kind.api_key,
                build,
                (kind.versions.first, kind.versions.last),
                timeout_ms,
                lambda result: on_done(),
                deadline_ms=self._clock.monotonic_ms() + timeout_ms,
            )
        )

    # -- the loop ------------------------------------------------------------------------------

    def run(self, now: float) -> float:
        """Do what is due; returns the time until the next check."""
        if self._state in (MemberState.UNJOINED, MemberState.FAILED):
            return IDLE_MS
        if self._state is MemberState.PARTED:
            if self._application.is_overdue(now):
                return IDLE_MS  # the next poll wakes this thread
            self._rejoin()
        if self._state in self.poll_checked and self._application.is_overdue(now):
            self._part()
            return IDLE_MS
        return min(max(0.0, self._application.poll_deadline_ms() - now), self._advance(now))

    @abstractmethod
    def _advance(self, now: float) -> float:
        """Do what is due in a state of the protocol; returns the time until the next check."""

    @abstractmethod
    def _rejoin(self) -> None:
        """Let the application give up its partitions, which are lost, and join again."""

    @abstractmethod
    def _on_removed(self, code: int) -> None:
        """Handle a commit that failed because the group has removed this member."""

    def _part(self) -> None:
        """Leave, because the application does not poll."""
        self._log.warning(
            "leaving the group: the application has not polled for %d ms (max.poll.interval.ms). Raise it, or lower "
            "max.poll.records",
            self._settings.max_poll_interval_ms,
        )
        leave = self._leave_request("the application did not poll within max.poll.interval.ms")
        self._transition_to(MemberState.PARTED)
        self._forget_member()
        self._send_leave(leave, lambda: None)

    def _fail(self, error: HeadraceError) -> None:
        """Stop, with an error that does not go away. The partitions are lost."""
        if self._state not in (MemberState.UNJOINED, MemberState.FAILED):
            self._transition_to(MemberState.FAILED)
            self._forget_member()
            self._application.revoke(self._step(), lambda: None, lost=True, keeps=False)
        self._application.raise_in_poll(error)

    # -- requests ------------------------------------------------------------------------------

    def _submit(
        self,
        kind: type[RequestMessage[R]],
        build: Callable[[int], RequestMessage[R]],
        on_response: Callable[[R], None],
        *,
        timeout_ms: float | None = None,
        first_version: int | None = None,
    ) -> None:
        """Send a request; its response is ignored if another attempt has started in the meantime."""
        attempt = self._attempt

        def on_result(result: R | HeadraceError) -> None:
            if attempt != self._attempt:
                return
            self._is_requested = False
            if isinstance(result, HeadraceError):
                self._on_request_failed(result)
            else:
                on_response(result)

        self._is_requested = True
        self._coordinator.submit(
            CoordinatorRequest(
                kind.api_key,
                build,
                (kind.versions.first if first_version is None else first_version, kind.versions.last),
                timeout_ms or self._settings.request_timeout_ms,
                on_result,
            )
        )

    @abstractmethod
    def _on_request_failed(self, error: HeadraceError) -> None:
        """Handle a request without a response."""
