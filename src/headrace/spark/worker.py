"""What a Python worker of Spark keeps between tasks and commits: producers, transactional ids, committers.

    producer_of → begin, with a transactional id of this worker → the task writes → leave_open: the driver ends it
    PerRun      → objects of one run of a sink, such as its Committer, closed when a newer run comes

A transactional id belongs to one worker process: `sink~run~worker~number`. So duplicate attempts of a task do not fence
each other. A worker may have several open transactions, one for each task of a batch that it has run. It uses an id
again when the batch is over, so that brokers need not store a new id for every task.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from headrace.config.clock import SYSTEM_CLOCK
from headrace.errors import BrokerError, Code, ConfigError, HeadraceError, IllegalStateError
from headrace.producer.engine import SendEngine
from headrace.producer.settings import resolve
from headrace.producer.transaction_state import State
from headrace.producer.transactions import TransactionManager
from headrace.spark.errors import IDS_NOT_AUTHORIZED
from headrace.spark.sink_options import SEPARATOR, SinkOptions

IDLE_SECONDS_MAX = 60.0
"""A producer that no task has used for this long is closed."""
CLOSE_SECONDS_MAX = 5.0
ABORT_MS_MAX = 10_000
RUNS_MAX = 64
"""Runs whose ids a worker remembers; beyond that, it forgets the run that wrote longest ago."""


@dataclass(slots=True)
class _IdleProducer:
    """A producer between two tasks."""

    producer: SendEngine
    idle_since: float


@dataclass(slots=True)
class _Worker:
    """The state of this worker process."""

    pid: int = field(default_factory=os.getpid)
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    lock: threading.Lock = field(default_factory=threading.Lock)
    kept: dict[tuple[tuple[str, str], ...], _IdleProducer] = field(default_factory=dict)  # Guarded by lock.
    batches: dict[str, dict[int, int]] = field(default_factory=dict)  # by sink and run: last batch of each id number
    ids: int = 0
    closer: threading.Thread | None = None  # Guarded by lock.


_worker: _Worker | None = None


def _this() -> _Worker:
    """Return the state of this process. Spark's daemon forks: inherited state belongs to the parent."""
    global _worker
    if _worker is None or _worker.pid != os.getpid():
        _worker = _Worker()
    return _worker


def transactional_id(sink: str, run: str, batch: int) -> str:
    """Return an id of this worker whose last transaction is ended, or a new one."""
    worker = _this()
    prefix = f"{sink}{SEPARATOR}{run}"
    used = worker.batches[prefix] = worker.batches.pop(prefix, {})
    while len(worker.batches) > RUNS_MAX:
        del worker.batches[next(iter(worker.batches))]
    # Spark begins a batch when the previous one is committed: its transactions are ended.
    number = next((number for number, last in used.items() if last < batch), None)
    if number is None:
        # Never an earlier number: its run may be forgotten here, and its transaction still be open.
        number, worker.ids = worker.ids, worker.ids + 1
    used[number] = batch
    return f"{prefix}{SEPARATOR}{worker.name}{SEPARATOR}{number}"


@contextlib.contextmanager
def producer_of(options: SinkOptions) -> Iterator[SendEngine]:
    """Lend this worker's producer to one task at a time. After an error it is closed."""
    worker = _this()
    key = tuple(sorted((name, str(value)) for name, value in options.producer_config().items()))
    with worker.lock:
        kept = worker.kept.pop(key, None)
    producer = SendEngine(resolve(options.producer_config()), SYSTEM_CLOCK) if kept is None else kept.producer
    try:
        yield producer
    except BaseException:
        _close(producer)
        raise
    with worker.lock:
        other = worker.kept.pop(key, None)
        worker.kept[key] = _IdleProducer(producer, time.monotonic())
        if worker.closer is None:
            worker.closer = threading.Thread(target=_close_idle, args=(worker,), name="headrace-idle", daemon=True)
            worker.closer.start()
    if other is not None:
        _close(other.producer)


def begin(producer: SendEngine, identifier: str) -> None:
    """Begin a transaction with this id and a new epoch. The producer keeps its thread, connections and metadata."""
    producer.detach_transaction(identifier)
    try:
        producer.init_transactions().acknowledged = True
    except HeadraceError as error:
        raise _explained(error, producer) from error
    producer.begin_transaction()


def identity(producer: SendEngine) -> tuple[int, int, bool]:
    """Return producer id and epoch of the open transaction, and whether it is v2 (KIP-890)."""
    manager = _manager(producer)
    with manager.lock:
        return manager.producer.producer_id, manager.producer.epoch, manager.v2_enabled


def leave_open(producer: SendEngine) -> None:
    """Leave the transaction open at the brokers; the producer forgets it, and may be closed or used again."""
    producer.detach_transaction(_manager(producer).transactional_id or "")


def abort(producer: SendEngine) -> None:
    """Abort the transaction of a failed task. If that fails, it expires, or the next run aborts it."""
    with contextlib.suppress(HeadraceError):
        manager = _manager(producer)
        if manager.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            manager.begin_abort().wait(ABORT_MS_MAX)


def _manager(producer: SendEngine) -> TransactionManager:
    manager = producer.transactions
    if manager is None or not manager.is_transactional:
        raise IllegalStateError("internal error: the producer of a task is not transactional; please report this")
    return manager


def _explained(error: HeadraceError, producer: SendEngine) -> HeadraceError:
    cause = error if isinstance(error, BrokerError) else error.__cause__
    if isinstance(cause, BrokerError) and cause.code == Code.INVALID_TRANSACTION_TIMEOUT:
        return ConfigError(
            f"kafka.transaction.timeout.ms is {producer.settings.transaction_timeout_ms}, but the brokers' "
            "transaction.max.timeout.ms is lower: set kafka.transaction.timeout.ms to that, or raise it on the brokers"
        )
    if isinstance(cause, BrokerError) and cause.code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return BrokerError(IDS_NOT_AUTHORIZED, code=cause.code)
    return error


def _close(producer: SendEngine) -> None:
    with contextlib.suppress(HeadraceError):
        producer.close(CLOSE_SECONDS_MAX)


def _close_idle(worker: _Worker) -> None:
    while True:
        time.sleep(IDLE_SECONDS_MAX / 4)
        with worker.lock:
            now = time.monotonic()
            idle = [key for key, kept in worker.kept.items() if now - kept.idle_since > IDLE_SECONDS_MAX]
            closing = [worker.kept.pop(key).producer for key in idle]
            if not worker.kept:
                worker.closer = None
        for producer in closing:
            _close(producer)
        if worker.closer is None:
            return


log = logging.getLogger("headrace.spark")


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class PerRun(Generic[T]):
    """Keeps one object for each run, at most `count_max`; beyond that, closes the least recently used. Not thread-safe.

    `get` closes objects that were not used for `idle_seconds_max`. Spark ends a process without commits after a minute.
    """

    def __init__(
        self,
        count_max: int,
        idle_seconds_max: float = math.inf,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count_max = count_max
        self._idle_seconds_max = idle_seconds_max
        self._now_seconds = now_seconds
        self._kept: dict[tuple[str, str, str], T] = {}  # by cluster, sink, run; least recently used first
        self._used_at: dict[tuple[str, str, str], float] = {}

    def get(self, cluster: str, sink: str, run: str, make: Callable[[], T]) -> T:
        """Return the object of this run, made on first use; close those of older runs of the sink."""
        key = (cluster, sink, run)
        now = self._now_seconds()
        value = self._kept.pop(key, None)
        for old in [
            old for old in self._kept if old[:2] == key[:2] or now - self._used_at[old] > self._idle_seconds_max
        ]:
            self._close(old)
        while len(self._kept) >= self._count_max:
            self._close(next(iter(self._kept)))
        self._kept[key] = value = make() if value is None else value
        self._used_at[key] = now
        return value

    def _close(self, key: tuple[str, str, str]) -> None:
        """Close an object. A failure is logged: it concerns another run than the one in use."""
        del self._used_at[key]
        try:
            self._kept.pop(key).close()
        except Exception:
            _, sink, run = key
            log.warning("run %s of sink %s: closing its connections in this process failed", run, sink, exc_info=True)

    def discard(self, value: T) -> bool:
        """Remove an object without closing it; return False if it is not kept here."""
        keys = [key for key, kept in self._kept.items() if kept is value]
        for key in keys:
            del self._kept[key], self._used_at[key]
        return bool(keys)
