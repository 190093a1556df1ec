"""Three brokers, clients of every make, and everything that can happen to brokers: no promise is broken.

HEADRACE_CHAOS_SECONDS says for how long, HEADRACE_CHAOS_SEED which faults, HEADRACE_CHAOS_FOLDER where to keep history
and logs, HEADRACE_CHAOS_CONTROLLER whether the controller is a process of its own (separate) or the first broker
(combined). The report is printed, and kept there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import Producer
from headrace.broker import EmbeddedCluster
from tests.support import chaos
from tests.support.chaos_readers import dump_replicas, read_finally
from tests.support.chaos_writers import Setting
from tests.support.history import Answered, HistoryFile, Outcome, Sent, load
from tests.support.history_check import Kind, check
from tests.support.waiting import eventually

SECONDS = float(os.environ.get("HEADRACE_CHAOS_SECONDS", "40"))
SEED = int(os.environ.get("HEADRACE_CHAOS_SEED", "1482"))
"""1482: its 40 s have everything in them, with the controller and with others, alone and two at a time."""
CONTROLLER = os.environ.get("HEADRACE_CHAOS_CONTROLLER", "combined")
FOLDER = os.environ.get("HEADRACE_CHAOS_FOLDER")
OVERHEAD_SECONDS_MAX = 240
"""To start, to heal, to read everything and to judge it."""
SEND_SECONDS_MAX = 20


@pytest.mark.slow
@pytest.mark.behaviour("B09", "B10", "B11")
@pytest.mark.timeout(OVERHEAD_SECONDS_MAX + SECONDS * 1.5)
def test_nothing_is_lost_doubled_torn_or_out_of_order_whatever_happens_to_brokers(
    tmp_path: Path, kafka_jars: Callable[[str], Path]
) -> None:
    assert CONTROLLER in ("separate", "combined")
    folder = Path(FOLDER) if FOLDER else tmp_path
    run = chaos.run(folder, SEED, SECONDS, kafka_jars("4.3.0"), separate_controller=CONTROLLER == "separate")
    print(f"\n{run}")
    (folder / "report.txt").write_text(f"{run}\n")
    assert run.faults == [], run
    assert run.errors == [], run
    # It would be easy to be right about nothing.
    assert all(run.acknowledged.values()), run
    assert all(run.read.values()), run
    assert run.transactions[Outcome.DONE], run
    assert len(run.injected) >= SECONDS / 10, run


class HastyWriter:
    """Takes the word of a leader alone for it (acks=1), or of all, as it is told."""

    def __init__(self, setting: Setting, partition: int) -> None:
        self._setting = setting
        self._partition = partition
        self._producers = {
            acks: Producer(bootstrap_servers=setting.bootstrap, acks=acks, enable_idempotence=False)
            for acks in ("1", "all")
        }
        for producer in self._producers.values():
            producer.partitions_for(setting.topic)  # so that it need not ask later

    def write(self, *values: str, acks: str) -> None:
        for value in values:
            self._setting.history.add(Sent("hasty", value, self._partition))
            future = self._producers[acks].send(self._setting.topic, value.encode(), partition=self._partition)
            offset = future.result(SEND_SECONDS_MAX).offset
            self._setting.history.add(Answered(value, Outcome.DONE, self._partition, offset))

    def close(self) -> None:
        for producer in self._producers.values():
            producer.close(SEND_SECONDS_MAX)


@pytest.mark.slow
def test_writes_that_only_the_leader_had_when_it_died_are_found_to_be_lost(tmp_path: Path) -> None:
    """The other side of it: a cluster that may lose writes loses some, and it is noticed."""
    lost = [f"lost-{number}" for number in range(20)]
    with (
        EmbeddedCluster(chaos.BROKERS, chaos.OPTIONS, data_dir=tmp_path / "data", separate_controller=False) as cluster,
        HistoryFile(tmp_path / "history.jsonl") as history,
    ):
        topic = cluster.create_topic("hasty", chaos.BROKERS)
        leads = [place["leader"] for place in cluster.describe_topic(topic)]
        partition = next(number for number, leader in enumerate(leads) if leader != cluster.controller.node_id)
        leader = cluster.broker(leads[partition])
        others = [broker for broker in cluster.brokers if broker is not leader]
        setting = Setting(cluster.bootstrap_servers, topic, chaos.BROKERS, history)
        writer = HastyWriter(setting, partition)
        try:
            writer.write("before", acks="all")
            for broker in others:
                broker.pause()
            writer.write(*lost, acks="1")
            leader.kill()
            for broker in others:
                broker.resume()
            writer.write("after", acks="all")
        finally:
            writer.close()
        leader.start()
        eventually(
            "all in sync", lambda: all(len(place["isr"]) == chaos.BROKERS for place in cluster.describe_topic(topic))
        )
        read_finally(setting)
        cluster.stop()
        dump_replicas(setting, {broker.node_id: broker.data_dir for broker in cluster.brokers})
    faults = check(load(tmp_path / "history.jsonl"))
    assert {fault.kind for fault in faults} == {Kind.LOST}, faults
    # A follower's fetch was waiting when it was paused: the answer, with the first record, reached it later.
    found = {fault.text.split("'")[1] for fault in faults}
    assert {*lost[1:]} <= found <= {*lost}
