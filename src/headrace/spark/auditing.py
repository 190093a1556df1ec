"""The audit: what was to be sent against what a topic holds.

    source ─┐                                                        ┌─ counts of lost, duplicated, unexpected
            ├─ 128-bit hash of key and value → count of each, by hash ┤
    topic ──┘                                                        └─ a few hashes of each kind → their rows

    topic → highest order so far of each key, by offset → records that come after a higher one: out of order

Rows are counted by their hash in one shuffle of two numbers each, and nothing but counts and a few examples comes to
the driver: it makes no difference whether there are a thousand rows or a hundred million. Only if something is wrong
are both sides read a second time, for the examples.

(The module is not called `audit`, because `headrace.spark.audit` is the function.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.spark.consumer_options import CONSUMER_OPTIONS, PREFIX
from headrace.spark.errors import SparkError, explain
from headrace.spark.pipeline_spec import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

EXAMPLES_DEFAULT = 10
EXAMPLES_MAX = 1000
PREFIX_BYTES_MAX = 64
"""As much of a key or value as an example shows."""
PLACES_MAX = 5
"""Records that an example names: of a row that is there a million times, the first ones."""
_BUCKETS = 1024
"""Each kind of difference gives its lowest and highest hash in so many classes: enough to choose examples from."""
_OFFSET_BUCKETS = 64
_H1, _H2, _SENT, _HELD = "_h1", "_h2", "_sent", "_held"


def audit(
    source: DataFrame,
    topic: DataFrame | str,
    *,
    options: Mapping[str, object] | None = None,
    id: str | None = None,
    source_id: str | None = None,
    order: str | None = None,
    examples: int = EXAMPLES_DEFAULT,
) -> AuditReport:
    """Compare the rows of a source with the records of a topic, each as often as it is there.

    `topic` is a name (several with commas) to be read with `options` of the format headrace, or a DataFrame that was
    read with it. Rows are the same if their columns `key` and `value` are; or, with `id`, if that SQL expression has
    the same text on both sides (`source_id`: another expression for the source). `order` is an SQL expression over the
    columns of the topic, or else of the source: records of one key in one partition are out of order where it falls.
    """
    if not 0 <= examples <= EXAMPLES_MAX:
        raise ConfigError(f"examples is {examples}; it may be 0 to {EXAMPLES_MAX}")
    records = read_topic(source.sparkSession, topic, options or {}) if isinstance(topic, str) else topic
    try:
        comparison = _Comparison(source, records, id, source_id, order, examples)
        return comparison.report()
    except ConfigError:
        raise
    except Exception as error:
        raise SparkError(f"the audit could not be carried out: {explain(error)}") from error


def read_topic(spark: SparkSession, topic: str, options: Mapping[str, object]) -> DataFrame:
    """All committed records of a topic, or of several with commas between them."""
    given = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    try:
        return spark.read.format(FORMAT).options(**given).options(**texts).load()
    except Exception as error:
        raise SparkError(f"topic {topic} cannot be read: {explain(error)}") from error


def reading_options(sink_options: Mapping[str, str]) -> dict[str, str]:
    """Of a sink's options those that say how to reach its cluster."""
    found = {name.lower(): value for name, value in sink_options.items()}
    return {
        name: value
        for name, value in found.items()
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) in CONSUMER_OPTIONS
    }


class _Comparison:
    """One audit."""

    def __init__(
        self,
        source: DataFrame,
        topic: DataFrame,
        id: str | None,
        source_id: str | None,
        order: str | None,
        examples: int,
    ) -> None:
        self._examples = examples
        self._order = order
        self._source = _hashed(source, "the source", source_id or id)
        self._topic = _hashed(topic, "the topic", id)

    def report(self) -> AuditReport:
        counts = self._counts()
        found = {kind: counts.rows(kind) for kind in ("equal", "lost", "duplicated", "unexpected")}
        held = {kind: counts.held(kind) for kind in found}
        out_of_order, late = (None, []) if self._order is None else self._out_of_order()
        report = AuditReport(
            source_rows=sum(found.values()),
            topic_rows=sum(held.values()),
            matched=found["equal"] + held["lost"] + found["duplicated"],
            lost=found["lost"] - held["lost"],
            duplicated=held["duplicated"] - found["duplicated"],
            unexpected=held["unexpected"],
            out_of_order=out_of_order,
        )
        if report.is_equal or not self._examples:
            return report
        return replace(report, examples=self._chosen(counts, late))

    # -- lost, duplicated, unexpected ------------------------------------------------------------

    def _counts(self) -> _Counts:
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        sent = self._source.select(_H1, _H2, F.lit(1).alias(_SENT), F.lit(0).alias(_HELD))
        held = self._topic.select(_H1, _H2, F.lit(0).alias(_SENT), F.lit(1).alias(_HELD))
        rows = sent.union(held).groupBy(_H1, _H2).agg(F.sum(_SENT).alias(_SENT), F.sum(_HELD).alias(_HELD))
        sent_count, held_count = F.col(_SENT), F.col(_HELD)
        kind = (
            F.when(sent_count == held_count, "equal")
            .when(sent_count == 0, "unexpected")
            .when(sent_count > held_count, "lost")
            .otherwise("duplicated")
        )
        # Numbers only: Spark aggregates those by hash, and anything else by sorting.
        summary = rows.groupBy(kind.alias("kind"), F.pmod(_H1, F.lit(_BUCKETS)).alias("bucket")).agg(
            F.sum(_SENT).alias("sent"),
            F.sum(_HELD).alias("held"),
            F.min(_H1).alias("low"),
            F.max(_H1).alias("high"),
        )
        return _Counts([row.asDict() for row in summary.collect()])

    # -- order ---------------------------------------------------------------------------------

    def _out_of_order(self) -> tuple[int, list[Record]]:
        """How many records come after one of their key with a higher order, and where the first ones are."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F  # noqa: N812

        records = self._ordered()
        before = (
            Window.partitionBy("_k1", "_k2", "topic", "partition")
            .orderBy("offset")
            .rowsBetween(Window.unboundedPreceding, -1)
        )
        late = records.withColumn("_highest", F.max("_order").over(before)).where("_order < _highest")
        found = (
            late.groupBy("topic", "partition", F.pmod("offset", F.lit(_OFFSET_BUCKETS)))
            .agg(F.count(F.lit(1)).alias("count"), F.min("offset").alias("low"), F.max("offset").alias("high"))
            .collect()
        )
        places = {
            Record(row["topic"], row["partition"], offset) for row in found for offset in (row["low"], row["high"])
        }
        first = sorted(places, key=lambda place: (place.topic, place.partition, place.offset))[: self._examples]
        return sum(int(row["count"]) for row in found), first

    def _ordered(self) -> DataFrame:
        """The records that have a key and an order: key's hash, place and order."""
        from pyspark.sql import functions as F  # noqa: N812

        assert self._order is not None
        keys = [
            F.xxhash64("key").alias("_k1"),
            F.xxhash64(F.lit(1), "key").alias("_k2"),
        ]
        place = ["topic", "partition", "offset"]
        with_key = self._topic.where("key IS NOT NULL")
        order = F.expr(self._order)
        if (on_topic := _resolved(with_key, order)) is not None:
            records = on_topic.select(*keys, *place, "_order")
        elif (on_source := _resolved(self._source, order)) is not None:
            # Rows that are the same have one order: the lowest, for a copy is no disorder but a duplicate.
            orders = on_source.groupBy(_H1, _H2).agg(F.min("_order").alias("_order"))
            records = with_key.join(orders, [_H1, _H2]).select(*keys, *place, "_order")
        else:
            raise ConfigError(
                f"order is {self._order!r}; it may be an expression over the columns of the topic "
                f"({', '.join(_columns(self._topic))}) or of the source ({', '.join(_columns(self._source))})"
            )
        return records.where("_order IS NOT NULL")

    # -- examples ------------------------------------------------------------------------------

    def _chosen(self, counts: _Counts, late: Sequence[Record]) -> dict[str, tuple[Example, ...]]:
        """Both sides are read again for these, with a filter."""
        lost = counts.hashes("lost", self._examples)
        surplus = {kind: counts.hashes(kind, self._examples) for kind in ("duplicated", "unexpected")}
        found = {
            "lost": self._examples_of(self._source, lost, has_place=False),
            **{kind: self._examples_of(self._topic, hashes, has_place=True) for kind, hashes in surplus.items()},
            "out_of_order": self._late_examples(late),
        }
        return {kind: examples for kind, examples in found.items() if examples}

    def _examples_of(self, frame: DataFrame, hashes: Sequence[int], has_place: bool) -> tuple[Example, ...]:
        from pyspark.sql import Window
        from pyspark.sql import functions as F  # noqa: N812

        if not hashes:
            return ()
        place = ["topic", "partition", "offset"] if has_place else []
        matches = frame.where(F.col(_H1).isin([*hashes])).select(_H1, *_shown(frame), *place)
        first = Window.partitionBy(_H1).orderBy(*place or [_H1])
        rows = matches.withColumn("_number", F.row_number().over(first)).where(F.col("_number") <= PLACES_MAX)
        # Two rows whose first hash is the same by chance would be one example; that is no harm.
        found: dict[int, list[Row]] = {}
        for row in rows.sort(_H1, "_number").collect():
            found.setdefault(row[_H1], []).append(row)
        return tuple(
            Example(
                _text(copies[0]["key"]),
                _text(copies[0]["value"]),
                tuple(Record(*(row[name] for name in place)) for row in copies) if has_place else (),
            )
            for copies in found.values()
        )

    def _late_examples(self, late: Sequence[Record]) -> tuple[Example, ...]:
        from pyspark.sql import functions as F  # noqa: N812

        if not late:
            return ()
        assert self._order is not None
        ordered = _resolved(self._topic, F.expr(self._order))
        frame = self._topic.withColumn("_order", F.lit(None)) if ordered is None else ordered
        offsets = F.col("offset").isin([place.offset for place in late])
        rows = frame.where(offsets).select(*_shown(frame), "topic", "partition", "offset", "_order").collect()
        found = {Record(row["topic"], row["partition"], row["offset"]): row for row in rows}
        return tuple(
            Example(
                _text(found[place]["key"]),
                _text(found[place]["value"]),
                (place,),
                None if found[place]["_order"] is None else str(found[place]["_order"]),
            )
            for place in late
            if place in found
        )


class _Counts:
    """The summary of all hashes: rows by kind, and hashes to choose examples from."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    def rows(self, kind: str) -> int:
        return sum(int(row["sent"]) for row in self._of(kind))

    def held(self, kind: str) -> int:
        return sum(int(row["held"]) for row in self._of(kind))

    def hashes(self, kind: str, count: int) -> list[int]:
        return sorted({row[end] for row in self._of(kind) for end in ("low", "high")})[:count]

    def _of(self, kind: str) -> Iterable[Mapping[str, Any]]:
        return (row for row in self._rows if row["kind"] == kind)


def _hashed(frame: DataFrame, what: str, id: str | None) -> DataFrame:
    """The frame with two independent hashes of what makes a row the same as another."""
    from pyspark.sql import functions as F  # noqa: N812

    if id is not None:
        identity = F.expr(id).cast("string")
        try:
            frame.select(identity)
        except Exception as error:
            raise ConfigError(f"the id of {what}, {id!r}, makes no sense there: {explain(error)}") from error
        parts = [F.isnotnull(identity), identity]
    else:
        _check_comparable(frame, what)
        # A null leaves a hash as it is: without the flags (null, a) and (a, null) would be the same.
        key = F.col("key").cast("binary") if "key" in frame.columns else F.lit(None).cast("binary")
        value = F.col("value").cast("binary")
        parts = [F.isnotnull(key), key, F.isnotnull(value), value]
    return frame.withColumns({_H1: F.xxhash64(*parts), _H2: F.xxhash64(F.lit(1), *parts)})


def _check_comparable(frame: DataFrame, what: str) -> None:
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    if "value" not in kinds:
        raise ConfigError(
            f"{what} has no column value (it has {', '.join(kinds)}): make one with SQL, or compare by an id"
        )
    for name in ("key", "value"):
        if kinds.get(name, "binary") not in ("binary", "string"):
            raise ConfigError(f"column {name} of {what} is {kinds[name]}; it may be binary or string: cast it")


def _resolved(frame: DataFrame, order: Column) -> DataFrame | None:
    """The frame with its order, if it has the columns for it."""
    from pyspark.errors import AnalysisException

    try:
        return frame.withColumn("_order", order)
    except AnalysisException:
        return None


def _shown(frame: DataFrame) -> list[Column]:
    """The beginnings of key and value, as bytes."""
    from pyspark.sql import functions as F  # noqa: N812

    return [
        (F.substring(F.col(name).cast("binary"), 1, PREFIX_BYTES_MAX) if name in frame.columns else F.lit(None)).alias(
            name
        )
        for name in ("key", "value")
    ]


def _columns(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name not in (_H1, _H2)]


def _text(data: bytes | bytearray | None) -> str | None:
    """Bytes for people. A character that the cut has halved is left out."""
    if data is None:
        return None
    cut = bytes(data)
    if len(cut) == PREFIX_BYTES_MAX:
        for length in range(len(cut), len(cut) - 4, -1):
            try:
                return cut[:length].decode() + "…"
            except UnicodeDecodeError:
                continue
    return cut.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Record:
    """Where in a topic."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Example:
    """A row that is not as it should be."""

    key: str | None
    value: str | None
    """The beginning of it, as text; bytes that are none as \\xNN."""
    records: tuple[Record, ...] = ()
    order: str | None = None

    def to_json(self) -> dict[str, Any]:
        found = {**asdict(self), "records": [asdict(record) for record in self.records]}
        return {name: value for name, value in found.items() if value not in (None, [])}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit has found. It is true if source and topic are equal."""

    source_rows: int
    topic_rows: int
    matched: int
    lost: int
    duplicated: int
    unexpected: int
    out_of_order: int | None = None
    """None if no order was asked for."""
    examples: Mapping[str, tuple[Example, ...]] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        return not (self.lost or self.duplicated or self.unexpected or self.out_of_order)

    def __bool__(self) -> bool:
        return self.is_equal

    def to_json(self) -> dict[str, Any]:
        found = {name: value for name, value in asdict(self).items() if name != "examples" and value is not None}
        shown = {kind: [example.to_json() for example in examples] for kind, examples in self.examples.items()}
        return {"equal": self.is_equal, **found, "examples": shown}
