"""Commits and committed offsets of a group, on a fake network: which errors are retried, and for how long."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import pytest

from headrace.client.connection import Response
from headrace.client.plugins import PluginLoader
from headrace.consumer.coordinator import COORDINATOR_NODE_BASE, STALE_RETRIES_MAX, GroupCoordinator
from headrace.consumer.settings import ConsumerSettings, consumer_log, resolve
from headrace.errors import Code, CommitFailedError, HeadraceError, TopicAuthorizationError
from headrace.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from headrace.wire.api import ApiKey
from headrace.wire.api.group_offsets import (
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopics,
    OffsetResultPartition,
)
from headrace.wire.api.metadata import Coordinator, FindCoordinatorResponse
from tests.support.fake_network import FakeClock

TP = TopicPartition("t", 0)
TIMEOUT_MS = 60_000.0


class FakeClient:
    """A network on which every node is ready; responds to requests for offsets with error codes, in order."""

    last_failure = None

    def __init__(self):
        self.codes: deque[int] = deque()
        self.sent: list[Any] = []
        self.finds = 0
        self.is_unreachable = False  # The coordinator, whose connection backs off.

    def least_loaded_node(self, node_ids, now):
        return 1

    def is_ready(self, node_id, now):
        return node_id < COORDINATOR_NODE_BASE or not self.is_unreachable

    def is_backing_off(self, node_id, now):
        return self.is_unreachable

    def set_node(self, node_id, endpoint):
        pass

    def send(self, node_id, request, now):
        message = request.build(4 if request.api_key == ApiKey.FIND_COORDINATOR else request.versions[1])
        if request.api_key == ApiKey.FIND_COORDINATOR:
            self.finds += 1
            row = Coordinator(key="g", node_id=1, host="h", port=1)
            request.on_response(Response(request, node_id, 4, FindCoordinatorResponse(coordinators=[row])))
            return
        self.sent.append(message)
        code = self.codes.popleft() if self.codes else Code.NONE
        respond = committed if request.api_key == ApiKey.OFFSET_COMMIT else fetched
        request.on_response(Response(request, node_id, 9, respond(code)))


def committed(code):
    rows = [OffsetResultPartition(partition_index=0, error_code=code)]
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=rows)])


def fetched(code):
    rows = [OffsetFetchResponsePartition(partition_index=0, committed_offset=7)]
    topics = [] if code else [OffsetFetchResponseTopics(name="t", partitions=rows)]
    return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=topics, error_code=code)])


class Rig:
    """A coordinator of a member with epoch 3."""

    def __init__(self, *codes: int) -> None:
        config = resolve({"bootstrap.servers": "h:1", "group.id": "g", "group.protocol": "consumer"})
        settings = ConsumerSettings.build(config, PluginLoader(config)).group
        assert settings is not None
        self.clock, self.client = FakeClock(), FakeClient()
        self.client.codes.extend(codes)
        updater = type("Updater", (), {"node_ids": [1]})()
        self.coordinator = GroupCoordinator(
            cast(Any, self.client),
            updater,
            settings,
            self.clock,
            api_timeout_ms=TIMEOUT_MS,
            requires_stable=False,
            log=consumer_log(config),
        )
        self.removed: list[int] = []
        self.coordinator.on_removed = self.removed.append
        self.coordinator.identity = lambda: GroupMetadata("g", 3, "m")
        self.coordinator.is_member = lambda: True
        self.results: list[Any] = []

    def run(self) -> Any:
        deadline_ms = self.clock.monotonic_ms() + TIMEOUT_MS
        while not self.results:
            assert self.clock.monotonic_ms() < deadline_ms
            self.clock.advance(min(50.0, max(1.0, self.coordinator.run(self.clock.monotonic_ms()))))
        return self.results[0]

    def commit(self, **options: bool) -> HeadraceError | None:
        offsets = {TP: OffsetAndMetadata(5)}
        deadline_ms = self.clock.monotonic_ms() + TIMEOUT_MS
        self.coordinator.commit(offsets, self.results.append, deadline_ms, **options)
        return cast(HeadraceError | None, self.run())


def test_a_commit_has_the_member_and_its_epoch():
    rig = Rig()
    assert rig.commit() is None
    (request,) = rig.client.sent
    assert (request.member_id, request.generation_id_or_member_epoch) == ("m", 3)


def test_a_coordinator_that_is_unreachable_is_looked_up_with_a_back_off():
    rig = Rig()
    rig.client.is_unreachable = True
    deadline_ms = rig.clock.monotonic_ms() + TIMEOUT_MS
    rig.coordinator.commit({TP: OffsetAndMetadata(5)}, rig.results.append, deadline_ms)
    for _ in range(5_000):  # iterations of the I/O loop, in 5 seconds
        rig.coordinator.run(rig.clock.monotonic_ms())
        rig.clock.advance(1.0)
    assert 4 <= rig.client.finds <= 12, "retry.backoff.ms is 100, retry.backoff.max.ms 1,000"
    rig.client.is_unreachable = False
    assert rig.run() is None


def test_a_commit_with_an_old_epoch_is_retried_until_the_heartbeat_has_the_new_one():
    rig = Rig(Code.STALE_MEMBER_EPOCH, Code.STALE_MEMBER_EPOCH)
    assert rig.commit() is None
    assert rig.removed == [Code.STALE_MEMBER_EPOCH] * 2  # each asks for a heartbeat


def test_a_commit_whose_epoch_stays_old_fails_soon():
    rig = Rig(*[Code.STALE_MEMBER_EPOCH] * 100)
    assert isinstance(rig.commit(), CommitFailedError)
    assert len(rig.client.sent) == STALE_RETRIES_MAX + 1


@pytest.mark.parametrize("code", [Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH])
def test_a_commit_of_a_removed_member_fails_at_once(code):
    rig = Rig(code)
    error = rig.commit()
    assert isinstance(error, CommitFailedError)
    assert "has removed this member" in str(error)
    assert rig.removed == [code]


@pytest.mark.parametrize(("waits_for_topics", "count"), [(True, 3), (False, 1)])
def test_a_commit_for_a_missing_topic_is_retried_unless_it_may_be_deleted(waits_for_topics, count):
    rig = Rig(*[Code.UNKNOWN_TOPIC_OR_PARTITION] * 2)
    rig.commit(waits_for_topics=waits_for_topics)
    assert len(rig.client.sent) == count


def test_another_error_of_a_commit_is_its_own():
    assert isinstance(Rig(Code.TOPIC_AUTHORIZATION_FAILED).commit(), TopicAuthorizationError)


@pytest.mark.parametrize("code", [Code.STALE_MEMBER_EPOCH, Code.UNKNOWN_MEMBER_ID, Code.NOT_COORDINATOR])
def test_committed_offsets_are_fetched_again_after_the_member_has_changed(code):
    rig = Rig(*[code] * 10)
    rig.coordinator.fetch_committed([TP], rig.results.append)
    assert rig.run() == {TP: OffsetAndMetadata(7)}
    assert {(g.member_id, g.member_epoch) for request in rig.client.sent for g in request.groups} == {("m", 3)}


def test_committed_offsets_are_fetched_without_a_member_that_is_not_in_the_group():
    rig = Rig()
    rig.coordinator.is_member = lambda: False
    rig.coordinator.fetch_committed([TP], rig.results.append)
    rig.run()
    assert [(g.member_id, g.member_epoch) for g in rig.client.sent[0].groups] == [(None, -1)]
