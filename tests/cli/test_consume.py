"""headrace consume: ranges, filters, formats."""

from __future__ import annotations

import json
import signal
import time

import pytest

from headrace import Producer
from headrace.broker import EmbeddedBroker
from headrace.cli.offset_ranges import Bound, BoundKind, BoundRange, parse_range
from tests.support.cli_runner import refused, run_cli
from tests.support.shell import SECONDS_MAX, begin, pipe
from tests.support.topics import new_topic, unique

DAY_MS = 86_400_000
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def topic(headrace_broker):
    """Ten records in partition 0, a day apart, and one in partition 1."""
    name = new_topic(headrace_broker, "cli-consume", partitions=2)
    with Producer(bootstrap_servers=headrace_broker.bootstrap) as producer:
        for i in range(10):
            headers = [("parity", b"even" if i % 2 == 0 else b"odd")]
            producer.send(
                name, b"v%d" % i, b"k%d" % i, partition=0, timestamp_ms=FIRST_MS + i * DAY_MS, headers=headers
            )
        producer.send(name, None, None, partition=1, timestamp_ms=FIRST_MS)
        producer.flush(SECONDS_MAX)
    return name


@pytest.fixture
def consume(headrace_broker, topic):
    """Run it on partition 0."""

    def consumed(*arguments):
        done = run_cli("consume", topic, "-p", 0, "-b", headrace_broker.bootstrap, *arguments)
        assert done.exit_code == 0, done.output
        return done

    return consumed


def iso(i):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((FIRST_MS + i * DAY_MS) / 1000))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("start", range(10)),
        ("end", []),
        ("7", [7, 8, 9]),
        ("-2", [8, 9]),
        ("-99", range(10)),
        ("+8", [8, 9]),
        ("3:5", [3, 4]),
        ("3:3", []),
        (":2", [0, 1]),
        (":end", range(10)),
        ("8:", [8, 9]),
        ("8:99", [8, 9]),
        ("-5:-3", [5, 6]),
        ("99", []),
        (f"@{FIRST_MS + 8 * DAY_MS}", [8, 9]),
        (f"@{iso(2)}:@{iso(4)}", [2, 3]),
        (f"@{iso(8)}:end", [8, 9]),
        ("@2100-01-01", []),
    ],
)
def test_ranges_of_offsets(consume, text, numbers):
    assert consume("-o", text).stdout.split() == [f"v{i}" for i in numbers]


def test_a_time_may_contain_colons():
    whole = parse_range("@2026-11-16T12:30")
    assert (whole.begin.kind, whole.until) == (BoundKind.TIME, None)
    assert parse_range("@2026-11-16T12:30:00Z:15") == BoundRange(
        parse_range("@2026-11-16T12:30:00Z").begin, Bound(BoundKind.OFFSET, 15)
    )


def test_filters_and_a_count(consume):
    assert consume("--key-match", "[78]$").stdout == "v7\nv8\n"
    assert consume("--value-match", "v[1-3]", "-n", 2).stdout == "v1\nv2\n"
    assert consume("--header", "parity=odd", "-n", 2).stdout == "v1\nv3\n"
    assert consume("--header", "parity", "--value-match", "9").stdout == "v9\n"
    none = consume("--header", "colour")
    assert none.stdout == ""
    assert "no match in 10 records" in none.stderr
    assert "offsets 0 to 10" in none.stderr
    assert "no records: " in consume("-o", "end").stderr


def test_formats(headrace_broker, topic, consume):
    assert json.loads(consume("-n", 1, "--format", "json").stdout) == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": FIRST_MS,
        "timestamp_type": "create",
        "key": "k0",
        "value": "v0",
        "headers": [["parity", "even"]],
    }
    assert consume("-n", 1, "--format", "full").stdout == (
        f"{topic}-0 at 0, 2023-11-14T22:13:20.000Z (create time)\n  header parity: even\n  key: k0\n  value: v0\n"
    )
    template = r"%t %p %o %T %k %K %s %S %h %%\t|"
    assert consume("-n", 1, "--template", template).stdout == f"{topic} 0 0 {FIRST_MS} k0 2 v0 2 parity=even %\t|"
    null = run_cli("consume", topic, "-p", 1, "-b", headrace_broker.bootstrap, "--template", "%K %S\n")
    assert null.stdout == "-1 -1\n"


def test_log_append_time_is_shown_as_such(headrace_broker):
    topic = new_topic(headrace_broker, "cli-append", message_timestamp_type="LogAppendTime")
    with Producer(bootstrap_servers=headrace_broker.bootstrap) as producer:
        producer.send(topic, b"x", timestamp_ms=FIRST_MS).result(SECONDS_MAX)
    (line,) = run_cli("consume", topic, "--format", "json", "-b", headrace_broker.bootstrap).stdout.splitlines()
    record = json.loads(line)
    assert record["timestamp_type"] == "append"
    assert record["timestamp"] > FIRST_MS


def test_isolation(headrace_broker):
    topic, at = new_topic(headrace_broker, "cli-isolation"), ("-b", headrace_broker.bootstrap)
    with Producer(bootstrap_servers=headrace_broker.bootstrap, transactional_id=unique("cli-isolation")) as producer:
        producer.init_transactions()
        for values, ends in (((b"a", b"b"), False), ((b"c",), True)):
            producer.begin_transaction()
            for value in values:
                producer.send(topic, value)
            producer.flush(SECONDS_MAX)
            producer.commit_transaction() if ends else producer.abort_transaction()
    assert run_cli("consume", topic, *at).stdout == "c\n"
    assert run_cli("consume", topic, "--isolation", "read_uncommitted", *at).stdout == "a\nb\nc\n"
    assert run_cli("consume", topic, "-X", "isolation.level=read_uncommitted", *at).stdout == "a\nb\nc\n"


def test_follow_prints_new_records_until_ctrl_c(headrace_broker, topic):
    with (
        begin("consume", topic, "-p", 0, "-o", "-1", "-f", "-b", headrace_broker.bootstrap) as process,
        Producer(bootstrap_servers=headrace_broker.bootstrap) as producer,
    ):
        assert process.stdout.readline() == b"v9\n"
        producer.send(topic, b"late", partition=0).result(SECONDS_MAX)
        assert process.stdout.readline() == b"late\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 130
        assert process.stderr.read() == b""


def test_a_closed_pipe_ends_it_with_exit_code_0(headrace_broker):
    topic = new_topic(headrace_broker, "cli-head")
    with Producer(bootstrap_servers=headrace_broker.bootstrap) as producer:
        for i in range(100_000):
            producer.send(topic, b"%d" % i)
        producer.flush(SECONDS_MAX)
    done = pipe(f"headrace consume {topic} -b {headrace_broker.bootstrap} | head -2")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"0\n1\n", b"")


def test_follow_reconnects_to_a_restarted_broker():
    with EmbeddedBroker() as broker:
        broker.create_topic("t")
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send("t", b"before").result(SECONDS_MAX)
        with begin("consume", "t", "-f", "-b", broker.bootstrap) as process:
            try:
                assert process.stdout.readline() == b"before\n"
                broker.kill()
                broker.start()
                with Producer(bootstrap_servers=broker.bootstrap) as producer:
                    producer.send("t", b"after").result(SECONDS_MAX)
                assert process.stdout.readline() == b"after\n"
            finally:
                process.terminate()
            assert process.wait(SECONDS_MAX) == 143


def test_invalid_usage_is_refused(headrace_broker, topic):
    at = ("-b", headrace_broker.bootstrap)
    assert "invalid --offsets: expected start, end, 5" in refused(2, "consume", topic, "-o", "x", *at)
    assert "invalid time" in refused(2, "consume", topic, "-o", "@noon", *at)
    assert "ends before it begins" in refused(2, "consume", topic, "-o", "5:3", *at)
    assert "invalid regular expression" in refused(2, "consume", topic, "--key-match", "(", *at)
    assert "unknown directive %q" in refused(2, "consume", topic, "--template", "%q", *at)
    assert "invalid -p: expected numbers" in refused(2, "consume", topic, "-p", "a", *at)
    assert "has no partition 2; its partitions are 0 to 1" in refused(3, "consume", topic, "-p", "0-2", *at)
    assert "does not exist; " in refused(3, "consume", unique("none"), *at)
