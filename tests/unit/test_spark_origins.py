"""Which source offsets the queries of a sink have covered, and which rows are skipped."""

from __future__ import annotations

import itertools
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from headrace.errors import ConfigError
from headrace.spark.errors import PlanError, SinkError
from headrace.spark.origins import (
    NOTHING,
    Coverage,
    KnownOrigins,
    OriginColumns,
    OriginFilter,
    OriginReport,
    SourcePartition,
    base_for,
    covered_by,
)

A0, A1 = SourcePartition.of("t", "a", 0), SourcePartition.of("t", "a", 1)
DEFAULT = OriginColumns()

pairs = st.tuples(st.integers(0, 60), st.integers(0, 15)).map(lambda pair: (pair[0], pair[0] + pair[1]))
coverages = st.lists(pairs, max_size=6).map(lambda intervals: of(*intervals))


def of(*intervals, partition=A0):
    """Return the result of adding intervals one by one."""
    total = NOTHING
    for first, last in intervals:
        total |= Coverage({partition: ((first, last),)})
    return total


def offsets_in(coverage, partition=A0):
    return {n for first, last in coverage.intervals.get(partition, ()) for n in range(first, last + 1)}


@given(coverages, coverages)
def test_a_union_has_the_offsets_of_both_in_disjoint_intervals(first, other):
    both = first | other
    assert offsets_in(both) == offsets_in(first) | offsets_in(other)
    intervals = both.intervals.get(A0, ())
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(intervals))
    assert Coverage.from_json(json.loads(json.dumps(both.to_json()))) == both
    assert (both.digest() == first.digest()) == (both == first)


def test_a_hull_reaches_from_the_lowest_offset_to_the_highest():
    assert (of((3, 5), (9, 9)) | of((1, 2), partition=A1)).hull() == of((3, 9)) | of((1, 2), partition=A1)
    assert covered_by(None, of((3, 5))) == of((3, 5))
    assert covered_by(KnownOrigins(0, of((3, 5)), NOTHING), of((9, 9))) == of((3, 9))


def test_a_query_skips_what_other_queries_have_covered_but_not_its_own_coverage():
    known = {
        "old": KnownOrigins(9, of((0, 100)), NOTHING),
        "older": KnownOrigins(3, of((200, 300)), of((500, 600))),
        "own": KnownOrigins(4, of((0, 120)), of((0, 50))),
    }
    assert base_for(known, "new", 0) == of((0, 120), (200, 300), (500, 600))
    assert base_for(known, "own", 5) == of((0, 100), (200, 300), (500, 600))
    # What was decided before is filtered as it was then: else it could not be recognised.
    assert base_for(known, "own", 4) == of((0, 50))
    assert base_for({}, "new", 0) == NOTHING


def rows(offsets, ids=None, topics="t", partitions=0):
    count = len(offsets)
    columns = {
        "value": [f"row {n}" for n in offsets],
        "__topic": [topics] * count if isinstance(topics, str) else topics,
        "__partition": pa.array([partitions] * count if isinstance(partitions, int) else partitions, pa.int32()),
        "__offset": pa.array(offsets, pa.int64()),
    }
    if ids is not None:
        columns["__topic_id"] = pa.array([ids] * count if isinstance(ids, str) else ids, pa.string())
    return pa.RecordBatch.from_pydict(columns)


@given(st.lists(st.integers(0, 60), max_size=30), coverages)
def test_rows_inside_the_base_are_skipped_and_no_others(offsets, base):
    chosen = OriginFilter(DEFAULT, base, "batch 0, task 0")
    left = chosen.apply(rows(offsets, "a")).column("__offset").to_pylist()
    assert left == [n for n in offsets if n not in offsets_in(base)]
    assert chosen.report.skipped == len(offsets) - len(left)
    assert chosen.report.covered == (of((min(offsets), max(offsets))) if offsets else NOTHING)
    assert (chosen.report.base_digest, chosen.report.unproven) == (base.digest(), 0)


def test_topics_and_partitions_are_distinguished_and_a_recreated_topic_is_another():
    base = of((0, 9)) | Coverage({SourcePartition("t", 1): ((0, 9),)})
    chosen = OriginFilter(DEFAULT, base, "batch 0, task 0")
    batch = rows(
        [1, 1, 1, 10, 10],
        ids=["a", "recreated", None, "a", "a"],
        partitions=[0, 0, 1, 1, 0],
    )
    assert chosen.apply(batch).column("__topic_id").to_pylist() == ["recreated", "a", "a"]
    assert (chosen.report.skipped, chosen.report.unproven) == (2, 1)
    assert chosen.report.covered.intervals == {
        A0: ((1, 10),),
        A1: ((10, 10),),
        SourcePartition.of("t", "recreated", 0): ((1, 1),),
        SourcePartition("t", 1): ((1, 1),),
    }


def test_without_ids_topics_are_identified_by_name():
    columns = OriginColumns.parse("__topic, __partition,__offset")
    assert columns is not None
    chosen = OriginFilter(columns, NOTHING, "batch 0, task 0")
    chosen.apply(rows([4, 7]))
    assert chosen.report.covered.intervals == {SourcePartition("t", 0): ((4, 7),)}


@pytest.mark.behaviour("S13")
@pytest.mark.parametrize(
    ("delivered_id", "row_id", "remedy"),
    [("a", None, "Keep the column __topic_id"), (None, "a", "Name the columns without the topic id")],
)
def test_rows_are_refused_if_only_they_or_only_the_decisions_have_a_topic_id(delivered_id, row_id, remedy):
    delivered = SourcePartition.of("t", delivered_id, 0)
    base = of((5, 9), partition=delivered) | of((0, 9), partition=SourcePartition.of("another topic", delivered_id, 0))
    unknown = OriginFilter(DEFAULT, base, "batch 3, task 1")
    assert unknown.apply(rows([3, 4, 10], [row_id] * 3)).num_rows == 3
    assert unknown.apply(rows([5], [row_id], partitions=1)).num_rows == 1
    message = (
        rf"batch 3, task 1: 2 rows come from {SourcePartition.of('t', row_id, 0)}, and .* of {delivered}\. .*{remedy}"
    )
    with pytest.raises(SinkError, match=message):
        unknown.apply(rows([4, 5, 9], [row_id] * 3))


def test_rows_are_skipped_even_if_the_topic_was_also_delivered_without_an_id():
    """What is proven by id needs no other proof."""
    base = of((0, 9)) | of((0, 9), partition=SourcePartition.of("t", None, 0))
    assert OriginFilter(DEFAULT, base, "batch 3, task 1").apply(rows([4, 5], "a")).num_rows == 0
    assert OriginFilter(DEFAULT, base, "batch 3, task 1").apply(rows([4, 5])).num_rows == 0


def test_a_row_without_an_origin_is_refused():
    with pytest.raises(SinkError, match=r"batch 3, task 1: 1 rows have no source offset \(column '__offset' is null\)"):
        OriginFilter(DEFAULT, NOTHING, "batch 3, task 1").apply(rows([1, None]))


def test_reports_of_tasks_add_up():
    total = OriginReport(of((1, 3)), skipped=2) + OriginReport(of((7, 9)), skipped=1, unproven=1)
    assert (total.covered, total.skipped, total.unproven) == (of((1, 3), (7, 9)), 3, 1)
    with pytest.raises(SinkError, match="different source offsets"):
        OriginReport() + OriginReport(base_digest="other")


def test_the_option_and_the_columns_are_checked():
    def schema(**columns):
        return StructType([StructField(name, kind) for name, kind in columns.items()])

    whole = {"__topic": StringType(), "__partition": IntegerType(), "__offset": LongType()}
    DEFAULT.check(schema(**whole))
    DEFAULT.check(schema(**whole, __topic_id=StringType()))
    with pytest.raises(
        PlanError, match=r"there is no column '__topic'.*aggregation.*stateless queries only.*includeOr"
    ):
        DEFAULT.check(schema(value=StringType()))
    with pytest.raises(PlanError, match=r"column '__offset' of source.offsets is string; expected bigint"):
        DEFAULT.check(schema(**whole | {"__offset": StringType()}))
    with pytest.raises(PlanError, match=r"column '__topic_id' of source.offsets is int; expected string"):
        DEFAULT.check(schema(**whole, __topic_id=IntegerType()))
    assert OriginColumns.parse("false") is None
    assert OriginColumns.parse("True") == DEFAULT
    assert OriginColumns.parse("a,b,c,d") == OriginColumns("a", "b", "c", "d")
    for wrong in ("", "a,b", "a,,c", "a,b,a", "yes"):
        with pytest.raises(ConfigError, match=r"invalid source.offsets"):
            OriginColumns.parse(wrong)
