"""A chaos run of consume-transform-produce: workers copy a topic in transactions, while brokers and workers fail.

    feeder → source → workers (one group, transactions) → target → reader
    feed and copy under faults → heal → all copied → stop → dump replicas → check

The target is checked with headrace.verify: each record of the source is a value that was sent and
acknowledged, so it must be in the target once, in the partition and the order of the source.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headrace.broker import EmbeddedCluster
from headrace.errors import HeadraceError
from headrace.verify import HistoryWriter, Operation, Phase, ReadOp, SendOp, Verdict, check, load_history
from tests.support import chaos
from tests.support.chaos_clients import HeadraceClient
from tests.support.chaos_nemesis import Injected, Nemesis
from tests.support.chaos_readers import Reader, dump_replicas, read_finally
from tests.support.chaos_writers import PlainWriter, Setting
from tests.support.copying_process import Copying, CopyingProcess
from tests.support.copying_worker import PREFIX
from tests.support.waiting import eventually

SOURCE, TARGET, GROUP = "source", "target", "copiers"
WORKERS = 3
RECORDS_PER_S = 300
SESSION_MS = 3_000
OPTIONS = {
    **chaos.OPTIONS,
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 300,
}
CALM_SECONDS = (0.5, 3.0)
"""Between two faults of workers."""
FAULT_SECONDS = (0.2, 2 * SESSION_MS / 1000)
"""Some pauses are longer than the session: the worker is then a zombie."""
CATCH_UP_SECONDS_MAX = 120
LOOK_SECONDS = 0.1
BEFORE_SECONDS = 12
REASONS_MAX, REASON_CHARS_MAX = 12, 160


class Failure(NamedTuple):
    """A worker that has ended with an error."""

    at: float
    worker: str
    reason: str


class WorkerFault(NamedTuple):
    at: float
    worker: str
    kind: str
    seconds: float


class Workers(threading.Thread):
    """Keeps workers running, and injects faults into them until `calm`."""

    def __init__(self, copying: Copying, cluster: EmbeddedCluster, seed: int) -> None:
        super().__init__(name="workers", daemon=True)
        self.error: BaseException | None = None
        self.faults: Counter[str] = Counter()
        self.copied_records = 0
        self.transactions = 0
        self.aborted: Counter[str] = Counter()  # By reason.
        self.failed: list[Failure] = []
        self.injected: list[WorkerFault] = []
        self.starts = 0
        self._copying = copying
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._lock = threading.Lock()  # Guards the counters.
        self._processes: dict[str, CopyingProcess] = {}
        self._calming = threading.Event()
        self._stopping = threading.Event()
        self._kinds: dict[str, Callable[[CopyingProcess, float], None]] = {
            "kill": self._kill,
            "pause": self._pause,
            "cut off": self._cut_off,
        }
        self._bag: list[str] = []

    # -- processes -----------------------------------------------------------------------------

    def run(self) -> None:
        try:
            for number in range(1, WORKERS + 1):
                self._start(f"worker-{number}")
            due = time.monotonic() + self._rng.uniform(*CALM_SECONDS)
            while not self._stopping.wait(LOOK_SECONDS):
                for process in [process for process in self._processes.values() if process.has_ended]:
                    process.kill()
                    self._start(process.name)
                if time.monotonic() > due and not self._calming.is_set():
                    self._inject()
                    due = time.monotonic() + self._rng.uniform(*CALM_SECONDS)
        except BaseException as error:
            self.error = error
        finally:
            for process in self._processes.values():
                process.kill()

    def _start(self, name: str) -> None:
        self.starts += 1
        # Half of them are static members: those get their partitions back when they restart.
        flags = ("--static",) if int(name[-1]) % 2 else ()
        self._processes[name] = self._copying.start(name, *flags, on_line=partial(self._on_line, name))

    def _on_line(self, name: str, line: str) -> None:
        word, _, rest = line.partition(" ")
        with self._lock:
            if word == "copied":
                self.transactions += 1
                self.copied_records += int(rest)
            elif word == "aborted":
                self.aborted[rest] += 1
            elif word == "failed":
                self.failed.append(Failure(time.monotonic(), name, rest))

    def calm(self) -> None:
        """Inject no more faults; the workers go on."""
        self._calming.set()

    def stop(self) -> None:
        """Kill all workers."""
        self._stopping.set()
        self.join(CATCH_UP_SECONDS_MAX)
        if self.error is not None:
            raise self.error

    # -- faults --------------------------------------------------------------------------------

    def _inject(self) -> None:
        process = self._processes[self._rng.choice(sorted(self._processes))]
        if not self._bag:  # each fault in turn, so that short runs have all kinds
            self._bag = self._rng.sample(sorted(self._kinds), len(self._kinds))
        kind, seconds = self._bag.pop(), self._rng.uniform(*FAULT_SECONDS)
        self.faults[kind] += 1
        self.injected.append(WorkerFault(time.monotonic(), process.name, kind, seconds))
        self._kinds[kind](process, seconds)

    def _kill(self, process: CopyingProcess, seconds: float) -> None:
        process.kill()
        self._calming.wait(seconds / 2)
        self._start(process.name)

    def _pause(self, process: CopyingProcess, seconds: float) -> None:
        process.pause()
        self._calming.wait(seconds)
        process.resume()

    def _cut_off(self, process: CopyingProcess, seconds: float) -> None:
        """Close all connections of a worker, as far as the brokers are running."""
        with ExitStack() as rules:
            for broker in self._cluster.brokers:
                # The other nemesis may have killed or paused this one.
                with suppress(HeadraceError, OSError):
                    rule = broker.faults.inject(client_id=f"{process.name}*", close=True)
                    rules.callback(_removed, rule.remove)
            self._calming.wait(seconds)


def _removed(remove: Callable[[], object]) -> None:
    with suppress(HeadraceError, OSError):  # a broker that was restarted has forgotten the rule
        remove()


@dataclass(slots=True)
class CopyRun:
    """The result of a run."""

    seed: int
    seconds: float
    protocol: str
    broker_faults: list[Injected]
    workers: Workers
    fed: int
    caught_up_s: float
    errors: list[str]
    verdicts: list[Verdict]  # of source and target
    folder: Path
    read: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        workers = self.workers
        kinds = Counter(injected.fault for injected in self.broker_faults)
        lines = [
            f"chaos of consume-transform-produce: {self.seconds:.0f} s, seed {self.seed}, {chaos.BROKERS} brokers, "
            f"{WORKERS} workers, {chaos.PARTITIONS} partitions, {self.protocol} protocol",
            f"faults of brokers: {sum(kinds.values())} ({chaos.counted(kinds)})",
            f"faults of workers: {workers.faults.total()} ({chaos.counted(workers.faults)}); {workers.starts} starts",
            f"records in the source: {self.fed}, all copied {self.caught_up_s:.1f} s after the last fault was healed",
            f"transactions whose commit a worker saw: {workers.transactions}, with {workers.copied_records} records",
            f"read under faults: {chaos.counted(self.read)}",
            *(f"error: {error}" for error in self.errors),
            f"transactions aborted: {workers.aborted.total()} times",
            *_listed(workers.aborted),
            f"workers ended with an error: {len(workers.failed)} times",
            *(
                f"  {failure.worker}: {failure.reason[:REASON_CHARS_MAX]}; before: {self._before(failure)}"
                for failure in workers.failed[:REASONS_MAX]
            ),
            *(f"check of {topic}: {verdict}" for topic, verdict in zip((SOURCE, TARGET), self.verdicts, strict=True)),
            f"files: {self.folder}",
        ]
        return "\n".join(lines)

    def _before(self, failure: Failure) -> str:
        """Return the faults of brokers, and of the worker, in the seconds before its failure."""
        at = failure.at
        faults = [(i.at, f"{i.fault} of {i.broker}", i.seconds) for i in self.broker_faults]
        faults += [(i.at, i.kind, i.seconds) for i in self.workers.injected if i.worker == failure.worker]
        recent = sorted(fault for fault in faults if at - BEFORE_SECONDS < fault[0] < at)
        return ", ".join(f"{text} at {when - at:.1f} s for {seconds:.1f} s" for when, text, seconds in recent) or "none"


def _listed(reasons: Counter[str]) -> Iterator[str]:
    for reason, count in reasons.most_common(REASONS_MAX):
        yield f"  {count}: {reason[:REASON_CHARS_MAX]}"


def run(folder: Path, seed: int, seconds: float, protocol: str = "classic") -> CopyRun:
    """Do a run; its files stay in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {topic: folder / f"{topic}.jsonl" for topic in (SOURCE, TARGET)}
    with ExitStack() as stack:
        cluster = stack.enter_context(
            EmbeddedCluster(chaos.BROKERS, OPTIONS, data_dir=folder / "data", degraded=True, separate_controller=False)
        )
        settings = {}
        for topic, file in files.items():
            cluster.create_topic(topic, chaos.PARTITIONS, chaos.BROKERS)
            history = stack.enter_context(HistoryWriter(file))
            settings[topic] = Setting(cluster.bootstrap_servers, topic, chaos.PARTITIONS, history)
        feeder = PlainWriter("feeder", settings[SOURCE], HeadraceClient, RECORDS_PER_S, seed)
        reader = Reader("committed", settings[TARGET], committed=True)
        nemesis = Nemesis(cluster, TARGET, seed)
        copying = Copying(cluster.bootstrap_servers, GROUP, SOURCE, TARGET, protocol, SESSION_MS, folder)
        workers = Workers(copying, cluster, seed)
        stack.callback(workers.stop)
        for thread in (feeder, reader, workers, nemesis):
            thread.start()
        chaos.wait(seconds, [nemesis, feeder, workers])
        workers.calm()
        errors = chaos.stop_all([nemesis, feeder])
        chaos.heal(cluster, files)
        healed = time.monotonic()
        read_finally(settings[SOURCE])
        fed = sum(len(read.records) for read in _finals(files[SOURCE], settings[SOURCE].history))
        with suppress(TimeoutError):  # the check says what is missing
            eventually("all records are copied", lambda: reader.count >= fed, CATCH_UP_SECONDS_MAX)
        caught_up_s = time.monotonic() - healed
        errors += chaos.stop_all([workers, reader])
        read_finally(settings[TARGET])
        cluster.stop()
        for setting in settings.values():
            dump_replicas(setting, {broker.node_id: broker.data_dir for broker in cluster.brokers})
    return CopyRun(
        seed=seed,
        seconds=seconds,
        protocol=protocol,
        broker_faults=nemesis.injected,
        workers=workers,
        fed=fed,
        caught_up_s=caught_up_s,
        errors=errors + reader.errors,
        verdicts=[
            check(load_history(files[SOURCE])),
            check(copies(load_history(files[SOURCE]), load_history(files[TARGET]))),
        ],
        folder=folder,
        read={reader.name: reader.count},
    )


def _finals(path: Path, history: HistoryWriter) -> list[ReadOp]:
    history.flush()
    return [op for op in load_history(path) if isinstance(op, ReadOp) and op.final and op.committed]


def copies(source: Iterable[Operation], target: Iterable[Operation]) -> Iterator[Operation]:
    """Return the history of the target: every record of the source was sent to it, and acknowledged.

    Aborted copies do not count, so the final read of all records is that of the committed ones.
    """
    for read in (op for op in source if isinstance(op, ReadOp) and op.final and op.committed):
        for _, value in sorted(read.records):
            copy = f"{PREFIX.decode()}{value}"
            send = SendOp(Phase.INVOKE, f"source-{read.partition}", copy, TARGET, read.partition)
            yield from (send, send._replace(phase=Phase.OK))
    for operation in target:
        if not isinstance(operation, ReadOp) or operation.committed:
            yield operation
        if isinstance(operation, ReadOp) and operation.final and operation.committed:
            yield operation._replace(committed=False)
