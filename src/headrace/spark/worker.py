"""What a Python worker of Spark keeps between tasks: producers, and transactional ids of its own.

    producer_of → begin, under an id of this worker → the task writes → leave_open: the driver will end it

A transactional id belongs to one worker process: `sink~run~worker~number`. Twins of a task therefore never get into
each other's way. A worker may have several transactions open at once, one for each task that it has done in a batch; an
id is used again when its batch is over, so that brokers do not have to remember a new one for every task.
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

from headrace.client.clock import SYSTEM_CLOCK
from headrace.errors import BrokerError, Code, ConfigError, HeadraceError, IllegalStateError
from headrace.producer.engine import SendEngine
from headrace.producer.settings import resolve
from headrace.producer.transaction_state import State
from headrace.producer.transactions import TransactionManager
from headrace.spark.errors import IDS_REFUSED
from headrace.spark.sink_options import SEPARATOR, SinkOptions

IDLE_SECONDS_MAX = 60.0
"""A producer that no task has asked for is closed: threads and connections are not free."""
CLOSE_SECONDS_MAX = 5.0
ABORT_MS_MAX = 10_000
RUNS_MAX = 64
"""Runs of queries whose ids a worker remembers; with more, the run that wrote the longest time ago is forgotten."""


@dataclass(slots=True)
class _Kept:
    """A producer between two tasks."""

    producer: SendEngine
    idle_since: float


@dataclass(slots=True)
class _Worker:
    """The state of this process."""

    pid: int = field(default_factory=os.getpid)
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    lock: threading.Lock = field(default_factory=threading.Lock)
    kept: dict[tuple[tuple[str, str], ...], _Kept] = field(default_factory=dict)  # Guarded by lock.
    batches: dict[str, dict[int, int]] = field(default_factory=dict)  # By sink and run: the last batch of each id.
    ids: int = 0
    closer: threading.Thread | None = None  # Guarded by lock.


_worker: _Worker | None = None


def _this() -> _Worker:
    """Spark's daemon forks: what is inherited belongs to the parent."""
    global _worker
    if _worker is None or _worker.pid != os.getpid():
        _worker = _Worker()
    return _worker


def transactional_id(sink: str, run: str, batch: int) -> str:
    """An id of this worker whose last transaction is over, or a new one."""
    worker = _this()
    prefix = f"{sink}{SEPARATOR}{run}"
    used = worker.batches[prefix] = worker.batches.pop(prefix, {})
    while len(worker.batches) > RUNS_MAX:
        del worker.batches[next(iter(worker.batches))]
    # Spark begins a batch when the one before is committed: what was written in that one is ended.
    number = next((number for number, last in used.items() if last < batch), None)
    if number is None:
        # Never one that was given out before: its run may be forgotten here, and its transaction still be open.
        number, worker.ids = worker.ids, worker.ids + 1
    used[number] = batch
    return f"{prefix}{SEPARATOR}{worker.name}{SEPARATOR}{number}"


@contextlib.contextmanager
def producer_of(options: SinkOptions) -> Iterator[SendEngine]:
    """This worker's producer, for one task at a time. One that failed is not kept."""
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
        worker.kept[key] = _Kept(producer, time.monotonic())
        if worker.closer is None:
            worker.closer = threading.Thread(target=_close_idle, args=(worker,), name="headrace-idle", daemon=True)
            worker.closer.start()
    if other is not None:
        _close(other.producer)


def begin(producer: SendEngine, identifier: str) -> None:
    """A new transaction with an epoch of its own, under another id than the last, perhaps."""
    _retarget(producer, identifier)
    try:
        producer.init_transactions()
    except HeadraceError as error:
        raise _explained(error, producer) from error
    producer.begin_transaction()


def identity(producer: SendEngine) -> tuple[int, int, bool]:
    """SendEngine id and epoch of the open transaction, and whether it is one of v2 (KIP-890)."""
    manager = _manager(producer)
    with manager.lock:
        return manager.producer.producer_id, manager.producer.epoch, manager.v2_enabled


def leave_open(producer: SendEngine) -> None:
    """The transaction stays open at the broker; the producer has forgotten it, and may be closed or used again."""
    _retarget(producer, _manager(producer).transactional_id or "")


def abort(producer: SendEngine) -> None:
    """On the way out of a task that failed. What cannot be aborted now expires, or is aborted by the next run."""
    with contextlib.suppress(HeadraceError):
        manager = _manager(producer)
        if manager.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            manager.begin_abort().wait(ABORT_MS_MAX)


def _manager(producer: SendEngine) -> TransactionManager:
    manager = producer.transactions
    if manager is None or not manager.is_transactional:
        raise IllegalStateError("this producer knows no transactions")
    return manager


def _retarget(producer: SendEngine, identifier: str) -> None:
    """The next transaction is under this id. Thread, connections and metadata of the producer stay."""
    producer.detach_transaction(identifier)


def _explained(error: HeadraceError, producer: SendEngine) -> HeadraceError:
    cause = error if isinstance(error, BrokerError) else error.__cause__
    if isinstance(cause, BrokerError) and cause.code == Code.INVALID_TRANSACTION_TIMEOUT:
        return ConfigError(
            f"kafka.transaction.timeout.ms is {producer.settings.transaction_timeout_ms}, and the brokers' "
            "transaction.max.timeout.ms is lower: set kafka.transaction.timeout.ms to that, or raise it there"
        )
    if isinstance(cause, BrokerError) and cause.code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return BrokerError(IDS_REFUSED, code=cause.code)
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
    """One of them for each run, at most `count_max` in all: then the longest unused is closed. One thread.

    Those that nobody has asked for within `idle_seconds_max` are closed when the next one is asked for. A process that
    is asked for none at all is ended by Spark, after a minute.
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
        self._kept: dict[tuple[str, str, str], T] = {}  # by where, sink, run; the longest unused first
        self._used_at: dict[tuple[str, str, str], float] = {}

    def get(self, where: str, sink: str, run: str, make: Callable[[], T]) -> T:
        """That of this run, made when first asked for; those of older runs of the sink are closed then."""
        key = (where, sink, run)
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
        """Close what is not used any more. A failure is logged: it is not one of the run that is asked for."""
        del self._used_at[key]
        try:
            self._kept.pop(key).close()
        except Exception:
            _, sink, run = key
            log.warning("closing what run %s of %s has left in this process failed", run, sink, exc_info=True)

    def discard(self, value: T) -> bool:
        """Keep it no longer, and leave closing it to the caller; False if it was not kept."""
        keys = [key for key, kept in self._kept.items() if kept is value]
        for key in keys:
            del self._kept[key], self._used_at[key]
        return bool(keys)
