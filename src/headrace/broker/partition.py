"""A partition as this broker has it: its log, who leads it, and which replicas have what.

    leader      knows of each follower how far it has come; the high watermark is what all in-sync replicas have
    follower    takes what the leader has, and the high watermark that the leader tells

`place` is the one way in which leadership comes and goes: it takes over what the catalog says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.catalog.topics import PartitionPlace
from headrace.broker.clock import Clock
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.cluster.follower_sessions import FollowerSession
    from headrace.broker.log import Log

UNKNOWN_OFFSET = -1
LONG_AGO_MS = -1e15
"""When a replica caught up that was not in sync as far as we know."""


class Rules(NamedTuple):
    """What partitions know of the world around them."""

    node_id: int
    clock: Clock
    lag_ms_max: int  # replica.lag.time.max.ms
    is_eligible: Callable[[int, int], bool]  # whether a node, with the broker epoch it fetched with, may be in sync


class Follower:
    """What the leader knows of another replica."""

    __slots__ = ("broker_epoch", "caught_up_ms", "end_offset", "fetched_ms", "leader_end", "start_offset")

    def __init__(self, caught_up_ms: float) -> None:
        self.end_offset = self.start_offset = UNKNOWN_OFFSET
        self.caught_up_ms = caught_up_ms  # when it last had all that the leader had
        self.fetched_ms = LONG_AGO_MS
        self.leader_end = UNKNOWN_OFFSET  # of the leader's log at its last fetch
        self.broker_epoch = -1

    def fetched(self, offset: int, leader_end: int, now_ms: float, broker_epoch: int) -> None:
        """It asks for what is at `offset`, so it has what is before."""
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end:  # it has what there was when it last asked
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.fetched_ms = now_ms
        self.leader_end = max(self.leader_end, leader_end)
        self.end_offset = offset
        self.broker_epoch = broker_epoch

    def is_caught_up(self, leader_end: int, now_ms: float, lag_ms_max: int) -> bool:
        return self.end_offset == leader_end or now_ms - self.caught_up_ms <= lag_ms_max


class Partition:
    """One replica of a partition: the leader's, or a follower's."""

    __slots__ = (
        "_awaited",
        "_rules",
        "epoch_start",
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
        "sessions",
        "topic",
    )

    def __init__(self, topic: str, index: int, log: Log, place: PartitionPlace, rules: Rules) -> None:
        self.topic = topic
        self.index = index
        self.key = TopicPartition(topic, index)
        self.log = log
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.proposed_isr: tuple[int, ...] | None = None  # on its way to the controller
        self.leader = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.is_leader = False
        self.epoch_start = 0  # the end of the log when we began to lead
        self.is_deleted = False  # somebody may still hold it who found it before
        self.followers: dict[int, Follower] = {}  # the other replicas, if we lead
        self.sessions: list[FollowerSession] = []  # of followers that want to hear of it
        self._awaited: tuple[Follower, ...] = ()  # those that the high watermark waits for in any case
        self._rules = rules
        self.place(place)

    @property
    def topic_id(self) -> bytes:
        return self.log.topic_id

    # -- who leads -------------------------------------------------------------------------------

    def place(self, place: PartitionPlace) -> None:
        """Take over what the catalog says: another leader, epoch or set of replicas."""
        node_id = self._rules.node_id
        was_leader, epoch = self.is_leader, self.leader_epoch
        if (place.leader_epoch, place.partition_epoch) != (self.leader_epoch, self.partition_epoch):
            self.proposed_isr = None  # decided, one way or the other
        self.replicas, self.isr = place.replicas, place.isr
        self.leader, self.leader_epoch, self.partition_epoch = place.leader, place.leader_epoch, place.partition_epoch
        self.is_leader = place.leader == node_id
        if not self.is_leader:
            self.followers, self._awaited = {}, ()
            return
        if not was_leader or place.leader_epoch != epoch:
            self.followers = {}
            self._begin_to_lead()
        self._meet_followers()

    def _begin_to_lead(self) -> None:
        self.epoch_start = self.log.end_offset
        if self.leader_epoch > self.log.latest_epoch:
            self.log.begin_epoch(self.leader_epoch)

    def _meet_followers(self) -> None:
        """Those that are in sync get the time they need to show it."""
        now_ms = self._rules.clock.monotonic_ms()
        known, self.followers = self.followers, {}
        for node in self.replicas:
            if node == self._rules.node_id:
                continue
            follower = known.get(node)
            if follower is None:
                follower = Follower(now_ms if node in self.isr else LONG_AGO_MS)
            elif node in self.isr:
                follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
            self.followers[node] = follower
        self._find_awaited()

    def _find_awaited(self) -> None:
        wanted = {*self.isr, *(self.proposed_isr or ())}
        self._awaited = tuple(follower for node, follower in self.followers.items() if node in wanted)

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

    # -- the high watermark ----------------------------------------------------------------------

    @property
    def min_isr(self) -> int:
        """Replicas that must be in sync for acks=all: no more than there are at all."""
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    def advance_high_watermark(self) -> bool:
        """Raise the high watermark to what all in-sync replicas have; whether it went up."""
        if not self.is_leader:
            return False
        end = self.log.end_offset
        if self.followers:
            if len(self.isr) < self.min_isr:
                return False  # one more failure might leave nobody who has it (KIP-966)
            end = self._replicated_end(end)
        return end > self.log.high_watermark and self.log.advance_high_watermark(end)

    def _replicated_end(self, leader_end: int) -> int:
        """What the in-sync replicas have, and those that are about to be: else they would never get so far."""
        end = leader_end
        for follower in self._awaited:
            if follower.end_offset < end:
                end = follower.end_offset
        if len(self._awaited) < len(self.followers):
            rules = self._rules
            now_ms = rules.clock.monotonic_ms()
            for node, follower in self.followers.items():
                if (
                    follower.end_offset < end
                    and follower.is_caught_up(leader_end, now_ms, rules.lag_ms_max)
                    and rules.is_eligible(node, follower.broker_epoch)
                ):
                    end = follower.end_offset
        return end

    @property
    def is_confirmed(self) -> bool:
        """Whether the in-sync replicas have all that was there when we began to lead."""
        return self.log.high_watermark >= self.epoch_start

    def low_watermark(self, lives: Callable[[int], bool]) -> int:
        """Below that nobody has anything any more, of those that live."""
        starts = (follower.start_offset for node, follower in self.followers.items() if lives(node))
        return min([self.log.start_offset, *starts])

    # -- followers -------------------------------------------------------------------------------

    def follower_fetched(self, node: int, offset: int, broker_epoch: int) -> bool:
        """A follower asks for what is at `offset`; whether that tells us anything new of its end."""
        follower = self.followers.get(node)
        if follower is None:
            raise BrokerError(
                f"broker {node} has no replica of {self.topic}-{self.index}, as far as is known here",
                code=Code.UNKNOWN_LEADER_EPOCH,
            )
        if broker_epoch != -1 and broker_epoch < follower.broker_epoch:
            raise BrokerError(
                f"{self.topic}-{self.index}: broker {node} has been started again since this fetch was sent",
                code=Code.NOT_LEADER_OR_FOLLOWER,
            )
        before = follower.end_offset
        follower.fetched(offset, self.log.end_offset, self._rules.clock.monotonic_ms(), broker_epoch)
        return follower.end_offset != before

    def left_behind(self, end_offset: int) -> None:
        """Something was written behind `end_offset`: who had all up to there had everything until now."""
        now_ms = self._rules.clock.monotonic_ms()
        for follower in self.followers.values():
            if follower.end_offset == end_offset:
                follower.caught_up_ms = now_ms

    def may_join(self, node: int) -> bool:
        """Whether a follower that is not in sync has come far enough to be."""
        follower = self.followers.get(node)
        return (
            follower is not None
            and node not in self.isr
            and self.proposed_isr is None
            and follower.end_offset >= max(self.log.high_watermark, self.epoch_start)
            and self._rules.is_eligible(node, follower.broker_epoch)
        )

    def laggards(self) -> list[int]:
        """In-sync replicas that have not caught up for too long."""
        now_ms, end = self._rules.clock.monotonic_ms(), self.log.end_offset
        lag_ms_max = self._rules.lag_ms_max
        return [
            node
            for node, follower in self.followers.items()
            if node in self.isr and not follower.is_caught_up(end, now_ms, lag_ms_max)
        ]

    def propose(self, isr: tuple[int, ...] | None) -> None:
        """Another in-sync set is asked for (None: no longer). Until it is decided the larger of both counts."""
        self.proposed_isr = isr
        self._find_awaited()
