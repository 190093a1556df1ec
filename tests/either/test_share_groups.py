"""Share groups (KIP-932): headrace responds like Apache Kafka, request by request, and Java's tools work with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.client.admin import AdminClient, ConfigResource, ResourceKind
from headrace.errors import BrokerError, Code
from headrace.wire.layout import Record
from tests.support.comparison.scenario import compare
from tests.support.comparison.share_groups import TIME, ShareGroupScenario, batches
from tests.support.peers import librdkafka
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually


@pytest.fixture
def scenarios(kafka, headrace_broker) -> Iterator[list[ShareGroupScenario]]:
    name = unique("same-share")
    made = [ShareGroupScenario(broker, name) for broker in (headrace_broker, kafka)]
    yield made
    for scenario in made:
        scenario.connection.close()


def test_members_of_share_groups_get_the_same_responses(scenarios):
    def script(s: ShareGroupScenario) -> None:
        s.beat("no member", "", 0, subscribed_topic_names=[s.topic])
        s.beat("no group", "a", 0, group_id="", subscribed_topic_names=[s.topic])
        s.beat("empty rack", "a", 0, rack_id="", subscribed_topic_names=[s.topic])
        s.beat("no subscription", "a", 0)
        s.beat("epoch -2", "a", -2)
        s.beat("unknown group", "a", 1)
        s.beat("leave an unknown group", "a", -1)
        s.join("a")
        s.beat("unknown member", "b", 1)
        s.beat("newer epoch", "a", 99)
        s.call("classic describe", "DescribeGroups", groups=[s.group])
        s.call("unknown groups", "ShareGroupDescribe", group_ids=["missing"])
        s.call("delete with members", "DeleteGroups", groups_names=[s.group])
        s.call("list", "ListGroups", types_filter=["share"], states_filter=["Stable"])
        s.beat("leave", "a", -1)
        s.beat("leave again", "a", -1)
        s.call("list empty", "ListGroups", types_filter=["share"], states_filter=["stable"])
        s.call("delete", "DeleteGroups", groups_names=[s.group])
        s.call("delete again", "DeleteGroups", groups_names=[s.group])

    for scenario in scenarios:
        listed = scenario.send("ListGroups", {"types_filter": ["share"]}).groups
        assert not [group for group in listed if group.group_state == "Stable"]  # only the scenario's own are listed
    compare(scenarios, script)


def test_fetches_and_acknowledgements_get_the_same_responses(scenarios):
    def script(s: ShareGroupScenario) -> None:
        s.join("a")
        s.fetch("no session", "a", 1)
        s.fetch("first fetch with acknowledgements", "a", 0, batches((0, 0, [1])))
        s.fetch("no group", "a", 0, group_id=None)
        s.fetch("no member", "", 0)
        s.fetch("first fetch", "a", 0)
        s.fetch("older epoch", "a", 3)
        s.fetch("nothing left", "a", 1)
        s.acknowledge("accept", "a", 2, (0, 2, [1]))
        s.acknowledge("accept again", "a", 3, (0, 2, [1]))
        s.acknowledge("per record", "a", 4, (3, 6, [1, 2, 3, 1]))
        s.acknowledge("wrong epoch", "a", 4, (7, 7, [1]))
        s.acknowledge("unknown offsets", "a", 5, (50, 51, [1]))
        s.acknowledge("past the end", "a", 6, (8, 11, [1]))
        s.acknowledge("unordered", "a", 7, (8, 8, [1]), (7, 7, [1]))
        s.acknowledge("wrong number of types", "a", 8, (7, 9, [1, 1]))
        s.acknowledge("unknown type", "a", 9, (7, 7, [5]))
        s.acknowledge("renewal without the flag", "a", 10, (7, 7, [4]))
        s.acknowledge("renewal", "a", 11, (7, 7, [4]), is_renew_ack=True)
        s.fetch("released record", "a", 12)
        s.fetch("with acknowledgements", "a", 13, batches((4, 4, [1]), (7, 9, [2])))
        s.fetch("released again", "a", 14)
        s.describe_offsets("offsets")
        s.fetch("last fetch", "a", -1)
        s.fetch("after the last fetch", "a", 1)
        s.fetch("a new session", "a", 0)
        s.acknowledge("the rest", "a", 1, (7, 9, [1]))
        s.describe_offsets("offsets at the end")

    compare(scenarios, script)


def test_limits_of_fetches_have_the_same_effect(scenarios):
    def script(s: ShareGroupScenario) -> None:
        s.join("a")
        s.fetch("strict", "a", 0, max_records=3, share_acquire_mode=1)
        s.fetch("strict again", "a", 1, max_records=2, share_acquire_mode=1)
        s.fetch("no records", "a", 2, max_records=0)
        s.fetch("whole batches", "a", 3, max_records=1)
        s.acknowledge("release all", "a", 4, (0, 9, [2]))
        s.fetch("a part of what was released", "a", 5, max_records=4, share_acquire_mode=1)
        s.fetch("renewal with limits", "a", 6, is_renew_ack=True)

    compare(scenarios, script)


def test_offsets_of_share_groups_are_altered_and_deleted_alike(scenarios):
    def script(s: ShareGroupScenario) -> None:
        def alter(step: str, offset: int, partition: int = 0, topic: str | None = None) -> None:
            parts = [{"partition_index": partition, "start_offset": offset}]
            topics = [{"topic_name": topic or s.topic, "partitions": parts}]
            s.call(step, "AlterShareGroupOffsets", group_id=s.group, topics=topics)

        s.describe_offsets("no group")
        s.join("a")
        alter("with members", 5)
        s.call("delete with members", "DeleteShareGroupOffsets", group_id=s.group, topics=[{"topic_name": s.topic}])
        s.beat("leave", "a", -1)
        alter("alter", 5)
        alter("unknown partition", 5, partition=3)
        alter("unknown topic", 5, topic="missing")
        s.describe_offsets("altered")
        s.join("b")
        s.fetch("from the altered offset", "b", 0)
        s.fetch("last fetch", "b", -1)
        s.beat("leave again", "b", -1)
        s.call("unknown topic", "DeleteShareGroupOffsets", group_id=s.group, topics=[{"topic_name": "missing"}])
        s.call("delete", "DeleteShareGroupOffsets", group_id=s.group, topics=[{"topic_name": s.topic}])
        s.call("delete again", "DeleteShareGroupOffsets", group_id=s.group, topics=[{"topic_name": s.topic}])
        s.call("no such group", "DeleteShareGroupOffsets", group_id="missing", topics=[{"topic_name": s.topic}])
        s.describe_offsets("deleted")

    compare(scenarios, script)


def test_other_protocols_are_refused_alike(scenarios):
    def script(s: ShareGroupScenario) -> None:
        s.join("a")
        s.call(
            "consumer heartbeat",
            "ConsumerGroupHeartbeat",
            group_id=s.group,
            member_id="c",
            member_epoch=0,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=[s.topic],
            topic_partitions=[],
        )
        topics = [{"name": s.topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        s.call("commit", "OffsetCommit", group_id=s.group, generation_id_or_member_epoch=-1, topics=topics)
        protocols = [{"name": "range", "metadata": b""}]
        s.call(
            "classic join",
            "JoinGroup",
            group_id=s.group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=protocols,
        )

    compare(scenarios, script)


def test_options_of_share_groups_have_the_same_limits(kafka, headrace_broker):
    options = {
        "share.record.lock.duration.ms": ("14999", "15000", "60000", "60001"),
        "share.delivery.count.limit": ("1", "2", "10", "11"),
        "share.partition.max.record.locks": ("99", "100", "4000", "4001"),
        "share.session.timeout.ms": ("44999", "45000", "60000", "60001"),
        "share.heartbeat.interval.ms": ("4999", "5000", "15000", "15001"),
        "share.auto.offset.reset": ("none", "latest", "by_duration:PT1H", "by_duration:-PT1H"),
        "share.isolation.level": ("serializable", "read_committed"),
        "share.renew.acknowledge.enable": ("maybe", "false"),
    }
    resource = ConfigResource(ResourceKind.GROUP, unique("limited"))

    def code_of(admin: AdminClient, option: str, value: str) -> int:
        try:
            admin.alter_configs({resource: {option: value}})
        except BrokerError as error:
            return error.code
        finally:
            admin.alter_configs({resource: {option: None}})
        return Code.NONE

    codes = []
    for broker in (headrace_broker, kafka):
        with AdminClient(broker.bootstrap) as admin:
            codes.append(
                {(option, value): code_of(admin, option, value) for option in options for value in options[option]}
            )
    assert codes[0] == codes[1]
    assert set(codes[0].values()) == {Code.NONE, Code.INVALID_CONFIG}


# -- Java's tools ----------------------------------------------------------------------------------


def test_the_console_share_consumer_and_its_tools(either, java_client):
    topic, group = new_topic(either, "share-console"), unique("share-console")
    server = ("--bootstrap-server", either.bootstrap)

    def configs(*args: object) -> Any:
        return java_client.tool("kafka.admin.ConfigCommand", *server, *args)

    def groups(*args: object) -> Any:
        return java_client.tool("consumer.group.ShareGroupCommand", *server, *args)

    configs("--alter", "--group", group, "--add-config", "share.auto.offset.reset=earliest")
    librdkafka.produce(either.bootstrap, topic, [Record(n, TIME + n, None, b"%d" % n, ()) for n in range(20)])
    read = java_client.tool(
        *("consumer.ConsoleShareConsumer", *server, "--topic", topic, "--group", group),
        *("--max-messages", 20, "--timeout-ms", 30_000),
    )
    assert sorted(map(int, read.lines)) == list(range(20))
    assert group in groups("--list").lines

    def offsets() -> list[list[str]]:
        return [line.split() for line in groups("--describe", "--group", group).lines if topic in line]

    eventually("no lag", lambda: [(row[2], row[4]) for row in offsets()] == [("0", "0")])
    groups("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert [row[2:5] for row in offsets()] == [["0", "0", "20"]]
    again = java_client.tool(
        *("consumer.ConsoleShareConsumer", *server, "--topic", topic, "--group", group),
        *("--max-messages", 20, "--timeout-ms", 30_000),
    )
    assert sorted(map(int, again.lines)) == list(range(20))
    eventually("an empty group", lambda: "Empty" in groups("--describe", "--group", group, "--state").out)
    groups("--delete-offsets", "--group", group, "--topic", topic)
    groups("--delete", "--group", group)
    assert group not in groups("--list").lines
