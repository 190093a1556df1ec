"""headrace topic …, on Apache Kafka and on ours."""

from __future__ import annotations

import pytest

from headrace import Producer
from headrace.broker import EmbeddedBroker
from topics import new_topic, unique
from typed import facts, refused, typed
from waiting import eventually


@pytest.fixture
def at(either):
    """How to say which broker."""
    return ("-b", either.bootstrap)


def test_the_life_of_a_topic(at):
    name = unique("cli-topic")
    assert facts("topic", "create", name, "-p", 3, "-c", "retention.ms=60000", *at) == {
        "created": [name],
        "existed": [],
    }
    (listed,) = (one for one in facts("topic", "list", *at)["topics"] if one["topic"] == name)
    assert (listed["partitions"], listed["replication_factor"], listed["internal"]) == (3, 1, False)
    eventually("the logs are on disk", lambda: _size(name, at) == 0 or None)
    described = facts("topic", "describe", name, *at)
    assert described["configs"] == {"retention.ms": "60000"}
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert {(p["start_offset"], p["end_offset"], p["size_bytes"]) for p in described["partitions"]} == {(0, 0, 0)}
    assert facts("topic", "alter", name, "--partitions", 5, *at)["partitions"] == 5
    assert facts("topic", "delete", name, "--yes", *at) == {"deleted": [name], "missing": []}
    assert f"there is no topic '{name}'" in refused(3, "topic", "delete", name, "--yes", *at)
    assert facts("topic", "delete", name, "--yes", "--if-exists", *at)["missing"] == [name]


def test_an_offline_partition_is_shown_as_such_and_does_not_hide_the_others(tmp_path):
    with EmbeddedBroker(data_dir=tmp_path) as broker:
        broker.create_topic("orders", 2)
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for partition in (0, 1):
                producer.send("orders", b"x", partition=partition).result(20)
        broker.stop()
        (tmp_path / "orders-0" / "partition.metadata").write_bytes(b"damaged")
        broker.start()
        _, _, first, second, *_ = typed("topic", "describe", "orders", "-b", broker.bootstrap).stdout.splitlines()
        assert first.split()[:3] == ["0", "1", "(offline)"]
        assert second.split()[:6] == ["1", "1", "1", "1", "0", "1"]


def _size(name, at):
    return next(one["size_bytes"] for one in facts("topic", "list", *at)["topics"] if one["topic"] == name)


def test_options_of_a_topic_are_shown_set_and_put_back(either, at):
    name = new_topic(either, "cli-config")
    assert facts("topic", "config", name, *at)["configs"] == []
    assert "all options have their defaults" in typed("topic", "config", name, *at).stdout
    changed = facts("topic", "config", name, "--set", "retention.ms=5000", "--set", "cleanup.policy=compact", *at)
    assert {(one["name"], one["value"], one["source"]) for one in changed["configs"]} == {
        ("retention.ms", "5000", "topic"),
        ("cleanup.policy", "compact", "topic"),
    }
    back = facts("topic", "config", name, "--delete", "retention.ms", "--all", *at)["configs"]
    (retention,) = (one for one in back if one["name"] == "retention.ms")
    assert retention["is_default"]
    assert len(back) > 10
    assert "INVALID_CONFIG" in refused(1, "topic", "config", name, "--set", "retention.ms=soon", *at)
    assert "keep one of them" in refused(2, "topic", "config", name, "--set", "a=b", "--delete", "a", *at)


def test_what_cannot_be_is_told_in_a_paragraph(either, at):
    name = new_topic(either, "cli-refused", partitions=2)
    assert "--if-not-exists lets that pass" in refused(1, "topic", "create", name, *at)
    assert facts("topic", "create", name, "--if-not-exists", *at) == {"created": [], "existed": [name]}
    assert "INVALID_TOPIC_EXCEPTION" in refused(1, "topic", "create", "no good", *at)
    assert "a topic can only grow" in refused(1, "topic", "alter", name, "--partitions", 1, *at)
    assert f"did you mean '{name}'?" in refused(3, "topic", "describe", f"{name}x", *at)
    assert "There is nobody to ask: --yes does it." in refused(2, "topic", "delete", name, *at)
    assert "-c takes key=value" in refused(2, "topic", "create", "x", "-c", "nonsense", *at)


def test_text_is_a_table(either, at):
    name = new_topic(either, "cli-text", partitions=2)
    lines = typed("topic", "describe", name, *at).stdout.splitlines()
    assert lines[0].startswith(f"{name} (id ")
    assert lines[1].split() == ["PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "BYTES"]
    assert len(lines) == 4
    assert name in typed("topic", "list", *at).stdout
    assert "__consumer_offsets" not in typed("topic", "list", *at).stdout
