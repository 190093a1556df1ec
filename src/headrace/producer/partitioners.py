"""Partitioners: the choice of a partition for records that do not specify one.

    with a key     murmur2 of its bytes, as in Kafka's producer: `partition_for_key`
    without a key  one partition at a time, so that batches fill:
                     AdaptiveSticky                the default (KIP-794): batch.size bytes, then a short queue
                     DefaultPartitioner24          Kafka 2.4 (KIP-480): until the batch is complete, then any other
                     KeyHashRoundRobinPartitioner  before Kafka 2.4: round robin

The Spark sink chooses partitions for whole Arrow columns with `partition_column`, as `partition` would for each row. It
returns None if that is not possible.

`AdaptiveSticky` is not a `Partitioner`: it needs the queues, so the accumulator calls it. It is used unless
`partitioner.class` is set.
"""

from __future__ import annotations

import itertools
import random as random_module
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.client.metadata import Cluster
from headrace.client.plugins import PluginKind, copy_methods
from headrace.config.clock import Clock
from headrace.wire.kernel import kernel

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.producer.queues import TopicQueues

FIRST_TURN_MAX = 1 << 31
SMALL_TOPIC_PARTITIONS = 32
WEIGHTS_MS_PER_PARTITION = 0.05


class Random(Protocol):
    """The part of `random.Random` that partitioners use."""

    def randrange(self, stop: int, /) -> int: ...


class ClusterView(Protocol):
    """The cluster, as partitioners see it."""

    def partitions_for(self, topic: str) -> Sequence[int]:
        """Return all partitions, in order."""
        ...

    def available_partitions_for(self, topic: str) -> Sequence[int]:
        """Return the partitions that have a leader, in order."""
        ...


def partition_for_key(key_bytes: bytes, partition_count: int) -> int:
    """Return the partition that Kafka's producer chooses for this key."""
    return (kernel.murmur2(key_bytes) & 0x7FFFFFFF) % partition_count


class Partitioner:
    """Base class of partitioners. Subclasses implement `partition` at least."""

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
        """Return the partition of a record. Called on the thread that sends."""
        raise NotImplementedError(f"{type(self).__qualname__} must define partition")

    def on_new_batch(self, topic: str, cluster: ClusterView, previous_partition: int) -> None:
        """Called when the record needs a new batch on `previous_partition`; `partition` is called again after it."""

    def close(self) -> None:
        """Called once, with the producer's `close`."""


class AllAvailable:
    """A cluster in which all partitions of a topic are available, as a Spark task sees it."""

    def __init__(self, partition_count: int) -> None:
        self._partitions = range(partition_count)

    def partitions_for(self, topic: str) -> Sequence[int]:
        return self._partitions

    available_partitions_for = partitions_for


def _column_by_key(columns: pa.RecordBatch, partition_count: int) -> pa.Array | None:
    """Return the partition of each key, null without a key; None without keys."""
    from headrace.wire.columns import partition_for_keys

    index = columns.schema.get_field_index("key")
    if index < 0 or columns.column(index).null_count == columns.num_rows:
        return None
    return partition_for_keys(columns.column(index), partition_count)


class _StickyPartitions:
    """One partition for each topic, until `move` (KIP-480). Any thread."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._sticky: dict[str, int] = {}

    def current(self, topic: str, cluster: ClusterView) -> int:
        sticky = self._sticky.get(topic)
        if sticky is None:
            return self._sticky.setdefault(topic, self._other(topic, cluster, None))
        if sticky >= len(cluster.partitions_for(topic)):  # the topic was recreated with fewer partitions
            self.move(topic, cluster, sticky)
            return self._sticky[topic]
        return sticky

    def move(self, topic: str, cluster: ClusterView, previous_partition: int) -> None:
        # Unless another thread has moved on already.
        if self._sticky.get(topic) == previous_partition:
            self._sticky[topic] = self._other(topic, cluster, previous_partition)

    def _other(self, topic: str, cluster: ClusterView, than: int | None) -> int:
        available = cluster.available_partitions_for(topic)
        choices = [p for p in available if p != than] or available or cluster.partitions_for(topic)
        return choices[self._random.randrange(len(choices))]


class _BuiltInPartitioner(Partitioner):
    """A partitioner that does not depend on the value."""

    def partition(
        self,
        topic: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
        cluster: ClusterView,
    ) -> int:
        return self.choose(topic, key_bytes, cluster)

    def choose(self, topic: str, key_bytes: bytes | None, cluster: ClusterView) -> int:
        raise NotImplementedError


class UniformStickyPartitioner(_BuiltInPartitioner):
    """Sticky for every record; keys are ignored."""

    def __init__(self, random: Random | None = None) -> None:
        self._choice = _StickyPartitions(random or random_module.Random())

    def choose(self, topic: str, key_bytes: bytes | None, cluster: ClusterView) -> int:
        return self._choice.current(topic, cluster)

    def partition_column(self, topic: str, columns: pa.RecordBatch, partition_count: int) -> pa.Array | None:
        return self._sticky_column(topic, columns.num_rows, partition_count)

    def _sticky_column(self, topic: str, rows: int, partition_count: int) -> pa.Array:
        import pyarrow as pa

        return pa.repeat(pa.scalar(self._choice.current(topic, AllAvailable(partition_count)), pa.int32()), rows)

    def on_new_batch(self, topic: str, cluster: ClusterView, previous_partition: int) -> None:
        self._choice.move(topic, cluster, previous_partition)


class DefaultPartitioner24(UniformStickyPartitioner):
    """The default of Kafka 2.4: by key if there is one, otherwise sticky."""

    def choose(self, topic: str, key_bytes: bytes | None, cluster: ClusterView) -> int:
        if key_bytes is not None:
            return partition_for_key(key_bytes, len(cluster.partitions_for(topic)))
        return self._choice.current(topic, cluster)

    def partition_column(self, topic: str, columns: pa.RecordBatch, partition_count: int) -> pa.Array | None:
        by_key = _column_by_key(columns, partition_count)
        if by_key is None:
            return self._sticky_column(topic, columns.num_rows, partition_count)
        if by_key.null_count:
            return by_key.fill_null(self._choice.current(topic, AllAvailable(partition_count)))
        return by_key


class RoundRobinPartitioner(_BuiltInPartitioner):
    """Round robin over the available partitions; keys are ignored."""

    def __init__(self) -> None:
        self._turns: dict[str, Iterator[int]] = {}
        self._again: dict[str, int] = {}  # Any thread; dict.pop is atomic.

    def choose(self, topic: str, key_bytes: bytes | None, cluster: ClusterView) -> int:
        again = self._again.pop(topic, None)
        if again is not None:
            return again
        turns = self._turns.get(topic) or self._turns.setdefault(topic, itertools.count(self._first_turn()))
        choices = cluster.available_partitions_for(topic) or cluster.partitions_for(topic)
        return choices[next(turns) % len(choices)]

    def partition_column(self, topic: str, columns: pa.RecordBatch, partition_count: int) -> pa.Array | None:
        return self._next_turns(topic, columns.num_rows, partition_count)

    def _next_turns(self, topic: str, rows: int, partition_count: int) -> pa.Array | None:
        """Return the next partitions; None if `on_new_batch` has set the next one."""
        import pyarrow as pa

        if topic in self._again:
            return None
        first = next(self._turns.get(topic) or itertools.count(self._first_turn()))
        self._turns[topic] = itertools.count(first + rows)
        cycle = array("i", (turn % partition_count for turn in range(first, first + partition_count)))
        turns = cycle * -(-rows // partition_count)
        return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(turns)])

    def _first_turn(self) -> int:
        return 0

    def on_new_batch(self, topic: str, cluster: ClusterView, previous_partition: int) -> None:
        # The second call for a record must not advance, or half the partitions stay empty (KAFKA-9965).
        self._again[topic] = previous_partition


class KeyHashRoundRobinPartitioner(RoundRobinPartitioner):
    """The default before Kafka 2.4: by key if there is one, otherwise round robin over the available partitions.

    Each topic starts at a random partition, so that producers which start together do not move in step.
    """

    def __init__(self, random: Random | None = None) -> None:
        super().__init__()
        self._random = random or random_module.Random()

    def _first_turn(self) -> int:
        return self._random.randrange(FIRST_TURN_MAX)

    def choose(self, topic: str, key_bytes: bytes | None, cluster: ClusterView) -> int:
        if key_bytes is not None:
            self._again.pop(topic, None)  # on_new_batch was called for this record
            return partition_for_key(key_bytes, len(cluster.partitions_for(topic)))
        return super().choose(topic, key_bytes, cluster)

    def partition_column(self, topic: str, columns: pa.RecordBatch, partition_count: int) -> pa.Array | None:
        import pyarrow.compute as pc

        by_key = _column_by_key(columns, partition_count)
        if by_key is None:
            return self._next_turns(topic, columns.num_rows, partition_count)
        if not by_key.null_count:
            return None if topic in self._again else by_key
        turns = self._next_turns(topic, by_key.null_count, partition_count)
        return None if turns is None else pc.replace_with_mask(by_key, by_key.is_null(), turns)


class PartitionWeights(NamedTuple):
    """The partitions to choose from, and their cumulative weights; None: equal weights."""

    partitions: Sequence[int]
    cumulative: Sequence[int] | None

    @classmethod
    def from_queues(
        cls, queue_sizes: Mapping[int, int] | None, available: Sequence[int], all_partitions: Sequence[int]
    ) -> PartitionWeights:
        """Weigh partitions by the number of their queued batches: queues of 0, 3 and 1 get weights 4, 1 and 3.

        `queue_sizes` has the partitions that may be chosen; None: all available ones, with equal weights.
        """
        if not queue_sizes or len(all_partitions) < 2:
            return cls(available or all_partitions, None)
        longest = max(queue_sizes.values())
        return cls(list(queue_sizes), list(itertools.accumulate(longest + 1 - size for size in queue_sizes.values())))

    def choose(self, random: Random) -> int:
        """Return a random partition."""
        if self.cumulative is None:
            return self.partitions[random.randrange(len(self.partitions))]
        return self.partitions[bisect_right(self.cumulative, random.randrange(self.cumulative[-1]))]


@dataclass(slots=True)
class _NodeTimes:
    ready_ms: float  # When the node last had batches to send.
    drained_ms: float  # When it could last be sent to.


class AdaptiveSticky:
    """The built-in choice for records without a key (KIP-794), for all topics of a producer.

        I/O thread: node_was_ready → since when each node has accepted nothing
        application threads, after batch.size bytes to the sticky partition: move_on → topic.appender.sticky_partition

    With `adaptive`, partitions with short queues are chosen more often, and a partition is skipped while its leader has
    had batches waiting for longer than `availability_timeout_ms` without accepting any (0: never skipped).
    """

    def __init__(
        self,
        clock: Clock,
        *,
        adaptive: bool = True,
        availability_timeout_ms: float = 0,
        random: Random | None = None,
    ) -> None:
        self._clock = clock
        self._adaptive = adaptive
        self._availability_timeout_ms = availability_timeout_ms
        self._random = random or random_module.Random()
        self._nodes: dict[int, _NodeTimes] = {}  # Written by the I/O thread, read by any.

    def node_was_ready(self, node_id: int, could_drain: bool, now: float) -> None:
        """Record that a node had batches to send, and whether it could be sent to. I/O thread only."""
        if self._availability_timeout_ms <= 0:
            return
        times = self._nodes.setdefault(node_id, _NodeTimes(now, now))
        if could_drain:
            times.drained_ms = now
        times.ready_ms = now

    def _is_available(self, node_id: int) -> bool:
        times = self._nodes.get(node_id)
        if times is None:
            return True
        ready_ms = times.ready_ms  # read first: drained_ms may be updated in between
        return ready_ms - times.drained_ms <= self._availability_timeout_ms

    def move_on(self, topic: TopicQueues, cluster: Cluster) -> None:
        """Choose the sticky partition of a topic. topic.lock is held."""
        topic.appender.sticky_partition = self._weights(topic, cluster).choose(self._random)
        topic.sticky_bytes = 0

    def _weights(self, topic: TopicQueues, cluster: Cluster) -> PartitionWeights:
        now, count = self._clock.monotonic_ms(), len(topic.queues)
        if topic.weights is not None and topic.weights_cluster is cluster and now < topic.weights_until_ms:
            return topic.weights
        available = [p for p in cluster.available_partitions_for(topic.name) if p < count]
        sizes = None
        if self._adaptive:
            sizes = {p: len(topic.queues[p].batches) for p in available}
            if self._nodes:
                sizes = {p: size for p, size in sizes.items() if self._is_available(cluster.leader(topic.name, p))}
        topic.weights = PartitionWeights.from_queues(sizes, available, range(count))
        topic.weights_cluster, topic.weights_until_ms = cluster, now
        if count > SMALL_TOPIC_PARTITIONS:  # Reading every queue for every batch would be too expensive.
            topic.weights_until_ms += count * WEIGHTS_MS_PER_PARTITION
        return topic.weights


class _AdaptedPartitioner(Partitioner):
    """Wraps a function, or an object with a `partition` method, that is not a `Partitioner`."""

    def __init__(self, target: object) -> None:
        copy_methods(target, self, "configure", "on_new_batch", "partition_column", "close")
        self.__dict__["partition"] = getattr(target, "partition", target)
        self.adapted_name = getattr(target, "__qualname__", type(target).__qualname__)


def name_of(partitioner: Partitioner) -> str:
    """Return the name of a partitioner, as the user knows it, for messages."""
    return partitioner.adapted_name if isinstance(partitioner, _AdaptedPartitioner) else type(partitioner).__qualname__


def _adapt(value: object) -> Partitioner | None:
    return _AdaptedPartitioner(value) if callable(getattr(value, "partition", value)) else None


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
