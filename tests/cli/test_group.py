"""headrace group, with groups of real consumers."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from tests.support.cli_runner import facts, refused, run_cli
from tests.support.group_members import member
from tests.support.topics import new_topic, unique

SECONDS_MAX = 30
AGE_MS = 90_000
COUNT = 10


@pytest.fixture
def topic(either):
    """Two partitions with ten records each, written a minute and a half ago."""
    name = new_topic(either, "cli-group", partitions=2)
    producer = Producer({"bootstrap.servers": either.bootstrap, "log_level": 0})
    written_ms = int(time.time() * 1000) - AGE_MS
    for number in range(2 * COUNT):
        producer.produce(name, b"x", partition=number % 2, timestamp=written_ms)
    assert producer.flush(SECONDS_MAX) == 0
    return name


def read(consumer, count):
    """Commit the offset `count` of partition 0, and the end of the others."""
    consumer.commit(offsets=_offsets(consumer, {0: count}), asynchronous=False)


def _offsets(consumer, offsets):
    assigned = consumer.assignment()
    for partition in assigned:
        partition.offset = offsets.get(partition.partition, COUNT)
    return assigned


def test_a_group_is_described_with_members_and_lag_in_records_and_time(either, topic):
    group = unique("billing")
    with member(either.bootstrap, group, topic) as consumer:
        read(consumer, 4)
        result = facts("group", "describe", group, "-b", either.bootstrap)
        text = run_cli("group", "describe", group, "-b", either.bootstrap).stdout
        listed = facts("group", "list", "-b", either.bootstrap)["groups"]
    assert (result["group"], result["state"], result["type"]) == (group, "Stable", "classic")
    (described,) = result["members"]
    assert described["client_id"] == "billing-1"
    assert [(tp["topic"], tp["partition"]) for tp in described["partitions"]] == [(topic, 0), (topic, 1)]
    behind, done = result["partitions"]
    assert (behind["committed"], behind["end"], behind["lag"], behind["client_id"]) == (4, COUNT, 6, "billing-1")
    assert AGE_MS <= behind["lag_ms"] <= AGE_MS + SECONDS_MAX * 1000
    assert (done["lag"], done["lag_ms"]) == (0, 0)
    assert (result["lag"], result["lag_ms"]) == (6, behind["lag_ms"])
    assert "6 records behind, 1 m 3" in text
    assert "billing-1" in text
    assert {"group": group, "state": "Stable", "type": "classic", "protocol": "consumer"} in listed


def test_offsets_are_reset_only_without_members(either, topic):
    group = unique("billing")
    at = ("-b", either.bootstrap)
    with member(either.bootstrap, group, topic) as consumer:
        read(consumer, 4)
        message = refused(1, "group", "reset", group, "--to", "earliest", "--yes", *at)
        assert f"group '{group}' has 1 member (billing-1 at " in message
        assert "1 member (billing-1" in refused(1, "group", "delete", group, "--yes", *at)

    def offsets():
        return [partition["committed"] for partition in facts("group", "describe", group, *at)["partitions"]]

    preview = run_cli("group", "reset", group, "--to", "earliest", *at)
    assert preview.exit_code == 0
    assert "nothing was changed; pass --yes to apply" in preview.stdout
    assert [line.split() for line in preview.stdout.splitlines()[1:3]] == [
        [topic, "0", "4", "0", "-4"],
        [topic, "1", "10", "0", "-10"],
    ]
    assert offsets() == [4, COUNT]
    assert facts("group", "reset", group, "--to", "earliest", "--dry-run", "--yes", *at)["applied"] is False
    assert offsets() == [4, COUNT]
    assert facts("group", "reset", group, "--to", "earliest", "--yes", *at)["applied"] is True
    assert offsets() == [0, 0]
    facts("group", "reset", group, "--shift", 3, "--topic", f"{topic}:1", "--yes", *at)
    assert offsets() == [0, 3]
    facts("group", "reset", group, "--to", 10_000, "--topic", f"{topic}:0", "--yes", *at)
    assert offsets() == [COUNT, 3]  # never beyond the end
    facts("group", "reset", group, "--to", "@2020-01-01", "--yes", *at)
    assert offsets() == [0, 0]
    facts("group", "reset", group, "--to", f"@{int(time.time() * 1000)}", "--yes", *at)
    assert offsets() == [COUNT, COUNT]  # no record is that new: the end


@pytest.mark.parametrize("either", ["apache"], indirect=True)
def test_a_group_of_the_consumer_protocol_is_described(either, topic):
    group = unique("newer")
    at = ("-b", either.bootstrap)
    with member(either.bootstrap, group, topic, "consumer") as consumer:
        read(consumer, 4)
        result = facts("group", "describe", group, *at)
        assert (result["type"], result["state"], result["assignor"], result["lag"]) == (
            "consumer",
            "Stable",
            "uniform",
            6,
        )
        (described,) = result["members"]
        assert (described["client_id"], described["host"]) == ("billing-1", "127.0.0.1")
        assert [(tp["topic"], tp["partition"]) for tp in described["partitions"]] == [(topic, 0), (topic, 1)]
        assert [partition["member_id"] for partition in result["partitions"]] == [described["member_id"]] * 2
        assert "billing-1" in run_cli("group", "describe", group, *at).stdout
        message = refused(1, "group", "reset", group, "--to", "earliest", "--yes", *at)
        assert f"group '{group}' has 1 member (billing-1 at " in message
        assert "1 member (billing-1" in refused(1, "group", "delete", group, "--yes", *at)
    assert facts("group", "describe", group, *at)["members"] == []


def test_a_group_is_created_by_setting_its_offsets_and_deleted(either, topic):
    group = unique("made")
    at = ("-b", either.bootstrap)
    assert f"group '{group}' does not exist" in refused(3, "group", "reset", group, "--to", "latest", "--yes", *at)
    facts("group", "reset", group, "--to", "latest", "--topic", topic, "--yes", *at)
    assert facts("group", "describe", group, *at)["lag"] == 0
    assert "confirmation required: stdin is not a terminal; pass --yes" in refused(2, "group", "delete", group, *at)
    assert facts("group", "delete", group, "--yes", *at) == {"deleted": [group]}
    for command in ("describe", "delete"):
        yes = ("--yes",) if command == "delete" else ()
        assert f"group '{group}' does not exist" in refused(3, "group", command, group, *yes, *at)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "pass either --to or --shift"),
        (("--to", "earliest", "--shift", "1"), 2, "pass either --to or --shift"),
        (("--to", "yesterday"), 2, "invalid --to: expected earliest, latest, an offset or @TIME, got 'yesterday'"),
        (("--to", "@noon"), 2, "invalid time 'noon'"),
        (("--to", "0", "--topic", "not-there"), 3, "topic 'not-there' does not exist"),
        (("--to", "0", "--topic", "TOPIC:x"), 2, "invalid --topic: expected TOPIC or TOPIC:0,2, got 'TOPIC:x'"),
        (("--to", "0", "--topic", "TOPIC:7"), 3, "has 2 partitions, but not partition 7"),
        (("--shift", "1", "--topic", "TOPIC"), 1, "which has no committed offset"),
    ],
)
def test_an_invalid_reset_is_refused(headrace_broker, arguments, code, message):
    topic = new_topic(headrace_broker, "cli-reset", partitions=2)
    given = [argument.replace("TOPIC", topic) for argument in arguments]
    command = ("group", "reset", unique("nobody"), "--yes", "-b", headrace_broker.bootstrap, *given)
    assert message in refused(code, *command).replace(topic, "TOPIC")
