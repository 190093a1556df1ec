"""Transaction timeouts, and the removal of expired transactional ids."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from headrace.broker.clock import Timer, TimerClock
from headrace.broker.transactions import log_records
from headrace.broker.transactions.store import StatePartition, TransactionEntry, TransactionStore
from headrace.broker.transactions.transaction import AT_REST, TransactionState
from headrace.config import Config
from headrace.errors import BrokerError

log = logging.getLogger("headrace.broker.transactions")

TOMBSTONES_PER_BATCH_MAX = 1_000
"""How many tombstones are written in one append."""

StartTask = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class TransactionExpiry:
    """Aborts timed-out transactions and removes expired transactional ids periodically."""

    def __init__(
        self,
        store: TransactionStore,
        clock: TimerClock,
        config: Config,
        start_task: StartTask,
        abort: Callable[[StatePartition, TransactionEntry], Coroutine[Any, Any, None]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._config = config
        self._start_task = start_task
        self._abort = abort
        self._timers: dict[str, Timer] = {}

    def start(self) -> None:
        self._schedule("transaction.abort.timed.out.transaction.cleanup.interval.ms", self.abort_timed_out)
        self._schedule("transaction.remove.expired.transaction.cleanup.interval.ms", self.remove_expired)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _schedule(self, interval_option: str, action: Callable[[], None]) -> None:
        def run() -> None:
            self._schedule(interval_option, action)
            action()

        interval_ms = self._config.of(int, interval_option)
        self._timers[interval_option] = self._clock.call_later(interval_ms, run)

    def abort_timed_out(self) -> None:
        """Abort transactions that exceed their transaction.timeout.ms."""
        now_ms = self._clock.time_ms()
        for partition, entry in self._idle_entries():
            current = entry.current
            if current.state == TransactionState.ONGOING and current.started_ms + current.timeout_ms < now_ms:
                log.info(
                    "%s: aborting the transaction, it exceeded transaction.timeout.ms=%d",
                    current.transactional_id,
                    current.timeout_ms,
                )
                self._start_task(self._abort(partition, entry))

    def remove_expired(self) -> None:
        """Write tombstones for ids without a transaction for transactional.id.expiration.ms."""
        oldest_ms = self._clock.time_ms() - self._config.of(int, "transactional.id.expiration.ms")
        expired: dict[int, list[TransactionEntry]] = {}
        for partition, entry in self._idle_entries():
            if entry.current.state in AT_REST and entry.current.updated_ms <= oldest_ms:
                entry.pending = TransactionState.DEAD
                expired.setdefault(partition.index, []).append(entry)
        for index, entries in expired.items():
            for start in range(0, len(entries), TOMBSTONES_PER_BATCH_MAX):
                chunk = entries[start : start + TOMBSTONES_PER_BATCH_MAX]
                self._start_task(self._remove(self._store.partitions[index], chunk))

    async def _remove(self, partition: StatePartition, entries: list[TransactionEntry]) -> None:
        names = [entry.current.transactional_id for entry in entries]
        try:
            now_ms = self._clock.time_ms()
            await self._store.append(partition, [log_records.tombstone(name, now_ms) for name in names])
            for name in names:
                del partition.entries[name]
        except BrokerError as error:
            log.warning("failed to remove %d expired transactional ids: %s", len(names), error)
        finally:
            for entry in entries:
                entry.settle()

    def _idle_entries(self) -> Iterator[tuple[StatePartition, TransactionEntry]]:
        """Yield the entries without a pending transition."""
        for partition in self._store.partitions.values():
            for entry in partition.entries.values():
                if entry.pending is None and not entry.current.is_new:
                    yield partition, entry
