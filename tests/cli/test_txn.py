"""headrace txn, with transactions of a real producer and hanging ones."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from headrace import FatalError, Producer
from tests.support.cli_runner import facts, refused, run_cli
from tests.support.hanging import plant_hanging
from tests.support.topics import new_topic, unique

SECONDS_MAX = 30


@contextmanager
def open_transaction(bootstrap, topic):
    """Yield a producer with an open transaction, and its id."""
    name = unique("writer")
    with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open").result(SECONDS_MAX)
        yield producer, name


def listed(bootstrap, *arguments):
    transactions = facts("txn", "list", "-b", bootstrap, *arguments)["transactions"]
    return {transaction["transactional_id"]: transaction for transaction in transactions}


def test_an_open_transaction_is_listed_described_and_aborted_by_id(either):
    topic, at = new_topic(either, "cli-txn"), ("-b", either.bootstrap)
    with open_transaction(either.bootstrap, topic) as (producer, name):
        listing = listed(either.bootstrap)[name]
        assert listing["state"] == "Ongoing"
        assert 0 <= listing["age_ms"] <= SECONDS_MAX * 1000
        assert name in listed(either.bootstrap, "--state", "Ongoing")
        assert name not in listed(either.bootstrap, "--older-than", "1h")
        described = facts("txn", "describe", name, *at)
        assert described["producer_id"] == listing["producer_id"]
        assert described["partitions"] == [{"topic": topic, "partition": 0}]
        assert described["timeout_ms"] == 60_000
        assert f"partitions: {topic}-0" in run_cli("txn", "describe", name, *at).stdout

        message = refused(1, "txn", "abort", "--topic", topic, "--partition", 0, "--start-offset", 0, "--yes", *at)
        assert f"its coordinator manages it for '{name}'" in message
        assert "confirmation required: stdin is not a terminal; pass --yes" in refused(2, "txn", "abort", name, *at)
        assert facts("txn", "abort", name, "--yes", *at)["aborted"] == name
        with pytest.raises(FatalError):
            producer.commit_transaction()
    assert "has no open transaction" in refused(3, "txn", "abort", name, "--yes", *at)
    assert listed(either.bootstrap)[name]["age_ms"] is None


def test_a_hanging_transaction_is_found_and_aborted_in_its_partition(either):
    topic, at = new_topic(either, "cli-hanging"), ("-b", either.bootstrap)
    producer_id, epoch = plant_hanging(either.bootstrap, topic, unique("hanging"))
    where = ("--topic", topic)
    result = facts("txn", "find-hanging", *where, *at)
    assert result["partitions"] == 1
    (hanging,) = result["hanging"]
    assert (hanging["topic"], hanging["partition"], hanging["start_offset"]) == (topic, 0, 0)
    assert (hanging["producer_id"], hanging["producer_epoch"]) == (producer_id, epoch)
    led = facts("txn", "find-hanging", *where, "--broker", 1, *at)["hanging"]
    assert [(hanging["topic"], hanging["start_offset"]) for hanging in led] == [(topic, 0)]
    text = run_cli("txn", "find-hanging", *where, *at).stdout
    assert f"to abort the first one: headrace txn abort --topic {topic} --partition 0 --start-offset 0" in text

    wrong = refused(3, "txn", "abort", *where, "--partition", 0, "--start-offset", 7, "--yes", *at)
    assert "open transactions start at 0" in wrong
    done = facts("txn", "abort", *where, "--partition", 0, "--start-offset", 0, "--yes", *at)
    assert done["aborted"]["producer_id"] == producer_id
    assert facts("txn", "find-hanging", *where, *at)["hanging"] == []
    assert "no hanging transactions in 1 partitions" in run_cli("txn", "find-hanging", *where, *at).stdout


def test_a_transaction_with_a_coordinator_is_not_hanging(either):
    topic = new_topic(either, "cli-young")
    with open_transaction(either.bootstrap, topic) as (producer, _):
        result = facts("txn", "find-hanging", "--topic", topic, "--max-age", "0s", "-b", either.bootstrap)
        assert result["hanging"] == []
        producer.abort_transaction()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("describe", "not-there"), 3, "transactional id 'not-there' does not exist"),
        (("abort", "not-there", "--yes"), 3, "transactional id 'not-there' does not exist"),
        (("abort", "--yes"), 2, "pass either ID, or --topic, --partition and --start-offset"),
        (("abort", "x", "--topic", "t", "--yes"), 2, "pass either ID, or --topic"),
        (("abort", "--topic", "t", "--yes"), 2, "must be given together"),
        (("find-hanging", "--topic", "not-there"), 3, "topic 'not-there' does not exist"),
        (("find-hanging", "--broker", "77"), 3, "broker 77 does not exist; the brokers are 1"),
        (("find-hanging", "--max-age", "long"), 2, "invalid duration 'long'"),
        (("list", "--older-than", "5"), 2, "invalid duration '5'"),
    ],
)
def test_missing_resources_and_invalid_usage(headrace_broker, arguments, code, message):
    assert message in refused(code, "txn", *arguments, "-b", headrace_broker.bootstrap)
