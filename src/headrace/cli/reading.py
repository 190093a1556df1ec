"""Records on their way out of topics: from here to there, filtered, counted, and committed for a group.

topics, partitions, range → spans → Fetcher → batches → records that match → printed → committed
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import click

from headrace.cli.filters import Matches
from headrace.cli.offset_ranges import Kind, OffsetRange, resolved
from headrace.cli.output import CommandError, NotFoundError
from headrace.cli.topic import with_topic
from headrace.client.admin.groups import GroupAdmin
from headrace.client.admin.topics import TopicAdmin
from headrace.client.blocking import BlockingClient
from headrace.client.fetch_data import located
from headrace.client.fetcher import Fetcher
from headrace.errors import Code, HeadraceError, TimedOutError, WireError
from headrace.types import TopicPartition
from headrace.wire.columns import OFFSET_MAX
from headrace.wire.layout import LOG_APPEND_TIME, Record
from headrace.wire.records import RecordBatch

POLL_MS = 250.0
STALL_SECONDS_MAX = 30.0
"""Without a record, and without having come to the end: then the broker is gone for good."""
COMMIT_SECONDS = 5.0
PARTITIONS_TOLD_MAX = 8
_NO_MEMBERS = ("", "Empty", "Dead")


class Found(NamedTuple):
    """Records of a batch that match."""

    partition: TopicPartition
    is_append_time: bool
    records: list[Record]


@dataclass(slots=True)
class Span:
    """What is to be read of a partition."""

    begin: int
    until: int | None
    """None: whatever comes."""
    start: int
    end: int
    """What the partition had when it was asked."""
    next_offset: int = field(init=False)

    def __post_init__(self) -> None:
        self.next_offset = self.begin

    @property
    def first_fetch(self) -> int:
        """Where to begin to fetch: an offset that is still to come cannot be asked for."""
        return min(self.begin, self.end)


def partitions_of(client: BlockingClient, topics: Iterable[str], numbers: set[int]) -> list[TopicPartition]:
    """All partitions of the topics, or those with the numbers."""
    found: list[TopicPartition] = []
    admin = TopicAdmin(client)
    for topic in dict.fromkeys(topics):
        count = with_topic(admin, topic)
        if missing := sorted(number for number in numbers if number >= count):
            raise NotFoundError(f"topic {topic!r} has {count} partitions, from 0 on, and none with number {missing[0]}")
        found += [TopicPartition(topic, number) for number in sorted(numbers) or range(count)]
    return found


def spans_of(
    fetcher: Fetcher, partitions: Sequence[TopicPartition], wanted: OffsetRange, *, follow: bool
) -> dict[TopicPartition, Span]:
    """What a range comes to in each partition."""
    starts, ends = fetcher.beginning_offsets(partitions), fetcher.end_offsets(partitions)
    at_times: dict[TopicPartition, dict[int, int | None]] = {tp: {} for tp in partitions}
    for time_ms in wanted.times_ms:
        for tp, found in fetcher.offsets_for_times(dict.fromkeys(partitions, time_ms)).items():
            at_times[tp][time_ms] = found.offset if found.offset >= 0 else None
    spans: dict[TopicPartition, Span] = {}
    for tp in partitions:
        begin, until = resolved(wanted, starts[tp], ends[tp], at_times[tp], follow=follow)
        if begin < starts[tp] and wanted.begin.kind is Kind.OFFSET:
            click.echo(f"note: {tp} begins at offset {starts[tp]}; what was before is deleted", err=True)
        spans[tp] = Span(max(begin, starts[tp]), until, starts[tp], ends[tp])
    return spans


class Reading:
    """Reads spans to their ends, or for as long as there is more to come."""

    def __init__(self, fetcher: Fetcher, spans: dict[TopicPartition, Span], matches: Sequence[Matches]) -> None:
        self._fetcher = fetcher
        self._matches = matches
        self.spans = spans
        self.read = 0
        self.matched = 0
        self._is_cut = False  # enough was read, and what was fetched is not all handed out
        until = {tp: span.until for tp, span in spans.items() if span.until is not None}
        fetcher.assign({tp: span.first_fetch for tp, span in spans.items()}, until, check=False)

    def polls(self, count_max: int | None) -> Iterator[Iterator[Found]]:
        """Records that match, as they come, to be taken poll by poll; `count_max` of them at most."""
        is_bounded = all(span.until is not None for span in self.spans.values())
        moved_at, reached = time.monotonic(), -1
        while not self._fetcher.is_finished() and not self._is_cut:
            batches = self._fetcher.poll_batches(POLL_MS)
            yield (self._take(tp, batch, count_max) for tp, some in batches.items() for batch in some)
            # Something may be passed over that nobody is to see: that is progress too.
            before, reached = reached, sum(map(self._fetcher.position, self.spans))
            if reached != before:
                moved_at = time.monotonic()
            elif is_bounded and time.monotonic() - moved_at > STALL_SECONDS_MAX:
                raise TimedOutError(f"nothing came for {STALL_SECONDS_MAX:g} s, and the end is not reached")

    def _take(self, tp: TopicPartition, batch: RecordBatch, count_max: int | None) -> Found:
        """The records of a batch that are to be seen; one batch at a time, for as objects they take much more room."""
        span, is_append_time = self.spans[tp], bool(batch.header.attributes & LOG_APPEND_TIME)
        if self._is_cut:
            return Found(tp, is_append_time, [])
        try:
            records = batch.records()
        except WireError as error:
            raise located(error, tp, batch.header.base_offset) from None
        first, until = span.next_offset, OFFSET_MAX if span.until is None else span.until
        records = [record for record in records if first <= record.offset < until]
        if not records:
            return Found(tp, is_append_time, [])
        seen = [r for r in records if all(matches(r) for matches in self._matches)] if self._matches else records
        if count_max is not None and self.matched + len(seen) >= count_max:
            self._is_cut = True
            seen = seen[: count_max - self.matched]
            records = [record for record in records if record.offset <= seen[-1].offset]
        span.next_offset = records[-1].offset + 1
        self.read += len(records)
        self.matched += len(seen)
        return Found(tp, is_append_time, seen)

    def positions(self) -> dict[TopicPartition, int]:
        """Where to read on: after the last record that was handed out, and after what nobody is to see behind it."""
        return {
            tp: span.next_offset if self._is_cut else max(span.next_offset, self._fetcher.position(tp))
            for tp, span in self.spans.items()
        }

    def nothing_matched(self) -> str:
        """Why nothing was printed."""
        parts = [
            f"{tp} offsets {span.begin} to {span.until}" if span.until is not None else f"{tp} from {span.begin} on"
            for tp, span in list(self.spans.items())[:PARTITIONS_TOLD_MAX]
        ]
        more = len(self.spans) - len(parts)
        where = ", ".join(parts) + (f" and {more} partitions more" if more > 0 else "")
        return f"read {self.read:,} records ({where}), and none matched" if self.read else f"nothing to read: {where}"


class GroupOffsets:
    """What a group has committed: where to begin, and what to commit after it was printed."""

    def __init__(self, client: BlockingClient, group: str) -> None:
        self._admin = GroupAdmin(client)
        self._group = group
        self._committed_at = time.monotonic()
        self._done: dict[TopicPartition, int] = {}
        self._check_no_members()

    def _check_no_members(self) -> None:
        listed = {one.group_id: one for one in self._admin.list_groups()}
        if self._group in listed and listed[self._group].state not in _NO_MEMBERS:
            raise CommandError(
                f"group {self._group!r} has members (it is {listed[self._group].state}), and what is committed beside "
                f"them would be lost or make them skip records: stop them, or use another --group"
            )

    def begin(self, spans: dict[TopicPartition, Span]) -> None:
        """Move the spans to what was committed; where nothing was, they stay as they are."""
        for tp, committed in self._admin.list_group_offsets(self._group, spans).items():
            span = spans[tp]
            span.begin = span.next_offset = max(committed.offset, span.start)
            self._done[tp] = committed.offset

    def commit(self, positions: dict[TopicPartition, int], *, now: bool) -> None:
        """Commit what has changed, from time to time, or now."""
        changed = {tp: offset for tp, offset in positions.items() if self._done.get(tp) != offset}
        if not changed or not (now or time.monotonic() - self._committed_at >= COMMIT_SECONDS):
            return
        try:
            self._admin.alter_group_offsets(self._group, changed)
        except HeadraceError as error:
            if getattr(error, "code", None) == Code.UNKNOWN_MEMBER_ID:
                raise CommandError(
                    f"group {self._group!r} has got members meanwhile: what was printed last is not committed"
                ) from error
            raise
        self._done |= changed
        self._committed_at = time.monotonic()
