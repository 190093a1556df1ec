"""The audit: compares the rows of a source with the records of a topic.

    source ─┐                                                        ┌─ counts of lost, duplicated, unexpected
            ├─ 128-bit hash of key and value → count of each, by hash ┤
    topic ──┘                                                        └─ a few hashes of each kind → their rows

    topic → highest order so far of each key, by offset → records that come after a higher one: out of order

Rows are counted by hash in one shuffle of two numbers for each row, and only counts and a few examples come to the
driver, so the number of rows does not matter. If there is a difference, both sides are read again for the examples.

(The module is not named `audit`, because `headrace.spark.audit` is the function.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from headrace.errors import ConfigError
from headrace.spark.errors import SparkError, explain
from headrace.spark.pipeline_spec import FORMAT

EXAMPLES_DEFAULT = 10
EXAMPLES_MAX = 1000
PREFIX_BYTES_MAX = 64
"""How much of a key or value an example shows."""
RECORDS_MAX = 5
"""Records that an example lists: of a row with a million copies, the first ones."""
_BUCKETS = 1024
"""For each kind of difference, the lowest and highest hash of each bucket are kept, to choose examples from."""
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
    """Compare the rows of a source with the records of a topic, including how often each occurs.

    `topic` is a name (several with commas), read with `options` of the format headrace, or a DataFrame that was read
    with it. Rows are equal if their columns `key` and `value` are; or, with `id`, if that SQL expression has the same
    text on both sides (`source_id`: another expression for the source). `order` is an SQL expression over the columns
    of the topic, or of the source: records of one key in one partition are out of order where it decreases.
    """
    if not 0 <= examples <= EXAMPLES_MAX:
        raise ConfigError(f"examples is {examples}; it may be 0 to {EXAMPLES_MAX}")
    records = read_topic(source.sparkSession, topic, options or {}) if isinstance(topic, str) else topic
    try:
        comparison = _Comparison(source, records, id=id, source_id=source_id, order=order, examples=examples)
        return comparison.report()
    except ConfigError:
        raise
    except Exception as error:
        raise SparkError(f"the audit failed: {explain(error)}") from error


def read_topic(spark: SparkSession, topic: str, options: Mapping[str, object]) -> DataFrame:
    """Return all committed records of a topic, or of several with commas between them."""
    defaults = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    try:
        return spark.read.format(FORMAT).options(**defaults).options(**texts).load()
    except Exception as error:
        raise SparkError(f"cannot read topic {topic}: {explain(error)}") from error


class _Comparison:
    """One audit."""

    def __init__(
        self,
        source: DataFrame,
        topic: DataFrame,
        *,
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
        sent = {kind: counts.sent(kind) for kind in ("equal", "lost", "duplicated", "unexpected")}
        held = {kind: counts.held(kind) for kind in sent}
        out_of_order, late = (None, []) if self._order is None else self._out_of_order()
        report = AuditReport(
            source_rows=sum(sent.values()),
            topic_rows=sum(held.values()),
            matched=sent["equal"] + held["lost"] + sent["duplicated"],
            lost=sent["lost"] - held["lost"],
            duplicated=held["duplicated"] - sent["duplicated"],
            unexpected=held["unexpected"],
            out_of_order=out_of_order,
        )
        if report.is_equal or not self._examples:
            return report
        return replace(report, examples=self._choose_examples(counts, late))

    # -- lost, duplicated, unexpected ------------------------------------------------------------

    def _counts(self) -> _Counts:
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
        """Return how many records come after one of their key with a higher order, and the first ones."""
        records = self._ordered()
        before = (
            Window.partitionBy("_k1", "_k2", "topic", "partition")
            .orderBy("offset")
            .rowsBetween(Window.unboundedPreceding, -1)
        )
        late = records.withColumn("_highest", F.max("_order").over(before)).where("_order < _highest")
        buckets = (
            late.groupBy("topic", "partition", F.pmod("offset", F.lit(_OFFSET_BUCKETS)))
            .agg(F.count(F.lit(1)).alias("count"), F.min("offset").alias("low"), F.max("offset").alias("high"))
            .collect()
        )
        ends = {
            Record(row["topic"], row["partition"], offset) for row in buckets for offset in (row["low"], row["high"])
        }
        first = sorted(ends, key=lambda record: (record.topic, record.partition, record.offset))[: self._examples]
        return sum(int(row["count"]) for row in buckets), first

    def _ordered(self) -> DataFrame:
        """Return the records that have a key and an order: hash of the key, topic, partition, offset and order."""
        assert self._order is not None
        keys = [
            F.xxhash64("key").alias("_k1"),
            F.xxhash64(F.lit(1), "key").alias("_k2"),
        ]
        position = ["topic", "partition", "offset"]
        with_key = self._topic.where("key IS NOT NULL")
        order = F.expr(self._order)
        if (on_topic := _resolved(with_key, order)) is not None:
            records = on_topic.select(*keys, *position, "_order")
        elif (on_source := _resolved(self._source, order)) is not None:
            # Equal rows have one order, the lowest: a copy counts as a duplicate, not as out of order.
            orders = on_source.groupBy(_H1, _H2).agg(F.min("_order").alias("_order"))
            records = with_key.join(orders, [_H1, _H2]).select(*keys, *position, "_order")
        else:
            raise ConfigError(
                f"order is {self._order!r}; it may be an expression over the columns of the topic "
                f"({', '.join(_columns(self._topic))}) or of the source ({', '.join(_columns(self._source))})"
            )
        return records.where("_order IS NOT NULL")

    # -- examples ------------------------------------------------------------------------------

    def _choose_examples(self, counts: _Counts, late: Sequence[Record]) -> dict[str, tuple[Example, ...]]:
        """Return examples of each kind of difference; read both sides again with a filter."""
        lost = counts.hashes("lost", self._examples)
        surplus = {kind: counts.hashes(kind, self._examples) for kind in ("duplicated", "unexpected")}
        examples = {
            "lost": self._examples_of(self._source, lost, has_offsets=False),
            **{kind: self._examples_of(self._topic, hashes, has_offsets=True) for kind, hashes in surplus.items()},
            "out_of_order": self._late_examples(late),
        }
        return {kind: rows for kind, rows in examples.items() if rows}

    def _examples_of(self, frame: DataFrame, hashes: Sequence[int], has_offsets: bool) -> tuple[Example, ...]:
        if not hashes:
            return ()
        position = ["topic", "partition", "offset"] if has_offsets else []
        matches = frame.where(F.col(_H1).isin([*hashes])).select(_H1, *_shown(frame), *position)
        first = Window.partitionBy(_H1).orderBy(*position or [_H1])
        rows = matches.withColumn("_number", F.row_number().over(first)).where(F.col("_number") <= RECORDS_MAX)
        # Rows with the same first hash by chance become one example, which does no harm.
        by_hash: dict[int, list[Row]] = {}
        for row in rows.sort(_H1, "_number").collect():
            by_hash.setdefault(row[_H1], []).append(row)
        return tuple(
            Example(
                _text(copies[0]["key"]),
                _text(copies[0]["value"]),
                tuple(Record(*(row[name] for name in position)) for row in copies) if has_offsets else (),
            )
            for copies in by_hash.values()
        )

    def _late_examples(self, late: Sequence[Record]) -> tuple[Example, ...]:
        if not late:
            return ()
        assert self._order is not None
        ordered = _resolved(self._topic, F.expr(self._order))
        frame = self._topic.withColumn("_order", F.lit(None)) if ordered is None else ordered
        offsets = F.col("offset").isin([record.offset for record in late])
        rows = frame.where(offsets).select(*_shown(frame), "topic", "partition", "offset", "_order").collect()
        by_record = {Record(row["topic"], row["partition"], row["offset"]): row for row in rows}
        return tuple(
            Example(
                _text(by_record[record]["key"]),
                _text(by_record[record]["value"]),
                (record,),
                None if by_record[record]["_order"] is None else str(by_record[record]["_order"]),
            )
            for record in late
            if record in by_record
        )


class _Counts:
    """The counts of all hashes by kind of difference, and hashes to choose examples from."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    def sent(self, kind: str) -> int:
        return sum(int(row["sent"]) for row in self._of(kind))

    def held(self, kind: str) -> int:
        return sum(int(row["held"]) for row in self._of(kind))

    def hashes(self, kind: str, count: int) -> list[int]:
        return sorted({row[end] for row in self._of(kind) for end in ("low", "high")})[:count]

    def _of(self, kind: str) -> Iterable[Mapping[str, Any]]:
        return (row for row in self._rows if row["kind"] == kind)


def _hashed(frame: DataFrame, what: str, id: str | None) -> DataFrame:
    """Return the frame with two independent hashes of the id, or of key and value."""
    if id is not None:
        identity = F.expr(id).cast("string")
        try:
            frame.select(identity)
        except Exception as error:
            raise ConfigError(f"invalid id {id!r} for {what}: {explain(error)}") from error
        parts = [F.isnotnull(identity), identity]
    else:
        _check_comparable(frame, what)
        # xxhash64 skips nulls: without the flags, (null, a) and (a, null) would be equal.
        key = F.col("key").cast("binary") if "key" in frame.columns else F.lit(None).cast("binary")
        value = F.col("value").cast("binary")
        parts = [F.isnotnull(key), key, F.isnotnull(value), value]
    return frame.withColumns({_H1: F.xxhash64(*parts), _H2: F.xxhash64(F.lit(1), *parts)})


def _check_comparable(frame: DataFrame, what: str) -> None:
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    if "value" not in kinds:
        raise ConfigError(
            f"{what} has no column value (it has {', '.join(kinds)}): add one with SQL, or compare by an id"
        )
    for name in ("key", "value"):
        if kinds.get(name, "binary") not in ("binary", "string"):
            raise ConfigError(f"column {name} of {what} is {kinds[name]}; it may be binary or string: cast it")


def _resolved(frame: DataFrame, order: Column) -> DataFrame | None:
    """Return the frame with the order as a column; None if it lacks the columns for it."""
    try:
        return frame.withColumn("_order", order)
    except AnalysisException:
        return None


def _shown(frame: DataFrame) -> list[Column]:
    """Return columns with the first bytes of key and value."""
    return [
        (F.substring(F.col(name).cast("binary"), 1, PREFIX_BYTES_MAX) if name in frame.columns else F.lit(None)).alias(
            name
        )
        for name in ("key", "value")
    ]


def _columns(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name not in (_H1, _H2)]


def _text(data: bytes | bytearray | None) -> str | None:
    """Decode bytes for messages. A character that was cut in the middle is left out."""
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
    """The position of a record."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Example:
    """A row that differs."""

    key: str | None
    value: str | None
    """The first bytes, as text; bytes that are not UTF-8 as \\xNN."""
    records: tuple[Record, ...] = ()
    order: str | None = None

    def to_json(self) -> dict[str, Any]:
        fields = {**asdict(self), "records": [asdict(record) for record in self.records]}
        return {name: value for name, value in fields.items() if value not in (None, [])}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit. It is true if source and topic are equal."""

    source_rows: int
    topic_rows: int
    matched: int
    lost: int
    duplicated: int
    unexpected: int
    out_of_order: int | None = None
    """None without `order`."""
    examples: Mapping[str, tuple[Example, ...]] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        return not (self.lost or self.duplicated or self.unexpected or self.out_of_order)

    def __bool__(self) -> bool:
        return self.is_equal

    def to_json(self) -> dict[str, Any]:
        counts = {name: value for name, value in asdict(self).items() if name != "examples" and value is not None}
        examples = {kind: [example.to_json() for example in examples] for kind, examples in self.examples.items()}
        return {"equal": self.is_equal, **counts, "examples": examples}
