"""Partitioners: which partition a record goes to, if it does not say so itself.

    key  → murmur2 of its bytes, the same everywhere        `partition_for_key`
    none → one partition at a time, so that batches fill:
             AdaptiveSticky        today's (KIP-794): for a batch's worth of bytes, then to where queues are short
             DefaultPartitioner24  that of Kafka 2.4 (KIP-480): until the batch is complete, then to any other
             KeyHashRoundRobinPartitioner  the one before: in turn

`AdaptiveSticky` is not a `Partitioner`: it needs to know the queues, so the accumulator asks it. It works when
`partitioner.class` is not set.
"""

from __future__ import annotations

import itertools
import random as random_module
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.producer.plugins import PluginKind
from headrace.wire.kernel import kernel

FIRST_TURN_MAX = 1 << 31


class Random(Protocol):
    """What is asked of a source of randomness: `random.Random`, or a fake."""

    def randrange(self, stop: int, /) -> int: ...


class ClusterView(Protocol):
    """What a partitioner may ask of the cluster."""

    def partitions_for(self, topic: str) -> Sequence[int]:
        """All partitions, in order."""
        ...

    def available_partitions_for(self, topic: str) -> Sequence[int]:
        """Those that have a leader now, in order."""
        ...


def partition_for_key(key_bytes: bytes, partition_count: int) -> int:
    """Where Kafka's own producer would put this key."""
    return (kernel.murmur2(key_bytes) & 0x7FFFFFFF) % partition_count


class Partitioner:
    """To be subclassed: `partition` at least."""

    def configure(self, config: Mapping[str, object]) -> None:
        """Called once, before anything else."""

    def partition(
        self,
        topic: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
        cluster: ClusterView,
    ) -> int:
        """The partition of a record. Called by any thread that sends."""
        raise NotImplementedError(f"{type(self).__qualname__} must define partition")

    def on_new_batch(self, topic: str, cluster: ClusterView, previous_partition: int) -> None:
        """The record at hand needs a new batch on `previous_partition`; `partition` will be asked again for it."""

    def close(self) -> None:
        """Called once, with the producer's `close`."""


class _StickyChoice:
    """One partition for each topic, until it is told to move (KIP-480). Safe to share between threads."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sticky: dict[str, int] = {}

    def current(self, topic: str, cluster: ClusterView) -> int:
        sticky = self._sticky.get(topic)
        if sticky is None:
            return self._sticky.setdefault(topic, self._other(topic, cluster, None))
        if sticky >= len(cluster.partitions_for(topic)):  # the topic was made anew, with fewer
            self.move(topic, cluster, sticky)
            return self._sticky[topic]
        return sticky

    def move(self, topic: str, cluster: ClusterView, previous_partition: int) -> None:
        # Another thread may have moved on already: then its choice stands.
        if self._sticky.get(topic) == previous_partition:
            self._sticky[topic] = self._other(topic, cluster, previous_partition)

    def _other(self, topic: str, cluster: ClusterView, than: int | None) -> int:
        available = cluster.available_partitions_for(topic)
        choices = [p for p in available if p != than] or available or cluster.partitions_for(topic)
        return choices[self._random.randrange(len(choices))]


class UniformStickyPartitioner(Partitioner):
    """Sticky for every record: keys do not matter."""

    def __init__(self, random: Random | None = None) -> None:
        self._choice = _StickyChoice(random or random_module.Random())

    def partition(
        self,
        topic: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
        cluster: ClusterView,
    ) -> int:
        return self._choice.current(topic, cluster)

    def on_new_batch(self, topic: str, cluster: ClusterView, previous_partition: int) -> None:
        self._choice.move(topic, cluster, previous_partition)


class DefaultPartitioner24(UniformStickyPartitioner):
    """The default of Kafka 2.4: by key if there is one, else sticky."""

    def partition(
        self,
        topic: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
        cluster: ClusterView,
    ) -> int:
        if key_bytes is not None:
            return partition_for_key(key_bytes, len(cluster.partitions_for(topic)))
        return self._choice.current(topic, cluster)


class RoundRobinPartitioner(Partitioner):
    """In turn over the available partitions, whatever the key."""

    def __init__(self) -> None:
        self._turns: dict[str, Iterator[int]] = {}
        self._again: dict[str, int] = {}  # Any thread; dict.pop is atomic.

    def partition(
        self,
        topic: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
        cluster: ClusterView,
    ) -> int:
        again = self._again.pop(topic, None)
        if again is not None:
            return again
        turns = self._turns.get(topic) or self._turns.setdefault(topic, itertools.count(self._first_turn()))
        choices = cluster.available_partitions_for(topic) or cluster.partitions_for(topic)
        return choices[next(turns) % len(choices)]

    def _first_turn(self) -> int:
        return 0

    def on_new_batch(self, topic: str, cluster: ClusterView, previous_partition: int) -> None:
        # Being asked twice for one record must not cost a turn, or half the partitions stay empty (KAFKA-9965).
        self._again[topic] = previous_partition


class KeyHashRoundRobinPartitioner(RoundRobinPartitioner):
    """The default before Kafka 2.4: by key if there is one, else in turn over the available partitions.

    Where a topic's turns begin is left to chance, so that producers which start together do not go in step.
    """

    def __init__(self, random: Random | None = None) -> None:
        super().__init__()
        self._random = random or random_module.Random()

    def _first_turn(self) -> int:
        return self._random.randrange(FIRST_TURN_MAX)

    def partition(
        self,
        topic: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
        cluster: ClusterView,
    ) -> int:
        if key_bytes is not None:
            self._again.pop(topic, None)  # it was this record that needed a new batch
            return partition_for_key(key_bytes, len(cluster.partitions_for(topic)))
        return super().partition(topic, key, key_bytes, value, value_bytes, cluster)


class Odds(NamedTuple):
    """Partitions to choose from and their weights, added up; None: all alike."""

    partitions: Sequence[int]
    weights: Sequence[int] | None


class AdaptiveSticky:
    """Today's choice for keyless records (KIP-794). Its caller locks; it knows no cluster and no clock.

    With `adaptive`, a partition whose queue is shorter is more likely to be next: with queues of 0, 3 and 1 batches
    the odds are 4 : 1 : 3. How long a topic stays where it is, the accumulator counts.
    """

    def __init__(self, *, adaptive: bool = True) -> None:
        self._adaptive = adaptive

    def odds(self, queue_sizes: Mapping[int, int] | None, available: Sequence[int], all: Sequence[int]) -> Odds:
        """How likely each partition is to be next; good for many choices while queues change little.

        `queue_sizes` has the number of waiting batches of each partition that may be chosen; those whose broker has
        not taken anything for too long are left out. None if nothing is known yet.
        """
        if not self._adaptive or not queue_sizes or len(all) < 2:
            return Odds(available or all, None)
        partitions, sizes = list(queue_sizes), list(queue_sizes.values())
        longest = max(sizes)
        return Odds(partitions, list(itertools.accumulate(longest + 1 - size for size in sizes)))

    def next_partition(self, odds: Odds, random: Random) -> int:
        """Choose where to stay next."""
        if odds.weights is None:
            return _any_of(odds.partitions, random)
        return odds.partitions[bisect_right(odds.weights, random.randrange(odds.weights[-1]))]


def _any_of(partitions: Sequence[int], random: Random) -> int:
    return partitions[random.randrange(len(partitions))]


class _Adapted(Partitioner):
    """A function, or an object with a `partition` that owes nothing to the base class."""

    def __init__(self, target: object) -> None:
        for method in ("configure", "on_new_batch", "close"):
            if hasattr(target, method):
                setattr(self, method, getattr(target, method))
        self.__dict__["partition"] = getattr(target, "partition", target)
        self.adapted_name = getattr(target, "__qualname__", type(target).__qualname__)


def name_of(partitioner: Partitioner) -> str:
    """For messages: not ours, but that of what was given."""
    return partitioner.adapted_name if isinstance(partitioner, _Adapted) else type(partitioner).__qualname__


def _adapt(value: object) -> Partitioner | None:
    return _Adapted(value) if callable(getattr(value, "partition", value)) else None


_JAVA = "org.apache.kafka.clients.producer."
_KNOWN: dict[str, type[Partitioner]] = {
    "default-2.4": DefaultPartitioner24,
    "uniform-sticky": UniformStickyPartitioner,
    "round-robin": RoundRobinPartitioner,
    "key-hash-round-robin": KeyHashRoundRobinPartitioner,
    _JAVA + "internals.DefaultPartitioner": DefaultPartitioner24,
    _JAVA + "UniformStickyPartitioner": UniformStickyPartitioner,
    _JAVA + "RoundRobinPartitioner": RoundRobinPartitioner,
}
KIND = PluginKind("partitioner", Partitioner, _KNOWN, _adapt)
