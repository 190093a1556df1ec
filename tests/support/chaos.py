"""A chaos run: a cluster, clients of every make, a nemesis; then everything is healed, read, and judged.

    write and read under faults → heal → all in sync → end what is open → read all → stop → dump replicas → check

What the clients saw is kept as `history.jsonl` in the run's folder: history_check.py judges it again.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from headrace.broker import EmbeddedCluster
from tests.support.chaos_clients import ConfluentClient, MakeClient, OwnClient
from tests.support.chaos_java import JavaWriter
from tests.support.chaos_nemesis import Injected, Nemesis
from tests.support.chaos_readers import Reader, dump_replicas, read_finally
from tests.support.chaos_writers import PlainWriter, Setting, TransactionalWriter, Writer
from tests.support.history import Answered, Ended, HistoryFile, Outcome, Sent, load
from tests.support.history_check import Fault, check, report
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
    # Quick enough that a pause of a few seconds has consequences.
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 200,
    "replica.lag.time.max.ms": 2_000,
}


@dataclass(slots=True)
class Run:
    """What came of it."""

    controller: str  # separate or combined
    seed: int
    seconds: float
    injected: list[Injected]
    fail_overs_s: list[float]
    acknowledged: dict[str, int]  # by writer
    read: dict[str, int]  # by reader
    errors: list[str]  # of clients, which should have lived through it all
    reasons: Counter[str]  # why writers gave up
    records: Counter[Outcome]
    transactions: Counter[Outcome]
    faults: list[Fault]
    history: Path

    def __str__(self) -> str:
        kinds = Counter(one.fault for one in self.injected)
        killed = Counter(f"node {one.broker}" for one in self.injected if one.fault == "kill")
        lines = [
            f"chaos: {self.seconds:.0f} s, seed {self.seed}, {BROKERS} brokers, {PARTITIONS} partitions, "
            f"{self.controller} controller",
            f"faults injected: {sum(kinds.values())} ({_counted(kinds)})",
            f"kills, by process: {_counted(killed)}",
            f"records: {sum(self.records.values())} ({_counted(self.records)})",
            f"transactions: {sum(self.transactions.values())} ({_counted(self.transactions)})",
            f"acknowledged, by writer: {_counted(self.acknowledged)}",
            f"read under faults, by reader: {_counted(self.read)}",
            f"fail-over, leader killed to next acknowledgement: {_times(self.fail_overs_s)}",
            *(f"error: {error}" for error in self.errors),
            f"clients gave up, or had to abort: {sum(self.reasons.values())} times",
            *(f"  {count}: {reason[:REASON_CHARS_MAX]}" for reason, count in self.reasons.most_common(REASONS_MAX)),
            f"verdict: {report(self.faults)}",
            f"history: {self.history}",
        ]
        return "\n".join(lines)


def run(folder: Path, seed: int, seconds: float, java_jars: Path | None, *, separate_controller: bool) -> Run:
    """One run, in a folder of its own that stays."""
    folder.mkdir(parents=True, exist_ok=True)
    history_path = folder / "history.jsonl"
    with ExitStack() as stack:
        cluster = stack.enter_context(
            EmbeddedCluster(
                BROKERS, OPTIONS, data_dir=folder / "data", degraded=True, separate_controller=separate_controller
            )
        )
        history = stack.enter_context(HistoryFile(history_path))
        cluster.create_topic(TOPIC, PARTITIONS, BROKERS)
        setting = Setting(cluster.bootstrap_servers, TOPIC, PARTITIONS, history)
        writers = _writers(setting, seed)
        readers = [Reader(name, setting, committed=name == "committed") for name in ("committed", "everything")]
        nemesis = Nemesis(cluster, TOPIC, seed)
        others = [JavaWriter(java_jars, folder, setting, JAVA_PER_S, seconds)] if java_jars is not None else []
        for thread in (*writers, *readers, nemesis):
            thread.start()
        _wait(seconds, [nemesis, *writers])
        errors = _stopped([nemesis, *others, *writers])
        _heal(cluster, writers)
        errors += _stopped(readers)
        read_finally(setting)
        cluster.stop()
        dump_replicas(setting, {broker.node_id: broker.data_dir for broker in cluster.brokers})
    records, transactions = _outcomes(history_path)
    return Run(
        controller="separate" if separate_controller else "combined",
        seed=seed,
        seconds=seconds,
        injected=nemesis.injected,
        fail_overs_s=fail_overs(nemesis.injected, setting.acks),
        acknowledged={one.name: one.acknowledged for one in writers} | {one.name: one.acknowledged for one in others},
        read={one.name: one.count for one in readers},
        reasons=sum((one.reasons for one in writers), Counter()),
        errors=errors + [error for one in readers for error in one.errors],
        records=records,
        transactions=transactions,
        faults=check(load(history_path)),
        history=history_path,
    )


def _writers(setting: Setting, seed: int) -> list[Writer]:
    makes: dict[str, MakeClient] = {"own": OwnClient, "confluent": ConfluentClient}
    plain = [PlainWriter(f"{name}-plain", setting, make, PLAIN_PER_S, seed) for name, make in makes.items()]
    transactional = [
        TransactionalWriter(f"{name}-transactional-{number}", setting, make, TRANSACTIONS_PER_S, seed + number)
        for name, make in makes.items()
        for number in (1, 2)
    ]
    return [*plain, *transactional]


def _wait(seconds: float, threads: Sequence[Nemesis | Writer]) -> None:
    """So long, or until one of them has come to grief."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not any(thread.error for thread in threads):
        time.sleep(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic())))


def _stopped(many: Iterable[Nemesis | JavaWriter | Writer | Reader]) -> list[str]:
    """Stop all of them; what they have to complain of."""
    errors = []
    for one in many:
        try:
            one.stop()
        except Exception as error:
            errors.append(f"{one.name}: {error!r}")
    return errors


def _heal(cluster: EmbeddedCluster, writers: list[Writer]) -> None:
    for member in [cluster.controller, *cluster.brokers]:
        if member.is_running:
            member.resume()
        member.degrader.heal()
    cluster.start()

    def whole() -> bool:
        return all(len(place["isr"]) == BROKERS and place["leader"] > 0 for place in cluster.describe_topic(TOPIC))

    eventually("all replicas are in sync", whole, HEAL_SECONDS_MAX)
    for writer in writers:
        if isinstance(writer, TransactionalWriter):
            writer.settle()
    eventually("all replicas are in sync", whole, HEAL_SECONDS_MAX)


def _outcomes(path: Path) -> tuple[Counter[Outcome], Counter[Outcome]]:
    """Of records and of transactions. What has no answer is unknown; what Java never came to send is, too."""
    answers: dict[str, Outcome] = {}
    transactions: Counter[Outcome] = Counter()
    for event in load(path):
        match event:
            case Sent():
                answers[event.value] = Outcome.UNKNOWN
            case Answered():
                answers[event.value] = event.outcome
            case Ended():
                transactions[event.outcome] += 1
            case _:
                pass
    return Counter(answers.values()), transactions


def fail_overs(injected: list[Injected], acks: list[tuple[int, float, float]]) -> list[float]:
    """For each leader that was killed alone, not being the controller: until a record sent after that was answered."""
    found = []
    for one in injected:
        if one.fault != "kill" or one.was_controller or not one.alone or not one.led:
            continue
        first: dict[int, float] = {}
        for partition, sent_at, acknowledged_at in acks:
            if partition in one.led and sent_at > one.at:
                first[partition] = min(first.get(partition, acknowledged_at), acknowledged_at)
        found += [acknowledged_at - one.at for acknowledged_at in first.values()]
    return found


def _counted(counts: dict[str, int] | Counter[Outcome]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _times(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    return f"median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s, {len(seconds)} partitions"
