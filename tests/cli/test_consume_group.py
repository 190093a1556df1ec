"""headrace consume --group: joins, commits what it has printed, leaves."""

from __future__ import annotations

import json
import signal

import pytest

from headrace import Consumer, Producer, RebalanceListener, TopicPartition
from headrace.client.admin import AdminClient
from tests.support.cli_runner import refused, run_cli
from tests.support.shell import SECONDS_MAX, begin, pipe
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually


@pytest.fixture
def topic(headrace_broker):
    """Ten records in one partition."""
    name = new_topic(headrace_broker, "cli-member")
    with Producer(bootstrap_servers=headrace_broker.bootstrap) as producer:
        for i in range(10):
            producer.send(name, b"v%d" % i, b"k%d" % i, headers=[("parity", b"even" if i % 2 == 0 else b"odd")])
    return name


@pytest.fixture
def consume(headrace_broker, topic):
    """Run it on the topic with ten records."""

    def consumed(*arguments):
        done = run_cli("consume", topic, "-b", headrace_broker.bootstrap, *arguments)
        assert done.exit_code == 0, done.output
        return done

    return consumed


def committed(broker, group):
    with AdminClient(broker.bootstrap) as admin:
        return {tp: offset.offset for tp, offset in admin.list_group_offsets(group).items()}


def state(broker, group):
    with AdminClient(broker.bootstrap) as admin:
        return {listing.group_id: listing.state for listing in admin.list_groups()}.get(group)


def lines(process, count):
    return [process.stdout.readline().decode().rstrip() for _ in range(count)]


def test_a_group_resumes_at_its_committed_offsets(headrace_broker, topic, consume):
    group = unique("cli-resumed")
    assert consume("-g", group, "-n", 3).stdout == "v0\nv1\nv2\n"
    assert committed(headrace_broker, group) == {TopicPartition(topic, 0): 3}
    assert consume("-g", group, "-n", 2).stdout == "v3\nv4\n"
    rest = consume("-g", group)
    assert rest.stdout.split() == ["v5", "v6", "v7", "v8", "v9"]
    assert f"note: assigned {topic} 0\n" in rest.stderr
    assert f"no records: the group has read {topic} 0 to the end" in consume("-g", group).stderr
    assert committed(headrace_broker, group) == {TopicPartition(topic, 0): 10}
    assert state(headrace_broker, group) == "Empty"


def test_a_count_of_matching_records_commits_no_record_behind_them(headrace_broker, topic, consume):
    group = unique("cli-filtered")
    assert consume("-g", group, "-n", 2, "--header", "parity=odd").stdout == "v1\nv3\n"
    assert committed(headrace_broker, group) == {TopicPartition(topic, 0): 4}
    assert "no match in 6 records" in consume("-g", group, "--value-match", "none").stderr


def test_formats_are_those_without_a_group(consume):
    group = unique("cli-formats")
    for arguments in (("--format", "json"), ("--format", "full"), ("--template", r"%t %p %o %k %s %h\n")):
        assert consume("-g", unique("cli-format"), *arguments).stdout == consume(*arguments).stdout
    assert json.loads(consume("-g", group, "-n", 1, "--format", "json").stdout)["value"] == "v0"


@pytest.mark.parametrize(("policy", "count"), [("earliest", 10), ("latest", 0), ("by_duration:PT1H", 10)])
def test_from_sets_the_start_of_a_group_without_offsets(consume, policy, count):
    group = unique("cli-from")
    assert len(consume("-g", group, "--from", policy).stdout.split()) == count
    assert consume("-g", group, "--from", "earliest").stdout == ""  # now it has offsets


def test_from_none_is_an_error_without_offsets(headrace_broker, topic):
    at = ("-b", headrace_broker.bootstrap, "-g", unique("cli-none"))
    assert "has no committed offset" in refused(1, "consume", topic, "--from", "none", *at)
    assert "auto.offset.reset" in refused(2, "consume", topic, "--from", "sometime", *at)


def test_several_topics_and_a_pattern_are_read(headrace_broker):
    prefix = unique("cli-matched")
    names = [headrace_broker.create_topic(f"{prefix}-{i}", 2) for i in range(3)]
    with Producer(bootstrap_servers=headrace_broker.bootstrap) as producer:
        for name in names:
            producer.send(name, name.encode())
    at = ("-b", headrace_broker.bootstrap)
    two = run_cli("consume", *names[:2], "-g", unique("cli-two"), *at)
    assert sorted(two.stdout.split()) == names[:2]
    matched = run_cli("consume", "--pattern", f"{prefix}-[12]", "-g", unique("cli-pattern"), *at)
    assert sorted(matched.stdout.split()) == names[1:]
    assert f"note: assigned {names[1]} 0-1; {names[2]} 0-1\n" in matched.stderr
    broker_matches = ("--pattern", f"{prefix}-[[:digit:]]", "--protocol", "consumer", "-g", unique("cli-regex"))
    assert sorted(run_cli("consume", *broker_matches, *at).stdout.split()) == names
    nothing = run_cli("consume", "--pattern", f"{prefix}-x", "-g", unique("cli-pattern"), *at)
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "has assigned no partitions to this member" in nothing.stderr


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_ctrl_c_commits_what_was_printed_and_leaves(headrace_broker, topic, protocol):
    group = unique("cli-interrupted")
    with begin("consume", topic, "-g", group, "-f", "--protocol", protocol, "-b", headrace_broker.bootstrap) as process:
        assert lines(process, 10) == [f"v{i}" for i in range(10)]
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 130
        assert process.stderr.read().decode() == f"note: assigned {topic} 0\nnote: revoked {topic} 0\n"
    assert committed(headrace_broker, group) == {TopicPartition(topic, 0): 10}
    assert state(headrace_broker, group) == "Empty"


def test_a_closed_pipe_commits_no_record_that_was_not_printed(headrace_broker, topic):
    group = unique("cli-piped")
    done = pipe(f"headrace consume {topic} -g {group} -f -b {headrace_broker.bootstrap} -n 10 | head -c 0")
    assert (done.returncode, done.stdout) == (0, b"")
    assert committed(headrace_broker, group).get(TopicPartition(topic, 0), 0) == 0


def test_it_shares_the_partitions_with_other_members(headrace_broker):
    topic, group = new_topic(headrace_broker, "cli-shared", partitions=2), unique("cli-shared")
    command = ("consume", topic, "-g", group, "-f", "-X", "heartbeat.interval.ms=200", "-b", headrace_broker.bootstrap)

    class Assigned(RebalanceListener):
        count = 0

        def on_assigned(self, partitions):
            Assigned.count = len(consumer.assignment())

    with (
        Consumer(
            bootstrap_servers=headrace_broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
        ) as consumer,
        Producer(bootstrap_servers=headrace_broker.bootstrap) as producer,
    ):
        consumer.subscribe([topic], listener=Assigned())
        eventually("both partitions", lambda: consumer.poll(0.1) is not None and Assigned.count == 2)
        with begin(*command) as process:
            eventually("one partition", lambda: consumer.poll(0.1) is not None and Assigned.count == 1)
            (own,) = consumer.assignment()
            assert process.stderr.readline().decode() == f"note: assigned {topic} {1 - own.partition}\n"
            producer.send(topic, b"for the command", partition=1 - own.partition).result(SECONDS_MAX)
            assert lines(process, 1) == ["for the command"]
            process.terminate()
            assert process.wait(SECONDS_MAX) == 143
        assert committed(headrace_broker, group)[TopicPartition(topic, 1 - own.partition)] == 1


def test_invalid_usage_of_groups_is_refused(headrace_broker, topic):
    at = ("-b", headrace_broker.bootstrap)
    assert "mutually exclusive: the group's offsets" in refused(2, "consume", topic, "-g", "g", "-o", "5", *at)
    assert "the group assigns the partitions" in refused(2, "consume", topic, "-g", "g", "-p", "0", *at)
    assert "either TOPIC or --pattern" in refused(2, "consume", topic, "-g", "g", "--pattern", "x", *at)
    assert "either TOPIC or --pattern" in refused(2, "consume", "-g", "g", *at)
    assert "--from needs --group" in refused(2, "consume", topic, "--from", "latest", *at)
    assert "--protocol needs --group" in refused(2, "consume", topic, "--protocol", "classic", *at)
    assert "no TOPIC was given" in refused(2, "consume", *at)
    assert "invalid regular expression" in refused(2, "consume", "-g", "g", "--pattern", "(", *at)
    assert "'share'" in refused(2, "consume", topic, "-g", "g", "--protocol", "share", *at)
    assert "heartbeat.interval.ms is 9" in refused(
        2, "consume", topic, "-g", "g", "-X", "heartbeat.interval.ms=9", "-X", "session.timeout.ms=9", *at
    )
    assert "does not exist; " in refused(3, "consume", unique("none"), "-g", "g", *at)
