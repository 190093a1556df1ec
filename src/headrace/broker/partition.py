"""A partition on this broker: its log, its leader and its replicas.

    leader      knows the end offset of each follower; the high watermark is what all in-sync replicas have
    follower    copies the records and the high watermark of the leader

Leadership changes only through `apply_registration`, with the state from the catalog.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.catalog.topics import NO_LEADER, PartitionRegistration
from headrace.config.clock import Clock
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.cluster.follower_sessions import FollowerSession
    from headrace.broker.fetch_sessions import ClientSession, SessionKey
    from headrace.broker.log import Log

UNKNOWN_OFFSET = -1
LONG_AGO_MS = -1e15
"""The time of a replica that has never been caught up."""


class PartitionEnv(NamedTuple):
    """What partitions need from the broker."""

    node_id: int
    clock: Clock
    lag_ms_max: int  # replica.lag.time.max.ms
    is_eligible: Callable[[int, int], bool]  # whether a node with this broker epoch may be in an in-sync set


class Follower:
    """What the leader knows about another replica."""

    __slots__ = ("broker_epoch", "caught_up_ms", "end_offset", "fetched_ms", "leader_end", "start_offset")

    def __init__(self, caught_up_ms: float) -> None:
        self.end_offset = self.start_offset = UNKNOWN_OFFSET
        self.caught_up_ms = caught_up_ms  # when it last had all records of the leader
        self.fetched_ms = LONG_AGO_MS
        self.leader_end = UNKNOWN_OFFSET  # end of the leader's log at its last fetch
        self.broker_epoch = -1

    def fetched(self, offset: int, leader_end: int, now_ms: float, broker_epoch: int) -> None:
        """Record a fetch at `offset`: the follower has all records before it."""
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end:  # it has all records of the time of its last fetch
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.fetched_ms = now_ms
        self.leader_end = max(self.leader_end, leader_end)
        self.end_offset = offset
        self.broker_epoch = broker_epoch

    def is_caught_up(self, leader_end: int, now_ms: float, lag_ms_max: int) -> bool:
        return self.end_offset == leader_end or now_ms - self.caught_up_ms <= lag_ms_max


class Partition:
    """A replica of a partition on this broker, as leader or follower."""

    __slots__ = (
        "_awaited",
        "_env",
        "client_sessions",
        "epoch_start",
        "follower_sessions",
        "followers",
        "index",
        "is_deleted",
        "is_leader",
        "isr",
        "key",
        "leader",
        "leader_epoch",
        "log",
        "partition_epoch",
        "proposed_isr",
        "replicas",
        "topic",
    )

    def __init__(self, key: TopicPartition, log: Log, registration: PartitionRegistration, env: PartitionEnv) -> None:
        self.topic, self.index = key
        self.key = key
        self.log = log
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.proposed_isr: tuple[int, ...] | None = None  # sent to the controller, not decided yet
        self.leader = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.is_leader = False
        self.epoch_start = 0  # the end of the log at the start of this leader epoch
        self.is_deleted = False  # waiting requests may still hold a deleted partition
        self.followers: dict[int, Follower] = {}  # the other replicas, if this broker leads
        # Fetch sessions that contain it, and its key in them.
        self.follower_sessions: dict[FollowerSession, SessionKey] = {}
        self.client_sessions: dict[ClientSession, SessionKey] = {}
        self._awaited: tuple[Follower, ...] = ()  # those that the high watermark always waits for
        self._env = env
        self.apply_registration(registration)

    @property
    def topic_id(self) -> bytes:
        return self.log.topic_id

    # -- leadership ------------------------------------------------------------------------------

    def apply_registration(self, registration: PartitionRegistration) -> None:
        """Apply the state of the catalog: leader, epochs and replicas."""
        was_leader, epoch = self.is_leader, self.leader_epoch
        if (registration.leader_epoch, registration.partition_epoch) != (self.leader_epoch, self.partition_epoch):
            self.proposed_isr = None  # it is decided
        self.replicas, self.isr = registration.replicas, registration.isr
        self.leader, self.leader_epoch = registration.leader, registration.leader_epoch
        self.partition_epoch = registration.partition_epoch
        self.is_leader = registration.leader == self._env.node_id
        if not self.is_leader:
            self.followers, self._awaited = {}, ()
            return
        if not was_leader or registration.leader_epoch != epoch:
            self.followers = {}
            self._begin_epoch()
        self._update_followers()

    def _begin_epoch(self) -> None:
        self.epoch_start = self.log.end_offset
        if self.leader_epoch > self.log.latest_epoch:
            self.log.begin_epoch(self.leader_epoch)

    def _update_followers(self) -> None:
        """Create or update the followers; in-sync ones count as caught up now."""
        now_ms = self._env.clock.monotonic_ms()
        known, self.followers = self.followers, {}
        for node in self.replicas:
            if node == self._env.node_id:
                continue
            follower = known.get(node)
            if follower is None:
                follower = Follower(now_ms if node in self.isr else LONG_AGO_MS)
            elif node in self.isr:
                follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
            self.followers[node] = follower
        self._update_awaited()

    def _update_awaited(self) -> None:
        awaited = {*self.isr, *(self.proposed_isr or ())}
        self._awaited = tuple(follower for node, follower in self.followers.items() if node in awaited)

    def check_epoch(self, known: int) -> None:
        """Raise unless a client's leader epoch (-1: unknown) is the current one."""
        if known in (-1, self.leader_epoch):
            return
        if known < self.leader_epoch:
            raise BrokerError(
                f"{self.topic}-{self.index}: leader epoch {known} is older than {self.leader_epoch}",
                code=Code.FENCED_LEADER_EPOCH,
            )
        raise BrokerError(
            f"{self.topic}-{self.index}: leader epoch {known} is newer than {self.leader_epoch}",
            code=Code.UNKNOWN_LEADER_EPOCH,
        )

    # -- the high watermark ----------------------------------------------------------------------

    @property
    def min_isr(self) -> int:
        """The in-sync replicas that acks=all needs, at most the number of replicas."""
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    def advance_high_watermark(self) -> bool:
        """Advance the high watermark to what all in-sync replicas have; return whether it changed."""
        if not self.is_leader:
            return False
        end = self.log.end_offset
        if self.followers:
            if len(self.isr) < self.min_isr:
                return False  # another failure could lose the records (KIP-966)
            end = self._replicated_end(end)
        return end > self.log.high_watermark and self.log.advance_high_watermark(end)

    def _replicated_end(self, leader_end: int) -> int:
        """Return the end of the in-sync replicas and of those about to join, which could not catch up otherwise."""
        end = leader_end
        for follower in self._awaited:
            if follower.end_offset < end:
                end = follower.end_offset
        if len(self._awaited) < len(self.followers):
            env = self._env
            now_ms = env.clock.monotonic_ms()
            for node, follower in self.followers.items():
                if (
                    follower.end_offset < end
                    and follower.is_caught_up(leader_end, now_ms, env.lag_ms_max)
                    and env.is_eligible(node, follower.broker_epoch)
                ):
                    end = follower.end_offset
        return end

    @property
    def is_confirmed(self) -> bool:
        """Whether all records from before this leader epoch are replicated."""
        return self.log.high_watermark >= self.epoch_start

    def low_watermark(self, is_live: Callable[[int], bool]) -> int:
        """Return the lowest start offset of this replica and the live followers."""
        starts = (follower.start_offset for node, follower in self.followers.items() if is_live(node))
        return min([self.log.start_offset, *starts])

    # -- followers -------------------------------------------------------------------------------

    def follower_fetched(self, node: int, offset: int, broker_epoch: int) -> bool:
        """Record a fetch of a follower; return whether its end offset changed."""
        follower = self.followers.get(node)
        if follower is None:
            raise BrokerError(
                f"broker {node} is not a replica of {self.topic}-{self.index} in the metadata of this broker",
                code=Code.UNKNOWN_LEADER_EPOCH,
            )
        if broker_epoch != -1 and broker_epoch < follower.broker_epoch:
            raise BrokerError(
                f"{self.topic}-{self.index}: broker {node} was restarted after it sent this fetch",
                code=Code.NOT_LEADER_OR_FOLLOWER,
            )
        before = follower.end_offset
        follower.fetched(offset, self.log.end_offset, self._env.clock.monotonic_ms(), broker_epoch)
        return follower.end_offset != before

    def note_caught_up(self, end_offset: int) -> None:
        """Mark the followers as caught up that had everything before an append at `end_offset`."""
        now_ms = self._env.clock.monotonic_ms()
        for follower in self.followers.values():
            if follower.end_offset == end_offset:
                follower.caught_up_ms = now_ms

    def can_join_isr(self, node: int) -> bool:
        """Return whether a follower outside the in-sync set has caught up enough to join."""
        follower = self.followers.get(node)
        return (
            follower is not None
            and node not in self.isr
            and self.proposed_isr is None
            and follower.end_offset >= max(self.log.high_watermark, self.epoch_start)
            and self._env.is_eligible(node, follower.broker_epoch)
        )

    def lagging_replicas(self) -> list[int]:
        """Return the in-sync replicas that have not caught up for replica.lag.time.max.ms."""
        now_ms, end = self._env.clock.monotonic_ms(), self.log.end_offset
        lag_ms_max = self._env.lag_ms_max
        return [
            node
            for node, follower in self.followers.items()
            if node in self.isr and not follower.is_caught_up(end, now_ms, lag_ms_max)
        ]

    def propose_isr(self, isr: tuple[int, ...] | None) -> None:
        """Propose an in-sync set, or withdraw it with None. Until it is decided the larger of both sets counts."""
        self.proposed_isr = isr
        self._update_awaited()
