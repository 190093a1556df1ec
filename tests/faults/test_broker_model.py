"""Random clients, lost responses and kills, compared with a model of what may be visible.

HEADRACE_MODEL_STEPS is the number of steps; HEADRACE_MODEL_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from headrace.errors import HeadraceError
from tests.support.broker_model import (
    IdempotentWriter,
    Link,
    Model,
    OldTransactionalWriter,
    Reader,
    TransactionalWriter,
    Writer,
)
from tests.support.peers.broker import Broker
from tests.support.peers.real_kafka import RealKafka
from tests.support.topics import unique

STEPS = int(os.environ.get("HEADRACE_MODEL_STEPS", "6000"))
SEED = int(os.environ.get("HEADRACE_MODEL_SEED", "17"))
PARTITIONS = 3
CHECK_STEPS = 400
CRASH_SECONDS_MAX = 10
KILL_CHANCE = 1 / 300
FAULT_CHANCE = 1 / 40
FAULTY_APIS = ("Produce", "EndTxn", "AddPartitionsToTxn", "InitProducerId")


class Run:
    """Clients of every kind on one topic."""

    def __init__(self, broker: Broker | EmbeddedBroker, seed: int, revive: Callable[[], None] = lambda: None) -> None:
        self.rng = random.Random(seed)
        self.model = Model(PARTITIONS)
        self.topic = broker.create_topic(unique("model"), PARTITIONS)
        self._links: list[Link] = []
        self._reader = Reader(self.topic, self._link(broker, revive))
        kinds: list[type[Writer]] = [IdempotentWriter, TransactionalWriter, OldTransactionalWriter] * 2
        self._writers = [
            kind(unique(kind.__name__), self.topic, self._link(broker, revive), self.model, self.rng) for kind in kinds
        ]

    def _link(self, broker: Broker | EmbeddedBroker, revive: Callable[[], None]) -> Link:
        self._links.append(Link(broker.bootstrap, revive))
        return self._links[-1]

    def step(self) -> None:
        self.rng.choice(self._writers).step()

    def check(self) -> None:
        for writer in self._writers:
            writer.settle()
        for partition in range(PARTITIONS):
            self.model.check_everything(partition, self._reader.everything(partition))
            stable = self.model.stable_end(partition)
            self.model.check_committed(partition, self._reader.committed(partition, stable))

    def close(self) -> None:
        for link in self._links:
            link.close()


@pytest.mark.timeout(60 + STEPS // 50)
def test_reads_match_the_model_despite_lost_responses_and_kills(tmp_path: Path) -> None:
    broker = EmbeddedBroker(data_dir=tmp_path / "data").start()

    def revive() -> None:
        """Restart the broker if a fault has crashed it, or is about to."""
        try:
            broker.status()
        except HeadraceError:
            if broker.is_running:
                broker.wait(CRASH_SECONDS_MAX)
            broker.start()

    run = Run(broker, SEED, revive)
    try:
        for step in range(1, STEPS + 1):
            chance = run.rng.random()
            if chance < KILL_CHANCE:
                broker.kill()
                broker.start()
            elif chance < KILL_CHANCE + FAULT_CHANCE:
                broker.faults.inject(
                    api=run.rng.choice(FAULTY_APIS),
                    when=run.rng.choice(("before", "after")),
                    count=1,
                    close=(closes := run.rng.random() < 0.75),
                    crash=not closes,
                )
            run.step()
            if step % CHECK_STEPS == 0 or step == STEPS:
                broker.faults.clear()
                run.check()
    except BaseException:
        print(f"seed {SEED}")
        raise
    finally:
        run.close()
        broker.close()


def test_the_model_agrees_with_apache_kafka(kafka: RealKafka) -> None:
    run = Run(kafka, SEED)
    try:
        for _ in range(600):
            run.step()
        run.check()
    except BaseException:
        print(f"seed {SEED}")
        raise
    finally:
        run.close()
