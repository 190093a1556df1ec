"""headrace topic, with Apache Kafka and with headrace's broker."""

from __future__ import annotations

import pytest

from headrace import Producer
from headrace.broker import EmbeddedBroker
from tests.support.cli_runner import facts, refused, run_cli
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually


@pytest.fixture
def at(either):
    """The arguments that name the broker."""
    return ("-b", either.bootstrap)


def test_a_topic_is_created_listed_described_altered_and_deleted(at):
    name = unique("cli-topic")
    assert facts("topic", "create", name, "-p", 3, "-c", "retention.ms=60000", *at) == {
        "created": [name],
        "existed": [],
    }
    (listed,) = (topic for topic in facts("topic", "list", *at)["topics"] if topic["topic"] == name)
    assert (listed["partitions"], listed["replication_factor"], listed["internal"]) == (3, 1, False)
    eventually("the logs are on disk", lambda: _size(name, at) == 0 or None)
    described = facts("topic", "describe", name, *at)
    assert described["configs"] == {"retention.ms": "60000"}
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert {(p["start_offset"], p["end_offset"], p["size_bytes"]) for p in described["partitions"]} == {(0, 0, 0)}
    assert facts("topic", "alter", name, "--partitions", 5, *at)["partitions"] == 5
    assert facts("topic", "delete", name, "--yes", *at) == {"deleted": [name], "missing": []}
    assert f"topic '{name}' does not exist" in refused(3, "topic", "delete", name, "--yes", *at)
    assert facts("topic", "delete", name, "--yes", "--if-exists", *at)["missing"] == [name]


def test_an_offline_partition_is_shown_with_the_others(tmp_path):
    with EmbeddedBroker(data_dir=tmp_path) as broker:
        broker.create_topic("orders", 2)
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for partition in (0, 1):
                producer.send("orders", b"x", partition=partition).result(20)
        broker.stop()
        (tmp_path / "orders-0" / "partition.metadata").write_bytes(b"damaged")
        broker.start()
        _, _, first, second, *_ = run_cli("topic", "describe", "orders", "-b", broker.bootstrap).stdout.splitlines()
        assert first.split()[:3] == ["0", "1", "(offline)"]
        assert second.split()[:6] == ["1", "1", "1", "1", "0", "1"]


def _size(name, at):
    return next(topic["size_bytes"] for topic in facts("topic", "list", *at)["topics"] if topic["topic"] == name)


def test_topic_options_are_shown_set_and_reset(either, at):
    name = new_topic(either, "cli-config")
    assert facts("topic", "config", name, *at)["configs"] == []
    assert "all options have their defaults" in run_cli("topic", "config", name, *at).stdout
    changed = facts("topic", "config", name, "--set", "retention.ms=5000", "--set", "cleanup.policy=compact", *at)
    assert {(option["name"], option["value"], option["source"]) for option in changed["configs"]} == {
        ("retention.ms", "5000", "topic"),
        ("cleanup.policy", "compact", "topic"),
    }
    options = facts("topic", "config", name, "--delete", "retention.ms", "--all", *at)["configs"]
    (retention,) = (option for option in options if option["name"] == "retention.ms")
    assert retention["is_default"]
    assert len(options) > 10
    assert "INVALID_CONFIG" in refused(1, "topic", "config", name, "--set", "retention.ms=soon", *at)
    assert "--set and --delete both name a" in refused(2, "topic", "config", name, "--set", "a=b", "--delete", "a", *at)


def test_invalid_changes_are_refused_in_one_paragraph(either, at):
    name = new_topic(either, "cli-refused", partitions=2)
    assert "already exists; --if-not-exists accepts that" in refused(1, "topic", "create", name, *at)
    assert facts("topic", "create", name, "--if-not-exists", *at) == {"created": [], "existed": [name]}
    assert "INVALID_TOPIC_EXCEPTION" in refused(1, "topic", "create", "no good", *at)
    assert "partitions cannot be removed" in refused(1, "topic", "alter", name, "--partitions", 1, *at)
    assert f"did you mean '{name}'?" in refused(3, "topic", "describe", f"{name}x", *at)
    assert "confirmation required: stdin is not a terminal; pass --yes" in refused(2, "topic", "delete", name, *at)
    assert "invalid -c: expected KEY=VALUE" in refused(2, "topic", "create", "x", "-c", "nonsense", *at)


def test_text_output_is_a_table(either, at):
    name = new_topic(either, "cli-text", partitions=2)
    lines = run_cli("topic", "describe", name, *at).stdout.splitlines()
    assert lines[0].startswith(f"{name} (id ")
    assert lines[1].split() == ["PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "BYTES"]
    assert len(lines) == 4
    assert name in run_cli("topic", "list", *at).stdout
    assert "__consumer_offsets" not in run_cli("topic", "list", *at).stdout
