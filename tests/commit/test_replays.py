"""Replayed batches on a broker: which rows are accepted as the decided rows, and which are refused."""

from __future__ import annotations

import itertools
import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from headrace.client.admin import AdminClient
from headrace.producer.interceptors import ProducerInterceptor
from headrace.producer.records import ProducerRecord
from headrace.producer.serializers import Serializer
from headrace.spark.datasource import HeadraceDataSource
from headrace.spark.errors import FencedError, NotDecidedError, RepeatedBatchError, SinkError
from tests.support.topics import unique

_numbers = itertools.count()


class Numbering(Serializer):
    """A serializer that never returns the same bytes twice, like encryption with a nonce."""

    def serialize(self, topic, value, headers):
        return f"{value} {next(_numbers)}".encode()


class Stamping(ProducerInterceptor):
    def on_send(self, record):
        stamp = ("sent", f"{next(_numbers)}".encode())
        return ProducerRecord(record.topic, record.value, record.key, record.partition, headers=[stamp])


class Strict(Serializer):
    """A serializer that refuses rows which a later version accepts."""

    def serialize(self, topic, value, headers):
        if value.startswith("b"):
            raise ValueError("unknown field")
        return value.encode()


def decide_and_replay(rig, first, second, mode):
    rows = ["a1", "b1", "a2"]
    rig.driver().commit(rig.batch(0, rig.task(rows, commit__mode=mode, **first)))
    again = rig.task(rows, run="run-2", commit__mode=mode, **second)
    rig.driver("run-2").commit(rig.batch(0, again))


@pytest.mark.behaviour("S12")
@pytest.mark.parametrize("mode", ["inline", "parallel"])
@pytest.mark.parametrize("option", ["kafka__value__serializer", "kafka__interceptor__classes"])
def test_a_replay_is_recognised_if_plug_ins_return_other_bytes(rig, option, mode):
    plug_in = Numbering if "serializer" in option else Stamping
    given = {option: f"{__name__}.{plug_in.__name__}"}
    decide_and_replay(rig, given, given, mode)
    assert [row.split()[0] for row in rig.rows()] == ["a1", "b1", "a2"]
    with pytest.raises(RepeatedBatchError):
        rig.driver("run-3").commit(rig.batch(0, rig.task(["a1", "b1", "other"], run="run-3", **given)))


@pytest.mark.behaviour("S12")
@pytest.mark.parametrize("is_fixed_after", [True, False])
def test_a_replay_is_recognised_if_dead_letters_become_good_rows(rig, is_fixed_after):
    letters = {"on__bad__row": "dead-letter", "dead__letter__topic": rig.broker.create_topic(unique("letters"))}
    strict = {"kafka__value__serializer": f"{__name__}.{Strict.__name__}", **letters}
    first, second = (strict, letters) if is_fixed_after else (letters, strict)
    decide_and_replay(rig, first, second, "parallel")
    assert rig.rows() == (["a1", "a2"] if is_fixed_after else ["a1", "b1", "a2"])


# -- source offsets --------------------------------------------------------------------------------


def copy(rig, offsets, topic_id="a", run="run", number=0, query="query"):
    """Run a task for these records of one source partition, and return its batch."""
    rows = pa.RecordBatch.from_pydict(
        {
            "value": [f"{offset:03d}" for offset in offsets],
            "partition": pa.array([0] * len(offsets), pa.int32()),
            "__topic": ["source"] * len(offsets),
            "__partition": pa.array([0] * len(offsets), pa.int32()),
            "__offset": pa.array(offsets, pa.int64()),
            "__topic_id": pa.array([topic_id] * len(offsets), pa.string()),
        }
    )
    given = {"sink__id": rig.sink, "source__offsets": "true"}
    return rig.batch(number, rig.write(iter([rows]), batch=number, run=run, query=query, **given))


def delivered(rig):
    return [int(row) for row in rig.rows()]


@pytest.mark.behaviour("S12")
def test_a_replay_is_skipped_with_a_warning_if_source_records_are_gone(rig, caplog):
    rig.driver().commit(copy(rig, range(10)))
    again = rig.driver("run-2")
    again.commit(copy(rig, [4, 5, 9], run="run-2"))
    assert "its 3 rows are not written again, because they come from source records of the 10 rows" in caplog.text
    again.commit(copy(rig, range(10, 12), run="run-2", number=1))
    assert delivered(rig) == [*range(12)]


@pytest.mark.behaviour("S13")
@pytest.mark.parametrize("topic_ids", [("a", None), (None, "a")])
def test_a_new_checkpoint_repeats_nothing_if_topic_ids_change(rig, topic_ids):
    rig.driver().commit(copy(rig, range(10), topic_ids[0]))
    with pytest.raises(SinkError, match=r"8 rows come from partition 0 of topic 'source'.*or set a new sink\.id"):
        copy(rig, range(2, 12), topic_ids[1], run="run-2", query="newer")
    rig.driver("run-2").commit(copy(rig, range(10, 12), topic_ids[1], run="run-2", query="newer"))
    assert delivered(rig) == [*range(12)]


@pytest.mark.behaviour("S13")
def test_a_newer_query_takes_over_from_an_older_one_that_stays_active(rig):
    """Its first batch is planned before the older query decides; this must not repeat endlessly."""
    older = rig.driver("old")
    older.commit(copy(rig, range(5), run="old"))
    stale = copy(rig, range(12), run="new", query="newer")
    older.commit(copy(rig, range(5, 10), run="old", number=1))
    newer = rig.driver("new")
    with pytest.raises(NotDecidedError, match=r"Start this query again"):
        newer.commit(stale)
    newer.abort(stale)
    with pytest.raises(FencedError, match=r"held by another query of this driver.*: run new"):
        older.commit(copy(rig, range(10, 12), run="old", number=2))
    rig.driver("newer").commit(copy(rig, range(12), run="newer", query="newer"))
    assert delivered(rig) == [*range(12)]


def test_decisions_are_read_to_plan_a_batch_and_not_again_to_commit_it(rig):
    """Reading them creates the decision topic, if there is none."""
    options = {
        "kafka.bootstrap.servers": rig.broker.bootstrap,
        "topic": rig.topic,
        "decision.topic": rig.decision_topic,
        "sink.id": rig.sink,
        "source.offsets": "true",
    }
    schema = StructType().add("value", StringType()).add("__topic", StringType())
    schema = schema.add("__partition", IntegerType()).add("__offset", LongType())
    planning = HeadraceDataSource(options)
    committing = pickle.loads(pickle.dumps(planning))
    with AdminClient(rig.broker.bootstrap) as admin:
        committing.streamWriter(schema, False).abort([], 0)
        assert rig.decision_topic not in admin.list_topics()
        planning.streamWriter(schema, False)
        assert rig.decision_topic in admin.list_topics()
