"""Runs of one client on one broker under faults, whose histories are checked: `make verify-clients`.

writers → proxy that loses, delays and refuses requests → broker that is killed → readers
write and read under faults → heal → end open transactions → read all → check
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from headrace.verify import HistoryWriter, Verdict, check, load_history
from tests.support.chaos import stop_all, wait
from tests.support.chaos_clients import ClientFactory
from tests.support.chaos_readers import Reader, read_finally
from tests.support.chaos_writers import PlainWriter, Setting, TransactionalWriter, Writer
from tests.support.fault_proxy import FaultProxy, ProxyFault
from tests.support.peers.broker import Broker

PARTITIONS = 2
PLAIN_PER_S, TRANSACTIONS_PER_S = 40, 10
TRANSACTION_MS = 6_000
STALL_SECONDS, STALL_CHANCE = 8.0, 0.01
"""A writer that waits longer than the time-out of its transaction."""
BROKER_OPTIONS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
CALM_SECONDS, FAULT_SECONDS = (0.2, 1.5), (0.5, 3.0)
DELAY_SECONDS = (0.2, 3.0)  # some are longer than the time-out of a request
CHANCE = 0.3
STOP_SECONDS_MAX = 90


class StallingWriter(TransactionalWriter):
    """Some of its transactions expire before it ends them."""

    def before_end(self) -> None:
        if self.rng.random() < STALL_CHANCE:
            self._stopping.wait(STALL_SECONDS)


class ProxyNemesis(threading.Thread):
    """Injects faults into a proxy and its broker until it is stopped."""

    def __init__(self, proxy: FaultProxy, broker: Broker, start: Callable[[], None], seed: int) -> None:
        super().__init__(name="nemesis", daemon=True)
        self.error: BaseException | None = None
        self.injected: Counter[str] = Counter()
        self._proxy = proxy
        self._broker = broker
        self._start_broker = start
        self._rng = random.Random(seed)
        self._stopping = threading.Event()
        self._faults: dict[str, Callable[[], None]] = {
            "lost responses": lambda: self._during(proxy.lose_responses(probability=CHANCE)),
            "lost requests": lambda: self._during(proxy.lose_requests(probability=CHANCE)),
            "delayed requests": self._delay,
            "cut": self._cut,
            "lost response, then cut": self._lose_and_cut,
            "kill": self._kill,
        }
        self._bag: list[str] = []

    def run(self) -> None:
        try:
            while not self._stopping.wait(self._rng.uniform(*CALM_SECONDS)):
                if not self._bag:  # each fault in turn, so that short runs have all of them
                    self._bag = self._rng.sample(sorted(self._faults), len(self._faults))
                name = self._bag.pop()
                self.injected[name] += 1
                self._faults[name]()
        except BaseException as error:
            self.error = error
        finally:
            self._proxy.heal()

    def stop(self) -> None:
        """Stop, with all faults healed."""
        self._stopping.set()
        self.join(STOP_SECONDS_MAX)
        if self.is_alive():
            raise TimeoutError(f"the nemesis has not stopped after {STOP_SECONDS_MAX} s")
        if self.error is not None:
            raise self.error

    def _wait(self) -> None:
        self._stopping.wait(self._rng.uniform(*FAULT_SECONDS))

    def _during(self, fault: AbstractContextManager[ProxyFault]) -> None:
        with fault:
            self._wait()

    def _delay(self) -> None:
        self._during(self._proxy.delay_requests(self._rng.uniform(*DELAY_SECONDS), probability=CHANCE))

    def _cut(self) -> None:
        self._proxy.cut()
        self._wait()
        self._proxy.heal()

    def _lose_and_cut(self) -> None:
        with self._proxy.lose_responses(probability=CHANCE, count=1, cut=True):
            self._wait()
        self._proxy.heal()

    def _kill(self) -> None:
        self._broker.kill()
        self._start_broker()


@dataclass(slots=True)
class ClientRun:
    """The result of a run."""

    name: str
    injected: Counter[str]
    reasons: Counter[str]
    errors: list[str]
    verdict: Verdict
    history: Path
    seconds: float

    def __str__(self) -> str:
        injected = ", ".join(f"{name} {count}" for name, count in sorted(self.injected.items()))
        lines = [f"{self.name}: {self.seconds:.0f} s; {injected}", f"gave up or aborted {self.reasons.total()} times"]
        return "\n  ".join([*lines, *self.errors, *str(self.verdict).splitlines(), f"history: {self.history}"])


@dataclass(slots=True)
class ClientCell:
    """A client on a broker."""

    name: str
    broker: Broker
    start: Callable[[], None]  # starts the broker again
    factory: ClientFactory
    classic: bool


def run_client(cell: ClientCell, folder: Path, seed: int, seconds: float) -> ClientRun:
    """Do a run; its history stays in the folder."""
    path = folder / f"{cell.name}.jsonl"
    started = time.monotonic()
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(cell.broker.bootstrap, seed, classic=cell.classic))
        history = stack.enter_context(HistoryWriter(path))
        topic = cell.broker.create_topic(f"{cell.name}-{seed}", PARTITIONS)
        direct = Setting(cell.broker.bootstrap, topic, PARTITIONS, history)
        setting = Setting(proxy.bootstrap, topic, PARTITIONS, history)
        prefix = f"{cell.name}-{seed}"
        transactional = [
            StallingWriter(f"{prefix}-t{number}", setting, cell.factory, TRANSACTIONS_PER_S, seed + number)
            for number in (1, 2)
        ]
        plain = PlainWriter(f"{prefix}-p", setting, cell.factory, PLAIN_PER_S, seed)
        writers: list[Writer] = [plain, *transactional]
        readers = [Reader(name, direct, committed=name == "committed") for name in ("committed", "everything")]
        nemesis = ProxyNemesis(proxy, cell.broker, cell.start, seed)
        for thread in (*writers, *readers, nemesis):
            thread.start()
        wait(seconds, [nemesis, *writers])
        errors = stop_all([nemesis, *writers])
        for writer in transactional:
            writer.settle()
        errors += stop_all(readers)
        read_finally(direct)
    return ClientRun(
        name=cell.name,
        injected=nemesis.injected,
        reasons=sum((writer.reasons for writer in writers), Counter()),
        errors=errors + [error for reader in readers for error in reader.errors],
        verdict=check(load_history(path)),
        history=path,
        seconds=time.monotonic() - started,
    )
