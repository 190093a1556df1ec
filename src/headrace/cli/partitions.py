"""Partitions as --topic names them: TOPIC or TOPIC:0,2."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.cli.output import WrongUsageError
from headrace.client.admin import AdminClient, TopicPartition
from headrace.client.facts.partitions import chosen_partitions


def named_partitions(admin: AdminClient, topics: Iterable[str]) -> list[TopicPartition]:
    """All partitions of a topic, or some; of the same topic named twice, both."""
    wanted: dict[str, set[int] | None] = {}
    for text in topics:
        topic, colon, numbers = text.partition(":")
        before = wanted.get(topic, set())
        wanted[topic] = before | _numbers(topic, numbers) if colon and before is not None else None
    return chosen_partitions(admin, wanted)


def _numbers(topic: str, text: str) -> set[int]:
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise WrongUsageError(f"--topic takes TOPIC or TOPIC:0,2, not {topic}:{text}")
    return {int(number) for number in numbers}
