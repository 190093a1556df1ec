"""Membership in a classic group: join, sync, heartbeats, leave.

    UNJOINED ─ subscribe ─► REVOKING ─ application ─► JOINING ─► SYNCING ─► ASSIGNING ─ application ─► STABLE
                               ▲                                                                         │
                               └────────── rebalance, new topics, removed from the group ◄──────────────┘
    PARTED: left because the application does not poll; joins again when it does.   FAILED: an error that stays.

Revoking and assigning are steps of the application, in `poll`; heartbeats continue meanwhile. I/O thread only.
"""

from __future__ import annotations

from headrace.client.metadata import Cluster
from headrace.consumer.assignors import Member, assign, is_cooperative, user_data
from headrace.consumer.coordinator import MOVED
from headrace.consumer.membership import (
    IDLE_MS,
    NO_GENERATION,
    OUTSIDE,
    LeaveRequest,
    MemberParts,
    Membership,
    MemberState,
    Transitions,
)
from headrace.errors import BrokerError, Code, ConnectionFailedError, HeadraceError, WireError
from headrace.types import TopicPartition
from headrace.wire.api.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from headrace.wire.consumer_protocol import (
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    partitions_by_topic,
)

PROTOCOL_TYPE = "consumer"
JOIN_MARGIN_MS = 5000.0
"""How much longer than the rebalance timeout to wait for the response to JoinGroup."""
METADATA_WAIT_MS_MAX = 5000.0
"""How long a leader waits for the metadata of topics of other members; then it assigns without them."""
INCONSISTENT = (
    "its members share no assignor (partition.assignment.strategy), or it is of another kind. List the assignors of "
    "the other members, or use another group.id"
)
REMOVED = frozenset({Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION})


TRANSITIONS: Transitions = {
    MemberState.UNJOINED: frozenset({MemberState.REVOKING, MemberState.FAILED}),
    MemberState.REVOKING: OUTSIDE | {MemberState.JOINING},
    MemberState.JOINING: OUTSIDE | {MemberState.SYNCING, MemberState.REVOKING},
    MemberState.SYNCING: OUTSIDE | {MemberState.ASSIGNING, MemberState.JOINING, MemberState.REVOKING},
    MemberState.ASSIGNING: OUTSIDE | {MemberState.STABLE, MemberState.REVOKING},
    MemberState.STABLE: OUTSIDE | {MemberState.REVOKING},
    MemberState.PARTED: frozenset({MemberState.REVOKING, MemberState.UNJOINED}),
    MemberState.FAILED: frozenset({MemberState.UNJOINED}),
}
HEARTBEATING = frozenset({MemberState.REVOKING, MemberState.ASSIGNING, MemberState.STABLE})


class ClassicMembership(Membership):
    """A member of a classic group."""

    transitions = TRANSITIONS
    poll_checked = HEARTBEATING | {MemberState.JOINING, MemberState.SYNCING}
    renewing = frozenset(TRANSITIONS)

    def __init__(self, parts: MemberParts) -> None:
        super().__init__(parts)
        self._joined_topics: frozenset[str] = frozenset()
        self._joined_counts: dict[str, int | None] = {}  # Partitions of all topics of the group; set by the leader.
        self._pending_assignment: tuple[JoinGroupResponse, float] | None = None  # And until when to wait for metadata.
        self._previous: list[TopicPartition] = []  # The last assignment, for the sticky assignor.
        self._group_topics: frozenset[str] = frozenset()
        self._cluster: Cluster | None = None
        self._failures = 0
        self._join_at_ms = 0.0
        self._heartbeat_at_ms = 0.0
        self._heard_at_ms = 0.0
        self._is_rejoin_needed = False

    # -- subscription --------------------------------------------------------------------------

    @property
    def _is_cooperative(self) -> bool:
        return is_cooperative(self._settings.assignors)

    def topics(self) -> frozenset[str]:
        """Return the topics whose metadata is needed."""
        return self._topics.resolve(self._metadata.cluster) | self._group_topics

    def _on_subscribed(self) -> None:
        if self._state is MemberState.UNJOINED:
            self._revoke(lost=False)
        else:
            self._is_rejoin_needed = True

    def _leave_request(self, reason: str) -> LeaveRequest | None:
        """Return LeaveGroup; None for a static member, which stays in the group until its session expires."""
        member_id = self._member_id
        if not member_id or self._settings.instance_id is not None:
            return None

        def build(version: int) -> LeaveGroupRequest:
            if version < 3:
                return LeaveGroupRequest(group_id=self._settings.group_id, member_id=member_id)
            identity = MemberIdentity(member_id=member_id, reason=reason)
            return LeaveGroupRequest(group_id=self._settings.group_id, members=[identity])

        return LeaveGroupRequest, build

    # -- the loop ------------------------------------------------------------------------------

    def _advance(self, now: float) -> float:
        self._check_metadata()
        wait_ms = IDLE_MS
        if self._state is MemberState.JOINING and not self._is_requested:
            wait_ms = self._join(now)
        if self._state in HEARTBEATING:
            wait_ms = min(wait_ms, self._beat(now))
        return wait_ms

    def _check_metadata(self) -> None:
        """Rejoin if topics or partitions have changed; as leader, also for topics of other members."""
        cluster = self._metadata.cluster
        is_new, self._cluster = cluster is not self._cluster, cluster
        if self._state is not MemberState.STABLE:
            return
        if self._is_rejoin_needed:
            self._log.info("rejoining: the subscription or the assignment has changed")
        elif not is_new:
            return
        elif self._topics.pattern is not None and self._topics.resolve(cluster) != self._joined_topics:
            self._log.info("rejoining: the topics that match the pattern have changed")
        elif any(_has_changed(cluster, topic, count) for topic, count in self._joined_counts.items()):
            self._log.info("rejoining: topics were deleted, or the number of partitions has changed")
        else:
            return
        self._revoke(lost=False)

    def _rejoin(self) -> None:
        self._revoke(lost=True)

    def _revoke(self, *, lost: bool) -> None:
        """Let the application give up its partitions, then join."""
        self._transition_to(MemberState.REVOKING)
        self._is_rejoin_needed = False
        attempt = self._attempt
        if lost:
            self._previous = []

        def on_done() -> None:
            if attempt == self._attempt:
                self._transition_to(MemberState.JOINING)

        self._application.revoke(self._step(), on_done, lost=lost, keeps=self._is_cooperative)

    def _on_removed(self, code: int) -> None:
        """Join again: the group has removed this member, or has a newer generation of it."""
        if self._state in OUTSIDE or self._generation == NO_GENERATION:
            return  # that is known already
        self._log.warning("removed from the group: %s", BrokerError(code=code))
        if self._state is MemberState.REVOKING:
            self._transition_to(MemberState.JOINING)
        self._forget_generation(code)
        self._revoke(lost=True)

    def _forget_generation(self, code: int) -> None:
        """With ILLEGAL_GENERATION, keep the id, as in Java: the group would wait for this member under its old id."""
        self._forget_member(self._member_id if code == Code.ILLEGAL_GENERATION else "")

    # -- join ----------------------------------------------------------------------------------

    def _join(self, now: float) -> float:
        if self._pending_assignment is not None:
            response, until_ms = self._pending_assignment
            return self._lead(response, until_ms, now)
        if now < self._join_at_ms:
            return self._join_at_ms - now
        if self._topics.pattern is not None and self._metadata.version == 0:
            return IDLE_MS  # the metadata wakes this thread
        self._is_rejoin_needed = False
        self._joined_topics = self._topics.resolve(self._metadata.cluster)
        settings = self._settings

        def build(version: int) -> JoinGroupRequest:
            request = JoinGroupRequest(
                group_id=settings.group_id,
                session_timeout_ms=settings.session_timeout_ms,
                rebalance_timeout_ms=settings.max_poll_interval_ms,
                member_id=self._member_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=self._protocols(),
            )
            return request.replace(group_instance_id=settings.instance_id) if version >= 5 else request

        timeout_ms = max(settings.request_timeout_ms, settings.max_poll_interval_ms + JOIN_MARGIN_MS)
        self._submit(JoinGroupRequest, build, self._on_joined, timeout_ms=timeout_ms)
        return IDLE_MS

    def _protocols(self) -> list[JoinGroupRequestProtocol]:
        owned = self._application.owned() if self._is_cooperative else []
        rows = []
        for name in self._settings.assignors:
            subscription = ConsumerProtocolSubscription(
                topics=sorted(self._joined_topics),
                user_data=user_data(name, self._previous, self._generation),
                owned_partitions=partitions_by_topic(owned),
                generation_id=self._generation,
                rack_id=self._settings.rack or None,
            )
            rows.append(JoinGroupRequestProtocol(name=name, metadata=encode_subscription(subscription)))
        return rows

    def _on_joined(self, response: JoinGroupResponse) -> None:
        code = response.error_code
        if code == Code.MEMBER_ID_REQUIRED:
            self._forget_member(response.member_id)
            return
        if code:
            self._rejoin_after(code, "JoinGroup")
            return
        self._failures = 0
        self._set_identity(response.generation_id, response.member_id)
        self._joined_counts = {}
        self._group_topics = frozenset()
        self._log.info("joined generation %d as %s", response.generation_id, response.member_id)
        if response.leader == response.member_id and not response.skip_assignment:
            self._lead(response, self._clock.monotonic_ms() + METADATA_WAIT_MS_MAX, self._clock.monotonic_ms())
        else:
            self._sync(response, {})

    def _lead(self, response: JoinGroupResponse, until_ms: float, now: float) -> float:
        """Assign the partitions, when the metadata has all topics."""
        try:
            members = [
                Member(row.member_id, row.group_instance_id, decode_subscription(row.metadata))
                for row in response.members
            ]
        except WireError as error:
            self._pending_assignment = None
            self._fail(error)
            return IDLE_MS
        topics = frozenset(topic for member in members for topic in member.subscription.topics)
        self._group_topics = topics
        cluster = self._metadata.cluster
        missing = [t for t in topics if cluster.partition_count(t) is None and t not in cluster.errors]
        for topic in missing:
            self._metadata.add_topic(topic)
        if missing and now < until_ms:
            self._pending_assignment = (response, until_ms)
            return until_ms - now
        self._pending_assignment = None
        counts = {topic: cluster.partition_count(topic) for topic in topics}
        self._joined_counts = dict(counts)
        known = {topic: count for topic, count in counts.items() if count is not None}
        self._sync(response, assign(response.protocol_name or "", members, known))
        return IDLE_MS

    # -- sync ----------------------------------------------------------------------------------

    def _sync(self, joined: JoinGroupResponse, assigned: dict[str, list[TopicPartition]]) -> None:
        self._transition_to(MemberState.SYNCING)
        generation, member_id = self._generation, self._member_id

        def build(version: int) -> SyncGroupRequest:
            request = SyncGroupRequest(
                group_id=self._settings.group_id,
                generation_id=generation,
                member_id=member_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=joined.protocol_name,
                assignments=[
                    SyncGroupRequestAssignment(member_id=each, assignment=encode_assignment(partitions))
                    for each, partitions in assigned.items()
                ],
            )
            return request.replace(group_instance_id=self._settings.instance_id) if version >= 3 else request

        timeout_ms = max(self._settings.request_timeout_ms, self._settings.max_poll_interval_ms + JOIN_MARGIN_MS)
        self._submit(SyncGroupRequest, build, self._on_synced, timeout_ms=timeout_ms)

    def _on_synced(self, response: SyncGroupResponse) -> None:
        if response.error_code:
            self._rejoin_after(response.error_code, "SyncGroup")
            return
        try:
            partitions = decode_assignment(response.assignment)
        except WireError as error:
            self._fail(error)
            return
        now = self._clock.monotonic_ms()
        self._heard_at_ms, self._heartbeat_at_ms = now, now + self._settings.heartbeat_interval_ms
        self._transition_to(MemberState.ASSIGNING)
        self._previous = partitions
        attempt = self._attempt

        def on_done(has_revoked: bool) -> None:
            if attempt == self._attempt:
                # Cooperative: what was revoked is assigned to others in the next rebalance.
                self._is_rejoin_needed = self._is_rejoin_needed or has_revoked
                self._transition_to(MemberState.STABLE)

        self._application.apply(self._step(), partitions, on_done)

    def _rejoin_after(self, code: int, api: str) -> None:
        """Handle an error of JoinGroup or SyncGroup."""
        self._failures += 1
        if code in MOVED:
            self._coordinator.forget(BrokerError(api, code=code))
        elif code in REMOVED:
            self._forget_generation(code)
        elif code not in (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.REBALANCE_IN_PROGRESS):
            remedy = f": {INCONSISTENT}" if code == Code.INCONSISTENT_GROUP_PROTOCOL else ""
            self._fail(BrokerError(f"{api} of group {self._settings.group_id!r}{remedy}", code=code))
            return
        self._retry_join()

    def _retry_join(self) -> None:
        if self._state is MemberState.SYNCING:
            self._transition_to(MemberState.JOINING)
        self._join_at_ms = self._coordinator.retry_at_ms(self._failures)

    # -- heartbeats ----------------------------------------------------------------------------

    def _beat(self, now: float) -> float:
        if self._generation == NO_GENERATION:
            return IDLE_MS
        if now - self._heard_at_ms >= self._settings.session_timeout_ms:
            self._coordinator.forget("no response to heartbeats for session.timeout.ms")
            self._heard_at_ms = now
        if self._is_requested or now < self._heartbeat_at_ms:
            return IDLE_MS if self._is_requested else self._heartbeat_at_ms - now
        generation, member_id = self._generation, self._member_id

        def build(version: int) -> HeartbeatRequest:
            request = HeartbeatRequest(group_id=self._settings.group_id, generation_id=generation, member_id=member_id)
            return request.replace(group_instance_id=self._settings.instance_id) if version >= 3 else request

        self._submit(HeartbeatRequest, build, self._on_heartbeat)
        return self._settings.heartbeat_interval_ms

    def _on_heartbeat(self, response: HeartbeatResponse) -> None:
        code = response.error_code
        self._heartbeat_at_ms = self._clock.monotonic_ms() + self._settings.heartbeat_interval_ms
        if code == Code.NONE:
            self._heard_at_ms = self._clock.monotonic_ms()
        elif code == Code.REBALANCE_IN_PROGRESS:
            self._heard_at_ms = self._clock.monotonic_ms()
            if self._state is MemberState.STABLE:
                self._log.info("the group rebalances")
                self._revoke(lost=False)
            elif self._state is MemberState.ASSIGNING:
                self._is_rejoin_needed = True
        elif code in REMOVED:
            self._on_removed(code)
        elif code in MOVED:
            self._coordinator.forget(BrokerError("Heartbeat", code=code))
        elif code != Code.COORDINATOR_LOAD_IN_PROGRESS:
            self._fail(BrokerError(f"Heartbeat of group {self._settings.group_id!r}", code=code))

    def _on_request_failed(self, error: HeadraceError) -> None:
        """Retry after a lost connection; other errors stay."""
        if not isinstance(error, ConnectionFailedError):
            self._fail(error)
        elif self._state in (MemberState.JOINING, MemberState.SYNCING):
            self._failures += 1
            self._retry_join()
        else:
            self._heartbeat_at_ms = self._coordinator.retry_at_ms(1)


def _has_changed(cluster: Cluster, topic: str, count_before: int | None) -> bool:
    """Return whether a topic has another number of partitions, or was deleted; a missing leader is no change."""
    count = cluster.partition_count(topic)
    is_known = count is not None or cluster.errors.get(topic) == Code.UNKNOWN_TOPIC_OR_PARTITION
    return is_known and count != count_before
