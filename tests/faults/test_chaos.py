"""Chaos runs: three brokers under faults, with clients of three libraries; no guarantee is violated.

HEADRACE_CHAOS_SECONDS is the duration, HEADRACE_CHAOS_SEED selects the faults, HEADRACE_CHAOS_FOLDER keeps history,
logs and report, HEADRACE_CHAOS_CONTROLLER is separate (a controller process) or combined (the first broker).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import Producer
from headrace.broker import EmbeddedCluster
from headrace.verify import AnomalyKind, HistoryWriter, Phase, SendOp, check, load_history
from tests.support import chaos
from tests.support.chaos_readers import dump_replicas, read_finally
from tests.support.chaos_writers import Setting
from tests.support.waiting import eventually

SECONDS = float(os.environ.get("HEADRACE_CHAOS_SECONDS", "40"))
SEED = int(os.environ.get("HEADRACE_CHAOS_SEED", "1482"))
"""1482: its 40 s have all faults, on the controller and on others, alone and two at a time."""
CONTROLLER = os.environ.get("HEADRACE_CHAOS_CONTROLLER", "combined")
FOLDER = os.environ.get("HEADRACE_CHAOS_FOLDER")
OVERHEAD_SECONDS_MAX = 240
"""To start, to heal, to read all records and to check them."""
SEND_SECONDS_MAX = 20


@pytest.mark.behaviour("B09", "B10", "B11")
@pytest.mark.timeout(OVERHEAD_SECONDS_MAX + SECONDS * 1.5)
def test_no_record_is_lost_duplicated_or_reordered_while_brokers_fail(
    tmp_path: Path, kafka_jars: Callable[[str], Path]
) -> None:
    assert CONTROLLER in ("separate", "combined")
    folder = Path(FOLDER) if FOLDER else tmp_path
    run = chaos.run(folder, SEED, SECONDS, kafka_jars("4.3.0"), separate_controller=CONTROLLER == "separate")
    print(f"\n{run}")
    (folder / "report.txt").write_text(f"{run}\n")
    assert run.verdict.is_valid, run
    assert run.errors == [], run
    # The run must not be empty.
    assert all(run.acknowledged.values()), run
    assert all(run.read.values()), run
    assert run.verdict.sizes["committed"], run
    assert len(run.injected) >= SECONDS / 10, run


class HastyWriter:
    """A writer that waits for the leader only (acks=1), or for all replicas."""

    def __init__(self, setting: Setting, partition: int) -> None:
        self._setting = setting
        self._partition = partition
        self._producers = {
            acks: Producer(bootstrap_servers=setting.bootstrap, acks=acks, enable_idempotence=False)
            for acks in ("1", "all")
        }
        for producer in self._producers.values():
            producer.partitions_for(setting.topic)  # fetches metadata now

    def write(self, *values: str, acks: str) -> None:
        for value in values:
            send = SendOp(Phase.INVOKE, "hasty", value, self._setting.topic, self._partition)
            self._setting.history.add(send)
            future = self._producers[acks].send(self._setting.topic, value.encode(), partition=self._partition)
            offset = future.result(SEND_SECONDS_MAX).offset
            self._setting.history.add(send._replace(phase=Phase.OK, offset=offset))

    def close(self) -> None:
        for producer in self._producers.values():
            producer.close(SEND_SECONDS_MAX)


def test_the_check_finds_acks_1_writes_that_only_a_killed_leader_had(tmp_path: Path) -> None:
    """The check itself works: with acks=1, records are lost, and it reports them."""
    lost = [f"lost-{number}" for number in range(20)]
    with (
        EmbeddedCluster(chaos.BROKERS, chaos.OPTIONS, data_dir=tmp_path / "data", separate_controller=False) as cluster,
        HistoryWriter(tmp_path / "history.jsonl") as history,
    ):
        topic = cluster.create_topic("hasty", chaos.BROKERS)
        leaders = [state["leader"] for state in cluster.describe_topic(topic)]
        partition = next(number for number, leader in enumerate(leaders) if leader != cluster.controller.node_id)
        leader = cluster.broker(leaders[partition])
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
            "all in sync", lambda: all(len(state["isr"]) == chaos.BROKERS for state in cluster.describe_topic(topic))
        )
        read_finally(setting)
        cluster.stop()
        dump_replicas(setting, {broker.node_id: broker.data_dir for broker in cluster.brokers})
    verdict = check(load_history(tmp_path / "history.jsonl"))
    assert set(verdict.kinds) == {AnomalyKind.LOST}, verdict
    # A follower was paused while its fetch waited: the response, with the first record, reached it later.
    reported = {anomaly.text.split("'")[1] for anomaly in verdict.anomalies}
    assert {*lost[1:]} <= reported <= {*lost}
