"""Repeated batch numbers: a replay is skipped, and other rows with an old number are an error, never a loss."""

from __future__ import annotations

import shutil

import pytest

from tests.support.crashes import StreamInSession, committed, markers, open_transactions
from tests.support.topics import new_topic, unique

DECIDED_BY = (
    r"decided by run [0-9a-f-]{36} \(host \S+, process \d+, started \S+ \S+ UTC\) at \S+ \S+ UTC\. Nothing of this "
    r"batch is visible\. Possible causes, the most likely first: "
)
FINGERPRINT = r"{} rows with hash [0-9a-f]{{16}}"


@pytest.fixture(params=["inline", "parallel"])
def stream(request, spark, either, tmp_path):
    topic = new_topic(either, "repeated", 2)
    return StreamInSession(spark, tmp_path, either, topic, commit__mode=request.param)


def keep(stream, name="backup"):
    shutil.copytree(stream.folder / "checkpoint", stream.folder / name)


def restore(stream, name="backup"):
    shutil.rmtree(stream.folder / "checkpoint")
    shutil.copytree(stream.folder / name, stream.folder / "checkpoint")


def assert_refused(stream, pattern, **options):
    with pytest.raises(Exception, match=pattern):
        stream.process(**options)
    assert str(stream.audit()) == "clean"
    assert not open_transactions(stream.bootstrap, stream.topic)


@pytest.mark.every_run("apache-parallel", "headrace-inline")
@pytest.mark.behaviour("S12")
def test_a_checkpoint_from_an_older_backup_stops_the_query(stream):
    """And with a new sink.id its rows are delivered: those since the backup once more, none is lost."""
    for number in range(3):
        stream.add_file(40 + number)
        stream.process()
        if number == 0:
            keep(stream)
    restore(stream)
    assert_refused(
        stream,
        rf"batch 1 of query [0-9a-f-]{{36}} \(sink\.id 'headrace-[0-9a-f-]{{36}}'\) comes after batch 2: now "
        rf"{FINGERPRINT.format(41)}; batch 2 had {FINGERPRINT.format(42)}, {DECIDED_BY}\(1\) the checkpoint was "
        r"restored from a backup; .* continue with the checkpoint that has batch 2, or set a new sink\.id, which "
        r"delivers the rows of this checkpoint, some of them a second time",
    )
    stream.process(sink__id=unique("restored"))
    stream.rows += stream.rows[40:]
    audit = stream.audit()
    assert not audit.lost
    assert not audit.duplicated


@pytest.mark.behaviour("S12")
def test_the_last_batch_with_other_rows_stops_the_query(stream):
    stream.add_file(40)
    stream.process()
    keep(stream)
    stream.add_file(41)
    stream.process()
    restore(stream)
    rows = list(stream.rows)
    (stream.folder / "source" / "0001.txt").unlink()
    stream.add_file(41, label="other")
    stream.rows = rows
    assert_refused(
        stream,
        rf"batch 1 of query [0-9a-f-]{{36}} \(sink\.id 'headrace-[0-9a-f-]{{36}}'\) comes again with other rows: now "
        rf"{FINGERPRINT.format(41)}; batch 1 had {FINGERPRINT.format(41)}, {DECIDED_BY}\(1\) the query computes other "
        r"rows .* start the query with replay\.check=rows",
    )
    # With replay.check=rows they count as the same rows, and are not delivered: documented in exactly-once.md.
    stream.process(replay__check="rows")
    assert str(stream.audit()) == "clean"


@pytest.mark.behaviour("S12")
def test_a_copied_checkpoint_continues_and_the_original_is_refused_afterwards(stream):
    """Blue, then green with a copy of its checkpoint, then blue again."""
    stream.add_file(40)
    stream.process()
    keep(stream, "green")
    for _ in range(2):
        stream.add_file(40)
        stream.process(checkpoint="green")
    stream.add_file(50)
    rows, stream.rows = stream.rows, stream.rows[:-50]
    assert_refused(stream, r"batch 1 of query .* comes after batch 2: .*it is a copy, and another query has continued")
    stream.rows = rows
    stream.process(checkpoint="green")
    assert str(stream.audit()) == "clean"


@pytest.mark.behaviour("S12")
def test_a_checkpoint_one_batch_behind_replays_that_batch_and_continues(stream):
    """A batch with the same number and the same rows is a replay."""
    stream.add_file(40)
    stream.process()
    keep(stream)
    stream.add_file(40)
    stream.process()
    restore(stream)
    stream.add_file(40)
    stream.process()
    assert str(stream.audit()) == "clean"
    assert not open_transactions(stream.bootstrap, stream.topic)


def test_a_replay_with_dead_letters_is_recognised(spark, either, tmp_path):
    """The headers of dead letters have the attempt, which differs in a replay."""
    markers(spark)
    topic, dead = new_topic(either, "some"), new_topic(either, "dead")
    options = {"on__bad__row": "dead-letter", "dead__letter__topic": dead, "kafka__max__request__size": "2000"}
    stream = StreamInSession(spark, tmp_path, either, topic, **options)
    stream.add_file(20)
    stream.process()
    stream.add_file(5, width=3000)
    large = stream.rows[20:]
    with pytest.raises(Exception, match=r"crashed|EOF|connection|Python worker"):
        stream.process("finish.done=kill")
    stream.process("task.flushed=kill")
    stream.rows = [row for row in stream.rows if row not in large]
    assert str(stream.audit()) == "clean"
    assert sum(map(len, committed(either.bootstrap, dead).values())) == len(large)
