"""Reading records for `headrace consume` without a group: ranges of partitions, and filters.

topics, partitions, range → PartitionRange → Fetcher → batches → matching records
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import click

from headrace.cli.errors import ResourceNotFoundError
from headrace.cli.offset_ranges import BoundKind, BoundRange
from headrace.cli.topic import partition_count
from headrace.client.admin.topics import TopicAdmin
from headrace.client.blocking import BlockingClient
from headrace.client.fetch_data import located
from headrace.client.fetcher import Fetcher
from headrace.client.text_formats import RecordFilter
from headrace.errors import TimedOutError, WireError
from headrace.types import TopicPartition
from headrace.wire.columns import OFFSET_MAX
from headrace.wire.layout import LOG_APPEND_TIME, Record
from headrace.wire.records import RecordBatch

POLL_MS = 250.0
STALL_SECONDS_MAX = 30.0
"""Without progress before the end of the range, after which the broker counts as lost."""
PARTITIONS_SHOWN_MAX = 8


class MatchingRecords(NamedTuple):
    """The records of a batch that match the filters."""

    partition: TopicPartition
    is_append_time: bool
    records: list[Record]


@dataclass(slots=True)
class PartitionRange:
    """The offsets to read from a partition."""

    begin: int
    until: int | None
    """None if the range has no end."""
    start: int
    end: int
    """The first offset and the end of the partition when the command began."""
    next_offset: int = field(init=False)

    def __post_init__(self) -> None:
        self.next_offset = self.begin

    @property
    def fetch_offset(self) -> int:
        """The first offset to fetch: an offset beyond the end cannot be fetched."""
        return min(self.begin, self.end)


def select_partitions(client: BlockingClient, topics: Iterable[str], numbers: set[int]) -> list[TopicPartition]:
    """Return all partitions of the topics, or those with the numbers."""
    partitions: list[TopicPartition] = []
    admin = TopicAdmin(client)
    for topic in dict.fromkeys(topics):
        count = partition_count(admin, topic)
        if missing := sorted(number for number in numbers if number >= count):
            raise ResourceNotFoundError(
                f"topic {topic!r} has no partition {missing[0]}; its partitions are 0 to {count - 1}"
            )
        partitions += [TopicPartition(topic, number) for number in sorted(numbers) or range(count)]
    return partitions


def resolve_ranges(
    fetcher: Fetcher, partitions: Sequence[TopicPartition], bounds: BoundRange, *, follow: bool
) -> dict[TopicPartition, PartitionRange]:
    """Resolve a range to offsets in each partition."""
    starts, ends = fetcher.beginning_offsets(partitions), fetcher.end_offsets(partitions)
    offsets_at_times: dict[TopicPartition, dict[int, int | None]] = {tp: {} for tp in partitions}
    for time_ms in bounds.times_ms:
        for tp, result in fetcher.offsets_for_times(dict.fromkeys(partitions, time_ms)).items():
            offsets_at_times[tp][time_ms] = result.offset if result.offset >= 0 else None
    ranges: dict[TopicPartition, PartitionRange] = {}
    for tp in partitions:
        begin, until = bounds.resolve(starts[tp], ends[tp], offsets_at_times[tp], follow=follow)
        if begin < starts[tp] and bounds.begin.kind is BoundKind.OFFSET:
            click.echo(f"note: {tp} begins at offset {starts[tp]}; earlier records were deleted", err=True)
        ranges[tp] = PartitionRange(max(begin, starts[tp]), until, starts[tp], ends[tp])
    return ranges


class RecordReader:
    """Reads partition ranges to their ends, or follows them."""

    def __init__(
        self, fetcher: Fetcher, ranges: dict[TopicPartition, PartitionRange], filters: Sequence[RecordFilter]
    ) -> None:
        self._fetcher = fetcher
        self._filters = filters
        self._ranges = ranges
        self._read_count = 0
        self.matched_count = 0
        self._is_limit_reached = False
        until = {tp: each.until for tp, each in ranges.items() if each.until is not None}
        fetcher.assign({tp: each.fetch_offset for tp, each in ranges.items()}, until, check=False)

    def polls(self, count_max: int | None) -> Iterator[Iterator[MatchingRecords]]:
        """Yield the matching records of each poll, at most `count_max` in total."""
        is_bounded = all(each.until is not None for each in self._ranges.values())
        progress_at, reached = time.monotonic(), -1
        while not self._fetcher.is_finished() and not self._is_limit_reached:
            batches = self._fetcher.poll_batches(POLL_MS)
            yield (self._match(tp, batch, count_max) for tp, some in batches.items() for batch in some)
            # Markers and aborted records are skipped: that is progress too.
            before, reached = reached, sum(map(self._fetcher.position, self._ranges))
            if reached != before:
                progress_at = time.monotonic()
            elif is_bounded and time.monotonic() - progress_at > STALL_SECONDS_MAX:
                raise TimedOutError(
                    f"timed out after {STALL_SECONDS_MAX:g} s waiting for records before the end of the range"
                )

    def _match(self, tp: TopicPartition, batch: RecordBatch, count_max: int | None) -> MatchingRecords:
        """Decode one batch and filter its records; record objects take much more memory than the batch."""
        range_, is_append_time = self._ranges[tp], bool(batch.header.attributes & LOG_APPEND_TIME)
        if self._is_limit_reached:
            return MatchingRecords(tp, is_append_time, [])
        try:
            records = batch.records()
        except WireError as error:
            raise located(error, tp, batch.header.base_offset) from None
        first, until = range_.next_offset, OFFSET_MAX if range_.until is None else range_.until
        records = [record for record in records if first <= record.offset < until]
        if not records:
            return MatchingRecords(tp, is_append_time, [])
        matching = [r for r in records if all(matches(r) for matches in self._filters)] if self._filters else records
        if count_max is not None and self.matched_count + len(matching) >= count_max:
            self._is_limit_reached = True
            matching = matching[: count_max - self.matched_count]
            records = [record for record in records if record.offset <= matching[-1].offset]
        range_.next_offset = records[-1].offset + 1
        self._read_count += len(records)
        self.matched_count += len(matching)
        return MatchingRecords(tp, is_append_time, matching)

    def empty_result_text(self) -> str:
        """Explain why nothing was printed."""
        parts = [
            f"{tp} offsets {each.begin} to {each.until}" if each.until is not None else f"{tp} from {each.begin}"
            for tp, each in list(self._ranges.items())[:PARTITIONS_SHOWN_MAX]
        ]
        more = len(self._ranges) - len(parts)
        ranges = ", ".join(parts) + (f" and {more} more partitions" if more > 0 else "")
        return f"no match in {self._read_count:,} records ({ranges})" if self._read_count else f"no records: {ranges}"
