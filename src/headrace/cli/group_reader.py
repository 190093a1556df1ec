"""Reading records for `headrace consume --group`, as a member of the group.

topics or a pattern → Consumer.subscribe → poll → matching records → printed → committed

The offsets of printed records are committed every few seconds, before partitions move to another member, and at the
end.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby

import click

from headrace.cli.errors import CommandError
from headrace.cli.record_reader import STALL_SECONDS_MAX, MatchingRecords
from headrace.client.text_formats import RecordFilter
from headrace.consumer.consumer import Consumer
from headrace.consumer.rebalances import RebalanceListener
from headrace.errors import CommitFailedError, HeadraceError, TimedOutError, WakeupError
from headrace.types import TopicPartition
from headrace.wire.layout import ConsumerRecord, Record

POLL_SECONDS = 0.25
POLL_RECORDS_MAX = 5000
COMMIT_SECONDS = 5.0
TOPICS_SHOWN_MAX = 8
_LOG_APPEND_TIME = 1


class GroupReader(RebalanceListener):
    """Reads what the group assigns, to the ends of the partitions or for ever."""

    def __init__(self, consumer: Consumer, filters: Sequence[RecordFilter], *, follow: bool) -> None:
        self._consumer = consumer
        self._filters = filters
        self._is_following = follow
        self._is_assigned = False  # False while the group rebalances.
        self._ends: dict[TopicPartition, int] = {}  # When a partition was first assigned.
        self._printed: dict[TopicPartition, int] = {}  # The next offsets to print.
        self._unprinted: dict[TopicPartition, int] = {}  # Positions are beyond these, because the limit was reached.
        self._committed_at = time.monotonic()
        self._is_stopping = False
        self._read_count = 0
        self.matched_count = 0

    # -- reading -------------------------------------------------------------------------------

    def polls(self, count_max: int | None) -> Iterator[Iterator[MatchingRecords]]:
        """Yield the matching records of each poll, at most `count_max` in total."""
        try:
            yield from self._polls(count_max)
        except WakeupError:
            raise KeyboardInterrupt from None

    def _polls(self, count_max: int | None) -> Iterator[Iterator[MatchingRecords]]:
        progress_at, reached = time.monotonic(), -1
        while not self._is_limit_reached(count_max) and not self._is_finished():
            left = POLL_RECORDS_MAX if count_max is None else count_max - self.matched_count
            records = self._consumer.poll(POLL_SECONDS, min(left, POLL_RECORDS_MAX))
            yield (
                self._match(tp, list(some), count_max)
                for tp, some in groupby(records, key=lambda r: TopicPartition(r.topic, r.partition))
            )
            self._count_as_printed()
            if self._is_stopping:
                raise KeyboardInterrupt
            before, reached = reached, sum(self._consumer.positions().values())
            if records or reached != before:
                progress_at = time.monotonic()
            elif not self._is_following:
                self._check_progress(time.monotonic() - progress_at)

    def stop(self) -> None:
        """Make `polls` raise KeyboardInterrupt after the current poll. For signal handlers."""
        self._is_stopping = True
        self._consumer.wakeup()

    def _is_limit_reached(self, count_max: int | None) -> bool:
        return count_max is not None and self.matched_count >= count_max

    def _is_finished(self) -> bool:
        """Return whether all assigned partitions were read to their ends."""
        if self._is_following or not self._is_assigned:
            return False
        assigned = self._consumer.assignment()
        if new := assigned - self._ends.keys():
            self._ends |= self._consumer.end_offsets(new)
        positions = self._consumer.positions()
        return all(positions.get(tp, -1) >= self._ends[tp] for tp in assigned)

    def _check_progress(self, idle_seconds: float) -> None:
        if self._is_assigned and idle_seconds > STALL_SECONDS_MAX:
            raise TimedOutError(
                f"timed out after {STALL_SECONDS_MAX:g} s waiting for records before the ends of the partitions"
            )
        # The other members may take that long to join.
        join_seconds_max = self._consumer.settings.max_poll_interval_ms / 1000
        if idle_seconds > join_seconds_max:
            raise TimedOutError(f"timed out after {join_seconds_max:g} s waiting for the assignment of the group")

    def _match(self, tp: TopicPartition, records: list[ConsumerRecord], count_max: int | None) -> MatchingRecords:
        matching: list[Record] = []
        for record in records:
            if self._is_limit_reached(count_max):
                self._unprinted.setdefault(tp, record.offset)
                break
            self._read_count += 1
            if all(matches(record) for matches in self._filters):
                matching.append(Record(record.offset, record.timestamp, record.key, record.value, record.headers))
                self.matched_count += 1
        return MatchingRecords(tp, records[0].timestamp_type == _LOG_APPEND_TIME, matching)

    def empty_result_text(self) -> str:
        """Explain why nothing was printed."""
        if self._read_count:
            return f"no match in {self._read_count:,} records"
        names = self._consumer.assignment()
        if not names:
            return "no records: the group has assigned no partitions to this member"
        return f"no records: the group has read {_shown(names)} to the end"

    # -- commits -------------------------------------------------------------------------------

    def _count_as_printed(self) -> None:
        """Commit the records of the last poll with the next commit; every few seconds, this is one."""
        self._printed = self._consumer.positions() | self._unprinted
        if time.monotonic() - self._committed_at >= COMMIT_SECONDS:
            self._committed_at = time.monotonic()
            self._consumer.commit_async(self._owned())

    def commit(self) -> None:
        """Commit the offsets of the printed records."""
        self._consumer.clear_wakeup()
        try:
            self._consumer.commit(self._owned())
        except CommitFailedError as error:
            raise CommandError(f"the last records were printed, but {error}") from error

    def _owned(self) -> dict[TopicPartition, int]:
        """Return the printed offsets of partitions that have not moved to another member."""
        assigned = self._consumer.assignment()
        return {tp: offset for tp, offset in self._printed.items() if tp in assigned}

    # -- rebalances ----------------------------------------------------------------------------

    def on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._is_assigned = True
        total = self._consumer.assignment()
        more = f" ({len(total)} partitions in total)" if len(total) > len(partitions) else ""
        click.echo(f"note: assigned {_shown(partitions)}{more}", err=True)

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._is_assigned = False
        click.echo(f"note: revoked {_shown(partitions)}", err=True)
        try:
            self._consumer.commit(self._owned())
        except HeadraceError as error:
            click.echo(f"warning: another member will print the last records again: {error}", err=True)

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._is_assigned = False
        click.echo(
            f"warning: the group has removed this member, which loses {_shown(partitions)}: another member prints the "
            "records again that were printed since the last commit",
            err=True,
        )


def _shown(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions as text, those of a topic together: orders 0-3,5; payments 0."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        numbers[topic].append(number)
    parts = [f"{topic} {_ranges(some)}" for topic, some in list(numbers.items())[:TOPICS_SHOWN_MAX]]
    more = len(numbers) - len(parts)
    return ("; ".join(parts) or "no partitions") + (f" and {more} more topics" if more else "")


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as text, with ranges: 0-3,5."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
