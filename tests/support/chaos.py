"""A chaos run: a cluster, clients of three libraries, and a nemesis that injects faults.

    write and read under faults → heal → all in sync → end open transactions → read all → stop → dump replicas → check

The history of the clients is kept as `history.jsonl` in the folder of the run, and can be checked again with
`headrace verify`.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.broker import EmbeddedCluster
from headrace.verify import HistoryWriter, Verdict, check, load_history
from tests.support.chaos_clients import ClientFactory, ConfluentClient, HeadraceClient
from tests.support.chaos_java import JavaWriter
from tests.support.chaos_nemesis import Injected, Nemesis
from tests.support.chaos_readers import Reader, dump_replicas, read_finally
from tests.support.chaos_writers import PlainWriter, Setting, TransactionalWriter, Writer
from tests.support.waiting import eventually

BROKERS = 3
PARTITIONS = 4
TOPIC = "chaos"
HEAL_SECONDS_MAX = 90
LOOK_SECONDS = 1.0
REASONS_MAX, REASON_CHARS_MAX = 10, 150  # shown
PLAIN_PER_S, TRANSACTIONS_PER_S, JAVA_PER_S = 150, 15, 150
OPTIONS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 3,
    # Short, so that a pause of a few seconds fences a broker.
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 200,
    "replica.lag.time.max.ms": 2_000,
}


class Failing(Protocol):
    """A thread that keeps its error."""

    error: BaseException | None


class Stoppable(Protocol):
    name: str

    def stop(self) -> None: ...


@dataclass(slots=True)
class Run:
    """The result of a chaos run."""

    controller: str  # separate or combined
    seed: int
    seconds: float
    injected: list[Injected]
    fail_overs_s: list[float]
    acknowledged: dict[str, int]  # by writer
    read: dict[str, int]  # by reader
    errors: list[str]  # of clients, which should survive all faults
    reasons: Counter[str]  # why writers gave up
    verdict: Verdict
    history: Path

    def __str__(self) -> str:
        kinds = Counter(injected.fault for injected in self.injected)
        killed = Counter(f"node {injected.broker}" for injected in self.injected if injected.fault == "kill")
        lines = [
            f"chaos: {self.seconds:.0f} s, seed {self.seed}, {BROKERS} brokers, {PARTITIONS} partitions, "
            f"{self.controller} controller",
            f"faults injected: {sum(kinds.values())} ({counted(kinds)})",
            f"kills, by process: {counted(killed)}",
            f"acknowledged, by writer: {counted(self.acknowledged)}",
            f"read under faults, by reader: {counted(self.read)}",
            f"fail-over, leader killed to next acknowledgement: {_times(self.fail_overs_s)}",
            *(f"error: {error}" for error in self.errors),
            f"clients gave up, or had to abort: {sum(self.reasons.values())} times",
            *(f"  {count}: {reason[:REASON_CHARS_MAX]}" for reason, count in self.reasons.most_common(REASONS_MAX)),
            f"check: {self.verdict}",
            f"history: {self.history}",
        ]
        return "\n".join(lines)


def run(folder: Path, seed: int, seconds: float, java_jars: Path | None, *, separate_controller: bool) -> Run:
    """Do a chaos run; its files stay in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    history_path = folder / "history.jsonl"
    with ExitStack() as stack:
        cluster = stack.enter_context(
            EmbeddedCluster(
                BROKERS, OPTIONS, data_dir=folder / "data", degraded=True, separate_controller=separate_controller
            )
        )
        history = stack.enter_context(HistoryWriter(history_path))
        cluster.create_topic(TOPIC, PARTITIONS, BROKERS)
        setting = Setting(cluster.bootstrap_servers, TOPIC, PARTITIONS, history)
        writers = _writers(setting, seed)
        readers = [Reader(name, setting, committed=name == "committed") for name in ("committed", "everything")]
        nemesis = Nemesis(cluster, TOPIC, seed)
        others = [JavaWriter(java_jars, folder, setting, JAVA_PER_S, seconds)] if java_jars is not None else []
        for thread in (*writers, *readers, nemesis):
            thread.start()
        wait(seconds, [nemesis, *writers])
        errors = stop_all([nemesis, *others, *writers])
        heal(cluster, [TOPIC])
        for writer in writers:
            if isinstance(writer, TransactionalWriter):
                writer.settle()
        heal(cluster, [TOPIC])
        errors += stop_all(readers)
        read_finally(setting)
        cluster.stop()
        dump_replicas(setting, {broker.node_id: broker.data_dir for broker in cluster.brokers})
    senders: list[Writer | JavaWriter] = [*writers, *others]
    return Run(
        controller="separate" if separate_controller else "combined",
        seed=seed,
        seconds=seconds,
        injected=nemesis.injected,
        fail_overs_s=fail_overs(nemesis.injected, setting.acks),
        acknowledged={client.name: client.acknowledged for client in senders},
        read={reader.name: reader.count for reader in readers},
        reasons=sum((writer.reasons for writer in writers), Counter()),
        errors=errors + [error for reader in readers for error in reader.errors],
        verdict=check(load_history(history_path)),
        history=history_path,
    )


def _writers(setting: Setting, seed: int) -> list[Writer]:
    factories: dict[str, ClientFactory] = {"own": HeadraceClient, "confluent": ConfluentClient}
    plain = [PlainWriter(f"{name}-plain", setting, factory, PLAIN_PER_S, seed) for name, factory in factories.items()]
    transactional = [
        TransactionalWriter(f"{name}-transactional-{number}", setting, factory, TRANSACTIONS_PER_S, seed + number)
        for name, factory in factories.items()
        for number in (1, 2)
    ]
    return [*plain, *transactional]


def wait(seconds: float, threads: Sequence[Failing]) -> None:
    """Wait, but not longer than until one of the threads has failed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not any(thread.error for thread in threads):
        time.sleep(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))


def stop_all(clients: Iterable[Stoppable]) -> list[str]:
    """Stop all of them, and return their errors."""
    errors = []
    for client in clients:
        try:
            client.stop()
        except Exception as error:
            errors.append(f"{client.name}: {error!r}")
    return errors


def heal(cluster: EmbeddedCluster, topics: Iterable[str]) -> None:
    """Start, resume and reconnect all processes, and wait until all replicas are in sync."""
    for member in [cluster.controller, *cluster.brokers]:
        if member.is_running:
            member.resume()
        member.degrader.heal()
    cluster.start()

    def is_in_sync() -> bool:
        partitions = [partition for topic in topics for partition in cluster.describe_topic(topic)]
        return all(len(partition["isr"]) == BROKERS and partition["leader"] > 0 for partition in partitions)

    eventually("all replicas are in sync", is_in_sync, HEAL_SECONDS_MAX)


def fail_overs(injected: list[Injected], acks: list[tuple[int, float, float]]) -> list[float]:
    """Return the time from the kill of a leader to the first acknowledgement of a record that was sent after it.

    Only leaders count that were killed alone, and were not the controller.
    """
    times_s = []
    for kill in injected:
        if kill.fault != "kill" or kill.was_controller or not kill.alone or not kill.led:
            continue
        first: dict[int, float] = {}
        for partition, sent_at, acknowledged_at in acks:
            if partition in kill.led and sent_at > kill.at:
                first[partition] = min(first.get(partition, acknowledged_at), acknowledged_at)
        times_s += [acknowledged_at - kill.at for acknowledged_at in first.values()]
    return times_s


def counted(counts: Mapping[str, int]) -> str:
    """Return counts as text."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _times(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    return f"median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s, {len(seconds)} partitions"
