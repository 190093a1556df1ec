"""Bad input fails when the query is planned if possible, else with batch, task and row; no batch is half visible."""

from __future__ import annotations

import re
import socket

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from headrace.broker import EmbeddedBroker
from headrace.spark.errors import explain
from tests.support.crashes import StreamInSession, committed, open_transactions
from tests.support.peers.embedded import OwnBroker
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

SECONDS_MAX = 60
TEXTS = ["CAST(id AS STRING) value"]


def options_of(broker, topic, options):
    return {"kafka.bootstrap.servers": broker.bootstrap, **({} if topic is None else {"topic": topic}), **options}


def failure_of_batch(frame, broker, topic=None, **options):
    """The message that the user gets."""
    named = {name.replace("__", "."): value for name, value in options.items()}
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's kind says nothing
        frame.write.format("headrace").options(**options_of(broker, topic, named)).mode("append").save()
    return explain(caught.value)


def failure_of_stream(spark, folder, columns, broker, topic, options):
    source = folder / "source"
    source.mkdir(exist_ok=True)
    source.joinpath("rows.txt").write_text("0\n1\n2\n")
    rows = spark.readStream.text(str(source)).selectExpr("CAST(value AS BIGINT) id").selectExpr(*columns)
    writer = rows.writeStream.format("headrace").options(**options_of(broker, topic, options))
    with pytest.raises(Exception) as caught:  # noqa: PT011, PT012 - at the start, or with the first batch
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination(SECONDS_MAX)
    return explain(caught.value)


def assert_nothing_is_seen(broker, topic):
    assert not any(committed(broker.bootstrap, topic).values())
    assert not open_transactions(broker.bootstrap, topic)


@pytest.mark.behaviour("S02")
@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["id"], {}, "there is no column 'value'"),
        (["id AS value"], {}, "column 'value' is bigint; it may be string or binary"),
        (["CAST(id AS STRING) value", "'x' AS partition"], {}, "column 'partition' is string; it may be int"),
        (TEXTS, {"topic": "there-is-no-such-topic"}, "set topic.create=true"),
        (TEXTS, {"sink.id": "no ~ please"}, "sink.id is 'no ~ please'; it may be"),
        (TEXTS, {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": "700"}, "Check that the broker runs"),
    ],
)
def test_invalid_options_of_a_stream_fail_before_anything_is_written(
    spark, headrace_broker, tmp_path, columns, options, message
):
    topic = new_topic(headrace_broker, "wrong")
    error = failure_of_stream(spark, tmp_path, columns, headrace_broker, topic, options)
    assert message in error
    assert_nothing_is_seen(headrace_broker, topic)


@pytest.mark.behaviour("S06")
@pytest.mark.parametrize("mode", ["inline", "parallel"])
@pytest.mark.parametrize(
    ("columns", "options", "fact"),
    [
        (["CAST(id AS STRING) value", "IF(id = 2, NULL, '{topic}') topic"], {}, "row 2: its topic is null"),
        (["repeat('x', CAST(id AS INT) * 3000) value", "'{topic}' topic"], {"kafka.max.request.size": "4000"}, "row 2"),
        (["CAST(id AS STRING) value", "CAST(id + 7 AS INT) partition"], {"topic": "{topic}"}, "its partition is 9"),
        (
            [*TEXTS, "CAST(id + 7 AS INT) partition", "'{topic}' topic"],
            {},
            "'{topic}': its partition is 9, but the topic",
        ),
    ],
    ids=["null topic", "too large", "wrong partition", "wrong partition of a topic that rows name"],
)
def test_a_bad_row_of_a_stream_is_named_with_its_batch(spark, headrace_broker, tmp_path, columns, options, fact, mode):
    topic = new_topic(headrace_broker, "rows")
    columns = [column.format(topic=topic) for column in columns]
    given = {name: value.format(topic=topic) for name, value in options.items()} | {"commit.mode": mode}
    error = failure_of_stream(spark, tmp_path, columns, headrace_broker, None, given)
    assert fact.format(topic=topic) in error
    assert "batch 0 of query " in error
    assert_nothing_is_seen(headrace_broker, topic)


@pytest.mark.behaviour("S06")
@pytest.mark.parametrize("mode", ["inline", "parallel"])
def test_an_invalid_topic_in_a_row_is_named_with_its_batch(spark, headrace_broker, tmp_path, mode):
    topic = new_topic(headrace_broker, "named")
    columns = [*TEXTS, f"IF(id = 1, 'not a name!', '{topic}') topic"]
    error = failure_of_stream(spark, tmp_path, columns, headrace_broker, None, {"commit.mode": mode})
    assert re.search(r"batch 0.*, rows to topic 'not a name!' cannot be sent: .*INVALID_TOPIC_EXCEPTION", error), error
    assert_nothing_is_seen(headrace_broker, topic)


@pytest.mark.parametrize("mode", ["inline", "parallel"])
def test_the_error_for_a_row_above_the_limit_of_the_topic(spark, either, mode):
    topic = new_topic(either, "narrow", max_message_bytes=2000)
    frame = spark.range(0, 20, 1, 2).selectExpr("repeat('x', IF(id = 17, 5000, 5)) value")
    error = failure_of_batch(frame, either, topic, commit__mode=mode)
    assert "MESSAGE_TOO_LARGE" in error
    assert topic in error
    assert_nothing_is_seen(either, topic)


@pytest.mark.every_run
@pytest.mark.behaviour("S06", "S11")
def test_the_error_for_two_running_queries_with_one_sink_id(spark, either, tmp_path):
    """The second fences the first, which ends with an error that names it. Neither loses or doubles anything."""
    sink, marks = unique("shared"), tmp_path / "marks"
    marks.mkdir()
    first, second = (
        StreamInSession(spark, tmp_path / name, either, new_topic(either, name), sink__id=sink)
        for name in ("first", "second")
    )
    first.add_file(50)
    second.add_file(50)
    query = first.begin(f"markers={marks}, decide.begin=hold")
    eventually("the first at its decision", (marks / "decide.begin").exists, SECONDS_MAX)
    second.process()
    (marks / "decide.begin.go").touch()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's kind says nothing
        first.end(query)
    error = explain(caught.value)
    driver = f"host {socket.gethostname()}, process {spark._jvm.java.lang.ProcessHandle.current().pid()}, started "
    assert f"sink.id '{sink}' is held by another query of this driver, or by a later start of this query: run " in error
    assert driver in error
    assert "The rows that this run wrote for batch 0 are not visible." in error
    assert "give each its own sink.id" in error
    first.process()
    for stream in (first, second):
        assert str(stream.audit()) == "clean"
        assert not open_transactions(either.bootstrap, stream.topic)


# -- access rules --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded():
    """A broker with rules: what none of them speaks of is allowed."""
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    broker = OwnBroker(EmbeddedBroker(rules))
    try:
        broker.embedded.start()
        yield broker
    finally:
        broker.remove()


def deny(broker, kind, name, operation=AclOperation.WRITE):
    rule = AclBinding(
        kind, name, ResourcePatternType.PREFIXED, "User:ANONYMOUS", "*", operation, AclPermissionType.DENY
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for future in admin.create_acls([rule]).values():
        future.result(SECONDS_MAX)


@pytest.mark.every_run
def test_the_error_for_a_topic_without_write_permission(spark, guarded):
    topic = new_topic(guarded, "forbidden")
    deny(guarded, ResourceType.TOPIC, topic)
    error = failure_of_batch(spark.range(3).selectExpr(*TEXTS), guarded, topic)
    assert f"not authorized to write to topic '{topic}'" in error
    assert "allow the operation Write" in error
    assert_nothing_is_seen(guarded, topic)


@pytest.mark.parametrize("mode", ["inline", "parallel"])
def test_the_error_for_transactional_ids_without_permission(spark, guarded, mode):
    topic, sink = new_topic(guarded, "open"), unique("forbidden-sink")
    deny(guarded, ResourceType.TRANSACTIONAL_ID, sink)
    frame = spark.range(3).selectExpr(*TEXTS)
    error = failure_of_batch(frame, guarded, topic, commit__mode=mode, sink__id=sink)
    assert "allow Write and Describe on the prefix of sink.id" in error
    assert_nothing_is_seen(guarded, topic)


def test_the_error_for_a_decision_topic_without_create_permission(spark, guarded):
    topic, decisions = new_topic(guarded, "open"), unique("forbidden-name")
    deny(guarded, ResourceType.TOPIC, decisions, AclOperation.ALL)
    error = failure_of_batch(spark.range(3).selectExpr(*TEXTS), guarded, topic, decision__topic=decisions)
    assert f"not authorized to use decision.topic '{decisions}'" in error
    assert "allow Create, or create the topic" in error
    assert_nothing_is_seen(guarded, topic)


@pytest.mark.parametrize("mode", ["inline", "parallel"])
def test_the_error_for_a_decision_topic_without_write_permission(spark, guarded, mode):
    topic, decisions = new_topic(guarded, "open"), new_topic(guarded, "forbidden-decisions")
    deny(guarded, ResourceType.TOPIC, decisions)
    frame = spark.range(3).selectExpr(*TEXTS)
    error = failure_of_batch(frame, guarded, topic, commit__mode=mode, decision__topic=decisions)
    assert decisions in error
    assert "TOPIC_AUTHORIZATION_FAILED" in error
    # The transactions of tasks stay open until they expire: without the decisions they must not be aborted.
    assert not any(committed(guarded.bootstrap, topic).values())
