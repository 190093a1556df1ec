"""Reading in a batch: what is there between two offsets of each partition.

options → Lookup: partitions, starts, ends → ranges → split → a RangePartition a task → reading
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from headrace.client.blocking import TopicPartition
from headrace.errors import ConfigError, HeadraceError
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
from headrace.spark.source_options import Mode, SourceOptions, check_columns, parse, warn_of_no_effect

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class BatchReader(DataSourceReader):
    """Plans on the driver, and travels to the executors to read there."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse(options, Mode.BATCH)
        self._columns = check_columns(schema)
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
    """What one task reads."""

    def __init__(self, whole: OffsetRange) -> None:
        super().__init__(whole)


def read_partition(
    options: SourceOptions, columns: tuple[str, ...], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition of `partitions()`. Spark makes one of its own if that gave none: it has no rows."""
    if isinstance(partition, RangePartition):
        from headrace.spark.reading import read_range  # Arrow takes its time to be imported; planning does without

        yield from read_range(options, columns, partition.value)


def plan(options: SourceOptions, lookup: Lookup) -> list[OffsetRange]:
    """The ranges to read, one a task."""
    found = lookup.find()
    require(found.missing)
    partitions = found.partitions
    starts = lookup.resolve(options.starting, partitions, without_match=options.without_match)
    ends = lookup.resolve(options.ending, partitions)
    _check_order(options, starts, ends)
    bounds = lookup.earliest(partitions), lookup.latest(partitions)
    fail = options.fail_on_data_loss
    starts = within(options.starting, starts, *bounds, fail=fail)
    ends = within(options.ending, ends, *bounds, fail=fail)
    ranges = [OffsetRange(*tp, starts[tp], ends[tp], found.topic_ids.get(tp.topic)) for tp in partitions]
    return split(ranges, options.min_partitions, options.max_records_per_partition)


def _check_order(options: SourceOptions, starts: Offsets, ends: Offsets) -> None:
    """Two offsets in the wrong order are a mistake; two times may well be so, where a partition has gone quiet."""
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
    """The offsets, where a user gave numbers, brought into what the partitions have; that is a loss."""
    found = dict(offsets)
    for tp, offset in offsets.items():
        if spec.is_explicit(tp) and not earliest[tp] <= offset <= latest[tp]:
            report_data_loss(
                f"{spec.option} is {offset} for {tp}, which has offsets from {earliest[tp]} up to {latest[tp]}",
                fail=fail,
            )
            found[tp] = min(max(offset, earliest[tp]), latest[tp])
    return found


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


__all__ = ["HAS_LIMITS", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "ReadMinRows", "SupportsTriggerAvailableNow"]


log = logging.getLogger("headrace")

NO_LIMIT = ReadAllAvailable()
NOWHERE = Position({})


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver, and travels to the executors to read there: it connects only when it is asked something."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        # What is raised here Spark buries under an error of its own: it is kept for the first question.
        self._parsed: SourceOptions | ConfigError
        self._columns: tuple[str, ...] = ()
        try:
            self._parsed = _checked(options)
            self._columns = check_columns(schema)
        except ConfigError as error:
            self._parsed = error
        self._given = dict(options)
        # Driver only, all of these.
        self._lookup: Lookup | None = None
        self._initial: Position | None = None
        self._target: Position | None = None  # where Trigger.AvailableNow ends
        self._latest: Position | None = None  # as last seen
        self._triggered_at = time.monotonic()
        self._told: Offsets | None = None  # the group of commit.offsets.group.id

    def __getstate__(self) -> dict[str, Any]:
        """For the executors, who need no connection of the driver's."""
        return {**self.__dict__, "_lookup": None, "_given": {}}

    @property
    def _options(self) -> SourceOptions:
        if isinstance(self._parsed, ConfigError):
            raise self._parsed
        return self._parsed

    # -- where a micro-batch begins and ends ---------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        first = self._first()
        if not HAS_LIMITS:
            require(first.missing)  # nobody will ask where the micro-batch from here ends
        return first.to_json()

    def _first(self) -> Position:
        """Where a query without a checkpoint begins: the same for as long as this process lives.

        Spark also asks for it when it runs the first micro-batch again. What was to be read then is in the end of that
        micro-batch, so a topic that is gone is no error yet.
        """
        if self._initial is None:
            options, lookup = self._options, self._asking()
            found = lookup.find()
            if found.missing:
                return Position({}, initial=True, missing=tuple(found.missing))
            offsets = lookup.resolve(options.starting, found.partitions, without_match=options.without_match)
            bounds = lookup.earliest(offsets), lookup.latest(offsets)
            offsets = within(options.starting, offsets, *bounds, fail=options.fail_on_data_loss)
            self._initial = Position(offsets, initial=True, topic_ids=found.topic_ids)
        return self._initial

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit = NO_LIMIT
    ) -> dict[str, Any]:
        if start is None:
            return self._available(NOWHERE)._replace(begin=self._begin_unasked()).to_json()
        position = Position.of_json(start)
        require(position.missing)
        if not position.initial:
            self._tell_group(position.offsets)
        available = self._available(position)
        ids = {**position.topic_ids, **available.topic_ids}  # a broker that gives no ids takes none away
        begin = position.without_topics({one.topic for one in recreated(position.topic_ids, ids)})
        end = self._limited(begin.offsets, available.offsets, limit)
        if position.initial:
            return Position(begin.offsets if end is None else end, begin=begin.offsets, topic_ids=ids).to_json()
        # The very same text tells Spark that there is nothing new. A checkpoint without ids gets them at once.
        if end is None or (end == position.offsets and ids == position.topic_ids):
            return start
        return Position(end, topic_ids=ids).to_json()

    def _begin_unasked(self) -> Offsets | None:
        """Spark 4.0 and 4.1 ask for the end first, and do not say where a micro-batch begins.

        It may be the first one: then its beginning, if that is the latest, has to come before its end.
        """
        if not self._options.starting.is_latest_anywhere:
            return None
        try:
            first = self._first()
            return None if first.missing else first.offsets
        except (ConfigError, DataLossError):
            return None  # it may also be one after a restart, when starting offsets need not fit any more

    def _available(self, known: Position) -> Position:
        """How far one could read now; what is gone is left out."""
        fail = self._options.fail_on_data_loss
        if self._target is None:
            lookup = self._asking()
            found = lookup.find()
            changed = recreated(known.topic_ids, found.topic_ids)
            known = known.without_topics({one.topic for one in changed})
            available = self._latest = Position(
                lookup.latest(found.partitions, known.offsets), topic_ids=found.topic_ids
            )
        else:
            changed = recreated(known.topic_ids, self._target.topic_ids)
            known = known.without_topics({one.topic for one in changed})
            if known.initial:
                # The beginning was looked up after the end, and may lie behind it, or in a partition newer than it.
                reached = {tp: max(at, self._target.offsets.get(tp, 0)) for tp, at in known.offsets.items()}
                self._target = self._target._replace(
                    offsets=self._target.offsets | reached, topic_ids={**known.topic_ids, **self._target.topic_ids}
                )
            available = self._target
        if fail:  # else the planned micro-batch warns
            report_recreated(changed, fail=fail)
        for tp in sorted(known.offsets.keys() - available.offsets.keys()):
            report_data_loss(f"{tp} is gone; the stream was at offset {known.offsets[tp]}", fail=fail)
        return available

    def _limited(self, start: Offsets, available: Offsets, limit: ReadLimit) -> Offsets | None:
        """`available`, less what the limit leaves for later; None if there is to be no micro-batch yet."""
        if isinstance(limit, ReadAllAvailable):
            return available
        options = self._options
        begin = {**self._begin_of_new(start, available), **start}
        least = limit.min_rows if isinstance(limit, ReadMinRows) else options.min_offsets_per_trigger
        # The end of Trigger.AvailableNow would never come if it waited for more.
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
        lookup = self._asking()
        found = lookup.find()
        self._target = self._latest = Position(lookup.latest(found.partitions), topic_ids=found.topic_ids)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return None if self._latest is None else self._latest.to_json()

    # -- what a micro-batch reads --------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ends = Position.of_json(end)
        begin = Position.of_json(start).until(ends)
        lookup, fail = self._asking(), self._options.fail_on_data_loss
        before = recreated(begin.topic_ids, ends.topic_ids)
        report_recreated(before, fail=fail)
        starts = begin.without_topics({one.topic for one in before}).offsets
        found = lookup.find()
        since = recreated(ends.topic_ids, found.topic_ids)
        for one in since:
            what = f"{one}, after a micro-batch of the deleted topic was planned"
            report_data_loss(what, fail=fail, instead="leave the rows of the deleted topic out")
        offsets = ends.without_topics({one.topic for one in since}).offsets
        there = set(found.partitions)
        for tp in sorted(offsets.keys() - there):
            if offsets[tp] > starts.get(tp, 0):
                what = f"{tp} is gone; offsets {starts.get(tp, 0)} up to {offsets[tp]} were to be read"
                report_data_loss(what, fail=fail)
        wanted = sorted(tp for tp in offsets.keys() & there if starts.get(tp) != offsets[tp])
        earliest = lookup.earliest(wanted)
        ranges = [
            OffsetRange(*tp, begin_offset, offsets[tp], found.topic_ids.get(tp.topic))
            for tp in wanted
            for begin_offset in [self._begin_of_range(tp, starts.get(tp), offsets[tp], earliest[tp])]
        ]
        parts = split(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        return [RangePartition(part) for part in parts]

    def _begin_of_range(self, tp: TopicPartition, begin: int | None, end: int, earliest: int) -> int:
        """Where to begin, given what is left of the partition."""
        fail = self._options.fail_on_data_loss
        if begin is None:
            if earliest > 0:
                report_data_loss(f"{tp} is new and begins at offset {earliest} instead of 0", fail=fail)
            return earliest
        if begin > end:
            what = f"{tp} ends at offset {end}, before {begin}, where the stream was: it was made anew or cut"
            report_data_loss(what, fail=fail)
            return earliest
        if begin < earliest:
            what = f"{tp} begins at offset {earliest}; {begin} up to {end} were to be read"
            report_data_loss(what, fail=fail)
        return min(max(begin, earliest), end)

    def _begin_of_new(self, begin: Offsets, available: Offsets) -> Offsets:
        """Partitions that the stream has not seen yet are read from their beginning."""
        return self._asking().earliest(sorted(available.keys() - begin.keys()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._columns, partition)

    # -- after a micro-batch -------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """Spark says it when it plans the micro-batch after the next; the start of the next one tells earlier."""
        self._tell_group(Position.of_json(end).offsets)

    def _tell_group(self, done: Offsets) -> None:
        """Commit offsets for lag tools. The checkpoint has them already: if it fails, that is no reason to stop."""
        group_id = self._options.commit_group_id
        if group_id is None or done == self._told:
            return
        try:
            self._asking().commit(group_id, done)
        except HeadraceError as error:
            log.warning("offsets were not committed to group %r: %s", group_id, error)
        self._told = done

    def stop(self) -> None:
        if self._lookup is not None:
            self._lookup.close()
            self._lookup = None

    def _asking(self) -> Lookup:
        if self._lookup is None:
            self._lookup = Lookup(self._options)
            warn_of_no_effect(self._given, Mode.STREAM)
        return self._lookup


def _checked(options: Mapping[str, str]) -> SourceOptions:
    parsed = parse(options, Mode.STREAM)
    if not HAS_LIMITS and (parsed.max_offsets_per_trigger, parsed.min_offsets_per_trigger) != (None, None):
        raise ConfigError("maxOffsetsPerTrigger and minOffsetsPerTrigger need Spark 4.2 or newer: leave them out")
    return parsed
