"""Reading in a batch: what is there between two offsets of each partition.

options → Lookup: partitions, starts, ends → ranges → split → a RangePartition a task → reading
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.errors import ConfigError
from headrace.spark import data_loss
from headrace.spark.lookup import Lookup, require
from headrace.spark.offset_specs import OffsetSpec
from headrace.spark.planning import OffsetRange, Offsets, split
from headrace.spark.source_options import Mode, SourceOptions, check_columns, parse, warn_of_no_effect
from headrace.types import TopicPartition

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
            data_loss.report(
                f"{spec.option} is {offset} for {tp}, which has offsets from {earliest[tp]} up to {latest[tp]}",
                fail=fail,
            )
            found[tp] = min(max(offset, earliest[tp]), latest[tp])
    return found
