"""Kafka Streams counts words exactly once (`exactly_once_v2`) while it, or a broker, is killed and started again."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.peers import fetched, streams
from tests.support.peers.broker import Broker
from tests.support.peers.embedded_cluster import OwnCluster
from tests.support.peers.java import JavaRunner
from tests.support.peers.streams import WordCount
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

WORDS = ("mill", "wheel", "race", "weir", "sluice", "pond", "gate")
WORDS_PER_LINE = 5
KILLS = 3
COUNTS_PER_ROUND = 400
PARTITIONS = 2
CATCH_UP_SECONDS_MAX = 60
SECONDS_MAX = 30
TIMEOUT = pytest.mark.timeout(300 if streams.is_fetched() else 300 + fetched.DOWNLOAD_SECONDS_MAX)


class Lines:
    """Produces lines of words at a steady rate, in a thread, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.words: Counter[str] = Counter()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True, "log_level": 0}
        )
        self._topic = topic
        self._random = random.Random(7)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.02):
            line = self._random.choices(WORDS, k=WORDS_PER_LINE)
            self.words.update(line)
            self._producer.produce(self._topic, " ".join(line))
            self._producer.poll(0)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(SECONDS_MAX)
        assert self._producer.flush(SECONDS_MAX) == 0


class Counts:
    """The counts that a read_committed reader sees, by word, in order."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.of_words: dict[str, list[int]] = defaultdict(list)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "not-used",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])

    def read(self) -> int:
        """Read for a moment and return the number of counts so far."""
        for message in self._consumer.consume(10_000, timeout=0.1):
            assert message.error() is None, message.error()
            key, value = message.key(), message.value()
            assert key is not None
            assert value is not None
            self.of_words[key.decode()].append(int(value))
        return sum(map(len, self.of_words.values()))

    def close(self) -> None:
        self._consumer.close()


class Rig:
    """The program, lines for it to count, and a reader of its counts."""

    def __init__(self, broker: Broker, java: JavaRunner, folder: Path) -> None:
        lines_topic, counts_topic = (new_topic(broker, name, PARTITIONS) for name in ("lines", "counts"))
        arguments = (broker.bootstrap, unique("word-count"), lines_topic, counts_topic)
        self.program = WordCount(java, folder, *arguments)
        self.lines = Lines(broker.bootstrap, lines_topic)
        self.counts = Counts(broker.bootstrap, counts_topic)

    def await_counts(self) -> None:
        """Wait until the program has counted some more words."""
        enough = self.counts.read() + COUNTS_PER_ROUND
        eventually("more counts", lambda: self.counts.read() >= enough, CATCH_UP_SECONDS_MAX)

    def finish(self) -> None:
        """Stop the lines, and check that each word was counted up to its number, by ones."""
        self.lines.stop()
        total = self.lines.words.total()
        eventually("all counts", lambda: self.counts.read() >= total, CATCH_UP_SECONDS_MAX)
        self.program.kill()
        self.counts.read()
        assert self.counts.of_words == {word: list(range(1, count + 1)) for word, count in self.lines.words.items()}

    def close(self) -> None:
        self.lines.stop()
        self.counts.close()
        self.program.kill()


@contextmanager
def counting(broker: Broker, java: JavaRunner, folder: Path) -> Iterator[Rig]:
    rig = Rig(broker, java, folder)
    try:
        yield rig
    finally:
        rig.close()


@TIMEOUT
@pytest.mark.every_run("headrace")
def test_a_word_count_is_exact_although_it_is_killed(either, java, tmp_path):
    with counting(either, java, tmp_path) as rig:
        for _ in range(KILLS):
            rig.program.start()
            rig.await_counts()
            rig.program.kill()
        rig.program.start()
        rig.finish()
        # Kafka Streams joins classic groups; streams groups (KIP-1071) are an option.
        assert "group.protocol=classic" in rig.program.output()


@TIMEOUT
def test_a_word_count_is_exact_although_brokers_are_killed(java, tmp_path):
    cluster = OwnCluster({})
    try:
        with counting(cluster, java, tmp_path) as rig:
            rig.program.start()
            for _ in range(KILLS):
                rig.await_counts()
                cluster.kill()
                rig.await_counts()
                cluster.restart()
            rig.finish()
    finally:
        cluster.remove()
