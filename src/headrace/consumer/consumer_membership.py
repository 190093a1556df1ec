"""Membership in a consumer group (KIP-848): heartbeats, and reconciliation with the assignment of the broker.

    state           heartbeats                                    next state
    UNJOINED        none                                          JOINING: subscribe
    JOINING         at once, with epoch 0 and all fields          STABLE: response
    STABLE          every interval, which the broker sets         RECONCILING: the assignment has changed
    RECONCILING     the same                                      ACKNOWLEDGING: the application has revoked and taken
    ACKNOWLEDGING   at once, with the partitions it owns          STABLE: response
    FENCED          none                                          JOINING: the application has given up its partitions
    PARTED          none: left, the application does not poll     FENCED: it polls again
    FAILED          none: an error that stays                     UNJOINED: subscribe

    any but the last three ─ UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH ─► FENCED

The broker assigns by topic id; partitions of topics whose names are not in the metadata yet are taken when they are.
I/O thread only.
"""

from __future__ import annotations

import base64
import uuid
from collections import defaultdict
from typing import NamedTuple

from headrace.client.metadata import Cluster
from headrace.consumer.coordinator import MOVED
from headrace.consumer.membership import (
    IDLE_MS,
    OUTSIDE,
    LeaveRequest,
    MemberParts,
    Membership,
    MemberState,
    Transitions,
)
from headrace.errors import BrokerError, Code, ConnectionFailedError, HeadraceError, UnsupportedVersionError
from headrace.types import TopicPartition
from headrace.wire.api.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
REGEX_VERSION = 1
"""From this version on, brokers match regular expressions, and the client makes the member id."""
REMOVED = frozenset({Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH, Code.GROUP_ID_NOT_FOUND})
RESOLVE_MS = 500.0
"""The time between two requests for the names of assigned topics."""

_HEARTBEATING = frozenset({MemberState.JOINING, MemberState.STABLE, MemberState.RECONCILING, MemberState.ACKNOWLEDGING})
_LEAVING = OUTSIDE | {MemberState.FENCED}
TRANSITIONS: Transitions = {
    MemberState.UNJOINED: frozenset({MemberState.JOINING, MemberState.FAILED}),
    MemberState.JOINING: _LEAVING | {MemberState.STABLE},
    MemberState.STABLE: _LEAVING | {MemberState.RECONCILING},
    MemberState.RECONCILING: _LEAVING | {MemberState.ACKNOWLEDGING},
    MemberState.ACKNOWLEDGING: _LEAVING | {MemberState.STABLE},
    MemberState.FENCED: OUTSIDE | {MemberState.JOINING},
    MemberState.PARTED: frozenset({MemberState.FENCED, MemberState.UNJOINED}),
    MemberState.FAILED: frozenset({MemberState.UNJOINED}),
}

UNSUPPORTED = (
    "the brokers do not support group.protocol=consumer (KIP-848): it needs Apache Kafka 4.0 or newer, with "
    "group.version 1 (`kafka-features.sh upgrade --feature group.version=1`), or a headrace broker. Set "
    "group.protocol=classic, which all brokers have"
)
REGEX_UNSUPPORTED = (
    "the brokers do not match regular expressions for group.protocol=consumer (ConsumerGroupHeartbeat v1): it needs "
    "Apache Kafka 4.0 or newer. Subscribe to names, or set group.protocol=classic"
)
REMEDIES = {
    Code.UNRELEASED_INSTANCE_ID: (
        "another consumer has this group.instance.id: close it or, if it has crashed, subscribe again after the "
        "session timeout of the broker (group.consumer.session.timeout.ms)"
    ),
    Code.FENCED_INSTANCE_ID: "another consumer has taken this group.instance.id: give each consumer its own",
    Code.UNSUPPORTED_ASSIGNOR: "set group.remote.assignor to an assignor of the broker (group.consumer.assignors)",
    Code.GROUP_MAX_SIZE_REACHED: "close other members, or raise group.consumer.max.size of the brokers",
    Code.GROUP_ID_NOT_FOUND: "use another group.id, or a consumer for the kind of the group",
    Code.INVALID_REGULAR_EXPRESSION: "brokers use RE2: it has no look-around and no back-references",
}


class _Fields(NamedTuple):
    """Fields that a heartbeat has only if they have changed since the last one."""

    topics: frozenset[str]
    regex: str
    owned: frozenset[tuple[bytes, int]]  # Topic ids and partitions.


class ConsumerMembership(Membership):
    """A member of a consumer group."""

    transitions = TRANSITIONS
    poll_checked = _HEARTBEATING | {MemberState.FENCED}
    renewing = _LEAVING | {MemberState.JOINING}

    def __init__(self, parts: MemberParts) -> None:
        super().__init__(parts)
        # The id of this process in the group, in Kafka's format. A broker of version 0 makes another one.
        self._own_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._sent: _Fields | None = None  # With the last heartbeat that succeeded; None: the next has all fields.
        self._target: dict[bytes, tuple[int, ...]] | None = None  # Topic id → partitions that the broker has assigned.
        self._is_target_new = False
        self._topic_ids: dict[str, bytes] = {}  # Of the partitions that the application has.
        self._unresolved: frozenset[bytes] = frozenset()  # Topics of the target whose names are unknown.
        self._resolve_at_ms = 0.0
        self._cluster: Cluster | None = None
        self._failures = 0
        self._is_urgent = False  # The next heartbeat does not wait for the interval.
        self._heartbeat_at_ms = 0.0
        self._retry_at_ms = 0.0

    # -- subscription --------------------------------------------------------------------------

    def topics(self) -> frozenset[str]:
        """Return the topics whose metadata is needed."""
        return self._topics.names | self._topic_ids.keys()

    def _on_subscribed(self) -> None:
        self._is_urgent = True
        if self._state is MemberState.UNJOINED:
            self._failures, self._retry_at_ms = 0, 0.0
            self._start_joining()

    def _start_joining(self) -> None:
        self._transition_to(MemberState.JOINING)
        self._sent = None

    def _leave_request(self, reason: str) -> LeaveRequest | None:
        """Return a heartbeat that leaves. A static member leaves for a moment: it may come back as another process."""
        if self._state not in _HEARTBEATING:
            return None
        settings = self._settings
        epoch = LEAVE_EPOCH if settings.instance_id is None else STATIC_LEAVE_EPOCH
        member_id = self._member_id

        def build(version: int) -> ConsumerGroupHeartbeatRequest:
            return ConsumerGroupHeartbeatRequest(
                group_id=settings.group_id,
                member_id=member_id or (self._own_id if version >= REGEX_VERSION else ""),
                member_epoch=epoch,
                instance_id=settings.instance_id,
            )

        return ConsumerGroupHeartbeatRequest, build

    # -- the loop ------------------------------------------------------------------------------

    def _advance(self, now: float) -> float:
        wait_ms = IDLE_MS
        if self._state is MemberState.STABLE:
            wait_ms = self._reconcile(now)
        if self._state in _HEARTBEATING:
            wait_ms = min(wait_ms, self._beat(now))
        return wait_ms

    def _rejoin(self) -> None:
        """Let the application give up its partitions, which are lost, then join."""
        self._transition_to(MemberState.FENCED)
        self._forget_member(self._member_id)
        self._target, self._is_target_new, self._unresolved = None, False, frozenset()
        step = self._step()

        def on_done() -> None:
            if step():
                self._topic_ids = {}
                self._start_joining()

        self._application.revoke(step, on_done, lost=True, keeps=False)

    def _on_removed(self, code: int) -> None:
        """Send a heartbeat: its response has the new epoch, or shows that this member was removed."""
        self._is_urgent = True

    # -- reconciliation ------------------------------------------------------------------------

    def _reconcile(self, now: float) -> float:
        """Let the application take what the broker has assigned, as far as the names of the topics are known."""
        cluster, target = self._metadata.cluster, self._target
        is_new, self._cluster = cluster is not self._cluster, cluster
        if target is None or not (self._is_target_new or (self._unresolved and is_new)):
            return self._resolve(now)
        self._is_target_new = False
        names = {info.topic_id: name for name, info in cluster.topics.items()}
        self._unresolved = frozenset(target.keys() - names.keys())
        topic_ids = {names[topic_id]: topic_id for topic_id in target if topic_id in names}
        assigned = [
            TopicPartition(topic, number) for topic, topic_id in topic_ids.items() for number in target[topic_id]
        ]
        for topic in topic_ids:
            self._metadata.add_topic(topic)
        owned = set(self._application.owned())
        recreated = {
            tp for tp in owned if tp.topic in topic_ids and self._topic_ids.get(tp.topic) != topic_ids[tp.topic]
        }
        if set(assigned) != owned or recreated:
            self._apply(assigned, topic_ids, recreated)
        return self._resolve(now)

    def _apply(
        self, assigned: list[TopicPartition], topic_ids: dict[str, bytes], recreated: set[TopicPartition]
    ) -> None:
        self._transition_to(MemberState.RECONCILING)
        step = self._step()
        # Until the application has given them up, heartbeats name the partitions that it still owns.
        self._topic_ids = {**self._topic_ids, **topic_ids}

        def on_done(has_revoked: bool) -> None:
            if step():
                self._topic_ids = topic_ids
                self._transition_to(MemberState.ACKNOWLEDGING)

        self._application.apply(step, assigned, on_done, recreated)

    def _resolve(self, now: float) -> float:
        """Request the names of topics that the metadata does not have; returns the time until the next request."""
        if not self._unresolved:
            return IDLE_MS
        if now >= self._resolve_at_ms:
            self._resolve_at_ms = now + RESOLVE_MS
            self._metadata.add_topic_ids(self._unresolved)
        return self._resolve_at_ms - now

    # -- heartbeats ----------------------------------------------------------------------------

    def _beat(self, now: float) -> float:
        if self._is_requested:
            return IDLE_MS
        is_urgent = self._is_urgent or self._state in (MemberState.JOINING, MemberState.ACKNOWLEDGING)
        due_ms = max(self._retry_at_ms, 0.0 if is_urgent else self._heartbeat_at_ms)
        if now < due_ms:
            return due_ms - now
        self._is_urgent = False
        is_acknowledging = self._state is MemberState.ACKNOWLEDGING
        fields = self._fields()

        def build(version: int) -> ConsumerGroupHeartbeatRequest:
            return self._request(fields, version)

        def on_response(response: ConsumerGroupHeartbeatResponse) -> None:
            if response.error_code:
                self._on_error(response.error_code, response.error_message)
            else:
                self._on_heartbeat(response, fields, is_acknowledging)

        # A broker that does not match regular expressions would ignore the subscription.
        first_version = REGEX_VERSION if fields.regex else None
        self._submit(ConsumerGroupHeartbeatRequest, build, on_response, first_version=first_version)
        return IDLE_MS

    def _fields(self) -> _Fields:
        ids, owned = self._topic_ids, self._application.owned() if self._state is not MemberState.JOINING else ()
        partitions = frozenset((ids[tp.topic], tp.partition) for tp in owned if tp.topic in ids)
        return _Fields(self._topics.names, self._topics.regex, partitions)

    def _request(self, fields: _Fields, version: int) -> ConsumerGroupHeartbeatRequest:
        settings, sent = self._settings, self._sent
        request = ConsumerGroupHeartbeatRequest(
            group_id=settings.group_id,
            member_id=self._member_id or (self._own_id if version >= REGEX_VERSION else ""),
            member_epoch=JOIN_EPOCH if self._state is MemberState.JOINING else self._generation,
            instance_id=settings.instance_id,
        )
        if sent is None:
            request = request.replace(
                rebalance_timeout_ms=settings.max_poll_interval_ms,
                rack_id=settings.rack or None,
                server_assignor=settings.remote_assignor,
            )
        if sent is None or fields.topics != sent.topics:
            request = request.replace(subscribed_topic_names=sorted(fields.topics))
        if fields.regex != ("" if sent is None else sent.regex):
            request = request.replace(subscribed_topic_regex=fields.regex)
        if sent is None or fields.owned != sent.owned:
            request = request.replace(topic_partitions=_rows(fields.owned))
        return request

    def _on_heartbeat(self, response: ConsumerGroupHeartbeatResponse, fields: _Fields, is_acknowledging: bool) -> None:
        self._failures, self._retry_at_ms = 0, 0.0
        self._heartbeat_at_ms = self._clock.monotonic_ms() + response.heartbeat_interval_ms
        self._sent = fields
        member_id = response.member_id or self._member_id
        if (response.member_epoch, member_id) != (self._generation, self._member_id):
            self._log.info("epoch %d as member %s", response.member_epoch, member_id)
            self._set_identity(response.member_epoch, member_id)
        if self._state is MemberState.JOINING or (self._state is MemberState.ACKNOWLEDGING and is_acknowledging):
            self._transition_to(MemberState.STABLE)
        if response.assignment is not None:
            rows = response.assignment.topic_partitions
            self._target = {row.topic_id: tuple(row.partitions) for row in rows}
            self._is_target_new = True

    # -- errors --------------------------------------------------------------------------------

    def _on_error(self, code: int, message: str | None) -> None:
        self._sent = None  # The next heartbeat has all fields, in case that the broker lost some.
        self._failures += 1
        self._retry_at_ms = self._coordinator.retry_at_ms(self._failures)
        error = self._error(code, message)
        if code in MOVED:
            self._coordinator.forget(error)
        elif code == Code.GROUP_ID_NOT_FOUND and self._state is MemberState.JOINING:
            self._fail(error)  # joining creates a group, so there is one of another kind
        elif code in REMOVED:
            self._log.warning("removed from the group: %s", error)
            self._rejoin()
        elif code == Code.TOPIC_AUTHORIZATION_FAILED:
            self._application.raise_in_poll(error)  # and retried: the permission may be granted
        elif code != Code.COORDINATOR_LOAD_IN_PROGRESS:
            self._fail(error)

    def _error(self, code: int, message: str | None) -> HeadraceError:
        if code == Code.UNSUPPORTED_VERSION:
            return UnsupportedVersionError(UNSUPPORTED)
        remedy = REMEDIES.get(Code(code)) if code in Code.__members__.values() else None
        parts = [f"group {self._settings.group_id!r}", message, remedy]
        return BrokerError("; ".join(part.rstrip(".") for part in parts if part), code=code)

    def _on_request_failed(self, error: HeadraceError) -> None:
        """Retry after a lost connection; other errors stay."""
        self._sent = None
        if isinstance(error, ConnectionFailedError):
            self._failures += 1
            self._retry_at_ms = self._coordinator.retry_at_ms(self._failures)
        elif isinstance(error, UnsupportedVersionError):
            self._fail(self._unsupported(error))
        else:
            self._fail(error)

    def _unsupported(self, error: UnsupportedVersionError) -> UnsupportedVersionError:
        return UnsupportedVersionError(f"{REGEX_UNSUPPORTED if self._topics.regex else UNSUPPORTED} ({error})")


def _rows(owned: frozenset[tuple[bytes, int]]) -> list[HeartbeatTopicPartitions]:
    numbers: defaultdict[bytes, list[int]] = defaultdict(list)
    for topic_id, number in sorted(owned):
        numbers[topic_id].append(number)
    return [HeartbeatTopicPartitions(topic_id=topic_id, partitions=rows) for topic_id, rows in numbers.items()]
