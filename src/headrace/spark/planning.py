"""Offsets and ranges of offsets: arithmetic only, no broker is asked here.

begin, end → ranges → split → one task each
begin, latest, a limit → limited → end of a micro-batch
offsets ↔ JSON, as Spark keeps them in the checkpoint
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from headrace.client.blocking import TopicPartition
from headrace.errors import HeadraceError

Offsets = dict[TopicPartition, int]
TopicIds = Mapping[str, str]
"""Topic ids (KIP-516) by topic, as UUIDs in text form."""
NO_IDS: TopicIds = MappingProxyType({})

INITIAL_KEY = "@initial"
BEGIN_KEY = "@begin"
TOPIC_IDS_KEY = "@topic-ids"
MISSING_KEY = "@missing"
"""No topic can be called so: these keys are free for what has to be remembered beside the offsets."""


class OffsetRange(NamedTuple):
    """Offsets of a partition from `start` up to, not including, `end`. Some of them may not be there."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None
    """Of the topic the range was planned for; None if the broker is too old to give topics ids."""

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} from {self.start} to {self.end}"


def split(ranges: Iterable[OffsetRange], parts_min: int | None, size_max: int | None) -> list[OffsetRange]:
    """Ranges no longer than `size_max`, and at least `parts_min` of them as far as there are offsets to share out."""
    found = [piece for whole in ranges if whole.size > 0 for piece in _pieces(whole, _count_for(whole, size_max))]
    if parts_min is None or len(found) >= parts_min:
        return found
    # What is too short for two parts stays whole, and the rest is shared out among the long ones in proportion.
    total = sum(piece.size for piece in found)
    long = [piece for piece in found if _share(piece, total, parts_min) > 1]
    long_total, long_parts = sum(piece.size for piece in long), max(1, parts_min - (len(found) - len(long)))
    return [
        part
        for piece in found
        for part in _pieces(piece, _share(piece, long_total, long_parts) if piece in long else 1)
    ]


def _count_for(whole: OffsetRange, size_max: int | None) -> int:
    return 1 if size_max is None else math.ceil(whole.size / size_max)


def _share(piece: OffsetRange, total: int, parts: int) -> int:
    return min(piece.size, max(1, round(piece.size / total * parts)))


def _pieces(whole: OffsetRange, count: int) -> list[OffsetRange]:
    """`count` ranges of sizes that differ by one at most."""
    cuts = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [whole._replace(start=start, end=end) for start, end in itertools.pairwise(cuts)]


def limited(begin: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], offsets_max: int) -> Offsets:
    """Ends for about `offsets_max` offsets, shared out by what each partition has. None that has something starves."""
    sizes = {tp: max(0, end - begin.get(tp, end)) for tp, end in latest.items()}
    total = sum(sizes.values())
    if total <= offsets_max:
        return dict(latest)
    shares = {tp: offsets_max * size / total for tp, size in sizes.items()}
    # begin.get: a partition whose end lies before its beginning is left as it is, to be dealt with as a loss.
    return {
        tp: begin[tp] + min(size, math.ceil(share) if (share := shares[tp]) < 1 else math.floor(share))
        if (size := sizes[tp])
        else latest[tp]
        for tp in latest
    }


def offset_count(begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    return sum(max(0, offset - begin.get(tp, offset)) for tp, offset in end.items())


class Position(NamedTuple):
    """Where a stream is, as Spark's checkpoint has it: `{"topic": {"0": 5}}`.

    Spark keeps the end of the first micro-batch but not its beginning, and after a crash it asks for the beginning
    again. `latest` would then be another one. Hence that end carries the beginning it was planned with (`begin`), which
    replaces a beginning that was only asked for (`initial`).

    Offsets say nothing about a topic of the same name that was created later. Hence the ids of the topics
    (`"@topic-ids": {"topic": "uuid"}`). Checkpoints of older versions and of brokers before 2.8 have none.
    """

    offsets: Offsets
    initial: bool = False
    begin: Offsets | None = None
    topic_ids: TopicIds = NO_IDS
    missing: tuple[str, ...] = ()
    """Topics that did not exist when a beginning was asked for; a new query refuses to start without them."""

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = _nested(self.offsets)
        if self.initial:
            found[INITIAL_KEY] = True
        if self.begin is not None:
            found[BEGIN_KEY] = _nested(self.begin)
        topics = {tp.topic for tp in self.offsets}
        if ids := {topic: self.topic_ids[topic] for topic in sorted(topics & self.topic_ids.keys())}:
            found[TOPIC_IDS_KEY] = ids
        if self.missing:
            found[MISSING_KEY] = list(self.missing)
        return found

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Position:
        topics = {topic: numbers for topic, numbers in found.items() if not topic.startswith("@")}
        begin = found.get(BEGIN_KEY)
        return cls(
            _flat(topics),
            bool(found.get(INITIAL_KEY)),
            None if begin is None else _flat(begin),
            found.get(TOPIC_IDS_KEY, NO_IDS),
            tuple(found.get(MISSING_KEY, ())),
        )

    def until(self, end: Position) -> Position:
        """The position at which a micro-batch from here to `end` begins."""
        return Position(end.begin, topic_ids=end.topic_ids) if self.initial and end.begin is not None else self

    def without_topics(self, topics: Collection[str]) -> Position:
        """This position as if it knew nothing of these topics."""
        return self._replace(offsets={tp: offset for tp, offset in self.offsets.items() if tp.topic not in topics})


class Recreated(NamedTuple):
    """A topic that was deleted and created again under the same name."""

    topic: str
    old_id: str
    new_id: str

    def __str__(self) -> str:
        return f"topic {self.topic!r} was recreated: its id was {self.old_id} and is now {self.new_id}"


def recreated(known: TopicIds, current: TopicIds) -> list[Recreated]:
    """Topics that have another id than they had. Without one of the two ids nothing can be said of a topic."""
    both = sorted(known.keys() & current.keys())
    return [Recreated(topic, known[topic], current[topic]) for topic in both if known[topic] != current[topic]]


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """In order of topics and partitions: Spark compares the texts."""
    found: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def _flat(topics: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        TopicPartition(topic, int(number)): offset
        for topic, numbers in topics.items()
        for number, offset in numbers.items()
    }


class Behind(NamedTuple):
    """How many offsets the partitions of a stream are behind: the figures of Spark's own source."""

    least: int
    most: int
    average: float


def offsets_behind(end: Mapping[str, Any], latest: Mapping[str, Any]) -> Behind | None:
    """From the `endOffset` and the `latestOffset` in the progress of a source; None if there is no partition."""
    reached = Position.of_json(end).offsets
    behind = [max(0, offset - reached.get(tp, 0)) for tp, offset in Position.of_json(latest).offsets.items()]
    return Behind(min(behind), max(behind), sum(behind) / len(behind)) if behind else None


log = logging.getLogger("headrace")


class DataLossError(HeadraceError):
    """Rows have gone before they were read, or a topic is not the one it was."""


def report_data_loss(what: str, *, fail: bool, instead: str = "go on with what is there") -> None:
    """Fail, or warn and do something else `instead`. `what` names topic, partition and offsets."""
    if fail:
        raise DataLossError(
            f"{what}. Rows may be missing: find out whether that matters; to {instead}, set failOnDataLoss to false"
        )
    log.warning("%s; failOnDataLoss is false, so the query will %s", what, instead)


def report_recreated(topics: Iterable[Recreated], *, fail: bool) -> None:
    """Fail, or warn that the new topic is read from its beginning."""
    for topic in topics:
        what = f"{topic}. The offsets of the checkpoint belong to the topic that was deleted"
        report_data_loss(what, fail=fail, instead="read the new topic from its earliest offset")
