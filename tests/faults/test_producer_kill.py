"""kill -9 of a transactional producer at any point: readers see whole transactions, each once.

HEADRACE_FAULT_ROUNDS is the number of killed producers, 20 by default.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from headrace import Producer
from tests.support.peers import librdkafka
from tests.support.topics import new_topic, unique

WRITER = Path(__file__).with_name("transactional_writer.py")
RECORDS, PARTITIONS = 30, 3
ROUNDS = int(os.environ.get("HEADRACE_FAULT_ROUNDS", "20"))
ROUND_SECONDS_MAX = 10
SEED = 17


def die_while_writing(broker, transactional_id, topic, number, chance):
    """Start a writer, kill it a moment after it is ready or before; returns the transactions it knew committed."""
    process = subprocess.Popen(
        [sys.executable, WRITER, broker.bootstrap, transactional_id, topic, str(number)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        if chance.random() < 0.85:
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, 0.15))
        else:
            time.sleep(chance.uniform(0.2, 0.8))
    finally:
        process.kill()
    lines = process.stdout.read().splitlines()
    process.wait(ROUND_SECONDS_MAX)
    process.stdout.close()
    return [line for line in lines if line != "ready"]


@pytest.mark.timeout(60 + ROUNDS * ROUND_SECONDS_MAX)
@pytest.mark.parametrize(
    ("version", "rounds"),
    [("kafka", ROUNDS), pytest.param("kafka39", max(1, ROUNDS // 3), marks=pytest.mark.slow)],
)
@pytest.mark.behaviour("T13")
def test_transactions_of_a_killed_producer_are_atomic(request, version, rounds):
    broker = request.getfixturevalue(version)
    topic, transactional_id = new_topic(broker, "killed", PARTITIONS), unique("killed")
    chance = random.Random(SEED)
    known = set()
    for number in range(rounds):
        known.update(die_while_writing(broker, transactional_id, topic, number, chance))
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=transactional_id) as last:
        last.init_transactions()  # ends the open transaction of the last producer

    names = [
        (record.value or b"").decode()
        for partition in range(PARTITIONS)
        for record in librdkafka.consume_to_end(broker.bootstrap, topic, partition=partition)
    ]
    doubled = [name for name, count in Counter(names).items() if count > 1]
    sizes = Counter(name.rsplit(":", 1)[0] for name in names)
    torn = {transaction: size for transaction, size in sizes.items() if size != RECORDS}
    assert not doubled, doubled[:10]
    assert not torn, torn
    assert not [name for name in names if name.startswith("aborted")]
    assert known <= sizes.keys(), known - sizes.keys()
    # A producer may be killed between the commit and its response: at most one for each kill.
    assert len(sizes.keys() - known) <= rounds
    assert known, "none of them had time to commit anything"
