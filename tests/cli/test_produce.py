"""headrace produce: input formats, transactions, interruption, errors."""

from __future__ import annotations

import json
import os
import pty
import signal

import pytest

from headrace.broker import EmbeddedBroker
from headrace.client.fetcher import Fetcher
from headrace.types import TopicPartition
from tests.support.cli_runner import refused
from tests.support.shell import HEADRACE, SECONDS_MAX, begin, run
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

LINES = 1000


@pytest.fixture
def topic(headrace_broker):
    return new_topic(headrace_broker, "cli-produce", partitions=2)


@pytest.fixture
def produce(headrace_broker, topic):
    """Run it on the topic with some input."""

    def produced(*arguments, stdin=b""):
        return run("produce", topic, "-b", headrace_broker.bootstrap, *arguments, stdin=stdin)

    return produced


@pytest.fixture
def stored(headrace_broker, topic):
    """Read all committed records."""

    def read():
        with Fetcher(headrace_broker.bootstrap) as fetcher:
            ends = fetcher.end_offsets([TopicPartition(topic, 0), TopicPartition(topic, 1)])
            fetcher.assign(dict.fromkeys(ends, 0), ends)
            records = []
            while not fetcher.is_finished():
                records += fetcher.poll(1000)
        return sorted(records, key=lambda record: (record.partition, record.offset))

    return read


def test_each_line_is_a_record_also_without_a_final_newline(produce, stored):
    done = produce("-p", 1, stdin=b"one\n\ntwo \xff\nthree")
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    assert b"sent 4 records (13 B)" in done.stderr
    assert [record.value for record in stored()] == [b"one", b"", b"two \xff", b"three"]
    assert {(record.partition, record.key, record.headers) for record in stored()} == {(1, None, ())}


def test_keys_headers_timestamps_and_nulls(produce, stored):
    done = produce("-K", r"\t", "-Z", "-H", "a=1", "-H", "a=2", "--timestamp", 1700000000000, stdin=b"k\tv\nno\n\t\n")
    assert done.returncode == 0, done.stderr
    assert {(record.key, record.value) for record in stored()} == {(b"k", b"v"), (None, b"no"), (None, None)}
    assert {record.headers for record in stored()} == {(("a", b"1"), ("a", b"2"))}
    assert {record.timestamp for record in stored()} == {1700000000000}
    produce("--null-value", "NULL", "-k", "key", stdin=b"NULL\n")
    assert (b"key", None) in {(record.key, record.value) for record in stored()}


def test_files_stdin_and_a_json_report(produce, stored, tmp_path):
    (tmp_path / "a").write_bytes(b"a\n")
    (tmp_path / "b").write_bytes(b"b\n")
    done = produce(tmp_path / "a", "-", tmp_path / "b", "-p", 0, "--report", "json", stdin=b"in\n")
    report = json.loads(done.stdout)
    assert (report["records"], report["bytes"], report["transactions"]) == (3, 4, None)
    assert [record.value for record in stored()] == [b"a", b"in", b"b"]
    (tmp_path / "raw").write_bytes(bytes(range(256)) * 100)
    produce("--format", "raw", "-p", 1, tmp_path / "raw")
    assert stored()[-1].value == bytes(range(256)) * 100


def test_many_lines_over_many_chunks(produce, stored):
    lines = [b"%d " % i + b"x" * (i % 700) for i in range(20_000)]
    assert produce("-p", 0, "-X", "compression.type=zstd", stdin=b"\n".join(lines)).returncode == 0
    assert [record.value for record in stored()] == lines


def test_invalid_json_ends_it_with_file_and_line(produce, stored, tmp_path):
    (tmp_path / "in.json").write_text('{"value": "1"}\n{"value": "2"}\n{"vlaue": "3"}\n{"value": "4"}\n')
    done = produce("--format", "json", tmp_path / "in.json")
    assert done.returncode == 1
    stderr = done.stderr.decode()
    assert f"{tmp_path}/in.json, line 3: unknown field 'vlaue'; did you mean 'value'?" in stderr
    assert "2 records written to" in stderr
    assert {record.value for record in stored()} == {b"1", b"2"}


def test_transactions_are_committed_by_size_and_aborted_on_an_error(produce, stored):
    name = unique("cli-txn")
    done = produce("--transactional-id", name, "--transaction-size", 2, "--report", "json", stdin=b"1\n2\n3\n")
    assert json.loads(done.stdout)["transactions"] == 2
    assert len(stored()) == 3
    done = produce("--transactional-id", name, "--format", "json", stdin=b'{"value": "4"}\nnonsense\n')
    assert done.returncode == 1
    assert "0 records committed; the rest aborted" in done.stderr.decode()
    assert len(stored()) == 3


@pytest.mark.parametrize("transactional", [False, True])
def test_ctrl_c_keeps_sent_records_or_aborts_the_transaction(headrace_broker, topic, stored, transactional):
    arguments = ("--transactional-id", unique("cli-ctrl-c")) if transactional else ()
    with begin("produce", topic, "-b", headrace_broker.bootstrap, "-p", 0, *arguments) as process:
        process.stdin.write(b"x\n" * LINES)
        process.stdin.flush()
        with Fetcher(headrace_broker.bootstrap, isolation="read_uncommitted") as fetcher:
            tp = TopicPartition(topic, 0)
            eventually("all are sent", lambda: fetcher.end_offsets([tp])[tp] >= LINES)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 130
        stderr = process.stderr.read().decode()
    assert "Traceback" not in stderr
    assert ("0 records committed" if transactional else f"{LINES:,} records written") in stderr
    assert len(stored()) == (0 if transactional else LINES)


def test_a_lost_broker_ends_it_in_bounded_time_with_a_count(tmp_path):
    with EmbeddedBroker() as broker:
        broker.create_topic("t")
        options = ("-X", "delivery.timeout.ms=2000", "-X", "request.timeout.ms=1000", "-X", "linger.ms=0")
        with begin("produce", "t", "-b", broker.bootstrap, *options) as process:
            process.stdin.write(b"first\n")
            process.stdin.flush()
            with Fetcher(broker.bootstrap) as fetcher:
                tp = TopicPartition("t", 0)
                eventually("the first record", lambda: fetcher.end_offsets([tp])[tp] == 1)
            broker.kill()
            _, stderr = process.communicate(b"second\n", SECONDS_MAX)
        assert process.returncode == 1
        assert "Traceback" not in stderr.decode()
        assert "1 record written to t" in stderr.decode()


def test_invalid_usage_is_refused(headrace_broker, topic, tmp_path):
    at = ("-b", headrace_broker.bootstrap)
    (tmp_path / "f").write_bytes(b"x\n")
    file = tmp_path / "f"
    assert "does not exist; use - for stdin" in refused(2, "produce", topic, tmp_path / "none", *at)
    assert "is a directory" in refused(2, "produce", topic, tmp_path, *at)
    assert "mutually exclusive" in refused(2, "produce", topic, file, "-k", "a", "-K", ",", *at)
    assert "requires --transactional-id" in refused(2, "produce", topic, file, "--transaction-size", 5, *at)
    assert "-K requires --format lines" in refused(2, "produce", topic, file, "-K", ",", "--format", "raw", *at)
    assert "invalid time" in refused(2, "produce", topic, file, "--timestamp", "noon", *at)
    assert "has no partition 9" in refused(3, "produce", topic, file, "-p", 9, *at)
    assert r"unknown escape \q" in refused(2, "produce", topic, file, "-K", r"\q", *at)


def test_a_missing_topic_is_reported_if_the_broker_creates_none(tmp_path):
    (tmp_path / "f").write_bytes(b"x\n")
    with EmbeddedBroker(auto_create_topics_enable=False) as broker:
        message = refused(3, "produce", "none", tmp_path / "f", "-b", broker.bootstrap)
    assert "create it with `headrace topic create none`" in message


def test_a_terminal_shows_a_bar(headrace_broker, topic, tmp_path):
    (tmp_path / "f").write_bytes(b"x" * 50 + b"\n" + b"y\n" * 200_000)
    output = _run_at_terminal("produce", topic, str(tmp_path / "f"), "-b", headrace_broker.bootstrap)
    assert b"%" in output
    assert b"sent 200,001 records" in output


def _run_at_terminal(*arguments):
    """Return everything that a command writes to its terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(HEADRACE[0], [*HEADRACE, *arguments])
    output = b""
    try:
        while data := os.read(terminal, 65536):
            output += data
    except OSError:  # the end of a pseudo-terminal
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, output
    return output
