"""headrace produce, as a user types it."""

from __future__ import annotations

import json
import os
import pty
import signal

import pytest

from headrace.broker import EmbeddedBroker
from headrace.client.fetcher import Fetcher
from headrace.types import TopicPartition
from shell import SECONDS_MAX, begin, run
from topics import new_topic, unique
from typed import refused
from waiting import eventually

LINES = 1000


@pytest.fixture
def topic(headrace_broker):
    return new_topic(headrace_broker, "cli-produce", partitions=2)


@pytest.fixture
def produce(headrace_broker, topic):
    """Run it on the topic with some input; what it said."""

    def produced(*arguments, stdin=b""):
        return run("produce", topic, "-b", headrace_broker.bootstrap, *arguments, stdin=stdin)

    return produced


@pytest.fixture
def stored(headrace_broker, topic):
    """All records that a reader of committed ones sees."""

    def read():
        with Fetcher(headrace_broker.bootstrap) as fetcher:
            ends = fetcher.end_offsets([TopicPartition(topic, 0), TopicPartition(topic, 1)])
            fetcher.assign(dict.fromkeys(ends, 0), ends)
            found = []
            while not fetcher.is_finished():
                found += fetcher.poll(1000)
        return sorted(found, key=lambda record: (record.partition, record.offset))

    return read


def test_lines_become_records_and_the_last_one_needs_no_end(produce, stored):
    done = produce("-p", 1, stdin=b"one\n\ntwo \xff\nthree")
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    assert b"sent 4 records (13 B)" in done.stderr
    assert [record.value for record in stored()] == [b"one", b"", b"two \xff", b"three"]
    assert {(record.partition, record.key, record.headers) for record in stored()} == {(1, None, ())}


def test_keys_headers_time_and_nulls(produce, stored):
    done = produce("-K", r"\t", "-Z", "-H", "a=1", "-H", "a=2", "--timestamp", 1700000000000, stdin=b"k\tv\nno\n\t\n")
    assert done.returncode == 0, done.stderr
    found = {(record.key, record.value) for record in stored()}
    assert found == {(b"k", b"v"), (None, b"no"), (None, None)}
    assert {record.headers for record in stored()} == {(("a", b"1"), ("a", b"2"))}
    assert {record.timestamp for record in stored()} == {1700000000000}
    produce("--null-value", "NULL", "-k", "key", stdin=b"NULL\n")
    assert (b"key", None) in {(record.key, record.value) for record in stored()}


def test_files_and_the_standard_input_and_a_report(produce, stored, tmp_path):
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


def test_a_line_of_bad_json_ends_it_with_its_place(produce, stored, tmp_path):
    (tmp_path / "in.json").write_text('{"value": "1"}\n{"value": "2"}\n{"vlaue": "3"}\n{"value": "4"}\n')
    done = produce("--format", "json", tmp_path / "in.json")
    assert done.returncode == 1
    said = done.stderr.decode()
    assert f"{tmp_path}/in.json, line 3: a record has no field 'vlaue'; did you mean 'value'?" in said
    assert "Of the input, 2 records written to" in said
    assert {record.value for record in stored()} == {b"1", b"2"}


def test_transactions_are_committed_by_size_and_aborted_on_an_error(produce, stored):
    name = unique("cli-txn")
    done = produce("--transactional-id", name, "--transaction-size", 2, "--report", "json", stdin=b"1\n2\n3\n")
    assert json.loads(done.stdout)["transactions"] == 2
    assert len(stored()) == 3
    done = produce("--transactional-id", name, "--format", "json", stdin=b'{"value": "4"}\nnonsense\n')
    assert done.returncode == 1
    assert "0 records committed; the rest was aborted" in done.stderr.decode()
    assert len(stored()) == 3


@pytest.mark.parametrize("transactional", [False, True])
def test_ctrl_c_keeps_what_was_sent_or_aborts_the_transaction(headrace_broker, topic, stored, transactional):
    arguments = ("--transactional-id", unique("cli-ctrl-c")) if transactional else ()
    with begin("produce", topic, "-b", headrace_broker.bootstrap, "-p", 0, *arguments) as process:
        process.stdin.write(b"x\n" * LINES)
        process.stdin.flush()
        with Fetcher(headrace_broker.bootstrap, isolation="read_uncommitted") as fetcher:
            tp = TopicPartition(topic, 0)
            eventually("all are sent", lambda: fetcher.end_offsets([tp])[tp] >= LINES)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 130
        said = process.stderr.read().decode()
    assert "Traceback" not in said
    assert ("0 records committed" if transactional else f"{LINES:,} records written") in said
    assert len(stored()) == (0 if transactional else LINES)


def test_a_broker_that_goes_away_ends_it_in_bounded_time_with_a_count(tmp_path):
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
            _, said = process.communicate(b"second\n", SECONDS_MAX)
        assert process.returncode == 1
        assert "Traceback" not in said.decode()
        assert "Of the input, 1 record written to t" in said.decode()


def test_what_makes_no_sense_is_refused(headrace_broker, topic, tmp_path):
    at = ("-b", headrace_broker.bootstrap)
    (tmp_path / "f").write_bytes(b"x\n")
    file = tmp_path / "f"
    assert "there is no file" in refused(2, "produce", topic, tmp_path / "none", *at)
    assert "is a folder" in refused(2, "produce", topic, tmp_path, *at)
    assert "exclude each other" in refused(2, "produce", topic, file, "-k", "a", "-K", ",", *at)
    assert "needs --transactional-id" in refused(2, "produce", topic, file, "--transaction-size", 5, *at)
    assert "is for --format lines" in refused(2, "produce", topic, file, "-K", ",", "--format", "raw", *at)
    assert "is no time" in refused(2, "produce", topic, file, "--timestamp", "noon", *at)
    assert "none with number 9" in refused(3, "produce", topic, file, "-p", 9, *at)
    assert r"\q means nothing" in refused(2, "produce", topic, file, "-K", r"\q", *at)


def test_a_topic_that_nobody_makes_is_told(tmp_path):
    (tmp_path / "f").write_bytes(b"x\n")
    with EmbeddedBroker(auto_create_topics_enable=False) as broker:
        said = refused(3, "produce", "none", tmp_path / "f", "-b", broker.bootstrap)
    assert "`headrace topic create none` does" in said


def test_a_terminal_gets_a_bar(headrace_broker, topic, tmp_path):
    (tmp_path / "f").write_bytes(b"x" * 50 + b"\n" + b"y\n" * 200_000)
    shown = _on_a_terminal("produce", topic, str(tmp_path / "f"), "-b", headrace_broker.bootstrap)
    assert b"%" in shown
    assert b"sent 200,001 records" in shown


def _on_a_terminal(*arguments):
    """Everything that a command writes to the terminal it runs on."""
    pid, terminal = pty.fork()
    if pid == 0:
        from shell import HEADRACE

        os.execv(HEADRACE[0], [*HEADRACE, *arguments])
    shown = b""
    try:
        while data := os.read(terminal, 65536):
            shown += data
    except OSError:  # what a terminal says at its end
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    return shown
