"""A coordinator with topics, and members that use the consumer protocol (KIP-848), on a manual clock.

async with ConsumerRig({"orders": 6}) as rig:
    a, b = rig.member("a"), rig.member("b")
    await rig.settle(a, b)                  heartbeats until nothing changes
    assert a.owned | b.owned == rig.partitions("orders")
    assert rig.view() == await rig.replayed()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.broker.catalog.topics import Topics
from headrace.broker.groups.consumer_group import ConsumerGroup
from headrace.broker.groups.consumer_heartbeats import HeartbeatClient
from headrace.errors import BrokerError, Code
from headrace.wire.api.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from tests.support.fake_internal import FakeCatalog, FakeInternal, HandClock
from tests.support.group_rig import GROUP, GroupRig

SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 60_000
ROUNDS_MAX = 20
"""Heartbeats of all members until a group is stable: each partition moves once."""


class ConsumerRig(GroupRig):
    """A coordinator and its topics."""

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        options: Mapping[str, object] | None = None,
        *,
        clock: HandClock | None = None,
        internal: FakeInternal | None = None,
        catalog: FakeCatalog | None = None,
    ) -> None:
        options = {"group.consumer.assignment.interval.ms": 0, **(options or {})}
        super().__init__(options, clock=clock, internal=internal, catalog=catalog)
        for name, count in (topics or {}).items():
            self.create_topic(name, count)

    def create_topic(self, name: str, count: int) -> None:
        self.catalog.record(Topics.creation(name, [[1]] * count))
        self.groups.consumer_settings.note_topics_changed()

    def topic_id(self, name: str) -> bytes:
        return self.catalog.topics.by_name[name].id

    def partitions(self, *names: str) -> set[tuple[str, int]]:
        """Return all partitions of topics."""
        return {(name, index) for name in names for index in range(len(self.catalog.topics.by_name[name].partitions))}

    def member(self, member_id: str, topic: str = "orders", **fields: Any) -> ConsumerClient:
        return ConsumerClient(self, member_id, {"subscribed_topic_names": [topic], **fields})

    async def beat(
        self,
        member_id: str,
        epoch: int,
        /,
        *,
        version: int = 1,
        may_describe: Callable[[str], bool] = lambda topic: True,
        **fields: Any,
    ) -> ConsumerGroupHeartbeatResponse:
        """Send a heartbeat; errors are raised."""
        request = ConsumerGroupHeartbeatRequest(
            **{"group_id": GROUP, "member_id": member_id, "member_epoch": epoch, **fields}
        )
        client = HeartbeatClient("client", "/127.0.0.1", version, may_describe)
        return await self.groups.consumer_heartbeat(request, client)

    async def join_member(
        self, member_id: str, topic: str = "orders", /, **fields: Any
    ) -> ConsumerGroupHeartbeatResponse:
        """Send the first heartbeat of a member."""
        joining = {"rebalance_timeout_ms": REBALANCE_TIMEOUT_MS, "topic_partitions": []}
        return await self.beat(member_id, 0, **{"subscribed_topic_names": [topic], **joining, **fields})

    async def beat_code(self, member_id: str, epoch: int, **fields: Any) -> Code:
        """Send a heartbeat; return its error."""
        try:
            await self.beat(member_id, epoch, **fields)
        except BrokerError as error:
            return Code(error.code)
        return Code.NONE

    async def join_code(self, member_id: str, topic: str = "orders", /, **fields: Any) -> Code:
        """Send the first heartbeat of a member; return its error."""
        try:
            await self.join_member(member_id, topic, **fields)
        except BrokerError as error:
            return Code(error.code)
        return Code.NONE

    async def settle(self, *members: ConsumerClient) -> None:
        """Send heartbeats of all members until none of them gets anything new."""
        for _ in range(ROUNDS_MAX):
            before = [(member.epoch, set(member.owned)) for member in members]
            for member in members:
                await member.beat()
            if before == [(member.epoch, member.owned) for member in members]:
                return
        raise AssertionError(f"the group is still {self.consumer_group.state.value} after {ROUNDS_MAX} rounds")

    @property
    def consumer_group(self) -> ConsumerGroup:
        return self.groups.describe_consumer_group(GROUP)

    async def replayed(self) -> dict[str, Any]:
        """Return the state that another broker would load from the log."""
        other = ConsumerRig(options=self.options, clock=self.clock, internal=self.internal, catalog=self.catalog)
        async with other:
            return other.view()


class ConsumerClient:
    """A client: revokes what is no longer assigned to it, and reports what it owns."""

    def __init__(self, rig: ConsumerRig, member_id: str, fields: Mapping[str, Any]) -> None:
        self.id = member_id
        self.epoch = 0
        self.owned: set[tuple[str, int]] = set()
        self.codes: list[Code] = []
        self._rig = rig
        self._fields = dict(fields)
        self._reported: set[tuple[str, int]] | None = None  # None: the next heartbeat has all fields

    def subscribe(self, topic: str) -> None:
        self._fields["subscribed_topic_names"] = [topic]
        self._reported = None

    async def beat(self) -> Code:
        """Send a heartbeat and apply the response; rejoin with the next one if fenced."""
        fields: dict[str, Any] = {}
        if self._reported is None:
            fields = {"rebalance_timeout_ms": REBALANCE_TIMEOUT_MS, **self._fields}
        if self._reported != self.owned:
            fields["topic_partitions"] = self._rows()
        if "instance_id" in self._fields:
            fields["instance_id"] = self._fields["instance_id"]
        try:
            response = await self._rig.beat(self.id, self.epoch, **fields)
        except BrokerError as error:
            self.codes.append(Code(error.code))
            if error.code in (Code.FENCED_MEMBER_EPOCH, Code.UNKNOWN_MEMBER_ID):
                self.epoch, self.owned, self._reported = 0, set(), None
            return Code(error.code)
        self.epoch, self._reported = response.member_epoch, set(self.owned)
        if response.assignment is not None:
            names = {topic.id: topic.name for topic in self._rig.catalog.topics.by_name.values()}
            self.owned = {
                (names[row.topic_id], index) for row in response.assignment.topic_partitions for index in row.partitions
            }
        return Code.NONE

    async def leave(self, epoch: int = -1) -> None:
        fields = {"instance_id": self._fields["instance_id"]} if "instance_id" in self._fields else {}
        await self._rig.beat(self.id, epoch, **fields)
        self.epoch, self.owned, self._reported = 0, set(), None

    def _rows(self) -> list[HeartbeatTopicPartitions]:
        names = sorted({name for name, _ in self.owned})
        return [
            HeartbeatTopicPartitions(
                topic_id=self._rig.topic_id(name), partitions=sorted(i for topic, i in self.owned if topic == name)
            )
            for name in names
        ]
