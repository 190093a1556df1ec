"""Source offsets (origins): which source records the queries of a sink have delivered.

    includeOrigin=true (source)   columns __topic, __partition, __offset, __topic_id
    source.offsets=true (sink)    planner: the decisions of the sink → KnownOrigins, pickled for the tasks
                                  task: OriginFilter skips rows that other queries have delivered → OriginReport
                                  commit: the decision records the offsets that its query has covered so far

A query with a new checkpoint reads records again that an older query of the same `sink.id` has delivered. The decisions
of that query name the offsets that it has covered: exactly those rows are skipped. docs/exactly-once.md has the rules
and the reasons.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ConfigError
from headrace.spark.errors import PlanError, SinkError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ID_PREFIX = "id:"
"""Prefix of a topic id."""
STATELESS = (
    "source.offsets needs the source record of every row, and rows of an aggregation or a join have none: it works "
    "for stateless queries only"
)
_TYPES = {"topic": ("string",), "partition": ("int", "bigint"), "offset": ("bigint",), "topic_id": ("string", "void")}

Interval = tuple[int, int]
"""The first and the last offset of consecutive offsets."""


class SourcePartition(NamedTuple):
    """A partition that rows come from. Create it with `of`."""

    topic: str
    """The name of the topic; with a topic id, `id:ID:NAME`. Names of topics have no colon."""
    partition: int

    @classmethod
    def of(cls, name: str, topic_id: str | None, partition: int) -> SourcePartition:
        return cls(name if topic_id is None else f"{ID_PREFIX}{topic_id}:{name}", partition)

    @property
    def name(self) -> str:
        return self.topic.rpartition(":")[2]

    @property
    def topic_id(self) -> str | None:
        return self.topic.rpartition(":")[0].removeprefix(ID_PREFIX) or None

    def may_be(self, other: SourcePartition) -> bool:
        """Whether both have the same name and only one has a topic id: they may be the same partition, or not."""
        has_one_id = (self.topic_id is None) != (other.topic_id is None)
        return has_one_id and (self.name, self.partition) == (other.name, other.partition)

    def __str__(self) -> str:
        topic_id = "without an id" if self.topic_id is None else f"with id {self.topic_id}"
        return f"partition {self.partition} of topic {self.name!r} {topic_id}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Offsets of source partitions, as disjoint intervals in ascending order."""

    intervals: Mapping[SourcePartition, tuple[Interval, ...]] = field(default_factory=dict)

    def __or__(self, other: Coverage) -> Coverage:
        """Return the offsets that are in either of the two."""
        both = self.intervals.keys() | other.intervals.keys()
        return Coverage({key: _merged((*self.intervals.get(key, ()), *other.intervals.get(key, ()))) for key in both})

    def hull(self) -> Coverage:
        """Return one interval for each partition, from the lowest offset to the highest."""
        return Coverage({key: ((runs[0][0], runs[-1][1]),) for key, runs in self.intervals.items()})

    def within(self, partition: SourcePartition, first: int, last: int) -> list[Interval]:
        """Return the intervals of a partition that have offsets between `first` and `last`."""
        return [(low, high) for low, high in self.intervals.get(partition, ()) if low <= last and first <= high]

    def has(self, other: Coverage) -> bool:
        """Whether all offsets of `other` are in this coverage."""
        return all(
            any(first <= low and high <= last for first, last in self.intervals.get(key, ()))
            for key, intervals in other.intervals.items()
            for low, high in intervals
        )

    def may_have(self, other: Coverage) -> bool:
        """Whether a partition of `other` may be in this coverage, but a topic id is missing to know it."""
        return any(
            mine.may_be(key) for key in other.intervals.keys() - self.intervals.keys() for mine in self.intervals
        )

    def to_json(self) -> dict[str, dict[str, list[list[int]]]]:
        topics: dict[str, dict[str, list[list[int]]]] = {}
        for (topic, partition), intervals in sorted(self.intervals.items()):
            topics.setdefault(topic, {})[str(partition)] = [[first, last] for first, last in intervals]
        return topics

    @classmethod
    def from_json(cls, topics: Mapping[str, Any]) -> Coverage:
        return cls(
            {
                SourcePartition(topic, int(partition)): _merged((int(first), int(last)) for first, last in intervals)
                for topic, partitions in topics.items()
                for partition, intervals in partitions.items()
            }
        )

    def digest(self) -> str:
        """Return a short hash of the content."""
        return hashlib.blake2b(json.dumps(self.to_json()).encode(), digest_size=8).hexdigest()


def _merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    disjoint: list[Interval] = []
    for first, last in sorted(intervals):
        if disjoint and first <= disjoint[-1][1] + 1:
            disjoint[-1] = (disjoint[-1][0], max(disjoint[-1][1], last))
        else:
            disjoint.append((first, last))
    return tuple(disjoint)


NOTHING = Coverage()


class DeliveredOffsets(Protocol):
    """The source offsets of a decision."""

    @property
    def batch(self) -> int: ...
    @property
    def offsets(self) -> Coverage:
        """What its query had covered, including its batch."""

    @property
    def base(self) -> Coverage:
        """What was skipped in its batch, because other queries had covered it."""


class KnownOrigins(NamedTuple):
    """The part of a decision that tasks need: it is pickled for each task."""

    batch: int
    offsets: Coverage
    base: Coverage


def known_origins(decisions: Mapping[str, DeliveredOffsets]) -> dict[str, KnownOrigins]:
    return {
        query: KnownOrigins(decision.batch, decision.offsets, decision.base) for query, decision in decisions.items()
    }


def base_for(decisions: Mapping[str, DeliveredOffsets], query: str, batch: int) -> Coverage:
    """Return the offsets to skip in a batch of a query: those that the other queries of the sink have covered.

    A batch that was decided before is filtered as it was then, so that a replay has the same rows.
    """
    own = decisions.get(query)
    if own is not None and batch <= own.batch:
        return own.base
    others = [decision for name, decision in decisions.items() if name != query]
    parts = [part for decision in others for part in (decision.offsets, decision.base)]
    return reduce(Coverage.__or__, parts, NOTHING if own is None else own.base)


def covered_by(last: DeliveredOffsets | None, batch: Coverage) -> Coverage:
    """Return what a query has covered after a batch. It reads partitions in order: there is no gap between batches."""
    return (batch if last is None else last.offsets | batch).hull()


# -- columns -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OriginColumns:
    """The names of the columns with the source record of a row."""

    topic: str = "__topic"
    partition: str = "__partition"
    offset: str = "__offset"
    topic_id: str | None = "__topic_id"

    @classmethod
    def parse(cls, text: str) -> OriginColumns | None:
        """Parse the option: false, true, or the names of three or four columns."""
        if text.lower() in ("true", "false"):
            return cls() if text.lower() == "true" else None
        names = [name.strip() for name in text.split(",")]
        if len(names) not in (3, 4) or not all(names) or len(set(names)) != len(names):
            raise ConfigError(
                f"invalid source.offsets: expected true, false or the columns topic,partition,offset[,topic id], got "
                f"{text!r}"
            )
        return cls(names[0], names[1], names[2], names[3] if len(names) == 4 else None)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name in (self.topic, self.partition, self.offset, self.topic_id) if name is not None)

    def check(self, schema: StructType) -> None:
        """Raise PlanError if a DataFrame lacks the columns, or has them with other types."""
        kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
        for role, name in (("topic", self.topic), ("partition", self.partition), ("offset", self.offset)):
            if name not in kinds:
                raise PlanError(
                    f"source.offsets is set, but there is no column {name!r}; the columns are: {', '.join(kinds)}. "
                    f"{STATELESS}. Read with includeOrigin=true and keep its columns up to the sink, or leave "
                    "source.offsets out"
                )
            if kinds[name] not in _TYPES[role]:
                raise PlanError(f"column {name!r} of source.offsets is {kinds[name]}; expected {_TYPES[role][0]}")
        if self.topic_id is not None and kinds.get(self.topic_id, "void") not in _TYPES["topic_id"]:
            raise PlanError(f"column {self.topic_id!r} of source.offsets is {kinds[self.topic_id]}; expected string")


@dataclass(slots=True)
class OriginReport:
    """The source offsets of the rows of a task."""

    covered: Coverage = NOTHING
    base_digest: str = NOTHING.digest()
    """`Coverage.digest` of the offsets that the task skips."""
    skipped: int = 0
    unproven: int = 0
    """Skipped rows of topics without a topic id: in a recreated topic, they are other rows."""

    def __add__(self, other: OriginReport) -> OriginReport:
        if self.base_digest != other.base_digest:
            raise SinkError(
                "internal error: the tasks of a batch were planned with different source offsets; please report it"
            )
        return OriginReport(
            self.covered | other.covered,
            self.base_digest,
            self.skipped + other.skipped,
            self.unproven + other.unproven,
        )


class OriginFilter:
    """Skips the rows of a task that were delivered before, and records the offsets of all rows."""

    def __init__(self, columns: OriginColumns, base: Coverage, where: str) -> None:
        self._columns = columns
        self._base = base
        self._where = where  # batch and task, for errors
        self._namesakes: defaultdict[tuple[str, int], list[SourcePartition]] = defaultdict(list)
        for source in base.intervals:
            self._namesakes[source.name, source.partition].append(source)
        self.report = OriginReport(base_digest=base.digest())

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows to deliver."""
        if not batch.num_rows:
            return batch
        origins = self._origins(batch)
        groups = origins.group_by(["topic", "id", "partition"]).aggregate([("offset", "min"), ("offset", "max")])
        skipped: pa.Array | None = None
        for group in groups.to_pylist():
            source = SourcePartition.of(group["topic"], group["id"], group["partition"])
            first, last = group["offset_min"], group["offset_max"]
            self.report.covered |= Coverage({source: ((first, last),)})
            mask = None
            if intervals := self._base.within(source, first, last):
                mask = pc.and_(_of_group(origins, group), _inside(origins["offset"], intervals))
                count = pc.sum(mask).as_py() or 0
                self.report.skipped += count
                self.report.unproven += count if group["id"] is None else 0
                skipped = mask if skipped is None else pc.or_(skipped, mask)
            for other in self._namesakes.get((source.name, source.partition), ()):
                if source.may_be(other) and (intervals := self._base.within(other, first, last)):
                    doubtful = pc.and_(_of_group(origins, group), _inside(origins["offset"], intervals))
                    self._refuse_doubtful(source, other, doubtful if mask is None else pc.and_not(doubtful, mask))
        # Queries and their tasks read a partition in order: one interval for each partition is enough.
        self.report.covered = self.report.covered.hull()
        return batch if skipped is None else batch.filter(pc.invert(skipped).combine_chunks())

    def _refuse_doubtful(self, source: SourcePartition, other: SourcePartition, rows: pa.ChunkedArray) -> None:
        """Refuse rows of partitions with the same name of which only one has a topic id.

        Delivering them could repeat rows; skipping them could lose rows of a recreated topic.
        """
        count = pc.sum(rows).as_py()
        if not count:
            return
        remedy = (
            "Keep the column __topic_id of the source up to the sink"
            if source.topic_id is None
            else "Name the columns without the topic id (source.offsets=__topic,__partition,__offset): topics then go "
            "by their names"
        )
        raise SinkError(
            f"{self._where}: {count} rows come from {source}, and queries of this sink.id have delivered the same "
            f"offsets of {other}. Whether that is the same topic or a recreated one is not known. Nothing of the "
            f"batch is visible. {remedy}; or set a new sink.id, which delivers everything that is read again"
        )

    def _origins(self, batch: pa.RecordBatch) -> pa.Table:
        names, rows = self._columns, batch.num_rows
        has_ids = names.topic_id is not None and names.topic_id in batch.schema.names
        columns = {
            "topic": batch.column(names.topic),
            "partition": batch.column(names.partition),
            "offset": batch.column(names.offset),
        }
        for role, column in columns.items():
            if column.null_count:
                raise SinkError(
                    f"{self._where}: {column.null_count} rows have no source {role} (column "
                    f"{getattr(names, role)!r} is null). {STATELESS}"
                )
        ids = batch.column(names.topic_id) if has_ids else pa.nulls(rows)
        return pa.table({**columns, "id": ids.cast(pa.string())})


def _of_group(origins: pa.Table, group: Mapping[str, Any]) -> pa.ChunkedArray:
    mask = pc.and_(pc.equal(origins["topic"], group["topic"]), pc.equal(origins["partition"], group["partition"]))
    same_id = pc.is_null(origins["id"]) if group["id"] is None else pc.equal(origins["id"], group["id"])
    return pc.and_(mask, pc.fill_null(same_id, False))


def _inside(offsets: pa.ChunkedArray, intervals: Iterable[Interval]) -> pa.ChunkedArray:
    masks = (pc.and_(pc.greater_equal(offsets, first), pc.less_equal(offsets, last)) for first, last in intervals)
    return reduce(pc.or_, masks)
