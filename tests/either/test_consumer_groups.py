"""The consumer protocol (KIP-848), request by request: headrace responds like Apache Kafka, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.types import TopicPartition
from headrace.wire.api import ApiKey, request_class
from headrace.wire.consumer_protocol import ConsumerProtocolSubscription, decode_assignment, encode_assignment
from tests.support.comparison.scenario import GroupScenario, compare
from tests.support.topics import unique

SECONDS_MAX = 20
PAUSE_SECONDS = 0.1
COMMIT_VERSION = 9
VERSIONS = {
    "ConsumerGroupHeartbeat": 1,
    "ConsumerGroupDescribe": 1,
    "OffsetCommit": COMMIT_VERSION,
    "OffsetFetch": 9,
    "DescribeGroups": 6,
    "ListGroups": 5,
    "DeleteGroups": 2,
    "JoinGroup": 9,
    "SyncGroup": 5,
    "Heartbeat": 4,
    "LeaveGroup": 5,
    "DescribeConfigs": 4,
    "IncrementalAlterConfigs": 1,
    "ListConfigResources": 1,
}
JOINING = {"member_epoch": 0, "rebalance_timeout_ms": 30_000, "topic_partitions": []}


class Scenario(GroupScenario):
    """Requests to one broker, and everything in the responses that can be compared."""

    versions = VERSIONS
    partitions = 2

    def beat(self, step: str, member: str, epoch: int, version: int = 1, /, **fields: Any) -> Any:
        return self.call(
            step,
            "ConsumerGroupHeartbeat",
            version,
            **{"group_id": self.group, "member_id": member, "member_epoch": epoch, **fields},
        )

    def join(self, step: str, member: str, /, **fields: Any) -> Any:
        return self.beat(step, member, 0, **{**JOINING, "subscribed_topic_names": [self.topic], **fields})

    def beat_until_assigned(self, step: str, member: str, epoch: int, **fields: Any) -> Any:
        """Send heartbeats until the response has an assignment with partitions, and note that one."""
        responses: list[Any] = []

        def is_assigned() -> bool:
            response = self.send(
                "ConsumerGroupHeartbeat",
                {"group_id": self.group, "member_id": member, "member_epoch": epoch, **fields},
            )
            responses.append(response)
            assert not response.error_code, response
            return response.assignment is not None and bool(response.assignment.topic_partitions)

        self.until(is_assigned)
        self.note(step, responses[-1])
        return responses[-1]


@pytest.fixture
def scenarios(kafka, headrace_broker) -> Iterator[list[Scenario]]:
    name = unique("same-consumer")
    made = [Scenario(broker, name) for broker in (headrace_broker, kafka)]
    yield made
    for scenario in made:
        scenario.connection.close()


def test_the_class_of_every_request_is_known():
    assert {ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE} <= set(ApiKey)
    assert request_class(ApiKey.CONSUMER_GROUP_HEARTBEAT).versions.last == 1


def test_members_get_the_same_responses(scenarios):
    def script(s: Scenario) -> None:
        epoch = s.join("join", "a").member_epoch
        s.beat("heartbeat", "a", epoch)
        s.beat(
            "full heartbeat",
            "a",
            epoch,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=[s.topic],
            topic_partitions=[],
        )
        s.join("rejoin", "a")
        s.beat("newer epoch", "a", epoch + 1)
        s.beat("older epoch", "a", epoch - 1, topic_partitions=[{"topic_id": s.topic_id, "partitions": [0]}])
        s.beat("unknown member", "b", 1)
        s.beat("other topics", "a", epoch, subscribed_topic_names=["missing"])
        s.call("describe", "ConsumerGroupDescribe", group_ids=[s.group, "missing"], include_authorized_operations=True)
        s.call("describe v0", "ConsumerGroupDescribe", 0, group_ids=[s.group])
        s.call("classic describe", "DescribeGroups", groups=[s.group])
        s.call("classic describe v5", "DescribeGroups", 5, groups=[s.group])
        s.call("delete with members", "DeleteGroups", groups_names=[s.group])
        s.beat("leave", "a", -1)
        s.beat("leave again", "a", -1)
        s.call("describe empty", "ConsumerGroupDescribe", group_ids=[s.group])
        s.call("delete", "DeleteGroups", groups_names=[s.group])
        s.call("delete again", "DeleteGroups", groups_names=[s.group])

    compare(scenarios, script)


def test_invalid_heartbeats_get_the_same_errors(scenarios):
    def script(s: Scenario) -> None:
        s.join("no member", "")
        s.join("no group", "a", group_id="")
        s.join("empty instance", "a", instance_id="")
        s.join("empty rack", "a", rack_id="")
        s.join("no timeout", "a", rebalance_timeout_ms=-1)
        s.join("no partitions", "a", topic_partitions=None)
        s.join("no subscription", "a", subscribed_topic_names=None)
        s.join("unknown assignor", "a", server_assignor="sticky")
        s.join("range", "r", server_assignor="range")
        s.join("bad regex", "a", subscribed_topic_regex="(")
        s.join("lookahead", "a", subscribed_topic_regex="a(?=b)")
        for epoch in (-3, -2, -1, 1):
            s.beat(f"epoch {epoch}", "a", epoch)
        s.beat("unknown group", "a", -1, group_id="missing")
        s.beat("version 0 without a member id leaves", "", -1, 0)

    compare(scenarios, script)


def test_static_members_get_the_same_responses(scenarios):
    def script(s: Scenario) -> None:
        s.join("join", "a", instance_id="i")
        s.join("in use", "b", instance_id="i")
        s.beat("unknown instance", "a", 1, instance_id="j")
        s.beat("leave for a moment", "a", -2, instance_id="i")
        s.call("describe", "ConsumerGroupDescribe", group_ids=[s.group])
        s.join("return", "b", instance_id="i")
        s.beat("fenced", "a", 2, instance_id="i")
        s.beat("heartbeat", "b", 2, instance_id="i")
        s.beat("leave", "b", -1, instance_id="i")

    compare(scenarios, script)


def test_commits_and_fetches_check_the_same_epochs(scenarios):
    def script(s: Scenario) -> None:
        s.join("join", "a")
        rows = [{"name": s.topic, "partitions": [{"partition_index": 0, "committed_offset": 3}]}]
        for member, epoch in (("a", 2), ("a", 1), ("a", 3), ("b", 2), ("", -1)):
            claim = {"group_id": s.group, "member_id": member, "generation_id_or_member_epoch": epoch}
            s.call(f"commit as {member!r} in {epoch}", "OffsetCommit", topics=rows, **claim)
        s.call(
            "older commit",
            "OffsetCommit",
            8,
            topics=rows,
            group_id=s.group,
            member_id="a",
            generation_id_or_member_epoch=2,
        )
        for who, epoch in (("a", 2), ("a", 1), ("a", 3), ("b", 2), (None, -1)):
            group = {
                "group_id": s.group,
                "member_id": who,
                "member_epoch": epoch,
                "topics": [{"name": s.topic, "partition_indexes": [0]}],
            }
            s.call(f"fetch as {who!r} in {epoch}", "OffsetFetch", groups=[group])

    compare(scenarios, script)


def test_regular_expressions_are_resolved_alike(scenarios):
    def script(s: Scenario) -> None:
        fields = {"subscribed_topic_names": None, "subscribed_topic_regex": f"{s.topic[:-3]}.*"}
        joined = s.join("join", "a", **fields)
        s.beat_until_assigned(
            "assigned", "a", joined.member_epoch, **({**JOINING, **fields} if not joined.member_epoch else {})
        )
        s.call("describe", "ConsumerGroupDescribe", group_ids=[s.group])

    compare(scenarios, script)


def subscription(topic: str) -> bytes:
    return b"\0\1" + ConsumerProtocolSubscription(topics=[topic]).encode(1)


def classic_join(s: Scenario, step: str, member: str) -> Any:
    protocols = [{"name": "range", "metadata": subscription(s.topic)}]
    return s.call(
        step,
        "JoinGroup",
        group_id=s.group,
        member_id=member,
        group_instance_id=None,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=protocols,
    )


def test_a_classic_consumer_in_a_consumer_group_gets_the_same_responses(scenarios):
    def script(s: Scenario) -> None:
        s.join("join", "a")
        joined = classic_join(s, "classic join", "")
        s.seen[-1][1]["member_id"] = "assigned"
        names = {joined.member_id: "classic"}
        s._names.update(names)
        joined = classic_join(s, "classic join with an id", joined.member_id)
        claim = {"group_id": s.group, "member_id": joined.member_id, "generation_id": joined.generation_id}
        s.call("heartbeat", "Heartbeat", **claim)
        s.call("wrong generation", "Heartbeat", **{**claim, "generation_id": 9})
        s.call("not classic", "Heartbeat", **{**claim, "member_id": "a"})
        s.call("sync", "SyncGroup", **claim, protocol_type="consumer", protocol_name="range")
        s.call("list", "ListGroups", types_filter=["Consumer"])
        listed = s.seen[-1][1]["groups"]
        listed[:] = [row for row in listed if row["group_id"] == s.group]  # other tests have groups, too
        assert len(listed) == 1
        s.call("leave", "LeaveGroup", group_id=s.group, members=[{"member_id": joined.member_id}, {"member_id": "a"}])

    compare(scenarios, script)


def test_a_classic_group_is_upgraded_and_downgraded_alike(scenarios):
    def script(s: Scenario) -> None:
        first = classic_join(s, "classic join", "")
        s.seen[-1][1]["member_id"] = "assigned"
        s._names[first.member_id] = "classic"
        joined = classic_join(s, "classic join with an id", first.member_id)
        claim = {"group_id": s.group, "member_id": joined.member_id, "generation_id": joined.generation_id}
        rows = [{"member_id": joined.member_id, "assignment": b"\0\1" + _assignment(s.topic, [0, 1])}]
        s.call("sync", "SyncGroup", **claim, protocol_type="consumer", protocol_name="range", assignments=rows)
        s.join("upgrade", "a")
        s.call("describe", "ConsumerGroupDescribe", group_ids=[s.group])
        s.seen[-1][1]["groups"][0]["members"].sort(key=lambda row: row["member_id"])
        s.call("rejoin", "Heartbeat", **claim)
        s.beat("downgrade", "a", -1)
        s.call("describe the classic group", "DescribeGroups", groups=[s.group])

    compare(scenarios, script)


def _assignment(topic: str, indexes: list[int]) -> bytes:
    data = encode_assignment([TopicPartition(topic, index) for index in indexes], version=1)
    assert decode_assignment(data)
    return data[2:]


def test_options_of_groups_are_the_same(scenarios):
    def script(s: Scenario) -> None:
        def alter(step: str, option: str, value: str) -> None:
            configs = [{"name": option, "config_operation": 0, "value": value}]
            rows = [{"resource_type": 32, "resource_name": s.group, "configs": configs}]
            s.call(step, "IncrementalAlterConfigs", resources=rows)

        alter("set", "consumer.heartbeat.interval.ms", "6000")
        alter("too small", "consumer.heartbeat.interval.ms", "1")
        alter("too large", "consumer.session.timeout.ms", "99000")
        alter("no number", "consumer.session.timeout.ms", "soon")
        alter("unknown", "consumer.color", "red")
        keys = ["consumer.heartbeat.interval.ms", "consumer.session.timeout.ms", "consumer.assignment.interval.ms"]
        rows = [{"resource_type": 32, "resource_name": s.group, "configuration_keys": keys}]

        def described() -> Any:
            return s.send("DescribeConfigs", {"resources": rows, "include_synonyms": True})

        s.until(lambda: any(c.value == "6000" for c in described().results[0].configs))
        s.call("describe", "DescribeConfigs", resources=rows, include_synonyms=True)
        s.seen[-1][1]["results"][0]["configs"].sort(key=lambda row: row["name"])
        s.join("join", "a")

    compare(scenarios, script)
