"""Rules for reads and logs: offsets keep their values, readers go forwards without gaps, replicas are equal."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from headrace.types import TopicPartition
from headrace.verify.anomalies import Anomaly, AnomalyKind, Position, batch_text
from headrace.verify.facts import Facts
from headrace.verify.operations import ReadOp, SeekOp, StoredBatch


def stable(facts: Facts) -> Iterator[Anomaly]:
    """The value of an offset never changes, for any reader."""
    for index, partition, read in facts.reads:
        whole = facts.everything.values.get(partition)
        if whole is None:
            continue  # reported as incomplete
        for offset, value in read.records:
            if (now := whole.get(offset)) != value:
                text = f"{read.process} read {value!r} at {Position(partition, offset)}"
                final = facts.everything.indexes[partition]
                evidence = facts.evidence(*facts.send_indexes(value), index, final, at=[Position(partition, offset)])
                has = "nothing" if now is None else repr(now)
                yield Anomaly(AnomalyKind.CHANGED, f"{text}; the final read has {has}", evidence)


def forwards(facts: Facts) -> Iterator[Anomaly]:
    """The offsets of a reader increase, and it gets every record between two that it gets."""
    # By reader, partition and isolation level: the last offset, and the read or seek that set it.
    position: dict[tuple[str, TopicPartition, bool], tuple[int, int]] = {}
    offsets: dict[tuple[TopicPartition, bool], list[int]] = {}
    for index, operation in enumerate(facts.operations):
        if type(operation) is SeekOp:
            partition = facts.partition(operation.topic, operation.partition)
            for committed in (True, False):
                position.pop((operation.process, partition, committed), None)
                if operation.offset is not None:
                    position[operation.process, partition, committed] = (operation.offset - 1, index)
        elif type(operation) is ReadOp and operation.records:
            partition = facts.partition(operation.topic, operation.partition)
            if (partition, operation.committed) not in offsets:
                contents = facts.committed if operation.committed else facts.everything
                offsets[partition, operation.committed] = sorted(contents.values.get(partition, ()))
            reader = (operation.process, partition, operation.committed)
            known = offsets[partition, operation.committed]
            last = position.get(reader)
            for offset, _ in operation.records:
                if last is not None and offset != last[0] + 1:
                    yield from _jump(facts, operation, index, last, offset, known)
                last = (offset, index)
            assert last is not None
            position[reader] = last


def _jump(
    facts: Facts, read: ReadOp, index: int, last: tuple[int, int], offset: int, known: list[int]
) -> Iterator[Anomaly]:
    partition = facts.partition(read.topic, read.partition)
    if offset <= last[0]:
        text = f"{read.process} got {Position(partition, offset)} after {last[0]}"
        at = [Position(partition, each) for each in (last[0], offset)]
        yield Anomaly(AnomalyKind.WENT_BACK, text, facts.evidence(last[1], index, at=at))
        return
    following = bisect_right(known, last[0])
    if following < len(known) and known[following] < offset:
        contents = facts.committed if read.committed else facts.everything
        skipped = known[following]
        text = f"{read.process} got {Position(partition, offset)} after {last[0]}, but not {skipped}"
        final = contents.indexes[partition]
        at = [Position(partition, each) for each in (last[0], offset, skipped)]
        evidence = facts.evidence(last[1], index, final, at=at)
        yield Anomaly(AnomalyKind.SKIPPED, text, evidence)


def not_truncated(facts: Facts) -> Iterator[Anomaly]:
    """No partition ends before a high watermark that a reader got."""
    ends: dict[TopicPartition, tuple[int, int]] = {}  # offset, and the final read that has it
    for index, partition, read in facts.reads:
        if read.final and read.high_watermark is not None:
            ends[partition] = max(ends.get(partition, (0, index)), (read.high_watermark, index))
    reported: set[tuple[str, TopicPartition]] = set()
    for index, partition, read in facts.reads:
        end, high_watermark = ends.get(partition), read.high_watermark
        if end is None or high_watermark is None or high_watermark <= end[0] or (read.process, partition) in reported:
            continue
        reported.add((read.process, partition))
        text = f"{read.process} got high watermark {high_watermark} of {partition}; it ends at {end[0]}"
        yield Anomaly(AnomalyKind.TRUNCATED, text, facts.evidence(index, end[1]))


def same_replicas(facts: Facts) -> Iterator[Anomaly]:
    """All replicas of a partition have the same batches, byte for byte."""
    for partition, ((first_index, first), *others) in sorted(facts.replicas.items()):
        for index, other in others:
            number = _first_difference(first.batches, other.batches)
            if number is None:
                continue
            texts = [_batch_at(replica.batches, number) for replica in (first, other)]
            text = f"{partition} on brokers {first.broker} and {other.broker}: {texts[0]} and {texts[1]}"
            evidence = facts.evidence(first_index, index)
            reduced = tuple(
                each._replace(operation=each.operation._replace(batches=each.operation.batches[number : number + 1]))  # type: ignore[union-attr,call-arg]
                for each in evidence
            )
            yield Anomaly(AnomalyKind.DIVERGED, text, reduced)


def _first_difference(left: tuple[StoredBatch, ...], right: tuple[StoredBatch, ...]) -> int | None:
    for number, (left_batch, right_batch) in enumerate(zip(left, right, strict=False)):
        if left_batch != right_batch:
            return number
    return None if len(left) == len(right) else min(len(left), len(right))


def _batch_at(batches: tuple[StoredBatch, ...], number: int) -> str:
    return batch_text(batches[number]) if number < len(batches) else "nothing"
