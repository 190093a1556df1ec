"""The source: Spark's readers for batches and for streams.

    batch    options → Lookup: partitions, starts, ends → ranges → split → a RangePartition for each task → reading
    stream   initialOffset → latestOffset(start, limit) → partitions(start, end) → reading … → commit(end)

Everything except `read` runs on the driver; for a stream, in one process for the whole query. State that must survive
that process is in the offsets that Spark writes to the checkpoint: see planning.Position.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from headrace.errors import ConfigError, HeadraceError, UnsupportedVersionError
from headrace.spark.errors import PlanError
from headrace.spark.log_setup import log_context, set_up_log
from headrace.spark.lookup import Lookup, require
from headrace.spark.offset_specs import OffsetSpec
from headrace.spark.planning import (
    DataLossError,
    OffsetRange,
    Offsets,
    Position,
    limited,
    offset_count,
    recreated,
    report_data_loss,
    report_recreated,
    split,
)
from headrace.spark.python_process import prepare_process
from headrace.spark.read_columns import ReadColumns
from headrace.spark.shipping import Shipped
from headrace.spark.source_options import Mode, SourceOptions, check_columns, parse, warn_of_no_effect
from headrace.spark.source_progress import with_figures
from headrace.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.spark.read_columns import SchemasByField

# Spark 4.2 added read limits and Trigger.AvailableNow for Python sources; older versions get stand-ins.
try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:
    HAS_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]
        pass

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        pass

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        max_rows: int

    @dataclass
    class ReadMinRows(ReadLimit):  # type: ignore[no-redef]
        min_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


log = logging.getLogger("headrace")

NO_LIMIT = ReadAllAvailable()
NOWHERE = Position({})
NEWEST_SECONDS = 5.0
"""Between two look-ups of the newest timestamps, which are only shown."""


class BatchReader(Shipped, DataSourceReader):
    """Plans on the driver; Spark pickles it for the executors, which read."""

    def __init__(self, options: Mapping[str, str], schema: StructType, schemas: SchemasByField | None = None) -> None:
        """`schemas`: those of columns with a format, as they were when the DataFrame was created."""
        self._options = parse(options, Mode.BATCH)
        self._columns = _columns_of(self._options, schema, schemas)
        warn_of_no_effect(options, Mode.BATCH)

    def partitions(self) -> list[InputPartition]:
        lookup = Lookup(self._options)
        try:
            return [RangePartition(part) for part in plan(self._options, lookup)]
        finally:
            lookup.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._columns, partition)


class RangePartition(InputPartition):
    """The range of offsets that one task reads."""

    def __init__(self, whole: OffsetRange, schemas: SchemasByField | None = None) -> None:
        """`schemas`: of a topic that the query did not know when it was started."""
        super().__init__(whole)
        self.schemas = schemas


def _columns_of(options: SourceOptions, schema: StructType, schemas: SchemasByField | None) -> ReadColumns:
    """Return the columns that tasks return. Without `schemas`, they come from the schema registry."""
    names = check_columns(schema, options)
    if options.formats is None:
        return ReadColumns(names)
    from headrace.spark.typed_columns import find_schemas, typed_columns

    return ReadColumns(names, typed_columns(options, schema, find_schemas(options) if schemas is None else schemas))


def read_partition(options: SourceOptions, columns: ReadColumns, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition. If `partitions()` returns none, Spark passes an InputPartition without rows."""
    if isinstance(partition, RangePartition):
        from headrace.spark.reading import read_range  # imports Arrow, which planning does not need

        prepare_process()
        with log_context(source=partition.value):
            yield from read_range(options, columns.with_schemas(partition.schemas), partition.value)


def plan(options: SourceOptions, lookup: Lookup) -> list[OffsetRange]:
    """Return the ranges to read, one for each task."""
    subscribed = lookup.partitions()
    require(subscribed.missing)
    partitions = subscribed.partitions
    starts = lookup.resolve(options.starting, partitions, without_match=options.without_match)
    ends = lookup.resolve(options.ending, partitions)
    _check_order(options, starts, ends)
    bounds = lookup.earliest(partitions), lookup.latest(partitions)
    fail = options.fail_on_data_loss
    starts = within(options.starting, starts, *bounds, fail=fail)
    ends = within(options.ending, ends, *bounds, fail=fail)
    ranges = [OffsetRange(*tp, starts[tp], ends[tp], subscribed.topic_ids.get(tp.topic)) for tp in partitions]
    return split(ranges, options.min_partitions, options.max_records_per_partition)


def _check_order(options: SourceOptions, starts: Offsets, ends: Offsets) -> None:
    """Raise if an end offset is before the start. Two timestamps may resolve so in a partition without new records."""
    if options.starting.is_time or options.ending.is_time:
        return
    for tp, start in starts.items():
        if options.ending.is_explicit(tp) and start > ends[tp]:
            raise ConfigError(
                f"{options.ending.option} is {ends[tp]} for {tp}, which begins at {start}; it may be {start} or more"
            )


def within(
    spec: OffsetSpec,
    offsets: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    *,
    fail: bool,
) -> Offsets:
    """Return the offsets, moved into the partition if the user gave a number outside of it, which is data loss."""
    bounded = dict(offsets)
    for tp, offset in offsets.items():
        if spec.is_explicit(tp) and not earliest[tp] <= offset <= latest[tp]:
            report_data_loss(
                f"{spec.option} is {offset} for {tp}, which has offsets from {earliest[tp]} up to {latest[tp]}",
                fail=fail,
            )
            bounded[tp] = min(max(offset, earliest[tp]), latest[tp])
    return bounded


class StreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver, and connects on first use; Spark pickles it for the executors, which read."""

    def __init__(self, options: Mapping[str, str], schema: StructType, schemas: SchemasByField | None = None) -> None:
        """`schemas`: those of columns with a format, as they were when the DataFrame was created."""
        # Spark would hide an error of the constructor behind its own: it is raised by the first call.
        self._parsed: SourceOptions | HeadraceError
        self._columns = ReadColumns(())
        try:
            self._parsed = _checked(options)
            self._columns = _columns_of(self._parsed, schema, schemas)
        except (ConfigError, PlanError) as error:
            self._parsed = error
        self._given = dict(options)
        # The following are used on the driver only.
        self._lookup: Lookup | None = None
        self._initial: Position | None = None
        self._target: Position | None = None  # where Trigger.AvailableNow ends
        self._latest: Position | None = None  # as last seen
        self._end: Offsets = {}  # of the micro-batch that was planned last
        self._newest_ms: dict[str, int] = {}  # by topic
        self._newest_due = 0.0
        self._new_topics: dict[str, SchemasByField] = {}  # since the query was started
        self._has_warned = False  # of figures that cannot be made
        self._triggered_at = time.monotonic()
        self._committed: Offsets | None = None  # to the group of commit.offsets.group.id

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only the driver needs."""
        return {**self.__dict__, "_lookup": None, "_given": {}, "_new_topics": {}}

    @property
    def _options(self) -> SourceOptions:
        if isinstance(self._parsed, HeadraceError):
            raise self._parsed
        return self._parsed

    # -- where a micro-batch begins and ends ---------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        first = self._first()
        if not HAS_LIMITS:
            require(first.missing)  # Spark will not call latestOffset with this start
        return first.to_json()

    def _first(self) -> Position:
        """Return where a query without a checkpoint begins: the same for the lifetime of this process.

        Spark also calls this when it runs the first micro-batch again. What to read is then in the end of that
        micro-batch, so a missing topic is not an error yet.
        """
        if self._initial is None:
            options, lookup = self._options, self._connected()
            subscribed = lookup.partitions()
            if subscribed.missing:
                return Position({}, initial=True, missing=tuple(subscribed.missing))
            offsets = lookup.resolve(options.starting, subscribed.partitions, without_match=options.without_match)
            bounds = lookup.earliest(offsets), lookup.latest(offsets)
            offsets = within(options.starting, offsets, *bounds, fail=options.fail_on_data_loss)
            self._initial = Position(offsets, initial=True, topic_ids=subscribed.topic_ids)
        return self._initial

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit = NO_LIMIT
    ) -> dict[str, Any]:
        if start is None:
            return replace(self._available(NOWHERE), begin=self._begin_without_start()).to_json()
        position = Position.of_json(start)
        require(position.missing)
        if not position.initial:
            self._commit_to_group(position.offsets)
        available = self._available(position)
        ids = {**position.topic_ids, **available.topic_ids}  # a broker without topic ids does not remove known ones
        begin = position.without_topics({change.topic for change in recreated(position.topic_ids, ids)})
        end = self._limited(begin.offsets, available.offsets, limit)
        self._end = begin.offsets if end is None else end
        if position.initial:
            return Position(self._end, begin=begin.offsets, topic_ids=ids).to_json()
        # The same text tells Spark that there is nothing new. A checkpoint without topic ids gets them at once.
        if end is None or (end == position.offsets and ids == position.topic_ids):
            return start
        return Position(end, topic_ids=ids).to_json()

    def _begin_without_start(self) -> Offsets | None:
        """Return the beginning of a micro-batch for Spark 4.0 and 4.1, which call latestOffset without a start.

        It may be the first one: then its beginning, if that is `latest`, has to be looked up before its end.
        """
        if not self._options.starting.is_latest_anywhere:
            return None
        try:
            first = self._first()
            return None if first.missing else first.offsets
        except (ConfigError, DataLossError):
            return None  # after a restart, the starting offsets need not exist any more

    def _available(self, known: Position) -> Position:
        """Return the current end of all partitions; report those that do not exist any more."""
        fail = self._options.fail_on_data_loss
        if self._target is None:
            lookup = self._connected()
            subscribed = lookup.partitions()
            changed = recreated(known.topic_ids, subscribed.topic_ids)
            known = known.without_topics({change.topic for change in changed})
            available = self._latest = Position(
                lookup.latest(subscribed.partitions, known.offsets), topic_ids=subscribed.topic_ids
            )
        else:
            changed = recreated(known.topic_ids, self._target.topic_ids)
            known = known.without_topics({change.topic for change in changed})
            if known.initial:
                # The beginning was looked up after the end: it may be behind it, or in a newer partition.
                reached = {tp: max(at, self._target.offsets.get(tp, 0)) for tp, at in known.offsets.items()}
                self._target = replace(
                    self._target,
                    offsets=self._target.offsets | reached,
                    topic_ids={**known.topic_ids, **self._target.topic_ids},
                )
            available = self._target
        if fail:  # otherwise the planned micro-batch logs a warning
            report_recreated(changed, fail=fail)
        for tp in sorted(known.offsets.keys() - available.offsets.keys()):
            report_data_loss(f"{tp} does not exist any more; the stream was at offset {known.offsets[tp]}", fail=fail)
        return available

    def _limited(self, start: Offsets, available: Offsets, limit: ReadLimit) -> Offsets | None:
        """Return the end of the micro-batch under the limit; None if it should not start yet."""
        if isinstance(limit, ReadAllAvailable):
            return available
        options = self._options
        begin = {**self._begin_of_new(start, available), **start}
        least = limit.min_rows if isinstance(limit, ReadMinRows) else options.min_offsets_per_trigger
        # Trigger.AvailableNow must not wait for more records: it would never end.
        if least is not None and self._target is None and self._is_too_early(offset_count(begin, available), least):
            return None
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_offsets_per_trigger
        return available if most is None else limited(begin, available, most)

    def _is_too_early(self, count: int, least: int) -> bool:
        now = time.monotonic()
        if count < least and (now - self._triggered_at) * 1000 < self._options.max_trigger_delay_ms:
            return True
        self._triggered_at = now
        return False

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        lookup = self._connected()
        subscribed = lookup.partitions()
        self._target = self._latest = Position(lookup.latest(subscribed.partitions), topic_ids=subscribed.topic_ids)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return what Spark shows as `latestOffset` of the source; it is called after `latestOffset`."""
        if self._latest is None:
            return None
        try:
            self._look_up_newest(self._latest.offsets)
            figures: dict[str, Any] = with_figures(self._latest, self._options.name, self._end, self._newest_ms)
        except Exception:  # it would end the query, and every later run of it
            if not self._has_warned:
                log.warning("internal error: no lag in the progress of the query; please report it", exc_info=True)
                self._has_warned = True
            return self._latest.to_json()
        return figures

    def _look_up_newest(self, partitions: Offsets) -> None:
        now = time.monotonic()
        if now < self._newest_due:
            return
        self._newest_due = now + NEWEST_SECONDS
        try:
            self._newest_ms = self._connected().newest_ms(partitions)
        except UnsupportedVersionError:
            self._newest_due = math.inf
        except HeadraceError as error:
            log.debug("cannot look up the newest timestamps: %s", error)

    # -- what a micro-batch reads --------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ends = Position.of_json(end)
        begin = Position.of_json(start).until(ends)
        lookup, fail = self._connected(), self._options.fail_on_data_loss
        before = recreated(begin.topic_ids, ends.topic_ids)
        report_recreated(before, fail=fail)
        starts = begin.without_topics({change.topic for change in before}).offsets
        subscribed = lookup.partitions()
        since = recreated(ends.topic_ids, subscribed.topic_ids)
        for change in since:
            what = f"{change}, after a micro-batch of the deleted topic was planned"
            report_data_loss(what, fail=fail, instead="skip the rows of the deleted topic")
        offsets = ends.without_topics({change.topic for change in since}).offsets
        existing = set(subscribed.partitions)
        for tp in sorted(offsets.keys() - existing):
            if offsets[tp] > starts.get(tp, 0):
                what = f"{tp} does not exist any more; offsets {starts.get(tp, 0)} up to {offsets[tp]} were to be read"
                report_data_loss(what, fail=fail)
        nonempty = sorted(tp for tp in offsets.keys() & existing if starts.get(tp) != offsets[tp])
        earliest = lookup.earliest(nonempty)
        ranges = [
            OffsetRange(*tp, begin_offset, offsets[tp], subscribed.topic_ids.get(tp.topic))
            for tp in nonempty
            for begin_offset in [self._begin_of_range(tp, starts.get(tp), offsets[tp], earliest[tp])]
        ]
        parts = split(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        return [RangePartition(part, self._new_schemas(part.topic)) for part in parts]

    def _new_schemas(self, topic: str) -> SchemasByField | None:
        """Return the readers' schemas of a topic that the query did not know when it was started."""
        if all(column.has_schema(topic) for column in self._columns.typed.values()):
            return None
        from headrace.spark.typed_columns import schemas_of_new_topic

        if topic not in self._new_topics:
            self._new_topics[topic] = schemas_of_new_topic(self._options, topic, self._columns.typed)
        return self._new_topics[topic]

    def _begin_of_range(self, tp: TopicPartition, begin: int | None, end: int, earliest: int) -> int:
        """Return where to begin; report what was deleted."""
        fail = self._options.fail_on_data_loss
        if begin is None:
            if earliest > 0:
                report_data_loss(f"{tp} is new and begins at offset {earliest} instead of 0", fail=fail)
            return earliest
        if begin > end:
            what = f"{tp} ends at offset {end}, before {begin}, where the stream was: it was recreated or truncated"
            report_data_loss(what, fail=fail)
            return earliest
        if begin < earliest:
            what = f"{tp} begins at offset {earliest}; {begin} up to {end} were to be read"
            report_data_loss(what, fail=fail)
        return min(max(begin, earliest), end)

    def _begin_of_new(self, begin: Offsets, available: Offsets) -> Offsets:
        """Return the beginnings of partitions that are new to the stream: they are read from their first offset."""
        return self._connected().earliest(sorted(available.keys() - begin.keys()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._columns, partition)

    # -- after a micro-batch -------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """Commit offsets to the group. Spark calls this late; `latestOffset` has usually committed them before."""
        self._commit_to_group(Position.of_json(end).offsets)

    def _commit_to_group(self, done: Offsets) -> None:
        """Commit offsets for lag tools. A failure is only logged: the checkpoint has the offsets."""
        group_id = self._options.commit_group_id
        if group_id is None or done == self._committed:
            return
        try:
            self._connected().commit(group_id, done)
        except HeadraceError as error:
            log.warning("cannot commit offsets to group %r: %s", group_id, error)
        self._committed = done

    def stop(self) -> None:
        if self._lookup is not None:
            self._lookup.close()
            self._lookup = None

    def _connected(self) -> Lookup:
        if self._lookup is None:
            set_up_log()
            self._lookup = Lookup(self._options)
            warn_of_no_effect(self._given, Mode.STREAM)
        return self._lookup


def _checked(options: Mapping[str, str]) -> SourceOptions:
    parsed = parse(options, Mode.STREAM)
    if not HAS_LIMITS and (parsed.max_offsets_per_trigger, parsed.min_offsets_per_trigger) != (None, None):
        raise ConfigError("maxOffsetsPerTrigger and minOffsetsPerTrigger need Spark 4.2 or newer: leave them out")
    return parsed
