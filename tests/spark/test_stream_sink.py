"""The streaming sink: micro-batches into topics, exactly once, through failures that Spark survives or reports."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.crashes import StreamInSession, marker_folder, markers, open_transactions
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

MODES = ["inline", "parallel"]
EXPIRY_MS = "10000"
STARTS_MAX = 5
STEP_SECONDS_MAX = 120


@pytest.fixture
def stream(spark, either, tmp_path):
    return StreamInSession(spark, tmp_path, either, new_topic(either, "stream", 3))


@pytest.mark.every_run("apache-parallel", "headrace-inline", "headrace-auto")
@pytest.mark.behaviour("S02")
@pytest.mark.parametrize("mode", [*MODES, "auto"])
def test_a_stream_is_written_once(stream, mode):
    for _ in range(3):
        stream.add_file(200)
    stream.process(commit__mode=mode)
    stream.add_file(50)
    stream.process(commit__mode=mode)
    assert str(stream.audit()) == "clean"
    assert not open_transactions(stream.bootstrap, stream.topic)


def test_at_least_once(stream):
    stream.add_file(200)
    stream.process(commit__mode="auto", delivery="at-least-once")
    assert str(stream.audit()) == "clean"


def test_a_new_checkpoint_with_an_old_sink_id_is_another_query(stream):
    sink = unique("sink")
    stream.add_file(20)
    stream.process(sink__id=sink)
    stream.process(sink__id=sink, checkpoint="another")
    stream.rows *= 2
    assert not stream.audit().lost
    assert not stream.audit().duplicated


@pytest.mark.every_run(
    "apache-kill-task.flushed",
    "apache-raise-task.begin",
    "headrace-kill-task.begin",
    "headrace-kill-task.sent",
    "headrace-raise-task.sent",
    "headrace-raise-task.flushed",
)
@pytest.mark.behaviour("S05")
@pytest.mark.parametrize("failpoint", ["task.begin", "task.sent", "task.flushed"])
@pytest.mark.parametrize("action", ["kill", "raise"])
def test_a_killed_task_is_retried(spark, stream, failpoint, action):
    """Spark retries it in another worker; the commit aborts the open transaction of the first attempt."""
    marks = markers(spark)
    stream.add_file(200)
    stream.add_file(200)
    stream.process(f"{failpoint}={action}", kafka__batch__size="100")
    assert (marks / failpoint).exists()
    assert str(stream.audit()) == "clean"
    assert not open_transactions(stream.bootstrap, stream.topic)


@pytest.mark.behaviour("S06")
@pytest.mark.parametrize("action", ["kill", "raise"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("failpoint", ["decide.begin", "decide.written", "decide.done", "end.between", "end.done"])
def test_a_commit_survives_the_loss_of_its_python_process(spark, stream, failpoint, mode, action):
    """commit() fails, abort() follows, the query fails; started again, it continues from the decisions."""
    if mode == "inline" and failpoint.startswith("end."):
        pytest.skip("an inline batch is decided and ended at once")
    marks = markers(spark)
    stream.add_file(100)
    stream.process(commit__mode=mode)
    stream.add_file(100)
    with pytest.raises(Exception, match=r"failpoint|crashed|EOF|connection|Python worker"):
        stream.process(f"{failpoint}={action}", commit__mode=mode)
    assert (marks / failpoint).exists()
    stream.add_file(100)
    stream.process(commit__mode=mode)
    assert str(stream.audit()) == "clean"
    assert not open_transactions(stream.bootstrap, stream.topic)


def has_decided(query: StreamingQuery, mark: Path) -> bool:
    """Wait until it has, or has failed."""
    eventually("the decision", lambda: mark.exists() or not query.isActive, STEP_SECONDS_MAX)
    return mark.exists()


def begin_and_expire(spark, stream: StreamInSession, failpoints: str) -> StreamingQuery:
    """Start a query, and let its transactions expire between the decision and their end.

    On a busy machine they may expire before the decision: then nothing is decided, and the query is started again.
    """
    marks = markers(spark)
    for _ in range(STARTS_MAX):
        query = stream.begin(f"decide.done=hold, {failpoints}", kafka__transaction__timeout__ms=EXPIRY_MS)
        if has_decided(query, marks / "decide.done"):
            break
        assert re.search("not open any more|too soon to decide", str(query.exception()))
    else:
        raise AssertionError(f"nothing was decided in {STARTS_MAX} starts")
    eventually("the expiry", lambda: not open_transactions(stream.bootstrap, stream.topic), STEP_SECONDS_MAX)
    (marks / "decide.done.go").touch()
    return query


def test_a_decided_transaction_that_expired_is_written_again(spark, stream):
    """Between the decision and the end its time runs out: the coordinator aborts what was decided."""
    stream.add_file(300)
    stream.end(begin_and_expire(spark, stream, "redo.done=sleep:0"))
    assert "redo.done" in {mark.name for mark in marker_folder(spark).iterdir()}
    assert str(stream.audit()) == "clean"
    assert not open_transactions(stream.bootstrap, stream.topic)


@pytest.mark.behaviour("S06")
def test_a_decided_batch_with_deleted_records_stops_every_start(spark, stream):
    from headrace.client.admin import AdminClient
    from headrace.types import TopicPartition

    stream.add_file(300)
    query = begin_and_expire(spark, stream, "redo.begin=raise")
    with pytest.raises(Exception, match=r"failpoint redo\.begin"):
        stream.end(query)
    with AdminClient(stream.bootstrap) as admin:
        admin.delete_records({TopicPartition(stream.topic, number): -1 for number in range(3)})
    for _ in range(2):
        with pytest.raises(Exception, match=r"batch 0 of query .* was decided, but .* gone from the log") as caught:
            stream.process()
        assert re.search(rf"{stream.topic}-\d offsets \d+ to \d+", str(caught.value))


def test_two_queries_use_one_sink_id_in_turn(spark, either, tmp_path):
    """Each has its own decisions: neither skips batches of the other."""
    sink = unique("shared")
    streams = []
    for name in ("first", "second"):
        topic = new_topic(either, name)
        stream = StreamInSession(spark, tmp_path / name, either, topic, sink__id=sink)
        stream.add_file(20)
        streams.append(stream)
    first, second = streams
    first.process()
    second.process()
    first.add_file(20)
    first.process()
    for stream in streams:
        assert str(stream.audit()) == "clean"


def test_invalid_options_of_a_stream_fail_when_it_starts(stream):
    stream.add_file(5)
    with pytest.raises(Exception, match=r"write\.id is for batch writes"):
        stream.process(write__id="x")
