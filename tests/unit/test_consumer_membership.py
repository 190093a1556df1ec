"""A member of a consumer group (KIP-848) on a fake clock: heartbeats, reconciliation, errors."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import pytest

from headrace.client.metadata import Cluster, Metadata, PartitionInfo, TopicInfo
from headrace.client.plugins import PluginLoader, PrefixedLogger
from headrace.consumer.consumer_membership import TRANSITIONS, ConsumerMembership
from headrace.consumer.membership import MemberParts, MemberState, Topics
from headrace.consumer.settings import ConsumerSettings, resolve
from headrace.errors import (
    BrokerError,
    Code,
    ConnectionFailedError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    HeadraceError,
    TopicAuthorizationError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
    UnsupportedVersionError,
)
from headrace.types import GroupMetadata, TopicPartition
from headrace.wire.api.groups import (
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)
from tests.support.fake_network import FakeClock

INTERVAL_MS = 1000
IDS = {"t": bytes(15) + b"t", "u": bytes(15) + b"u", "t again": bytes(15) + b"2"}


class FakeCoordinator:
    """Keeps requests for the test, which responds to them."""

    def __init__(self, clock):
        self.clock = clock
        self.on_removed = lambda code: None  # set by the member
        self.requests: deque[Any] = deque()
        self.forgotten = 0

    def submit(self, request):
        self.requests.append(request)

    def is_known(self):
        return True

    def forget(self, reason):
        self.forgotten += 1

    def retry_at_ms(self, failures):
        return self.clock.monotonic_ms() + 100 * failures


class FakeUpdater:
    def __init__(self, clock):
        self.metadata = Metadata(clock, is_lazy=True)

    def track_all_topics(self, is_tracked):
        assert not is_tracked


class FakeApplication:
    """Runs steps when the test polls."""

    def __init__(self):
        self.partitions: set[TopicPartition] = set()
        self.steps: deque[Any] = deque()
        self.calls: list[tuple[Any, ...]] = []
        self.errors: list[HeadraceError] = []
        self.overdue = False

    def revoke(self, step, on_done, *, lost, keeps):
        def run():
            self.calls.append(("lost" if lost else "revoked", sorted(self.partitions)))
            self.partitions = set()
            on_done()

        self.steps.append((step, run))

    def apply(self, step, assigned, on_done, recreated=()):
        def run():
            self.calls.append(("assigned", sorted(assigned), sorted(recreated)))
            self.partitions = set(assigned)
            on_done(True)

        self.steps.append((step, run))

    def poll(self):
        while self.steps:
            step, run = self.steps.popleft()
            if step():
                run()

    def owned(self):
        return list(self.partitions)

    def raise_in_poll(self, error):
        self.errors.append(error)

    def is_overdue(self, now):
        return self.overdue

    def poll_deadline_ms(self):
        return float("inf")


T = Topics(frozenset({"t"}))


class Rig:
    """A member that has subscribed, its coordinator and its application."""

    def __init__(self, topics=T, known=("t", "u"), **options):
        given = {"bootstrap.servers": "h:1", "group.id": "g", "group.protocol": "consumer", **options}
        config = resolve(given)
        group = ConsumerSettings.build(config, PluginLoader(config)).group
        assert group is not None
        self.clock = FakeClock()
        self.coordinator = FakeCoordinator(self.clock)
        self.updater = FakeUpdater(self.clock)
        self.application = FakeApplication()
        self.know(*known)
        log = PrefixedLogger("consumer", client_id="c")
        self.member = ConsumerMembership(
            MemberParts(cast(Any, self.coordinator), cast(Any, self.updater), group, self.clock, self.application, log)
        )
        self.member.subscribe(topics)

    def know(self, *topics, **ids):
        """Set the topics of the metadata."""
        named = {name: IDS[name] for name in topics} | ids
        rows = (PartitionInfo(0, 1, 0, (1,), (1,)), PartitionInfo(1, 1, 0, (1,), (1,)))
        infos = {name: TopicInfo(name, topic_id, rows, False) for name, topic_id in named.items()}
        self.updater.metadata.cluster = Cluster(topics=infos)

    def run(self):
        return self.member.run(self.clock.monotonic_ms())

    def sent(self, version=1):
        """Return the heartbeat that is in flight, as the broker gets it."""
        self.run()
        (request,) = self.coordinator.requests
        return request.build(version)

    def respond(self, result=None, version=1, **fields):
        """Respond to the heartbeat in flight; `assigned` are partitions of topic ids."""
        request = self.coordinator.requests.popleft()
        built = request.build(version)
        if result is None:
            assigned = fields.pop("assigned", None)
            if assigned is not None:
                rows = [HeartbeatTopicPartitions(topic_id=IDS[t], partitions=p) for t, p in assigned.items()]
                fields["assignment"] = HeartbeatAssignment(topic_partitions=rows)
            member_id = built.member_id or "made by the broker"
            given = {"member_id": member_id, "member_epoch": 1, "heartbeat_interval_ms": INTERVAL_MS, **fields}
            result = ConsumerGroupHeartbeatResponse(**given)
        request.on_result(result)
        self.run()

    def join(self, **assigned):
        """Join, and take the first assignment."""
        self.sent()
        self.respond(assigned=assigned)
        self.application.poll()
        self.sent()
        self.respond()
        self.expect(MemberState.STABLE)

    def expect(self, state):
        assert self.member.state is state

    def beat(self):
        """Wait for the next heartbeat that is due by the interval, and return it."""
        assert self.run() <= INTERVAL_MS
        assert not self.coordinator.requests
        self.clock.advance(INTERVAL_MS)
        return self.sent()


def owned(request):
    return {row.topic_id: list(row.partitions) for row in request.topic_partitions}


def test_every_state_has_its_transitions():
    states = {state for after in TRANSITIONS.values() for state in after}
    assert states == set(TRANSITIONS)
    assert all(MemberState.UNJOINED in after for state, after in TRANSITIONS.items() if state.name != "UNJOINED")


def test_a_member_joins_with_all_fields_and_acknowledges_its_partitions_at_once():
    rig = Rig(**{"client.rack": "r1", "group.remote.assignor": "range", "group.instance.id": "i"})
    joining = rig.sent()
    assert (joining.member_epoch, joining.rebalance_timeout_ms, joining.rack_id) == (0, 300_000, "r1")
    assert (joining.server_assignor, joining.instance_id, joining.subscribed_topic_regex) == ("range", "i", None)
    assert list(joining.subscribed_topic_names) == ["t"]
    assert list(joining.topic_partitions) == []
    rig.respond(member_epoch=3, assigned={"t": [0, 1]})
    rig.expect(MemberState.RECONCILING)
    assert rig.member.identity == GroupMetadata("g", 3, joining.member_id, "i")
    rig.application.poll()
    acknowledging = rig.sent()
    assert owned(acknowledging) == {IDS["t"]: [0, 1]}
    assert (acknowledging.member_epoch, acknowledging.instance_id) == (3, "i")
    assert acknowledging.subscribed_topic_names is acknowledging.rack_id is acknowledging.server_assignor is None
    rig.respond(member_epoch=3)
    rig.expect(MemberState.STABLE)
    plain = rig.beat()
    assert plain.topic_partitions is plain.subscribed_topic_names is None


def test_the_client_makes_the_member_id_except_in_version_0():
    ids = {Rig().sent().member_id for _ in range(3)}
    assert len(ids) == 3
    assert all(len(member_id) == 22 for member_id in ids)
    rig = Rig()
    assert rig.sent(version=0).member_id == ""
    rig.respond(version=0)
    assert rig.member.identity.member_id == "made by the broker"
    assert rig.beat().member_id == "made by the broker"


def test_heartbeats_continue_while_the_application_revokes():
    rig = Rig()
    rig.join(t=[0, 1])
    rig.beat()
    rig.respond(assigned={"t": [0]})
    rig.expect(MemberState.RECONCILING)
    assert rig.beat().topic_partitions is None  # it has not revoked yet
    rig.respond(member_epoch=2)  # the epoch is taken over, although the application has not polled
    assert rig.member.identity.generation_id == 2
    rig.application.poll()
    assert owned(rig.sent()) == {IDS["t"]: [0]}
    rig.respond(member_epoch=2)
    rig.expect(MemberState.STABLE)


def test_a_response_that_arrives_while_the_application_takes_partitions_counts():
    rig = Rig()
    rig.join(t=[0])
    rig.beat()
    rig.respond(assigned={"t": [0, 1]})
    rig.beat()  # in flight when the application polls
    rig.application.poll()
    rig.expect(MemberState.ACKNOWLEDGING)
    rig.respond(member_epoch=5, assigned={"t": [1]})
    rig.expect(MemberState.ACKNOWLEDGING)  # that heartbeat did not have the new partitions
    assert rig.member.identity.generation_id == 5
    assert owned(rig.sent()) == {IDS["t"]: [0, 1]}
    rig.respond(member_epoch=5)
    rig.expect(MemberState.RECONCILING)
    rig.application.poll()
    assert owned(rig.sent()) == {IDS["t"]: [1]}


def test_partitions_of_unknown_topic_ids_are_taken_when_their_names_are_known():
    rig = Rig(known=("t",))
    rig.sent()
    rig.respond(assigned={"t": [0], "u": [1]})
    rig.application.poll()
    assert rig.application.partitions == {TopicPartition("t", 0)}
    assert rig.updater.metadata.take_topic_ids() == [IDS["u"]]
    assert owned(rig.sent()) == {IDS["t"]: [0]}
    rig.respond()
    rig.clock.advance(INTERVAL_MS)
    rig.run()
    assert rig.updater.metadata.take_topic_ids() == [IDS["u"]]  # requested again
    rig.know("t", "u")
    rig.run()
    rig.application.poll()
    assert rig.application.partitions == {TopicPartition("t", 0), TopicPartition("u", 1)}


def test_a_topic_that_was_created_again_loses_its_partitions():
    rig = Rig()
    rig.join(t=[0])
    rig.know(t=IDS["t again"])
    rig.beat()
    rig.respond(assigned={"t again": [0]})
    rig.application.poll()
    tp = TopicPartition("t", 0)
    assert rig.application.calls[-1] == ("assigned", [tp], [tp])
    assert owned(rig.sent()) == {IDS["t again"]: [0]}


def test_a_group_that_is_not_there_although_joining_creates_it_is_of_another_kind():
    rig = Rig()
    rig.member.subscribe(Topics(frozenset({"t"})))
    rig.sent()
    rig.respond(error_code=Code.GROUP_ID_NOT_FOUND, error_message="Group g is not a consumer group.")
    rig.expect(MemberState.FAILED)
    (error,) = rig.application.errors
    assert "Group g is not a consumer group; use another group.id" in str(error)


@pytest.mark.parametrize("code", [Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH, Code.GROUP_ID_NOT_FOUND])
def test_a_fenced_member_gives_up_its_partitions_and_joins_with_the_same_id(code):
    rig = Rig()
    rig.join(t=[0, 1])
    before = rig.member.identity
    rig.beat()
    rig.respond(error_code=code)
    rig.expect(MemberState.FENCED)
    assert rig.member.identity == before  # so that commits fail
    rig.clock.advance(INTERVAL_MS)
    rig.run()
    assert not rig.coordinator.requests
    rig.application.poll()
    assert rig.application.calls[-1][0] == "lost"
    joining = rig.sent()
    assert (joining.member_epoch, joining.member_id, list(joining.topic_partitions)) == (0, before.member_id, [])
    rig.respond(member_epoch=9, assigned={"t": [0]})
    assert rig.member.identity.generation_id == 9


@pytest.mark.parametrize(
    "result", [ConnectionFailedError("gone"), Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR]
)
def test_after_a_failure_all_fields_are_sent_again_with_the_epoch(result):
    rig = Rig()
    rig.join(t=[0])
    rig.beat()
    if isinstance(result, Code):
        rig.respond(error_code=result)
    else:
        rig.respond(result)
    rig.expect(MemberState.STABLE)
    assert not rig.coordinator.requests
    rig.clock.advance(100)
    again = rig.sent()
    assert (again.member_epoch, list(again.subscribed_topic_names)) == (1, ["t"])
    assert owned(again) == {IDS["t"]: [0]}
    assert rig.coordinator.forgotten == (result == Code.NOT_COORDINATOR)


@pytest.mark.parametrize(
    ("code", "error", "remedy"),
    [
        (Code.UNRELEASED_INSTANCE_ID, UnreleasedInstanceIdError, "session timeout"),
        (Code.FENCED_INSTANCE_ID, FencedInstanceIdError, "give each consumer its own"),
        (Code.UNSUPPORTED_ASSIGNOR, UnsupportedAssignorError, "group.consumer.assignors"),
        (Code.GROUP_MAX_SIZE_REACHED, GroupMaxSizeReachedError, "group.consumer.max.size"),
        (Code.INVALID_REQUEST, BrokerError, "the reason"),
        (Code.UNSUPPORTED_VERSION, UnsupportedVersionError, "group.protocol=classic"),
        (999, BrokerError, "the reason"),
    ],
)
def test_errors_that_stay_give_up_the_partitions_and_are_raised(code, error, remedy):
    rig = Rig()
    rig.join(t=[0])
    rig.beat()
    rig.respond(error_code=code, error_message="the reason.")
    rig.expect(MemberState.FAILED)
    rig.application.poll()
    assert rig.application.calls[-1][0] == "lost"
    (raised,) = rig.application.errors
    assert isinstance(raised, error)
    assert remedy in str(raised)
    rig.member.subscribe(T)
    assert rig.sent().member_epoch == 0


def test_a_broker_without_the_api_is_an_error_with_a_remedy():
    rig = Rig()
    rig.sent()
    rig.respond(UnsupportedVersionError("no common version of ConsumerGroupHeartbeat"))
    assert "group.protocol=classic" in str(rig.application.errors[0])
    rig = Rig(Topics(regex="t.*"))
    assert rig.sent().subscribed_topic_regex == "t.*"
    assert rig.coordinator.requests[0].versions == (1, 1)
    rig.respond(UnsupportedVersionError("no common version of ConsumerGroupHeartbeat"))
    assert "Subscribe to names" in str(rig.application.errors[0])


def test_a_missing_permission_is_raised_and_the_heartbeat_retried():
    rig = Rig()
    rig.sent()
    rig.respond(error_code=Code.TOPIC_AUTHORIZATION_FAILED)
    assert isinstance(rig.application.errors[0], TopicAuthorizationError)
    rig.clock.advance(100)
    assert rig.sent().member_epoch == 0


def test_a_changed_subscription_is_sent_at_once():
    rig = Rig()
    rig.join(t=[0])
    rig.member.subscribe(Topics(regex="t|u"))
    changed = rig.sent()
    assert (list(changed.subscribed_topic_names), changed.subscribed_topic_regex) == ([], "t|u")
    assert changed.rebalance_timeout_ms == -1
    rig.respond()
    rig.member.subscribe(Topics(frozenset({"u"})))
    changed = rig.sent()
    assert (list(changed.subscribed_topic_names), changed.subscribed_topic_regex) == (["u"], "")


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
def test_leaving_has_an_epoch_of_its_own(instance_id, epoch):
    rig = Rig(**({"group.instance.id": instance_id} if instance_id else {}))
    rig.join(t=[0])
    done = []
    rig.member.leave("closing", lambda: done.append(True))
    (leaving,) = rig.coordinator.requests
    built = leaving.build(1)
    assert (built.member_epoch, built.instance_id) == (epoch, instance_id)
    rig.respond(member_epoch=epoch)
    assert done == [True]
    rig.expect(MemberState.UNJOINED)
    assert rig.member.identity == GroupMetadata("g", -1, "", instance_id)


def test_a_member_whose_application_does_not_poll_leaves_until_it_does():
    rig = Rig()
    rig.join(t=[0])
    rig.application.overdue = True
    rig.run()
    rig.expect(MemberState.PARTED)
    assert rig.coordinator.requests.popleft().build(1).member_epoch == -1
    rig.clock.advance(INTERVAL_MS)
    rig.run()
    assert not rig.coordinator.requests
    rig.application.overdue = False
    rig.run()
    rig.expect(MemberState.FENCED)
    rig.application.poll()
    assert rig.application.calls[-1] == ("lost", [TopicPartition("t", 0)])
    assert rig.sent().member_epoch == 0


def test_a_commit_with_an_old_epoch_sends_a_heartbeat_at_once():
    rig = Rig()
    rig.join(t=[0])
    rig.run()
    assert not rig.coordinator.requests
    rig.coordinator.on_removed(Code.STALE_MEMBER_EPOCH)
    assert rig.sent().member_epoch == 1
