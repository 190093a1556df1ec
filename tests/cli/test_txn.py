"""headrace txn …, on transactions of a real producer, and on some that hang."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from hanging import plant_hanging
from headrace import FatalError, Producer
from topics import new_topic, unique
from typed import facts, refused, typed

SECONDS_MAX = 30


@contextmanager
def open_transaction(bootstrap, topic):
    """A producer in the middle of a transaction, and its id."""
    name = unique("writer")
    with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open").result(SECONDS_MAX)
        yield producer, name


def listed(bootstrap, *arguments):
    found = facts("txn", "list", "-b", bootstrap, *arguments)["transactions"]
    return {one["transactional_id"]: one for one in found}


def test_an_open_transaction_is_listed_described_and_aborted_by_its_id(either):
    topic, at = new_topic(either, "cli-txn"), ("-b", either.bootstrap)
    with open_transaction(either.bootstrap, topic) as (producer, name):
        one = listed(either.bootstrap)[name]
        assert one["state"] == "Ongoing"
        assert 0 <= one["age_ms"] <= SECONDS_MAX * 1000
        assert name in listed(either.bootstrap, "--state", "Ongoing")
        assert name not in listed(either.bootstrap, "--older-than", "1h")
        found = facts("txn", "describe", name, *at)
        assert found["producer_id"] == one["producer_id"]
        assert found["partitions"] == [{"topic": topic, "partition": 0}]
        assert found["timeout_ms"] == 60_000
        assert f"in {topic}-0" in typed("txn", "describe", name, *at).stdout

        said = refused(1, "txn", "abort", "--topic", topic, "--partition", 0, "--start-offset", 0, "--yes", *at)
        assert f"it is that of '{name}', which its coordinator looks after" in said
        assert "There is nobody to ask: --yes does it" in refused(2, "txn", "abort", name, *at)
        assert facts("txn", "abort", name, "--yes", *at)["aborted"] == name
        with pytest.raises(FatalError):
            producer.commit_transaction()
    assert "has nothing open" in refused(3, "txn", "abort", name, "--yes", *at)
    assert listed(either.bootstrap)[name]["age_ms"] is None


def test_a_hanging_transaction_is_found_and_aborted_in_its_partition(either):
    topic, at = new_topic(either, "cli-hanging"), ("-b", either.bootstrap)
    producer_id, epoch = plant_hanging(either.bootstrap, topic, unique("hanging"))
    where = ("--topic", topic)
    found = facts("txn", "find-hanging", *where, *at)
    assert found["partitions"] == 1
    (one,) = found["hanging"]
    assert (one["topic"], one["partition"], one["start_offset"]) == (topic, 0, 0)
    assert (one["producer_id"], one["producer_epoch"]) == (producer_id, epoch)
    led = facts("txn", "find-hanging", *where, "--broker", 1, *at)["hanging"]
    assert [(hanging["topic"], hanging["start_offset"]) for hanging in led] == [(topic, 0)]
    said = typed("txn", "find-hanging", *where, *at).stdout
    assert f"headrace txn abort --topic {topic} --partition 0 --start-offset 0 aborts the first of them" in said

    wrong = refused(3, "txn", "abort", *where, "--partition", 0, "--start-offset", 7, "--yes", *at)
    assert "those open there begin at 0" in wrong
    done = facts("txn", "abort", *where, "--partition", 0, "--start-offset", 0, "--yes", *at)
    assert done["aborted"]["producer_id"] == producer_id
    assert facts("txn", "find-hanging", *where, *at)["hanging"] == []
    assert "no transaction hangs (1 partitions were looked at)" in typed("txn", "find-hanging", *where, *at).stdout


def test_a_transaction_of_a_coordinator_is_none_that_hangs(either):
    topic = new_topic(either, "cli-young")
    with open_transaction(either.bootstrap, topic) as (producer, _):
        found = facts("txn", "find-hanging", "--topic", topic, "--max-age", "0s", "-b", either.bootstrap)
        assert found["hanging"] == []
        producer.abort_transaction()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("describe", "not-there"), 3, "there is no transactional id 'not-there'"),
        (("abort", "not-there", "--yes"), 3, "there is no transactional id 'not-there'"),
        (("abort", "--yes"), 2, "either an ID or --topic, --partition and --start-offset"),
        (("abort", "x", "--topic", "t", "--yes"), 2, "and not both"),
        (("abort", "--topic", "t", "--yes"), 2, "all three are needed"),
        (("find-hanging", "--topic", "not-there"), 3, "there is no topic 'not-there'"),
        (("find-hanging", "--broker", "77"), 3, "there is no broker 77; there are 1"),
        (("find-hanging", "--max-age", "long"), 2, "'long' is no span of time"),
        (("list", "--older-than", "5"), 2, "'5' is no span of time"),
    ],
)
def test_what_is_not_there_or_makes_no_sense_is_said(headrace_broker, arguments, code, said):
    assert said in refused(code, "txn", *arguments, "-b", headrace_broker.bootstrap)
